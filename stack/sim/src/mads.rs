//! Connection managers on a link that loses, duplicates and reorders MADs: all of them on one seed, in virtual time.

use core::time::Duration;
use std::collections::{BTreeMap, VecDeque};

use super::forger::{Forger, Lie};
use super::rng::Rng;
use stack::cm::mad::Mad;
use stack::cm::{Config, Event, MAD_LEN, Machine, Path, PeerAnswer};
use stack::id::{Gid, Qpn};
use stack::port::fault::{Flight, Link, Plan};
use stack::time::Instant;

/// The number of a host that is no node: [`MadWorld::gid`] has its address.
pub const STRANGER: usize = 0xff_fe;

/// The faults of the link for MADs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MadFaults {
    /// What may happen to a MAD on its way.
    pub path: Plan,
    /// How often, in a million MADs, a third host forges a message about one that it observed, to its sender or receiver.
    pub lie_ppm: u32,
}

impl MadFaults {
    /// A link without faults.
    pub const NONE: Self =
        Self { path: Plan { delay: Duration::from_micros(10), ..Plan::CLEAN }, lie_ppm: 0 };
}

/// What the queue pair 1 of a node takes.
#[derive(Clone, Copy, Debug)]
pub struct Receives {
    /// Its receives.
    pub depth: usize,
    /// How long the node takes for a MAD, whose receive is free afterwards.
    pub each: Duration,
}

/// MADs in receives of a node, and when it takes the next one.
#[derive(Clone, Default)]
struct Inbox {
    mads: VecDeque<(Path, Vec<u8>)>,
    next: Instant,
}

/// A MAD that a machine sent.
#[derive(Clone, Debug)]
pub struct SentMad {
    /// When.
    pub at: Instant,
    /// The sender.
    pub from: usize,
    /// Its path.
    pub path: Path,
    /// Its bytes.
    pub bytes: [u8; MAD_LEN],
    /// Whether the link lost it.
    pub lost: bool,
}

impl SentMad {
    /// Its fields.
    ///
    /// # Panics
    /// If it is no MAD of connection management.
    pub fn mad(&self) -> Mad {
        Mad::decode(&self.bytes).expect("machines send MADs of connection management")
    }
}

/// Machines, and the link between them.
pub struct MadWorld {
    /// Now.
    pub now: Instant,
    /// The machines. Node `i` has the address [`MadWorld::gid`].
    pub nodes: Vec<Machine>,
    /// Faults of the link.
    pub faults: MadFaults,
    /// Attributes of MADs that are lost, one MAD an entry.
    pub lose: Vec<u16>,
    /// Everything that was sent, if kept.
    pub log: Option<Vec<SentMad>>,
    /// Nodes that receive and send nothing.
    pub dead: Vec<bool>,
    /// Events of each node that were not taken yet.
    pub events: Vec<VecDeque<Event>>,
    /// The third host, which observes messages while it may forge some.
    pub forger: Forger,
    /// It forges from the address of the node that it imitates. No node can withstand that: for the test of a checker.
    pub lies_as_peer: bool,
    /// What a node's queue pair 1 takes. `None`: everything, at once.
    pub receives: Option<Receives>,
    /// MADs that a node lost because no receive was free.
    pub no_receive: u64,
    inboxes: Vec<Inbox>,
    link: Link,
    wire: BTreeMap<(Instant, u64), (usize, Path, Vec<u8>)>,
    sent: u64,
    rng: Rng,
}

impl MadWorld {
    /// So many machines, the configuration of each made by `config` from its number.
    pub fn new(seed: u64, nodes: usize, faults: MadFaults, config: impl Fn(usize) -> Config) -> Self {
        let mut rng = Rng::new(seed);
        let mut world = Self {
            now: Instant::ZERO,
            nodes: Vec::new(),
            faults,
            lose: Vec::new(),
            log: Some(Vec::new()),
            dead: vec![false; nodes],
            events: vec![VecDeque::new(); nodes],
            forger: Forger::new(seed),
            lies_as_peer: false,
            receives: None,
            no_receive: 0,
            inboxes: vec![Inbox::default(); nodes],
            link: Link::new(rng.fork(0)),
            wire: BTreeMap::new(),
            sent: 0,
            rng,
        };
        for i in 0..nodes {
            let mut machine = Machine::new(config(i));
            machine.set_gids(&[Self::gid(i)]);
            world.nodes.push(machine);
        }
        world
    }

    /// The address of a node.
    pub fn gid(node: usize) -> Gid {
        Gid::v4([10, 0, (node >> 8) as u8, node as u8 + 1])
    }

    /// The path from one node to another.
    pub fn path(from: usize, to: usize) -> Path {
        Path { sgid: Self::gid(from), dgid: Self::gid(to), hop_limit: 64, ..Path::default() }
    }

    /// A new machine in the place of an old one: the node lost its state.
    pub fn restart(&mut self, node: usize, config: Config) {
        self.nodes[node] = Machine::new(config);
        self.nodes[node].set_gids(&[Self::gid(node)]);
        self.events[node].clear();
        self.inboxes[node].mads.clear();
    }

    /// Puts a MAD on the link that no machine sent.
    pub fn inject(&mut self, at: Instant, to: usize, path: Path, bytes: Vec<u8>) {
        self.sent += 1;
        self.wire.insert((at, self.sent), (to, path, bytes));
    }

