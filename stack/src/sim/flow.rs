//! One direction of a connection: what its program posts, and what every completion must then be.

use std::collections::VecDeque;

use super::check::{self, Arrivals, Check, Completions, FlatMemory, FlatWord, Message, Tally};
use super::layout::{BLANK, GAPS, Layout};
use super::memory::Region;
use super::node::{MrId, Node, QpConfig, QpId, SendWr, remote_rights};
use super::rng::Rng;
use super::swarm::Swarm;
use crate::id::Qpn;
use crate::mem::Access;
use crate::proto::status::{SendFlags, WcFlags, WcOpcode, WcStatus, WrOpcode};
use crate::proto::wqe::Cqe;

/// Words of a flow that its atomics change.
pub const WORDS: usize = 3;

#[derive(Clone, Debug)]
enum Kind {
    Send,
    Write,
    Read { offset: usize },
    Atomic { word: usize },
    Tally,
}

#[derive(Clone, Debug)]
struct Op {
    wr_id: u64,
    kind: Kind,
    /// Where a READ or atomic puts its bytes, in the sink.
    sink: Layout,
}

/// Sizes that all flows of a run share.
#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    /// Bytes of a message at most.
    pub max_len: usize,
    /// Bytes of a buffer with the room around it.
    pub slot: usize,
    /// Bytes that WRITEs and READs go to.
    pub target: usize,
}

impl Sizes {
    /// For messages of at most `max_len` bytes.
    pub fn of(max_len: usize) -> Self {
        Self {
            max_len,
            slot: (max_len + GAPS).next_multiple_of(8),
            target: (2 * max_len + 64).next_multiple_of(8),
        }
    }
}

/// The regions of a flow.
#[derive(Clone, Copy, Debug)]
pub struct Memory {
    /// What is sent, at the sender.
    pub src: MrId,
    /// Where READs and atomics put what comes back, at the sender.
    pub sink: MrId,
    /// What WRITEs, READs and atomics are about, at the receiver.
    pub target: MrId,
    /// Where SENDs go, at the receiver.
    pub recv: MrId,
}

/// A request as drawn: the work request, and what the checkers must know of it.
struct Drawn {
    wr: SendWr,
    kind: Kind,
    sink: Layout,
    offset: usize,
    data: Vec<u8>,
}

/// One direction of a connection.
#[derive(Debug)]
pub struct Flow {
    /// The sending node.
    pub from: usize,
    /// The receiving node; both may be one.
    pub to: usize,
    /// The sending queue pair.
    pub qp: QpId,
    /// The receiving queue pair; both may be one.
    pub peer: QpId,
    /// Its number.
    pub qpn: Qpn,
    /// Its peer's number.
    pub peer_qpn: Qpn,
    /// Its queues.
    pub config: QpConfig,
    /// Its regions.
    pub mrs: Memory,
    /// Requests posted in all lives.
    pub posted: u64,
    /// The send queue.
    pub sends: Completions,
    /// The receive queue of the peer.
    pub receives: Completions,
    /// Messages.
    pub arrivals: Arrivals,
    receives_posted: u64,
    buffers: VecDeque<(u64, Layout)>,
    free: Vec<usize>,
    ops: VecDeque<Op>,
    memory: FlatMemory,
    words: Vec<FlatWord>,
    /// Regions at the receiver that the sender may invalidate, ready to be registered again.
    victims: Vec<MrId>,
    /// Those whose invalidation is under way, oldest first.
    doomed: VecDeque<MrId>,
    sizes: Sizes,
}

