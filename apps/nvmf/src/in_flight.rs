//! Commands that outlive their queue: when a queue ends, the storage may still be working on its commands.
//!
//! Until the storage has finished them, a Connect of the same host to the same subsystem waits. Otherwise the host could connect again,
//! write a block again and get a success status, and then an older write of the same block could overwrite it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Weak};

use crate::association::{Association, Life};
use crate::nqn::Nqn;
use crate::sync::lock;

/// A token for the commands of an I/O queue. If the queue ends, the program keeps the token until the storage has finished all of the
/// queue's commands; see [`Queue::in_flight`](crate::Queue::in_flight).
#[derive(Clone, Debug)]
pub struct InFlight {
    _of: Arc<Entry>,
}

#[derive(Debug)]
struct Entry {
    association: Arc<Association>,
    life: Life,
    /// Whether the queue has been dropped, or is being dropped.
    ended: AtomicBool,
}

/// The queue's own side of an [`InFlight`].
#[derive(Debug)]
pub(crate) struct Serving(Arc<Entry>);

impl Serving {
    pub fn in_flight(&self) -> InFlight {
        InFlight { _of: Arc::clone(&self.0) }
    }
    /// Marks the queue as ended. Call this before the queue's number is freed.
    pub fn end(&self) {
        self.0.ended.store(true, Ordering::Release);
    }
}

/// The I/O queues of a subsystem: current ones, and ended ones whose commands may still be at the storage.
#[derive(Debug, Default)]
pub(crate) struct Unfinished(Mutex<Vec<Weak<Entry>>>);

impl Unfinished {
    /// Adds a new queue.
    pub fn begin(&self, association: &Arc<Association>, life: Life) -> Serving {
        let association = Arc::clone(association);
        let entry = Arc::new(Entry { association, life, ended: AtomicBool::new(false) });
        let mut entries = lock(&self.0);
        entries.retain(|entry| entry.strong_count() > 0);
        entries.push(Arc::downgrade(&entry));
        Serving(entry)
    }
    /// Whether commands of an ended or ending queue of this host may still be at the storage.
    pub fn has(&self, host: &Nqn, host_id: &[u8; 16]) -> bool {
        let of_an_ended_queue = |entry: Arc<Entry>| {
            let association = &entry.association;
            let ended = entry.ended.load(Ordering::Acquire) || !association.is_in(entry.life);
            ended && association.host == *host && association.host_id == *host_id
        };
        lock(&self.0).iter().filter_map(Weak::upgrade).any(of_an_ended_queue)
    }
}
