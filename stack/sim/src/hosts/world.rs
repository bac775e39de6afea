//! Hosts, the network between them, and time.

use core::time::Duration;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::host::{Host, Pid, Shared, Weather};
use super::port::HostPort;
use crate::check::Check;
use crate::link::{Conditions, Fired, SimLink};
use crate::manager::Manager;
use crate::node::{Node, NodeConfig};
use crate::rng::Rng;
use stack::cm::Config;
use stack::id::Mtu;
use stack::port::fault::Flight;
use stack::port::sorting::Outgoing;
use stack::registry::RegistryError;
use stack::time::Instant;

/// Time that a turn takes when there is more work.
const TURN: Duration = Duration::from_nanos(200);
/// The longest time between two turns.
const LONGEST: Duration = Duration::from_millis(5);
/// Path MTU of the network.
pub const NETWORK_MTU: Mtu = Mtu::Mtu1024;

/// A process, by its number in the world: how many were started before it.
pub type Process = usize;

/// What the world has of a process.
struct Place {
    host: usize,
    pid: Pid,
    manager: Option<Manager>,
}

/// A frame between hosts: when it arrives, its number, to which host, and its bytes.
type OnTheWay = (Instant, u64, usize, Vec<u8>);

/// Several hosts.
pub struct World {
    /// Virtual time.
    pub now: Instant,
    /// The hosts.
    pub hosts: Vec<Shared>,
    /// The devices of all processes that were ever started. Of those that have ended nothing runs, and their memory is as they left it.
    pub nodes: Vec<Node>,
    /// Faults of the network that happened.
    pub fired: Fired,
    /// A trace for people, if it is kept.
    pub trace: Option<Vec<String>>,
    places: Vec<Place>,
    links: Vec<SimLink>,
    flights: BinaryHeap<Reverse<OnTheWay>>,
    sent: u64,
    rng: Rng,
}

impl World {
    /// So many hosts, without processes. The network between them behaves like this.
    pub fn new(seed: u64, hosts: usize, weather: Weather, conditions: Conditions) -> Self {
        let mut rng = Rng::new(seed);
        let now = Instant::from_nanos(1_000_000);
        let shared = |host: usize| Shared::new(host as u8 + 1, weather, now, rng.fork(host as u64));
        let shared = (0..hosts).map(shared).collect();
        let link = |at| SimLink::new(conditions, rng.fork(100 + at));
        Self {
            now,
            links: (0..(hosts * hosts) as u64).map(link).collect(),
            hosts: shared,
            nodes: Vec::new(),
            fired: Fired::default(),
            trace: None,
            places: Vec::new(),
            flights: BinaryHeap::new(),
            sent: 0,
            rng,
        }
    }

    /// Puts a note into the trace.
    pub fn note(&mut self, text: impl FnOnce() -> String) {
        if let Some(trace) = &mut self.trace {
            trace.push(format!("[{:?}] {}", self.now, text()));
        }
    }

    /// Starts a process on a host: a device with so many shards, and a connection manager with this configuration.
    ///
    /// # Errors
    /// All processes that could let it join are stopped.
    pub fn start(
        &mut self,
        host: usize,
        shards: usize,
        config: impl FnOnce(Config) -> Config,
    ) -> Result<Process, RegistryError> {
        let (shared, now) = (self.hosts[host].clone(), self.now);
        let pid = shared.lock().start(shards)?;
        let process = self.nodes.len();
        let node = NodeConfig { index: process as u8, shards, qps_per_shard: 64, ..NodeConfig::default() };
        let port = HostPort::new(shared.clone(), pid, shards, node.buffers, NETWORK_MTU);
        let mut node = Node::on_host(node, Box::new(port), now, self.rng.fork(process as u64));
        let (ids, birth) = {
            let host = shared.lock();
            let member = host.member(pid).expect("it has joined");
            (member.runs()[0].communication_ids(), member.birth())
        };
        let common = Config {
            ca_guid: birth as u64,
            seed: self.rng.next(),
            ids,
            mtu: NETWORK_MTU,
            ..Config::default()
        };
        let manager = Manager::of(&mut node, process, now, config(common));
        {
            let mut host = shared.lock();
            host.member(pid).expect("it has joined").serve_cm(true);
            host.announce();
        }
        self.nodes.push(node);
        self.places.push(Place { host, pid, manager: Some(manager) });
        self.note(|| format!("process {process} starts as {pid} on host {host}"));
        Ok(process)
    }

    /// Ends a process: by itself, or at once.
    pub fn end(&mut self, process: Process, by_itself: bool) {
        self.note(|| format!("process {process} {}", if by_itself { "ends" } else { "is killed" }));
        self.places[process].manager = None;
        let pid = self.places[process].pid;
        self.with_host(process, |host| host.end(pid, by_itself));
    }

    /// Stops a process, or has it go on.
    pub fn stop(&mut self, process: Process, is_stopped: bool) {
        self.note(|| format!("process {process} {}", if is_stopped { "stops" } else { "goes on" }));
        let pid = self.places[process].pid;
        self.with_host(process, |host| host.stop(pid, is_stopped));
    }

    /// Calls something with the host of a process.
    pub fn with_host<R>(&self, process: Process, call: impl FnOnce(&mut Host) -> R) -> R {
        call(&mut self.hosts[self.places[process].host].lock())
    }

    /// The host of a process.
    pub fn host_of(&self, process: Process) -> usize {
        self.places[process].host
    }

