//! Two connected queue pairs, and functions to script and check what happens to them.

use core::time::Duration;

use super::check;
use super::link::Fate;
use super::node::{MrId, NodeConfig, QpConfig, SendWr, remote_rights};
use super::seen::Seen;
use super::world::{Endpoint, World};
use stack::id::QpState;
use stack::mem::Sge;
use stack::proto::status::{WcOpcode, WcStatus, WrOpcode};
use stack::proto::tables::NakCode;
use stack::proto::wqe::Cqe;
use stack::wire::Opcode;

/// Index of node A, which usually is the requester.
pub const A: usize = 0;
/// Index of node B, which usually is the responder.
pub const B: usize = 1;

/// Selects packets.
pub type PacketFilter = Box<dyn Fn(&Seen) -> bool>;

/// Packets with this opcode.
pub fn opcode(opcode: Opcode) -> PacketFilter {
    Box::new(move |s| s.opcode == opcode)
}

/// NAKs with this code.
pub fn nak(code: NakCode) -> PacketFilter {
    Box::new(move |s| s.opcode == Opcode::RC_ACKNOWLEDGE && s.aeth().syndrome == code as u8)
}

/// RNR NAKs.
pub fn rnr_nak() -> PacketFilter {
    Box::new(|s| s.opcode == Opcode::RC_ACKNOWLEDGE && s.aeth().syndrome >> 5 == 1)
}

/// Positive acknowledgements.
pub fn acks() -> PacketFilter {
    Box::new(|s| s.opcode == Opcode::RC_ACKNOWLEDGE && s.aeth().syndrome >> 5 == 0)
}

/// Any packet.
pub fn any() -> PacketFilter {
    Box::new(|_| true)
}

/// A world of two nodes with one connection between them.
#[derive(Debug)]
pub struct Story {
    /// The world.
    pub world: World,
    /// Both ends of the connection.
    pub ends: [Endpoint; 2],
    /// A memory region on each node: 64 KiB with all access rights.
    pub mrs: [MrId; 2],
    /// How many packets of each node [`Story::sent`] has returned.
    shown: [usize; 2],
    /// Completions of each node that no step has expected yet.
    cqes: [Vec<Cqe>; 2],
    next_id: u64,
}

impl Story {
    /// The set-up of the conformance cases, with a changed queue pair configuration.
    pub fn with(change: impl FnOnce(&mut QpConfig)) -> Self {
        Self::of(1, change)
    }

    /// Same as [`Story::with`], on nodes with this many shards.
    pub fn of(shards: usize, change: impl FnOnce(&mut QpConfig)) -> Self {
        Self::on(NodeConfig { shards, ..NodeConfig::default() }, change)
    }

    /// Same as [`Story::with`], on two nodes of this configuration (with index 0 and 1).
    pub fn on(node: NodeConfig, change: impl FnOnce(&mut QpConfig)) -> Self {
        let mut config = QpConfig::default();
        change(&mut config);
        let nodes = [0, 1].map(|index| NodeConfig { index, ..node.clone() });
        let mut world = World::new(1, nodes.to_vec());
        let ends = world.connected(config);
        let mrs = [A, B].map(|node| world.nodes[node].register(1 << 16, remote_rights()));
        world.tap = Some(Vec::new());
        Self { world, ends, mrs, shown: [0; 2], cqes: [Vec::new(), Vec::new()], next_id: 0 }
    }

    /// The set-up of the conformance cases.
    pub fn new() -> Self {
        Self::with(|_| ())
    }

    /// A scatter/gather element in a node's region.
    pub fn sge(&self, node: usize, offset: usize, len: usize) -> Sge {
        self.world.nodes[node].mr(self.mrs[node]).sge(offset, len)
    }

    /// Writes into a node's region.
    pub fn put(&self, node: usize, offset: usize, bytes: &[u8]) {
        self.world.nodes[node].mr(self.mrs[node]).write(offset, bytes);
    }

    /// Reads from a node's region.
    pub fn get(&self, node: usize, offset: usize, len: usize) -> Vec<u8> {
        self.world.nodes[node].mr(self.mrs[node]).read(offset, len)
    }

    /// A request of a node, with its region's first `len` bytes as local and offset 32768 of the other region as remote buffer.
    pub fn wr(&mut self, node: usize, opcode: WrOpcode, len: usize) -> SendWr {
        self.next_id += 1;
        let remote = self.world.nodes[1 - node].mr(self.mrs[1 - node]);
        let (va, key) = (remote.va(1 << 15), remote.key);
        SendWr::new(self.next_id, opcode).sges(&[self.sge(node, 0, len)]).remote(va, key)
    }

