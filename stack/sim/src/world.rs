//! Nodes, links between them, and virtual time.

use core::fmt::{self, Write as _};
use core::time::Duration;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::path::Path;
use std::rc::Rc;

use pcap_file::DataLink;
use pcap_file::pcap::{PcapHeader, PcapPacket, PcapWriter};

use super::check::{self, Check, Window};
use super::liar::Liar;
use super::link::{Conditions, Fault, Fired, SimLink};
use super::node::{Node, NodeConfig, QpConfig, QpId};
use super::rng::Rng;
use super::seen::Seen;
use stack::id::{Psn, Qpn};
use stack::port::Stalled;
use stack::port::fault::Flight;
use stack::time::Instant;
use stack::wire::{Ingress, Transport, locate};

/// How a port chooses the queue of a frame that it receives.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Steering {
    /// The queue of the shard that owns the destination queue pair.
    ByQpn,
    /// A hash of the destination queue pair number, as receive-side scaling that does not know the shards.
    Hash,
    /// A random queue.
    Random,
}

/// Virtual time of a turn if there is more work.
const TURN: Duration = Duration::from_nanos(200);
/// Interval at which a port checks again whether a peer takes frames, and whether a stopped peer does.
const LOOK: Duration = Duration::from_millis(1);
const STOPPED_LOOK: Duration = Duration::from_millis(100);

/// A trace and all frames, for humans. Kept only on request.
#[derive(Debug, Default)]
pub struct Record {
    lines: Vec<String>,
    frames: Vec<(Instant, Vec<u8>)>,
}

impl Record {
    /// The last `n` lines of the trace.
    pub fn tail(&self, n: usize) -> String {
        let mut out = String::new();
        for line in &self.lines[self.lines.len().saturating_sub(n)..] {
            let _ = writeln!(out, "{line}");
        }
        out
    }

    /// Lines of the trace.
    pub fn lines(&self) -> &[String] {
        &self.lines
    }

    /// Writes the frames to a capture file that Wireshark opens.
    pub fn write_pcap(&self, path: &Path) -> Result<(), String> {
        let file = std::fs::File::create(path).map_err(|e| e.to_string())?;
        let header = PcapHeader {
            datalink: DataLink::ETHERNET,
            ts_resolution: pcap_file::TsResolution::NanoSecond,
            ..PcapHeader::default()
        };
        let mut writer = PcapWriter::with_header(file, header).map_err(|e| e.to_string())?;
        for (at, bytes) in &self.frames {
            let packet = PcapPacket::new(Duration::from_nanos(at.as_nanos()), bytes.len() as u32, bytes);
            writer.write_packet(&packet).map_err(|e| e.to_string())?;
        }
        Ok(())
    }
}

/// A frame in flight. Ordered by arrival; of two that arrive at the same time, the one sent first comes first.
struct FrameInFlight {
    at: Instant,
    number: u64,
    to: usize,
    sent: Instant,
    /// Its decoded content, if it is a packet without faults.
    seen: Option<Rc<Seen>>,
    bytes: Vec<u8>,
}

impl FrameInFlight {
    fn key(&self) -> (Instant, u64) {
        (self.at, self.number)
    }
}

impl PartialEq for FrameInFlight {
    fn eq(&self, other: &Self) -> bool {
        self.key() == other.key()
    }
}

impl Eq for FrameInFlight {}

