//! The responder: request packets in, verdicts and answers out (IBA 9.7.4, 9.7.5, 9.9.3).
//!
//! [`Responder::handle_request`] checks a packet in the specification's order and says what is to be placed;
//! after the caller placed it, [`Responder::accept`] moves the state on. Nothing changes for a packet that is
//! refused, except what the refusal itself is. Answers wait in [`Responder::poll_transmit`], in PSN order.

use super::fault::{Fault, Reply as Answer};
use super::tables::{CREDIT_UNLIMITED, Syndrome, credit_code};
use crate::config::MESSAGE_MAX;
use crate::id::{Mtu, PdId, Psn, QpType};
use crate::mark::{Mark, hit};
use crate::mem::{Access, KeyFault, MrTable, Place};
use crate::wire::{Aeth, Discard, Feth, Kind, Opcode, Packet, Position, Tail};

mod unreliable;

pub use unreliable::GRH_LEN;

/// The receive side's settings, from the queue pair's attributes.
#[derive(Clone, Copy, Debug)]
pub struct ResponderConfig {
    /// Path MTU.
    pub mtu: Mtu,
    /// What the peer may do (`qp_access_flags`).
    pub access: Access,
    /// RNR timer code sent in RNR NAKs, `0..=31`.
    pub min_rnr_timer: u8,
}

/// Where the queue pair's receives come from.
pub trait ReceiveSource {
    /// Takes the next receive request and returns the bytes its buffers hold; `None` when there is none.
    fn take(&mut self) -> Option<u64>;
}

/// What to do with a packet that passed every check.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// Nothing to place: call [`Responder::accept`].
    Accept,
    /// Write the payload at `offset` of the receive request's buffers, then `accept`.
    Receive {
        /// Bytes of the message before this packet.
        offset: u64,
    },
    /// Write the payload to this place in our memory, then `accept`.
    Write {
        /// What the key grants: room for the whole payload.
        place: Place,
        /// Whether the message ends here: its last byte is stored last.
        last: bool,
    },
    /// Perform the atomic on the 64-bit word at this place, then [`Responder::accept_atomic`].
    Atomic {
        /// The word, 8-byte aligned.
        place: Place,
        /// COMPARE&SWAP, else FETCH&ADD.
        swap: bool,
    },
    /// ATOMIC WRITE: store the payload into the 64-bit word at this place in one step, then `accept`.
    Store {
        /// The word, 8-byte aligned.
        place: Place,
    },
    /// FLUSH: make everything placed before visible to every CPU, then `accept`.
    Flush,
    /// A duplicate: an answer is queued where one is due; nothing is placed.
    Duplicate,
}

/// A receive completion that [`Responder::accept`] produced.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Received {
    /// Bytes of the message.
    pub byte_len: u32,
    /// Whether it is a WRITE with immediate.
    pub write: bool,
    /// Immediate data or invalidated key.
    pub tail: Option<ReceivedTail>,
    /// The message asked for a solicited event.
    pub solicited: bool,
}

/// What came with the last packet of a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ReceivedTail {
    /// Immediate data.
    Imm([u8; 4]),
    /// A key to invalidate.
    Inv(u32),
}

/// An answer to build.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Answered {
    /// ACKNOWLEDGE with this syndrome.
    Ack {
        /// Its PSN.
        psn: Psn,
        /// Syndrome and MSN.
        aeth: Aeth,
        /// Where it is a NAK that ends the queue pair, the fault: enter ERR once it is with the port.
        fatal: Option<Fault>,
    },
    /// A READ response; look the key up again before its data leaves.
    Read {
        /// Its PSN.
        psn: Psn,
        /// FIRST, MIDDLE, LAST or ONLY.
        opcode: Opcode,
        /// Syndrome and MSN (not sent in MIDDLE).
        aeth: Aeth,
        /// Key of the request.
        rkey: u32,
        /// Virtual address of the payload.
        va: u64,
        /// Bytes.
        len: u32,
        /// Protection domain that the request was checked in.
        pd: PdId,
    },
    /// An ATOMIC ACKNOWLEDGE.
    Atomic {
        /// Its PSN.
        psn: Psn,
        /// Syndrome and MSN.
        aeth: Aeth,
        /// The value before the operation.
        original: u64,
    },
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum InProgress {
    None,
    Send,
    Write,
}

/// A READ, ATOMIC, ATOMIC WRITE or FLUSH that may have to be answered again (IBA 9.7.5.1.2: responder resources).
#[derive(Clone, Copy, Debug)]
struct Resource {
    kind: Kind,
    /// An answer is due.
    pending: bool,
    /// It was answered in full before: the requester may have that answer and be done with it.
    replay: bool,
    first: Psn,
    last: Psn,
    /// First PSN of the answer being sent: it goes out as FIRST or ONLY.
    start: Psn,
    /// PSN of the next response packet.
    next: Psn,
    rkey: u32,
    /// An XRC target's requests may be of several domains.
    pd: PdId,
    len: u32,
    va: u64,
    /// Operands of an atomic, compared with a duplicate's.
    operands: [u64; 2],
    original: u64,
}

