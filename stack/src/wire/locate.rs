//! Finds a RoCEv2 packet in a frame: makes every check that needs only the bytes, except that of the ICRC.

use super::discard::Discard;
use super::flow::Flow;
use super::headers::Bth;
use super::numbers::{
    ETH_LEN, ETHER_IPV4, ETHER_IPV6, ETHER_VLAN, ICRC_LEN, IP_PROTO_UDP, IPV4_LEN, IPV6_LEN, UDP_LEN,
    UDP_PORT, VLAN_LEN, be16,
};
use super::opcode::Row;
use super::packet::Packet;
use crate::id::{Gid, Mac, Qpn};

/// EtherType of RoCEv1 (IBA A16), which this stack does not speak.
const ETHER_ROCE_V1: u16 = 0x8915;
/// EtherType of an outer provider tag.
const ETHER_QINQ: u16 = 0x88a8;
/// IPv6 next header of a fragment header.
const IPV6_FRAGMENT: u8 = 44;

/// Offsets of the UDP header and the BTH of a plain packet ([`locate_plain`]).
const PLAIN_UDP: usize = ETH_LEN + IPV4_LEN;
const PLAIN_BTH: usize = PLAIN_UDP + UDP_LEN;

/// What a frame is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ingress {
    /// A RoCEv2 packet, well formed as far as its bytes can tell.
    Roce(Layout),
    /// Anything else: ARP, ICMP, neighbour discovery, other UDP ports.
    Other,
}

/// Where the parts of a located packet are. Offsets are from the start of the frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Layout {
    /// Offset of the IP header.
    pub l3: u16,
    /// Whether the IP header is IPv6.
    pub ipv6: bool,
    /// Tag control information of the 802.1Q tag. A priority tag (VLAN 0) counts as untagged: `None`.
    pub vlan: Option<u16>,
    /// Offset of the BTH.
    pub bth: u16,
    /// Offset after the ICRC, from the UDP length; Ethernet padding may follow.
    pub end: u16,
    /// The opcode's row.
    pub row: &'static Row,
    /// The destination queue pair.
    pub dqpn: Qpn,
}

/// Finds the packet in `frame`.
///
/// The checksum of an IPv4 header is not verified: the ICRC covers every field of that header which this
/// stack acts on, except the ECN bits, and a port with checksum offload has verified it already. A UDP checksum
/// is ignored for the same reason.
///
/// # Errors
/// [`Discard`] for a frame that is RoCEv2, or may be, and has to be dropped.
#[inline(always)]
pub fn locate(frame: &[u8]) -> Result<Ingress, Discard> {
    let Some(eth) = frame.first_chunk::<ETH_LEN>() else { return Err(Discard::TooShort) };
    match be16(eth, 12) {
        ETHER_IPV4 => locate_ipv4(frame, ETH_LEN, None),
        ETHER_IPV6 => locate_ipv6(frame, ETH_LEN, None),
        ETHER_VLAN => locate_tagged(frame),
        ETHER_ROCE_V1 | ETHER_QINQ => Err(Discard::BadEtherType),
        _ => Ok(Ingress::Other),
    }
}

