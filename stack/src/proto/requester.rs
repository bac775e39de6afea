//! The requester: work requests in, request packets out (IBA 9.7.2 to 9.7.4).
//!
//! Owns the send side's sequence numbers. [`Requester::poll_transmit`] says which packet is next; what comes
//! back is the [completer](super::completer)'s business, which moves the same state on or back. Never touches
//! a payload byte: a [`Segment`] says which part of which work request goes out.

use super::state::Gates;
use super::status::{SendFlags, WcStatus, WrOpcode};
use super::tables::{RNR_RETRY_FOREVER, ack_timeout};
use super::wqe::{Granule, SendWqe};
use crate::config::{ACK_REQ_STRIDE, CREDITS_LOW, TURN_SLACK, WINDOW_PACKETS};
use crate::id::{Mtu, Psn};
use crate::mark::{Mark, hit};
use crate::time::Instant;
use crate::wire::{Ext, Kind, Opcode, Position, Reth, Tail};

mod log;
mod run;
mod unreliable;

pub use log::RequestKind;
use log::{Log, Remembered, Started};
pub use run::{Form, Next, Ran, Run, Unbuilt};

/// The send queue as the requester sees it: slots by sequence number.
pub trait SendRing {
    /// Sequence number behind the last posted request.
    fn published(&self) -> u32;
    /// The slot of a posted request that is not released.
    fn slot(&self, seq: u32) -> &[Granule];
    /// Slots from that of `seq` on that lie behind each other in memory, and how many granules each has: one at least,
    /// `max` at most. `seq + max` is not behind what [`published`](Self::published) said last.
    #[inline]
    fn contiguous(&self, seq: u32, max: u32) -> (&[Granule], usize) {
        debug_assert!(max > 0, "somebody wants a slot");
        let slot = self.slot(seq);
        (slot, slot.len())
    }
}

/// One request packet to build.
#[derive(Clone, Copy, Debug)]
pub struct Segment<'a> {
    /// The work request it belongs to.
    pub seq: u32,
    /// The slot of that work request.
    pub slot: &'a [Granule],
    /// Opcode of the packet.
    pub opcode: Opcode,
    /// Its sequence number.
    pub psn: Psn,
    /// Whether it asks for an acknowledgement.
    pub ack_req: bool,
    /// Whether it carries the solicited event bit.
    pub solicited: bool,
    /// Its extended headers.
    pub ext: Ext,
    /// First byte of the message that it carries.
    pub offset: u32,
    /// Payload bytes; 0 for READ, atomics and FLUSH.
    pub len: u32,
    /// Whether this range went out before.
    pub again: bool,
}

/// What an operation is to the requester.
#[derive(Clone, Copy)]
struct Shape {
    /// How it is answered; `None` for what is no packet.
    kind: Option<RequestKind>,
    /// Whether it takes a receive request of the peer, and so a credit.
    takes_recv: bool,
    /// The kind of a message's packets.
    packet: Kind,
    /// What the last packet of a message carries.
    tail: Tail,
}

impl Shape {
    const fn new(opcode: WrOpcode) -> Self {
        let (kind, takes_recv, packet, tail) = match opcode {
            WrOpcode::Send => (RequestKind::Message, true, Kind::Send, Tail::None),
            WrOpcode::SendWithImm => (RequestKind::Message, true, Kind::Send, Tail::Imm),
            WrOpcode::SendWithInv => (RequestKind::Message, true, Kind::Send, Tail::Inv),
            WrOpcode::RdmaWrite => (RequestKind::Message, false, Kind::Write, Tail::None),
            WrOpcode::RdmaWriteWithImm => (RequestKind::Message, true, Kind::Write, Tail::Imm),
            WrOpcode::RdmaRead => (RequestKind::Read, false, Kind::ReadRequest, Tail::None),
            WrOpcode::AtomicCmpAndSwp => (RequestKind::Atomic, false, Kind::CmpSwap, Tail::None),
            WrOpcode::AtomicFetchAndAdd => (RequestKind::Atomic, false, Kind::FetchAdd, Tail::None),
            WrOpcode::AtomicWrite => (RequestKind::Placement, false, Kind::AtomicWrite, Tail::None),
            WrOpcode::Flush => (RequestKind::Placement, false, Kind::Flush, Tail::None),
            _ => return Self { kind: None, takes_recv: false, packet: Kind::Resync, tail: Tail::None },
        };
        Self { kind: Some(kind), takes_recv, packet, tail }
    }

