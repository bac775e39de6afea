//! Where the blocks of namespaces are.

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

/// The storage of a namespace. Shared by all cores.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Store {
    /// Memory of this process: gone when it ends.
    Memory(Arc<Memory>),
    /// A file or a block device, with the threads that wait for it.
    File(Arc<File>, Arc<Workers>),
    /// Storage that a program brings along, with the threads that wait for it.
    Other(Arc<dyn BlockingStorage>, Arc<Workers>),
}

impl Store {
    /// Bytes that it has now.
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
    /// Its health; memory has none to lose.
    pub fn health(&self) -> Option<&Health> {
        match self {
            Self::Memory(_) => None,
            Self::File(file, _) => Some(file.health()),
            Self::Other(blocks, _) => Some(blocks.health()),
        }
    }
    /// Bytes that it gives back together, of which it says then that they are zeros; `None` if it gives nothing back.
    pub fn deallocates(&self) -> Option<u32> {
        match self {
            Self::Memory(memory) => memory.deallocates(),
            Self::File(file, _) => file.deallocates(),
            Self::Other(blocks, _) => blocks.deallocates(),
        }
    }
    /// Whether nobody else uses it: no core, and no command.
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

/// All storage at one time, by the numbers that the controllers use for it. A number is never used again.
#[derive(Clone, Debug, Default)]
pub struct Table {
    version: u64,
    stores: Vec<Option<Store>>,
}

impl Table {
    /// Whether any is a file.
    pub fn has_files(&self) -> bool {
        self.stores.iter().flatten().any(|store| matches!(store, Store::File(..)))
    }
    /// The storage of a number; `None` once it was removed.
    #[inline]
    pub fn get(&self, backend: Backend) -> Option<&Store> {
        self.stores.get(backend.0 as usize)?.as_ref()
    }
}

/// All storage. Each core has a table of it, and looks for a newer one now and then.
#[derive(Debug, Default)]
pub struct Stores {
    version: AtomicU64,
    table: Mutex<Arc<Table>>,
}

impl Stores {
    /// Adds one; returns its number.
    pub fn add(&self, store: Store) -> Backend {
        self.change(|stores| {
            stores.push(Some(store));
            Backend((stores.len() - 1) as u32)
        })
    }
    /// Takes one out. Cores may still use it for a moment.
    pub fn remove(&self, backend: Backend) -> Option<Store> {
        self.change(|stores| stores.get_mut(backend.0 as usize)?.take())
    }
    /// The current table.
    pub fn table(&self) -> Arc<Table> {
        Arc::clone(&lock(&self.table))
    }
    /// A newer table than that one, if there is one.
    #[inline]
    pub fn newer(&self, than: &Table) -> Option<Arc<Table>> {
        (self.version.load(Ordering::Acquire) != than.version).then(|| self.table())
    }

    fn change<T>(&self, change: impl FnOnce(&mut Vec<Option<Store>>) -> T) -> T {
        let mut table = lock(&self.table);
        let next = Arc::make_mut(&mut table);
        let result = change(&mut next.stores);
        next.version += 1;
        // Release: a core that sees this version then locks the table, and finds at least this one.
        self.version.store(next.version, Ordering::Release);
        result
    }
}
