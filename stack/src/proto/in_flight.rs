//! What was sent and is not answered. It is counted here alone: up to the oldest packet that is not answered, and beyond it what is
//! known to be here out of order.

use crate::id::Psn;

/// Most sequence numbers without an answer: half of the circle (IBA 9.7.1).
pub(super) const NUMBERS_MAX: u32 = 1 << 23;

/// The sequence numbers in flight, `una` to before `next`, and the packet that goes out next: the one at `next`, or one
/// before it during a retransmission.
#[derive(Clone, Copy, Debug)]
pub(super) struct InFlight {
    /// The oldest number that is not acknowledged (READ: not received).
    una: Psn,
    /// The number of the next packet.
    cursor: Psn,
    /// The number after the highest one used so far.
    next: Psn,
    responses: Responses,
}

/// Answers, as far as they are not counted by their numbers. Two counts in a word: there is no more room in the lines of a queue pair
/// that every message touches.
#[derive(Clone, Copy, Debug)]
struct Responses(u32);

impl Responses {
    const NONE: Self = Self(0);

    /// Numbers in flight that stand for packets of the peer alone: those of the READ responses, but for one of each request packet. At
    /// most [`NUMBERS_MAX`].
    #[inline(always)]
    const fn awaited(self) -> u32 {
        self.0 >> 8
    }

    /// Packets whose answers are here, and wait for one before them.
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
    /// Nothing is in flight; `psn` is next.
    pub const fn at(psn: Psn) -> Self {
        Self { una: psn, cursor: psn, next: psn, responses: Responses::NONE }
    }

    /// The oldest number that is not acknowledged (READ: not received).
    #[inline(always)]
    pub const fn una(&self) -> Psn {
        self.una
    }

    /// The number of the next packet.
    #[inline(always)]
    pub const fn cursor(&self) -> Psn {
        self.cursor
    }

    /// The number after the highest one used so far.
    #[inline(always)]
    pub const fn next(&self) -> Psn {
        self.next
    }

    /// Whether everything is acknowledged.
    #[inline(always)]
    pub fn is_empty(&self) -> bool {
        self.una == self.next
    }

    /// Whether an answer with this number answers something in flight.
    #[inline(always)]
    pub const fn contains(&self, psn: Psn) -> bool {
        psn.diff(self.next) < 0 && psn.diff(self.una) >= 0
    }

    /// Whether the packet with this number went out before.
    #[inline(always)]
    pub const fn went_out(&self, psn: Psn) -> bool {
        psn.diff(self.next) < 0
    }

    /// Whether the next packet is a new one, and not a repeated one.
    #[inline(always)]
    pub fn is_at_end(&self) -> bool {
        self.cursor == self.next
    }

    /// Packets sent that are neither answered nor about to be sent again; responses to READs among them.
    pub fn packets(&self) -> u32 {
        self.numbers().saturating_sub(self.early())
    }

    /// Numbers from the oldest that is not answered to before the cursor: [`packets`](Self::packets), and those that are here
    /// [early](Self::early).
    #[inline(always)]
    pub fn numbers(&self) -> u32 {
        distance(self.una, self.cursor)
    }

    /// Packets among [`numbers`](Self::numbers) whose answers are here, and wait for one before them. During a retransmission they may be
    /// behind the cursor: none.
    #[inline(always)]
    pub fn early(&self) -> u32 {
        if self.is_at_end() { self.responses.early() } else { 0 }
    }

    /// Request packets among [`numbers`](Self::numbers): the congestion controller learns of an early answer when it counts.
    #[inline(always)]
    pub fn requests(&self) -> u32 {
        self.numbers().saturating_sub(self.responses.awaited())
    }

    /// Of so many packets behind the oldest one the answers are here.
    #[inline]
    pub fn answered_early(&mut self, packets: u32) {
        self.responses.set_early(packets);
    }

    /// Sequence numbers that may be assigned, from `assigned` on.
    #[inline(always)]
    pub fn numbers_left(&self, assigned: Psn) -> u32 {
        NUMBERS_MAX.saturating_sub(distance(self.una, assigned))
    }

    /// The packet at the cursor was handed out: moves the cursor to `behind`, the number after those that the packet uses (READ: those
    /// of its responses).
    #[inline(always)]
    pub fn advance(&mut self, behind: Psn) {
        // What goes out for the first time sets `next`. `diff` alone does not tell: a READ may use 2^23 numbers, half of the circle,
        // for which it is negative.
        let new = !self.went_out(self.cursor);
        self.cursor = behind;
        if new || behind.diff(self.next) > 0 {
            self.next = behind;
        }
    }

    /// New packets were handed out, with the numbers from [`next`](Self::next) to before `behind`.
    #[inline(always)]
    pub fn advance_new(&mut self, behind: Psn) {
        self.cursor = behind;
        self.next = behind;
    }

    /// New request packets are answered by one response each and `more` beyond that.
    #[inline(always)]
    pub fn expect_responses(&mut self, more: u32) {
        self.responses.add(more);
    }

    /// The packet at `psn`, the last that was handed out, did not leave; `again`: it had left before.
    pub fn take_back(&mut self, psn: Psn, again: bool) {
        self.cursor = psn;
        if !again {
            self.next = psn;
        }
    }

    /// The packet with this number, at or behind `una`, goes out next.
    #[inline(always)]
    pub fn resend_from(&mut self, psn: Psn) {
        self.cursor = psn;
    }

    /// All before this number is acknowledged.
    #[inline(always)]
    pub fn acknowledge(&mut self, una: Psn) {
        self.una = una;
    }

    /// The response `psn` is here, the oldest one that was missing; `ends`: it is the last that its request packet asked for.
    #[inline(always)]
    pub fn receive_response(&mut self, psn: Psn, ends: bool) {
        self.una = psn.add(1);
        self.responses.remove(u32::from(!ends));
    }

    /// Whether packets that were about to go out again have been acknowledged meanwhile.
    #[inline(always)]
    pub const fn is_overtaken(&self) -> bool {
        self.una.diff(self.cursor) > 0
    }
}

/// From one sequence number on to another one.
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
