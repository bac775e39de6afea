//! New requests of one kind, a packet each, started one after the other: what the send queue of a busy queue pair mostly
//! holds.
//!
//! [`Requester::poll_transmit`] decides everything for each packet. Most of that is the same for the next packet: gates,
//! credits, window, READ limit, what the operation is, when an acknowledgement is to be requested. A [`Series`] works it out
//! once, and keeps what moves in registers until [`Requester::end_series`]. The packets, and the requester afterwards, are
//! those of `poll_transmit`.

use super::ack_requests::{AckRequests, SinceAckReq};
use super::{Operation, Remembered, RequestKind, Requester, SendRing, SendWindow, Unsent};
use crate::id::{Mtu, Psn};
use crate::proto::congestion::Event;
use crate::proto::in_flight::distance;
use crate::proto::state::Gates;
use crate::proto::status::SendFlags;
use crate::proto::wqe::{Granule, SendWqe};
use crate::time::Instant;
use crate::wire::Opcode;

/// What the requests of a series are, by the extension headers of their packets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SeriesKind {
    /// SEND: none.
    Send,
    /// SEND with immediate: its data.
    SendImm,
    /// SEND with invalidate: a key.
    SendInv,
    /// WRITE: RETH.
    Write,
    /// WRITE with immediate: RETH and the data.
    WriteImm,
    /// READ: RETH, no payload.
    Read,
    /// COMPARE&SWAP and FETCH&ADD: AtomicETH, no payload.
    Atomic,
}

/// The next request of a [`Series`].
#[derive(Clone, Copy, Debug)]
pub struct SeriesRequest<'a> {
    /// How many of the series are before it.
    pub index: u32,
    /// Its slot.
    pub slot: &'a [Granule],
    /// Sequence number of its packet.
    pub psn: Psn,
    /// Whether the packet requests an acknowledgement.
    pub ack_req: bool,
}

/// What a series may have at most.
#[derive(Clone, Copy, Debug)]
pub struct SeriesLimits {
    /// Packets.
    pub packets: u32,
    /// Bytes of a message.
    pub bytes: u32,
}

/// The caller could not build a packet: a series ends with it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Unbuilt;

/// What a series moved: for [`Requester::end_series`].
#[derive(Clone, Copy, Debug)]
#[must_use = "the requester does not know yet"]
pub struct SeriesOutcome {
    now: Instant,
    kind: RequestKind,
    takes_recv: bool,
    started: u32,
    /// Payload of their packets.
    bytes: u64,
    psn: Psn,
    since_ack_req: SinceAckReq,
}

/// Requests that may start now; see the module.
#[derive(Debug)]
pub struct Series<'a> {
    now: Instant,
    operation: &'static Operation,
    kind: SeriesKind,
    solicited: bool,
    sole: bool,
    mtu: Mtu,
    /// Its first request.
    first: u32,
    slots: &'a [Granule],
    stride: usize,
    log: &'a mut [Remembered],
    epoch: u32,
    shape_key: u32,
    /// Longest message, in bytes.
    longest: u32,
    psn: Psn,
    /// Sequence numbers that may be assigned.
    numbers_left: u32,
    ack_requests: AckRequests,
}

impl<'a> Series<'a> {
    /// What its requests are.
    #[inline(always)]
    pub fn kind(&self) -> SeriesKind {
        self.kind
    }
    /// The opcode of its packets, of the class RC.
    #[inline(always)]
    pub fn opcode(&self) -> Opcode {
        self.operation.only
    }
    /// Whether its packets carry the solicited event bit.
    #[inline(always)]
    pub fn solicited(&self) -> bool {
        self.solicited
    }
    /// Whether the data of each message is that of one scatter/gather element: [`SendWqe::first_sge`].
    #[inline(always)]
    pub(crate) fn sole(&self) -> bool {
        self.sole
    }

