//! Turns frames into fields and fields into frames, and guards them with the invariant CRC.
//!
//! Never allocates, keeps no state, reads no clock and knows no queue pair: the layers above decide whether a well-formed packet
//! is *acceptable*. Called by `shard` (both directions), `proto` (opcodes and header fields), `port` (`udp`, and the faults of
//! links) and tests.
//!
//! Receive: [`locate()`] makes every check that needs nothing but the bytes, [`icrc::check`] verifies the ICRC, and
//! [`Layout::packet`] returns the fields. Transmit: [`Template::begin`] writes the headers, the caller copies the payload to the
//! offset it returns, [`Template::seal`] pads, computes the ICRC and finishes. Long packets are written whole by an
//! [`icrc::OnePass`] instead.

#![deny(unsafe_code)]

#[cfg(target_arch = "x86_64")]
mod clmul;
mod discard;
mod flow;
mod headers;
pub mod icrc;
mod locate;
mod opcode;
mod packet;
mod template;

#[cfg(test)]
mod tests;

pub use discard::Discard;
pub use flow::{Flow, udp_source_port};
pub use headers::{Aeth, AtomicEth, Bth, Deth, Feth, Reth};
pub(crate) use locate::locate_plain;
pub use locate::{Glance, Ingress, Layout, locate, peek};
pub use opcode::{ExtHeader, Kind, Opcode, PayloadRule, Position, Row, Tail, Transport};
pub use packet::Packet;
pub use template::{Ext, HEADERS_MAX, Header, Laid, Stencil, Template};

/// The UDP destination port of RoCEv2 (IBA A17).
pub const UDP_PORT: u16 = 4791;
/// Bytes of the invariant CRC that ends every packet.
pub const ICRC_LEN: usize = 4;
/// Payload of a congestion notification packet, all zero (IBA A17.9.3).
pub const CNP_PAYLOAD: usize = 16;

pub(crate) const ETHER_IPV4: u16 = 0x0800;
pub(crate) const ETHER_IPV6: u16 = 0x86dd;
pub(crate) const ETHER_VLAN: u16 = 0x8100;
pub(crate) const ETH_LEN: usize = 14;
pub(crate) const VLAN_LEN: usize = 4;
pub(crate) const IPV4_LEN: usize = 20;
pub(crate) const IPV6_LEN: usize = 40;
pub(crate) const UDP_LEN: usize = 8;
pub(crate) const IP_PROTO_UDP: u8 = 17;

/// The big-endian 16-bit number at `at`.
#[inline(always)]
pub(crate) fn be16(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}
