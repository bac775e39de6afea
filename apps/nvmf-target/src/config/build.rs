//! Builds a target, with its storage, from an [`Offer`].

use std::collections::HashMap;
use std::fmt::Display;
use std::net::{IpAddr, SocketAddr};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use nvmf::Target;
use nvmf::config::{Backend, Hosts, Port, Ports, Subsystem};
use verbs::Pd;

use super::identity;
use super::offer::{Mistake, Offer, OfferedNamespace, OfferedSubsystem, PORT, Storage};
use super::opener::{self, Len, Opener, namespace_of};
use crate::store::Stores;

/// A target that was built, and its parts.
#[derive(Debug)]
pub struct Built {
    /// The target of the `nvmf` library, with its configuration.
    pub target: Target,
    /// The storage of its namespaces.
    pub stores: Arc<Stores>,
    /// The number and the address of each port.
    pub ports: Vec<(u16, SocketAddr)>,
    /// Opens the storage of namespaces that are added later.
    pub opener: Opener,
}

/// Builds a target. If the offer has no ports, it listens on `address`. The memory of namespaces is registered in `pd`.
///
/// # Errors
/// The first mistake in the offer.
pub fn build(offer: &Offer, address: IpAddr, pd: &Arc<Pd>) -> Result<Built, Mistake> {
    let mut offer = offer.clone();
    if offer.ports.is_empty() {
        offer.ports.push(SocketAddr::new(address, PORT));
    }
    // Finds mistakes before any file is created.
    build_dry(&offer, &[])?;
    let stores = Stores::default();
    let mut lens = Vec::new();
    let opener = Opener::new(pd);
    for namespace in offer.subsystems.iter().flat_map(|subsystem| &subsystem.namespaces) {
        let at = |e: String| mistake(namespace, e);
        let store = opener.open(namespace).map_err(at)?;
        lens.push(Len::of(&store).map_err(at)?);
        stores.add(store);
    }
    let target = target_of(&offer, &lens)?;
    let ports = (1..).zip(offer.ports.iter().copied()).collect();
    Ok(Built { target, stores: Arc::new(stores), ports, opener })
}

fn mistake(namespace: &OfferedNamespace, e: impl Display) -> Mistake {
    Mistake { what: format!("namespace {}: {e}", namespace.nsid), span: Some(namespace.span.clone()) }
}

/// The identity of the file at a path. It is the same for all names of the file.
#[derive(PartialEq, Eq, Hash)]
enum Which {
    File(u64, u64),
    Device(u64),
    /// The file does not exist: it will be created at this path.
    New(PathBuf),
}

fn which(path: &Path) -> Which {
    match path.metadata() {
        Ok(there) if there.file_type().is_block_device() => Which::Device(there.rdev()),
        Ok(there) => Which::File(there.dev(), there.ino()),
        Err(_) => Which::New(identity::canonical(path)),
    }
}

/// Checks that no two namespaces use the same file: each would overwrite the blocks of the other.
fn apart(offer: &Offer) -> Result<(), Mistake> {
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

/// A dry run of [`build`]: makes all its checks and changes nothing. `serves` lists the files of a running target: it is not a mistake that
/// these are in use.
///
/// # Errors
/// The first mistake in the offer.
pub fn build_dry(offer: &Offer, serves: &[PathBuf]) -> Result<(), Mistake> {
    apart(offer)?;
    let all = offer.subsystems.iter().flat_map(|subsystem| &subsystem.namespaces);
    let tried = all.map(|namespace| opener::open_dry(namespace, serves).map_err(|e| mistake(namespace, e)));
    // The locks of all files are held until the last file has been tried.
    let tried = tried.collect::<Result<Vec<_>, _>>()?;
    let lens: Vec<_> = tried.iter().map(|tried| tried.len).collect();
    target_of(offer, &lens).map(drop)
}

/// Makes the target of an offer. Backends are numbered in the order in which [`build`] opens the namespaces; `lens` are in this order.
fn target_of(offer: &Offer, lens: &[Len]) -> Result<Target, Mistake> {
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
            let added = namespace_of(nqn, namespace, backend, *len).map_err(|e| mistake(namespace, e))?;
            target.add_namespace(nqn, added).map_err(|e| at(e, &namespace.span))?;
        }
    }
    Ok(target)
}
