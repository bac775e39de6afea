//! Numbers and lengths of the headers below the transport headers, and of what is around a packet.

/// The UDP destination port of RoCEv2 (IBA A17).
pub const UDP_PORT: u16 = 4791;
/// Bytes of the invariant CRC that ends every packet.
pub const ICRC_LEN: usize = 4;
/// Bytes of the base transport header (IBA 9.2).
pub(super) const BTH_LEN: usize = 12;
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