/// The receive side of one reliable queue pair. What READs and atomics alone need comes first: see [`Responder::MESSAGES`].
#[derive(Debug)]
#[repr(C)]
pub struct Responder {
    resources: Box<[Resource]>,
    /// Protection domain of the READ that is being accepted.
    read_pd: PdId,
    /// Slot that the next READ or ATOMIC takes: the oldest.
    oldest: u8,

    capacity: u64,
    received: u64,
    write_va: u64,
    epsn: Psn,
    msn: Psn,
    /// The newest message packet that asked for an acknowledgement.
    asked: Psn,
    /// The number of the last answer handed out, which acknowledges everything before it.
    answered: Psn,
    write_left: u32,
    write_len: u32,
    write_rkey: u32,
    access: Access,
    ack: Option<(Psn, Pending)>,
    fatal: Option<Fault>,
    mtu: Mtu,
    min_rnr_timer: u8,
    in_progress: InProgress,
    /// A NAK is out: no other one until the expected packet arrives.
    nak_latch: bool,
    /// A receive request is held by the message in progress.
    holds_receive: bool,
    /// READs and atomics that wait to be answered.
    pending: u8,
    /// A request is answered again that was answered before, maybe older than some that are not being answered.
    replaying: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Pending {
    Ack,
    Nak(u8),
}

impl Default for Responder {
    fn default() -> Self {
        Self::new()
    }
}

impl Responder {
    /// Where that begins which messages and their acknowledgements touch, in bytes.
    pub const MESSAGES: usize = core::mem::offset_of!(Self, capacity);

    /// A responder at rest.
    pub fn new() -> Self {
        Self {
            epsn: Psn::new(0),
            msn: Psn::new(0),
            mtu: Mtu::Mtu1024,
            access: Access::empty(),
            min_rnr_timer: 0,
            in_progress: InProgress::None,
            nak_latch: false,
            holds_receive: false,
            fatal: None,
            ack: None,
            asked: Psn::new(0),
            answered: Psn::new(0),
            capacity: 0,
            received: 0,
            write_va: 0,
            write_left: 0,
            write_len: 0,
            write_rkey: 0,
            read_pd: PdId(0),
            oldest: 0,
            pending: 0,
            replaying: false,
            resources: Box::default(),
        }
    }

    /// INIT → RTR: expects `rq_psn` and keeps `max_dest_rd_atomic` READs and atomics for replay.
    pub fn start(&mut self, c: &ResponderConfig, rq_psn: Psn, max_dest_rd_atomic: u8) {
        let before = rq_psn.sub(1);
        *self = Self { epsn: rq_psn, asked: before, answered: before, ..Self::new() };
        self.resize_resources(max_dest_rd_atomic);
        self.configure(c);
    }

    /// Takes over changed attributes; sequence numbers stay.
    pub fn configure(&mut self, c: &ResponderConfig) {
        self.mtu = c.mtu;
        self.access = c.access;
        self.min_rnr_timer = c.min_rnr_timer;
    }

    /// Another number of resources (SQD → SQD). The receive side goes on meanwhile: the newest requests are kept, with
    /// their answers, as far as there is room.
    pub fn resize_resources(&mut self, max_dest_rd_atomic: u8) {
        let (had, slots) = (self.resources.len(), usize::from(max_dest_rd_atomic));
        if had == slots {
            return;
        }
        let zero = Psn::new(0);
        let idle = Resource {
            kind: Kind::Ack,
            pending: false,
            replay: false,
            first: zero,
            last: zero,
            start: zero,
            next: zero,
            rkey: 0,
            pd: PdId(0),
            len: 0,
            va: 0,
            operands: [0; 2],
            original: 0,
        };
        let mut resources = vec![idle; slots].into_boxed_slice();
        // From the newest backwards, so that slot 0 is the oldest.
        for back in 0..had.min(slots) {
            resources[slots - 1 - back] = self.resources[(usize::from(self.oldest) + had - 1 - back) % had];
        }
        self.pending = resources.iter().filter(|r| r.pending).count() as u8;
        self.resources = resources;
        self.oldest = 0;
    }

    /// The sequence number expected next, as `ibv_query_qp` tells it (`rq_psn`).
    pub fn rq_psn(&self) -> Psn {
        self.epsn
    }

    /// Whether the message in progress holds a receive request.
    pub fn holds_receive(&self) -> bool {
        self.holds_receive
    }

    /// Whether a request packet with this number would be a new one, and not a duplicate or one after a gap.
    #[inline(always)]
    pub fn expects(&self, psn: Psn) -> bool {
        psn == self.epsn && self.fatal.is_none()
    }

    /// Whether a message has begun and not ended.
    pub fn in_message(&self) -> bool {
        self.in_progress != InProgress::None
    }

    /// Whether an answer waits for [`Responder::poll_transmit`].
    #[inline]
    pub fn has_answer(&self) -> bool {
        self.ack.is_some() || self.pending > 0
    }

    /// Whether the peer waits for the acknowledgement of a message, and an answer that brings it waits for
    /// [`Responder::poll_transmit`].
    pub fn owes_acknowledgement(&self) -> bool {
        self.has_answer() && !self.has_acknowledged(self.asked)
    }

    /// The newest message packet that asked for an acknowledgement.
    pub fn asked(&self) -> Psn {
        self.asked
    }

