//! Executes requests to a running target.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use nvmf::config::{Hosts, Namespace, Subsystem};
use nvmf::{Nqn, Target};

use super::differ::differences;
use super::message::{Answer, List, ListedController, ListedNamespace, ListedSubsystem, Request};
use crate::config::{Len, OfferedNamespace, Opener, check_size, namespace_of, uuid_text};
use crate::store::{Health, Store, Stores};

/// How long the memory of a removed namespace is kept, because data in it may have to be retransmitted.
const LINGER: Duration = Duration::from_secs(60);
/// How long the removal of a namespace waits until no core and no command uses its file.
const LET_GO: Duration = Duration::from_secs(10);

/// Executes requests to a running target.
#[derive(Debug)]
pub struct Control {
    target: Target,
    stores: Arc<Stores>,
    opener: Opener,
    /// The name of the configuration file.
    file: String,
    /// The subsystems as configured by the file.
    configured: Vec<Subsystem>,
    /// Storage of removed namespaces that cannot be dropped yet, and when it was added here. The data of Reads are sent from memory until
    /// hosts have acknowledged them; other storage may still be working on commands.
    lingering: Vec<(Instant, Store)>,
    /// Set when the target ends. Its cores then no longer release storage, so the removal of a namespace must not wait for them.
    stop: Arc<AtomicBool>,
}

impl Control {
    /// For a target and its storage, which were built from the configuration `file`.
    pub fn new(target: Target, stores: Arc<Stores>, opener: Opener, file: &str) -> Self {
        let configured = target.subsystems();
        let (file, lingering, stop) = (file.into(), Vec::new(), Arc::default());
        Self { target, stores, opener, file, configured, lingering, stop }
    }
    /// The current differences from the configuration file, a sentence each.
    fn differences(&self) -> Vec<String> {
        differences(&self.file, &self.configured, &self.target.subsystems(), &self.stores.table())
    }

