//! New requests of one kind, a packet each, started one after the other: what the send queue of a busy queue pair mostly
//! holds.
//!
//! [`Requester::poll_transmit`] decides everything for each packet. Most of that is the same for the next packet: gates,
//! credits, window, READ limit, what the operation is, when an acknowledgement is to be asked for. A [`Run`] works it out
//! once, and keeps what moves in registers until [`Requester::end_run`]. The packets, and the requester afterwards, are
//! those of `poll_transmit`.

use super::{Remembered, RequestKind, Requester, SendRing, Shape};
use crate::config::{ACK_REQ_STRIDE, CREDITS_LOW, WINDOW_PACKETS};
use crate::id::{Mtu, Psn};
use crate::proto::state::Gates;
use crate::proto::status::{SendFlags, WrOpcode};
use crate::proto::wqe::{Granule, SendWqe};
use crate::time::Instant;
use crate::wire::{Kind, Opcode, Position, Tail};

/// The extension headers of a run's packets, and what answers them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Form {
    /// SEND: none.
    Bare,
    /// SEND with immediate: its data.
    Imm,
    /// SEND with invalidate: a key.
    Inv,
    /// WRITE: RETH.
    Write,
    /// WRITE with immediate: RETH and the data.
    WriteImm,
    /// READ: RETH, no payload.
    Read,
    /// COMPARE&SWAP and FETCH&ADD: AtomicETH, no payload.
    Atomic,
}

/// The next request of a [`Run`].
#[derive(Clone, Copy, Debug)]
pub struct Next<'a> {
    /// How many of the run are before it.
    pub index: u32,
    /// Its slot.
    pub slot: &'a [Granule],
    /// Sequence number of its packet.
    pub psn: Psn,
    /// Whether the packet asks for an acknowledgement.
    pub ack_req: bool,
}

/// The caller could not build a packet: a run ends with it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Unbuilt;

/// What a run moved: for [`Requester::end_run`].
#[derive(Clone, Copy, Debug)]
#[must_use = "the requester does not know yet"]
pub struct Ran {
    kind: RequestKind,
    takes_recv: bool,
    started: u32,
    psn: Psn,
    since_ack_req: u8,
}

/// Requests that may start now; see the module.
#[derive(Debug)]
pub struct Run<'a> {
    form: Form,
    opcode: Opcode,
    solicited: bool,
    sole: bool,
    kind: RequestKind,
    takes_recv: bool,
    since_ack_req: u8,
    mtu: Mtu,
    slots: &'a [Granule],
    stride: usize,
    log: &'a mut [Remembered],
    epoch: u32,
    like: u32,
    /// Longest message, in bytes.
    longest: u32,
    psn: Psn,
    /// Packets without an answer before the first.
    outstanding: u32,
    /// From this one on each asks for an acknowledgement: slots, credits or the window run short.
    always: u32,
}

impl Form {
    /// Of an operation, and the opcode of its packet.
    #[inline]
    fn of(opcode: WrOpcode) -> Option<(Self, Opcode)> {
        let only = |kind, tail| Opcode::rc(kind, Position::Only, tail);
        Some(match opcode {
            WrOpcode::Send => (Self::Bare, only(Kind::Send, Tail::None)),
            WrOpcode::SendWithImm => (Self::Imm, only(Kind::Send, Tail::Imm)),
            WrOpcode::SendWithInv => (Self::Inv, only(Kind::Send, Tail::Inv)),
            WrOpcode::RdmaWrite => (Self::Write, only(Kind::Write, Tail::None)),
            WrOpcode::RdmaWriteWithImm => (Self::WriteImm, only(Kind::Write, Tail::Imm)),
            WrOpcode::RdmaRead => (Self::Read, Opcode::RC_READ_REQUEST),
            WrOpcode::AtomicCmpAndSwp => (Self::Atomic, Opcode::RC_CMP_SWAP),
            WrOpcode::AtomicFetchAndAdd => (Self::Atomic, Opcode::RC_FETCH_ADD),
            _ => return None,
        })
    }
}

impl<'a> Run<'a> {
    /// What its packets carry.
    #[inline(always)]
    pub fn form(&self) -> Form {
        self.form
    }
    /// The opcode of its packets, of the class RC.
    #[inline(always)]
    pub fn opcode(&self) -> Opcode {
        self.opcode
    }
    /// Whether its packets carry the solicited event bit.
    #[inline(always)]
    pub fn solicited(&self) -> bool {
        self.solicited
    }
    /// Whether the data of each message is that of one scatter/gather element: [`SendWqe::first_sge`].
    #[inline(always)]
    pub fn sole(&self) -> bool {
        self.sole
    }

