//! Where the blocks of namespaces are.

mod memory;

pub use memory::Memory;

use std::sync::Arc;

use nvmf::config::Backend;

/// The storage of a namespace. Shared by all cores.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Store {
    /// Memory of this process: gone when it ends.
    Memory(Arc<Memory>),
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
    /// The one of a number.
    #[inline]
    pub fn get(&self, backend: Backend) -> Option<&Store> {
        self.0.get(backend.0 as usize)
    }
}