impl Flow {
    /// A flow between two queue pairs of these nodes, with memory of its own.
    pub fn new(
        nodes: &mut [Node],
        (from, qp): (usize, QpId),
        (to, peer): (usize, QpId),
        run: &Swarm,
    ) -> Self {
        let sizes = Sizes::of(run.max_len);
        let config = nodes[from].qp(qp).config;
        let none = MrId(usize::MAX);
        Self {
            from,
            to,
            qp,
            peer,
            qpn: nodes[from].qp(qp).qpn,
            peer_qpn: nodes[to].qp(peer).qpn,
            config,
            mrs: Memory { src: none, sink: none, target: none, recv: none },
            posted: 0,
            sends: Completions::default(),
            receives: Completions::default(),
            arrivals: Arrivals::default(),
            receives_posted: 0,
            buffers: VecDeque::new(),
            free: Vec::new(),
            ops: VecDeque::new(),
            memory: FlatMemory::new(Vec::new()),
            words: Vec::new(),
            victims: Vec::new(),
            doomed: VecDeque::new(),
            sizes,
        }
    }

    /// The beginning of a life: nothing is posted, memory is what it is. Regions that are `None` are made.
    pub fn begin(&mut self, nodes: &mut [Node], rng: &mut Rng, base: Access) {
        let sizes = self.sizes;
        let (send, recv) = (self.config.send_depth as usize, self.config.recv_depth as usize);
        let mut made = |node: usize, mr: &mut MrId, len: usize, access: Access| {
            if *mr == MrId(usize::MAX) {
                *mr = nodes[node].register(len, base | access);
                let bytes = rng.bytes(len);
                nodes[node].mr(*mr).write(0, &bytes);
            }
        };
        made(self.from, &mut self.mrs.src, 4 * sizes.max_len + 64, Access::empty());
        made(self.from, &mut self.mrs.sink, sizes.slot * send, Access::LOCAL_WRITE);
        made(self.to, &mut self.mrs.target, sizes.target + 8 * WORDS, remote_rights());
        made(self.to, &mut self.mrs.recv, sizes.slot * recv, Access::LOCAL_WRITE);
        for mr in [nodes[self.from].mr(self.mrs.sink), nodes[self.to].mr(self.mrs.recv)] {
            mr.fill(0, mr.len(), BLANK);
        }
        let target = nodes[self.to].mr(self.mrs.target);
        self.memory = FlatMemory::new(target.read(0, sizes.target));
        self.words = (0..WORDS).map(|i| FlatWord::new(target.word(sizes.target + 8 * i))).collect();
        self.sends = Completions::default();
        self.receives = Completions::default();
        self.arrivals.forget();
        self.buffers.clear();
        self.free = (0..recv).collect();
        self.ops.clear();
        // An invalidation that was under way may have happened or not: those regions are not used again.
        self.doomed.clear();
    }

    /// The sender is gone, and its requests with it: no completion tells how they ended.
    pub fn sender_gone(&mut self) {
        self.sends = Completions::default();
    }

    /// The receiver is gone, and its receives with it.
    pub fn receiver_gone(&mut self) {
        self.receives = Completions::default();
    }

    /// Requests of this direction that the program still wants to post.
    pub fn left(&self, ops: u64) -> u64 {
        ops.saturating_sub(self.posted)
    }

    /// Memory at the receiver is what the completed requests made it.
    pub fn matches(&self, nodes: &[Node]) -> Check {
        let memory = nodes[self.to].mr(self.mrs.target);
        let who = |e| format!("{:?} to {:?}: {e}", self.qpn, self.peer_qpn);
        self.memory.matches(&memory.read(0, self.sizes.target)).map_err(who)?;
        for (i, word) in self.words.iter().enumerate() {
            word.matches(memory.word(self.sizes.target + 8 * i)).map_err(who)?;
        }
        Ok(())
    }

    /// Posts up to `n` receives, as many as there are free buffers.
    pub fn post_receives(&mut self, nodes: &mut [Node], rng: &mut Rng, n: u64) {
        let sizes = self.sizes;
        for _ in 0..n {
            let Some(slot) = self.free.pop() else { return };
            let node = &mut nodes[self.to];
            let layout = Layout::draw(rng, slot, sizes.slot, sizes.max_len, 4);
            let region = node.mr(self.mrs.recv);
            region.fill(slot * sizes.slot, sizes.slot, BLANK);
            let sges = layout.sges(region, rng);
            if node.post_recv(self.peer, self.receives_posted, &sges).is_err() {
                self.free.push(slot);
                return;
            }
            self.receives.posted(self.receives_posted, true);
            self.buffers.push_back((self.receives_posted, layout));
            self.receives_posted += 1;
        }
    }

