//! The responder: request packets in, their effects and answers out (IBA 9.7.4, 9.7.5, 9.9.3).
//!
//! [`Responder::handle_expected`] checks the packet with the expected PSN, in the order of the specification, and returns its [`Effect`].
//! Once the caller has carried out the effect, [`Responder::accept`] advances the state. A refused packet does not advance it. Packets
//! with any other PSN go to [`Responder::handle_unexpected`]. [`Responder::poll_transmit`] returns the queued answers in PSN order.

use super::fault::Fault;
use super::in_flight::distance;
use crate::id::{Mtu, PdId, Psn};
use crate::mark::{Mark, hit};
use crate::mem::{Access, GrantedRange, MrTable};
use crate::wire::{Discard, Kind, Packet, Tail};
use replay::{Replay, Resource};

mod answers;
mod checks;
mod duplicates;
mod gap;
mod replay;
mod unreliable;

pub use answers::Answer;
pub use gap::Gap;
pub use unreliable::GRH_LEN;

/// Settings of the responder, from the queue pair's attributes.
#[derive(Clone, Copy, Debug)]
pub struct ResponderConfig {
    /// Path MTU.
    pub mtu: Mtu,
    /// Access rights of the peer (`qp_access_flags`).
    pub access: Access,
    /// RNR timer code sent in RNR NAKs, `0..=31`.
    pub min_rnr_timer: u8,
}

/// Where the queue pair's receive requests come from: its own receive queue or a shared one.
pub trait ReceiveSource {
    /// Takes the next receive request. Returns how many bytes its buffers hold; `None` if there is no request.
    fn take(&mut self) -> Option<u64>;
}

/// What a request packet that passed every check does to our memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Effect {
    /// It has no effect on memory: call [`Responder::accept`].
    Nothing,
    /// Write the payload at `offset` of the receive request's buffers, then call `accept`.
    Receive {
        /// Bytes of the message that precede this packet.
        offset: u64,
    },
    /// Write the payload to this place in our memory, then call `accept`.
    Write {
        /// The range that the key grants; it has room for the whole payload.
        place: GrantedRange,
        /// Whether this packet ends the message: then store the last byte last.
        last: bool,
    },
    /// Perform the atomic on the 64-bit word at this place, then call [`Responder::accept_atomic`].
    Atomic {
        /// The word, 8-byte aligned.
        place: GrantedRange,
        /// COMPARE&SWAP if true, FETCH&ADD if false.
        swap: bool,
    },
    /// ATOMIC WRITE: store the payload into the 64-bit word at this place in one step, then call `accept`.
    Store {
        /// The word, 8-byte aligned.
        place: GrantedRange,
    },
    /// FLUSH: make everything placed so far visible to every CPU, then call `accept`.
    Flush,
}

/// What a packet with an unexpected PSN leads to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unexpected {
    /// The packet was accepted before. An answer is queued if one is due; nothing is placed.
    Duplicate,
    /// An earlier packet is missing. [`Responder::refuse`] queues the NAK; [`Responder::has_sent_gap_nak`] says whether that was done.
    AfterGap,
    /// The packet is dropped for this reason, without an answer.
    Drop(Discard),
}

/// A receive completion that [`Responder::accept`] produced.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Received {
    /// Bytes of the message.
    pub byte_len: u32,
    /// Whether the message was a WRITE with immediate data.
    pub write: bool,
    /// Immediate data, or the key to invalidate.
    pub tail: Option<ReceivedTail>,
    /// Whether the message requested a solicited event.
    pub solicited: bool,
}

/// What the last packet of a message carried besides its payload.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ReceivedTail {
    /// Immediate data.
    Imm([u8; 4]),
    /// A key to invalidate.
    Inv(u32),
}

/// The message of which some packets were accepted, and not yet the last one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum InProgress {
    None,
    Send,
    Write,
}

/// The receive side of one reliable queue pair. The fields that only READs and atomics use come first: see [`Responder::MESSAGES`].
#[derive(Debug)]
#[repr(C)]
pub struct Responder {
    replay: Replay,

