//! Two connected queue pairs, and a few functions to script and check what happens to them.

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

/// The node that the stories call A; it sends requests as a rule.
pub const A: usize = 0;
/// The other node.
pub const B: usize = 1;

/// The packets that a step is about.
pub type Which = Box<dyn Fn(&Seen) -> bool>;

/// Packets with this opcode.
pub fn opcode(opcode: Opcode) -> Which {
    Box::new(move |s| s.opcode == opcode)
}

/// NAKs with this code.
pub fn nak(code: NakCode) -> Which {
    Box::new(move |s| s.opcode == Opcode::RC_ACKNOWLEDGE && s.aeth().syndrome == code as u8)
}

/// RNR NAKs.
pub fn rnr_nak() -> Which {
    Box::new(|s| s.opcode == Opcode::RC_ACKNOWLEDGE && s.aeth().syndrome >> 5 == 1)
}

/// Positive acknowledgements.
pub fn acks() -> Which {
    Box::new(|s| s.opcode == Opcode::RC_ACKNOWLEDGE && s.aeth().syndrome >> 5 == 0)
}

/// Any packet.
pub fn any() -> Which {
    Box::new(|_| true)
}

/// A world of two nodes with one connection between them.
#[derive(Debug)]
pub struct Story {
    /// The world.
    pub world: World,
    /// Both ends of the connection.
    pub ends: [Endpoint; 2],
    /// On each node, 64 KiB with every right.
    pub mrs: [MrId; 2],
    shown: [usize; 2],
    cqes: [Vec<Cqe>; 2],
    next_id: u64,
}

impl Story {
    /// The set-up of the conformance cases, with some things changed.
    pub fn with(change: impl FnOnce(&mut QpConfig)) -> Self {
        Self::of(1, change)
    }

    /// The same on nodes with several shards.
    pub fn of(shards: usize, change: impl FnOnce(&mut QpConfig)) -> Self {
        Self::on(NodeConfig { shards, ..NodeConfig::default() }, change)
    }

    /// The same on other nodes.
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

    /// A piece of a node's region.
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

    /// A request of a node, from the start of its region to offset 32768 of the other's.
    pub fn wr(&mut self, node: usize, opcode: WrOpcode, len: usize) -> SendWr {
        self.next_id += 1;
        let remote = self.world.nodes[1 - node].mr(self.mrs[1 - node]);
        let (va, key) = (remote.va(1 << 15), remote.key);
        SendWr::new(self.next_id, opcode).sges(&[self.sge(node, 0, len)]).remote(va, key)
    }

    /// Posts [`Story::wr`].
    pub fn post(&mut self, node: usize, opcode: WrOpcode, len: usize) -> u64 {
        let wr = self.wr(node, opcode, len);
        self.post_wr(node, &wr)
    }

    /// Posts a request.
    pub fn post_wr(&mut self, node: usize, wr: &SendWr) -> u64 {
        let posted = self.world.nodes[node].post_send(self.ends[node].qp, wr);
        assert_eq!(posted, Ok(()), "the request is good and the queue has room");
        wr.wr_id
    }

    /// Posts `n` receives of 4096 bytes, at offset 32768 of the node's region.
    pub fn receives(&mut self, node: usize, n: u64) {
        for id in 0..n {
            let sge = self.sge(node, 1 << 15, 4096);
            let posted = self.world.nodes[node].post_recv(self.ends[node].qp, id, &[sge]);
            assert_eq!(posted, Ok(()), "the queue has room");
        }
    }

    /// The `nth` packet (from 1) of those that a node sends from now on has this fate.
    pub fn fate(&mut self, from: usize, which: Which, nth: u32, fate: Fate) {
        let mut seen = 0;
        self.world.link(from, 1 - from).rule = Some(Box::new(move |s| {
            seen += u32::from(which(s));
            if which(s) && seen == nth { fate } else { Fate::Pass }
        }));
    }

    /// The `nth` such packet is lost.
    pub fn drop_nth(&mut self, from: usize, which: Which, nth: u32) {
        self.fate(from, which, nth, Fate::Drop);
    }

    /// Every such packet is lost.
    pub fn drop_all(&mut self, from: usize, which: Which) {
        self.world.link(from, 1 - from).rule =
            Some(Box::new(move |s| if which(s) { Fate::Drop } else { Fate::Pass }));
    }

    /// No more faults.
    pub fn heal(&mut self) {
        self.world.heal();
    }

    /// Lets time pass.
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

    /// The packets that a node sent since the last call include one of each kind, in this order.
    ///
    /// # Panics
    /// If not.
    #[track_caller]
    pub fn expect(&mut self, node: usize, whiches: &[Which]) {
        let sent = self.sent(node);
        let mut at = 0;
        for (i, which) in whiches.iter().enumerate() {
            match sent[at..].iter().position(which) {
                Some(n) => at += n + 1,
                None => panic!("packet {i} that node {node} should send is not in {sent:?}"),
            }
        }
    }

    /// The oldest completion of a node is this; it is taken.
    ///
    /// # Panics
    /// If not.
    #[track_caller]
    pub fn expect_cqe(&mut self, node: usize, opcode: WcOpcode, status: WcStatus) -> Cqe {
        assert!(!self.cqes[node].is_empty(), "node {node} has no completion");
        let cqe = self.cqes[node].remove(0);
        assert_eq!((cqe.opcode, check::status(&cqe)), (opcode, status), "of node {node}");
        cqe
    }

    /// A node has no more completions.
    ///
    /// # Panics
    /// If it has.
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
