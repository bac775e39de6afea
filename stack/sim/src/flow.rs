//! One direction of a connection: the requests that its program posts, and the completions that they must get.

use std::collections::VecDeque;

use super::check::{self, Arrivals, Check, Completions, FlatMemory, FlatWord, Message, Tally};
use super::layout::{BLANK, GAPS, Layout};
use super::memory::Region;
use super::node::{CqId, MrId, Node, QpConfig, QpId, SendWr, SrqId};
use super::rng::Rng;
use super::swarm::{Swarm, rights};
use super::window::{Window, WindowRequest};
use stack::id::{QpType, Qpn};
use stack::mem::{Access, Sge};
use stack::proto::status::{SendFlags, WcFlags, WcOpcode, WcStatus, WrOpcode};
use stack::proto::wqe::Cqe;

/// Number of words of a flow that its atomics change.
pub const WORDS: usize = 3;
/// Shared receive queues of an XRC flow.
const SRQS: usize = 2;
/// FLUSH: placement "global visibility", of a range or of the whole region.
const FLUSH_GLOBAL: u64 = 1;
const FLUSH_WHOLE: u64 = 1 << 8;

#[derive(Clone, Debug)]
enum Kind {
    Send,
    Write,
    Read {
        offset: usize,
    },
    Atomic {
        word: usize,
    },
    Tally,
    Flush,
    /// Binds or invalidates the window of another flow, whose index is in `Flow::locals`.
    Local,
}

#[derive(Clone, Debug)]
struct Op {
    wr_id: u64,
    kind: Kind,
    opcode: WrOpcode,
    /// Whether it uses the key of the flow's window.
    windowed: bool,
    /// The buffer in the sink for the bytes of a READ or atomic.
    sink: Layout,
}

/// A receive queue that the messages of a flow consume: the peer's own, or a shared one.
#[derive(Debug, Default)]
struct Queue {
    srq: Option<SrqId>,
    receives: Completions,
    buffers: VecDeque<(u64, Layout)>,
    free: Vec<usize>,
}

/// A key at the receiver that a SEND invalidates.
#[derive(Debug)]
enum Invalidated {
    Region(MrId),
    Window,
}

/// Sizes that all flows of a run share.
#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    /// Most bytes of a message.
    pub max_len: usize,
    /// Bytes of a slot: a buffer and the gaps around it.
    pub slot: usize,
    /// Bytes of the target of WRITEs and READs.
    pub target: usize,
}

impl Sizes {
    /// The sizes for messages of at most `max_len` bytes.
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
    /// The data to send, at the sender.
    pub src: MrId,
    /// The results of READs and atomics, at the sender.
    pub sink: MrId,
    /// The target of WRITEs, READs and atomics, at the receiver.
    pub target: MrId,
    /// The receive buffers, at the receiver.
    pub recv: MrId,
}

/// A request as drawn: the work request, and the values for the checkers.
struct DrawnRequest {
    wr: SendWr,
    kind: Kind,
    sink: Layout,
    offset: usize,
    data: Vec<u8>,
    windowed: bool,
}

/// A change to a message before it is checked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Spoil {
    /// Change a byte.
    Byte,
    /// Attribute it to another shared receive queue.
    Queue,
}

/// The requests that a completion completed.
#[derive(Clone, Copy, Default, Debug)]
pub struct Done {
    /// Number of requests that succeeded.
    pub requests: u64,
    /// The opcode of the completion's own request, if that succeeded.
    pub opcode: Option<WrOpcode>,
}

