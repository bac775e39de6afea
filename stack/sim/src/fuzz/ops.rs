//! Programs of verbs calls on linked pairs of queue pairs, over a link that may lose, repeat and reorder.

use core::time::Duration;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::Input;
use crate::lossy;
use crate::node::{CqId, MrId, Node, NodeConfig, QKEY, QpConfig, QpId, SendWr, SrqId, remote_rights};
use crate::rng::Rng;
use stack::id::{Mtu, QpState, QpType, Qpn};
use stack::mem::{Access, MwType, Sge};
use stack::proto::address::UdAddress;
use stack::proto::attr::GlobalRoute;
use stack::proto::status::{SendFlags, WcStatus, WrOpcode};
use stack::proto::wqe::Cqe;
use stack::time::Instant;

/// Calls of one input.
const OPS: usize = 160;
/// Connections, in turn on the two shards of a node: two of RC, then one each of UC, XRC and UD.
const PAIRS: usize = 5;
/// Service types at either end of each connection.
const TYPES: [[QpType; 2]; PAIRS] =
    [[QpType::Rc; 2], [QpType::Rc; 2], [QpType::Uc; 2], [QpType::XrcIni, QpType::XrcTgt], [QpType::Ud; 2]];
/// Entries of the shared receive queue of a node.
const SRQ_DEPTH: u32 = 16;
/// Regions of a node.
const REGIONS: usize = 2;
const REGION_LEN: usize = 8192;

/// One end of a connection, and its requests.
struct End {
    qp: QpId,
    qpn: Qpn,
    /// Send requests of this life without a completion: tag, and whether success makes one.
    sends: VecDeque<(u64, bool)>,
    /// Receive requests of this life without a completion.
    receives: VecDeque<u64>,
}

/// The shared receive queue of the XRC target.
struct Shared {
    srq: SrqId,
    /// Entries without a completion.
    entries: VecDeque<u64>,
    /// Entries that a queue pair took along when it was reset or destroyed, at most: the one that it held, and those whose
    /// completions were not polled.
    lost: usize,
}

/// Two nodes, and the link between them.
struct Pairs {
    now: Instant,
    nodes: [Node; 2],
    cqs: [CqId; 2],
    regions: [[Option<MrId>; REGIONS]; 2],
    /// A window of each node.
    windows: [u32; 2],
    shared: Shared,
    ends: [[Option<End>; PAIRS]; 2],
    /// Tags that have completed, ever.
    completed: BTreeSet<u64>,
    next_tag: u64,
    /// The fate of the frames that leave next: 1 lost, 2 twice, 3 behind the next one.
    fate: VecDeque<u8>,
    held: [Option<Vec<u8>>; 2],
}

/// Runs a program.
///
/// # Panics
/// If a request completes twice, out of order, or in a life that is over; if anything is left in a queue pair in
/// ERR; if a buffer is lost; if memory beside a region is written.
pub fn qp_ops(data: &[u8]) {
    let mut input = Input(data);
    let mut w = Pairs::new();
    for pair in 0..PAIRS {
        w.create(pair, input.u8());
    }
    for _ in 0..OPS {
        if input.is_empty() {
            break;
        }
        let op = input.u8();
        let (node, pair) = (usize::from(op >> 7), input.below(PAIRS));
        match op % 16 {
            0..=3 => w.send(node, pair, &mut input),
            4..=5 => w.receive(node, pair, &mut input),
            6 => {
                w.modify(node, pair, input.pick(&[QpState::Err, QpState::Reset, QpState::Sqd, QpState::Rts]))
            }
            7 => w.poll(node),
            8 => w.destroy(node, pair),
            9 => {
                w.destroy(0, pair);
                w.destroy(1, pair);
                w.create(pair, input.u8());
            }
            10 => w.reregister(node, input.below(REGIONS)),
            11 => w.reconnect(pair),
            12 => w.fate.extend(input.take(4).iter().map(|b| b % 4)),
            13 => w.turn(node, input.below(2)),
            14 => w.wait(Duration::from_nanos(1 << (input.u8() % 28))),
            _ => w.quiesce(),
        }
    }
    w.end();
}

impl Pairs {
    fn new() -> Self {
        let now = Instant::from_nanos(1_000_000);
        let mut nodes = [0, 1].map(|index| {
            let config = NodeConfig {
                index,
                shards: 2,
                mtu: Mtu::Mtu1024,
                buffers: 96,
                qps_per_shard: 4,
                ..NodeConfig::default()
            };
            Node::new(config, now, Rng::new(u64::from(index)))
        });
        let cqs = [0, 1].map(|i: usize| nodes[i].create_cq(4096));
        let regions =
            [0, 1].map(|i: usize| core::array::from_fn(|_| Some(nodes[i].register(REGION_LEN, rights()))));
        let windows = [0, 1].map(|i: usize| nodes[i].alloc_window(MwType::Two));
        let srq = nodes[1].create_srq(SRQ_DEPTH, cqs[1]);
        Self {
            now,
            nodes,
            cqs,
            regions,
            windows,
            shared: Shared { srq, entries: VecDeque::new(), lost: 0 },
            ends: [const { [const { None }; PAIRS] }; 2],
            completed: BTreeSet::new(),
            next_tag: 0,
            fate: VecDeque::new(),
            held: [None, None],
        }
    }

