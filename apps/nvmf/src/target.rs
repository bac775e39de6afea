//! A target: the configuration as it is now, and the controllers that hosts have.
//!
//! Handles of one target share it, and so do its queues: any of them may be on a thread of its own. Connecting, admin
//! commands that concern the target, and changes lock it; commands on I/O queues do not.

use core::net::{IpAddr, SocketAddr};
use std::collections::HashSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use crate::association::{Applicant, Association, Life, NoQueue};
use crate::config::{ConfigError, Hosts, Namespace, Port, Ports, Settings, Subsystem, check_blocks};
use crate::counters::Totals;
use crate::fair::{Who, may_have};
use crate::in_flight::{Serving, Unfinished};
use crate::live::{Live, Table};
use crate::nqn::Nqn;
use crate::status::{Fault, Status};
use crate::sync::lock;
use crate::wire::fabrics::{ConnectData, ConnectField};

/// A handle of a target.
#[derive(Clone, Debug)]
pub struct Target(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    settings: Settings,
    /// Changes with what discovery shows.
    generation: AtomicU64,
    state: Mutex<State>,
}

#[derive(Debug)]
pub(crate) struct State {
    pub ports: Vec<Port>,
    pub subsystems: Vec<Served>,
    associations: Vec<Arc<Association>>,
    cntlid_next: u16,
}

/// A subsystem, and who may use it.
#[derive(Debug)]
pub(crate) struct Served {
    pub live: Arc<Live>,
    unfinished: Unfinished,
    pub ports: Ports,
    pub hosts: Hosts,
}

/// A host that is connected.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Connected {
    /// Its controller.
    pub cntlid: u16,
    /// Its name.
    pub host: Nqn,
    /// The subsystem; none for discovery.
    pub subsystem: Option<Nqn>,
}

/// Controllers are numbered 1 to this; larger numbers are reserved.
const CNTLID_MAX: u16 = 0xFFEF;

impl Target {
    /// A target without ports and subsystems.
    ///
    /// # Errors
    /// If a setting is out of range.
    pub fn new(settings: Settings) -> Result<Self, ConfigError> {
        settings.check()?;
        let state =
            State { ports: Vec::new(), subsystems: Vec::new(), associations: Vec::new(), cntlid_next: 1 };
        Ok(Self(Arc::new(Inner { settings, generation: AtomicU64::new(1), state: Mutex::new(state) })))
    }

    /// What holds for all controllers.
    pub fn settings(&self) -> &Settings {
        &self.0.settings
    }

    /// Controllers of subsystems that hosts have now, and discovery controllers.
    pub fn controllers(&self) -> (usize, usize) {
        let state = self.lock();
        let discovery = state.associations.iter().filter(|a| a.live.is_none()).count();
        (state.associations.len() - discovery, discovery)
    }
    /// The hosts that are connected now, in the order in which they came.
    pub fn connected(&self) -> Vec<Connected> {
        let connected = |a: &Arc<Association>| Connected {
            cntlid: a.cntlid,
            host: a.host.clone(),
            subsystem: a.live.as_ref().map(|live| live.nqn.clone()),
        };
        self.lock().associations.iter().map(connected).collect()
    }
    /// The subsystems as they are now.
    pub fn subsystems(&self) -> Vec<Subsystem> {
        let subsystem = |s: &Served| Subsystem {
            nqn: s.live.nqn.clone(),
            serial: s.live.serial,
            ports: s.ports.clone(),
            hosts: s.hosts.clone(),
            namespaces: s.live.snapshot().table.iter().cloned().collect(),
        };
        self.lock().subsystems.iter().map(subsystem).collect()
    }
    /// What the queues of a subsystem did.
    ///
    /// # Errors
    /// If there is no such subsystem.
    pub fn totals(&self, subsystem: &Nqn) -> Result<Totals, ConfigError> {
        Ok(self.lock().served(subsystem)?.live.counters.totals())
    }

    /// Whether a subsystem names its hosts.
    pub fn names_hosts(&self) -> bool {
        self.lock().subsystems.iter().any(|s| !s.hosts.named().is_empty())
    }

    /// Whether the controller of this number has a host at this address that the subsystem names.
    pub(crate) fn is_of_named(&self, cntlid: u16, peer: IpAddr) -> bool {
        self.lock().associations.iter().any(|a| a.cntlid == cntlid && a.named && a.who.address == peer)
    }
    /// Whether there is a controller of this number.
    pub(crate) fn has_controller(&self, cntlid: u16) -> bool {
        self.lock().associations.iter().any(|a| a.cntlid == cntlid)
    }
    pub(crate) fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        lock(&self.0.state)
    }
    pub(crate) fn generation(&self) -> u64 {
        self.0.generation.load(Ordering::Acquire)
    }
}

