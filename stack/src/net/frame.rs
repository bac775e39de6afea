//! Ethernet frames: the header with its VLAN tag, and the few kinds of frames that we send.

use core::net::{Ipv4Addr, Ipv6Addr};

use smoltcp::phy::ChecksumCapabilities;
use smoltcp::wire::{
    ArpOperation, ArpPacket, ArpRepr, EthernetAddress, Icmpv4Packet, Icmpv4Repr, Icmpv6Packet, Icmpv6Repr,
    IpProtocol, Ipv4Packet, Ipv4Repr, Ipv6Packet, Ipv6Repr, NdiscRepr,
};

use crate::id::{Gid, Mac};

pub(super) const ARP: u16 = 0x0806;
pub(super) const IPV4: u16 = 0x0800;
pub(super) const IPV6: u16 = 0x86dd;
const VLAN: u16 = 0x8100;

/// Next header of ICMPv6.
pub(super) const ICMPV6: u8 = 58;

/// Hop limit that proves that a neighbour discovery packet comes from this link (RFC 4861 7.1).
pub(super) const ND_HOP_LIMIT: u8 = 255;
/// TTL and hop limit of everything else.
const HOP_LIMIT: u8 = 64;

/// The bits of the tag control information that are the VLAN id.
const VID: u16 = 0x0fff;

/// A parsed Ethernet frame.
pub(super) struct Ethernet<'a> {
    pub(super) dst: Mac,
    pub(super) src: Mac,
    /// Tag control information, if tagged.
    pub(super) tci: Option<u16>,
    pub(super) ethertype: u16,
    pub(super) payload: &'a [u8],
}

impl<'a> Ethernet<'a> {
    pub(super) fn parse(frame: &'a [u8]) -> Option<Self> {
        let (dst, rest) = frame.split_first_chunk::<6>()?;
        let (src, rest) = rest.split_first_chunk::<6>()?;
        let (ethertype, rest) = take_u16(rest)?;
        let (tci, ethertype, payload) = if ethertype == VLAN {
            let (tci, rest) = take_u16(rest)?;
            let (ethertype, payload) = take_u16(rest)?;
            (Some(tci), ethertype, payload)
        } else {
            (None, ethertype, rest)
        };
        Some(Self { dst: Mac(*dst), src: Mac(*src), tci, ethertype, payload })
    }
}

fn take_u16(bytes: &[u8]) -> Option<(u16, &[u8])> {
    let (head, rest) = bytes.split_first_chunk::<2>()?;
    Some((u16::from_be_bytes(*head), rest))
}

/// Whether a frame with this tag belongs to `vlan`. A priority tag (VLAN id 0) counts as untagged.
pub(super) fn belongs(tci: Option<u16>, vlan: Option<u16>) -> bool {
    let given = tci.map(|t| t & VID).filter(|vid| *vid != 0);
    given == vlan.map(|v| v & VID).filter(|vid| *vid != 0)
}

/// The Ethernet header of a frame to send: addresses and VLAN.
#[derive(Clone, Copy)]
pub(super) struct FrameHeader {
    pub(super) src: Mac,
    pub(super) dst: Mac,
    pub(super) vlan: Option<u16>,
}

impl FrameHeader {
    /// Writes the header. Returns the `len` bytes after it, and the length of the frame; `None` if `out` is too short.
    fn begin<'a>(&self, out: &'a mut [u8], ethertype: u16, len: usize) -> Option<(&'a mut [u8], usize)> {
        let (header, out) = out.split_first_chunk_mut::<12>()?;
        header[..6].copy_from_slice(&self.dst.0);
        header[6..].copy_from_slice(&self.src.0);
        let mut written = 12;
        let mut rest = out;
        if let Some(vid) = self.vlan.map(|v| v & VID).filter(|vid| *vid != 0) {
            let (tag, after) = rest.split_first_chunk_mut::<4>()?;
            tag[..2].copy_from_slice(&VLAN.to_be_bytes());
            tag[2..].copy_from_slice(&vid.to_be_bytes());
            (rest, written) = (after, written + 4);
        }
        let (kind, rest) = rest.split_first_chunk_mut::<2>()?;
        *kind = ethertype.to_be_bytes();
        Some((rest.get_mut(..len)?, written + 2 + len))
    }
}

const NO_MAC: EthernetAddress = EthernetAddress([0; 6]);

fn eth(mac: Mac) -> EthernetAddress {
    EthernetAddress(mac.0)
}

