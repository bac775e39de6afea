//! The PSNs in flight: packets that were sent and are not answered. Counts the answers that have arrived out of order, too.

use crate::id::Psn;

/// Largest number of PSNs in flight: half of the PSN space (IBA 9.7.1).
pub(super) const NUMBERS_MAX: u32 = 1 << 23;

/// The PSNs in flight, from `una` to before `next`, and the packet to send next: a new one at `next`, or an earlier one during a
/// retransmission.
#[derive(Clone, Copy, Debug)]
pub(super) struct InFlight {
    /// The oldest PSN that is not acknowledged (of a READ: whose response has not arrived).
    una: Psn,
    /// PSN of the packet to send next.
    cursor: Psn,
    /// The PSN after the highest one used so far.
    next: Psn,
    responses: Responses,
}

/// Counts of answers that the PSNs in flight do not show. Two counts share a word, because the cache lines of a queue pair that every
/// message touches are full.
#[derive(Clone, Copy, Debug)]
struct Responses(u32);

impl Responses {
    const NONE: Self = Self(0);

    /// How many of the PSNs in flight belong to READ responses, not counting one for each request packet. At most [`NUMBERS_MAX`].
    #[inline(always)]
    const fn awaited(self) -> u32 {
        self.0 >> 8
    }

    /// How many packets have answers that arrived early: an earlier answer is missing.
    #[inline(always)]
    const fn early(self) -> u32 {
        self.0 & 0xff
    }

    #[inline(always)]
    fn add(&mut self, awaited: u32) {
        self.0 += awaited << 8;
    }

    #[inline(always)]
    fn remove(&mut self, awaited: u32) {
        self.0 -= awaited << 8;
    }

    fn set_early(&mut self, packets: u32) {
        debug_assert!(packets <= 0xff, "a queue pair holds fewer");
        self.0 = self.awaited() << 8 | packets & 0xff;
    }
}

impl InFlight {
    /// Nothing in flight; `psn` is the next PSN.
    pub const fn at(psn: Psn) -> Self {
        Self { una: psn, cursor: psn, next: psn, responses: Responses::NONE }
    }

    /// The oldest PSN that is not acknowledged (of a READ: whose response has not arrived).
    #[inline(always)]
    pub const fn una(&self) -> Psn {
        self.una
    }

    /// PSN of the packet to send next.
    #[inline(always)]
    pub const fn cursor(&self) -> Psn {
        self.cursor
    }

    /// The PSN after the highest one used so far.
    #[inline(always)]
    pub const fn next(&self) -> Psn {
        self.next
    }

    /// Whether everything is acknowledged.
    #[inline(always)]
    pub fn is_empty(&self) -> bool {
        self.una == self.next
    }

    /// Whether an answer with this PSN answers something in flight.
    #[inline(always)]
    pub const fn contains(&self, psn: Psn) -> bool {
        psn.diff(self.next) < 0 && psn.diff(self.una) >= 0
    }

    /// Whether a packet with this PSN was sent before.
    #[inline(always)]
    pub const fn went_out(&self, psn: Psn) -> bool {
        psn.diff(self.next) < 0
    }

    /// Whether the packet to send next is a new one, not a retransmission.
    #[inline(always)]
    pub fn is_at_end(&self) -> bool {
        self.cursor == self.next
    }

    /// Packets, READ responses included, that were sent or requested, are not answered and are not about to be sent again.
    pub fn packets(&self) -> u32 {
        self.numbers().saturating_sub(self.early())
    }

    /// PSNs from the oldest one that is not answered to before the cursor: [`packets`](Self::packets), plus those answered
    /// [early](Self::early).
    #[inline(always)]
    pub fn numbers(&self) -> u32 {
        distance(self.una, self.cursor)
    }

    /// How many packets among [`numbers`](Self::numbers) have answers that arrived early: an earlier answer is missing. 0 during a
    /// retransmission, because these packets may be after the cursor.
    #[inline(always)]
    pub fn early(&self) -> u32 {
        if self.is_at_end() { self.responses.early() } else { 0 }
    }

    /// Request packets among [`numbers`](Self::numbers). Includes those answered early, because the congestion controller learns of an
    /// early answer only once it counts.
    #[inline(always)]
    pub fn requests(&self) -> u32 {
        self.numbers().saturating_sub(self.responses.awaited())
    }

    /// Sets how many packets after the oldest one were answered early.
    #[inline]
    pub fn answered_early(&mut self, packets: u32) {
        self.responses.set_early(packets);
    }

    /// How many PSNs may still be assigned, from `assigned` on.
    #[inline(always)]
    pub fn numbers_left(&self, assigned: Psn) -> u32 {
        NUMBERS_MAX.saturating_sub(distance(self.una, assigned))
    }