    /// Takes MADs and events of the machines.
    pub fn pump(&mut self) {
        for from in 0..self.nodes.len() {
            while let Some(send) = self.nodes[from].poll_send() {
                self.carry(from, send.path, send.mad);
            }
            while let Some(event) = self.nodes[from].poll_event() {
                match event {
                    Event::CheckPeer { id, path, qpn, remote_qpn } => {
                        let answer = match self.answers(&path, qpn, remote_qpn) {
                            true => PeerAnswer::Answered,
                            false => PeerAnswer::Silent,
                        };
                        self.nodes[from].peer_checked(self.now, id, answer);
                    }
                    event => self.events[from].push_back(event),
                }
            }
        }
    }

    /// Whether the peer at the other end of a path has a queue pair that answers ours.
    fn answers(&self, path: &Path, qpn: Qpn, remote: Qpn) -> bool {
        let peer = (0..self.nodes.len()).find(|node| Self::gid(*node) == path.dgid && !self.dead[*node]);
        peer.is_some_and(|peer| self.nodes[peer].is_connected(remote, &path.sgid, qpn))
    }

    fn carry(&mut self, from: usize, path: Path, bytes: [u8; MAD_LEN]) {
        let attribute = u16::from_be_bytes([bytes[16], bytes[17]]);
        let chosen =
            self.lose.iter().position(|a| *a == attribute).map(|i| self.lose.swap_remove(i)).is_some();
        let to = (0..self.nodes.len()).find(|n| Self::gid(*n) == path.dgid);
        let dead = self.dead[from] || to.is_none_or(|to| self.dead[to]);
        let mut arrive = Vec::<Flight>::new();
        if !chosen && !dead {
            self.link.carry(&self.faults.path, self.now, &bytes, |_| {}, &mut arrive);
        }
        let lost = arrive.is_empty();
        if let Some(log) = &mut self.log {
            log.push(SentMad { at: self.now, from, path, bytes, lost });
        }
        if let Some(to) = to.filter(|_| self.faults.lie_ppm > 0) {
            self.forger.observe(
                from,
                to,
                Mad::decode(&bytes).expect("machines send MADs of connection management"),
            );
            if self.rng.ppm(self.faults.lie_ppm) {
                self.lie();
            }
        }
        let Some(to) = to else { return };
        // From the receiver's side.
        let seen = Path { sgid: path.dgid, dgid: path.sgid, ..path };
        for Flight { at, bytes, .. } in arrive {
            self.inject(at, to, seen, bytes);
        }
    }

    /// A forged message goes to a node, from an address that no node has, or that another one has.
    fn lie(&mut self) {
        let Some(Lie { to, peer, mad }) = self.forger.lie() else { return };
        let others: Vec<usize> =
            (0..self.nodes.len()).filter(|n| *n != to && *n != peer).chain([STRANGER]).collect();
        let source = if self.lies_as_peer { peer } else { self.rng.pick(&others) };
        let Plan { delay, jitter, .. } = self.faults.path;
        let delay = self.rng.below((delay + jitter).as_nanos() as u64 * 2 + 1);
        self.inject(self.now.after_nanos(delay), to, Self::path(to, source), mad.encode().to_vec());
    }

    /// The time of the next event.
    pub fn next(&self) -> Option<Instant> {
        let timers = self.nodes.iter().zip(&self.dead).filter(|(_, dead)| !**dead);
        let timers = timers.filter_map(|(n, _)| n.next_timer());
        let taken = self.inboxes.iter().filter(|inbox| !inbox.mads.is_empty()).map(|inbox| inbox.next);
        self.wire.keys().next().map(|(at, _)| *at).into_iter().chain(timers).chain(taken).min()
    }

    /// Goes to the time of the next event, if that is not after `end`, and processes it.
    pub fn step(&mut self, end: Instant) -> bool {
        self.pump();
        let Some(next) = self.next().filter(|at| *at <= end) else { return false };
        self.now = self.now.max(next);
        while let Some(entry) = self.wire.first_entry().filter(|e| e.key().0 <= self.now) {
            let (to, path, bytes) = entry.remove();
            if !self.dead[to] {
                self.arrive(to, path, bytes);
            }
        }
        self.take();
        for (node, dead) in self.nodes.iter_mut().zip(&self.dead) {
            if !dead {
                node.poll_timers(self.now);
            }
        }
        self.pump();
        true
    }

    fn arrive(&mut self, to: usize, path: Path, bytes: Vec<u8>) {
        let Some(Receives { depth, each }) = self.receives else {
            return self.nodes[to].handle_mad(self.now, &path, &bytes);
        };
        let Inbox { mads, next } = &mut self.inboxes[to];
        if mads.len() >= depth {
            self.no_receive += 1;
            return;
        }
        if mads.is_empty() {
            *next = self.now.after(each);
        }
        mads.push_back((path, bytes));
    }

    /// Nodes take what is in their receives.
    fn take(&mut self) {
        let Some(Receives { each, .. }) = self.receives else { return };
        for (node, Inbox { mads, next }) in self.inboxes.iter_mut().enumerate() {
            if *next <= self.now
                && let Some((path, bytes)) = mads.pop_front()
            {
                *next = self.now.after(each);
                self.nodes[node].handle_mad(self.now, &path, &bytes);
            }
        }
    }

    /// Processes all events within `time` from now.
    pub fn run(&mut self, time: Duration) {
        let end = self.now.after(time);
        while self.step(end) {}
        self.now = end;
    }

    /// The next event of a node.
    pub fn event(&mut self, node: usize) -> Option<Event> {
        self.pump();
        self.events[node].pop_front()
    }
}