/// One direction of a connection.
#[derive(Debug)]
pub struct Flow {
    /// The sending node.
    pub from: usize,
    /// The receiving node, which may be the same.
    pub to: usize,
    /// The sending queue pair.
    pub qp: QpId,
    /// The receiving queue pair, which may be the same.
    pub peer: QpId,
    /// Number of the sending queue pair.
    pub qpn: Qpn,
    /// Number of the receiving queue pair.
    pub peer_qpn: Qpn,
    /// The configuration of the sending queue pair.
    pub config: QpConfig,
    /// Its regions.
    pub mrs: Memory,
    /// Number of requests posted in all lives.
    pub posted: u64,
    /// The completions of the send queue.
    pub sends: Completions,
    /// The messages that arrive.
    pub arrivals: Arrivals,
    /// The completion queue of the receives of an XRC flow.
    pub recv_cq: CqId,
    /// The reverse flow, whose queue pair can bind windows to this flow's target.
    pub binder: Option<usize>,
    /// A window to the target.
    pub window: Window,
    /// Flows whose windows were changed by a local operation of this flow that has completed.
    pub changed_windows: Vec<usize>,
    /// Flows on whose windows a local operation of this flow is in progress, oldest first.
    locals: VecDeque<usize>,
    queues: Vec<Queue>,
    receives_posted: u64,
    ops: VecDeque<Op>,
    memory: FlatMemory,
    words: Vec<FlatWord>,
    /// Regions at the receiver that the sender may invalidate, ready to be registered again.
    spare_regions: Vec<MrId>,
    /// Regions and windows whose invalidation is in progress, oldest first.
    invalidating: VecDeque<Invalidated>,
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
            arrivals: Arrivals::default(),
            recv_cq: nodes[to].qp(peer).recv_cq,
            binder: None,
            window: Window::default(),
            changed_windows: Vec::new(),
            locals: VecDeque::new(),
            queues: Vec::new(),
            receives_posted: 0,
            ops: VecDeque::new(),
            memory: FlatMemory::new(Vec::new()),
            words: Vec::new(),
            spare_regions: Vec::new(),
            invalidating: VecDeque::new(),
            sizes,
        }
    }

    /// Begins a life: nothing is posted, and memory stays as it is. Registers regions that are missing (`usize::MAX`).
    pub fn begin(&mut self, nodes: &mut [Node], rng: &mut Rng, base: Access) {
        let sizes = self.sizes;
        let (send, recv) = (self.config.send_depth as usize, self.config.recv_depth as usize);
        let srqs = if self.config.ty == QpType::XrcIni { SRQS } else { 0 };
        let queues = srqs.max(1);
        self.drop_window(nodes);
        let mut made = |node: usize, mr: &mut MrId, len: usize, access: Access| {
            if *mr == MrId(usize::MAX) {
                *mr = nodes[node].register(len, base | access);
                let bytes = rng.bytes(len);
                nodes[node].mr(*mr).write(0, &bytes);
            }
        };
        made(self.from, &mut self.mrs.src, 4 * sizes.max_len + 64, Access::empty());
        made(self.from, &mut self.mrs.sink, sizes.slot * send, Access::LOCAL_WRITE);
        // A zero-based region has no windows (C10-75).
        let windows = self.binder.is_some() && base.is_empty();
        let bindable = if windows { Access::MW_BIND } else { Access::empty() };
        made(self.to, &mut self.mrs.target, sizes.target + 8 * WORDS, rights() | bindable);
        made(self.to, &mut self.mrs.recv, sizes.slot * recv * queues, Access::LOCAL_WRITE);
        for mr in [nodes[self.from].mr(self.mrs.sink), nodes[self.to].mr(self.mrs.recv)] {
            mr.fill(0, mr.len(), BLANK);
        }
        let target = nodes[self.to].mr(self.mrs.target);
        self.memory = FlatMemory::new(target.read(0, sizes.target));
        self.words = (0..WORDS).map(|i| FlatWord::new(target.word(sizes.target + 8 * i))).collect();
        if windows {
            self.window = Window::alloc(&mut nodes[self.to]);
        }
        self.sends = Completions::default();
        self.arrivals.forget();
        self.drop_queues(nodes);
        let new = |i: usize| Queue {
            srq: (srqs > 0).then(|| nodes[self.to].create_srq(recv as u32, self.recv_cq)),
            free: (i * recv..(i + 1) * recv).collect(),
            ..Queue::default()
        };
        self.queues = (0..queues).map(new).collect();
        self.changed_windows.clear();
        self.locals.clear();
        self.ops.clear();
        // An invalidation that was in progress may have happened or not: those regions are not used again.
        self.invalidating.clear();
    }

    /// Bytes of the target, excluding the words of atomics.
    pub fn target_len(&self) -> usize {
        self.sizes.target
    }

    /// The sender is gone with its requests: no completion shows how they ended.
    pub fn sender_gone(&mut self) {
        self.sends = Completions::default();
    }

    /// The receiver is gone with its receives.
    pub fn receiver_gone(&mut self) {
        for queue in &mut self.queues {
            queue.receives = Completions::default();
            queue.buffers.clear();
        }
    }

    /// Number of posted receives that have not completed, excluding those that still wait in a shared queue.
    pub fn receives_left(&self, nodes: &[Node]) -> usize {
        let left = |q: &Queue| {
            let waiting = q.srq.map_or(0, |srq| nodes[self.to].srq_waiting(srq) as usize);
            q.receives.outstanding().saturating_sub(waiting)
        };
        self.queues.iter().map(left).sum()
    }

    /// Destroys the shared receive queues, which must go before their completion queue.
    pub fn drop_queues(&mut self, nodes: &mut [Node]) {
        for srq in self.queues.drain(..).filter_map(|q| q.srq) {
            nodes[self.to].destroy_srq(srq);
        }
    }

    /// Deallocates the window, which must go before its region.
    pub fn drop_window(&mut self, nodes: &mut [Node]) {
        core::mem::take(&mut self.window).dealloc(&mut nodes[self.to]);
    }

    /// Number of requests that the program still wants to post.
    pub fn left(&self, ops: u64) -> u64 {
        ops.saturating_sub(self.posted)
    }

    /// Checks that memory at the receiver has the effects of the completed requests.
    pub fn matches(&self, nodes: &[Node]) -> Check {
        let memory = nodes[self.to].mr(self.mrs.target);
        let who = |e| format!("{:?} to {:?}: {e}", self.qpn, self.peer_qpn);
        self.memory.matches(&memory.read(0, self.sizes.target)).map_err(who)?;
        for (i, word) in self.words.iter().enumerate() {
            word.matches(memory.word(self.sizes.target + 8 * i)).map_err(who)?;
        }
        Ok(())
    }

    /// Posts up to `n` receives to each queue, limited by its free buffers.
    pub fn post_receives(&mut self, nodes: &mut [Node], rng: &mut Rng, n: u64) {
        let sizes = self.sizes;
        for (i, queue) in self.queues.iter_mut().enumerate() {
            for _ in 0..n {
                let Some(slot) = queue.free.pop() else { break };
                let node = &mut nodes[self.to];
                let layout = Layout::draw(rng, slot, sizes.slot, sizes.max_len, 4);
                let region = node.mr(self.mrs.recv);
                region.fill(slot * sizes.slot, sizes.slot, BLANK);
                let sges = layout.sges(region, rng);
                // The tag includes the queue.
                let wr_id = self.receives_posted * SRQS as u64 + i as u64;
                let posted = match queue.srq {
                    Some(srq) => node.post_srq_recv(srq, wr_id, &sges),
                    None => node.post_recv(self.peer, wr_id, &sges),
                };
                if posted.is_err() {
                    queue.free.push(slot);
                    break;
                }
                queue.receives.posted(wr_id, true);
                queue.buffers.push_back((wr_id, layout));
                self.receives_posted += 1;
            }
        }
    }

    /// Posts a local operation on the window of flow `of` to this flow's send queue. Returns `false` if the queue has no room.
    pub fn post_local(&mut self, nodes: &mut [Node], ops: u64, of: usize, request: &WindowRequest) -> bool {
        if !self.room(nodes, ops) {
            return false;
        }
        let wr = request.work_request(self.posted);
        self.memory.posted(self.posted, 0, &[], false);
        self.sends.posted(self.posted, true);
        let op = Op {
            wr_id: self.posted,
            kind: Kind::Local,
            opcode: wr.opcode,
            windowed: false,
            sink: Layout::default(),
        };
        self.ops.push_back(op);
        self.posted += 1;
        self.locals.push_back(of);
        assert_eq!(nodes[self.from].post_send(self.qp, &wr), Ok(()), "the queue has room");
        true
    }

    /// Whether one more request can be posted.
    fn room(&self, nodes: &[Node], ops: u64) -> bool {
        let depth = self.config.send_depth;
        let full = nodes[self.from].sends_in_use(self.qp) >= depth || self.ops.len() >= depth as usize;
        self.posted < ops && !self.sends.failed() && !full
    }

    /// Posts a request without data to a queue pair in ERR, to be flushed.
    pub fn post_to_flush(&mut self, nodes: &mut [Node]) {
        let wr = SendWr::new(self.posted, WrOpcode::Send).unsignaled();
        if nodes[self.from].post_send(self.qp, &wr).is_ok() {
            self.sends.posted(self.posted, false);
            self.memory.posted(self.posted, 0, &[], false);
            self.posted += 1;
        }
    }

    /// Posts one random request and returns its description; `None` if the queue is full or no request is left to post.
    pub fn post(
        &mut self,
        nodes: &mut [Node],
        rng: &mut Rng,
        ops: u64,
        tally: (MrId, &mut Tally),
    ) -> Option<String> {
        if !self.room(nodes, ops) {
            return None;
        }
        let depth = u64::from(self.config.send_depth);
        let wr_id = self.posted;
        // The last request, and each that may fill the queue, must be signalled; others need not be.
        let last = wr_id + 1 == ops || (wr_id + 1).is_multiple_of(depth.div_ceil(2));
        let signaled = last || rng.one_in(2);
        let fenced = rng.one_in(6);
        let DrawnRequest { mut wr, kind, sink, offset, data, windowed } = self.draw(nodes, rng, wr_id, tally);
        let queue = rng.below(self.queues.len() as u64) as usize;
        if let Some(srq) = self.queues[queue].srq {
            wr.srqn = nodes[self.to].srqn(srq);
        }
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
            self.arrivals.posted(Message { data, len, tail, inv, write: writes, queue });
        }
        self.sends.posted(wr_id, signaled || self.config.sq_sig_all);
        self.window.users += u32::from(windowed);
        self.ops.push_back(Op { wr_id, kind, opcode: wr.opcode, windowed, sink });
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
    ) -> DrawnRequest {
        let sizes = self.sizes;
        let len = self.draw_len(rng);
        let opcode = rng.pick(&[
            WrOpcode::Send,
            WrOpcode::SendWithImm,
            WrOpcode::SendWithInv,
            WrOpcode::RdmaWrite,
            WrOpcode::RdmaWriteWithImm,
            WrOpcode::RdmaRead,
            WrOpcode::AtomicCmpAndSwp,
            WrOpcode::AtomicFetchAndAdd,
            WrOpcode::AtomicWrite,
            WrOpcode::Flush,
        ]);
        let len = if opcode == WrOpcode::AtomicWrite { 8 } else { len };
        let slot = (wr_id % u64::from(self.config.send_depth)) as usize;
        let named = matches!(
            opcode,
            WrOpcode::RdmaWrite | WrOpcode::RdmaWriteWithImm | WrOpcode::RdmaRead | WrOpcode::AtomicWrite
        );
        // Sometimes uses the window, which covers the end of the target.
        let windowed = named && self.window.usable(sizes.target - len) && rng.one_in(2);
        let from = if windowed { self.window.start } else { 0 };
        let mut offset = from + rng.below((sizes.target - len - from) as u64 + 1) as usize;
        if opcode == WrOpcode::AtomicWrite {
            offset = offset / 8 * 8; // a window starts on a word
        }
        let mut wr = SendWr::new(wr_id, opcode);
        wr.imm = (rng.next() as u32).to_be_bytes();
        if opcode == WrOpcode::SendWithInv {
            wr.inv = self.draw_key_to_invalidate(nodes, rng);
        }
        let node = &nodes[self.from];
        let target = nodes[self.to].mr(self.mrs.target);
        let place = if windowed { self.window.name(target, offset) } else { (target.va(offset), target.key) };
        match opcode {
            WrOpcode::RdmaRead => {
                let (sink, sges) = self.draw_sink(node, rng, slot, (len, 4));
                let wr = wr.sges(&sges).remote(place.0, place.1);
                DrawnRequest { wr, kind: Kind::Read { offset }, sink, offset, data: Vec::new(), windowed }
            }
            WrOpcode::Flush => {
                let whole = if rng.one_in(2) { FLUSH_WHOLE } else { 0 };
                let wr = wr.remote(target.va(offset), target.key).operands(whole | FLUSH_GLOBAL, len as u64);
                let (sink, data) = (Layout::default(), Vec::new());
                DrawnRequest { wr, kind: Kind::Flush, sink, offset, data, windowed }
            }
            WrOpcode::AtomicFetchAndAdd if rng.one_in(3) => {
                let (sink, sges) = self.draw_sink(node, rng, slot, (8, 2));
                let board = nodes[self.to].mr(board);
                tally.posted += 1;
                let wr = wr.sges(&sges).remote(board.va(0), board.key).operands(1, 0);
                DrawnRequest { wr, kind: Kind::Tally, sink, offset, data: Vec::new(), windowed }
            }
            WrOpcode::AtomicCmpAndSwp | WrOpcode::AtomicFetchAndAdd => {
                let word = rng.below(WORDS as u64) as usize;
                let (sink, sges) = self.draw_sink(node, rng, slot, (8, 2));
                let operands = self.words[word].draw(rng, opcode == WrOpcode::AtomicCmpAndSwp);
                let wr = wr
                    .sges(&sges)
                    .remote(target.va(sizes.target + 8 * word), target.key)
                    .operands(operands.0, operands.1);
                DrawnRequest { wr, kind: Kind::Atomic { word }, sink, offset, data: Vec::new(), windowed }
            }
            _ => {
                let (sges, data) = self.draw_source(node, rng, len);
                wr = if len <= self.config.inline as usize && rng.one_in(3) {
                    wr.inline(&data)
                } else {
                    wr.sges(&sges)
                };
                if named {
                    wr = wr.remote(place.0, place.1);
                }
                let kind = if named { Kind::Write } else { Kind::Send };
                DrawnRequest { wr, kind, sink: Layout::default(), offset, data, windowed }
            }
        }
    }

    /// Draws the length of a message.
    fn draw_len(&self, rng: &mut Rng) -> usize {
        let mtu = self.config.mtu.bytes();
        let len = match rng.below(8) {
            0 => 0,
            1..=3 => rng.range(1, 64) as usize,
            4 => mtu * rng.range(1, 3) as usize,
            5 => mtu * rng.range(1, 3) as usize + 1,
            _ => rng.range(1, self.sizes.max_len as u64) as usize,
        };
        len.min(self.sizes.max_len)
    }

    /// Draws a buffer for `len` bytes of a response: at most `max` pieces in a slot, which is filled with blank bytes.
    fn draw_sink(
        &self,
        node: &Node,
        rng: &mut Rng,
        slot: usize,
        (len, max): (usize, usize),
    ) -> (Layout, Vec<Sge>) {
        let sink = node.mr(self.mrs.sink);
        let layout = Layout::draw(rng, slot, self.sizes.slot, len, max);
        sink.fill(slot * self.sizes.slot, self.sizes.slot, BLANK);
        let sges = layout.sges(sink, rng);
        (layout, sges)
    }

    /// Draws the data of a message, and the scatter/gather list that names them.
    fn draw_source(&self, node: &Node, rng: &mut Rng, len: usize) -> (Vec<Sge>, Vec<u8>) {
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
        (sges, data)
    }

    /// Draws a key at the receiver for a SEND to invalidate.
    fn draw_key_to_invalidate(&mut self, nodes: &mut [Node], rng: &mut Rng) -> u32 {
        if self.window.idle() && rng.one_in(2) {
            self.invalidating.push_back(Invalidated::Window);
            return self.window.leave();
        }
        let mr = match self.spare_regions.pop() {
            Some(mr) => {
                nodes[self.to].register_fast_again(mr);
                mr
            }
            None => nodes[self.to].register_fast(8, Access::LOCAL_WRITE),
        };
        self.invalidating.push_back(Invalidated::Region(mr));
        nodes[self.to].mr(mr).key
    }

    /// Checks a receive completion, which may fail with a status of `allowed`. `spoil`: changes the message first, to test the checker.
    /// Returns whether the checker could have detected the change.
    pub fn received(
        &mut self,
        nodes: &[Node],
        cqe: &Cqe,
        allowed: &[WcStatus],
        spoil: Option<Spoil>,
    ) -> Result<bool, String> {
        let status = check::status(cqe);
        let at = (cqe.wr_id % SRQS as u64) as usize;
        let queue = self.queues.get_mut(at).ok_or("a receive completes that nobody posted")?;
        let xrc = queue.srq.is_some();
        queue.receives.completed(cqe.wr_id, status)?;
        let (_, layout) = queue.buffers.pop_front().ok_or("more receives complete than were posted")?;
        queue.free.push(layout.slot);
        match status {
            WcStatus::Success => {}
            other if allowed.contains(&other) => return Ok(false),
            other => return Err(format!("receive {} completes with {other:?}", cqe.wr_id)),
        }
        let node = &nodes[self.to];
        let region = node.mr(self.mrs.recv);
        let spoilt = match spoil {
            Some(Spoil::Byte) => cqe.byte_len > 0 && layout.pieces.iter().any(|p| p.1 > 0),
            Some(Spoil::Queue) => xrc,
            None => false,
        };
        if spoilt && spoil == Some(Spoil::Byte) {
            spoil_first(region, &layout);
        }
        let at = at ^ usize::from(spoilt && spoil == Some(Spoil::Queue));
        let write = cqe.opcode == WcOpcode::RecvRdmaWithImm;
        let len = cqe.byte_len as usize;
        let data = layout.gather(region, self.sizes.slot, if write { 0 } else { len })?;
        let flags = cqe.flags.bits();
        let inv = flags & WcFlags::WITH_INV.bits() != 0;
        let tail = (inv || flags & WcFlags::WITH_IMM.bits() != 0).then(|| cqe.imm.to_ne_bytes());
        self.arrivals.arrived(&Message { data, len, tail, inv, write, queue: at })?;
        if inv {
            if node.key_lives(cqe.imm) {
                return Err(format!("key {:#x} lives after a SEND with invalidate", cqe.imm));
            }
            match self.invalidating.pop_front().ok_or("a key is invalidated that was not given away")? {
                Invalidated::Region(mr) => self.spare_regions.push(mr),
                Invalidated::Window => self.window.gone(),
            }
        }
        Ok(spoilt)
    }

    /// Checks a send completion. Returns the requests that it completes with success.
    pub fn sent(
        &mut self,
        nodes: &[Node],
        cqe: &Cqe,
        tally: &mut Tally,
        allowed: &[WcStatus],
    ) -> Result<Done, String> {
        let status = check::status(cqe);
        let first = !self.sends.failed();
        let mut done = self.sends.completed(cqe.wr_id, status)?;
        if status != WcStatus::Success {
            done.pop();
        }
        let sink = nodes[self.from].mr(self.mrs.sink);
        let mut summary = Done { requests: done.len() as u64, opcode: None };
        for wr_id in done {
            let op = self.ops.pop_front().ok_or("more requests complete than were posted")?;
            assert_eq!(op.wr_id, wr_id, "requests complete in order");
            summary.opcode = Some(op.opcode);
            // A window that ended with its region has no users.
            self.window.users = self.window.users.saturating_sub(u32::from(op.windowed));
            let got = || op.sink.gather(sink, self.sizes.slot, op.sink.len());
            let original = |got: Vec<u8>| u64::from_ne_bytes(got.try_into().expect("eight bytes"));
            match op.kind {
                Kind::Send | Kind::Write | Kind::Flush => self.memory.completed(wr_id),
                Kind::Local => {
                    self.memory.completed(wr_id);
                    self.changed_windows.extend(self.locals.pop_front());
                }
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
            WcStatus::Success => Ok(summary),
            WcStatus::WrFlushErr if !first || allowed.contains(&status) => Ok(summary),
            other if first && allowed.contains(&other) => Ok(summary),
            other => Err(format!("request {} completes with {other:?}", cqe.wr_id)),
        }
    }
}

fn spoil_first(region: &Region, layout: &Layout) {
    let at = layout.pieces.iter().find(|p| p.1 > 0).map_or(0, |p| p.0);
    region.write(at, &[!region.read(at, 1)[0]]);
}