    /// Looked up: a jump for each operation costs more.
    #[inline(always)]
    fn of(wqe: &SendWqe) -> &'static Self {
        static SHAPES: [Shape; 256] = {
            let mut shapes = [Shape::new(WrOpcode::Driver1); 256];
            let mut n = 0;
            while n < shapes.len() {
                if let Some(opcode) = WrOpcode::from_number(n as u32) {
                    shapes[n] = Shape::new(opcode);
                }
                n += 1;
            }
            shapes
        };
        &SHAPES[wqe.opcode_number() as usize]
    }
}

/// Why [`Requester::poll_transmit`] returned nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Idle {
    /// Nothing is posted, or the state allows nothing.
    NothingToDo,
    /// Waiting for the peer: window, credits, fence, READ limit, RNR.
    Waiting,
    /// A work request failed on this side and is the oldest: see [`Requester::local_failure`].
    Failed,
    /// The work request with this sequence number is a local operation whose turn has come: carry it out, then call
    /// [`Requester::local_done`], or [`Requester::fail_local`], and ask again.
    Local(u32),
}

/// The send side's settings, from the queue pair's attributes.
#[derive(Clone, Copy, Debug)]
pub struct RequesterConfig {
    /// Path MTU.
    pub mtu: Mtu,
    /// First sequence number.
    pub sq_psn: Psn,
    /// Exponent of the local ACK timeout, 0 = none.
    pub timeout: u8,
    /// Retries after a timeout or sequence error, `0..=7`.
    pub retry_cnt: u8,
    /// Retries after an RNR NAK, 7 = for ever.
    pub rnr_retry: u8,
    /// READ and ATOMIC requests outstanding at most.
    pub max_rd_atomic: u8,
}

/// The send side of one reliable queue pair.
#[derive(Debug)]
pub struct Requester {
    pub(super) mtu: Mtu,
    pub(super) retry_cnt: u8,
    pub(super) retry_left: u8,
    pub(super) rnr_retry: u8,
    pub(super) rnr_left: u8,
    max_rd_atomic: u8,
    pub(super) rd_outstanding: u8,
    /// A retry for the oldest unacknowledged packet is under way; cleared by progress or a timeout.
    pub(super) going_back: bool,
    /// The peer's credits are not limited (it said so, or is on a shared receive queue).
    pub(super) unlimited: bool,
    /// Waiting out an RNR NAK until `deadline`.
    pub(super) rnr_wait: bool,
    /// The next packet asks for an acknowledgement of what went out without.
    probing: bool,
    since_ack_req: u8,
    pub(super) timeout_ns: u64,
    /// When the ACK timer, or the RNR wait, ends; `FAR` when nothing runs.
    pub(super) deadline: Instant,

    /// Oldest work request that is not complete.
    pub(super) head: u32,
    /// The work request whose packet is next, `head ..= started`.
    pub(super) cur: u32,
    /// Behind the last started work request.
    pub(super) started: u32,
    /// Oldest sequence number that is not acknowledged (READ: not received).
    pub(super) una: Psn,
    /// Sequence number of the next packet.
    pub(super) cur_psn: Psn,
    /// Behind the highest sequence number used so far.
    pub(super) next: Psn,
    /// First sequence number of the next work request to start.
    assigned: Psn,
    /// READ response numbers between `una` and `next`: they are no packets of ours in flight.
    pub(super) read_psns: u32,
    /// Send sequence number of the next request to start; the peer's MSN counts the same (IBA 9.7.7.2).
    ssn: Psn,
    /// Limit sequence number: credits granted by the peer.
    pub(super) lsn: Psn,
    failed: Option<(u32, WcStatus)>,
    log: Log,
}

impl Requester {
    /// Bytes that it remembers of each request that it started, beside itself.
    pub const REMEMBERED: usize = size_of::<Remembered>();

