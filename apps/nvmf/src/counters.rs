//! Counters of commands and bytes of a subsystem, for the SMART log page.
//!
//! Each queue has its own counters and is their only writer. A reader adds them up. The counts of queues that have ended are kept.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use crate::sync::lock;

/// Totals of a subsystem.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Totals {
    /// Read and Compare commands that succeeded.
    pub reads: u64,
    /// Write commands that succeeded.
    pub writes: u64,
    /// Bytes of the Read and Compare commands that succeeded.
    pub bytes_read: u64,
    /// Bytes of the Write commands that succeeded.
    pub bytes_written: u64,
    /// Commands that ended with a media error.
    pub media_errors: u64,
}

/// The counters of one queue.
#[derive(Default, Debug)]
pub(crate) struct QueueCounters {
    reads: AtomicU64,
    writes: AtomicU64,
    bytes_read: AtomicU64,
    bytes_written: AtomicU64,
    media_errors: AtomicU64,
}

/// Adds to a counter that only this thread writes, so that no atomic addition is needed.
fn add(counter: &AtomicU64, n: u64) {
    counter.store(counter.load(Ordering::Relaxed).wrapping_add(n), Ordering::Relaxed);
}

impl QueueCounters {
    pub fn read(&self, bytes: u64) {
        add(&self.reads, 1);
        add(&self.bytes_read, bytes);
    }
    pub fn written(&self, bytes: u64) {
        add(&self.writes, 1);
        add(&self.bytes_written, bytes);
    }
    pub fn media_error(&self) {
        add(&self.media_errors, 1);
    }
    fn add_to(&self, totals: &mut Totals) {
        for (to, from) in [
            (&mut totals.reads, &self.reads),
            (&mut totals.writes, &self.writes),
            (&mut totals.bytes_read, &self.bytes_read),
            (&mut totals.bytes_written, &self.bytes_written),
            (&mut totals.media_errors, &self.media_errors),
        ] {
            *to = to.wrapping_add(from.load(Ordering::Relaxed));
        }
    }
}

/// The counters of a subsystem.
#[derive(Default, Debug)]
pub(crate) struct Counters(Mutex<Registry>);

#[derive(Default, Debug)]
struct Registry {
    ended: Totals,
    queues: Vec<Arc<QueueCounters>>,
}

impl Counters {
    /// Adds counters for a new queue.
    pub fn join(&self) -> Arc<QueueCounters> {
        let counters = Arc::default();
        lock(&self.0).queues.push(Arc::clone(&counters));
        counters
    }
    /// Removes the counters of a queue that has ended, and adds them to the totals of ended queues.
    pub fn leave(&self, counters: &Arc<QueueCounters>) {
        let mut registry = lock(&self.0);
        if let Some(at) = registry.queues.iter().position(|c| Arc::ptr_eq(c, counters)) {
            registry.queues.swap_remove(at).add_to(&mut registry.ended);
        }
    }
    pub fn totals(&self) -> Totals {
        let registry = lock(&self.0);
        let mut totals = registry.ended;
        for queue in &registry.queues {
            queue.add_to(&mut totals);
        }
        totals
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_ended_queues_counted_is_kept() {
        let counters = Counters::default();
        let (a, b) = (counters.join(), counters.join());
        a.read(512);
        b.written(4096);
        b.media_error();
        counters.leave(&a);
        counters.leave(&a);
        let totals = counters.totals();
        assert_eq!(
            totals,
            Totals { reads: 1, writes: 1, bytes_read: 512, bytes_written: 4096, media_errors: 1 }
        );
        assert_eq!(lock(&counters.0).queues.len(), 1);
    }
}