/// Writes an ARP reply: `ours` is at our Ethernet address. Returns the length of the frame; `None` if `out` is too short.
pub(super) fn arp_reply(
    out: &mut [u8],
    header: FrameHeader,
    ours: Ipv4Addr,
    theirs: Ipv4Addr,
    mac: Mac,
) -> Option<usize> {
    let repr = ArpRepr::EthernetIpv4 {
        operation: ArpOperation::Reply,
        source_hardware_addr: eth(header.src),
        source_protocol_addr: ours,
        target_hardware_addr: eth(mac),
        target_protocol_addr: theirs,
    };
    arp(out, header, &repr)
}

/// Writes an ARP request: who has `target`?
pub(super) fn arp_request(
    out: &mut [u8],
    header: FrameHeader,
    ours: Ipv4Addr,
    target: Ipv4Addr,
) -> Option<usize> {
    let repr = ArpRepr::EthernetIpv4 {
        operation: ArpOperation::Request,
        source_hardware_addr: eth(header.src),
        source_protocol_addr: ours,
        target_hardware_addr: NO_MAC,
        target_protocol_addr: target,
    };
    arp(out, header, &repr)
}

fn arp(out: &mut [u8], header: FrameHeader, repr: &ArpRepr) -> Option<usize> {
    let (body, len) = header.begin(out, ARP, repr.buffer_len())?;
    repr.emit(&mut ArpPacket::new_unchecked(body));
    Some(len)
}

/// Writes an ICMP message over IPv4.
pub(super) fn icmpv4(
    out: &mut [u8],
    header: FrameHeader,
    src: Ipv4Addr,
    dst: Ipv4Addr,
    icmp: &Icmpv4Repr<'_>,
) -> Option<usize> {
    let ip = Ipv4Repr {
        src_addr: src,
        dst_addr: dst,
        next_header: IpProtocol::Icmp,
        payload_len: icmp.buffer_len(),
        hop_limit: HOP_LIMIT,
    };
    let (body, len) = header.begin(out, IPV4, ip.buffer_len() + icmp.buffer_len())?;
    let checksums = ChecksumCapabilities::default();
    ip.emit(&mut Ipv4Packet::new_unchecked(&mut *body), &checksums);
    icmp.emit(&mut Icmpv4Packet::new_unchecked(&mut body[ip.buffer_len()..]), &checksums);
    Some(len)
}

/// Writes an ICMPv6 message; neighbour discovery gets the hop limit that it demands.
pub(super) fn icmpv6(
    out: &mut [u8],
    header: FrameHeader,
    src: Ipv6Addr,
    dst: Ipv6Addr,
    icmp: &Icmpv6Repr<'_>,
) -> Option<usize> {
    let hop_limit = if matches!(icmp, Icmpv6Repr::Ndisc(_)) { ND_HOP_LIMIT } else { HOP_LIMIT };
    let ip = Ipv6Repr {
        src_addr: src,
        dst_addr: dst,
        next_header: IpProtocol::Icmpv6,
        payload_len: icmp.buffer_len(),
        hop_limit,
    };
    let (body, len) = header.begin(out, IPV6, ip.buffer_len() + icmp.buffer_len())?;
    ip.emit(&mut Ipv6Packet::new_unchecked(&mut *body));
    let mut packet = Icmpv6Packet::new_unchecked(&mut body[ip.buffer_len()..]);
    icmp.emit(&src, &dst, &mut packet, &ChecksumCapabilities::default());
    Some(len)
}

/// Writes a neighbour solicitation for `target`, to its multicast group or to its own address.
pub(super) fn solicitation(
    out: &mut [u8],
    header: FrameHeader,
    ours: Ipv6Addr,
    target: Ipv6Addr,
    unicast: bool,
) -> Option<usize> {
    let dst = if unicast { target } else { solicited_node(target) };
    let solicit = NdiscRepr::NeighborSolicit { target_addr: target, lladdr: Some(eth(header.src).into()) };
    icmpv6(out, header, ours, dst, &Icmpv6Repr::Ndisc(solicit))
}

/// The Internet checksum of `parts` (RFC 1071). All parts except the last need an even length. 0 if they include their correct checksum.
pub(super) fn checksum(parts: &[&[u8]]) -> u16 {
    let words = parts.iter().flat_map(|part| part.chunks(2));
    let sum: u32 = words.map(|w| u32::from(w[0]) << 8 | u32::from(*w.get(1).unwrap_or(&0))).sum();
    let sum = (sum & 0xffff) + (sum >> 16);
    !(((sum & 0xffff) + (sum >> 16)) as u16)
}