    fn create(&mut self, pair: usize, setup: u8) {
        let config = QpConfig {
            ty: QpType::Rc,
            send_depth: 16,
            recv_depth: 16,
            timeout: [8, 1, 14, 0][usize::from(setup & 3)],
            retry_cnt: setup >> 2 & 7,
            rnr_retry: if setup & 0x20 != 0 { 7 } else { 1 },
            sq_sig_all: setup & 0x40 != 0,
            sq_psn: 0xff_fff0,
            rq_psn: 0xff_fff0,
            max_rd_atomic: 2,
            max_dest_rd_atomic: if setup & 0x80 != 0 { 1 } else { 4 },
            access: remote_rights() | Access::FLUSH_GLOBAL,
            ..QpConfig::default()
        };
        for node in [0, 1] {
            let config = QpConfig { ty: TYPES[pair][node], ..config };
            let qp = self.nodes[node].create_qp(pair % 2, config, self.cqs[node], self.cqs[node]);
            let qpn = self.nodes[node].qp(qp).qpn;
            let end = End { qp, qpn, sends: VecDeque::new(), receives: VecDeque::new() };
            self.ends[node][pair] = Some(end);
        }
        self.reconnect(pair);
    }

    /// Leads both ends to RTS where both are in RESET.
    fn reconnect(&mut self, pair: usize) {
        let [Some(a), Some(b)] = [0, 1].map(|n: usize| self.ends[n][pair].as_ref().map(|e| (e.qp, e.qpn)))
        else {
            return;
        };
        let reset = |node: &Node, qp| node.state(qp) == QpState::Reset;
        if !reset(&self.nodes[0], a.0) || !reset(&self.nodes[1], b.0) {
            return;
        }
        let gids = [self.nodes[0].gid, self.nodes[1].gid];
        for (node, (qp, _), (_, peer)) in [(0, a, b), (1, b, a)] {
            let n = &mut self.nodes[node];
            n.to_init(self.now, qp);
            n.to_rtr(self.now, qp, gids[1 - node], peer);
            n.to_rts(self.now, qp);
        }
    }

    fn send(&mut self, node: usize, pair: usize, input: &mut Input<'_>) {
        let kind = input.pick(&[
            WrOpcode::Send,
            WrOpcode::RdmaWrite,
            WrOpcode::RdmaRead,
            WrOpcode::SendWithImm,
            WrOpcode::RdmaWriteWithImm,
            WrOpcode::AtomicFetchAndAdd,
            WrOpcode::AtomicCmpAndSwp,
            WrOpcode::Send,
            WrOpcode::SendWithInv,
            WrOpcode::AtomicWrite,
            WrOpcode::Flush,
            WrOpcode::BindMw,
            WrOpcode::LocalInv,
        ]);
        let (len, bits) = (input.below(3000), input.u8());
        let (Some(local), Some(remote)) =
            (self.regions[node][0], self.regions[1 - node][usize::from(bits & 1)])
        else {
            return;
        };
        let ty = TYPES[pair][node];
        let allowed = match ty {
            QpType::Uc | QpType::Ud => lossy::kinds(ty).contains(&kind),
            _ => true,
        };
        if !allowed {
            return; // verbs refuses it
        }
        let tag = self.tag();
        let peer = self.ends[1 - node][pair].as_ref().map_or(Qpn::new(1 << 20), |end| end.qpn);
        let sge = self.nodes[node].mr(local).sge(usize::from(bits), len);
        let target = self.nodes[1 - node].mr(remote);
        // Now and then a key that is wrong, or a range that is too long.
        let (va, key) = match bits >> 1 & 15 {
            0 => (target.va(REGION_LEN - 8), target.key),
            1 => (target.va(0), target.key ^ 1),
            _ => (target.va(8), target.key),
        };
        let wr = SendWr::new(tag, kind).remote(va, key).operands(1, 2);
        let wr = match kind {
            WrOpcode::AtomicFetchAndAdd | WrOpcode::AtomicCmpAndSwp | WrOpcode::AtomicWrite => {
                wr.sges(&[Sge { length: 8, ..sge }])
            }
            // Of a range of the region; the placement may be an unknown one.
            WrOpcode::Flush => wr.operands(u64::from(bits & 3), len as u64),
            WrOpcode::BindMw => {
                self.windows[node] = self.windows[node] & !0xff | u32::from(bits);
                let region = self.nodes[node].mr(local);
                let rights = Access::REMOTE_WRITE | Access::REMOTE_READ;
                SendWr::bind(tag, self.windows[node], region.key, (region.addr(), len as u64), rights)
            }
            WrOpcode::LocalInv => wr.remote(0, self.windows[node]),
            WrOpcode::RdmaRead => wr.sges(&[sge]),
            _ if bits & 0x20 != 0 => wr.inline(&[9; 64]),
            _ => wr.sges(&[sge]),
        };
        let mut wr = if bits & 0x40 != 0 { wr.unsignaled() } else { wr };
        wr.inv = self.windows[1 - node];
        wr.srqn = self.nodes[1].srqn(self.shared.srq) + u32::from(bits >> 1 & 15 == 2);
        if ty == QpType::Ud {
            let dgid = self.nodes[1 - node].gid;
            let grh = GlobalRoute { dgid, sgid_index: 1, ..GlobalRoute::default() };
            wr.address = Some(UdAddress::new(&grh, self.nodes[node].source(), 0).to(peer, QKEY));
        }
        let wr = if bits & 0x80 != 0 { wr.with(SendFlags::FENCE) } else { wr };
        let Some(end) = &mut self.ends[node][pair] else { return };
        let all = self.nodes[node].qp(end.qp).config.sq_sig_all;
        if self.nodes[node].post_send(end.qp, &wr).is_ok() {
            end.sends.push_back((tag, all || wr.flags.contains(SendFlags::SIGNALED)));
        }
    }

