//! How a shard's links get memory and return it: a ring whose buffers are all in flight uses more of them ([`End::use_more`]); a ring on
//! which nothing was sent for a while goes back to few.

#[cfg(doc)]
use super::end::End;
use super::queue::LinkQueue;
use core::time::Duration;
use std::time::Instant;

/// Interval between two checks for idle links.
pub(super) const IDLE: Duration = Duration::from_secs(1);

impl LinkQueue {
    /// Has idle links go back to few buffers, once a second.
    pub(super) fn use_few_when_idle(&mut self, now: Instant) {
        if now < self.idle_at {
            return;
        }
        self.idle_at = now + IDLE;
        if !self.shared.budget.is_used() {
            return;
        }
        for end in self.ends.iter_mut().flatten() {
            if let Some(unused) = end.use_few_when_idle(&self.shared.budget) {
                self.shared.give_back(unused);
            }
        }
    }
}