    /// Posts the request that [`Story::wr`] returns. Returns its id.
    pub fn post(&mut self, node: usize, opcode: WrOpcode, len: usize) -> u64 {
        let wr = self.wr(node, opcode, len);
        self.post_wr(node, &wr)
    }

    /// Posts a request. Returns its id.
    pub fn post_wr(&mut self, node: usize, wr: &SendWr) -> u64 {
        let posted = self.world.nodes[node].post_send(self.ends[node].qp, wr);
        assert_eq!(posted, Ok(()), "the request is good and the queue has room");
        wr.wr_id
    }

    /// Posts `n` receives of 4096 bytes, all at offset 32768 of the node's region.
    pub fn receives(&mut self, node: usize, n: u64) {
        for id in 0..n {
            let sge = self.sge(node, 1 << 15, 4096);
            let posted = self.world.nodes[node].post_recv(self.ends[node].qp, id, &[sge]);
            assert_eq!(posted, Ok(()), "the queue has room");
        }
    }

    /// Sets the fate of the `nth` packet (counted from 1) among those that node `from` sends from now on and that match.
    pub fn fate(&mut self, from: usize, filter: PacketFilter, nth: u32, fate: Fate) {
        let mut seen = 0;
        self.world.link(from, 1 - from).rule = Some(Box::new(move |s| {
            seen += u32::from(filter(s));
            if filter(s) && seen == nth { fate } else { Fate::Pass }
        }));
    }

    /// Drops the `nth` matching packet, as [`Story::fate`].
    pub fn drop_nth(&mut self, from: usize, filter: PacketFilter, nth: u32) {
        self.fate(from, filter, nth, Fate::Drop);
    }

    /// Drops every matching packet that node `from` sends from now on.
    pub fn drop_all(&mut self, from: usize, filter: PacketFilter) {
        self.world.link(from, 1 - from).rule =
            Some(Box::new(move |s| if filter(s) { Fate::Drop } else { Fate::Pass }));
    }

    /// Ends all faults.
    pub fn heal(&mut self) {
        self.world.heal();
    }

    /// Runs the world for `time`, then checks it and collects completions.
    pub fn wait(&mut self, time: Duration) {
        self.world.run_for(time);
        self.world.check(false).expect("every checker is content");
        for node in [A, B] {
            let cqes = self.world.nodes[node].poll_cq(self.ends[node].cq, usize::MAX);
            self.cqes[node].extend(cqes);
        }
    }

    /// The packets that a node sent since the last call.
    pub fn sent(&mut self, node: usize) -> Vec<Seen> {
        let tap = self.world.tap.as_ref().expect("a story taps the links");
        let all: Vec<Seen> = tap.iter().filter(|(from, _)| *from == node).map(|(_, s)| s.clone()).collect();
        let new = all[self.shown[node]..].to_vec();
        self.shown[node] = all.len();
        new
    }

    /// Asserts that the packets that a node sent since the last call include one for each filter, in this order.
    ///
    /// # Panics
    /// If they do not.
    #[track_caller]
    pub fn expect(&mut self, node: usize, expected: &[PacketFilter]) {
        let sent = self.sent(node);
        let mut at = 0;
        for (i, filter) in expected.iter().enumerate() {
            match sent[at..].iter().position(filter) {
                Some(n) => at += n + 1,
                None => panic!("packet {i} that node {node} should send is not in {sent:?}"),
            }
        }
    }

    /// Takes the oldest completion of a node, and asserts its opcode and status.
    ///
    /// # Panics
    /// If they differ, or there is no completion.
    #[track_caller]
    pub fn expect_cqe(&mut self, node: usize, opcode: WcOpcode, status: WcStatus) -> Cqe {
        assert!(!self.cqes[node].is_empty(), "node {node} has no completion");
        let cqe = self.cqes[node].remove(0);
        assert_eq!((cqe.opcode, check::status(&cqe)), (opcode, status), "of node {node}");
        cqe
    }

    /// Asserts that a node has no more completions.
    ///
    /// # Panics
    /// If it has any.
    #[track_caller]
    pub fn expect_no_cqe(&self, node: usize) {
        assert!(self.cqes[node].is_empty(), "node {node} has {:?}", self.cqes[node]);
    }

    /// State of a node's queue pair.
    pub fn state(&self, node: usize) -> QpState {
        self.world.nodes[node].state(self.ends[node].qp)
    }
}

impl Default for Story {
    fn default() -> Self {
        Self::new()
    }
}