    fn receive(&mut self, node: usize, pair: usize, input: &mut Input<'_>) {
        let (Some(mr), len) = (self.regions[node][1], input.below(4096)) else { return };
        let tag = self.tag();
        let sge = self.nodes[node].mr(mr).sge(0, len);
        if TYPES[pair][node] == QpType::XrcTgt {
            if self.nodes[node].post_srq_recv(self.shared.srq, tag, &[sge]).is_ok() {
                self.shared.entries.push_back(tag);
            }
            return;
        }
        let Some(end) = &mut self.ends[node][pair] else { return };
        if self.nodes[node].post_recv(end.qp, tag, &[sge]).is_ok() {
            end.receives.push_back(tag);
        }
    }

    fn tag(&mut self) -> u64 {
        self.next_tag += 1;
        self.next_tag
    }

    fn modify(&mut self, node: usize, pair: usize, to: QpState) {
        let Some(end) = &mut self.ends[node][pair] else { return };
        let before = self.nodes[node].state(end.qp);
        match self.nodes[node].modify_state(self.now, end.qp, to) {
            Ok(()) if to == QpState::Reset => {
                end.sends.clear();
                end.receives.clear();
                self.target_gone(node, pair);
            }
            Ok(()) => {}
            Err(_) => assert_eq!(self.nodes[node].state(end.qp), before, "refused"),
        }
    }

    fn destroy(&mut self, node: usize, pair: usize) {
        if let Some(end) = self.ends[node][pair].take() {
            self.nodes[node].destroy(end.qp);
            self.target_gone(node, pair);
        }
    }

    /// The entries that an XRC target took from the shared queue, and that were not polled, are gone with its life.
    fn target_gone(&mut self, node: usize, pair: usize) {
        if TYPES[pair][node] == QpType::XrcTgt {
            let waiting = self.nodes[node].srq_waiting(self.shared.srq) as usize;
            self.shared.lost = self.shared.entries.len() - waiting;
        }
    }

    fn reregister(&mut self, node: usize, which: usize) {
        match self.regions[node][which].take() {
            // While a window is bound to it, it stays.
            Some(mr) => {
                if self.nodes[node].try_deregister(mr).is_err() {
                    self.regions[node][which] = Some(mr);
                }
            }
            None => self.regions[node][which] = Some(self.nodes[node].register(REGION_LEN, rights())),
        }
    }

    /// Takes completions, each of which must be due.
    fn poll(&mut self, node: usize) {
        let numbers: BTreeMap<u32, usize> = self.ends[node]
            .iter()
            .enumerate()
            .filter_map(|(i, e)| Some((e.as_ref()?.qpn.get(), i)))
            .collect();
        for cqe in self.nodes[node].poll_cq(self.cqs[node], usize::MAX) {
            let pair = *numbers
                .get(&cqe.qpn.get())
                .unwrap_or_else(|| panic!("{cqe:?} of a queue pair that is gone"));
            let end = self.ends[node][pair].as_mut().expect("it has a number");
            if TYPES[pair][node] == QpType::XrcTgt {
                self.shared.complete(&cqe);
            } else {
                complete(end, &cqe);
            }
            assert!(self.completed.insert(cqe.wr_id), "{} completes twice", cqe.wr_id);
        }
    }

