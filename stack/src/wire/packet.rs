//! The fields of a received packet.

use super::header::{Ext, Header};
use super::headers::{Aeth, AtomicEth, Bth, Deth, Feth, Reth};
use super::numbers::{IPV4_LEN, UDP_LEN, be16};
use super::opcode::{ExtHeader, Row};
use crate::id::{Gid, Psn, Qpn};

/// A received packet; borrows its frame. Made by [`Layout::packet`](super::Layout::packet).
///
/// An accessor of an extension header may be called only if the packet's row has the header. Otherwise, which is a mistake of the caller
/// and not caused by the bytes of a packet, it returns zeros, and debug builds panic.
#[derive(Clone, Copy, Debug)]
pub struct Packet<'a> {
    /// The opcode's row.
    pub row: &'static Row,
    /// Packet sequence number.
    pub psn: Psn,
    /// Whether the requester requests an acknowledgement.
    pub ack_req: bool,
    /// The base transport header.
    pub bth: &'a Bth,
    /// The IP header (20 or 40 bytes) and the UDP header, as received.
    pub headers: &'a [u8],
    /// The extension headers.
    pub ext: &'a [u8],
    /// The payload, without pad and ICRC.
    pub payload: &'a [u8],
}

impl<'a> Packet<'a> {
    /// Destination queue pair.
    #[inline]
    pub fn dqpn(&self) -> Qpn {
        self.bth.dqpn()
    }
    /// Partition key.
    #[inline]
    pub fn pkey(&self) -> u16 {
        self.bth.pkey()
    }
    /// Whether the requester requests a solicited event.
    #[inline]
    pub fn solicited(&self) -> bool {
        self.bth.solicited()
    }
    /// Pad bytes that followed the payload, 0..=3.
    #[inline]
    pub fn pad(&self) -> u8 {
        self.bth.pad()
    }
    /// Whether the packet came over IPv6.
    #[inline]
    fn ipv6(&self) -> bool {
        self.headers.len() != IPV4_LEN + UDP_LEN
    }
    /// The IPv4 identification; `None` over IPv6.
    pub(crate) fn identification(&self) -> Option<u16> {
        (!self.ipv6()).then(|| be16(self.headers, 4))
    }
    /// The IP header as received, 20 or 40 bytes.
    pub fn ip_header(&self) -> &'a [u8] {
        &self.headers[..self.headers.len() - UDP_LEN]
    }
    /// UDP source port.
    pub fn src_port(&self) -> u16 {
        be16(self.headers, self.headers.len() - UDP_LEN)
    }
    /// Source address.
    #[inline]
    pub fn src(&self) -> Gid {
        if self.ipv6() { self.gid(8) } else { Gid::v4(self.v4(12)) }
    }
    /// Destination address.
    #[inline]
    pub fn dst(&self) -> Gid {
        if self.ipv6() { self.gid(24) } else { Gid::v4(self.v4(16)) }
    }
    /// The source address; `None` over IPv6.
    #[inline(always)]
    pub(super) fn src_v4(&self) -> Option<[u8; 4]> {
        (!self.ipv6()).then(|| self.v4(12))
    }
    /// The destination address; `None` over IPv6.
    #[inline(always)]
    pub(super) fn dst_v4(&self) -> Option<[u8; 4]> {
        (!self.ipv6()).then(|| self.v4(16))
    }
    /// The IPv6 address at `at`.
    #[inline(always)]
    fn gid(&self, at: usize) -> Gid {
        self.headers.get(at..).and_then(|ip| ip.first_chunk()).map_or(Gid::default(), |gid| Gid(*gid))
    }
    /// The IPv4 address at `at`.
    #[inline(always)]
    fn v4(&self, at: usize) -> [u8; 4] {
        self.headers.get(at..).and_then(|ip| ip.first_chunk()).copied().unwrap_or_default()
    }
    /// TOS byte or traffic class: DSCP in bits 7:2, ECN in 1:0.
    #[inline(always)]
    pub fn traffic_class(&self) -> u8 {
        match self.headers {
            [a, b, ..] if self.ipv6() => a << 4 | b >> 4,
            [_, tos, ..] => *tos,
            _ => 0,
        }
    }
    /// Whether a switch marked the packet: congestion experienced (RFC 3168).
    #[inline(always)]
    pub(crate) fn is_marked(&self) -> bool {
        self.traffic_class() & 0b11 == 0b11
    }
    /// The bytes of `header`.
    #[inline(always)]
    fn header<const N: usize>(&self, header: ExtHeader) -> [u8; N] {
        debug_assert!(N == header.size() && self.row.has(header), "{} has no {header:?}", self.row.name);
        let at = self.row.offset_of(header).unwrap_or(usize::MAX);
        self.ext.get(at..).and_then(|b| b.first_chunk()).copied().unwrap_or([0; N])
    }

    /// Address, R_Key and length of a WRITE, READ, FLUSH or ATOMIC WRITE.
    #[inline(always)]
    pub fn reth(&self) -> Reth {
        Reth::read(&self.header(ExtHeader::Reth))
    }
    /// Address, R_Key and operands of an atomic operation.
    #[inline(always)]
    pub fn atomic(&self) -> AtomicEth {
        AtomicEth::read(&self.header(ExtHeader::AtomicEth))
    }
    /// Syndrome and MSN of a response.
    #[inline(always)]
    pub fn aeth(&self) -> Aeth {
        Aeth::read(&self.header(ExtHeader::Aeth))
    }
    /// The original value that an atomic operation replaced.
    #[inline]
    pub fn atomic_ack(&self) -> u64 {
        u64::from_be_bytes(self.header(ExtHeader::AtomicAckEth))
    }
    /// Immediate data, in the order of the wire.
    #[inline(always)]
    pub fn imm(&self) -> [u8; 4] {
        self.header(ExtHeader::ImmDt)
    }
    /// The R_Key to invalidate.
    #[inline(always)]
    pub fn inv(&self) -> u32 {
        u32::from_be_bytes(self.header(ExtHeader::Ieth))
    }
    /// Q_Key and source queue pair of a datagram.
    #[inline]
    pub fn deth(&self) -> Deth {
        Deth::read(&self.header(ExtHeader::Deth))
    }
    /// What a FLUSH flushes.
    #[inline]
    pub fn feth(&self) -> Feth {
        Feth::read(&self.header(ExtHeader::Feth))
    }
    /// The XRC shared receive queue, 24 bits.
    #[inline]
    pub fn xrceth(&self) -> u32 {
        u32::from_be_bytes(self.header(ExtHeader::Xrceth)) & 0x00ff_ffff
    }
    /// The fields that vary within a flow, from which a [`super::Template`] builds this packet again. `None` for the headers of reliable
    /// datagrams, which have no [`Ext`].
    pub fn to_header(&self) -> Option<Header> {
        use ExtHeader as E;
        let (srqn, headers) = match self.row.headers {
            [E::Xrceth, rest @ ..] => (self.xrceth(), rest),
            headers => (0, headers),
        };
        let ext = match headers {
            [] => Ext::None,
            [E::ImmDt] => Ext::Imm(self.imm()),
            [E::Ieth] => Ext::Inv(self.inv()),
            [E::Reth] => Ext::Reth(self.reth()),
            [E::Reth, E::ImmDt] => Ext::RethImm(self.reth(), self.imm()),
            [E::Feth, E::Reth] => Ext::FlushReth(self.feth(), self.reth()),
            [E::AtomicEth] => Ext::Atomic(self.atomic()),
            [E::Aeth] => Ext::Aeth(self.aeth()),
            [E::Aeth, E::AtomicAckEth] => Ext::AtomicAck(self.aeth(), self.atomic_ack()),
            [E::Deth] => Ext::Deth(self.deth()),
            [E::Deth, E::ImmDt] => Ext::DethImm(self.deth(), self.imm()),
            _ => return None,
        };
        Some(Header {
            opcode: self.row.opcode,
            psn: self.psn,
            ack_req: self.ack_req,
            solicited: self.solicited(),
            ip_id: self.identification().unwrap_or(0),
            srqn,
            ext,
            payload_len: self.payload.len() as u32,
        })
    }
}
