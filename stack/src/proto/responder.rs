//! The responder: request packets in, their effects and answers out (IBA 9.7.4, 9.7.5, 9.9.3).
//!
//! [`Responder::handle_expected`] checks the packet that is next in the specification's order and says what its [`Effect`] is; after
//! the caller placed it, [`Responder::accept`] moves the state on. A packet that is refused changes nothing
//! but what is answered to it. All other packets go to [`Responder::handle_unexpected`]. Answers wait for
//! [`Responder::poll_transmit`], in PSN order.

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

/// The effect on our memory of a packet that passed every check.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Effect {
    /// None: call [`Responder::accept`].
    Nothing,
    /// Write the payload at `offset` of the receive request's buffers, then `accept`.
    Receive {
        /// Bytes of the message before this packet.
        offset: u64,
    },
    /// Write the payload to this place in our memory, then `accept`.
    Write {
        /// What the key grants: room for the whole payload.
        place: GrantedRange,
        /// Whether the message ends here: its last byte is stored last.
        last: bool,
    },
    /// Perform the atomic on the 64-bit word at this place, then [`Responder::accept_atomic`].
    Atomic {
        /// The word, 8-byte aligned.
        place: GrantedRange,
        /// COMPARE&SWAP, else FETCH&ADD.
        swap: bool,
    },
    /// ATOMIC WRITE: store the payload into the 64-bit word at this place in one step, then `accept`.
    Store {
        /// The word, 8-byte aligned.
        place: GrantedRange,
    },
    /// FLUSH: make everything placed before visible to every CPU, then `accept`.
    Flush,
}

/// What a packet leads to that is not the one expected next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unexpected {
    /// It was accepted before: an answer is queued where one is due; nothing is placed.
    Duplicate,
    /// A packet before it is missing. Whether the peer knows: [`Responder::told_of_gap`]. It is told by [`Responder::refuse`].
    BehindGap,
    /// Dropped under this name, without an answer.
    Drop(Discard),
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
    /// The message requested a solicited event.
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

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum InProgress {
    None,
    Send,
    Write,
}

/// The receive side of one reliable queue pair. What READs and atomics alone need comes first: see [`Responder::MESSAGES`].
#[derive(Debug)]
#[repr(C)]
pub struct Responder {
    replay: Replay,

    capacity: u64,
    received: u64,
    write_va: u64,
    epsn: Psn,
    msn: Psn,
    /// The newest message packet that requested an acknowledgement, or one behind it that is acknowledged.
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
    /// Which NAK is out: no other one until the expected packet arrives.
    nak_out: NakOut,
    /// A receive request is held by the message in progress.
    holds_receive: bool,
    /// READs and atomics that wait to be answered.
    pending: u8,
    /// A request that had been answered in full is answered again: the requests that are being answered need not be the newest.
    replaying: bool,
}

/// The NAK that the expected packet has not answered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum NakOut {
    None,
    /// For a sequence error, or one that ends the queue pair.
    Gap,
    Rnr,
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
    /// Offset of the first field that messages and their acknowledgements touch; only READs and atomics use those before it.
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

    /// Whether a request packet with this number would be a new one, and not a duplicate or one after a gap.
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

    /// Whether the peer waits for the acknowledgement of a message, and an answer that brings it waits for
    /// [`Responder::poll_transmit`].
    pub(crate) fn owes_acknowledgement(&self) -> bool {
        self.has_answer() && !self.has_acknowledged(self.asked)
    }

    /// The newest message packet that requested an acknowledgement; once that was sent, a later packet may stand for it.
    pub fn asked(&self) -> Psn {
        self.asked
    }

    /// Whether the last answer acknowledges this packet, which was accepted less than a whole circle ago.
    pub(crate) fn has_acknowledged(&self, psn: Psn) -> bool {
        // Answers to READs may be half of the circle behind `psn`, so both are counted back from what is expected next.
        distance(self.answered, self.epsn) <= distance(psn, self.epsn)
    }

    /// Checks the request packet that is [expected](Self::expects) next, in the specification's order (IBA 9.7.4.1). Once it has
    /// had its effect, [`Responder::accept`] moves the state on.
    ///
    /// # Errors
    /// What is wrong with it: [`Responder::refuse`] answers that.
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

    /// A request packet that is not the next one, or comes after a fault that ends the queue pair.
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

    /// A packet before this one is missing. One NAK says so; after an RNR NAK nothing does, because the requester sends all again.
    fn handle_gap(&mut self) -> Unexpected {
        match self.nak_out {
            NakOut::None => hit(Mark::Gap),
            NakOut::Gap => hit(Mark::GapAgain),
            NakOut::Rnr => return Unexpected::Drop(Discard::OutOfSequence),
        }
        Unexpected::BehindGap
    }

    /// Whether the peer was told of the gap that there is.
    pub fn told_of_gap(&self) -> bool {
        self.nak_out == NakOut::Gap
    }

    /// Whether the peer waits out an RNR NAK, and then sends everything again.
    pub fn told_of_no_receive(&self) -> bool {
        self.nak_out == NakOut::Rnr
    }

    /// The packet that [`Responder::handle_expected`] passed is placed: the state moves on.
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
            // The packet that it asked for is here. It may have stood for an acknowledgement, too.
            let owed = !self.has_acknowledged(self.asked);
            self.ack = owed.then_some((pkt.psn, Pending::Ack));
        }
        received
    }

    /// The atomic that [`Responder::handle_expected`] passed is executed; `original` is what the word held.
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

    /// Moves on by `packets`, which is half of the circle at most.
    #[inline(always)]
    fn advance(&mut self, packets: u32) {
        let next = self.epsn.add(packets);
        if (self.epsn.get() ^ next.get()) >> 22 != 0 {
            self.leave_quarter(packets);
        }
        self.epsn = next;
    }

    /// The expected number is about to move by `packets`, into another quarter of the circle: nothing that is remembered may
    /// fall so far behind that its number is new again.
    #[cold]
    fn leave_quarter(&mut self, packets: u32) {
        if self.has_acknowledged(self.asked) {
            self.asked = self.answered;
        }
        self.replay.forget_behind(self.epsn, packets);
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

    /// Remembers a request that is answered by a response, which is due now.
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