/// The controller that an I/O queue belongs to.
pub(crate) struct Joined {
    pub association: Arc<Association>,
    pub live: Arc<Live>,
    pub life: Life,
    pub serving: Serving,
}

/// Where a connection came in, and from where.
#[derive(Clone, Copy, Debug)]
pub struct Arrival {
    /// The number of the port.
    pub port: u16,
    /// Our address.
    pub local: SocketAddr,
    /// The host's address.
    pub peer: IpAddr,
}

/// Changes. Hosts that asked for it are told by asynchronous events.
impl Target {
    /// Changes what discovery shows.
    fn change(&self, change: impl FnOnce(&mut State) -> Result<(), ConfigError>) -> Result<(), ConfigError> {
        let mut state = self.lock();
        change(&mut state)?;
        // Under the lock, so that a reader that holds it sees records and generation that belong together.
        self.0.generation.fetch_add(1, Ordering::Release);
        Ok(())
    }

    /// Adds a port.
    ///
    /// # Errors
    /// If one has the number.
    pub fn add_port(&self, port: Port) -> Result<(), ConfigError> {
        self.change(|state| {
            if state.ports.iter().any(|p| p.id == port.id) {
                return Err(ConfigError::PortExists(port.id));
            }
            state.ports.push(port);
            Ok(())
        })
    }
    /// Removes a port. Connections that came through it stay.
    ///
    /// # Errors
    /// If there is none with the number.
    pub fn remove_port(&self, id: u16) -> Result<(), ConfigError> {
        self.change(|state| {
            let at = state.ports.iter().position(|p| p.id == id).ok_or(ConfigError::NoPort(id))?;
            state.ports.remove(at);
            Ok(())
        })
    }
    /// Adds a subsystem.
    ///
    /// # Errors
    /// If its name is taken or a namespace is wrong.
    pub fn add_subsystem(&self, subsystem: Subsystem) -> Result<(), ConfigError> {
        let Subsystem { nqn, serial, ports, hosts, namespaces } = subsystem;
        if nqn.is_discovery() {
            return Err(ConfigError::DiscoveryName);
        }
        if serial.trim().is_empty() || !serial.bytes().all(|b| b.is_ascii_graphic() || b == b' ') {
            return Err(ConfigError::Serial(serial));
        }
        self.change(|state| {
            if state.served(&nqn).is_ok() {
                return Err(ConfigError::SubsystemExists(nqn));
            }
            let mut table = Table::default();
            for namespace in namespaces {
                state.check_new(&table, &namespace)?;
                table.set(namespace);
            }
            state.subsystems.push(Served {
                live: Arc::new(Live::new(nqn, serial, table)),
                unfinished: Unfinished::default(),
                ports,
                hosts,
            });
            Ok(())
        })
    }
    /// Removes a subsystem. Its controllers end.
    ///
    /// # Errors
    /// If there is none with the name.
    pub fn remove_subsystem(&self, nqn: &Nqn) -> Result<(), ConfigError> {
        self.change(|state| {
            state.served(nqn)?;
            state.subsystems.retain(|s| s.live.nqn != *nqn);
            state.end_those(|a| a.live.as_ref().is_some_and(|live| live.nqn == *nqn));
            Ok(())
        })
    }
    /// Sets which hosts may use a subsystem. Controllers of hosts that no longer may are ended.
    ///
    /// # Errors
    /// If there is no such subsystem.
    pub fn set_hosts(&self, nqn: &Nqn, hosts: Hosts) -> Result<(), ConfigError> {
        self.change(|state| {
            state.served_mut(nqn)?.hosts = hosts;
            state.end_disallowed(nqn);
            Ok(())
        })
    }
    /// Allows one more host. Where every host may use the subsystem nothing changes.
    ///
    /// # Errors
    /// If there is no such subsystem.
    pub fn allow_host(&self, nqn: &Nqn, host: Nqn) -> Result<(), ConfigError> {
        self.change(|state| {
            if let Hosts::Listed(list) = &mut state.served_mut(nqn)?.hosts
                && !list.contains(&host)
            {
                list.push(host);
            }
            Ok(())
        })
    }
    /// Takes a host off the list. Its controllers end.
    ///
    /// # Errors
    /// If there is no such subsystem, or the host is not listed.
    pub fn disallow_host(&self, nqn: &Nqn, host: &Nqn) -> Result<(), ConfigError> {
        self.change(|state| {
            match &mut state.served_mut(nqn)?.hosts {
                Hosts::Listed(list) if list.contains(host) => list.retain(|h| h != host),
                _ => return Err(ConfigError::NoHost(host.clone())),
            }
            state.end_disallowed(nqn);
            Ok(())
        })
    }
    /// Adds a namespace.
    ///
    /// # Errors
    /// If there is no such subsystem, or the namespace is wrong.
    pub fn add_namespace(&self, nqn: &Nqn, namespace: Namespace) -> Result<(), ConfigError> {
        let state = self.lock();
        let live = &state.served(nqn)?.live;
        state.check_new(&live.snapshot().table, &namespace)?;
        live.change(|table| table.set(namespace));
        Ok(())
    }
    /// Removes a namespace. Requests to its backend that were given out before may still be under way.
    ///
    /// # Errors
    /// If there is none with the identifier.
    pub fn remove_namespace(&self, nqn: &Nqn, nsid: u32) -> Result<(), ConfigError> {
        let state = self.lock();
        let live = &state.served(nqn)?.live;
        live.snapshot().table.get(nsid).ok_or(ConfigError::NoNamespace(nsid))?;
        live.change(|table| table.remove(nsid));
        live.restore(nsid);
        Ok(())
    }
    /// A namespace that has [lost data](crate::BackendError::Lost) is as it should be. Call it when its storage works again.
    ///
    /// # Errors
    /// If there is none with the identifier.
    pub fn set_online(&self, nqn: &Nqn, nsid: u32) -> Result<(), ConfigError> {
        let state = self.lock();
        let live = &state.served(nqn)?.live;
        live.snapshot().table.get(nsid).ok_or(ConfigError::NoNamespace(nsid))?;
        live.restore(nsid);
        Ok(())
    }
    /// Gives a namespace another size. If it shrinks, requests beyond its new end may still be under way.
    ///
    /// # Errors
    /// If there is none with the identifier, or the size is out of range.
    pub fn resize_namespace(&self, nqn: &Nqn, nsid: u32, blocks: u64) -> Result<(), ConfigError> {
        let state = self.lock();
        let live = &state.served(nqn)?.live;
        let table = live.snapshot().table;
        let mut namespace = table.get(nsid).ok_or(ConfigError::NoNamespace(nsid))?.clone();
        check_blocks(nsid, blocks, namespace.block_shift)?;
        namespace.blocks = blocks;
        live.change(|table| table.set(namespace));
        Ok(())
    }
}