/// Same as [`locate`], for a frame of the most common form: Ethernet without a tag, IPv4 without options, and UDP that is as long as IP
/// says. After `None`, [`locate`] may still find a packet.
///
/// Makes a few wide compares instead of a check of each field. The offsets in the result are constants to the compiler.
#[inline(always)]
pub(crate) fn locate_plain(frame: &[u8]) -> Option<Layout> {
    let head = frame.first_chunk::<{ PLAIN_BTH + Bth::LEN }>()?;
    // Compared in memory order: a byte swap would cost more than the compare.
    let half = |at: usize| u16::from_ne_bytes([head[at], head[at + 1]]);
    let word = |at: usize, mask: [u8; 4]| {
        u32::from_ne_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]) & u32::from_ne_bytes(mask)
    };
    let [ether_high, ether_low] = ETHER_IPV4.to_be_bytes();
    let bth = Bth::of(head.last_chunk()?);
    let udp_len = be16(head, PLAIN_UDP + 4);
    // EtherType, version and header length; fragmentation and protocol; the UDP port; the BTH's version.
    let other = (word(12, [0xff, 0xff, 0xff, 0]) ^ u32::from_ne_bytes([ether_high, ether_low, 0x45, 0]))
        | (word(20, [0x3f, 0xff, 0, 0xff]) ^ u32::from_ne_bytes([0, 0, 0, IP_PROTO_UDP]))
        | u32::from(half(PLAIN_UDP + 2) ^ UDP_PORT.to_be())
        | u32::from(half(16) ^ udp_len.wrapping_add(IPV4_LEN as u16).to_be())
        | u32::from(udp_len % 4)
        | u32::from(bth.tver());
    let row = bth.opcode().row()?;
    let (udp_len, headers) = (usize::from(udp_len), UDP_LEN + row.header_len as usize + ICRC_LEN);
    let short = udp_len < headers + bth.pad() as usize;
    // The datagram must lie in the frame, and its end fit 16 bits.
    if other != 0 || short || PLAIN_UDP + udp_len > frame.len().min(u16::MAX as usize) {
        return None;
    }
    Some(Layout::plain(row, bth.dqpn(), udp_len as u32 / 4))
}

#[inline(never)]
fn locate_tagged(frame: &[u8]) -> Result<Ingress, Discard> {
    const L3: usize = ETH_LEN + VLAN_LEN;
    let Some(eth) = frame.first_chunk::<L3>() else { return Err(Discard::TooShort) };
    let vlan = Some(be16(eth, 14)).filter(|tci| tci & 0x0fff != 0);
    match be16(eth, 16) {
        ETHER_IPV4 => locate_ipv4(frame, L3, vlan),
        ETHER_IPV6 => locate_ipv6(frame, L3, vlan),
        ETHER_VLAN | ETHER_ROCE_V1 | ETHER_QINQ => Err(Discard::BadEtherType),
        _ => Ok(Ingress::Other),
    }
}

#[inline(always)]
fn locate_ipv4(frame: &[u8], l3: usize, vlan: Option<u16>) -> Result<Ingress, Discard> {
    let packet = frame.get(l3..).unwrap_or_default();
    let Some(ip) = packet.first_chunk::<IPV4_LEN>() else { return Err(Discard::TooShort) };
    if ip[0] >> 4 != 4 {
        return Err(Discard::BadEtherType);
    }
    if ip[9] != IP_PROTO_UDP {
        return Ok(Ingress::Other);
    }
    if ip[0] != 0x45 {
        return Err(Discard::IpOptions);
    }
    // More fragments, or not the first. DF and the reserved bit are ignored.
    if be16(ip, 6) & 0x3fff != 0 {
        return Err(Discard::Fragment);
    }
    let total_len = be16(ip, 2) as usize;
    if packet.len() < total_len {
        return Err(Discard::TooShort);
    }
    let Some(body_len) = total_len.checked_sub(IPV4_LEN) else { return Err(Discard::BadLength) };
    locate_udp(frame, l3, l3 + IPV4_LEN, body_len, false, vlan)
}

#[inline(never)]
fn locate_ipv6(frame: &[u8], l3: usize, vlan: Option<u16>) -> Result<Ingress, Discard> {
    let packet = frame.get(l3..).unwrap_or_default();
    let Some(ip) = packet.first_chunk::<IPV6_LEN>() else { return Err(Discard::TooShort) };
    if ip[0] >> 4 != 6 {
        return Err(Discard::BadEtherType);
    }
    match ip[6] {
        IP_PROTO_UDP => {}
        IPV6_FRAGMENT => return Err(Discard::Fragment),
        _ => return Ok(Ingress::Other),
    }
    // An IPv4-mapped address has the GID of the IPv4 address, and would pass as that host (RFC 4291 2.5.5.2).
    let address = |at: usize| ip[at..].first_chunk().map(|bytes| Gid(*bytes));
    if [8, 24].into_iter().filter_map(address).any(|gid| gid.as_v4().is_some()) {
        return Err(Discard::BadEtherType);
    }
    let body_len = be16(ip, 4) as usize;
    if packet.len() < IPV6_LEN + body_len {
        return Err(Discard::TooShort);
    }
    locate_udp(frame, l3, l3 + IPV6_LEN, body_len, true, vlan)
}