    /// One turn of a shard.
    fn turn(&mut self, node: usize, shard: usize) {
        self.nodes[node].turn(shard, self.now);
        while let Some(frame) = self.nodes[node].wires[shard].take() {
            let bytes = frame.data().to_vec();
            drop(frame);
            let peer = &self.nodes[1 - node].wires[shard];
            match self.fate.pop_front() {
                Some(1) => continue,
                Some(2) => drop(peer.deliver(&bytes)),
                Some(3) if self.held[node].is_none() => {
                    self.held[node] = Some(bytes);
                    continue;
                }
                _ => {}
            }
            peer.deliver(&bytes);
            if let Some(late) = self.held[node].take() {
                peer.deliver(&late);
            }
        }
    }

    /// Turns everything until nothing moves at this instant.
    fn quiesce(&mut self) {
        for _ in 0..2000 {
            for (node, shard) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
                self.turn(node, shard);
            }
            let now = self.now;
            let waiting = |n: &Node| n.wires.iter().any(|w| w.waiting() > 0);
            let due = |n: &Node| n.next_deadline().is_some_and(|at| at <= now);
            if !self.nodes.iter().any(|n| waiting(n) || due(n)) {
                return;
            }
        }
        panic!("two nodes never come to rest");
    }

    /// Lets time pass, from deadline to deadline.
    fn wait(&mut self, time: Duration) {
        let end = self.now.after(time);
        self.quiesce();
        // A connection with endless retries may have very many deadlines: some are enough.
        for _ in 0..64 {
            let next = self.nodes.iter().filter_map(Node::next_deadline).min();
            let Some(next) = next.filter(|next| *next <= end) else { break };
            self.now = next.max(self.now.after_nanos(1));
            self.quiesce();
            self.poll(0);
            self.poll(1);
        }
        self.now = self.now.max(end);
        self.quiesce();
    }

    /// Everything ends: ERR flushes every request, and every buffer is back.
    fn end(&mut self) {
        self.fate.clear();
        self.quiesce();
        for node in [0, 1] {
            for pair in 0..PAIRS {
                self.modify(node, pair, QpState::Err);
            }
        }
        self.quiesce();
        for node in [0, 1] {
            self.poll(node);
            if node == 1 {
                let Shared { srq, entries, lost } = &self.shared;
                let waiting = self.nodes[1].srq_waiting(*srq) as usize;
                let taken = entries.len() - waiting;
                assert!(taken <= *lost, "{taken} entries did not complete, {lost} may be lost");
            }
            for pair in 0..PAIRS {
                let Some(end) = &self.ends[node][pair] else { continue };
                if self.nodes[node].state(end.qp) == QpState::Err {
                    let sends: Vec<_> = end.sends.iter().filter(|(_, signalled)| *signalled).collect();
                    assert!(sends.is_empty(), "sends that ERR did not flush: {sends:?}");
                    assert!(end.receives.is_empty(), "receives that ERR did not flush: {:?}", end.receives);
                }
                self.destroy(node, pair);
            }
            let n = &self.nodes[node];
            assert!(n.regions().iter().all(|r| r.guards_intact()), "something was written beside a region");
            let out: usize = n.wires.iter().map(|w| w.buffers_out()).sum();
            // A shard keeps one spare frame.
            assert!(out <= n.config.shards, "{out} buffers are missing");
            assert!(n.shards(|s| s.qps() + s.connected_qps()).all(|left| left == 0));
        }
    }
}

/// Every right that a peer can have, and windows.
fn rights() -> Access {
    remote_rights() | Access::FLUSH_GLOBAL | Access::MW_BIND
}

impl Shared {
    /// Takes a completion off those due: the oldest entry, but for those that ended with a queue pair.
    fn complete(&mut self, cqe: &Cqe) {
        loop {
            let oldest = self.entries.pop_front();
            if oldest == Some(cqe.wr_id) {
                return;
            }
            assert!(oldest.is_some() && self.lost > 0, "entries complete in order: {cqe:?}");
            self.lost -= 1;
        }
    }
}

/// Takes a completion off those due.
fn complete(end: &mut End, cqe: &Cqe) {
    let status = cqe.status;
    if cqe.opcode.is_recv() {
        assert_eq!(end.receives.pop_front(), Some(cqe.wr_id), "receives complete in order: {cqe:?}");
        return;
    }
    loop {
        let Some((tag, signalled)) = end.sends.pop_front() else { panic!("{cqe:?} is not due") };
        if tag == cqe.wr_id {
            assert!(signalled || status != WcStatus::Success, "nobody asked for {cqe:?}");
            return;
        }
        assert!(!signalled, "{tag} is due before {cqe:?}");
    }
}
