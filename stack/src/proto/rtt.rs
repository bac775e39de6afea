//! How long a peer takes to answer: the time from a packet that requests an acknowledgement to its answer.

use core::time::Duration;

use crate::config::{RTT_LONGEST, RTT_PERIOD};
use crate::id::Psn;
use crate::time::Instant;

/// The round-trip time to a peer, smoothed as TCP does it (RFC 6298): a new sample weighs an eighth.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Rtt {
    /// In nanoseconds; 0 where nothing was measured.
    smoothed: u64,
}

impl Rtt {
    /// A packet was answered after so many nanoseconds. It went out once: otherwise nobody knows which transmission was answered.
    pub fn sample(&mut self, nanos: u64) {
        let nanos = nanos.max(1);
        self.smoothed = match self.smoothed {
            0 => nanos,
            smoothed => (smoothed - smoothed / 8 + nanos / 8).max(1),
        };
    }

    /// The smoothed time; `None` where nothing was measured.
    pub fn smoothed(self) -> Option<Duration> {
        (self.smoothed > 0).then(|| Duration::from_nanos(self.smoothed))
    }
}

/// Times one packet of a shard after the other: of whichever queue pair sends when the one before is answered.
#[derive(Clone, Copy, Debug)]
pub struct Stopwatch {
    /// When a packet may be timed.
    free_from: Instant,
    /// The queue pair of the packet that is timed, by its slot; `u32::MAX` while none is.
    slot: u32,
    /// Its number, and when it left.
    psn: Psn,
    left_at: Instant,
}

impl Stopwatch {
    /// Nothing is timed.
    pub const NEW: Self =
        Self { free_from: Instant::ZERO, slot: u32::MAX, psn: Psn::new(0), left_at: Instant::ZERO };

    /// Whether a packet that leaves now may be timed.
    #[inline(always)]
    pub fn is_free(&self, now: Instant) -> bool {
        now >= self.free_from
    }

    /// Whether a packet of this queue pair is timed.
    #[inline(always)]
    pub fn times(&self, slot: u32) -> bool {
        self.slot == slot
    }

    /// This packet leaves now, for the first time, and requests an acknowledgement. Another one may take its place when it has not been
    /// answered for long.
    pub fn start(&mut self, now: Instant, slot: u32, psn: Psn) {
        *self = Self { free_from: now.after(RTT_LONGEST), slot, psn, left_at: now };
    }

    /// The packet is not timed any more: it may be sent again, or its queue pair forgets it.
    pub fn stop(&mut self, now: Instant) {
        (self.free_from, self.slot) = (now.after(RTT_PERIOD), u32::MAX);
    }

    /// All before `una` is answered. If the packet that is timed is among that: how long it took, in nanoseconds.
    pub fn read(&mut self, now: Instant, una: Psn) -> Option<u64> {
        if una.diff(self.psn) <= 0 {
            return None;
        }
        self.stop(now);
        Some(now.nanos_since(self.left_at))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_packet_is_timed_after_the_other() {
        let (mut watch, last) = (Stopwatch::NEW, Psn::new(0xff_ffff));
        let at = |us: u64| Instant::from_nanos(us * 1000);
        assert!(watch.is_free(at(0)) && !watch.times(7));
        watch.start(at(1), 7, last);
        assert!(!watch.is_free(at(1)) && watch.times(7) && !watch.times(8));
        assert!(watch.is_free(at(1).after(RTT_LONGEST)), "nobody keeps it for ever");
        assert_eq!(watch.read(at(2), last), None, "the one before it");
        assert_eq!(watch.read(at(5), Psn::new(3)), Some(4000));
        assert!(!watch.times(7) && !watch.is_free(at(6)) && watch.is_free(at(5).after(RTT_PERIOD)));
    }

    #[test]
    fn a_sample_weighs_an_eighth() {
        let mut rtt = Rtt::default();
        assert_eq!(rtt.smoothed(), None);
        rtt.sample(8000);
        assert_eq!(rtt.smoothed(), Some(Duration::from_nanos(8000)));
        rtt.sample(16000);
        assert_eq!(rtt.smoothed(), Some(Duration::from_nanos(9000)));
        for _ in 0..100 {
            rtt.sample(0);
        }
        assert!(rtt.smoothed().is_some_and(|time| time < Duration::from_nanos(16)), "it is known: {rtt:?}");
    }
}
