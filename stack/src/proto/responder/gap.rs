//! A gap in the sequence of request packets: how long the responder waits for what is missing before it says so.
//!
//! A NAK makes the requester send everything from the missing packet on again, so one for a packet that only took another way costs
//! more than the packet. The specification says that a gap is answered with a NAK, and not when (IBA 9.7.5.2.8).

use crate::config::{GAP_LONGEST, GAP_PACKETS, GAP_SHORTEST, GAP_THRESHOLD};
use crate::proto::rtt::Rtt;
use crate::time::Instant;

/// What is known of a gap.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Gap {
    since: Instant,
    /// Packets that came from behind it.
    behind: u32,
    /// Nanoseconds a packet, as far as that is known: of those behind it, or of those behind the gap before.
    pace: u64,
}

impl Gap {
    /// A gap that is seen now.
    pub fn new(now: Instant) -> Self {
        Self { since: now, behind: 0, pace: 0 }
    }

    /// What was missing is there, and something else is, behind which `behind` packets are here already.
    #[must_use]
    pub fn next(self, now: Instant, behind: u32) -> Self {
        Self { since: now, behind, ..self }
    }

    /// Another packet came from behind it.
    pub fn pass(&mut self, now: Instant) {
        self.behind += 1;
        self.pace = self.pace.max(now.nanos_since(self.since) / u64::from(self.behind));
    }

    /// When the NAK is due: once [`GAP_THRESHOLD`] packets came from behind the gap and a quarter of the round-trip time is over. While
    /// that time is not known it is that of [`GAP_PACKETS`] packets, at the rate at which they come.
    pub fn due(&self, rtt: Rtt) -> Instant {
        let [shortest, longest] = [GAP_SHORTEST, GAP_LONGEST].map(|time| time.as_nanos() as u64);
        let wait = match rtt.smoothed() {
            _ if self.behind < GAP_THRESHOLD => longest,
            Some(time) => time.as_nanos() as u64 / 4,
            None => self.pace * u64::from(GAP_PACKETS),
        };
        self.since.after_nanos(wait.clamp(shortest, longest))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const T0: Instant = Instant::from_nanos(1_000_000);

    fn wait(gap: &Gap, rtt: Rtt) -> u64 {
        gap.due(rtt).nanos_since(T0)
    }

    #[test]
    fn few_packets_say_little() {
        let mut rtt = Rtt::default();
        rtt.sample(20_000);
        let mut gap = Gap::new(T0);
        gap.pass(T0);
        assert_eq!(wait(&gap, rtt), 100_000);
        gap.pass(T0);
        assert_eq!(wait(&gap, rtt), 100_000);
        gap.pass(T0);
        assert_eq!(wait(&gap, rtt), 5_000, "a quarter of the round-trip time");
        rtt = Rtt::default();
        rtt.sample(10_000_000);
        assert_eq!(wait(&gap, rtt), 100_000, "and no longer than that");
        rtt = Rtt::default();
        rtt.sample(0);
        assert_eq!(wait(&gap, rtt), 5_000, "an answer in the turn in which the packet left");
    }

    #[test]
    fn without_a_round_trip_time_the_rate_says_how_long() {
        let mut gap = Gap::new(T0);
        for _ in 0..3 {
            gap.pass(T0);
        }
        assert_eq!(wait(&gap, Rtt::default()), 5_000, "all came at once");
        gap.pass(T0.after_nanos(8_000));
        assert_eq!(wait(&gap, Rtt::default()), 32_000, "four packets in 8 us");
        let next = gap.next(T0, 4);
        assert_eq!(wait(&next, Rtt::default()), 32_000, "they came at that rate");
        assert_eq!(wait(&gap.next(T0, 0), Rtt::default()), 100_000);
        gap.pass(T0.after_nanos(90_000));
        assert_eq!(wait(&gap, Rtt::default()), 100_000);
    }
}
