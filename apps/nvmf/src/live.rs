//! A subsystem that is served: what its queues read while others change it.
//!
//! Queues keep the table of namespaces that they last saw; one atomic load per command tells whether there is a newer one.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use arrayvec::ArrayString;

use crate::config::{Backend, Namespace};
use crate::counters::Counters;
use crate::nqn::Nqn;
use crate::sync::lock;

/// The namespaces of a subsystem at one time.
#[derive(Clone, Default, Debug)]
pub(crate) struct Table {
    /// By identifier, less one.
    slots: Vec<Option<Namespace>>,
}

impl Table {
    pub fn get(&self, nsid: u32) -> Option<&Namespace> {
        self.slots.get(nsid.checked_sub(1)? as usize)?.as_ref()
    }
    /// In order of their identifiers.
    pub fn iter(&self) -> impl Iterator<Item = &Namespace> {
        self.slots.iter().flatten()
    }
    /// Puts in `namespace`, whose identifier has been checked.
    pub fn set(&mut self, namespace: Namespace) {
        let at = namespace.nsid as usize - 1;
        if self.slots.len() <= at {
            self.slots.resize(at + 1, None);
        }
        self.slots[at] = Some(namespace);
    }
    pub fn remove(&mut self, nsid: u32) {
        if let Some(slot) = nsid.checked_sub(1).and_then(|at| self.slots.get_mut(at as usize)) {
            *slot = None;
        }
    }
    /// Identifiers of the namespaces that are not the same in `other`.
    pub fn differences<'a>(&'a self, other: &'a Self) -> impl Iterator<Item = u32> + 'a {
        let len = self.slots.len().max(other.slots.len()) as u32;
        (1..=len).filter(|&nsid| self.get(nsid) != other.get(nsid))
    }
}

/// The subsystem.
#[derive(Debug)]
pub(crate) struct Live {
    pub nqn: Nqn,
    pub serial: ArrayString<20>,
    pub counters: Counters,
    version: AtomicU64,
    table: Mutex<Arc<Table>>,
    /// Namespaces that have lost data.
    failed: Mutex<Vec<u32>>,
    /// How often one was added to them.
    failures: AtomicU64,
}

impl Live {
    pub fn new(nqn: Nqn, serial: ArrayString<20>, table: Table) -> Self {
        Self {
            nqn,
            serial,
            counters: Counters::default(),
            version: AtomicU64::new(0),
            table: Mutex::new(Arc::new(table)),
            failed: Mutex::default(),
            failures: AtomicU64::new(0),
        }
    }
    /// A namespace has lost data, if it still has this backend.
    #[cold]
    pub fn fail(&self, nsid: u32, backend: Backend) {
        // Held until it is marked: who removes the namespace takes the mark away after it is out of the table.
        let table = lock(&self.table);
        if table.get(nsid).is_none_or(|namespace| namespace.backend != backend) {
            return;
        }
        let mut failed = lock(&self.failed);
        if !failed.contains(&nsid) {
            failed.push(nsid);
            self.failures.fetch_add(1, Ordering::Release);
        }
    }
    /// Its data are as they should be, or it is gone.
    pub fn restore(&self, nsid: u32) {
        lock(&self.failed).retain(|failed| *failed != nsid);
    }
    /// Whether there are namespaces that have lost data.
    pub fn has_failed(&self) -> bool {
        !lock(&self.failed).is_empty()
    }
    /// How often a namespace has lost data.
    #[inline]
    pub fn failures(&self) -> u64 {
        self.failures.load(Ordering::Acquire)
    }
    /// The current table.
    pub fn snapshot(&self) -> Snapshot {
        let table = lock(&self.table);
        Snapshot { version: self.version.load(Ordering::Relaxed), table: Arc::clone(&table) }
    }
    /// Changes the table.
    pub fn change(&self, change: impl FnOnce(&mut Table)) {
        let mut table = lock(&self.table);
        change(Arc::make_mut(&mut table));
        // Release: a queue that sees this version then locks the table, and finds at least this one.
        self.version.fetch_add(1, Ordering::Release);
    }
}

/// A table, and which one it is.
#[derive(Debug)]
pub(crate) struct Snapshot {
    version: u64,
    pub table: Arc<Table>,
}

impl Snapshot {
    /// A newer table of `live`, if there is one.
    #[inline]
    pub fn newer(&self, live: &Live) -> Option<Self> {
        (live.version.load(Ordering::Acquire) != self.version).then(|| live.snapshot())
    }
}