/// Continues at the UDP header, whose offset is `udp`. The IP packet ends `body_len` bytes later, within the frame.
#[inline(always)]
fn locate_udp(
    frame: &[u8],
    l3: usize,
    udp: usize,
    body_len: usize,
    ipv6: bool,
    vlan: Option<u16>,
) -> Result<Ingress, Discard> {
    let rest = frame.get(udp..).unwrap_or_default();
    let Some(head) = rest.first_chunk::<UDP_LEN>() else { return Err(Discard::TooShort) };
    if be16(head, 2) != UDP_PORT {
        return Ok(Ingress::Other);
    }
    let udp_len = be16(head, 4) as usize;
    let end = udp + udp_len;
    // `end` fits its 16 bits in any frame of less than 64 KiB, and no port makes longer ones.
    if udp_len > body_len || !udp_len.is_multiple_of(4) || end > u16::MAX as usize {
        return Err(Discard::BadLength);
    }
    let Some(bth) = rest.get(UDP_LEN..).and_then(|b| b.first_chunk::<{ Bth::LEN }>()) else {
        return Err(Discard::TooShort);
    };
    let bth = Bth::of(bth);
    if udp_len < UDP_LEN + Bth::LEN + ICRC_LEN {
        return Err(Discard::BadLength);
    }
    if bth.tver() != 0 {
        return Err(Discard::BadTver);
    }
    let Some(row) = bth.opcode().row() else { return Err(Discard::UnknownOpcode) };
    if udp_len < UDP_LEN + row.header_len as usize + bth.pad() as usize + ICRC_LEN {
        return Err(Discard::BadLength);
    }
    Ok(Ingress::Roce(Layout {
        l3: l3 as u16,
        ipv6,
        vlan,
        bth: (udp + UDP_LEN) as u16,
        end: end as u16,
        row,
        dqpn: bth.dqpn(),
    }))
}

impl Layout {
    /// The layout of a plain packet ([`locate_plain`]) whose UDP datagram has this many words of four bytes.
    #[inline(always)]
    pub(crate) fn plain(row: &'static Row, dqpn: Qpn, udp_words: u32) -> Self {
        Self {
            l3: ETH_LEN as u16,
            ipv6: false,
            vlan: None,
            bth: PLAIN_BTH as u16,
            end: (PLAIN_UDP as u32 + 4 * udp_words) as u16,
            row,
            dqpn,
        }
    }

    /// Length of the UDP datagram in words of four bytes.
    #[inline(always)]
    pub(crate) fn udp_words(&self) -> u32 {
        (u32::from(self.end) + UDP_LEN as u32 - u32::from(self.bth)) / 4
    }

