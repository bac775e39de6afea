//! Which queues of a port are taken: each can be taken once.

use core::sync::atomic::{AtomicBool, Ordering};

/// One flag a queue.
pub(super) struct Taken(Box<[AtomicBool]>);

impl Taken {
    /// That many queues, none taken.
    pub fn none_of(queues: usize) -> Self {
        Self((0..queues).map(|_| AtomicBool::new(false)).collect())
    }

    /// Takes a queue; `None` if it is taken or does not exist.
    pub fn take(&self, index: usize) -> Option<()> {
        (!self.0.get(index)?.swap(true, Ordering::AcqRel)).then_some(())
    }
}