    /// Posts a request without bytes to a queue pair in ERR; it is flushed.
    pub fn post_to_flush(&mut self, nodes: &mut [Node]) {
        let wr = SendWr::new(self.posted, WrOpcode::Send).unsignaled();
        if nodes[self.from].post_send(self.qp, &wr).is_ok() {
            self.sends.posted(self.posted, false);
            self.memory.posted(self.posted, 0, &[], false);
            self.posted += 1;
        }
    }

    /// Posts one random request. `None`: the queue is full, or there is nothing left to do. Else what it was, in words.
    pub fn post(
        &mut self,
        nodes: &mut [Node],
        rng: &mut Rng,
        ops: u64,
        tally: (MrId, &mut Tally),
    ) -> Option<String> {
        let depth = u64::from(self.config.send_depth);
        let full = nodes[self.from].sends_in_use(self.qp) >= self.config.send_depth
            || self.ops.len() as u64 >= depth;
        if self.posted >= ops || self.sends.failed() || full {
            return None;
        }
        let wr_id = self.posted;
        // The last request and every one that fills the queue must tell; others may be silent.
        let last = wr_id + 1 == ops || (wr_id + 1).is_multiple_of(depth.div_ceil(2));
        let signaled = last || rng.one_in(2);
        let fenced = rng.one_in(6);
        let Drawn { mut wr, kind, sink, offset, data } = self.draw(nodes, rng, wr_id, tally);
        if !signaled {
            wr = wr.unsignaled();
        }
        if fenced {
            wr = wr.with(SendFlags::FENCE);
        }
        if rng.one_in(3) {
            wr = wr.with(SendFlags::SOLICITED);
        }
        let writes = matches!(kind, Kind::Write);
        self.memory.posted(
            wr_id,
            offset.min(self.sizes.target - data.len()),
            if writes { &data } else { &[] },
            fenced,
        );
        let len = data.len().max(sink.len());
        if matches!(
            wr.opcode,
            WrOpcode::Send | WrOpcode::SendWithImm | WrOpcode::SendWithInv | WrOpcode::RdmaWriteWithImm
        ) {
            let tail = match wr.opcode {
                WrOpcode::Send => None,
                WrOpcode::SendWithInv => Some(wr.inv.to_ne_bytes()),
                _ => Some(wr.imm),
            };
            let inv = wr.opcode == WrOpcode::SendWithInv;
            let data = if writes { Vec::new() } else { data };
            self.arrivals.posted(Message { data, len, tail, inv, write: writes });
        }
        self.sends.posted(wr_id, signaled || self.config.sq_sig_all);
        self.ops.push_back(Op { wr_id, kind, sink });
        self.posted += 1;
        let posted = nodes[self.from].post_send(self.qp, &wr);
        assert_eq!(posted, Ok(()), "the queue has room and the request is good");
        Some(format!("post {:?} {wr_id} of {len} bytes on {:?}", wr.opcode, self.qpn))
    }

