//! How each send operation is sent. The row of the operation gives its packets, and the rest follows from them.

use super::{RequestKind, SeriesKind};
use crate::proto::status::WrOpcode;
use crate::proto::wqe::SendWqe;
use crate::wire::{Kind, Opcode, Position, Tail};

/// A send operation that sends packets.
#[derive(Clone, Copy, Debug)]
pub(super) struct Operation {
    /// The kind of its packets.
    pub packet: Kind,
    /// What the last of them carries besides payload.
    pub tail: Tail,
    /// How it is answered.
    pub kind: RequestKind,
    /// Whether it takes a receive request of the peer, and so uses a credit.
    pub takes_recv: bool,
    /// The opcode of its packet, if it needs only one.
    pub only: Opcode,
    /// The kind of series whose packets look like that one.
    pub series: Option<SeriesKind>,
}

impl Operation {
    /// `None` if the operation sends no packets.
    const fn new(opcode: WrOpcode) -> Option<Self> {
        let Some((packet, tail)) = opcode.packet() else { return None };
        let (kind, series) = match (packet, tail) {
            (Kind::Send, Tail::None) => (RequestKind::Message, Some(SeriesKind::Send)),
            (Kind::Send, Tail::Imm) => (RequestKind::Message, Some(SeriesKind::SendImm)),
            (Kind::Send, Tail::Inv) => (RequestKind::Message, Some(SeriesKind::SendInv)),
            (Kind::Write, Tail::None) => (RequestKind::Message, Some(SeriesKind::Write)),
            (Kind::Write, _) => (RequestKind::Message, Some(SeriesKind::WriteImm)),
            (Kind::ReadRequest, _) => (RequestKind::Read, Some(SeriesKind::Read)),
            (Kind::CmpSwap | Kind::FetchAdd, _) => (RequestKind::Atomic, Some(SeriesKind::Atomic)),
            (Kind::AtomicWrite | Kind::Flush, _) => (RequestKind::Placement, None),
            _ => panic!("a work request becomes request packets"),
        };
        let only = Opcode::rc(packet, Position::Only, tail);
        let takes_recv = matches!(packet, Kind::Send) || matches!(tail, Tail::Imm);
        Some(Self { packet, tail, kind, takes_recv, only, series })
    }

    /// The operation of a work request. A table lookup, because a branch for each operation costs more.
    #[inline(always)]
    pub fn of(wqe: &SendWqe) -> Option<&'static Self> {
        static BY_NUMBER: [Option<Operation>; 256] = {
            let mut by_number = [None; 256];
            let mut n = 0;
            while n < by_number.len() {
                if let Some(opcode) = WrOpcode::from_number(n as u32) {
                    by_number[n] = Operation::new(opcode);
                }
                n += 1;
            }
            by_number
        };
        BY_NUMBER[wqe.opcode_number() as usize].as_ref()
    }

    /// How many packets a request of `length` bytes has: for a READ, response packets.
    #[inline(always)]
    pub fn packets(&self, mtu: crate::id::Mtu, length: u32) -> u32 {
        match self.kind {
            RequestKind::Message | RequestKind::Read => mtu.packets(length),
            _ => 1,
        }
    }
}