    capacity: u64,
    received: u64,
    write_va: u64,
    epsn: Psn,
    msn: Psn,
    /// The newest SEND or WRITE packet that requested an acknowledgement, or a later one that is acknowledged.
    asked: Psn,
    /// The last packet that the last answer acknowledges.
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
    /// The outstanding NAK: no other one is queued until the expected packet arrives.
    nak_out: NakOut,
    /// Whether the message in progress holds a receive request.
    holds_receive: bool,
    /// How many READs and atomics wait for their responses.
    pending: u8,
    /// A request that was already answered in full is being answered again, so the waiting requests need not be the newest ones.
    replaying: bool,
}

/// The outstanding NAK: since it was queued, the expected packet has not arrived.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum NakOut {
    None,
    /// For a PSN sequence error, or for a fault that ends the queue pair.
    Gap,
    Rnr,
}

/// The acknowledgement that is due: positive, or negative with this syndrome.
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
    /// Offset of the first field that SENDs, WRITEs and their acknowledgements touch. Only READs and atomics use the fields before it.
    pub const MESSAGES: usize = core::mem::offset_of!(Self, capacity);

    /// A responder in its initial state.
    pub fn new() -> Self {
        Self {
            epsn: Psn::new(0),
            msn: Psn::new(0),
            mtu: Mtu::Mtu1024,
            access: Access::empty(),
            min_rnr_timer: 0,
            in_progress: InProgress::None,
            nak_out: NakOut::None,
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
            pending: 0,
            replaying: false,
            replay: Replay::default(),
        }
    }

    /// INIT → RTR: expects `rq_psn` first, and keeps up to `max_dest_rd_atomic` READs and atomics for replay.
    pub fn start(&mut self, c: &ResponderConfig, rq_psn: Psn, max_dest_rd_atomic: u8) {
        let before = rq_psn.sub(1);
        *self = Self { epsn: rq_psn, asked: before, answered: before, ..Self::new() };
        self.resize_resources(max_dest_rd_atomic);
        self.configure(c);
    }

    /// Applies changed attributes. Sequence numbers stay.
    pub fn configure(&mut self, c: &ResponderConfig) {
        self.mtu = c.mtu;
        self.access = c.access;
        self.min_rnr_timer = c.min_rnr_timer;
    }

    /// Changes the number of responder resources (SQD → SQD). The receive side keeps running, so the newest requests and their answers
    /// are kept, as many as fit.
    pub(crate) fn resize_resources(&mut self, max_dest_rd_atomic: u8) {
        self.pending = self.replay.resize(max_dest_rd_atomic);
    }

    /// The attribute `rq_psn`: the sequence number expected next.
    pub fn rq_psn(&self) -> Psn {
        self.epsn
    }

    /// Whether the message in progress holds a receive request.
    pub(crate) fn holds_receive(&self) -> bool {
        self.holds_receive
    }

    /// Whether a request packet with this PSN would be the expected one: neither a duplicate nor after a gap.
    #[inline(always)]
    pub fn expects(&self, psn: Psn) -> bool {
        psn == self.epsn && self.fatal.is_none()
    }

    /// Whether a message has begun and not ended.
    pub(crate) fn in_message(&self) -> bool {
        self.in_progress != InProgress::None
    }

    /// Whether an answer waits for [`Responder::poll_transmit`].
    #[inline]
    pub(crate) fn has_answer(&self) -> bool {
        self.ack.is_some() || self.pending > 0
    }

    /// Whether the peer waits for the acknowledgement of a SEND or WRITE, and an answer that acknowledges it waits for
    /// [`Responder::poll_transmit`].
    pub(crate) fn owes_acknowledgement(&self) -> bool {
        self.has_answer() && !self.has_acknowledged(self.asked)
    }

    /// PSN of the newest SEND or WRITE packet that requested an acknowledgement. Once acknowledged, it may become a later PSN.
    pub fn asked(&self) -> Psn {
        self.asked
    }

    /// Whether the last answer acknowledges this packet. The packet must have been accepted less than 2^24 packets ago.
    pub(crate) fn has_acknowledged(&self, psn: Psn) -> bool {
        // Answers to READs may lag `psn` by up to 2^23, so both distances are counted back from the expected PSN.
        distance(self.answered, self.epsn) <= distance(psn, self.epsn)
    }

    /// Checks the request packet with the [expected](Self::expects) PSN, in the order of the specification (IBA 9.7.4.1). Carry out the
    /// returned effect, then call [`Responder::accept`].
    ///
    /// # Errors
    /// The fault of the packet: pass it to [`Responder::refuse`], which queues the answer.
    #[inline(always)]
    pub fn handle_expected(
        &mut self,
        pkt: &Packet<'_>,
        pd: PdId,
        rq: &mut impl ReceiveSource,
        keys: &MrTable,
    ) -> Result<Effect, Fault> {
        debug_assert!(self.expects(pkt.psn));
        self.nak_out = NakOut::None;
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

    /// Handles a request packet whose PSN is not the expected one, or that comes after a fault that ends the queue pair.
    #[cold]
    pub fn handle_unexpected(&mut self, pkt: Packet<'_>) -> Unexpected {
        if self.fatal.is_some() {
            return Unexpected::Drop(Discard::BadState);
        }
        if pkt.psn.diff(self.epsn) > 0 {
            return self.handle_gap();
        }
        self.handle_duplicate(pkt)
    }

    /// Handles a packet after a gap. After an RNR NAK it is dropped, because the requester sends everything again anyway.
    fn handle_gap(&mut self) -> Unexpected {
        match self.nak_out {
            NakOut::None => hit(Mark::Gap),
            NakOut::Gap => hit(Mark::GapAgain),
            NakOut::Rnr => return Unexpected::Drop(Discard::OutOfSequence),
        }
        Unexpected::AfterGap
    }

    /// Whether a NAK for the present gap was queued.
    pub fn has_sent_gap_nak(&self) -> bool {
        self.nak_out == NakOut::Gap
    }

    /// Whether an RNR NAK was queued: the peer waits for a while, then sends everything again.
    pub fn has_sent_rnr_nak(&self) -> bool {
        self.nak_out == NakOut::Rnr
    }

    /// Advances the state past a packet that [`Responder::handle_expected`] passed, once its effect is carried out. Returns the receive
    /// completion, if the packet completes a receive request. For atomics, call [`Responder::accept_atomic`] instead.
    #[inline(always)]
    pub fn accept(&mut self, pkt: &Packet<'_>) -> Option<Received> {
        let len = pkt.payload.len() as u32;
        let (starts, ends) = (pkt.row.position.starts(), pkt.row.position.ends());
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
                // READ, ATOMIC WRITE and FLUSH are answered by READ responses; those to the last two are empty.
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
                    pd: self.replay.pd,
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
            // The packet that the NAK asked for is here. The NAK may also have been the acknowledgement of an earlier packet.
            let owed = !self.has_acknowledged(self.asked);
            self.ack = owed.then_some((pkt.psn, Pending::Ack));
        }
        received
    }

    /// Advances the state past an atomic that [`Responder::handle_expected`] passed, once it is executed. `original` is the value of the
    /// word before.
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
            pd: self.replay.pd,
            len: 8,
            va: eth.va,
            operands: [eth.swap_add, eth.compare],
            original,
        });
        self.advance(1);
        self.msn = self.msn.add(1);
    }

    /// Advances the expected PSN by `packets`, at most 2^23.
    #[inline(always)]
    fn advance(&mut self, packets: u32) {
        let next = self.epsn.add(packets);
        if (self.epsn.get() ^ next.get()) >> 22 != 0 {
            self.leave_quarter(packets);
        }
        self.epsn = next;
    }

    /// Forgets old PSNs before the expected PSN advances by `packets` into another quarter of the PSN space. A PSN that lags too far
    /// behind would look new again.
    #[cold]
    fn leave_quarter(&mut self, packets: u32) {
        if self.has_acknowledged(self.asked) {
            self.asked = self.answered;
        }
        self.replay.forget_behind(self.epsn, packets);
    }

    /// The receive completion of the message that `pkt` ends.
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

    /// Stores a request whose response is due now, for the answer and for replay.
    #[inline(always)]
    fn keep(&mut self, r: Resource) {
        if self.replay.put(r) {
            hit(Mark::ReplayCutOff);
            self.pending -= 1;
        }
        self.pending += 1;
        self.ack = None; // its response acknowledges everything before it
    }
}

#[cfg(test)]
mod tests;
