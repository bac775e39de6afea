//! What a queue pair may have in flight: as much as its congestion controller and the queue pairs beside it leave. Worked out once a
//! visit.

use super::{Requester, UNSHARED};
use crate::time::Instant;

/// What may be in flight during a visit to a queue pair, whatever it sends meanwhile: see [`Requester::send_window`].
#[derive(Clone, Copy, Debug)]
pub struct SendWindow {
    /// When the visit takes place.
    pub(super) now: Instant,
    /// Request packets: what the congestion controller lets out.
    pub(super) requests: u32,
    /// Packets, responses to READs among them: the share of a window that queue pairs have together, and what is here early.
    pub(super) share: u32,
}

impl Requester {
    /// The window of a visit that takes place now, for a queue pair that may have `share` packets in flight, responses to READs among
    /// them: 1 to [`UNSHARED`]. If nothing in flight brings an answer, one packet may go out beyond the share.
    ///
    /// It holds until packets are acknowledged or lost.
    #[inline(always)]
    pub fn send_window(&self, now: Instant, share: u32) -> SendWindow {
        debug_assert!((1..=UNSHARED).contains(&share), "a share has room for a packet");
        let in_flight = self.in_flight.requests();
        SendWindow {
            now,
            requests: in_flight.saturating_add(self.congestion.allowance(now, in_flight)),
            share: share.saturating_add(self.in_flight.early()),
        }
    }

    /// Request packets that may go out now.
    #[inline(always)]
    pub(super) fn room(&self, window: &SendWindow) -> u32 {
        self.requests_left(window).min(self.share_left(window))
    }

    /// What is left of what the congestion controller lets out.
    #[inline(always)]
    pub(super) fn requests_left(&self, window: &SendWindow) -> u32 {
        window.requests.saturating_sub(self.in_flight.requests())
    }

    /// What is left of the share.
    #[inline(always)]
    pub(super) fn share_left(&self, window: &SendWindow) -> u32 {
        window.share.saturating_sub(self.in_flight.numbers())
    }
}
