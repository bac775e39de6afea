//! Segments: which packet belongs to a given PSN. Computing one changes nothing, so any packet in flight can be built again at any time.

use super::ack_requests::SinceAckReq;
use super::operation::Operation;
use super::send_log::Started;
use super::{RequestKind, Requester};
use crate::id::Psn;
use crate::mark::{Mark, hit};
use crate::proto::in_flight::distance;
use crate::proto::status::SendFlags;
use crate::proto::wqe::{Granule, SendWqe};
use crate::wire::{Ext, Kind, Opcode, Position, Reth, Tail};

/// One request packet to build.
#[derive(Clone, Copy, Debug)]
pub struct Segment<'a> {
    /// Sequence number of its work request.
    pub seq: u32,
    /// Slot of that work request.
    pub slot: &'a [Granule],
    /// Opcode of the packet.
    pub opcode: Opcode,
    /// Its PSN.
    pub psn: Psn,
    /// Whether it requests an acknowledgement.
    pub ack_req: bool,
    /// Whether it carries the solicited event bit.
    pub solicited: bool,
    /// Its extended headers.
    pub ext: Ext,
    /// Where its payload begins, in bytes from the start of the message.
    pub offset: u32,
    /// Bytes of payload; 0 for READ, atomics and FLUSH.
    pub len: u32,
    /// Whether the packet was sent before.
    pub again: bool,
    /// How many packets were sent before it since the last one that requested an acknowledgement. Set by [`Requester::poll_transmit`].
    pub(super) since_ack_req: SinceAckReq,
}

/// A packet that was handed out but could not be built, and so was not sent. For [`Requester::take_back`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Unsent {
    /// Sequence number of its work request.
    pub seq: u32,
    pub(super) psn: Psn,
    pub(super) again: bool,
    pub(super) since_ack_req: SinceAckReq,
}

impl Segment<'_> {
    /// The [`Unsent`] to return if the packet could not be built.
    pub fn unsent(&self) -> Unsent {
        let Self { seq, psn, again, since_ack_req, .. } = *self;
        Unsent { seq, psn, again, since_ack_req }
    }
}

impl Requester {
    /// The packet of a SEND or WRITE with this PSN.
    #[inline(always)]
    pub(super) fn message_segment<'a>(
        &self,
        seq: u32,
        slot: &'a [Granule],
        operation: &Operation,
        started: &Started,
        psn: Psn,
        ack_req: bool,
    ) -> Segment<'a> {
        let wqe = SendWqe::of(slot);
        let (index, is_last) = match started.first == started.last {
            true => (0, true),
            false => (distance(started.first, psn), psn == started.last),
        };
        let offset = index << self.mtu.log2();
        let position = match (index, is_last) {
            (0, true) => Position::Only,
            (0, false) => Position::First,
            (_, false) => Position::Middle,
            (_, true) => Position::Last,
        };
        let tail = if is_last { operation.tail } else { Tail::None };
        let ext = match (operation.packet == Kind::Write && index == 0, tail) {
            (false, Tail::None) => Ext::None,
            (false, Tail::Imm) => Ext::Imm(wqe.imm()),
            (true, Tail::Imm) => Ext::RethImm(wqe.reth(), wqe.imm()),
            (true, _) => Ext::Reth(wqe.reth()),
            (_, Tail::Inv) => Ext::Inv(wqe.rkey_to_invalidate()),
        };
        Segment {
            seq,
            slot,
            opcode: Opcode::rc(operation.packet, position, tail),
            psn,
            ack_req,
            solicited: is_last && operation.takes_recv && wqe.flags().contains(SendFlags::SOLICITED),
            ext,
            offset,
            len: if is_last { wqe.length - offset } else { self.mtu.bytes() as u32 },
            again: self.in_flight.went_out(psn),
            since_ack_req: SinceAckReq::NONE,
        }
    }

    /// The packet with the PSN `psn`, of a request that is answered by responses. A READ requests the responses from `psn` to `last`; a
    /// retry begins with the first one that was not received.
    #[inline(always)]
    pub(super) fn request_segment<'a>(
        &self,
        seq: u32,
        slot: &'a [Granule],
        operation: &Operation,
        started: &Started,
        psn: Psn,
        last: Psn,
    ) -> Segment<'a> {
        debug_assert!(started.kind != RequestKind::Message);
        let wqe = SendWqe::of(slot);
        let ext = match operation.packet {
            Kind::ReadRequest => {
                let index = distance(started.first, psn);
                if index > 0 && self.in_flight.went_out(psn) {
                    hit(Mark::ReadRestart);
                }
                let skipped = index << self.mtu.log2();
                let va = wqe.remote_addr.wrapping_add(u64::from(skipped));
                let end = match last == started.last {
                    true => wqe.length,
                    false => (distance(started.first, last) + 1) << self.mtu.log2(),
                };
                Ext::Reth(Reth { va, len: end - skipped, ..wqe.reth() })
            }
            Kind::Flush => {
                let (feth, len) = wqe.flush();
                Ext::FlushReth(feth, Reth { len, ..wqe.reth() })
            }
            Kind::AtomicWrite => Ext::Reth(wqe.reth()),
            _ => Ext::Atomic(wqe.atomic()),
        };
        Segment {
            seq,
            slot,
            opcode: operation.only,
            psn,
            ack_req: true,
            solicited: false,
            ext,
            offset: 0,
            len: if operation.packet == Kind::AtomicWrite { wqe.length } else { 0 },
            again: self.in_flight.went_out(psn),
            since_ack_req: SinceAckReq::NONE,
        }
    }
}