impl State {
    fn served(&self, nqn: &Nqn) -> Result<&Served, ConfigError> {
        self.subsystems.iter().find(|s| s.live.nqn == *nqn).ok_or(ConfigError::NoSubsystem(nqn.clone()))
    }
    fn served_mut(&mut self, nqn: &Nqn) -> Result<&mut Served, ConfigError> {
        self.subsystems.iter_mut().find(|s| s.live.nqn == *nqn).ok_or(ConfigError::NoSubsystem(nqn.clone()))
    }
    /// Whether `namespace` may be added to `table`. The caller holds the lock, so no other one is added in between.
    fn check_new(&self, table: &Table, namespace: &Namespace) -> Result<(), ConfigError> {
        namespace.check()?;
        if table.get(namespace.nsid).is_some() {
            return Err(ConfigError::NamespaceExists(namespace.nsid));
        }
        let same = |other: &Namespace| other.uuid == namespace.uuid || other.nguid == namespace.nguid;
        let elsewhere = |s: &Served| s.live.snapshot().table.iter().any(same);
        if table.iter().any(same) || self.subsystems.iter().any(elsewhere) {
            return Err(ConfigError::SameIdentity(namespace.nsid));
        }
        Ok(())
    }
    fn end_those(&self, which: impl Fn(&Association) -> bool) {
        for association in self.associations.iter().filter(|a| which(a)) {
            association.end();
        }
    }
    fn end_disallowed(&self, nqn: &Nqn) {
        if let Ok(served) = self.served(nqn) {
            self.end_those(|a| {
                a.live.as_ref().is_some_and(|live| live.nqn == *nqn) && !served.hosts.allow(&a.host)
            });
        }
    }
}

/// Hosts come and go.
impl Target {
    /// A controller for the admin queue of a host. None while commands of the host's earlier queues are not over.
    pub(crate) fn connect_admin(
        &self,
        arrival: Arrival,
        named_only: bool,
        data: &ConnectData,
    ) -> Result<Option<Arc<Association>>, Fault> {
        if data.cntlid.get() != ConnectData::ANY_CONTROLLER {
            return Err(ConnectField::ControllerId.into());
        }
        let subsystem = Nqn::of_field(&data.subsystem).map_err(|_| ConnectField::Subsystem)?;
        let host = Nqn::of_field(&data.host).map_err(|_| ConnectField::Host)?;
        let mut state = self.lock();
        let (live, named) = if subsystem.is_discovery() {
            (None, false)
        } else {
            let served = state.served(&subsystem).ok().filter(|s| s.ports.has(arrival.port));
            let served = served.ok_or(ConnectField::Subsystem)?;
            if !served.hosts.allow(&host) {
                return Err(Status::InvalidHost.into());
            }
            if served.unfinished.has(&host, &data.host_id) {
                return Ok(None);
            }
            (Some(Arc::clone(&served.live)), !served.hosts.named().is_empty())
        };
        let settings = self.settings();
        let who = Who::named(arrival.peer, &host, &data.host_id);
        let host = Applicant { host, host_id: data.host_id, who, named };
        let most = if live.is_some() { settings.controllers } else { settings.discovery_controllers };
        if named_only && !named || !state.has_room(live.is_none(), &host, most as usize) {
            return Err(Status::ControllerBusy.into());
        }
        let cntlid = state.free_cntlid().ok_or(Status::ControllerBusy)?;
        let association = Association::new(cntlid, host, live, settings.io_queues);
        let association = Arc::new(association);
        state.associations.push(Arc::clone(&association));
        Ok(Some(association))
    }

