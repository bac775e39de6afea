//! Measures the rate of a flow of messages.

use crate::protocol::Flow;
use std::time::Instant;

/// Counts messages, and the time from the first counted batch to the last. Reads the clock at the first batch and when a poll after a
/// batch finds nothing, not once per batch.
pub(super) struct Meter {
    /// Warm-up messages, which are not measured.
    before: u64,
    /// When the meter was created.
    start: Instant,
    /// When the first batch that exceeded `before` came.
    first: Option<Instant>,
    /// All messages at that time.
    at_first: u64,
    /// When the last batch came, unless `fresh`.
    last: Instant,
    /// Whether a batch has come since the clock was read last.
    fresh: bool,
    /// All messages.
    pub(super) total: u64,
}

impl Meter {
    /// A meter that ignores the first `before` messages.
    pub(super) fn after(before: u64) -> Self {
        let now = Instant::now();
        Self { before, start: now, first: None, at_first: 0, last: now, fresh: false, total: 0 }
    }
    /// Counts a batch of `n` messages.
    #[inline]
    pub(super) fn count(&mut self, n: u64) {
        self.total += n;
        if self.first.is_none() {
            if self.total > self.before {
                self.first = Some(Instant::now());
                self.at_first = self.total;
            }
        } else {
            self.fresh = true;
        }
    }
    /// Notes that a poll found no messages.
    #[inline]
    pub(super) fn pause(&mut self) {
        if self.fresh {
            self.last = Instant::now();
            self.fresh = false;
        }
    }
    /// Ends the measurement. Returns the number of messages without warm-up, the number of timed ones, and the time they took.
    pub(super) fn flow(mut self) -> Flow {
        self.pause();
        let Some(first) = self.first else { return Flow::default() };
        // The time until the first batch includes address resolution and the start of the peer, so the first batch is not timed,
        // unless it is the only one.
        let (timed, elapsed) = match self.total - self.at_first {
            0 => (self.total, first - self.start),
            timed => (timed, self.last - first),
        };
        Flow { messages: self.total - self.before, timed, elapsed_ns: elapsed.as_nanos().max(1) as u64 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn a_meter_leaves_the_first_batch_out() {
        let mut meter = Meter::after(0);
        let start = Instant::now();
        meter.count(10);
        std::thread::sleep(Duration::from_millis(2));
        meter.count(5);
        meter.pause();
        let end = start.elapsed().as_nanos() as u64;
        std::thread::sleep(Duration::from_millis(2));
        meter.pause();
        let flow = meter.flow();
        assert_eq!((flow.messages, flow.timed), (15, 5));
        assert!((2_000_000..=end).contains(&flow.elapsed_ns), "{flow:?} within {end} ns");
    }

    // The time starts at the first batch that exceeds the warm-up.
    #[test]
    fn a_meter_leaves_out_what_comes_before() {
        let mut meter = Meter::after(20);
        for n in [10, 10] {
            meter.count(n);
            meter.pause();
            assert_eq!(meter.first, None);
        }
        std::thread::sleep(Duration::from_millis(2));
        let start = Instant::now();
        meter.count(3);
        meter.count(5);
        let flow = meter.flow();
        let end = start.elapsed().as_nanos() as u64;
        assert_eq!((flow.messages, flow.timed), (8, 5));
        assert!(flow.elapsed_ns <= end, "{flow:?} within {end} ns");
    }

    #[test]
    fn a_single_batch_counts_from_the_start() {
        let mut meter = Meter::after(0);
        meter.count(3);
        let flow = meter.flow();
        assert_eq!((flow.messages, flow.timed), (3, 3));
        assert!(flow.rate().is_some());
        assert_eq!(Meter::after(0).flow().rate(), None);
    }
}