    /// Whether the last answer acknowledges this packet.
    pub fn has_acknowledged(&self, psn: Psn) -> bool {
        self.answered.diff(psn) >= 0
    }

    /// Checks a request packet. `Err(Ok(fault))`: refused, answered by [`Responder::refuse`];
    /// `Err(Err(discard))`: dropped without an answer.
    #[inline]
    pub fn handle_request(
        &mut self,
        pkt: &Packet<'_>,
        pd: PdId,
        rq: &mut impl ReceiveSource,
        keys: &MrTable,
    ) -> Result<Verdict, Result<Fault, Discard>> {
        if self.expects(pkt.psn) {
            return self.handle_expected(pkt, pd, rq, keys).map_err(Ok);
        }
        self.handle_unexpected(*pkt)
    }

    /// [`Responder::handle_request`] of a packet with the number that the responder [`expects`](Self::expects).
    #[inline(always)]
    pub fn handle_expected(
        &mut self,
        pkt: &Packet<'_>,
        pd: PdId,
        rq: &mut impl ReceiveSource,
        keys: &MrTable,
    ) -> Result<Verdict, Fault> {
        debug_assert!(self.expects(pkt.psn));
        self.nak_latch = false;
        self.check_sequence(pkt)?;
        self.check_enabled(pkt)?;
        self.take_resource(pkt, rq)?;
        self.check_packet_length(pkt)?;
        match pkt.row.kind {
            Kind::Send => self.check_send(pkt),
            Kind::Write => self.check_write(pkt, pd, keys),
            Kind::ReadRequest => self.check_read(pkt, pd, keys),
            Kind::AtomicWrite => self.check_atomic_write(*pkt, pd, keys),
            Kind::Flush => self.check_flush(*pkt, pd, keys),
            _ => self.check_atomic(pkt, pd, keys),
        }
    }

    /// A packet that is not the next one, or comes after a fault that ends the queue pair.
    #[cold]
    fn handle_unexpected(&mut self, pkt: Packet<'_>) -> Result<Verdict, Result<Fault, Discard>> {
        if self.fatal.is_some() {
            return Err(Err(Discard::BadState));
        }
        if pkt.psn.diff(self.epsn) > 0 {
            if self.nak_latch {
                hit(Mark::GapAgain);
                return Err(Err(Discard::OutOfSequence));
            }
            hit(Mark::Gap);
            return Err(Ok(Fault::PsnGap));
        }
        self.handle_duplicate(pkt).map_err(Err)
    }

    /// IBA 9.7.4.1.2: a message goes on with its own kind; anything else starts one.
    #[inline(always)]
    fn check_sequence(&self, pkt: &Packet<'_>) -> Result<(), Fault> {
        let starts = matches!(pkt.row.position, Position::First | Position::Only);
        let good = match self.in_progress {
            InProgress::None => starts,
            InProgress::Send => !starts && pkt.row.kind == Kind::Send,
            InProgress::Write => !starts && pkt.row.kind == Kind::Write,
        };
        if good { Ok(()) } else { Err(Fault::BadSequence) }
    }

    #[inline(always)]
    fn check_enabled(&self, pkt: &Packet<'_>) -> Result<(), Fault> {
        let need = match pkt.row.kind {
            Kind::Send => return Ok(()),
            Kind::Write | Kind::AtomicWrite => Access::REMOTE_WRITE,
            Kind::ReadRequest => Access::REMOTE_READ,
            Kind::CmpSwap | Kind::FetchAdd => Access::REMOTE_ATOMIC,
            Kind::Flush => flush_right(pkt.feth()).ok_or(Fault::BadOpcode)?,
            _ => return Err(Fault::BadOpcode),
        };
        if self.access.contains(need) { Ok(()) } else { Err(Fault::NotEnabled) }
    }

    #[inline(always)]
    fn take_resource(&mut self, pkt: &Packet<'_>, rq: &mut impl ReceiveSource) -> Result<(), Fault> {
        match pkt.row.kind {
            Kind::Send | Kind::Write => {
                if pkt.row.takes_recv && !self.holds_receive {
                    self.capacity = rq.take().ok_or(Fault::NoReceive)?;
                    self.holds_receive = true;
                }
                Ok(())
            }
            _ => match self.resources.get(usize::from(self.oldest)) {
                Some(r) if !r.pending || r.replay => Ok(()),
                _ => Err(Fault::TooManyRdAtomic),
            },
        }
    }

    /// IBA 9.7.4.1.6 (C9-92 and following): full packets but the last. The pad is right in each packet that was located:
    /// its UDP length is whole words, as its headers are, so 0 to 3 bytes of pad are those that complete a word.
    #[inline(always)]
    fn check_packet_length(&self, pkt: &Packet<'_>) -> Result<(), Fault> {
        let (len, mtu) = (pkt.payload.len(), self.mtu.bytes());
        let good = match pkt.row.kind {
            Kind::Send | Kind::Write => match pkt.row.position {
                Position::First | Position::Middle => len == mtu,
                Position::Last => (1..=mtu).contains(&len),
                Position::Only => len <= mtu,
            },
            Kind::AtomicWrite => len == 8,
            _ => len == 0,
        };
        debug_assert!((len + usize::from(pkt.pad())).is_multiple_of(4), "locate has seen to that");
        if good { Ok(()) } else { Err(Fault::BadLength) }
    }