/// The pseudo header that the checksum of an ICMPv6 message covers.
pub(super) fn icmpv6_pseudo(src: Ipv6Addr, dst: Ipv6Addr, len: usize) -> [u8; 40] {
    let mut pseudo = [0; 40];
    pseudo[..16].copy_from_slice(&src.octets());
    pseudo[16..32].copy_from_slice(&dst.octets());
    pseudo[32..36].copy_from_slice(&(len as u32).to_be_bytes());
    pseudo[39] = ICMPV6;
    pseudo
}

/// Writes an IGMPv2 message (RFC 2236 2): TTL 1, with the router alert option.
pub(super) fn igmp(
    out: &mut [u8],
    header: FrameHeader,
    src: Ipv4Addr,
    dst: Ipv4Addr,
    kind: u8,
    of: Ipv4Addr,
) -> Option<usize> {
    const HEADER: usize = 24;
    let (body, len) = header.begin(out, IPV4, HEADER + 8)?;
    // Header with options; class "internetwork control", as other hosts send it; don't fragment; TTL 1; checksum follows below.
    let start = [0x46, 0xc0, 0, (HEADER + 8) as u8, 0, 0, 0x40, 0, 1, 2, 0, 0];
    body[..12].copy_from_slice(&start);
    body[12..16].copy_from_slice(&src.octets());
    body[16..20].copy_from_slice(&dst.octets());
    body[20..HEADER].copy_from_slice(&[0x94, 4, 0, 0]);
    let sum = checksum(&[&body[..HEADER]]);
    body[10..12].copy_from_slice(&sum.to_be_bytes());
    body[HEADER..HEADER + 4].copy_from_slice(&[kind, 0, 0, 0]);
    body[HEADER + 4..].copy_from_slice(&of.octets());
    let sum = checksum(&[&body[HEADER..]]);
    body[HEADER + 2..HEADER + 4].copy_from_slice(&sum.to_be_bytes());
    Some(len)
}

/// Writes an MLDv1 message (RFC 2710 3): hop limit 1, with the router alert option.
pub(super) fn mld(
    out: &mut [u8],
    header: FrameHeader,
    src: Ipv6Addr,
    dst: Ipv6Addr,
    kind: u8,
    of: Ipv6Addr,
) -> Option<usize> {
    const HEADERS: usize = 48;
    let (body, len) = header.begin(out, IPV6, HEADERS + 24)?;
    body[..8].copy_from_slice(&[0x60, 0, 0, 0, 0, 8 + 24, 0, 1]);
    body[8..24].copy_from_slice(&src.octets());
    body[24..40].copy_from_slice(&dst.octets());
    body[40..HEADERS].copy_from_slice(&[ICMPV6, 0, 5, 2, 0, 0, 1, 0]);
    body[HEADERS..HEADERS + 8].copy_from_slice(&[kind, 0, 0, 0, 0, 0, 0, 0]);
    body[HEADERS + 8..].copy_from_slice(&of.octets());
    let sum = checksum(&[&icmpv6_pseudo(src, dst, 24), &body[HEADERS..]]);
    body[HEADERS + 2..HEADERS + 4].copy_from_slice(&sum.to_be_bytes());
    Some(len)
}

/// Whether hop-by-hop options hold a router alert (RFC 2711).
pub(super) fn router_alert(mut options: &[u8]) -> bool {
    while let [kind, rest @ ..] = options {
        if *kind == 0 {
            options = rest; // one byte of padding
            continue;
        }
        let Some((len, rest)) = rest.split_first() else { return false };
        if *kind == 5 {
            return true;
        }
        options = rest.get(usize::from(*len)..).unwrap_or_default();
    }
    false
}

/// The solicited-node multicast address of an address, in `ff02::1:ff00:0/104` (RFC 4291 2.7.1).
pub(super) fn solicited_node(addr: Ipv6Addr) -> Ipv6Addr {
    let [.., a, b, c] = addr.octets();
    Ipv6Addr::from([0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0xff, a, b, c])
}

/// The Ethernet multicast address of an IPv6 multicast address.
pub(super) fn group(addr: Ipv6Addr) -> Mac {
    Mac::multicast(&Gid(addr.octets()))
}