    /// The controller that an I/O queue belongs to. None while commands of the host's earlier queues are not over.
    pub(crate) fn connect_io(
        &self,
        qid: u16,
        named_only: bool,
        data: &ConnectData,
    ) -> Result<Option<Joined>, Fault> {
        let subsystem = Nqn::of_field(&data.subsystem).map_err(|_| ConnectField::Subsystem)?;
        let host = Nqn::of_field(&data.host).map_err(|_| ConnectField::Host)?;
        let state = self.lock();
        let served = state.served(&subsystem).map_err(|_| ConnectField::Subsystem)?;
        let live = &served.live;
        let belongs = |a: &&Arc<Association>| {
            a.cntlid == data.cntlid.get() && a.live.as_ref().is_some_and(|its| Arc::ptr_eq(its, live))
        };
        let gone = Fault { status: Status::ControllerUnknown, ..Fault::from(ConnectField::ControllerId) };
        let association = state.associations.iter().find(belongs).ok_or(gone)?;
        if association.host != host {
            return Err(ConnectField::Host.into());
        }
        if association.host_id != data.host_id {
            return Err(ConnectField::HostId.into());
        }
        if named_only && !association.named {
            return Err(Status::ControllerBusy.into());
        }
        let taken = association.take_queue(qid);
        // Checked after `take_queue`: a queue marks its end before it gives its number back.
        if served.unfinished.has(&host, &data.host_id) {
            if let Ok(life) = taken {
                association.give_queue(qid, life);
            }
            return Ok(None);
        }
        match taken {
            Ok(life) => {
                let serving = served.unfinished.begin(association, life);
                let (association, live) = (Arc::clone(association), Arc::clone(live));
                Ok(Some(Joined { association, live, life, serving }))
            }
            Err(NoQueue::Number) => Err(ConnectField::QueueId.into()),
            Err(NoQueue::Sequence) => Err(Status::CommandSequenceError.into()),
        }
    }

    /// The admin queue has ended, and its controller with it.
    pub(crate) fn disconnect(&self, association: &Arc<Association>) {
        association.end();
        self.lock().associations.retain(|a| !Arc::ptr_eq(a, association));
    }
}

impl State {
    /// Whether a host may have one more controller of a kind, of which there may be `most`. Room is kept for one of each host that
    /// a subsystem names, but of half of them at most.
    fn has_room(&self, discovery: bool, host: &Applicant, most: usize) -> bool {
        let (mut all, mut hosts, mut addresses) = (0, 0, 0);
        for association in self.associations.iter().filter(|a| a.live.is_none() == discovery) {
            all += 1;
            hosts += usize::from(association.who == host.who);
            addresses += usize::from(association.who.address == host.who.address);
        }
        let kept = if host.named || discovery { 0 } else { self.named_that_are_away().min(most / 2) };
        may_have(hosts, addresses, most.saturating_sub(all + kept))
    }
    /// Hosts that subsystems name, and that have no controller there.
    fn named_that_are_away(&self) -> usize {
        let here: HashSet<_> = self
            .associations
            .iter()
            .filter(|a| a.named)
            .filter_map(|a| Some((&a.live.as_ref()?.nqn, &a.host)))
            .collect();
        let away =
            |s: &Served| s.hosts.named().iter().filter(|&host| !here.contains(&(&s.live.nqn, host))).count();
        self.subsystems.iter().map(away).sum()
    }
    /// A controller identifier that is free; a used one comes again only after all others.
    fn free_cntlid(&mut self) -> Option<u16> {
        for _ in 0..CNTLID_MAX {
            let cntlid = self.cntlid_next;
            self.cntlid_next = if cntlid == CNTLID_MAX { 1 } else { cntlid + 1 };
            if self.associations.iter().all(|a| a.cntlid != cntlid) {
                return Some(cntlid);
            }
        }
        None
    }
}

impl From<ConnectField> for Fault {
    fn from(field: ConnectField) -> Self {
        Self { status: Status::ConnectInvalid, result: field as u64 }
    }
}