    #[inline(always)]
    fn check_send(&self, pkt: &Packet<'_>) -> Result<Verdict, Fault> {
        let offset = if pkt.row.position.starts() { 0 } else { self.received };
        let end = offset + pkt.payload.len() as u64;
        if end > self.capacity || end > u64::from(MESSAGE_MAX) {
            return Err(Fault::SendTooLong);
        }
        Ok(if pkt.payload.is_empty() { Verdict::Accept } else { Verdict::Receive { offset } })
    }

    #[inline(always)]
    fn check_write(&mut self, pkt: &Packet<'_>, pd: PdId, keys: &MrTable) -> Result<Verdict, Fault> {
        let len = pkt.payload.len() as u32;
        let last = matches!(pkt.row.position, Position::Last | Position::Only);
        let (va, rkey, left) = if pkt.row.position.starts() {
            let reth = pkt.reth();
            if reth.len > MESSAGE_MAX {
                return Err(Fault::BadLength);
            }
            (reth.va, reth.rkey, reth.len)
        } else {
            (self.write_va, self.write_rkey, self.write_left)
        };
        if if last { len != left } else { len >= left } {
            return Err(Fault::BadLength);
        }
        if left == 0 {
            // C9-88: a message of no bytes is not checked against any key.
            return Ok(Verdict::Accept);
        }
        // The whole range that is left, once more with every packet: a key may be revoked in mid-message.
        let place = keys
            .check_remote(rkey, pd, pkt.dqpn(), Access::REMOTE_WRITE, va, u64::from(left))
            .map_err(|_| Fault::RemoteAccess)?;
        Ok(Verdict::Write { place, last })
    }

    #[inline(always)]
    fn check_read(&mut self, pkt: &Packet<'_>, pd: PdId, keys: &MrTable) -> Result<Verdict, Fault> {
        let reth = pkt.reth();
        if reth.len > MESSAGE_MAX {
            return Err(Fault::BadLength);
        }
        if reth.len > 0 {
            keys.check_remote(reth.rkey, pd, pkt.dqpn(), Access::REMOTE_READ, reth.va, u64::from(reth.len))
                .map_err(|_| Fault::RemoteAccess)?;
        }
        self.read_pd = pd;
        Ok(Verdict::Accept)
    }

    #[inline(always)]
    fn check_atomic(&self, pkt: &Packet<'_>, pd: PdId, keys: &MrTable) -> Result<Verdict, Fault> {
        // What the closure names is no packet: a reference would put the whole one into memory.
        let (eth, dqpn) = (pkt.atomic(), pkt.dqpn());
        let place =
            aligned_word(eth.va, |va| keys.check_remote(eth.rkey, pd, dqpn, Access::REMOTE_ATOMIC, va, 8))?;
        Ok(Verdict::Atomic { place, swap: pkt.row.kind == Kind::CmpSwap })
    }

    /// IBA A19.4: one aligned word, written in one step.
    #[cold]
    fn check_atomic_write(&self, pkt: Packet<'_>, pd: PdId, keys: &MrTable) -> Result<Verdict, Fault> {
        let reth = pkt.reth();
        if reth.len != 8 {
            return Err(Fault::BadLength);
        }
        let place = aligned_word(reth.va, |va| {
            keys.check_remote(reth.rkey, pd, pkt.dqpn(), Access::REMOTE_WRITE, va, 8)
        })?;
        Ok(Verdict::Store { place })
    }

    /// IBA A19.3: the range must be inside the region, unless the whole region is flushed.
    #[cold]
    fn check_flush(&self, pkt: Packet<'_>, pd: PdId, keys: &MrTable) -> Result<Verdict, Fault> {
        let (feth, reth) = (pkt.feth(), pkt.reth());
        let need = flush_right(feth).ok_or(Fault::BadOpcode)?;
        let granted = match feth.selectivity {
            FLUSH_RANGE => {
                keys.check_remote(reth.rkey, pd, pkt.dqpn(), need, reth.va, u64::from(reth.len)).map(|_| ())
            }
            _ => keys.check_whole(reth.rkey, pd, pkt.dqpn(), need),
        };
        granted.map_err(|_| Fault::RemoteAccess)?;
        Ok(Verdict::Flush)
    }

