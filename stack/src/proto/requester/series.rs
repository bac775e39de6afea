//! Series of new requests of one kind, each of one packet. The send queue of a busy queue pair mostly holds such series.
//!
//! [`Requester::poll_transmit`] makes all decisions for each packet. Most of them are the same for the next packet: gates, credits, window,
//! READ limit, the operation, when to request an acknowledgement. A [`Series`] makes them once, and keeps the state that changes in
//! registers until [`Requester::end_series`]. It results in the same packets and the same state of the requester as `poll_transmit` does.

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

/// The operation of a series, by the extended headers of its packets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SeriesKind {
    /// SEND: no extended header.
    Send,
    /// SEND with immediate: ImmDt.
    SendImm,
    /// SEND with invalidate: IETH.
    SendInv,
    /// WRITE: RETH.
    Write,
    /// WRITE with immediate: RETH and ImmDt.
    WriteImm,
    /// READ: RETH, no payload.
    Read,
    /// COMPARE&SWAP and FETCH&ADD: AtomicETH, no payload.
    Atomic,
}

/// A request of a [`Series`].
#[derive(Clone, Copy, Debug)]
pub struct SeriesRequest<'a> {
    /// Its index in the series, from 0.
    pub index: u32,
    /// Its slot.
    pub slot: &'a [Granule],
    /// PSN of its packet.
    pub psn: Psn,
    /// Whether its packet requests an acknowledgement.
    pub ack_req: bool,
}

/// The limits of a series.
#[derive(Clone, Copy, Debug)]
pub struct SeriesLimits {
    /// Most packets.
    pub packets: u32,
    /// Most bytes in a message.
    pub bytes: u32,
}

/// The caller could not build a packet. This ends the series.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Unbuilt;

/// The changes that a series makes, for [`Requester::end_series`].
#[derive(Clone, Copy, Debug)]
#[must_use = "the requester does not know yet"]
pub struct SeriesOutcome {
    now: Instant,
    kind: RequestKind,
    takes_recv: bool,
    started: u32,
    /// Bytes of payload, of all its packets.
    bytes: u64,
    psn: Psn,
    since_ack_req: SinceAckReq,
}

/// Requests of one kind that may start now; see the module.
#[derive(Debug)]
pub struct Series<'a> {
    now: Instant,
    operation: &'static Operation,
    kind: SeriesKind,
    solicited: bool,
    sole: bool,
    mtu: Mtu,
    /// Sequence number of its first request.
    first: u32,
    slots: &'a [Granule],
    stride: usize,
    log: &'a mut [Remembered],
    epoch: u32,
    shape_key: u32,
    /// Largest message in bytes.
    longest: u32,
    psn: Psn,
    /// How many PSNs it may use.
    numbers_left: u32,
    ack_requests: AckRequests,
}

impl<'a> Series<'a> {
    /// The operation of its requests.
    #[inline(always)]
    pub fn kind(&self) -> SeriesKind {
        self.kind
    }
    /// The opcode of its packets, in the transport class RC.
    #[inline(always)]
    pub fn opcode(&self) -> Opcode {
        self.operation.only
    }
    /// Whether its packets carry the solicited event bit.
    #[inline(always)]
    pub fn solicited(&self) -> bool {
        self.solicited
    }
    /// Whether each message has a single scatter/gather element, [`SendWqe::first_sge`].
    #[inline(always)]
    pub(crate) fn sole(&self) -> bool {
        self.sole
    }

    /// Starts SENDs or WRITEs, at most one for each of `places`, and calls `build` to build their packets. Ends before a request of another
    /// kind, and after one that could not be built: pass that to [`Requester::take_back`].
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

    /// Starts READs, at most one for each of `places`, as [`Series::messages`] does.
    #[inline(always)]
    pub fn reads<P>(self, places: &mut [P], build: impl FnMut(SeriesRequest<'a>, &mut P)) -> SeriesOutcome {
        let mtu = self.mtu;
        self.requests(RequestKind::Read, |wqe| mtu.packets(wqe.length), places, build)
    }

    /// Starts atomics, at most one for each of `places`, as [`Series::messages`] does.
    #[inline(always)]
    pub fn atomics<P>(self, places: &mut [P], build: impl FnMut(SeriesRequest<'a>, &mut P)) -> SeriesOutcome {
        self.requests(RequestKind::Atomic, |_| 1, places, build)
    }

    /// Starts requests that are answered by responses. `packets` says how many a request gets.
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

/// How many packets of a series were sent before the one at `index` since the last one that requested an acknowledgement.
#[cold]
fn since_ack_req(mut ack_requests: AckRequests, slots: &[Granule], stride: usize, index: u32) -> SinceAckReq {
    for (index, slot) in (0..index).zip(slots.chunks_exact(stride)) {
        ack_requests.ask(index, SendWqe::of(slot).signaled());
    }
    ack_requests.since(index)
}

impl SeriesOutcome {
    /// How many requests were started.
    #[inline]
    pub fn started(&self) -> u32 {
        self.started
    }
}

impl Requester {
    /// Begins a [`Series`] with the next packets, if two or more may be of one kind and nothing else has to be sent first. It has at least
    /// one packet. A READ that is requested in parts is never in a series. After `None`, call [`Requester::poll_transmit`].
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
            // Limits the READs to a quarter of the share in all, so that none has to be requested in parts.
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

    /// Applies the changes that a series makes.
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