    /// A requester at rest, for a send queue of `depth` requests (a power of two).
    pub fn new(depth: u32) -> Self {
        Self {
            mtu: Mtu::Mtu1024,
            retry_cnt: 0,
            retry_left: 0,
            rnr_retry: 0,
            rnr_left: 0,
            max_rd_atomic: 0,
            rd_outstanding: 0,
            going_back: false,
            unlimited: false,
            rnr_wait: false,
            probing: false,
            since_ack_req: 0,
            timeout_ns: 0,
            deadline: Instant::FAR,
            head: 0,
            cur: 0,
            started: 0,
            una: Psn::new(0),
            cur_psn: Psn::new(0),
            next: Psn::new(0),
            assigned: Psn::new(0),
            read_psns: 0,
            ssn: Psn::new(1),
            lsn: Psn::new(0),
            failed: None,
            log: Log::new(depth),
        }
    }

    /// Forgets everything; the queue goes on at sequence number `seq`.
    pub fn reset(&mut self, seq: u32) {
        let log = core::mem::take(&mut self.log);
        *self = Self { log, head: seq, cur: seq, started: seq, ..Self::new(1) };
    }

    /// RTR → RTS: starts at the first sequence number.
    pub fn start(&mut self, c: &RequesterConfig) {
        self.una = c.sq_psn;
        self.cur_psn = c.sq_psn;
        self.next = c.sq_psn;
        self.assigned = c.sq_psn;
        self.configure(c);
    }

    /// Takes over changed attributes (also in SQD); sequence numbers stay.
    pub fn configure(&mut self, c: &RequesterConfig) {
        self.mtu = c.mtu;
        self.timeout_ns = ack_timeout(c.timeout).map_or(0, |t| (t + TURN_SLACK).as_nanos() as u64);
        // What is left of an unchanged count stays: entering SQD gives a peer that is gone no new retries.
        if self.retry_cnt != c.retry_cnt {
            self.retry_cnt = c.retry_cnt;
            self.retry_left = c.retry_cnt;
        }
        if self.rnr_retry != c.rnr_retry {
            self.rnr_retry = c.rnr_retry;
            self.rnr_left = c.rnr_retry;
        }
        self.max_rd_atomic = c.max_rd_atomic;
    }

    /// Sequence number of the oldest work request that is not complete: all before it succeeded.
    #[inline]
    pub fn head(&self) -> u32 {
        self.head
    }

    /// Sequence number of the next work request to start.
    #[inline]
    pub fn started(&self) -> u32 {
        self.started
    }

    /// When [`Requester::handle_timeout`] wants to be called.
    #[inline]
    pub fn deadline(&self) -> Instant {
        self.deadline
    }

    /// Whether every started work request is complete: what SQD waits for.
    #[inline]
    pub fn drained(&self) -> bool {
        self.head == self.started
    }

    /// Sequence number of the next packet, as `ibv_query_qp` tells it (`sq_psn`).
    pub fn sq_psn(&self) -> Psn {
        self.assigned
    }

    /// Starts the ACK timer if a packet is due and none runs, even when the port takes no frame: a link that is
    /// down and a peer that is dead end alike.
    #[inline]
    pub fn arm(&mut self, now: Instant) {
        if self.deadline == Instant::FAR && self.timeout_ns != 0 {
            self.deadline = now.after_nanos(self.timeout_ns);
        }
    }

    /// Nothing can leave: the ACK timer starts with the first packet that does.
    #[cold]
    pub fn rest(&mut self) {
        if !self.rnr_wait {
            self.deadline = Instant::FAR;
        }
    }

    /// Whether it waits out an RNR NAK.
    pub fn waits_for_receive(&self) -> bool {
        self.rnr_wait
    }

    pub(super) fn rearm(&mut self, now: Instant) {
        self.deadline = if self.una == self.next || self.timeout_ns == 0 {
            Instant::FAR
        } else {
            now.after_nanos(self.timeout_ns)
        };
    }

    /// Marks a work request as failed on this side (a bad local key, a malformed request). It completes with
    /// `status` once everything before it has completed; nothing from it on is sent.
    pub fn fail_local(&mut self, seq: u32, status: WcStatus) {
        match self.failed {
            Some((first, _)) if (first.wrapping_sub(seq) as i32) <= 0 => {}
            _ => self.failed = Some((seq, status)),
        }
    }

    /// The status of the oldest work request, if it failed on this side.
    #[inline]
    pub fn local_failure(&self) -> Option<WcStatus> {
        self.failed.and_then(|(seq, status)| (seq == self.head).then_some(status))
    }