impl PartialOrd for FrameInFlight {
    fn partial_cmp(&self, other: &Self) -> Option<core::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for FrameInFlight {
    fn cmp(&self, other: &Self) -> core::cmp::Ordering {
        self.key().cmp(&other.key())
    }
}

/// Several nodes and every link between them.
pub struct World {
    /// Virtual time.
    pub now: Instant,
    /// The nodes.
    pub nodes: Vec<Node>,
    /// How ports choose queues.
    pub steering: Steering,
    /// Counts of the faults that happened.
    pub fired: Fired,
    /// Number of frames delivered to each node.
    pub delivered: Vec<u64>,
    /// Number of frames taken from each node.
    pub taken: Vec<u64>,
    /// Number of frames that found no buffer on arrival.
    pub overrun: u64,
    /// A trace and the frames, if they are recorded.
    pub record: Option<Record>,
    /// Every packet that a node sent, with the index of the node, if recorded.
    pub tap: Option<Vec<(usize, Seen)>>,
    /// Number of frames with datagrams delivered to each queue pair of a node, by the message number in their first eight bytes.
    pub datagrams: BTreeMap<(usize, Qpn, u64), u64>,
    /// A host that claims the addresses of nodes, if any.
    pub liar: Option<Liar>,
    /// A node whose thread is preempted in its next turn, after it has read the clock, and for how long.
    pub interrupt: Option<(usize, Duration)>,
    /// A node whose process is stopped: it has no turns, and frames that arrive wait for it.
    pub stopped: Option<usize>,
    links: Vec<SimLink>,
    flights: BinaryHeap<Reverse<FrameInFlight>>,
    sent: u64,
    squeezed: Vec<Vec<Instant>>,
    window: Window,
    /// The peer's queue pair number of each queue pair.
    peers: BTreeMap<(usize, Qpn), Qpn>,
    /// When the current life of each queue pair began.
    born: BTreeMap<(usize, Qpn), Instant>,
    rng: Rng,
}

impl fmt::Debug for World {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("World").field("now", &self.now).field("nodes", &self.nodes).finish_non_exhaustive()
    }
}

impl World {
    /// Nodes of these configurations, linked without faults.
    pub fn new(seed: u64, configs: Vec<NodeConfig>) -> Self {
        let mut rng = Rng::new(seed);
        let now = Instant::from_nanos(1_000_000);
        let n = configs.len();
        let nodes: Vec<Node> =
            configs.into_iter().enumerate().map(|(i, c)| Node::new(c, now, rng.fork(i as u64))).collect();
        let links = (0..n * n).map(|i| SimLink::new(Conditions::CLEAN, rng.fork(100 + i as u64))).collect();
        Self {
            now,
            steering: Steering::ByQpn,
            fired: Fired::default(),
            delivered: vec![0; n],
            taken: vec![0; n],
            overrun: 0,
            record: None,
            tap: None,
            datagrams: BTreeMap::new(),
            liar: None,
            interrupt: None,
            stopped: None,
            links,
            flights: BinaryHeap::new(),
            sent: 0,
            squeezed: nodes.iter().map(|node| vec![Instant::ZERO; node.wires.len()]).collect(),
            window: Window::default(),
            peers: BTreeMap::new(),
            born: BTreeMap::new(),
            nodes,
            rng,
        }
    }

    /// Two nodes with one shard each.
    pub fn pair(seed: u64) -> Self {
        Self::new(seed, (0..2).map(|index| NodeConfig { index, ..NodeConfig::default() }).collect())
    }

    /// The link from one node to another.
    pub fn link(&mut self, from: usize, to: usize) -> &mut SimLink {
        let n = self.nodes.len();
        &mut self.links[from * n + to]
    }

    /// Ends all faults of links and ports. Frames in flight arrive.
    pub fn heal(&mut self) {
        self.links.iter_mut().for_each(SimLink::heal);
        for wire in self.nodes.iter().flat_map(|n| &n.wires) {
            wire.limit_tx(None);
            wire.starve(false);
        }
    }

    /// Adds a note to the trace, if one is recorded.
    pub fn note(&mut self, node: usize, text: impl FnOnce() -> String) {
        if let Some(record) = &mut self.record {
            record.lines.push(format!("[{:?} node {node}] {}", self.now, text()));
        }
    }

    /// Connects two queue pairs, through INIT and RTR to RTS, and waits until they have resolved each other's address.
    pub fn connect(&mut self, a: (usize, QpId), b: (usize, QpId)) {
        self.link_up(a, b);
        self.run_for(Duration::from_micros(100));
    }

