//! Where the blocks of namespaces are.

mod aligned;
mod file;
mod memory;
mod open;
mod ring;
mod workers;

pub use file::File;
pub use memory::Memory;
pub use open::{Direct, FileError, Opening};
pub use ring::{Request, Ring};
pub use workers::{Done, Place, Work, Workers};

use std::sync::Arc;

use nvmf::config::Backend;

/// The storage of a namespace. Shared by all cores.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Store {
    /// Memory of this process: gone when it ends.
    Memory(Arc<Memory>),
    /// A file or a block device, with the threads that wait for it.
    File(Arc<File>, Arc<Workers>),
}

/// All storage, by the number that the controllers know it by.
#[derive(Clone, Debug, Default)]
pub struct Stores(Vec<Store>);

impl Stores {
    /// Adds one; returns its number.
    pub fn add(&mut self, store: Store) -> Backend {
        self.0.push(store);
        Backend((self.0.len() - 1) as u32)
    }
    /// Whether any is a file.
    pub fn has_files(&self) -> bool {
        self.0.iter().any(|store| matches!(store, Store::File(..)))
    }
    /// The one of a number.
    #[inline]
    pub fn get(&self, backend: Backend) -> Option<&Store> {
        self.0.get(backend.0 as usize)
    }
}