    /// Sequence number of the work request whose packet is sent next.
    #[inline]
    pub fn next_to_send(&self) -> u32 {
        self.cur
    }

    /// Where it remembers a work request: what a prefetch asks for.
    #[inline]
    pub fn remembers(&self, seq: u32) -> *const () {
        self.log.place(seq)
    }

    /// A work request that was started and is not complete.
    #[inline(always)]
    pub(super) fn entry(&self, seq: u32) -> Started {
        let next = seq.wrapping_add(1);
        let behind = if next == self.started { self.assigned } else { self.log.get(next).first() };
        self.log.get(seq).until(behind)
    }

    /// Gives the next posted work request so many sequence numbers.
    #[inline(always)]
    fn begin(&mut self, kind: RequestKind, packets: u32) -> Started {
        let remembered = Remembered::new(self.assigned, kind);
        self.log.set(self.started, remembered);
        self.assigned = self.assigned.add(packets);
        self.started = self.started.wrapping_add(1);
        remembered.until(self.assigned)
    }

    /// Request packets sent and not acknowledged.
    #[inline]
    fn in_flight(&self) -> u32 {
        (self.cur_psn.diff(self.una) as u32 & 0x00ff_ffff).saturating_sub(self.read_psns)
    }

    /// Packets that wait to be built and may go now, as far as a glance at the next request tells: for who takes
    /// buffers for a burst.
    #[inline]
    pub fn waiting(&self, sq: &impl SendRing) -> u32 {
        let begun = match self.cur == self.started {
            true => 0,
            false => (self.entry(self.cur).last.diff(self.cur_psn) + 1).max(1) as u32,
        };
        let waiting = match sq.published().wrapping_sub(self.started) {
            0 => begun,
            posted => begun + self.unstarted(SendWqe::of(sq.slot(self.started)), posted),
        };
        waiting.min(WINDOW_PACKETS.saturating_sub(self.in_flight()))
    }

    /// Whether nothing is left to send, or to be told about: who has just built a packet need not ask for another, and who
    /// has taken a response need not ask at all.
    #[inline]
    pub fn sent_all(&self, sq: &impl SendRing) -> bool {
        self.cur == self.started && self.failed.is_none() && self.started == sq.published()
    }

    /// Packets of `posted` requests that have not started, if all are like `next`, which is the first of them.
    #[inline]
    fn unstarted(&self, next: &SendWqe, posted: u32) -> u32 {
        let shape = Shape::of(next);
        let (room, packets) = match shape.kind {
            Some(RequestKind::Message) if shape.takes_recv && !self.unlimited => {
                ((self.lsn.diff(self.ssn) + 2).max(0) as u32, self.mtu.packets(next.length))
            }
            Some(RequestKind::Message) => (posted, self.mtu.packets(next.length)),
            _ => (self.max_rd_atomic.saturating_sub(self.rd_outstanding).into(), 1),
        };
        match posted.min(room) {
            0 => 0,
            n => n - 1 + packets,
        }
    }