    /// Moves the cursor past the packet that was just handed out, to `behind`: the PSN after those that the packet uses (for a READ, one
    /// for each response).
    #[inline(always)]
    pub fn advance(&mut self, behind: Psn) {
        // A packet that is sent for the first time sets `next`. `diff` alone does not suffice: a READ may use 2^23 PSNs, half of the PSN
        // space, and then `diff` is negative.
        let new = !self.went_out(self.cursor);
        self.cursor = behind;
        if new || behind.diff(self.next) > 0 {
            self.next = behind;
        }
    }

    /// Moves the cursor past new packets that were handed out, with PSNs from [`next`](Self::next) to before `behind`.
    #[inline(always)]
    pub fn advance_new(&mut self, behind: Psn) {
        self.cursor = behind;
        self.next = behind;
    }

    /// Counts new request packets, which are answered by one response each plus `more` responses in all.
    #[inline(always)]
    pub fn expect_responses(&mut self, more: u32) {
        self.responses.add(more);
    }

    /// Undoes handing out the last packet, whose PSN is `psn`, because it was not sent. `again`: it had been sent before.
    pub fn take_back(&mut self, psn: Psn, again: bool) {
        self.cursor = psn;
        if !again {
            self.next = psn;
        }
    }

    /// Makes the packet with this PSN, `una` or a later one, the next to send.
    #[inline(always)]
    pub fn resend_from(&mut self, psn: Psn) {
        self.cursor = psn;
    }

    /// Takes all packets before this PSN as acknowledged.
    #[inline(always)]
    pub fn acknowledge(&mut self, una: Psn) {
        self.una = una;
    }

    /// Takes the oldest missing response, whose PSN is `psn`, as received. `ends`: it is the last that its request packet asked for.
    #[inline(always)]
    pub fn receive_response(&mut self, psn: Psn, ends: bool) {
        self.una = psn.add(1);
        self.responses.remove(u32::from(!ends));
    }

    /// Whether packets that were about to be sent again have been acknowledged meanwhile.
    #[inline(always)]
    pub const fn is_overtaken(&self) -> bool {
        self.una.diff(self.cursor) > 0
    }
}

/// How many PSNs after `from` the PSN `to` is, in `0 ..= 2^24 - 1`.
#[inline(always)]
pub(super) fn distance(from: Psn, to: Psn) -> u32 {
    to.diff(from) as u32 & 0x00ff_ffff
}

#[cfg(test)]
mod tests {
    use super::*;

    const HALF: u32 = 1 << 23;

    #[test]
    fn a_request_may_take_half_of_the_circle() {
        for first in [0, 5, 0xff_fffe].map(Psn::new) {
            let mut in_flight = InFlight::at(first);
            in_flight.advance(first.add(HALF));
            in_flight.expect_responses(HALF - 1);
            assert_eq!((in_flight.next(), in_flight.cursor()), (first.add(HALF), first.add(HALF)));
            assert_eq!((in_flight.packets(), in_flight.requests(), in_flight.is_empty()), (HALF, 1, false));
            assert!(in_flight.contains(first) && in_flight.contains(first.add(HALF - 1)));
            assert!(!in_flight.contains(first.add(HALF)) && !in_flight.contains(first.sub(1)));
        }
    }

    #[test]
    fn packets_that_go_out_again_use_no_new_numbers() {
        let mut in_flight = InFlight::at(Psn::new(0xff_ffff));
        for behind in [0, 1, 2] {
            in_flight.advance(Psn::new(behind));
        }
        in_flight.resend_from(Psn::new(0));
        assert!(in_flight.went_out(in_flight.cursor()) && !in_flight.is_at_end());
        assert_eq!(in_flight.requests(), 1, "up to the cursor");
        in_flight.advance(Psn::new(1));
        let moved = (in_flight.cursor(), in_flight.next(), in_flight.requests());
        assert_eq!(moved, (Psn::new(1), Psn::new(2), 2));
    }

    #[test]
    fn what_is_answered_early_is_not_in_flight() {
        let mut in_flight = InFlight::at(Psn::new(0xff_fffe));
        in_flight.advance(Psn::new(2)); // a READ of four packets
        in_flight.expect_responses(3);
        in_flight.answered_early(2);
        assert_eq!((in_flight.packets(), in_flight.requests()), (2, 1));
        in_flight.resend_from(Psn::new(0xff_fffe));
        in_flight.advance(Psn::new(1));
        assert_eq!(in_flight.packets(), 3, "they are answered again");
    }

    #[test]
    fn responses_are_packets_of_the_peer() {
        let mut in_flight = InFlight::at(Psn::new(0xff_fffe));
        in_flight.advance(Psn::new(2)); // a READ of four packets
        in_flight.expect_responses(3);
        for (psn, left) in [(0xff_fffe, 3), (0xff_ffff, 2), (0, 1)] {
            in_flight.receive_response(Psn::new(psn), false);
            assert_eq!((in_flight.packets(), in_flight.requests()), (left, 1));
        }
        in_flight.receive_response(Psn::new(1), true);
        assert_eq!((in_flight.packets(), in_flight.requests(), in_flight.is_empty()), (0, 0, true));
    }
}
