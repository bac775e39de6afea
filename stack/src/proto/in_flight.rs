//! What was sent and is not acknowledged.

use crate::id::Psn;

/// Most sequence numbers without an answer: half of the circle (IBA 9.7.1).
pub(super) const NUMBERS_MAX: u32 = 1 << 23;

/// The sequence numbers in flight, `una` to before `next`, and the packet that goes out next: the one at `next`, or one
/// before it during a retransmission.
#[derive(Clone, Copy, Debug)]
pub(super) struct InFlight {
    /// The oldest number that is not acknowledged (READ: not received).
    pub una: Psn,
    /// The number of the next packet.
    pub cursor: Psn,
    /// Behind the highest number used so far.
    pub next: Psn,
    /// Numbers of READ responses in flight: these packets are the peer's.
    pub responses: u32,
}

impl InFlight {
    /// Nothing is in flight; `psn` is next.
    pub const fn at(psn: Psn) -> Self {
        Self { una: psn, cursor: psn, next: psn, responses: 0 }
    }

    /// Whether everything is acknowledged.
    #[inline(always)]
    pub fn is_empty(&self) -> bool {
        self.una == self.next
    }

    /// Whether an answer with this number answers something in flight.
    #[inline(always)]
    pub fn contains(&self, psn: Psn) -> bool {
        psn.diff(self.next) < 0 && psn.diff(self.una) >= 0
    }

    /// Whether the packet with this number went out before.
    #[inline(always)]
    pub fn went_out(&self, psn: Psn) -> bool {
        psn.diff(self.next) < 0
    }

    /// Request packets sent and not acknowledged.
    #[inline(always)]
    pub fn packets(&self) -> u32 {
        distance(self.una, self.cursor).saturating_sub(self.responses)
    }

    /// The packet at the cursor was handed out: moves the cursor to `behind`, past the numbers that the packet uses (READ: those of
    /// its responses).
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
            in_flight.responses = HALF - 1;
            assert_eq!((in_flight.next, in_flight.cursor), (first.add(HALF), first.add(HALF)));
            assert_eq!((in_flight.packets(), in_flight.is_empty()), (1, false));
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
        in_flight.cursor = Psn::new(0);
        assert!(in_flight.went_out(in_flight.cursor));
        assert_eq!(in_flight.packets(), 1, "up to the cursor");
        in_flight.advance(Psn::new(1));
        assert_eq!((in_flight.cursor, in_flight.next, in_flight.packets()), (Psn::new(1), Psn::new(2), 2));
    }
}
