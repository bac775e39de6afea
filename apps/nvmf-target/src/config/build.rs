//! From an [`Offer`] to the controllers and the storage.

use std::collections::HashMap;
use std::fmt::Display;
use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use nvmf::Target;
use nvmf::config::{Backend, Hosts, Namespace, Port, Ports, Subsystem};
use verbs::Pd;

use super::{Mistake, Offer, OfferedNamespace, OfferedSubsystem, PORT, Storage, identity};
use crate::store::{File, FileError, Memory, Opening, Store, Stores, Workers};

/// Threads that wait for files.
const WORKERS: usize = 8;

/// What a target is built of.
#[derive(Clone, Debug)]
pub struct Built {
    /// The controllers.
    pub target: Target,
    /// The storage.
    pub stores: Arc<Stores>,
    /// Where to listen, and the number of the port there.
    pub ports: Vec<(u16, SocketAddr)>,
}

/// Builds an offer: `address` is listened on if it names no other one, and memory belongs to `pd`.
///
/// # Errors
/// The first thing that cannot be.
pub fn build(offer: &Offer, address: IpAddr, pd: &Pd) -> Result<Built, Mistake> {
    let mut offer = offer.clone();
    if offer.ports.is_empty() {
        offer.ports.push(SocketAddr::new(address, PORT));
    }
    apart(&offer)?;
    let mut stores = Stores::default();
    let mut lens = Vec::new();
    let mut workers = None;
    for namespace in offer.subsystems.iter().flat_map(|subsystem| &subsystem.namespaces) {
        let store = open(namespace, pd, &mut workers)?;
        lens.push(match &store {
            Store::Memory(memory) => Len { bytes: memory.len(), zeros: true },
            Store::File(file, _) => Len {
                bytes: file.size().map_err(|e| mistake(namespace, e))?,
                zeros: file.deallocated_reads_zero(),
            },
        });
        stores.add(store);
    }
    let target = target_of(&offer, &lens)?;
    let ports = (1..).zip(offer.ports.iter().copied()).collect();
    Ok(Built { target, stores: Arc::new(stores), ports })
}

fn mistake(namespace: &OfferedNamespace, e: impl Display) -> Mistake {
    Mistake { what: format!("namespace {}: {e}", namespace.nsid), span: Some(namespace.span.clone()) }
}

/// Which file a path leads to, whatever its names.
#[derive(PartialEq, Eq, Hash)]
enum Which {
    File(u64, u64),
    Device(u64),
    /// It will be made.
    New(PathBuf),
}

fn which(path: &Path) -> Which {
    match path.metadata() {
        Ok(there) if there.file_type().is_block_device() => Which::Device(there.rdev()),
        Ok(there) => Which::File(there.dev(), there.ino()),
        Err(_) => {
            let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
            let dir = dir.canonicalize().unwrap_or_else(|_| dir.into());
            Which::New(path.file_name().map_or(dir.clone(), |name| dir.join(name)))
        }
    }
}

/// Looks that no two namespaces are in one file: what one writes the other would not expect.
pub(super) fn apart(offer: &Offer) -> Result<(), Mistake> {
    let mut files = HashMap::new();
    for subsystem in &offer.subsystems {
        for namespace in &subsystem.namespaces {
            let Storage::File { path, .. } = &namespace.storage else { continue };
            if let Some((nqn, nsid)) = files.insert(which(path), (&subsystem.nqn, namespace.nsid)) {
                let path = path.display();
                return Err(mistake(namespace, format!("{path} is namespace {nsid} of {nqn} already")));
            }
        }
    }
    Ok(())
}

/// What a namespace's storage says of itself.
#[derive(Clone, Copy, Debug)]
pub(super) struct Len {
    bytes: u64,
    /// What was deallocated reads as zeros.
    zeros: bool,
}

/// The storage of a namespace that is not opened for use.
pub(super) fn look(namespace: &OfferedNamespace) -> Result<Len, Mistake> {
    let bytes = match &namespace.storage {
        Storage::Memory(bytes) => *bytes,
        Storage::File { path, size, .. } => match (File::look(path), size) {
            (Ok(len), size) => len.max(size.unwrap_or(0)),
            // It will be made.
            (Err(FileError::Open { error, .. }), &Some(size)) if error.kind() == ErrorKind::NotFound => size,
            (Err(e), _) => return Err(mistake(namespace, e)),
        },
    };
    Ok(Len { bytes, zeros: true })
}

fn open(namespace: &OfferedNamespace, pd: &Pd, workers: &mut Option<Arc<Workers>>) -> Result<Store, Mistake> {
    match &namespace.storage {
        Storage::Memory(bytes) => {
            let len =
                usize::try_from(*bytes).map_err(|_| mistake(namespace, "there is not so much memory"))?;
            Ok(Store::Memory(Arc::new(Memory::new(pd, len).map_err(|e| mistake(namespace, e))?)))
        }
        Storage::File { path, size, direct } => {
            let (read_only, block) = (namespace.read_only, namespace.block);
            let opening = Opening { size: *size, read_only, direct: *direct, block };
            let file = File::open_with(path, &opening).map_err(|e| mistake(namespace, e))?;
            let workers = match workers {
                Some(workers) => Arc::clone(workers),
                None => {
                    let threads = Workers::new(WORKERS).map_err(|e| mistake(namespace, e))?;
                    Arc::clone(workers.insert(Arc::new(threads)))
                }
            };
            Ok(Store::File(Arc::new(file), workers))
        }
    }
}

/// The controllers of an offer. Namespaces are numbered as [`build`] opens them.
pub(super) fn target_of(offer: &Offer, lens: &[Len]) -> Result<Target, Mistake> {
    let whole = |e: nvmf::config::ConfigError| Mistake { what: e.to_string(), span: None };
    let target = Target::new(offer.settings.clone()).map_err(whole)?;
    for (id, &address) in (1..).zip(&offer.ports) {
        target.add_port(Port { id, address }).map_err(whole)?;
    }
    let mut stores = (0..).map(Backend).zip(lens);
    for offered in &offer.subsystems {
        let at = |e: nvmf::config::ConfigError, span: &std::ops::Range<usize>| Mistake {
            what: e.to_string(),
            span: Some(span.clone()),
        };
        let OfferedSubsystem { nqn, serial, hosts, namespaces, span } = offered;
        let subsystem = Subsystem {
            nqn: nqn.clone(),
            serial: serial.unwrap_or_else(|| identity::serial(nqn)),
            ports: Ports::All,
            hosts: hosts.clone().map_or(Hosts::Any, Hosts::Listed),
            namespaces: Vec::new(),
        };
        target.add_subsystem(subsystem).map_err(|e| at(e, span))?;
        for (namespace, (backend, len)) in namespaces.iter().zip(&mut stores) {
            let uuid = namespace.uuid.unwrap_or_else(|| identity::uuid(nqn, namespace.nsid));
            if !len.bytes.is_multiple_of(namespace.block.into()) {
                let (bytes, block) = (len.bytes, namespace.block);
                return Err(mistake(
                    namespace,
                    format!("{bytes} bytes are no multiple of a block of {block}"),
                ));
            }
            let added = Namespace {
                nsid: namespace.nsid,
                backend,
                blocks: len.bytes / namespace.block as u64,
                block_shift: namespace.block.trailing_zeros() as u8,
                uuid,
                nguid: identity::nguid(&uuid),
                read_only: namespace.read_only,
                deallocated_reads_zero: len.zeros,
            };
            target.add_namespace(nqn, added).map_err(|e| at(e, &namespace.span))?;
        }
    }
    Ok(target)
}
