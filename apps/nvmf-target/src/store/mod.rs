//! The storage of namespaces: memory, files, block devices, and storage that a program provides.

mod aligned;
mod device;
mod file;
mod health;
mod memory;
mod open;
mod ranges;
mod ring;
mod work;
mod workers;

pub use file::File;
pub use health::Health;
pub use memory::{Memory, Zeroed};
pub(crate) use open::dir_of;
pub use open::{Direct, FileError, Locked, Opening};
pub use ranges::merged;
pub use ring::{Request, Ring};
pub use work::{BlockingStorage, CommandIndex, Done, MrSlice, Work};
pub use workers::{Job, Workers};

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use nvmf::config::Backend;
use nvmf::sync::lock;

/// The storage of a namespace, shared by all cores.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Store {
    /// Memory of this process; its content is lost when the process ends.
    Memory(Arc<Memory>),
    /// A file or a block device, with the threads that do blocking work on it.
    File(Arc<File>, Arc<Workers>),
    /// Storage that a program provides, with the threads that do blocking work on it.
    Other(Arc<dyn BlockingStorage>, Arc<Workers>),
}

impl Store {
    /// Its current size in bytes.
    ///
    /// # Errors
    /// If a device is gone.
    pub fn size(&self) -> std::io::Result<u64> {
        match self {
            Self::Memory(memory) => Ok(memory.len()),
            Self::File(file, _) => file.size(),
            Self::Other(blocks, _) => blocks.size(),
        }
    }
    /// Its health; `None` for memory, which does not fail.
    pub fn health(&self) -> Option<&Health> {
        match self {
            Self::Memory(_) => None,
            Self::File(file, _) => Some(file.health()),
            Self::Other(blocks, _) => Some(blocks.health()),
        }
    }
    /// The granularity of deallocation in bytes; deallocated bytes read as zeros. `None` if it cannot deallocate.
    pub fn deallocates(&self) -> Option<u32> {
        match self {
            Self::Memory(memory) => memory.deallocates(),
            Self::File(file, _) => file.deallocates(),
            Self::Other(blocks, _) => blocks.deallocates(),
        }
    }
    /// Whether this is the last reference: no core and no command uses the storage.
    pub fn is_ours_alone(&self) -> bool {
        match self {
            Self::Memory(memory) => Arc::strong_count(memory) == 1,
            Self::File(file, _) => Arc::strong_count(file) == 1,
            Self::Other(blocks, _) => Arc::strong_count(blocks) == 1,
        }
    }
}

impl fmt::Display for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Memory(_) => f.write_str("memory"),
            Self::File(file, _) => file.path().display().fmt(f),
            Self::Other(blocks, _) => fmt::Debug::fmt(blocks, f),
        }
    }
}

/// One version of the table of all stores, by the numbers that controllers use for them. A number is never reused.
#[derive(Clone, Debug, Default)]
pub struct Table {
    version: u64,
    stores: Vec<Option<Store>>,
}

impl Table {
    /// Whether any store is a file or a block device.
    pub fn has_files(&self) -> bool {
        self.stores.iter().flatten().any(|store| matches!(store, Store::File(..)))
    }
    /// The store with this number; `None` if it was removed.
    #[inline]
    pub fn get(&self, backend: Backend) -> Option<&Store> {
        self.stores.get(backend.0 as usize)?.as_ref()
    }
}

/// All stores. Each core keeps a table of them, and regularly checks for a newer one.
#[derive(Debug, Default)]
pub struct Stores {
    version: AtomicU64,
    table: Mutex<Arc<Table>>,
}

impl Stores {
    /// Adds a store; returns its number.
    pub fn add(&self, store: Store) -> Backend {
        self.change(|stores| {
            stores.push(Some(store));
            Backend((stores.len() - 1) as u32)
        })
    }
    /// Removes a store and returns it; `None` if there is none with this number. Cores may still use it for a short time.
    pub fn remove(&self, backend: Backend) -> Option<Store> {
        self.change(|stores| stores.get_mut(backend.0 as usize)?.take())
    }
    /// The current table.
    pub fn table(&self) -> Arc<Table> {
        Arc::clone(&lock(&self.table))
    }
    /// The current table if it is newer than `than`, else `None`.
    #[inline]
    pub fn newer(&self, than: &Table) -> Option<Arc<Table>> {
        (self.version.load(Ordering::Acquire) != than.version).then(|| self.table())
    }

    fn change<T>(&self, change: impl FnOnce(&mut Vec<Option<Store>>) -> T) -> T {
        let mut table = lock(&self.table);
        let next = Arc::make_mut(&mut table);
        let result = change(&mut next.stores);
        next.version += 1;
        // Release: a core that sees this version and then locks the table finds this table or a newer one.
        self.version.store(next.version, Ordering::Release);
        result
    }
}
