//! A target: the current configuration, and the controllers that hosts are connected to.
//!
//! All handles and queues of a target share its state, and each of them may be used on a different thread. Connecting, changes of the
//! configuration, and admin commands that need the target's state lock it. Commands on I/O queues do not.

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

/// A handle to a target. Clones refer to the same target.
#[derive(Clone, Debug)]
pub struct Target(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    settings: Settings,
    /// Changes whenever the discovery log may have changed.
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

/// A subsystem, with the ports and hosts that may use it.
#[derive(Debug)]
pub(crate) struct Served {
    pub live: Arc<Live>,
    unfinished: Unfinished,
    pub ports: Ports,
    pub hosts: Hosts,
}

/// The controller of a connected host. A host may have several.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Connected {
    /// Identifier of the controller.
    pub cntlid: u16,
    /// NQN of the host.
    pub host: Nqn,
    /// NQN of the subsystem; `None` for a discovery controller.
    pub subsystem: Option<Nqn>,
}

/// Controller identifiers are 1 to this; larger numbers are reserved.
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

    /// The settings of all controllers.
    pub fn settings(&self) -> &Settings {
        &self.0.settings
    }

    /// How many I/O controllers and how many discovery controllers exist now.
    pub fn controllers(&self) -> (usize, usize) {
        let state = self.lock();
        let discovery = state.associations.iter().filter(|a| a.live.is_none()).count();
        (state.associations.len() - discovery, discovery)
    }
    /// The controllers that exist now with their hosts, oldest first.
    pub fn connected(&self) -> Vec<Connected> {
        let connected = |a: &Arc<Association>| Connected {
            cntlid: a.cntlid,
            host: a.host.clone(),
            subsystem: a.live.as_ref().map(|live| live.nqn.clone()),
        };
        self.lock().associations.iter().map(connected).collect()
    }
    /// The current subsystems, with their current namespaces.
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
    /// Totals of the commands and bytes of a subsystem's queues, including queues that have ended.
    ///
    /// # Errors
    /// If there is no such subsystem.
    pub fn totals(&self, subsystem: &Nqn) -> Result<Totals, ConfigError> {
        Ok(self.lock().served(subsystem)?.live.counters.totals())
    }

    /// Whether any subsystem has a list of allowed hosts that is not empty.
    pub fn names_hosts(&self) -> bool {
        self.lock().subsystems.iter().any(|s| !s.hosts.named().is_empty())
    }

    /// Whether the controller with this identifier belongs to a host at this address, and its subsystem lists that host.
    pub(crate) fn is_of_named(&self, cntlid: u16, peer: IpAddr) -> bool {
        self.lock().associations.iter().any(|a| a.cntlid == cntlid && a.named && a.who.address == peer)
    }
    /// Whether there is a controller with this identifier.
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

/// The port and the addresses of an incoming connection.
#[derive(Clone, Copy, Debug)]
pub struct Arrival {
    /// The number of the port.
    pub port: u16,
    /// The target's address.
    pub local: SocketAddr,
    /// The host's address.
    pub peer: IpAddr,
}

/// Changes of the configuration. Hosts that have enabled asynchronous events for such a change get one.
impl Target {
    /// Makes a change that may change the discovery log.
    fn change(&self, change: impl FnOnce(&mut State) -> Result<(), ConfigError>) -> Result<(), ConfigError> {
        let mut state = self.lock();
        change(&mut state)?;
        // Under the lock, so that a reader that holds it sees a generation that matches the records.
        self.0.generation.fetch_add(1, Ordering::Release);
        Ok(())
    }

    /// Adds a port.
    ///
    /// # Errors
    /// If there is a port with this number already.
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
    /// If there is no port with this number.
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
    /// If the name is taken or is that of the discovery subsystem, or if the serial number or a namespace is invalid.
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
    /// Removes a subsystem and ends its controllers.
    ///
    /// # Errors
    /// If there is no such subsystem.
    pub fn remove_subsystem(&self, nqn: &Nqn) -> Result<(), ConfigError> {
        self.change(|state| {
            state.served(nqn)?;
            state.subsystems.retain(|s| s.live.nqn != *nqn);
            state.end_those(|a| a.live.as_ref().is_some_and(|live| live.nqn == *nqn));
            Ok(())
        })
    }
    /// Sets which hosts may use a subsystem. Ends the controllers of hosts that may no longer use it.
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
    /// Allows one more host to use a subsystem. Changes nothing if every host may use it.
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
    /// Removes a host from a subsystem's list and ends its controllers there.
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
    /// If there is no such subsystem, or the namespace is invalid.
    pub fn add_namespace(&self, nqn: &Nqn, namespace: Namespace) -> Result<(), ConfigError> {
        let state = self.lock();
        let live = &state.served(nqn)?.live;
        state.check_new(&live.snapshot().table, &namespace)?;
        live.change(|table| table.set(namespace));
        Ok(())
    }
    /// Removes a namespace. The program may still be working on requests that it was given before.
    ///
    /// # Errors
    /// If there is no such subsystem, or no namespace with this identifier.
    pub fn remove_namespace(&self, nqn: &Nqn, nsid: u32) -> Result<(), ConfigError> {
        let state = self.lock();
        let live = &state.served(nqn)?.live;
        live.snapshot().table.get(nsid).ok_or(ConfigError::NoNamespace(nsid))?;
        live.change(|table| table.remove(nsid));
        live.restore(nsid);
        Ok(())
    }
    /// Clears the failure of a namespace that has [lost data](crate::BackendError::Lost). Call it when the storage works again.
    ///
    /// # Errors
    /// If there is no such subsystem, or no namespace with this identifier.
    pub fn set_online(&self, nqn: &Nqn, nsid: u32) -> Result<(), ConfigError> {
        let state = self.lock();
        let live = &state.served(nqn)?.live;
        live.snapshot().table.get(nsid).ok_or(ConfigError::NoNamespace(nsid))?;
        live.restore(nsid);
        Ok(())
    }
    /// Sets the size of a namespace. If it shrinks, requests beyond its new end may still be under way.
    ///
    /// # Errors
    /// If there is no such subsystem, no namespace with this identifier, or the size is out of range.
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
    /// Checks that `namespace` is valid and may be added to `table`. The caller holds the lock, so that no other namespace is added between
    /// the check and the addition.
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

/// Connecting and disconnecting hosts.
impl Target {
    /// Makes a controller for the Connect of an admin queue. `None`: commands of the host's earlier queues are still at the storage. With
    /// `named_only`, only hosts that the subsystem lists may connect.
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

    /// Finds the controller for the Connect of I/O queue `qid`, and adds the queue to it. `None`: commands of the host's earlier queues are
    /// still at the storage. With `named_only`, only hosts that the subsystem lists may connect.
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
        // Checked after `take_queue`, because a queue that ends first marks itself as ended and then frees its number.
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

    /// Ends and removes a controller whose admin queue has ended.
    pub(crate) fn disconnect(&self, association: &Arc<Association>) {
        association.end();
        self.lock().associations.retain(|a| !Arc::ptr_eq(a, association));
    }
}

impl State {
    /// Whether a host may have one more controller of a kind, of which there may be `most`. Of I/O controllers, one is reserved for each
    /// host that a subsystem lists and that is not connected to it, but no more than half of `most`.
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
    /// How many hosts are listed by a subsystem but have no controller of it, summed over all subsystems.
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
    /// Returns an unused controller identifier; `None` if there is none. An identifier is reused only after all others.
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
