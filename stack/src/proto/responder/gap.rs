//! A gap in the PSNs of request packets: how long the responder waits for the missing packet before it sends a NAK.
//!
//! A NAK makes the requester send everything from the missing packet on again. If the packet was merely reordered, that costs far more than
//! to wait for it. The specification says that a gap is answered with a NAK, but not when (IBA 9.7.5.2.8).

use crate::config::{GAP_LONGEST, GAP_PACKETS, GAP_SHORTEST, GAP_THRESHOLD};
use crate::proto::rtt::Rtt;
use crate::time::Instant;

/// The state of a gap.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Gap {
    since: Instant,
    /// How many packets arrived from after the gap.
    behind: u32,
    /// Nanoseconds per packet, as far as known: of those after this gap, or of those after an earlier one.
    pace: u64,
}

impl Gap {
    /// A gap that is noticed now.
    pub fn new(now: Instant) -> Self {
        Self { since: now, behind: 0, pace: 0 }
    }

    /// The next gap: the packet that was missing has arrived, but a later one is missing, after which `behind` packets have arrived
    /// already.
    #[must_use]
    pub fn next(self, now: Instant, behind: u32) -> Self {
        Self { since: now, behind, ..self }
    }

    /// Counts another packet from after the gap.
    pub fn note_packet(&mut self, now: Instant) {
        self.behind += 1;
        self.pace = self.pace.max(now.nanos_since(self.since) / u64::from(self.behind));
    }

    /// When to send the NAK. While fewer than [`GAP_THRESHOLD`] packets have arrived from after the gap, the wait is [`GAP_LONGEST`]; then
    /// it is a quarter of the round-trip time, or if that is not known, the time in which [`GAP_PACKETS`] packets arrive. It is never
    /// shorter than [`GAP_SHORTEST`] or longer than [`GAP_LONGEST`].
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
        gap.note_packet(T0);
        assert_eq!(wait(&gap, rtt), 100_000);
        gap.note_packet(T0);
        assert_eq!(wait(&gap, rtt), 100_000);
        gap.note_packet(T0);
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
            gap.note_packet(T0);
        }
        assert_eq!(wait(&gap, Rtt::default()), 5_000, "all came at once");
        gap.note_packet(T0.after_nanos(8_000));
        assert_eq!(wait(&gap, Rtt::default()), 32_000, "four packets in 8 us");
        let next = gap.next(T0, 4);
        assert_eq!(wait(&next, Rtt::default()), 32_000, "they came at that rate");
        assert_eq!(wait(&gap.next(T0, 0), Rtt::default()), 100_000);
        gap.note_packet(T0.after_nanos(90_000));
        assert_eq!(wait(&gap, Rtt::default()), 100_000);
    }
}
