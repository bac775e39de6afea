//! Records which queues of a port were taken: each can be taken once.

use core::sync::atomic::{AtomicBool, Ordering};

/// One flag for each queue.
pub(super) struct Taken(Box<[AtomicBool]>);

impl Taken {
    /// Makes a record for this number of queues, none taken.
    pub fn none_of(queues: usize) -> Self {
        Self((0..queues).map(|_| AtomicBool::new(false)).collect())
    }

    /// Takes a queue; `None` if it was taken before or does not exist.
    pub fn take(&self, index: usize) -> Option<()> {
        (!self.0.get(index)?.swap(true, Ordering::AcqRel)).then_some(())
    }
}