    /// The fields of the packet.
    ///
    /// # Panics
    /// If `frame` is not the frame that this layout was made from: if it is shorter, or its headers differ.
    #[inline(always)]
    pub fn packet<'a>(&self, frame: &'a [u8]) -> Packet<'a> {
        let (header, rest) =
            frame[self.bth as usize..self.end as usize].split_at(self.row.header_len as usize);
        let (bth, ext) = header.split_first_chunk().expect("a row's headers start with the BTH");
        let bth = Bth::of(bth);
        Packet {
            row: self.row,
            psn: bth.psn(),
            ack_req: bth.ack_req(),
            bth,
            headers: &frame[self.l3 as usize..self.bth as usize],
            ext,
            payload: &rest[..rest.len() - ICRC_LEN - bth.pad() as usize],
        }
    }

    /// The destination address alone, for callers that must choose before they parse the packet.
    ///
    /// # Panics
    /// See [`Layout::packet`].
    pub fn dst(&self, frame: &[u8]) -> Gid {
        self.packet(frame).dst()
    }

    /// Priority of the VLAN tag; 0 for an untagged packet, and for one whose tag has VLAN 0.
    #[inline]
    pub fn priority(&self) -> u8 {
        self.vlan.map_or(0, |tci| (tci >> 13) as u8)
    }

    /// The VLAN id of the packet; `None` for an untagged one.
    #[inline]
    pub fn vid(&self) -> Option<u16> {
        self.vlan.map(|tci| tci & 0x0fff)
    }

    /// The flow to which the packet belongs, as its sender sees it.
    ///
    /// # Panics
    /// See [`Layout::packet`].
    pub fn flow(&self, frame: &[u8]) -> Flow {
        let packet = self.packet(frame);
        let ip = packet.headers;
        let mac = |at: usize| {
            let mut mac = [0; 6];
            mac.copy_from_slice(&frame[at..at + 6]);
            Mac(mac)
        };
        // `self.vlan` is `None` for a priority tag, which is part of the flow nevertheless.
        let tagged = self.l3 as usize == ETH_LEN + VLAN_LEN;
        Flow {
            src_mac: mac(6),
            dst_mac: mac(0),
            vlan: tagged.then(|| be16(frame, ETH_LEN)),
            src: packet.src(),
            dst: packet.dst(),
            traffic_class: packet.traffic_class(),
            hop_limit: if self.ipv6 { ip[7] } else { ip[8] },
            flow_label: if self.ipv6 { u32::from_be_bytes([0, ip[1] & 0x0f, ip[2], ip[3]]) } else { 0 },
            src_port: packet.src_port(),
            dqpn: packet.dqpn(),
            pkey: packet.pkey(),
            mig_req: packet.bth.mig_req(),
        }
    }
}

/// The destination queue pair of a frame that looks like a RoCEv2 packet, and whether the packet is a request. Checks nothing. It is for
/// prefetching before [`locate`] has checked the frame.
#[inline]
pub fn peek(frame: &[u8]) -> Option<(Qpn, bool)> {
    let l3 =
        if be16(frame.first_chunk::<ETH_LEN>()?, 12) == ETHER_VLAN { ETH_LEN + VLAN_LEN } else { ETH_LEN };
    let ip = if frame.get(l3)? >> 4 == 4 { IPV4_LEN } else { IPV6_LEN };
    let bth = frame.get(l3 + ip + UDP_LEN..)?.first_chunk::<{ Bth::LEN }>()?;
    // READ RESPONSE, ACKNOWLEDGE and ATOMIC ACKNOWLEDGE, of any transport (IBA 9.2, table 38).
    let request = !matches!(bth[0] & 0x1f, 0x0d..=0x12);
    Some((Qpn::new(u32::from_be_bytes([0, bth[5], bth[6], bth[7]])), request))
}

/// Opcode and destination queue pair of an untagged frame over IPv4 without options. It costs less than [`peek`], which returns the same
/// for frames with equal glances.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Glance(u64);

impl Glance {
    /// Takes a glance at a frame; `None` for frames of other forms.
    #[inline(always)]
    pub fn at(frame: &[u8]) -> Option<Self> {
        let (form, of) = Self::parts(frame)?;
        (form == 0).then_some(Self(of))
    }

    /// Whether the glance at this frame is equal.
    #[inline(always)]
    pub fn is_of(self, frame: &[u8]) -> bool {
        Self::parts(frame).is_some_and(|(form, of)| u64::from(form) | of ^ self.0 == 0)
    }

    /// Returns a number that is zero if the frame has the form of a glance, and its opcode and queue pair, which are meaningful only then.
    /// `None` if the frame is too short.
    #[inline(always)]
    fn parts(frame: &[u8]) -> Option<(u32, u64)> {
        let head = frame.first_chunk::<{ PLAIN_BTH + Bth::LEN }>()?;
        // Compared in memory order. Ethertype, version and header length:
        let form = u32::from_ne_bytes(*head[12..].first_chunk()?) & u32::from_ne_bytes([0xff, 0xff, 0xff, 0]);
        let bth = u64::from_ne_bytes(*head[PLAIN_BTH..].first_chunk()?);
        let of = bth & u64::from_ne_bytes([0xff, 0, 0, 0, 0, 0xff, 0xff, 0xff]);
        Some((form ^ u32::from_ne_bytes([0x08, 0x00, 0x45, 0]), of))
    }
}
