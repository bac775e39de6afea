//! Opens the storage of a namespace, or only tries to.

use std::io::{Seek, SeekFrom};
use std::path::PathBuf;
use std::sync::Arc;

use nvmf::Nqn;
use nvmf::config::{Backend, Namespace};
use verbs::Pd;

use super::identity;
use super::memory;
use super::offer::{OfferedNamespace, Storage};
use crate::store::{Direct, File, FileError, Locked, Memory, Opening, Store, Workers};

/// The most threads for the file of one namespace. Each namespace has threads of its own, so that no namespace waits for the disk of
/// another.
const WORKERS: usize = 8;

/// The size of a namespace's storage, and its granularity of deallocation.
#[derive(Clone, Copy, Debug)]
pub struct Len {
    bytes: u64,
    /// Granularity of deallocation in bytes; `None` if the storage cannot deallocate.
    deallocates: Option<u32>,
}

impl Len {
    /// The properties of open storage.
    ///
    /// # Errors
    /// If a device is gone.
    pub fn of(store: &Store) -> Result<Self, String> {
        let bytes = store.size().map_err(|e| e.to_string())?;
        Ok(Self { bytes, deallocates: store.deallocates() })
    }
}

/// The result of a dry run: the properties that [`Opener::open`] would find, and the lock of the file, which is held until the dry run of
/// all storage is over.
pub(super) struct Tried {
    pub len: Len,
    _held: Option<Locked>,
}

/// A dry run of [`Opener::open`], which changes nothing. A file that `serves` lists may be in use by a running target.
pub(super) fn open_dry(namespace: &OfferedNamespace, serves: &[PathBuf]) -> Result<Tried, String> {
    let (bytes, held) = match &namespace.storage {
        Storage::Memory(bytes) => (*bytes, None),
        Storage::File { path, size, direct } => {
            let serves = || std::fs::canonicalize(path).is_ok_and(|path| serves.contains(&path));
            match File::open_dry(path, &opening(namespace, *size, *direct)) {
                Ok((len, held)) => (len, Some(held)),
                Err(FileError::InUse(_)) if serves() => {
                    let now = std::fs::File::open(path).and_then(|mut file| file.seek(SeekFrom::End(0)));
                    let now = now.map_err(|e| format!("{}: {e}", path.display()))?;
                    (now.max(size.unwrap_or(0)), None)
                }
                Err(e) => return Err(e.to_string()),
            }
        }
    };
    Ok(Tried { len: Len { bytes, deallocates: None }, _held: held })
}

fn opening(namespace: &OfferedNamespace, size: Option<u64>, direct: Option<Direct>) -> Opening {
    Opening { size, read_only: namespace.read_only, direct, block: namespace.block }
}

/// Opens the storage of namespaces.
#[derive(Debug)]
pub struct Opener {
    pd: Arc<Pd>,
}

impl Opener {
    /// Makes an opener. The memory of namespaces is registered in this protection domain.
    pub fn new(pd: &Arc<Pd>) -> Self {
        Self { pd: Arc::clone(pd) }
    }
    /// Opens the storage of a namespace.
    ///
    /// # Errors
    /// Why it cannot be opened, as a sentence.
    pub fn open(&self, namespace: &OfferedNamespace) -> Result<Store, String> {
        match &namespace.storage {
            Storage::Memory(bytes) => {
                memory::has(*bytes)?;
                let len = usize::try_from(*bytes).map_err(|_| "there is not so much memory")?;
                Ok(Store::Memory(Arc::new(Memory::new(&self.pd, len).map_err(|e| e.to_string())?)))
            }
            Storage::File { path, size, direct } => {
                let opening = opening(namespace, *size, *direct);
                let file = File::open_with(path, &opening).map_err(|e| e.to_string())?;
                let workers = Workers::new(WORKERS).map_err(|e| format!("{}: {e}", path.display()))?;
                Ok(Store::File(Arc::new(file), Arc::new(workers)))
            }
        }
    }
}

/// Makes the namespace for the `nvmf` library.
///
/// # Errors
/// If the size of the storage is not a multiple of the block size.
pub fn namespace_of(
    nqn: &Nqn,
    offered: &OfferedNamespace,
    backend: Backend,
    len: Len,
) -> Result<Namespace, String> {
    let (Len { bytes, deallocates }, block) = (len, offered.block);
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
        deallocates,
    })
}