    /// The number of a process on its host.
    pub fn pid_of(&self, process: Process) -> Pid {
        self.places[process].pid
    }

    /// Whether a process lives.
    pub fn is_alive(&self, process: Process) -> bool {
        self.places[process].manager.is_some()
    }

    /// Whether it is stopped.
    pub fn is_stopped(&self, process: Process) -> bool {
        let pid = self.places[process].pid;
        self.with_host(process, |host| host.processes[pid].is_stopped)
    }

    /// Whether it lives and is not stopped.
    pub fn runs(&self, process: Process) -> bool {
        self.is_alive(process) && !self.is_stopped(process)
    }

    /// The connection manager of a process that lives.
    pub fn manager(&mut self, process: Process) -> &mut Manager {
        self.places[process].manager.as_mut().expect("the process lives")
    }

    /// The processes that live, of one host or of all.
    pub fn alive(&self, host: Option<usize>) -> Vec<Process> {
        let of = |process: &usize| host.is_none_or(|host| self.places[*process].host == host);
        (0..self.nodes.len()).filter(of).filter(|process| self.is_alive(*process)).collect()
    }

    /// The network loses nothing from now on, and the kernels steer as they were told.
    pub fn heal(&mut self) {
        self.links.iter_mut().for_each(SimLink::heal);
        for host in &self.hosts {
            host.lock().weather.steered_wrong_ppm = 0;
        }
    }

    /// One step: what is due arrives, everything that runs has a turn, and time goes on to the next event, by `limit` at most.
    ///
    /// # Errors
    /// What a checker of a host saw.
    pub fn step(&mut self, limit: Duration) -> Check {
        let now = self.now;
        for host in &self.hosts {
            host.lock().at(now);
        }
        while self.flights.peek().is_some_and(|Reverse((at, ..))| *at <= now) {
            let Some(Reverse((_, _, to, frame))) = self.flights.pop() else { break };
            self.hosts[to].lock().arrive(&frame);
        }
        let mut busy = self.keep_links();
        let mut next = now.after(limit.min(LONGEST));
        for process in 0..self.nodes.len() {
            if !self.runs(process) {
                continue;
            }
            let node = &mut self.nodes[process];
            for shard in 0..node.config.shards {
                busy |= node.turn(shard, now).more;
            }
            next = next.min(node.next_deadline().unwrap_or(Instant::FAR));
            let manager = self.places[process].manager.as_mut().expect("it lives");
            for qpn in node.take_ended_peers() {
                manager.machine.peer_ended(now, qpn);
            }
            manager.turn_of(node, now);
            next = next.min(manager.machine.next_timer().unwrap_or(Instant::FAR));
        }
        self.carry();
        for process in (0..self.nodes.len()).filter(|process| self.runs(*process)) {
            let pid = self.places[process].pid;
            let (by_links, waits) = self.with_host(process, |host| {
                let queues = &host.processes[pid].queues;
                let due = host.processes[pid].due;
                let waits = queues.iter().any(|queue| !queue.arrived.is_empty());
                host.check_told(pid);
                (host.next_by_links(pid).unwrap_or(Instant::FAR).min(due), waits)
            });
            next = next.min(by_links);
            busy |= waits;
        }
        for host in &self.hosts {
            let mut host = host.lock();
            next = next.min(host.next_meeting().unwrap_or(Instant::FAR));
            if let Some(failure) = host.failure() {
                return Err(failure);
            }
        }
        next = next.min(self.flights.peek().map_or(Instant::FAR, |Reverse((at, ..))| *at));
        let soon = now.after(TURN);
        self.now = if busy { soon } else { next.max(soon) };
        Ok(())
    }

    /// What goes on without a pause, for people.
    pub fn busy(&mut self) -> String {
        let now = self.now;
        let mut busy = Vec::new();
        for process in 0..self.nodes.len() {
            if self.runs(process) {
                let node = &mut self.nodes[process];
                let more = (0..node.config.shards).any(|shard| node.turn(shard, now).more);
                let due = node.next_deadline().map(|at| at.nanos_since(now));
                let timer = self.manager(process).machine.next_timer().map(|at| at.nanos_since(now));
                busy.push(format!("process {process}: {more} {due:?} {timer:?}"));
            }
        }
        busy.join(", ")
    }

    /// The keepers of all links do what is due. Whether something became known that shards may wait for.
    fn keep_links(&self) -> bool {
        let mut news = false;
        for host in &self.hosts {
            let mut host = host.lock();
            news |= host.meet();
            for pid in host.alive() {
                if !host.processes[pid].is_stopped {
                    news |= host.keep(pid);
                }
            }
        }
        news
    }

    /// Frames leave for other hosts.
    fn carry(&mut self) {
        let mut arrivals = Vec::<Flight>::new();
        for from in 0..self.hosts.len() {
            loop {
                let frame = self.hosts[from].lock().outgoing.pop_front();
                let Some(frame) = frame else { break };
                let Some(dst) = Outgoing::of(&frame).map(|out| out.ip.dst) else { continue };
                let has = |to: &usize| self.hosts[*to].lock().addresses.contains(&dst);
                let Some(to) = (0..self.hosts.len()).find(has) else { continue };
                let link = &mut self.links[from * self.hosts.len() + to];
                link.carry(self.now, &frame, &mut self.fired, &mut arrivals);
                for Flight { at, bytes, .. } in arrivals.drain(..) {
                    self.sent += 1;
                    self.flights.push(Reverse((at, self.sent, to, bytes)));
                }
            }
        }
    }
}