    /// The packet that [`Responder::handle_request`] passed is placed: the state moves on.
    #[inline(always)]
    pub fn accept(&mut self, pkt: &Packet<'_>) -> Option<Received> {
        let len = pkt.payload.len() as u32;
        let starts = matches!(pkt.row.position, Position::First | Position::Only);
        let ends = matches!(pkt.row.position, Position::Last | Position::Only);
        let mut received = None;
        match pkt.row.kind {
            Kind::Send => {
                self.received = if starts { 0 } else { self.received } + u64::from(len);
                self.in_progress = if ends { InProgress::None } else { InProgress::Send };
                if ends {
                    received = Some(self.received(pkt, self.received as u32));
                }
            }
            Kind::Write => {
                if starts {
                    let reth = pkt.reth();
                    self.write_va = reth.va;
                    self.write_rkey = reth.rkey;
                    self.write_len = reth.len;
                    self.write_left = reth.len;
                }
                self.write_va = self.write_va.wrapping_add(u64::from(len));
                self.write_left -= len;
                self.in_progress = if ends { InProgress::None } else { InProgress::Write };
                if pkt.row.takes_recv {
                    received = Some(self.received(pkt, self.write_len));
                }
            }
            kind => {
                // READ, ATOMIC WRITE and FLUSH: answered by READ responses, the last two by an empty one.
                let reth = pkt.reth();
                let packets = if kind == Kind::ReadRequest { self.mtu.packets(reth.len) } else { 1 };
                self.keep(Resource {
                    kind,
                    pending: true,
                    replay: false,
                    first: pkt.psn,
                    last: pkt.psn.add(packets - 1),
                    start: pkt.psn,
                    next: pkt.psn,
                    rkey: reth.rkey,
                    pd: self.read_pd,
                    len: reth.len,
                    va: reth.va,
                    operands: [0; 2],
                    original: 0,
                });
                self.advance(packets);
                self.msn = self.msn.add(1);
                return None;
            }
        }
        self.advance(1);
        if ends {
            self.msn = self.msn.add(1);
        }
        if pkt.ack_req {
            self.ack = Some((pkt.psn, Pending::Ack));
            self.asked = pkt.psn;
        } else if matches!(self.ack, Some((_, Pending::Nak(_)))) {
            hit(Mark::NakWithdrawn);
            self.ack = None; // the packet that it asked for is here
        }
        received
    }

    /// The atomic that [`Responder::handle_request`] passed is executed; `original` is what the word held.
    #[inline(always)]
    pub fn accept_atomic(&mut self, pkt: &Packet<'_>, original: u64) {
        let eth = pkt.atomic();
        self.keep(Resource {
            kind: pkt.row.kind,
            pending: true,
            replay: false,
            first: pkt.psn,
            last: pkt.psn,
            start: pkt.psn,
            next: pkt.psn,
            rkey: eth.rkey,
            pd: self.read_pd,
            len: 8,
            va: eth.va,
            operands: [eth.swap_add, eth.compare],
            original,
        });
        self.advance(1);
        self.msn = self.msn.add(1);
    }

    /// Moves on by `packets`. Every quarter of the circle, resources so old that their numbers are about to be
    /// new again are forgotten.
    #[inline(always)]
    fn advance(&mut self, packets: u32) {
        let before = self.epsn;
        self.epsn = before.add(packets);
        if (before.get() ^ self.epsn.get()) >> 22 != 0 {
            self.forget_old(before);
        }
    }

    #[cold]
    fn forget_old(&mut self, before: Psn) {
        for r in self.resources.iter_mut().filter(|r| !r.pending && before.diff(r.last) > 1 << 21) {
            r.kind = Kind::Ack;
        }
    }

    #[inline(always)]
    fn received(&mut self, pkt: &Packet<'_>, byte_len: u32) -> Received {
        self.holds_receive = false;
        let tail = match pkt.row.tail {
            Tail::None => None,
            Tail::Imm => Some(ReceivedTail::Imm(pkt.imm())),
            Tail::Inv => Some(ReceivedTail::Inv(pkt.inv())),
        };
        Received { byte_len, write: pkt.row.kind == Kind::Write, tail, solicited: pkt.solicited() }
    }

    #[inline(always)]
    fn keep(&mut self, r: Resource) {
        let slots = self.resources.len();
        // Only a replay may be cut off: whoever asks for the next READ has this one's answer.
        if self.resources[usize::from(self.oldest)].pending {
            hit(Mark::ReplayCutOff);
            self.pending -= 1;
        }
        self.resources[usize::from(self.oldest)] = r;
        self.oldest = if usize::from(self.oldest) + 1 == slots { 0 } else { self.oldest + 1 };
        self.pending += 1;
        self.ack = None; // its response acknowledges everything before it
    }

    /// Queues the answer to a fault of the packet with this number. Returns whether the queue pair ends with it: drop what comes, and enter
    /// ERR when [`Responder::poll_transmit`] hands out the NAK (or at once, where there is none).
    pub fn refuse(&mut self, psn: Psn, fault: Fault, ty: QpType) -> bool {
        let outcome = fault.outcome(ty);
        match outcome.reply {
            Answer::None => {}
            Answer::Rnr => {
                hit(Mark::NotReady);
                let syndrome = Syndrome::RnrNak { timer: self.min_rnr_timer };
                self.nak(psn, syndrome);
            }
            Answer::Nak(code) => {
                let psn = if fault == Fault::PsnGap { self.epsn } else { psn };
                self.nak(psn, Syndrome::Nak(code));
            }
        }
        if outcome.fatal {
            self.fatal = Some(fault);
        }
        outcome.fatal
    }

    fn nak(&mut self, psn: Psn, syndrome: Syndrome) {
        self.nak_latch = true;
        self.ack = Some((psn, Pending::Nak(syndrome.encode())));
    }