    /// Connects two queue pairs in RESET to each other and brings them to RTS; both may be the same. Drops state of an earlier life of
    /// their numbers.
    pub fn link_up(&mut self, a: (usize, QpId), b: (usize, QpId)) {
        let both = [(a, b), (b, a)];
        for &(one, other) in if a == b { &both[..1] } else { &both[..] } {
            let (gid, qpn) = (self.nodes[other.0].gid, self.nodes[other.0].qp(other.1).qpn);
            let now = self.now;
            let node = &mut self.nodes[one.0];
            node.to_init(now, one.1);
            node.to_rtr(now, one.1, gid, qpn);
            node.to_rts(now, one.1);
            let own = node.qp(one.1).qpn;
            self.peers.insert((one.0, own), qpn);
            self.born.insert((one.0, own), now);
            self.window.begin(one.0, qpn, Psn::new(node.qp(one.1).config.sq_psn));
        }
    }

    /// Registers with the checkers a connection that was made without [`link_up`](Self::link_up): `a` sends requests to `b`, from this PSN
    /// on.
    pub fn note_connection(&mut self, a: (usize, Qpn), b: (usize, Qpn), first: Psn) {
        for (one, other) in [(a, b), (b, a)] {
            self.peers.insert(one, other.1);
            self.born.insert(one, self.now);
        }
        self.window.begin(a.0, b.1, first);
    }

    /// Creates a queue pair on each of two nodes, with one completion queue each, and connects them.
    pub fn connected(&mut self, config: QpConfig) -> [Endpoint; 2] {
        let ends = [0, 1].map(|node| {
            let cq = self.nodes[node].create_cq(4096);
            Endpoint { node, qp: self.nodes[node].create_qp(0, config, cq, cq), cq }
        });
        self.connect((ends[0].node, ends[0].qp), (ends[1].node, ends[1].qp));
        ends
    }

    /// Makes one step: frames that are due arrive, each shard has a turn, and time advances to the next event. Returns the new time; `None`
    /// if there is no next event.
    pub fn step(&mut self) -> Result<Option<Instant>, String> {
        self.step_within(Duration::MAX)
    }

    /// Same as [`step`](Self::step), but time advances by at most `limit`.
    pub fn step_within(&mut self, limit: Duration) -> Result<Option<Instant>, String> {
        self.deliver();
        self.squeeze();
        let mut busy = false;
        self.look_for_stalls();
        let stopped = self.stopped;
        for node in (0..self.nodes.len()).filter(|node| Some(*node) != stopped) {
            for shard in 0..self.nodes[node].config.shards {
                let clock = self.now;
                if let Some((_, long)) = self.interrupt.take_if(|(who, _)| *who == node) {
                    self.now = self.now.after(long);
                    self.deliver();
                }
                let turn = self.nodes[node].turn(shard, clock);
                busy |= turn.more;
                self.collect(node, shard)?;
                let waits = self.nodes[node].wires[shard].waiting() > 0;
                busy |= waits && !self.nodes[node].is_dead(shard);
            }
        }
        let running = self.nodes.iter().enumerate().filter(|(node, _)| Some(*node) != stopped);
        let deadlines = running.filter_map(|(_, node)| node.next_deadline());
        let arrival = self.flights.peek().map(|Reverse(f)| f.at);
        let stalls = self.squeezed.iter().flatten().copied().filter(|until| *until != Instant::ZERO);
        let next = deadlines.chain(arrival).chain(stalls).min();
        let soon = self.now.after(TURN);
        let next = if busy { Some(next.map_or(soon, |n| n.min(soon))) } else { next };
        let next = next.map(|n| n.max(soon));
        let latest = self.now.after(limit);
        let next = if limit == Duration::MAX { next } else { Some(next.map_or(latest, |n| n.min(latest))) };
        if let Some(next) = next {
            self.now = next;
        }
        Ok(next)
    }

    /// Steps for `time`, or until no event is left; then time is at the end of it.
    ///
    /// # Panics
    /// If a checker reports an error.
    pub fn run_for(&mut self, time: Duration) {
        let end = self.now.after(time);
        loop {
            match self.step() {
                Err(e) => panic!("{e}"),
                Ok(Some(now)) if now <= end => {}
                Ok(_) => break,
            }
        }
        self.now = end;
    }

