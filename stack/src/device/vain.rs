//! Polls that find nothing, where cores are busy: a thread that polls in vain gives its core to the peer that it waits for, by sleeping
//! until there is work. With a core to spare it never sleeps.
//!
//! What is known is of the thread, whatever it polls: one that finds work anywhere goes on.

use core::cell::RefCell;
use core::time::Duration;
use std::time::Instant;

use super::contention::{AWAY, Contention};
use super::scheduling::was_preempted;
use crate::config::HELPER_SLEEP;

/// How long cores count as busy at most before the thread tries again whether one is to spare: that costs it some slices of the scheduler.
const BUSY_AT_MOST: Duration = Duration::from_millis(1280);
/// One of so many turns is looked at.
pub(super) const EVERY: u32 = 64;
/// A thread polls in vain for so long before it sleeps.
const VAIN: Duration = Duration::from_micros(20);
/// A program may have other work than what it polls for. So its first sleep is short, and each that brings nothing is followed by one of
/// twice the time.
const SHORTEST: Duration = Duration::from_micros(50);
const LONGEST: Duration = HELPER_SLEEP;

thread_local! {
    static POLLS: RefCell<Polls> = RefCell::default();
}

/// What a thread has found by its polls. Times are since [`began`](Self::began).
#[derive(Debug)]
struct Polls {
    began: Instant,
    contention: Contention,
    /// The last look.
    looked_at: Option<Duration>,
    /// Nothing was found since.
    vain_since: Option<Duration>,
    /// The next sleep, and whether it is due.
    sleep: Duration,
    due: bool,
}

impl Default for Polls {
    fn default() -> Self {
        Self {
            began: Instant::now(),
            contention: Contention::new(BUSY_AT_MOST),
            looked_at: None,
            vain_since: None,
            sleep: SHORTEST,
            due: false,
        }
    }
}

impl Polls {
    fn note(&mut self, now: Duration, worked: bool, preempted: impl FnOnce() -> bool) {
        let since = self.looked_at.replace(now).map(|at| now.saturating_sub(at));
        if worked {
            (self.vain_since, self.sleep) = (None, SHORTEST);
        }
        let busy = match since {
            // Not where the program did something else meanwhile.
            Some(since) if since < AWAY || preempted() => self.contention.note(now, since),
            _ => self.contention.is_known(now),
        };
        let vain = !worked && now.saturating_sub(*self.vain_since.get_or_insert(now)) >= VAIN;
        self.due = busy && vain;
    }

    fn take_due(&mut self) -> Option<Duration> {
        if !core::mem::take(&mut self.due) {
            return None;
        }
        // The time of the sleep is no sign of a busy core.
        self.looked_at = None;
        let sleep = self.sleep;
        self.sleep = (sleep * 2).min(LONGEST);
        Some(sleep)
    }
}

/// The calling thread made a turn, which had work or not. Whether it is to sleep after its poll.
#[cold]
pub(super) fn note(worked: bool) -> bool {
    POLLS.with_borrow_mut(|polls| {
        polls.note(polls.began.elapsed(), worked, was_preempted);
        polls.due
    })
}

/// Whether the calling thread is to sleep now, and how long at most.
pub(super) fn take_due() -> Option<Duration> {
    POLLS.with_borrow_mut(Polls::take_due)
}

#[cfg(test)]
mod tests {
    use super::*;

    const US: Duration = Duration::from_micros(1);

    /// Polls in vain every microsecond; returns the sleeps that it is told to make, which bring nothing.
    fn sleeps(polls: &mut Polls, now: &mut Duration, looks: usize) -> Vec<Duration> {
        let mut sleeps = Vec::new();
        for _ in 0..looks {
            *now += US;
            polls.note(*now, false, || false);
            if let Some(sleep) = polls.take_due() {
                *now += sleep;
                sleeps.push(sleep);
            }
        }
        sleeps
    }

    #[test]
    fn with_a_core_to_spare_a_thread_never_sleeps() {
        let (mut polls, mut now) = (Polls::default(), Duration::ZERO);
        assert_eq!(sleeps(&mut polls, &mut now, 10_000), []);
        // A program that does something else between its polls.
        for _ in 0..1000 {
            now += Duration::from_millis(5);
            polls.note(now, false, || false);
            assert_eq!(polls.take_due(), None);
        }
    }

    #[test]
    fn on_busy_cores_it_sleeps_soon_and_longer_while_nothing_comes() {
        let (mut polls, mut now) = (Polls::default(), Duration::ZERO);
        polls.note(now, true, || false);
        now += Duration::from_millis(3);
        polls.note(now, true, || true);
        assert_eq!(polls.take_due(), None, "it has found work");
        let slept = sleeps(&mut polls, &mut now, 30);
        assert_eq!(slept[..6], [50, 100, 200, 400, 800, 1000].map(|us| us * US));
        // Work makes it poll on for a while, and begin with short sleeps.
        polls.note(now, true, || false);
        assert_eq!(sleeps(&mut polls, &mut now, 20), []);
        assert_eq!(sleeps(&mut polls, &mut now, 2)[0], SHORTEST);
        // It tries without sleep again after a while.
        now += Duration::from_millis(100);
        assert_eq!(sleeps(&mut polls, &mut now, 10_000), []);
    }
}
