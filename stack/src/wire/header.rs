//! The header fields that vary from packet to packet of a flow.

use super::headers::{Aeth, AtomicEth, Deth, Feth, Reth};
use super::opcode::Opcode;
use crate::id::Psn;

/// The extension headers of a packet, without the XRCETH. They must be those of the opcode's row.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ext {
    /// None.
    None,
    /// Immediate data, in the order of the wire.
    Imm([u8; 4]),
    /// An R_Key to invalidate.
    Inv(u32),
    /// RETH.
    Reth(Reth),
    /// RETH and immediate data.
    RethImm(Reth, [u8; 4]),
    /// FETH and RETH.
    FlushReth(Feth, Reth),
    /// AtomicETH.
    Atomic(AtomicEth),
    /// AETH.
    Aeth(Aeth),
    /// AETH and the original value.
    AtomicAck(Aeth, u64),
    /// DETH.
    Deth(Deth),
    /// DETH and immediate data.
    DethImm(Deth, [u8; 4]),
}

/// The header fields that vary from packet to packet of a flow.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Header {
    /// Opcode; a known one.
    pub opcode: Opcode,
    /// Packet sequence number.
    pub psn: Psn,
    /// Whether an acknowledgement is requested.
    pub ack_req: bool,
    /// Whether a solicited event is requested.
    pub solicited: bool,
    /// IPv4 identification; not sent over IPv6.
    pub ip_id: u16,
    /// XRC shared receive queue, 24 bits; sent with XRC requests only.
    pub srqn: u32,
    /// The extension headers of the opcode.
    pub ext: Ext,
    /// Bytes of payload that will follow, without the pad.
    pub payload_len: u32,
}

impl Default for Header {
    /// An empty SEND, PSN 0.
    fn default() -> Self {
        Self {
            opcode: Opcode::RC_SEND_ONLY,
            psn: Psn::default(),
            ack_req: false,
            solicited: false,
            ip_id: 0,
            srqn: 0,
            ext: Ext::None,
            payload_len: 0,
        }
    }
}
