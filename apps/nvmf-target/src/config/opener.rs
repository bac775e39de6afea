//! The storage of a namespace: opened, or only looked at.

use std::io::ErrorKind;
use std::sync::Arc;

use nvmf::Nqn;
use nvmf::config::{Backend, Namespace};
use verbs::Pd;

use super::{OfferedNamespace, Storage, identity};
use crate::store::{File, FileError, Memory, Opening, Store, Workers};

/// Threads that wait for the file of a namespace, at most: each has its own, so that none waits for another one's disk.
const WORKERS: usize = 8;

/// What a namespace's storage says of itself.
#[derive(Clone, Copy, Debug)]
pub struct Len {
    bytes: u64,
    /// What was deallocated reads as zeros.
    zeros: bool,
}

impl Len {
    /// That of storage that is open.
    ///
    /// # Errors
    /// If a device is gone.
    pub fn of(store: &Store) -> Result<Self, String> {
        let zeros = match store {
            Store::Memory(_) => true,
            Store::File(file, _) => file.deallocated_reads_zero(),
            Store::Other(..) => false,
        };
        Ok(Self { bytes: store.size().map_err(|e| e.to_string())?, zeros })
    }
}

/// The storage of a namespace that is not opened for use.
pub(super) fn look(namespace: &OfferedNamespace) -> Result<Len, String> {
    let bytes = match &namespace.storage {
        Storage::Memory(bytes) => *bytes,
        Storage::File { path, size, .. } => match (File::look(path), size) {
            (Ok(len), size) => len.max(size.unwrap_or(0)),
            // It will be made.
            (Err(FileError::Open { error, .. }), &Some(size)) if error.kind() == ErrorKind::NotFound => size,
            (Err(e), _) => return Err(e.to_string()),
        },
    };
    Ok(Len { bytes, zeros: true })
}

/// Opens the storage of namespaces.
#[derive(Debug)]
pub struct Opener {
    pd: Arc<Pd>,
}

impl Opener {
    /// Memory is of this domain.
    pub fn new(pd: &Arc<Pd>) -> Self {
        Self { pd: Arc::clone(pd) }
    }
    /// Opens that of a namespace.
    ///
    /// # Errors
    /// Why it cannot be: a sentence.
    pub fn open(&mut self, namespace: &OfferedNamespace) -> Result<Store, String> {
        match &namespace.storage {
            Storage::Memory(bytes) => {
                let len = usize::try_from(*bytes).map_err(|_| "there is not so much memory")?;
                Ok(Store::Memory(Arc::new(Memory::new(&self.pd, len).map_err(|e| e.to_string())?)))
            }
            Storage::File { path, size, direct } => {
                let (read_only, block) = (namespace.read_only, namespace.block);
                let opening = Opening { size: *size, read_only, direct: *direct, block };
                let file = File::open_with(path, &opening).map_err(|e| e.to_string())?;
                let workers = Workers::new(WORKERS).map_err(|e| format!("{}: {e}", path.display()))?;
                Ok(Store::File(Arc::new(file), Arc::new(workers)))
            }
        }
    }
}

/// A namespace as the controllers know it.
///
/// # Errors
/// If the storage has no whole blocks.
pub fn namespace_of(
    nqn: &Nqn,
    offered: &OfferedNamespace,
    backend: Backend,
    len: Len,
) -> Result<Namespace, String> {
    let (Len { bytes, zeros }, block) = (len, offered.block);
    if !bytes.is_multiple_of(block.into()) {
        return Err(format!("{bytes} bytes are no multiple of a block of {block}"));
    }
    let uuid = offered.uuid.unwrap_or_else(|| identity::uuid(nqn, &offered.storage));
    Ok(Namespace {
        nsid: offered.nsid,
        backend,
        blocks: bytes / block as u64,
        block_shift: block.trailing_zeros() as u8,
        uuid,
        nguid: identity::nguid(&uuid),
        read_only: offered.read_only,
        deallocated_reads_zero: zeros,
    })
}