    /// Steps until `done` returns true. Returns `false` if that does not happen within `time`.
    ///
    /// # Panics
    /// If a checker reports an error.
    pub fn run_until(&mut self, time: Duration, mut done: impl FnMut(&mut Self) -> bool) -> bool {
        let end = self.now.after(time);
        while !done(self) {
            match self.step() {
                Err(e) => panic!("{e}"),
                Ok(Some(now)) if now <= end => {}
                Ok(_) => return done(self),
            }
        }
        true
    }

    fn deliver(&mut self) {
        while self.flights.peek().is_some_and(|Reverse(f)| f.at <= self.now) {
            let Some(Reverse(FrameInFlight { to, sent, seen, bytes, .. })) = self.flights.pop() else {
                break;
            };
            let queue = self.steer(to, &bytes);
            if let Some(seen) = seen {
                if seen.transport() == Transport::Ud
                    && let Some(number) = seen.payload.first_chunk()
                {
                    *self.datagrams.entry((to, seen.dqpn, u64::from_le_bytes(*number))).or_default() += 1;
                }
                let life = (to, seen.dqpn);
                let stale = self.born.get(&life).is_some_and(|born| sent < *born);
                self.note(to, || format!("got  {seen:?}{}", if stale { " of an earlier life" } else { "" }));
                if stale {
                    self.fired.count(Fault::EarlierLife);
                } else if let Some(peer) = self.peers.get(&life) {
                    self.window.delivered(to, *peer, &seen);
                }
            } else {
                self.note(to, || format!("got  {} bytes that are no sound packet", bytes.len()));
            }
            if self.nodes[to].wires[queue].deliver(&bytes) {
                self.delivered[to] += 1;
            } else {
                self.overrun += 1;
                self.note(to, || "no buffer for it".into());
            }
        }
    }

    fn steer(&mut self, to: usize, bytes: &[u8]) -> usize {
        let queues = self.nodes[to].wires.len();
        if queues == 1 {
            return 0;
        }
        let dqpn = match locate(bytes) {
            Ok(Ingress::Roce(layout)) => layout.dqpn,
            _ => return 0,
        };
        match self.steering {
            Steering::ByQpn => self.nodes[to].shared.shard_of(dqpn).min(queues - 1),
            Steering::Hash => (dqpn.get().wrapping_mul(0x9e37_79b9) >> 16) as usize % queues,
            Steering::Random => self.rng.below(queues as u64) as usize,
        }
    }

    /// Ports that detect stalls learn whether frames wait for a stopped peer.
    fn look_for_stalls(&mut self) {
        let waits = |node: usize| self.nodes[node].wires.iter().any(|wire| wire.waiting() > 0);
        let stalled = match self.stopped {
            Some(node) if waits(node) => Stalled::Yes(STOPPED_LOOK),
            _ if (0..self.nodes.len()).any(waits) => Stalled::Perhaps(LOOK),
            _ => Stalled::No,
        };
        for node in self.nodes.iter().filter(|node| node.config.sees_stalls) {
            node.wires.iter().for_each(|wire| wire.stall(stalled));
        }
    }

    /// Begins and ends faults of ports.
    fn squeeze(&mut self) {
        let n = self.nodes.len();
        for node in 0..n {
            let conditions = self.links[node * n + (node + 1) % n].conditions;
            for (shard, until) in self.squeezed[node].iter_mut().enumerate() {
                let wire = &self.nodes[node].wires[shard];
                if *until != Instant::ZERO && *until <= self.now {
                    *until = Instant::ZERO;
                    wire.limit_tx(None);
                    wire.starve(false);
                }
                if *until != Instant::ZERO {
                    continue;
                }
                for fault in [Fault::TxFull, Fault::NoBuffer] {
                    if self.rng.ppm(conditions.rate(fault)) {
                        self.fired.count(fault);
                        *until = self.now.after(conditions.stall);
                        match fault {
                            Fault::TxFull => wire.limit_tx(Some(self.rng.below(3) as usize)),
                            _ => wire.starve(true),
                        }
                        break;
                    }
                }
            }
        }
    }

