//! The counters of a queue.

use super::info::PortStats;
use core::sync::atomic::{AtomicU64, Ordering};

/// Counters of one queue, on a cache line of their own: the queue's owner writes them, anyone reads them.
#[derive(Default, Debug)]
#[repr(align(64))]
pub(super) struct Counters {
    pub(super) rx_frames: Counter,
    pub(super) rx_bytes: Counter,
    pub(super) tx_frames: Counter,
    pub(super) tx_bytes: Counter,
    pub(super) rx_dropped: Counter,
    pub(super) tx_dropped: Counter,
    pub(super) rx_strayed: Counter,
    pub(super) passed_on: Counter,
}

/// A counter with one writer, so that adding takes no locked instruction.
#[derive(Default, Debug)]
pub(super) struct Counter(AtomicU64);

impl Counter {
    pub(super) fn add(&self, n: u64) {
        self.0.store(self.0.load(Ordering::Relaxed).wrapping_add(n), Ordering::Relaxed);
    }

    pub(super) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

impl Counters {
    pub(super) fn rx(&self, frames: usize, bytes: usize) {
        self.rx_frames.add(frames as u64);
        self.rx_bytes.add(bytes as u64);
    }

    pub(super) fn tx(&self, frames: usize, bytes: usize) {
        self.tx_frames.add(frames as u64);
        self.tx_bytes.add(bytes as u64);
    }
}

impl Counters {
    fn stats(&self) -> PortStats {
        PortStats {
            rx_frames: self.rx_frames.get(),
            rx_bytes: self.rx_bytes.get(),
            tx_frames: self.tx_frames.get(),
            tx_bytes: self.tx_bytes.get(),
            rx_dropped: self.rx_dropped.get(),
            tx_dropped: self.tx_dropped.get(),
            rx_strayed: self.rx_strayed.get(),
            passed_on: self.passed_on.get(),
            restarts: 0,
            refused: 0,
        }
    }
}

/// Sums the counters of all queues.
pub(super) fn sum(queues: &[Counters]) -> PortStats {
    queues.iter().map(Counters::stats).fold(PortStats::default(), |sum, stats| sum + stats)
}