    /// IBA 9.7.5.1.4 (C9-105): a duplicate is answered again and never executed again; its faults drop it.
    #[cold]
    fn handle_duplicate(&mut self, pkt: Packet<'_>) -> Result<Verdict, Discard> {
        let psn = pkt.psn;
        match pkt.row.kind {
            Kind::Send | Kind::Write => {
                hit(Mark::DuplicateMessage);
                let psn = self.acknowledgeable(psn);
                if psn != self.epsn.sub(1) {
                    hit(Mark::DuplicateHeldBack);
                }
                match self.ack {
                    Some((_, Pending::Nak(_))) => {}
                    Some((waiting, Pending::Ack)) if waiting.diff(psn) > 0 => {}
                    _ => self.ack = Some((psn, Pending::Ack)),
                }
            }
            kind => {
                let log2 = self.mtu.log2();
                let r = self
                    .resources
                    .iter_mut()
                    .find(|r| r.kind == kind && psn.diff(r.first) >= 0 && psn.diff(r.last) <= 0)
                    .ok_or_else(|| {
                        hit(Mark::DuplicateForgotten);
                        Discard::Duplicate
                    })?;
                let same = match kind {
                    Kind::CmpSwap | Kind::FetchAdd => {
                        let eth = pkt.atomic();
                        (eth.rkey, eth.va, [eth.swap_add, eth.compare]) == (r.rkey, r.va, r.operands)
                    }
                    // Of the others only a READ can start behind its first number.
                    _ => {
                        let (reth, skipped) = (pkt.reth(), (psn.diff(r.first) as u32) << log2);
                        (reth.rkey, reth.va, reth.len)
                            == (r.rkey, r.va.wrapping_add(u64::from(skipped)), r.len - skipped.min(r.len))
                    }
                };
                let payload = if kind == Kind::AtomicWrite { 8 } else { 0 };
                if !same || pkt.payload.len() != payload {
                    return Err(Discard::Duplicate);
                }
                hit(if kind == Kind::ReadRequest { Mark::DuplicateRead } else { Mark::DuplicateAtomic });
                r.start = psn;
                r.next = psn;
                r.replay |= !r.pending;
                self.replaying |= !r.pending;
                self.pending += u8::from(!r.pending);
                r.pending = true;
            }
        }
        Ok(Verdict::Duplicate)
    }

    /// The highest PSN that may be acknowledged after a duplicate of `psn` without passing a READ or ATOMIC
    /// that its requester may still be waiting for.
    fn acknowledgeable(&self, psn: Psn) -> Psn {
        self.resources
            .iter()
            .filter(|r| r.kind != Kind::Ack && r.first.diff(psn) > 0 && r.first.diff(self.epsn) < 0)
            .map(|r| r.first.sub(1))
            .min_by_key(|p| p.diff(psn))
            .unwrap_or(self.epsn.sub(1))
    }

    /// The next answer, in PSN order: READ and ATOMIC responses, then the one acknowledgement that is due.
    /// `credits`: receive requests available, `None` with a shared receive queue.
    #[inline]
    pub fn poll_transmit(&mut self, credits: Option<u32>) -> Option<Answered> {
        if self.pending > 0
            && let Some(answer) = self.poll_resource(credits)
        {
            return Some(answer);
        }
        let (psn, pending) = self.ack.take()?;
        self.answered = psn;
        Some(match pending {
            Pending::Ack => Answered::Ack { psn, aeth: self.aeth(credits), fatal: None },
            Pending::Nak(syndrome) => {
                let aeth = Aeth { syndrome, msn: self.msn.get() };
                Answered::Ack { psn, aeth, fatal: self.fatal }
            }
        })
    }

    fn aeth(&self, credits: Option<u32>) -> Aeth {
        let syndrome = credits.map_or(CREDIT_UNLIMITED, credit_code);
        Aeth { syndrome, msn: self.msn.get() }
    }

    fn poll_resource(&mut self, credits: Option<u32>) -> Option<Answered> {
        let aeth = self.aeth(credits);
        let index = self.next_resource()?;
        Some(self.respond_with(index, aeth))
    }

    /// Requests that wait for responses.
    #[inline]
    pub fn waiting(&self) -> usize {
        self.pending.into()
    }

    /// Responses of `longest` bytes or less that are next, one for each of `places` at most: those that
    /// [`Responder::poll_transmit`] would say one by one. Ends where something else is next, and behind a response that
    /// `build` could not make. How many were made, and the PSN of that response: see [`Responder::refuse_read`].
    #[inline(always)]
    pub fn respond<P>(
        &mut self,
        credits: Option<u32>,
        longest: u32,
        places: &mut [P],
        mut build: impl FnMut(Answered, &mut P) -> bool,
    ) -> (usize, Option<Psn>) {
        let aeth = self.aeth(credits);
        let mut made = 0;
        for place in places {
            if self.pending == 0 {
                break;
            }
            let Some(index) = self.next_resource() else { break };
            let Some(r) = self.resources.get(index) else { break };
            let (psn, is_read) = (r.next, r.kind == Kind::ReadRequest);
            if is_read && (psn != r.last || r.len - self.offset_of(r) > longest) {
                break;
            }
            let answer = self.respond_with(index, aeth);
            if !build(answer, place) {
                return (made, Some(psn));
            }
            made += 1;
        }
        (made, None)
    }

    /// The slot of the request that is answered next, where one is.
    #[inline(always)]
    fn next_resource(&self) -> Option<usize> {
        if self.replaying { self.oldest_pending() } else { Some(self.first_of_newest()) }
    }