    /// The next packet to build, or why there is none.
    #[inline(always)]
    pub fn poll_transmit<'a>(
        &mut self,
        now: Instant,
        gates: Gates,
        epoch: u32,
        sq: &'a impl SendRing,
    ) -> Result<Segment<'a>, Idle> {
        let (started, slot) = loop {
            if self.rnr_wait || self.failed.is_some() || !gates.has(Gates::TX_RETRY) {
                self.held_up(gates)?;
            }
            if self.cur == self.started {
                match self.start_next(gates, epoch, sq)? {
                    Some(next) => break next,
                    None => continue,
                }
            }
            let started = self.entry(self.cur);
            if started.kind.is_silent() {
                self.cur = self.cur.wrapping_add(1);
                continue;
            }
            break (started, sq.slot(self.cur));
        };
        self.arm(now);
        let in_flight = self.in_flight();
        if in_flight >= WINDOW_PACKETS {
            hit(Mark::WindowFull);
            return Err(Idle::Waiting);
        }
        let message = started.kind == RequestKind::Message;
        let segment = if message {
            // In SQD nothing follows that could ask for the acknowledgement of what has started.
            let draining = !gates.has(Gates::START_WQE);
            self.message_segment(slot, &started, in_flight, draining)
        } else {
            self.other_segment(slot, &started)
        };
        let last = if message { segment.psn } else { started.last };
        if last == started.last {
            self.cur = self.cur.wrapping_add(1);
        }
        self.cur_psn = last.add(1);
        if !segment.again || self.cur_psn.diff(self.next) > 0 {
            self.next = self.cur_psn;
        }
        Ok(segment)
    }

    /// Why nothing is sent at all, unless what failed on this side is further on.
    #[cold]
    fn held_up(&mut self, gates: Gates) -> Result<(), Idle> {
        if self.rnr_wait {
            return Err(Idle::Waiting);
        }
        if self.failed.is_some_and(|(seq, _)| (self.cur.wrapping_sub(seq) as i32) >= 0) {
            return Err(self.failed_idle());
        }
        if !gates.has(Gates::TX_RETRY) {
            if self.drained() {
                self.deadline = Instant::FAR;
            }
            return Err(Idle::NothingToDo);
        }
        Ok(())
    }

    /// A request on this side failed, and nothing from it on is sent.
    #[cold]
    fn failed_idle(&self) -> Idle {
        if self.local_failure().is_some() { Idle::Failed } else { Idle::Waiting }
    }

    /// Gives the next posted work request its sequence numbers, if everything allows it to start. `None`: something
    /// else comes first, so look again.
    #[inline(always)]
    fn start_next<'a>(
        &mut self,
        gates: Gates,
        epoch: u32,
        sq: &'a impl SendRing,
    ) -> Result<Option<(Started, &'a [Granule])>, Idle> {
        if self.started == sq.published() || !gates.has(Gates::START_WQE) {
            if self.drained() {
                self.deadline = Instant::FAR; // whatever was due when the timer started is gone
            }
            return Err(Idle::NothingToDo);
        }
        let slot = sq.slot(self.started);
        let wqe = SendWqe::of(slot);
        if wqe.epoch != epoch {
            self.pass(RequestKind::Stale);
            return Ok(None);
        }
        let Shape { kind: Some(kind), takes_recv, .. } = *Shape::of(wqe) else {
            return self.start_local(wqe).map(|()| None);
        };
        if wqe.flags().contains(SendFlags::FENCE) && self.rd_outstanding > 0 {
            hit(Mark::FenceWaits);
            return Err(Idle::Waiting);
        }
        if kind != RequestKind::Message {
            if self.max_rd_atomic == 0 {
                self.fail_local(self.started, WcStatus::LocQpOpErr);
                return Err(self.failed_idle());
            }
            if self.rd_outstanding >= self.max_rd_atomic {
                hit(Mark::ReadLimit);
                return Err(Idle::Waiting);
            }
        }
        // One request beyond the credits may go: its answer tells when there are more (IBA 9.7.7.2).
        if takes_recv && !self.unlimited && self.ssn.diff(self.lsn) > 1 {
            hit(Mark::NoCredits);
            return Err(Idle::Waiting);
        }
        let packets = match kind {
            RequestKind::Message | RequestKind::Read => self.mtu.packets(wqe.length),
            _ => 1,
        };
        let outstanding = self.assigned.diff(self.una) as u32 & 0x00ff_ffff;
        if outstanding + packets > 1 << 23 {
            return Err(Idle::Waiting);
        }
        let started = self.begin(kind, packets);
        self.ssn = self.ssn.add(1);
        if kind != RequestKind::Message {
            self.rd_outstanding += 1;
        }
        if !takes_recv {
            self.lsn = self.lsn.add(1);
        }
        Ok(Some((started, slot)))
    }

    /// The next request sends nothing. Whether a local operation may be carried out now: it follows what has started
    /// before it; an invalidation follows what has completed, so that no earlier request still uses the key.
    #[cold]
    fn start_local(&mut self, wqe: &SendWqe) -> Result<(), Idle> {
        match wqe.opcode() {
            WrOpcode::LocalInv if !self.drained() => {
                if self.silent() {
                    self.probe(); // nothing behind it would ask for the acknowledgement
                    return Ok(());
                }
                Err(Idle::Waiting)
            }
            WrOpcode::LocalInv | WrOpcode::BindMw | WrOpcode::RegMr => {
                let fenced = wqe.flags().contains(SendFlags::FENCE);
                Err(if fenced && self.rd_outstanding > 0 { Idle::Waiting } else { Idle::Local(self.started) })
            }
            _ => {
                self.fail_local(self.started, WcStatus::LocQpOpErr);
                Err(self.failed_idle())
            }
        }
    }

    /// The local operation of [`Idle::Local`] is carried out.
    #[cold]
    pub fn local_done(&mut self, seq: u32) {
        debug_assert_eq!(seq, self.started, "a local operation is carried out when it starts");
        self.pass(RequestKind::Local);
    }

    /// Starts the next request, which takes no sequence number.
    #[cold]
    fn pass(&mut self, kind: RequestKind) {
        self.begin(kind, 0);
        self.skip_silent();
    }

    /// Completes requests without sequence numbers that are the oldest.
    pub(super) fn skip_silent(&mut self) {
        while self.head != self.started && self.log.get(self.head).is_silent() {
            if self.cur == self.head {
                self.cur = self.cur.wrapping_add(1);
            }
            self.head = self.head.wrapping_add(1);
        }
    }

    #[inline(always)]
    fn message_segment<'a>(
        &mut self,
        slot: &'a [Granule],
        started: &Started,
        in_flight: u32,
        draining: bool,
    ) -> Segment<'a> {
        let wqe = SendWqe::of(slot);
        let (index, is_last) = match started.first == started.last {
            true => (0, true),
            false => (self.cur_psn.diff(started.first) as u32 & 0x00ff_ffff, self.cur_psn == started.last),
        };
        let offset = index << self.mtu.log2();
        let position = match (index, is_last) {
            (0, true) => Position::Only,
            (0, false) => Position::First,
            (_, false) => Position::Middle,
            (_, true) => Position::Last,
        };
        let shape = Shape::of(wqe);
        let tail = if is_last { shape.tail } else { Tail::None };
        let reth = || Reth { va: wqe.remote_addr, rkey: wqe.rkey, len: wqe.length };
        let ext = match (shape.packet == Kind::Write && index == 0, tail) {
            (false, Tail::None) => Ext::None,
            (false, Tail::Imm) => Ext::Imm(wqe.imm()),
            (true, Tail::Imm) => Ext::RethImm(reth(), wqe.imm()),
            (true, _) => Ext::Reth(reth()),
            (_, Tail::Inv) => Ext::Inv(wqe.rkey_to_invalidate()),
        };
        let again = self.cur_psn.diff(self.next) < 0;
        // A retried range asks at once; inside a message often enough that the window never closes silently.
        self.since_ack_req += 1;
        let restarted = again && self.cur_psn == self.una;
        let ack_req = (is_last && (draining || self.wants_answer(wqe)))
            || restarted
            || self.probing
            || u32::from(self.since_ack_req) >= ACK_REQ_STRIDE
            || in_flight + 1 >= WINDOW_PACKETS;
        self.probing = false;
        if ack_req {
            self.since_ack_req = 0;
        }
        Segment {
            seq: self.cur,
            slot,
            opcode: Opcode::rc(shape.packet, position, tail),
            psn: self.cur_psn,
            ack_req,
            solicited: is_last && shape.takes_recv && wqe.flags().contains(SendFlags::SOLICITED),
            ext,
            offset,
            len: if is_last { wqe.length - offset } else { self.mtu.bytes() as u32 },
            again,
        }
    }

    /// Whether the end of this message asks for its acknowledgement. Somebody waits for a signalled request; an
    /// unsignalled one may be acknowledged along with a later one, as long as neither slots nor credits run short.
    /// If nothing follows, the timer asks ([`Requester::probe`]).
    #[inline(always)]
    fn wants_answer(&self, wqe: &SendWqe) -> bool {
        let slots_short = self.started.wrapping_sub(self.head) * 2 > self.log.depth();
        let credits_short =
            !self.unlimited && Shape::of(wqe).takes_recv && self.lsn.diff(self.ssn) < CREDITS_LOW;
        wqe.signaled() || slots_short || credits_short || self.timeout_ns == 0
    }

    /// Whether packets went out since an acknowledgement was last asked for, and nothing is left to send.
    pub(super) fn silent(&self) -> bool {
        self.since_ack_req > 0 && self.cur_psn == self.next && self.una != self.next && !self.rnr_wait
    }

    /// SQD was entered: what went out unasked for is asked for now, unless packets that will ask are left to send.
    pub fn drain(&mut self) {
        if self.cur == self.started {
            self.probe();
        }
    }

    /// Sends the last packet again, asking for an acknowledgement this time.
    pub fn probe(&mut self) {
        if self.silent() {
            hit(Mark::Probe);
            self.rewind(self.next.sub(1));
            self.probing = true;
        }
    }

    /// The packet of a request that is answered by something else than an acknowledgement.
    #[inline(always)]
    fn other_segment<'a>(&mut self, slot: &'a [Granule], started: &Started) -> Segment<'a> {
        match started.kind {
            RequestKind::Read => self.read_segment(slot, started),
            RequestKind::Placement => self.placement_segment(slot),
            _ => self.atomic_segment(slot),
        }
    }

    /// A READ request for what is still missing: a retry starts at the first response not received.
    #[inline(always)]
    fn read_segment<'a>(&mut self, slot: &'a [Granule], started: &Started) -> Segment<'a> {
        let wqe = SendWqe::of(slot);
        let index = self.cur_psn.diff(started.first) as u32 & 0x00ff_ffff;
        let skipped = index << self.mtu.log2();
        if index > 0 {
            hit(Mark::ReadRestart);
        }
        if self.cur_psn == self.next {
            self.read_psns += started.last.diff(started.first) as u32 & 0x00ff_ffff;
        }
        let reth = Reth {
            va: wqe.remote_addr.wrapping_add(u64::from(skipped)),
            rkey: wqe.rkey,
            len: wqe.length - skipped,
        };
        self.request_segment(slot, Opcode::RC_READ_REQUEST, Ext::Reth(reth))
    }

    #[inline(always)]
    fn atomic_segment<'a>(&mut self, slot: &'a [Granule]) -> Segment<'a> {
        let wqe = SendWqe::of(slot);
        let swaps = wqe.opcode() == WrOpcode::AtomicCmpAndSwp;
        let opcode = if swaps { Opcode::RC_CMP_SWAP } else { Opcode::RC_FETCH_ADD };
        self.request_segment(slot, opcode, Ext::Atomic(wqe.atomic()))
    }

    #[inline(always)]
    fn placement_segment<'a>(&mut self, slot: &'a [Granule]) -> Segment<'a> {
        let wqe = SendWqe::of(slot);
        if wqe.opcode() == WrOpcode::AtomicWrite {
            let reth = Reth { va: wqe.remote_addr, rkey: wqe.rkey, len: wqe.length };
            let segment = self.request_segment(slot, Opcode::RC_ATOMIC_WRITE, Ext::Reth(reth));
            return Segment { len: wqe.length, ..segment };
        }
        let (feth, len) = wqe.flush();
        let reth = Reth { va: wqe.remote_addr, rkey: wqe.rkey, len };
        self.request_segment(slot, Opcode::RC_FLUSH, Ext::FlushReth(feth, reth))
    }

    #[inline(always)]
    fn request_segment<'a>(&mut self, slot: &'a [Granule], opcode: Opcode, ext: Ext) -> Segment<'a> {
        self.since_ack_req = 0;
        Segment {
            seq: self.cur,
            slot,
            opcode,
            psn: self.cur_psn,
            ack_req: true,
            solicited: false,
            ext,
            offset: 0,
            len: 0,
            again: self.cur_psn.diff(self.next) < 0,
        }
    }

    /// Makes `psn`, at or behind `una`, the next packet.
    pub(super) fn rewind(&mut self, psn: Psn) {
        let mut seq = self.head;
        while seq != self.started {
            let e = self.entry(seq);
            if !e.kind.is_silent() && e.last.diff(psn) >= 0 {
                break;
            }
            seq = seq.wrapping_add(1);
        }
        self.cur = seq;
        self.cur_psn = psn;
    }

    /// After `una` moved: a cursor that was set back and overtaken by a late acknowledgement moves with it.
    #[inline]
    pub(super) fn catch_up(&mut self) {
        if self.una.diff(self.cur_psn) > 0 {
            hit(Mark::RetryOvertaken);
            self.rewind(self.una);
        }
    }

    /// Whether RNR NAKs are retried for ever.
    pub(super) fn rnr_forever(&self) -> bool {
        self.rnr_retry == RNR_RETRY_FOREVER
    }
}
