//! How much a queue pair may have in flight, as limited by its congestion controller and by its share of a window that several queue pairs
//! have together. Computed once for each visit of the shard to the queue pair.

use super::{Requester, UNSHARED};
use crate::time::Instant;

/// What may be in flight during one visit to a queue pair, whatever it sends meanwhile: see [`Requester::send_window`].
#[derive(Clone, Copy, Debug)]
pub struct SendWindow {
    /// The time of the visit.
    pub(super) now: Instant,
    /// How many request packets the congestion controller allows in flight.
    pub(super) requests: u32,
    /// How many packets, READ responses included, may be in flight: the queue pair's share of the common window, plus those answered early.
    pub(super) share: u32,
}

impl Requester {
    /// The window of a visit that takes place now, for a queue pair that may have `share` packets in flight, READ responses included: 1 to
    /// [`UNSHARED`]. If nothing in flight will bring an answer, one packet may be sent beyond the share.
    ///
    /// It is valid until packets are acknowledged or lost.
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

    /// How many request packets may be sent now.
    #[inline(always)]
    pub(super) fn room(&self, window: &SendWindow) -> u32 {
        self.requests_left(window).min(self.share_left(window))
    }

    /// How many more request packets the congestion controller allows.
    #[inline(always)]
    pub(super) fn requests_left(&self, window: &SendWindow) -> u32 {
        window.requests.saturating_sub(self.in_flight.requests())
    }

    /// How many more packets the share allows.
    #[inline(always)]
    pub(super) fn share_left(&self, window: &SendWindow) -> u32 {
        window.share.saturating_sub(self.in_flight.numbers())
    }
}