    /// Puts the frames that a shard sent onto the links.
    fn collect(&mut self, node: usize, shard: usize) -> Check {
        let n = self.nodes.len();
        let mut arrivals = Vec::new();
        while let Some(frame) = self.nodes[node].wires[shard].take() {
            let bytes = frame.data().to_vec();
            drop(frame);
            self.taken[node] += 1;
            let seen = Seen::decode(self.now, &bytes).map(Rc::new);
            if let Some(seen) = &seen {
                self.note(node, || format!("sent {seen:?}"));
                check::dst_mac(&self.nodes, &bytes).map_err(|e| format!("node {node}: {e}"))?;
                self.window.sent(node, seen).map_err(|e| format!("node {node}: {e}"))?;
                if let Some(tap) = &mut self.tap {
                    tap.push((node, Seen::clone(seen)));
                }
            } else if matches!(locate(&bytes), Ok(Ingress::Roce(_)) | Err(_)) {
                return Err(format!("node {node} sent a packet that is not sound"));
            }
            if let Some(record) = &mut self.record {
                record.frames.push((self.now, bytes.clone()));
            }
            if seen.is_none()
                && let Some(answer) = self.liar.as_mut().and_then(|liar| liar.answer(self.now, &bytes))
            {
                self.inject(node, answer);
            }
            for to in (0..n).filter(|to| *to != node) {
                if bytes[0] & 1 == 0 && bytes[..6] != self.nodes[to].mac.0 {
                    continue;
                }
                let (before, count) = (self.fired, arrivals.len());
                self.links[node * n + to].carry(self.now, &bytes, &mut self.fired, &mut arrivals);
                if self.fired != before || arrivals.len() != count + 1 {
                    let what: Vec<_> = Fault::ALL
                        .iter()
                        .filter(|f| self.fired.get(**f) != before.get(**f))
                        .map(|f| f.name())
                        .collect();
                    self.note(node, || format!("  on the link: {what:?}"));
                }
                for Flight { at, bytes, whole } in arrivals.drain(..) {
                    self.sent += 1;
                    let seen = seen.clone().filter(|_| whole);
                    let due = FrameInFlight { at, number: self.sent, to, sent: self.now, seen, bytes };
                    self.flights.push(Reverse(due));
                }
            }
        }
        Ok(())
    }

    /// The spoofing host sends its claims to each node.
    pub fn lie(&mut self) {
        for node in 0..self.nodes.len() {
            let lies = self.liar.iter().flat_map(|liar| liar.lies(self.now, &self.nodes[node].gid));
            for lie in lies.collect::<Vec<_>>() {
                self.inject(node, lie);
            }
        }
    }

    /// Sends a frame to a node that no node sent. It arrives before any frame that is sent now.
    pub fn inject(&mut self, to: usize, bytes: Vec<u8>) {
        self.sent += 1;
        self.flights.push(Reverse(FrameInFlight {
            at: self.now,
            number: self.sent,
            to,
            sent: self.now,
            seen: None,
            bytes,
        }));
    }

    /// Runs every checker of whole nodes. `at_rest` adds those that require that nothing is in progress.
    pub fn check(&self, at_rest: bool) -> Check {
        for (i, node) in self.nodes.iter().enumerate() {
            check::guards(node)?;
            if at_rest {
                check::no_leak(node)?;
                check::counters(node, self.delivered[i], self.taken[i])?;
            }
        }
        Ok(())
    }

    /// Resets the window checker, as PSNs start anew after RESET.
    pub fn forget_windows(&mut self) {
        self.window = Window::default();
    }

    /// Number of frames in flight.
    pub fn in_flight(&self) -> usize {
        self.flights.len()
    }
}

/// One end of a connection.
#[derive(Clone, Copy, Debug)]
pub struct Endpoint {
    /// Its node.
    pub node: usize,
    /// Its queue pair.
    pub qp: QpId,
    /// The completion queue of both work queues.
    pub cq: super::node::CqId,
}