    /// Starts SENDs or WRITEs, one for each of `places` at most, which `build` makes packets of. Ends where something else
    /// than their like follows, and behind the one that could not be built.
    #[inline(always)]
    pub fn messages<P>(
        self,
        places: &mut [P],
        mut build: impl FnMut(Next<'a>, &mut P) -> Result<(), Unbuilt>,
    ) -> (Ran, Result<(), Unbuilt>) {
        let (epoch, like, always, first) = (self.epoch, self.like, self.always, self.psn);
        let longest = self.longest;
        // Behind the last one that asked for an acknowledgement; before the first where that was before the run.
        let mut asked = 0u32.wrapping_sub(self.since_ack_req.into());
        let mut due = always.min(asked.wrapping_add(ACK_REQ_STRIDE - 1));
        let (mut n, mut result) = (0, Ok(()));
        for ((slot, entry), place) in self.slots.chunks_exact(self.stride).zip(self.log).zip(places) {
            let wqe = SendWqe::of(slot);
            if wqe.epoch != epoch || wqe.likeness() != like || wqe.length > longest {
                break;
            }
            let (index, psn) = (n, first.add(n));
            *entry = Remembered::new(psn, RequestKind::Message);
            n += 1;
            let ack_req = index >= due || wqe.signaled();
            if ack_req {
                asked = n;
                due = always.min(n + (ACK_REQ_STRIDE - 1));
            }
            result = build(Next { index, slot, psn, ack_req }, place);
            if result.is_err() {
                break;
            }
        }
        let since_ack_req = n.wrapping_sub(asked) as u8;
        let (kind, takes_recv, psn) = (self.kind, self.takes_recv, first.add(n));
        (Ran { kind, takes_recv, started: n, psn, since_ack_req }, result)
    }

    /// Starts READs, one for each of `places` at most; as [`Run::messages`].
    #[inline(always)]
    pub fn reads<P>(self, places: &mut [P], build: impl FnMut(Next<'a>, &mut P)) -> Ran {
        let mtu = self.mtu;
        self.requests(RequestKind::Read, |wqe| mtu.packets(wqe.length), places, build)
    }

    /// Starts atomics, one for each of `places` at most; as [`Run::messages`].
    #[inline(always)]
    pub fn atomics<P>(self, places: &mut [P], build: impl FnMut(Next<'a>, &mut P)) -> Ran {
        self.requests(RequestKind::Atomic, |_| 1, places, build)
    }

    /// Starts requests that are answered by as many responses as `packets` says.
    #[inline(always)]
    fn requests<P>(
        self,
        kind: RequestKind,
        packets: impl Fn(&SendWqe) -> u32,
        places: &mut [P],
        mut build: impl FnMut(Next<'a>, &mut P),
    ) -> Ran {
        let (mut index, mut psn, mut outstanding) = (0, self.psn, self.outstanding);
        for ((slot, entry), place) in self.slots.chunks_exact(self.stride).zip(self.log).zip(places) {
            let wqe = SendWqe::of(slot);
            if wqe.epoch != self.epoch || wqe.likeness() != self.like {
                break;
            }
            let packets = packets(wqe);
            outstanding += packets;
            if outstanding > OUTSTANDING_MAX {
                break;
            }
            *entry = Remembered::new(psn, kind);
            build(Next { index, slot, psn, ack_req: true }, place);
            psn = psn.add(packets);
            index += 1;
        }
        Ran { kind, takes_recv: false, started: index, psn, since_ack_req: 0 }
    }
}

impl Ran {
    /// Requests that were started.
    #[inline]
    pub fn started(&self) -> u32 {
        self.started
    }
}

impl Requester {
    /// The next packets, `room` at most, if they are those of a [`Run`] of two or more and nothing else is to be sent
    /// first, one at least; messages of more than `longest` bytes are in none. `None` says nothing:
    /// [`Requester::poll_transmit`] has the answer.
    #[inline(always)]
    pub fn begin_run<'a>(
        &'a mut self,
        now: Instant,
        gates: Gates,
        epoch: u32,
        sq: &'a impl SendRing,
        room: u32,
        longest: u32,
    ) -> Option<Run<'a>> {
        if self.cur != self.started
            || self.rnr_wait
            || self.probing
            || self.failed.is_some()
            || !gates.has(Gates::TX_RETRY)
            || !gates.has(Gates::START_WQE)
        {
            return None;
        }
        let in_flight = self.in_flight();
        let window = WINDOW_PACKETS.saturating_sub(in_flight);
        let posted = sq.published().wrapping_sub(self.started);
        let places = self.log.contiguous(self.started, u32::MAX).len() as u32;
        let most = posted.min(room).min(window).min(places);
        if most < 2 {
            return None; // one alone is cheaper without
        }
        debug_assert!(self.cur_psn == self.assigned && self.next == self.assigned, "nothing is sent twice");
        let (slots, stride) = sq.contiguous(self.started, most);
        let wqe = SendWqe::of(slots);
        let (form, opcode) = Form::of(wqe.opcode())?;
        let Shape { kind: Some(kind), takes_recv, .. } = *Shape::of(wqe) else { return None };
        let flags = wqe.flags();
        if wqe.epoch != epoch || (flags.contains(SendFlags::FENCE) && self.rd_outstanding > 0) {
            return None;
        }
        let outstanding = distance(self.assigned, self.una);
        let mut run = Run {
            form,
            opcode,
            solicited: takes_recv && flags.contains(SendFlags::SOLICITED),
            sole: wqe.num_sge == 1 && wqe.ext == 0 && !flags.contains(SendFlags::INLINE),
            kind,
            takes_recv,
            since_ack_req: self.since_ack_req,
            mtu: self.mtu,
            slots,
            stride,
            log: &mut [],
            epoch,
            like: wqe.likeness(),
            longest: longest.min(self.mtu.bytes() as u32),
            psn: self.assigned,
            outstanding,
            always: 0,
        };
        let most = if kind == RequestKind::Message {
            if wqe.length > run.longest {
                return None;
            }
            // From which one on each asks for an acknowledgement: see `Requester::wants_answer`.
            let slots_left = (self.log.depth() / 2).saturating_sub(self.started.wrapping_sub(self.head));
            let (mut most, mut always) =
                (most.min(OUTSTANDING_MAX.saturating_sub(outstanding)), slots_left.min(window - 1));
            if takes_recv && !self.unlimited {
                let ahead = self.lsn.diff(self.ssn);
                // One request beyond the credits may go.
                most = most.min((ahead + 2).max(0) as u32);
                always = always.min((ahead - CREDITS_LOW).max(0) as u32);
            }
            run.always = if self.timeout_ns == 0 { 0 } else { always };
            most
        } else {
            let packets = if kind == RequestKind::Read { self.mtu.packets(wqe.length) } else { 1 };
            if outstanding + packets > OUTSTANDING_MAX {
                return None;
            }
            let limit = if flags.contains(SendFlags::FENCE) { 1 } else { self.max_rd_atomic };
            most.min(limit.saturating_sub(self.rd_outstanding).into())
        };
        if most < 2 {
            return None;
        }
        // Started as in `poll_transmit`, where each packet looks.
        if self.deadline == Instant::FAR && self.timeout_ns != 0 {
            self.deadline = now.after_nanos(self.timeout_ns);
        }
        run.log = self.log.contiguous(self.started, most);
        Some(run)
    }

    /// Takes over what a run moved.
    #[inline(always)]
    pub fn end_run(&mut self, ran: Ran) {
        let Ran { kind, takes_recv, started, psn, since_ack_req } = ran;
        self.started = self.started.wrapping_add(started);
        self.cur = self.started;
        self.ssn = self.ssn.add(started);
        if !takes_recv {
            self.lsn = self.lsn.add(started);
        }
        self.since_ack_req = since_ack_req;
        if kind != RequestKind::Message {
            self.rd_outstanding += started as u8;
            self.read_psns += distance(psn, self.assigned) - started;
        }
        self.assigned = psn;
        self.cur_psn = psn;
        self.next = psn;
    }
}

/// Sequence numbers without an answer, at most: as many behind as ahead (IBA 9.7.1).
const OUTSTANDING_MAX: u32 = 1 << 23;

/// How far `psn` is ahead of `una`.
#[inline(always)]
fn distance(psn: Psn, una: Psn) -> u32 {
    psn.diff(una) as u32 & 0x00ff_ffff
}