    /// Starts SENDs or WRITEs, one for each of `places` at most, and has `build` make their packets. Ends before a request of
    /// another kind, and after one that could not be built, which is for [`Requester::take_back`].
    #[inline(always)]
    pub fn messages<P>(
        self,
        places: &mut [P],
        mut build: impl FnMut(SeriesRequest<'a>, &mut P) -> Result<(), Unbuilt>,
    ) -> (SeriesOutcome, Result<(), Unsent>) {
        let (epoch, shape_key, longest, first) = (self.epoch, self.shape_key, self.longest, self.psn);
        let mut ack_requests = self.ack_requests;
        let (mut n, mut bytes, mut result) = (0, 0, Ok(()));
        for ((slot, entry), place) in self.slots.chunks_exact(self.stride).zip(self.log).zip(places) {
            let wqe = SendWqe::of(slot);
            if wqe.epoch != epoch || wqe.shape_key() != shape_key || wqe.length > longest {
                break;
            }
            let (index, psn) = (n, first.add(n));
            *entry = Remembered::new(psn, RequestKind::Message);
            n += 1;
            bytes += u64::from(wqe.length);
            let ack_req = ack_requests.ask(index, wqe.signaled());
            if build(SeriesRequest { index, slot, psn, ack_req }, place).is_err() {
                let since_ack_req = since_ack_req(self.ack_requests, self.slots, self.stride, index);
                result =
                    Err(Unsent { seq: self.first.wrapping_add(index), psn, again: false, since_ack_req });
                break;
            }
        }
        let (now, takes_recv, psn) = (self.now, self.operation.takes_recv, first.add(n));
        let since_ack_req = ack_requests.since(n);
        (
            SeriesOutcome {
                now,
                kind: RequestKind::Message,
                takes_recv,
                started: n,
                bytes,
                psn,
                since_ack_req,
            },
            result,
        )
    }

    /// Starts READs, one for each of `places` at most; as [`Series::messages`].
    #[inline(always)]
    pub fn reads<P>(self, places: &mut [P], build: impl FnMut(SeriesRequest<'a>, &mut P)) -> SeriesOutcome {
        let mtu = self.mtu;
        self.requests(RequestKind::Read, |wqe| mtu.packets(wqe.length), places, build)
    }

    /// Starts atomics, one for each of `places` at most; as [`Series::messages`].
    #[inline(always)]
    pub fn atomics<P>(self, places: &mut [P], build: impl FnMut(SeriesRequest<'a>, &mut P)) -> SeriesOutcome {
        self.requests(RequestKind::Atomic, |_| 1, places, build)
    }

    /// Starts requests that are answered by as many responses as `packets` says.
    #[inline(always)]
    fn requests<P>(
        self,
        kind: RequestKind,
        packets: impl Fn(&SendWqe) -> u32,
        places: &mut [P],
        mut build: impl FnMut(SeriesRequest<'a>, &mut P),
    ) -> SeriesOutcome {
        let (mut index, mut psn, mut numbers_left) = (0, self.psn, self.numbers_left);
        for ((slot, entry), place) in self.slots.chunks_exact(self.stride).zip(self.log).zip(places) {
            let wqe = SendWqe::of(slot);
            if wqe.epoch != self.epoch || wqe.shape_key() != self.shape_key {
                break;
            }
            let packets = packets(wqe);
            if packets > numbers_left {
                break;
            }
            numbers_left -= packets;
            *entry = Remembered::new(psn, kind);
            build(SeriesRequest { index, slot, psn, ack_req: true }, place);
            psn = psn.add(packets);
            index += 1;
        }
        SeriesOutcome {
            now: self.now,
            kind,
            takes_recv: false,
            started: index,
            bytes: 0,
            psn,
            since_ack_req: SinceAckReq::NONE,
        }
    }
}

/// Packets of a series before the one at `index` since the last that requested an acknowledgement.
#[cold]
fn since_ack_req(mut ack_requests: AckRequests, slots: &[Granule], stride: usize, index: u32) -> SinceAckReq {
    for (index, slot) in (0..index).zip(slots.chunks_exact(stride)) {
        ack_requests.ask(index, SendWqe::of(slot).signaled());
    }
    ack_requests.since(index)
}

impl SeriesOutcome {
    /// Requests that were started.
    #[inline]
    pub fn started(&self) -> u32 {
        self.started
    }
}

impl Requester {
    /// The next packets as a [`Series`], if two or more seem to be alike and nothing else goes first. The series has one packet at
    /// least; a READ that is requested in parts is in none. After `None`, [`Requester::poll_transmit`] says what is next.
    #[inline(always)]
    pub fn begin_series<'a>(
        &'a mut self,
        window: &SendWindow,
        gates: Gates,
        epoch: u32,
        sq: &'a impl SendRing,
        SeriesLimits { packets, bytes: longest }: SeriesLimits,
    ) -> Option<Series<'a>> {
        if !self.log.all_sent()
            || self.timer.is_rnr()
            || self.repair.probing
            || self.failure.is_some()
            || !gates.has(Gates::TX_RETRY)
            || !gates.has(Gates::START_WQE)
        {
            return None;
        }
        let (now, room) = (window.now, self.room(window));
        let (first, psn) = (self.log.started(), self.log.assigned());
        let posted = sq.published().wrapping_sub(first);
        let most = posted.min(packets).min(room).min(self.log.contiguous());
        if most < 2 {
            return None; // a single packet is cheaper without a series
        }
        debug_assert!(self.in_flight.is_at_end() && self.in_flight.cursor() == psn, "nothing is sent twice");
        let (slots, stride) = sq.contiguous(first, most);
        let wqe = SendWqe::of(slots);
        let operation = Operation::of(wqe)?;
        let series = operation.series?;
        let flags = wqe.flags();
        if wqe.epoch != epoch {
            return None;
        }
        let mut numbers_left = self.in_flight.numbers_left(psn);
        let longest = longest.min(self.mtu.bytes() as u32);
        let mut most = most.min(self.may_start(operation, flags.contains(SendFlags::FENCE)));
        let mut unasked = u32::MAX;
        if operation.kind == RequestKind::Message {
            if wqe.length > longest {
                return None;
            }
            most = most.min(numbers_left);
            unasked = self.unasked_messages(operation).max(0) as u32;
        } else {
            // The READs take a quarter of the share together, so none is requested in parts.
            numbers_left = numbers_left.min(self.share_left(window)).min(window.share / 4);
            if operation.packets(self.mtu, wqe.length) > numbers_left {
                return None;
            }
        }
        if most < 2 {
            return None;
        }
        self.arm(now);
        let ack_requests = self.since_ack_req.requests(room, unasked);
        Some(Series {
            now,
            operation,
            kind: series,
            solicited: operation.takes_recv && flags.contains(SendFlags::SOLICITED),
            sole: wqe.num_sge == 1 && wqe.addr_granules == 0 && !flags.contains(SendFlags::INLINE),
            mtu: self.mtu,
            first,
            slots,
            stride,
            epoch,
            shape_key: wqe.shape_key(),
            longest,
            psn,
            numbers_left,
            ack_requests,
            log: self.log.next_entries(most),
        })
    }

    /// Takes over what a series moved.
    #[inline(always)]
    pub fn end_series(&mut self, outcome: SeriesOutcome) {
        let SeriesOutcome { now, kind, takes_recv, started, bytes, psn, since_ack_req } = outcome;
        let first = self.log.assigned();
        self.log.start_all(started, psn);
        self.credits.start(started, takes_recv);
        self.since_ack_req = since_ack_req;
        if kind != RequestKind::Message {
            self.rd_atomic.start(started as u8);
            self.in_flight.expect_responses(distance(first, psn) - started);
        }
        self.congestion.handle(now, Event::Sent { first, behind: psn, bytes, again: false });
        self.in_flight.advance_new(psn);
    }
}