    fn draw(
        &mut self,
        nodes: &mut [Node],
        rng: &mut Rng,
        wr_id: u64,
        (board, tally): (MrId, &mut Tally),
    ) -> Drawn {
        let sizes = self.sizes;
        let mtu = self.config.mtu.bytes();
        let len = match rng.below(8) {
            0 => 0,
            1..=3 => rng.range(1, 64) as usize,
            4 => mtu * rng.range(1, 3) as usize,
            5 => mtu * rng.range(1, 3) as usize + 1,
            _ => rng.range(1, sizes.max_len as u64) as usize,
        }
        .min(sizes.max_len);
        let opcode = rng.pick(&[
            WrOpcode::Send,
            WrOpcode::SendWithImm,
            WrOpcode::SendWithInv,
            WrOpcode::RdmaWrite,
            WrOpcode::RdmaWriteWithImm,
            WrOpcode::RdmaRead,
            WrOpcode::AtomicCmpAndSwp,
            WrOpcode::AtomicFetchAndAdd,
        ]);
        let slot = (wr_id % u64::from(self.config.send_depth)) as usize;
        let offset = rng.below((sizes.target - len) as u64 + 1) as usize;
        let mut wr = SendWr::new(wr_id, opcode);
        wr.imm = (rng.next() as u32).to_be_bytes();
        if opcode == WrOpcode::SendWithInv {
            wr.inv = self.doom(nodes);
        }
        let node = &nodes[self.from];
        let target = nodes[self.to].mr(self.mrs.target);
        let into_sink = |rng: &mut Rng, len: usize, max: usize| {
            let sink = node.mr(self.mrs.sink);
            let layout = Layout::draw(rng, slot, sizes.slot, len, max);
            sink.fill(slot * sizes.slot, sizes.slot, BLANK);
            let sges = layout.sges(sink, rng);
            (layout, sges)
        };
        match opcode {
            WrOpcode::RdmaRead => {
                let (sink, sges) = into_sink(rng, len, 4);
                let wr = wr.sges(&sges).remote(target.va(offset), target.key);
                Drawn { wr, kind: Kind::Read { offset }, sink, offset, data: Vec::new() }
            }
            WrOpcode::AtomicFetchAndAdd if rng.one_in(3) => {
                let (sink, sges) = into_sink(rng, 8, 2);
                let board = nodes[self.to].mr(board);
                tally.posted += 1;
                let wr = wr.sges(&sges).remote(board.va(0), board.key).operands(1, 0);
                Drawn { wr, kind: Kind::Tally, sink, offset, data: Vec::new() }
            }
            WrOpcode::AtomicCmpAndSwp | WrOpcode::AtomicFetchAndAdd => {
                let word = rng.below(WORDS as u64) as usize;
                let (sink, sges) = into_sink(rng, 8, 2);
                let (a, b) = (rng.next() >> rng.below(64), rng.next());
                let model = &mut self.words[word];
                // Half of the swaps match.
                let compare = if rng.one_in(2) { model.expected() } else { a };
                let swap = opcode == WrOpcode::AtomicCmpAndSwp;
                model.pending.push_back(if swap { Ok((compare, b)) } else { Err(a) });
                let wr = wr
                    .sges(&sges)
                    .remote(target.va(sizes.target + 8 * word), target.key)
                    .operands(if swap { compare } else { a }, b);
                Drawn { wr, kind: Kind::Atomic { word }, sink, offset, data: Vec::new() }
            }
            _ => {
                let src = node.mr(self.mrs.src);
                let (mut sges, mut data) = (Vec::new(), Vec::new());
                let (n, mut left) = (rng.range(1, 4), len);
                for k in 0..n {
                    let part = if k + 1 == n { left } else { rng.below(left as u64 + 1) as usize };
                    let at = rng.below((src.len() - part) as u64 + 1) as usize;
                    data.extend(src.read(at, part));
                    sges.push(src.sge(at, part));
                    left -= part;
                }
                wr = if len <= self.config.inline as usize && rng.one_in(3) {
                    wr.inline(&data)
                } else {
                    wr.sges(&sges)
                };
                let writes = matches!(opcode, WrOpcode::RdmaWrite | WrOpcode::RdmaWriteWithImm);
                if writes {
                    wr = wr.remote(target.va(offset), target.key);
                }
                let kind = if writes { Kind::Write } else { Kind::Send };
                Drawn { wr, kind, sink: Layout::default(), offset, data }
            }
        }
    }

    /// A key at the receiver that a SEND will invalidate.
    fn doom(&mut self, nodes: &mut [Node]) -> u32 {
        let mr = match self.victims.pop() {
            Some(mr) => {
                nodes[self.to].register_fast_again(mr);
                mr
            }
            None => nodes[self.to].register_fast(8, Access::LOCAL_WRITE),
        };
        self.doomed.push_back(mr);
        nodes[self.to].mr(mr).key
    }