    /// First byte of a READ's next response.
    #[inline(always)]
    fn offset_of(&self, r: &Resource) -> u32 {
        (r.next.diff(r.first) as u32 & 0x00ff_ffff) << self.mtu.log2()
    }

    /// The next response to the request in this slot.
    #[inline(always)]
    fn respond_with(&mut self, index: usize, aeth: Aeth) -> Answered {
        let offset = self.offset_of(&self.resources[index]);
        let r = &mut self.resources[index];
        let psn = r.next;
        let answer = if r.kind == Kind::ReadRequest {
            let position = match (psn == r.start, psn == r.last) {
                (true, true) => Position::Only,
                (true, false) => Position::First,
                (false, false) => Position::Middle,
                (false, true) => Position::Last,
            };
            let len = if psn == r.last { r.len - offset } else { self.mtu.bytes() as u32 };
            Answered::Read {
                psn,
                opcode: Opcode::rc(Kind::ReadResponse, position, Tail::None),
                aeth,
                rkey: r.rkey,
                va: r.va.wrapping_add(u64::from(offset)),
                len,
                pd: r.pd,
            }
        } else if matches!(r.kind, Kind::AtomicWrite | Kind::Flush) {
            Answered::Read {
                psn,
                opcode: Opcode::RC_READ_RESPONSE_ONLY,
                aeth,
                rkey: 0,
                va: 0,
                len: 0,
                pd: r.pd,
            }
        } else {
            Answered::Atomic { psn, aeth, original: r.original }
        };
        r.next = psn.add(1);
        if psn == r.last {
            r.pending = false;
            self.pending -= 1;
            self.replaying &= self.pending > 0;
        }
        self.answered = psn;
        answer
    }

    /// The slot of the oldest request that is being answered, where each is newer than those that are not.
    #[inline]
    fn first_of_newest(&self) -> usize {
        let (oldest, pending) = (usize::from(self.oldest), usize::from(self.pending));
        if oldest >= pending { oldest - pending } else { oldest + self.resources.len() - pending }
    }

    /// The slot of the oldest request that is being answered, in any case.
    #[cold]
    fn oldest_pending(&self) -> Option<usize> {
        let slots = self.resources.len();
        (0..slots).map(|i| (usize::from(self.oldest) + i) % slots).find(|&i| self.resources[i].pending)
    }