    /// The flag to set when the target ends.
    pub(super) fn stop(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.stop)
    }
    /// Executes a request.
    pub fn handle(&mut self, request: Request) -> Answer {
        self.tidy();
        let done = match request {
            Request::List => return Answer::List(self.list()),
            Request::AddNamespace { nqn, namespace } => self.add_namespace(&nqn, namespace),
            Request::RemoveNamespace { nqn, id } => self.remove_namespace(&nqn, id),
            Request::ResizeNamespace { nqn, id, size } => self.resize_namespace(&nqn, id, size),
            Request::OnlineNamespace { nqn, id } => self.online_namespace(&nqn, id),
            Request::AllowHost { nqn, host } => self.allow_host(&nqn, &host),
            Request::DenyHost { nqn, host } => self.deny_host(&nqn, &host),
        };
        match done {
            Ok(done) => {
                tracing::info!("{done}");
                Answer::Done(match self.differences().is_empty() {
                    true => done,
                    false => format!(
                        "{done}; the target now differs from {} (roce-nvmf list says how), and its changes are lost when it ends",
                        self.file
                    ),
                })
            }
            Err(why) => Answer::Refused(why),
        }
    }
    /// Drops storage of removed namespaces that is no longer used. Returns whether some is left: then call this again later.
    pub fn tidy(&mut self) -> bool {
        self.lingering.retain(|(since, store)| {
            let kept = matches!(store, Store::Memory(_)) && since.elapsed() < LINGER;
            kept || !store.is_ours_alone()
        });
        !self.lingering.is_empty()
    }

    fn add_namespace(&mut self, nqn: &str, mut namespace: OfferedNamespace) -> Result<String, String> {
        let nqn = parse(nqn)?;
        namespace.check()?;
        let subsystems = self.target.subsystems();
        let subsystem = subsystems.iter().find(|s| s.nqn == nqn);
        if let (0, Some(subsystem)) = (namespace.nsid, subsystem) {
            let taken = |id| subsystem.namespaces.iter().any(|namespace| namespace.nsid == id);
            namespace.nsid = (1..).find(|&id| !taken(id)).unwrap_or(0);
        }
        let store = self.opener.open(&namespace)?;
        let len = Len::of(&store)?;
        let name = store.to_string();
        let backend = self.stores.add(store);
        let added = namespace_of(&nqn, &namespace, backend, len)
            .and_then(|namespace| self.target.add_namespace(&nqn, namespace).map_err(|e| e.to_string()));
        if let Err(why) = added {
            self.forget(backend);
            return Err(why);
        }
        Ok(format!("namespace {} of {nqn} is added: {name}", namespace.nsid))
    }
    fn remove_namespace(&mut self, nqn: &str, id: u32) -> Result<String, String> {
        let nqn = parse(nqn)?;
        let namespace = self.find(&nqn, id)?;
        self.target.remove_namespace(&nqn, id).map_err(|e| e.to_string())?;
        self.forget(namespace.backend);
        Ok(format!("namespace {id} of {nqn} is removed"))
    }
    /// Removes the storage of a namespace that was removed from the target.
    fn forget(&mut self, backend: nvmf::config::Backend) {
        let Some(store) = self.stores.remove(backend) else { return };
        // Wait, so that others can open the file when this returns, unless its commands take longer than `LET_GO`.
        let since = Instant::now();
        let waits = || since.elapsed() < LET_GO && !self.stop.load(Ordering::Acquire);
        while !matches!(store, Store::Memory(_)) && !store.is_ours_alone() && waits() {
            std::thread::sleep(Duration::from_millis(1));
        }
        // Dropping storage that is still working on commands would block this thread, so `tidy` drops it later.
        if matches!(store, Store::Memory(_)) || !store.is_ours_alone() {
            self.lingering.push((Instant::now(), store));
        }
    }
    fn resize_namespace(&self, nqn: &str, id: u32, size: Option<u64>) -> Result<String, String> {
        let nqn = parse(nqn)?;
        let namespace = self.find(&nqn, id)?;
        let table = self.stores.table();
        let store = table.get(namespace.backend).ok_or("its storage is gone")?;
        let block = 1 << namespace.block_shift;
        if let Some(size) = size {
            check_size(size, block)?;
        }
        let has = match (store, size) {
            (Store::File(file, _), Some(size)) => file.grow(size).map_err(|e| format!("{store}: {e}"))?,
            _ => store.size().map_err(|e| format!("{store}: {e}"))?,
        };
        let size = size.unwrap_or(has);
        if size > has {
            return Err(format!(
                "the storage of namespace {id} ({store}) has {has} bytes, and cannot grow to {size}"
            ));
        }
        check_size(size, block)?;
        let blocks = size / block as u64;
        self.target.resize_namespace(&nqn, id, blocks).map_err(|e| e.to_string())?;
        if let Store::File(file, _) = store {
            file.serve(size);
        }
        Ok(format!("namespace {id} of {nqn} has {blocks} blocks of {block} bytes now"))
    }
    /// Clears the failure of a namespace: the administrator confirms that its data are as they should be.
    fn online_namespace(&self, nqn: &str, id: u32) -> Result<String, String> {
        let nqn = parse(nqn)?;
        let namespace = self.find(&nqn, id)?;
        let table = self.stores.table();
        let store = table.get(namespace.backend).ok_or("its storage is gone")?;
        let failed = store.health().and_then(|health| Some((health, health.why()?)));
        let Some((health, was)) = failed else {
            return Err(format!("namespace {id} of {nqn} has not failed"));
        };
        let (has, needs) =
            (store.size().map_err(|e| format!("{store}: {e}"))?, namespace.blocks << namespace.block_shift);
        if has < needs {
            return Err(format!(
                "{store} has {has} of {needs} bytes: make it as long as it was, or the namespace as long as it is (namespace resize)"
            ));
        }
        health.restore();
        self.target.set_online(&nqn, id).map_err(|e| e.to_string())?;
        Ok(format!("namespace {id} of {nqn} is served again; it had failed: {was}"))
    }
    fn allow_host(&self, nqn: &str, host: &str) -> Result<String, String> {
        let (nqn, host) = (parse(nqn)?, parse(host)?);
        if self.is_open_to_all(&nqn) {
            return Ok(format!("every host may use {nqn} already"));
        }
        self.target.allow_host(&nqn, host.clone()).map_err(|e| e.to_string())?;
        Ok(format!("{host} may use {nqn}"))
    }
    fn deny_host(&self, nqn: &str, host: &str) -> Result<String, String> {
        let (nqn, host) = (parse(nqn)?, parse(host)?);
        if self.is_open_to_all(&nqn) {
            return Err(format!(
                "every host may use {nqn}: its configuration has no list of hosts to take one from"
            ));
        }
        self.target.disallow_host(&nqn, &host).map_err(|e| e.to_string())?;
        Ok(format!("{host} may not use {nqn} any more"))
    }

    fn is_open_to_all(&self, nqn: &Nqn) -> bool {
        self.target.subsystems().iter().any(|s| s.nqn == *nqn && s.hosts == Hosts::Any)
    }
    fn find(&self, nqn: &Nqn, id: u32) -> Result<Namespace, String> {
        let subsystem = self.target.subsystems().into_iter().find(|s| s.nqn == *nqn);
        let subsystem = subsystem.ok_or_else(|| format!("there is no subsystem {nqn}"))?;
        let namespace = subsystem.namespaces.into_iter().find(|namespace| namespace.nsid == id);
        namespace.ok_or_else(|| format!("{nqn} has no namespace {id}"))
    }

    fn list(&self) -> List {
        let table = self.stores.table();
        let file = |namespace: &Namespace| match table.get(namespace.backend) {
            Some(Store::File(file, _)) => Some(file.path().to_owned()),
            _ => None,
        };
        let namespace = |namespace: &Namespace| ListedNamespace {
            id: namespace.nsid,
            file: file(namespace),
            size: namespace.blocks << namespace.block_shift,
            block: 1 << namespace.block_shift,
            uuid: uuid_text(&namespace.uuid),
            read_only: namespace.read_only,
            failed: table.get(namespace.backend).and_then(Store::health).and_then(Health::why),
        };
        let name = |nqn: &Nqn| nqn.to_string();
        let subsystems = self.target.subsystems().into_iter().map(|subsystem| ListedSubsystem {
            nqn: name(&subsystem.nqn),
            serial: subsystem.serial.to_string(),
            hosts: match &subsystem.hosts {
                Hosts::Any => None,
                Hosts::Listed(hosts) => Some(hosts.iter().map(name).collect()),
            },
            namespaces: subsystem.namespaces.iter().map(namespace).collect(),
        });
        let controllers = self.target.connected().into_iter().map(|connected| ListedController {
            nqn: name(&connected.host),
            controller: connected.cntlid,
            subsystem: connected.subsystem.as_ref().map(name),
        });
        let (subsystems, controllers) = (subsystems.collect(), controllers.collect());
        List { pid: std::process::id(), subsystems, controllers, differs: self.differences() }
    }
}

fn parse(nqn: &str) -> Result<Nqn, String> {
    nqn.parse().map_err(|e| format!("{nqn:?} is no name of a host or subsystem: {e}"))
}

impl Drop for Control {
    /// Logs the changes that are lost when the target ends.
    fn drop(&mut self) {
        for differs in self.differences() {
            tracing::warn!("a change ends with the target: {differs}");
        }
    }
}