    /// A receive completion, which may fail as `allowed`. `spoil`: one byte of the message is changed first, to see
    /// whether it is noticed; true is returned if there was one.
    pub fn received(
        &mut self,
        nodes: &[Node],
        cqe: &Cqe,
        allowed: &[WcStatus],
        spoil: bool,
    ) -> Result<bool, String> {
        let status = check::status(cqe);
        self.receives.completed(cqe.wr_id, status)?;
        let (_, layout) = self.buffers.pop_front().ok_or("more receives complete than were posted")?;
        self.free.push(layout.slot);
        match status {
            WcStatus::Success => {}
            other if allowed.contains(&other) => return Ok(false),
            other => return Err(format!("receive {} completes with {other:?}", cqe.wr_id)),
        }
        let node = &nodes[self.to];
        let region = node.mr(self.mrs.recv);
        let spoilt = spoil && cqe.byte_len > 0 && layout.pieces.iter().any(|p| p.1 > 0);
        if spoilt {
            spoil_first(region, &layout);
        }
        let write = cqe.opcode == WcOpcode::RecvRdmaWithImm as u8;
        let len = cqe.byte_len as usize;
        let data = layout.gather(region, self.sizes.slot, if write { 0 } else { len })?;
        let flags = u32::from(cqe.flags);
        let inv = flags & WcFlags::WITH_INV.bits() != 0;
        let tail = (inv || flags & WcFlags::WITH_IMM.bits() != 0).then(|| cqe.imm.to_ne_bytes());
        self.arrivals.arrived(&Message { data, len, tail, inv, write })?;
        if inv {
            let mr = self.doomed.pop_front().ok_or("a key is invalidated that was not given away")?;
            if node.key_lives(cqe.imm) {
                return Err(format!("key {:#x} lives after a SEND with invalidate", cqe.imm));
            }
            self.victims.push(mr);
        }
        Ok(spoilt)
    }

    /// A send completion. Returns how many requests are complete by it, with success.
    pub fn sent(
        &mut self,
        nodes: &[Node],
        cqe: &Cqe,
        tally: &mut Tally,
        allowed: &[WcStatus],
    ) -> Result<u64, String> {
        let status = check::status(cqe);
        let first = !self.sends.failed();
        let mut done = self.sends.completed(cqe.wr_id, status)?;
        if status != WcStatus::Success {
            done.pop();
        }
        let sink = nodes[self.from].mr(self.mrs.sink);
        let n = done.len() as u64;
        for wr_id in done {
            let op = self.ops.pop_front().ok_or("more requests complete than were posted")?;
            assert_eq!(op.wr_id, wr_id, "requests complete in order");
            let got = || op.sink.gather(sink, self.sizes.slot, op.sink.len());
            let original = |got: Vec<u8>| u64::from_ne_bytes(got.try_into().expect("eight bytes"));
            match op.kind {
                Kind::Send | Kind::Write => self.memory.completed(wr_id),
                Kind::Read { offset } => self.memory.read(wr_id, offset, &got()?)?,
                Kind::Atomic { word } => {
                    self.words[word].completed(Some(original(got()?)))?;
                    self.memory.completed(wr_id);
                }
                Kind::Tally => {
                    tally.completed(original(got()?))?;
                    self.memory.completed(wr_id);
                }
            }
        }
        match status {
            WcStatus::Success => Ok(n),
            WcStatus::WrFlushErr if !first || allowed.contains(&status) => Ok(n),
            other if first && allowed.contains(&other) => Ok(n),
            other => Err(format!("request {} completes with {other:?}", cqe.wr_id)),
        }
    }
}

fn spoil_first(region: &Region, layout: &Layout) {
    let at = layout.pieces.iter().find(|p| p.1 > 0).map_or(0, |p| p.0);
    region.write(at, &[!region.read(at, 1)[0]]);
}