    /// The READ response just handed out cannot be made: its key was revoked. Queues the NAK with its PSN and
    /// drops every other answer; the queue pair ends with it. `false`: it was a replay, which is dropped, as
    /// any duplicate with a fault is.
    pub fn refuse_read(&mut self, psn: Psn) -> bool {
        let reads = |r: &&mut Resource| {
            r.kind == Kind::ReadRequest && psn.diff(r.first) >= 0 && psn.diff(r.last) <= 0
        };
        if let Some(r) = self.resources.iter_mut().find(reads).filter(|r| r.replay) {
            self.pending -= u8::from(r.pending);
            r.pending = false;
            return false;
        }
        for r in &mut self.resources {
            r.pending = false;
        }
        self.pending = 0;
        hit(Mark::ReadRevoked);
        self.fatal = Some(Fault::RemoteAccess);
        self.nak(psn, Syndrome::Nak(super::tables::NakCode::RemoteAccessError));
        true
    }
}

/// FLUSH selects the range that the request names (IBA A19.2).
const FLUSH_RANGE: u8 = 0;
/// FLUSH selects the whole region.
const FLUSH_REGION: u8 = 1;

/// The rights that a FLUSH needs; `None` where it asks for nothing, or for what the annex reserves.
fn flush_right(feth: Feth) -> Option<Access> {
    if !matches!(feth.selectivity, FLUSH_RANGE | FLUSH_REGION) {
        return None;
    }
    match feth.placement {
        1 => Some(Access::FLUSH_GLOBAL),
        2 => Some(Access::FLUSH_PERSISTENT),
        3 => Some(Access::FLUSH_GLOBAL.union(Access::FLUSH_PERSISTENT)),
        _ => None,
    }
}

/// Where the 8-byte word at `va` is, by the `key` that grants it.
#[inline(always)]
fn aligned_word(va: u64, key: impl FnOnce(u64) -> Result<Place, KeyFault>) -> Result<Place, Fault> {
    if !va.is_multiple_of(8) {
        return Err(Fault::Misaligned);
    }
    let place = key(va).map_err(|_| Fault::RemoteAccess)?;
    if place.addr() % 8 != 0 {
        return Err(Fault::Misaligned); // a zero-based region that does not start on a word
    }
    Ok(place)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mem::UserMemory;
    use crate::wire::{AtomicEth, Ext, Flow, HEADERS_MAX, Header, Ingress, Template, locate};

    /// Receives without end.
    struct Plenty;

    impl ReceiveSource for Plenty {
        fn take(&mut self) -> Option<u64> {
            Some(4096)
        }
    }

    /// Takes an empty SEND at `psn` and returns the acknowledgement.
    fn send(responder: &mut Responder, psn: Psn) -> Option<Answered> {
        let template = Template::new(&Flow { dst: crate::id::Gid::v4([10, 0, 0, 1]), ..Flow::default() });
        let mut frame = [0; HEADERS_MAX];
        let at = template.begin(&mut frame, &Header { psn, ack_req: true, ..Header::default() });
        let len = template.seal(&mut frame, at, 0);
        let Ok(Ingress::Roce(layout)) = locate(&frame[..len]) else { panic!("a SEND is a packet") };
        let pkt = layout.packet(&frame[..len]);
        let verdict = responder.handle_request(&pkt, PdId(1), &mut Plenty, &MrTable::new());
        assert_eq!(verdict, Ok(Verdict::Accept));
        responder.accept(&pkt);
        responder.poll_transmit(None)
    }

    fn ready(rq_psn: u32) -> Responder {
        let mut responder = Responder::default();
        let config = ResponderConfig { mtu: Mtu::Mtu1024, access: Access::all(), min_rnr_timer: 0 };
        responder.start(&config, Psn::new(rq_psn), 4);
        responder
    }

    // Goal: offset 0 of a region that does not start on a word is no word, however round the offset is.
    #[test]
    fn r35_r57_words_of_a_zero_based_region_are_words_of_memory() {
        let keys = MrTable::new();
        let access = Access::LOCAL_WRITE | Access::REMOTE_ATOMIC | Access::ZERO_BASED;
        let verdict = |addr: u64| {
            let rkey = keys.register(PdId(1), UserMemory::nowhere(addr, 64), access, 1).unwrap();
            let ext = Ext::Atomic(AtomicEth { va: 8, rkey, swap_add: 1, compare: 0 });
            let header = Header { opcode: Opcode::RC_FETCH_ADD, ext, psn: Psn::new(7), ..Header::default() };
            let template = Template::new(&Flow { dst: crate::id::Gid::v4([10, 0, 0, 1]), ..Flow::default() });
            let mut frame = [0; HEADERS_MAX];
            let at = template.begin(&mut frame, &header);
            let len = template.seal(&mut frame, at, 0);
            let Ok(Ingress::Roce(layout)) = locate(&frame[..len]) else { panic!("a request is a packet") };
            ready(7).handle_request(&layout.packet(&frame[..len]), PdId(1), &mut Plenty, &keys)
        };
        let Ok(Verdict::Atomic { place, swap: false }) = verdict(0x1000) else { panic!("it is a word") };
        assert_eq!((place.addr(), place.len()), (0x1008, 8));
        assert_eq!(verdict(0x1004), Err(Ok(Fault::Misaligned)));
    }

    #[test]
    fn r51_message_sequence_number_wraps() {
        let mut responder = ready(0x100);
        responder.msn = Psn::new(0xff_ffff);
        let aeth = Aeth { syndrome: CREDIT_UNLIMITED, msn: 0 };
        let answer = Answered::Ack { psn: Psn::new(0x100), aeth, fatal: None };
        assert_eq!(send(&mut responder, Psn::new(0x100)), Some(answer));
    }

    // Goal: what is being answered, and what may be asked again, survives another number of resources.
    #[test]
    fn s31_resources_are_kept_when_their_number_changes() {
        let mut responder = ready(0);
        let read = |n: u32, pending| Resource {
            kind: Kind::ReadRequest,
            pending,
            replay: false,
            first: Psn::new(n),
            last: Psn::new(n),
            start: Psn::new(n),
            next: Psn::new(n),
            pd: PdId(0),
            rkey: 0,
            len: 0,
            va: 0,
            operands: [0; 2],
            original: 0,
        };
        for n in 0..6 {
            responder.keep(read(n, n == 5));
        }
        responder.pending = 1;
        let kept = |r: &Responder| {
            let n = r.resources.len();
            let at = |i| &r.resources[(usize::from(r.oldest) + i) % n];
            let known = (0..n).map(at).filter(|r| r.kind == Kind::ReadRequest);
            known.map(|r| r.first.get()).collect::<Vec<_>>()
        };
        assert_eq!(kept(&responder), [2, 3, 4, 5]);
        responder.resize_resources(6);
        assert_eq!((kept(&responder), responder.pending), (vec![2, 3, 4, 5], 1));
        responder.keep(read(6, true));
        responder.keep(read(7, true));
        assert_eq!(
            kept(&responder),
            [2, 3, 4, 5, 6, 7],
            "the new slots are used before an old one gives way"
        );
        responder.pending = 3;
        responder.resize_resources(2);
        assert_eq!((kept(&responder), responder.pending), (vec![6, 7], 2));
        responder.resize_resources(0);
        assert_eq!((kept(&responder), responder.pending), (vec![], 0));
    }

    // Goal: a READ kept for replay is forgotten before its numbers come round and would match a new request.
    #[test]
    fn old_resources_are_forgotten_before_the_circle_closes() {
        let mut responder = ready(0);
        responder.keep(Resource {
            kind: Kind::ReadRequest,
            pending: false,
            replay: false,
            first: Psn::new(0),
            last: Psn::new(9),
            start: Psn::new(0),
            next: Psn::new(10),
            rkey: 0,
            pd: PdId(0),
            len: 0,
            va: 0,
            operands: [0; 2],
            original: 0,
        });
        let mut psn = 10;
        while psn < (1 << 23) {
            psn += 0x10_0000;
            responder.epsn = Psn::new(psn - 0x10_0000);
            responder.advance(0x10_0000);
        }
        assert!(responder.resources.iter().all(|r| r.kind == Kind::Ack));
    }
}
