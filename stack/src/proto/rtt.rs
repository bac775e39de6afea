//! Round-trip time: from sending a packet that requests an acknowledgement to receiving the answer.

use core::time::Duration;

use crate::config::{RTT_LONGEST, RTT_PERIOD};
use crate::id::Psn;
use crate::time::Instant;

/// The round-trip time to a peer, smoothed as in TCP (RFC 6298): a new sample has a weight of 1/8.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Rtt {
    /// In nanoseconds; 0 if nothing was measured.
    smoothed: u64,
}

impl Rtt {
    /// Adds a sample, in nanoseconds. The packet must have been sent only once: otherwise it is unknown which transmission was answered.
    pub fn sample(&mut self, nanos: u64) {
        let nanos = nanos.max(1);
        self.smoothed = match self.smoothed {
            0 => nanos,
            smoothed => (smoothed - smoothed / 8 + nanos / 8).max(1),
        };
    }

    /// The smoothed round-trip time; `None` if nothing was measured.
    pub fn smoothed(self) -> Option<Duration> {
        (self.smoothed > 0).then(|| Duration::from_nanos(self.smoothed))
    }
}

/// Measures the round-trip time of one packet of a shard at a time: when one is answered, the next packet of whichever queue pair can be
/// measured.
#[derive(Clone, Copy, Debug)]
pub struct RttProbe {
    /// From when on the next packet may be measured.
    free_from: Instant,
    /// Slot of the queue pair whose packet is being measured; `u32::MAX` if none is.
    slot: u32,
    /// PSN of the packet, and when it was sent.
    psn: Psn,
    left_at: Instant,
}

impl RttProbe {
    /// A probe that measures nothing.
    pub const NEW: Self =
        Self { free_from: Instant::ZERO, slot: u32::MAX, psn: Psn::new(0), left_at: Instant::ZERO };

    /// Whether the measurement of a packet that is sent now may start.
    #[inline(always)]
    pub fn is_free(&self, now: Instant) -> bool {
        now >= self.free_from
    }

    /// Whether a packet of the queue pair in this slot is being measured.
    #[inline(always)]
    pub fn times(&self, slot: u32) -> bool {
        self.slot == slot
    }

    /// Starts to measure a packet that is sent now, for the first time, and requests an acknowledgement. If it is not answered for
    /// [`RTT_LONGEST`], another packet may be measured instead.
    pub fn start(&mut self, now: Instant, slot: u32, psn: Psn) {
        *self = Self { free_from: now.after(RTT_LONGEST), slot, psn, left_at: now };
    }

    /// Ends the measurement without a result: the packet may be retransmitted, or its queue pair is reset.
    pub fn stop(&mut self, now: Instant) {
        (self.free_from, self.slot) = (now.after(RTT_PERIOD), u32::MAX);
    }

    /// Handles an acknowledgement of every packet before `una`. If the measured packet is among them, returns its round-trip time in
    /// nanoseconds.
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
        let (mut watch, last) = (RttProbe::NEW, Psn::new(0xff_ffff));
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
