//! Connection managers on a link that loses, duplicates and reorders MADs, in virtual time, all from one seed.

use core::time::Duration;
use std::collections::{BTreeMap, VecDeque};

use super::forger::{Forger, Lie};
use super::rng::Rng;
use stack::cm::mad::Mad;
use stack::cm::{Config, Event, MAD_LEN, Machine, Path, PeerAnswer};
use stack::id::{Gid, Qpn};
use stack::port::fault::{Flight, Link, Plan};
use stack::time::Instant;

/// Number of a host that is not a node; [`MadWorld::gid`] gives its address.
pub const STRANGER: usize = 0xff_fe;

/// The faults of the link for MADs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MadFaults {
    /// Faults and delay of a MAD on its way.
    pub path: Plan,
    /// Rate, per million MADs, at which a third host forges a message about a MAD that it observed, to the MAD's sender or receiver.
    pub lie_ppm: u32,
}

impl MadFaults {
    /// A link without faults.
    pub const NONE: Self =
        Self { path: Plan { delay: Duration::from_micros(10), ..Plan::CLEAN }, lie_ppm: 0 };
}

/// The capacity of a node's queue pair 1.
#[derive(Clone, Copy, Debug)]
pub struct Receives {
    /// Number of posted receives.
    pub depth: usize,
    /// How long the node processes a MAD. Its receive is free afterwards.
    pub each: Duration,
}

/// MADs in the receives of a node, and when it processes the next one.
#[derive(Clone, Default)]
struct Inbox {
    mads: VecDeque<(Path, Vec<u8>)>,
    next: Instant,
}

/// A MAD that a machine sent.
#[derive(Clone, Debug)]
pub struct SentMad {
    /// When it was sent.
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
    /// The decoded MAD.
    ///
    /// # Panics
    /// If it is not a MAD of connection management.
    pub fn mad(&self) -> Mad {
        Mad::decode(&self.bytes).expect("machines send MADs of connection management")
    }
}

/// Connection managers, and the link between them.
pub struct MadWorld {
    /// Virtual time.
    pub now: Instant,
    /// The machines. Node `i` has the address [`MadWorld::gid`].
    pub nodes: Vec<Machine>,
    /// Faults of the link.
    pub faults: MadFaults,
    /// Attribute IDs of MADs to lose, one entry for each MAD.
    pub lose: Vec<u16>,
    /// All MADs that were sent, if recorded.
    pub log: Option<Vec<SentMad>>,
    /// Whether each node is dead: it receives and sends nothing.
    pub dead: Vec<bool>,
    /// Events of each node that the test has not taken yet.
    pub events: Vec<VecDeque<Event>>,
    /// The third host, which observes messages if it may forge some.
    pub forger: Forger,
    /// Whether it forges messages from the address of the node that it imitates. No node can detect that: used to test a checker.
    pub lies_as_peer: bool,
    /// The capacity of each node's queue pair 1. `None`: unlimited, and MADs are processed at once.
    pub receives: Option<Receives>,
    /// MADs that were lost because no receive was free.
    pub no_receive: u64,
    inboxes: Vec<Inbox>,
    link: Link,
    wire: BTreeMap<(Instant, u64), (usize, Path, Vec<u8>)>,
    sent: u64,
    rng: Rng,
}

impl MadWorld {
    /// A world of `nodes` machines. `config` makes the configuration of each from its number.
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

    /// Replaces a machine by a new one, as if the node had lost its state.
    pub fn restart(&mut self, node: usize, config: Config) {
        self.nodes[node] = Machine::new(config);
        self.nodes[node].set_gids(&[Self::gid(node)]);
        self.events[node].clear();
        self.inboxes[node].mads.clear();
    }

    /// Puts a MAD on the link that no machine sent, to arrive at `at`.
    pub fn inject(&mut self, at: Instant, to: usize, path: Path, bytes: Vec<u8>) {
        self.sent += 1;
        self.wire.insert((at, self.sent), (to, path, bytes));
    }

    /// Takes the MADs and events that machines have produced.
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

    /// Whether the peer of a path has a queue pair that is connected to ours.
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
        // The path as the receiver sees it.
        let seen = Path { sgid: path.dgid, dgid: path.sgid, ..path };
        for Flight { at, bytes, .. } in arrive {
            self.inject(at, to, seen, bytes);
        }
    }

    /// Sends a forged message to a node, from the address of no node or of another node.
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

    /// Advances to the time of the next event, if that is not after `end`, and processes it. Returns whether an event was processed.
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

    /// Nodes process the MADs in their receives.
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

    /// Processes all events of the next `time`.
    pub fn run(&mut self, time: Duration) {
        let end = self.now.after(time);
        while self.step(end) {}
        self.now = end;
    }

    /// Takes the next event of a node.
    pub fn event(&mut self, node: usize) -> Option<Event> {
        self.pump();
        self.events[node].pop_front()
    }
}
