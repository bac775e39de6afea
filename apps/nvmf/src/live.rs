//! A subsystem in use: its queues read it while other threads change it.
//!
//! Each queue keeps a reference to the table of namespaces that it last saw. One atomic load per command tells whether there is a newer
//! one.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use arrayvec::ArrayString;

use crate::config::{Backend, Namespace};
use crate::counters::Counters;
use crate::nqn::Nqn;
use crate::sync::lock;

/// One version of the namespaces of a subsystem.
#[derive(Clone, Default, Debug)]
pub(crate) struct Table {
    /// Indexed by namespace identifier minus 1.
    slots: Vec<Option<Namespace>>,
}

impl Table {
    pub fn get(&self, nsid: u32) -> Option<&Namespace> {
        self.slots.get(nsid.checked_sub(1)? as usize)?.as_ref()
    }
    /// The namespaces, in order of their identifiers.
    pub fn iter(&self) -> impl Iterator<Item = &Namespace> {
        self.slots.iter().flatten()
    }
    /// Adds or replaces `namespace`, whose identifier the caller has checked.
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
    /// Identifiers of the namespaces that differ from those in `other`, or exist in one of the two tables only.
    pub fn differences<'a>(&'a self, other: &'a Self) -> impl Iterator<Item = u32> + 'a {
        let len = self.slots.len().max(other.slots.len()) as u32;
        (1..=len).filter(|&nsid| self.get(nsid) != other.get(nsid))
    }
}

/// A subsystem in use.
#[derive(Debug)]
pub(crate) struct Live {
    pub nqn: Nqn,
    pub serial: ArrayString<20>,
    pub counters: Counters,
    version: AtomicU64,
    table: Mutex<Arc<Table>>,
    /// Namespaces that have lost data.
    failed: Mutex<Vec<u32>>,
    /// How many times a namespace was added to `failed`.
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
    /// Records that a namespace has lost data, if it still has this backend.
    #[cold]
    pub fn fail(&self, nsid: u32, backend: Backend) {
        // The lock is held until the namespace is in `failed`: whoever removes a namespace first removes it from the table and then from
        // `failed`.
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
    /// Removes a namespace from those that have lost data: its storage works again, or the namespace was removed.
    pub fn restore(&self, nsid: u32) {
        lock(&self.failed).retain(|failed| *failed != nsid);
    }
    /// Whether there are namespaces that have lost data.
    pub fn has_failed(&self) -> bool {
        !lock(&self.failed).is_empty()
    }
    /// How many times a namespace of this subsystem has lost data.
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
        // Release: a queue that sees this version and then locks the table finds this table or a newer one.
        self.version.fetch_add(1, Ordering::Release);
    }
}

/// A table with its version.
#[derive(Debug)]
pub(crate) struct Snapshot {
    version: u64,
    pub table: Arc<Table>,
}

impl Snapshot {
    /// The current table of `live` if it is newer than this one, else `None`.
    #[inline]
    pub fn newer(&self, live: &Live) -> Option<Self> {
        (live.version.load(Ordering::Acquire) != self.version).then(|| live.snapshot())
    }
}
