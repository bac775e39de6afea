//! Builds packets: the constant headers of a flow are laid out once, and each packet fills in what varies.
//!
//! While a packet is built, its headers are in masked form, with ones where the ICRC is computed over ones, so that the ICRC is one pass
//! over contiguous bytes. [`Template::seal`] writes the real values last.

use super::flow::Flow;
use super::header::{Ext, Header};
use super::headers::{Aeth, AtomicEth, Bth, Deth, Feth, Reth};
use super::icrc::{self, OnePass};
use super::masks::{MASK_V4, MASK_V6};
use super::numbers::{
    CNP_PAYLOAD, ETH_LEN, ETHER_IPV4, ETHER_IPV6, ETHER_VLAN, ICRC_LEN, IP_PROTO_UDP, IPV4_LEN, IPV6_LEN,
    UDP_LEN, UDP_PORT, VLAN_LEN, be16,
};
use super::opcode::{ExtHeader, HEADER_LEN_MAX, Opcode, Transport};
use super::packet::Packet;
use crate::id::{Gid, Mac, Psn, Qpn};

/// The most bytes before the BTH.
const OUTER_MAX: usize = ETH_LEN + VLAN_LEN + IPV6_LEN + UDP_LEN;
/// The most bytes of extension headers.
const EXT_MAX: usize = HEADER_LEN_MAX - Bth::LEN;
/// The most bytes of headers, from the Ethernet header on. [`Template::begin`] needs a buffer of this size.
pub const HEADERS_MAX: usize = OUTER_MAX + HEADER_LEN_MAX;
const _: () = assert!(HEADERS_MAX <= OnePass::HEAD, "behind them is payload");

/// BECN, the only bit of BTH byte 4 that is ever sent, and only by a CNP (IBA A17.9.3).
const BECN: u8 = 0x40;

/// The headers of a [`Flow`], laid out. The first 64 bytes have all that IPv4 without a VLAN tag needs.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Template {
    /// Sum of the IPv4 header's 16-bit words as they lie in memory, without length, identification and checksum.
    sum: u32,
    /// Offset of the IP header.
    l3: u8,
    /// Offset of the BTH.
    bth: u8,
    ipv6: bool,
    /// BTH byte 1 without SE and pad.
    mig_req: u8,
    traffic_class: u8,
    hop_limit: u8,
    /// Ethernet to BTH, variant fields all ones.
    head: [u8; OUTER_MAX + Bth::LEN],
    flow_label: u32,
}

const _: () = assert!(core::mem::offset_of!(Template, head) + PLAIN_LEN <= 64);

/// Offset of the BTH over IPv4 without a VLAN tag, and its end.
const PLAIN_BTH: usize = ETH_LEN + IPV4_LEN + UDP_LEN;
const PLAIN_LEN: usize = PLAIN_BTH + Bth::LEN;

/// Number of zero bytes that fill a payload of `len` bytes up to a multiple of 4.
#[inline(always)]
pub(super) const fn pad_count(len: usize) -> usize {
    len.wrapping_neg() & 3
}

/// The headers that many packets over IPv4 without a VLAN tag have in common: [`Template::stencil`].
#[derive(Clone, Copy, Debug)]
pub struct Stencil {
    /// Ethernet to BTH, variant fields all ones.
    head: [u8; PLAIN_LEN],
    /// BTH byte 1 without pad.
    flags: u8,
}

/// A packet that [`Stencil::lay`] has laid out, still without extension headers and payload.
#[derive(Debug)]
pub struct Laid<'a, const EXT: usize> {
    /// The opcode of the stencil. The caller may replace it by one with headers of the same length.
    pub opcode: &'a mut u8,
    /// Where the extension headers go, without the XRCETH.
    pub ext: &'a mut [u8; EXT],
    /// Where the payload goes.
    pub payload: &'a mut [u8],
}

impl Stencil {
    /// Length in bytes of a frame with `EXT` bytes of extension headers and `payload_len` of payload.
    #[inline(always)]
    pub const fn frame_len<const EXT: usize>(payload_len: usize) -> usize {
        PLAIN_LEN + EXT + payload_len + pad_count(payload_len) + ICRC_LEN
    }

    /// Lays out a packet as [`Template::begin`] and [`Template::close`] do, except for extension headers and payload, which the caller
    /// writes. The frame is [`Stencil::frame_len`] bytes long, and [`Template::stamp`] finishes it.
    ///
    /// # Panics
    /// If `buf` is shorter than the frame.
    #[inline(always)]
    pub fn lay<'a, const EXT: usize>(
        &self,
        buf: &'a mut [u8],
        ip_id: u16,
        psn: Psn,
        ack_req: bool,
        payload_len: usize,
    ) -> Laid<'a, EXT> {
        const L3: usize = ETH_LEN;
        const UDP: usize = L3 + IPV4_LEN;
        let len = Self::frame_len::<EXT>(payload_len);
        debug_assert!(len - L3 <= u16::MAX as usize, "an IP packet has 16 bits of length");
        let (head, rest) = buf[..len].split_first_chunk_mut::<PLAIN_LEN>().expect("a frame has a head");
        let (ext, rest) = rest.split_first_chunk_mut::<EXT>().expect("a frame has its extension headers");
        *head = self.head;
        head[L3 + 2..L3 + 4].copy_from_slice(&((len - L3) as u16).to_be_bytes());
        head[L3 + 4..L3 + 6].copy_from_slice(&ip_id.to_be_bytes());
        head[UDP + 4..UDP + 6].copy_from_slice(&((len - UDP) as u16).to_be_bytes());
        head[PLAIN_BTH + 1] = self.flags | (pad_count(payload_len) as u8) << 4;
        let word = u32::from(ack_req) << 31 | psn.get();
        head[PLAIN_BTH + 8..].copy_from_slice(&word.to_be_bytes());
        // Four zeros at the end of the payload are the pad and the room for the ICRC, whatever the pad count.
        let (payload, tail) = rest.split_at_mut(payload_len);
        tail[..4].fill(0);
        Laid { opcode: &mut head[PLAIN_BTH], ext, payload }
    }
}

impl Template {
    /// Lays out the headers of `flow`, for IPv4 if the destination is an IPv4 address.
    pub fn new(flow: &Flow) -> Self {
        let ipv6 = flow.dst.as_v4().is_none();
        let l3 = ETH_LEN + if flow.vlan.is_some() { VLAN_LEN } else { 0 };
        let udp = l3 + if ipv6 { IPV6_LEN } else { IPV4_LEN };
        let bth = udp + UDP_LEN;

        let mut head = [0; OUTER_MAX + Bth::LEN];
        head[..6].copy_from_slice(&flow.dst_mac.0);
        head[6..12].copy_from_slice(&flow.src_mac.0);
        if let Some(tci) = flow.vlan {
            head[12..14].copy_from_slice(&ETHER_VLAN.to_be_bytes());
            head[14..16].copy_from_slice(&tci.to_be_bytes());
        }
        let ether_type = if ipv6 { ETHER_IPV6 } else { ETHER_IPV4 };
        head[l3 - 2..l3].copy_from_slice(&ether_type.to_be_bytes());

        let ip = &mut head[l3..];
        if ipv6 {
            ip[0] = 0x60;
            ip[6] = IP_PROTO_UDP;
            ip[8..24].copy_from_slice(&flow.src.0);
            ip[24..40].copy_from_slice(&flow.dst.0);
        } else {
            ip[0] = 0x45;
            ip[6] = 0x40; // DF
            ip[9] = IP_PROTO_UDP;
            ip[12..16].copy_from_slice(&flow.src.0[12..]);
            ip[16..20].copy_from_slice(&flow.dst.0[12..]);
        }
        head[udp..udp + 2].copy_from_slice(&flow.src_port.to_be_bytes());
        head[udp + 2..udp + 4].copy_from_slice(&UDP_PORT.to_be_bytes());
        let mut base = Bth::default();
        base.set_mig_req(flow.mig_req);
        base.set_pkey(flow.pkey);
        base.set_dqpn(flow.dqpn);
        head[bth..bth + Bth::LEN].copy_from_slice(&base.0);

        let mask: &[u8] = if ipv6 { &MASK_V6 } else { &MASK_V4 };
        for (byte, mask) in head[l3..bth + Bth::LEN].iter_mut().zip(mask) {
            *byte |= mask;
        }

        let mut template = Self {
            sum: 0,
            l3: l3 as u8,
            bth: bth as u8,
            ipv6,
            mig_req: base.0[1],
            traffic_class: flow.traffic_class,
            hop_limit: flow.hop_limit,
            head,
            flow_label: flow.flow_label & 0xf_ffff,
        };
        template.sum_ipv4();
        template
    }

    /// Source address of the flow's packets.
    pub fn src(&self) -> Gid {
        self.address(8, 12)
    }

    /// Destination address of the flow's packets.
    pub fn dst(&self) -> Gid {
        self.address(24, 16)
    }

    /// The address at one of these offsets of an IPv6 and of an IPv4 header.
    #[inline(always)]
    fn address(&self, v6: usize, v4: usize) -> Gid {
        let l3 = self.l3 as usize;
        if self.ipv6 { Gid(self.field(l3 + v6)) } else { Gid::v4(self.field(l3 + v4)) }
    }

    /// `N` bytes of the laid-out headers, at this offset.
    #[inline(always)]
    fn field<const N: usize>(&self, at: usize) -> [u8; N] {
        self.head.get(at..).and_then(|head| head.first_chunk()).copied().unwrap_or([0; N])
    }

    /// Whether this IPv4 address is at this offset of its IP header.
    #[inline(always)]
    fn has_v4(&self, at: usize, address: [u8; 4]) -> bool {
        if self.is_plain() {
            return self.field(ETH_LEN + at) == address;
        }
        !self.ipv6 && self.field(self.l3 as usize + at) == address
    }

    /// Whether packets of this flow go to the address from which `pkt` came.
    #[inline(always)]
    pub(crate) fn goes_to_source_of(&self, pkt: &Packet<'_>) -> bool {
        match pkt.src_v4() {
            Some(from) => self.has_v4(16, from),
            None => self.dst() == pkt.src(),
        }
    }

    /// Whether packets of this flow come from the address to which `pkt` went.
    #[inline(always)]
    pub(crate) fn comes_from_destination_of(&self, pkt: &Packet<'_>) -> bool {
        match pkt.dst_v4() {
            Some(to) => self.has_v4(12, to),
            None => self.src() == pkt.dst(),
        }
    }

    /// Changes the Ethernet address of the next hop.
    pub(crate) fn set_dst_mac(&mut self, mac: Mac) {
        self.head[..6].copy_from_slice(&mac.0);
    }

    /// Ethernet address of the next hop.
    pub fn dst_mac(&self) -> Mac {
        Mac([self.head[0], self.head[1], self.head[2], self.head[3], self.head[4], self.head[5]])
    }

    /// Changes the destination queue pair; the addresses stay.
    pub(crate) fn set_dqpn(&mut self, dqpn: Qpn) {
        let at = self.bth as usize + 5;
        self.head[at..at + 3].copy_from_slice(&dqpn.get().to_be_bytes()[1..]);
    }

    /// UDP source port.
    pub(crate) fn src_port(&self) -> u16 {
        be16(&self.head, self.bth as usize - UDP_LEN)
    }

    /// Changes the UDP source port.
    pub(crate) fn set_src_port(&mut self, port: u16) {
        let at = self.bth as usize - UDP_LEN;
        self.head[at..at + 2].copy_from_slice(&port.to_be_bytes());
    }

    /// Recomputes the constant part of the IPv4 header checksum.
    fn sum_ipv4(&mut self) {
        let mut ip = [0; IPV4_LEN];
        ip.copy_from_slice(&self.head[self.l3 as usize..self.l3 as usize + IPV4_LEN]);
        ip[1] = self.traffic_class;
        ip[8] = self.hop_limit;
        ip[10..12].fill(0);
        self.sum = ip.chunks_exact(2).map(|word| u32::from(u16::from_ne_bytes([word[0], word[1]]))).sum();
    }

    /// Writes the headers of a packet, in masked form. Returns the offset of the payload, which the caller writes next. [`Template::seal`]
    /// finishes the packet.
    ///
    /// # Panics
    /// If `buf` is shorter than [`HEADERS_MAX`]. Debug builds also panic if `h.ext` is not what the opcode
    /// takes.
    #[inline(always)]
    pub fn begin(&self, buf: &mut [u8], h: &Header) -> usize {
        let head: &mut [u8; HEADERS_MAX] = buf.first_chunk_mut().expect("a buffer of HEADERS_MAX bytes");
        // Offsets that are constants in each arm leave plain stores, without bounds checks.
        if self.is_plain() {
            return self.begin_at::<{ ETH_LEN }, { ETH_LEN + IPV4_LEN }>(head, h);
        }
        self.begin_other(head, *h)
    }

    /// The headers that packets of `opcode` have in common if they differ only in sequence number and length. `None` over IPv6 or with a
    /// VLAN tag: then use [`Template::begin`].
    #[inline(always)]
    pub fn stencil(&self, opcode: Opcode, solicited: bool) -> Option<Stencil> {
        if !self.is_plain() {
            return None;
        }
        let mut head = *self.head.first_chunk::<PLAIN_LEN>()?;
        head[PLAIN_BTH] = opcode.0;
        Some(Stencil { head, flags: self.mig_req | u8::from(solicited) << 7 })
    }

    /// Whether the layout is IPv4 without a VLAN tag, for which the code is optimised.
    #[inline(always)]
    pub(crate) fn is_plain(&self) -> bool {
        self.bth as usize == ETH_LEN + IPV4_LEN + UDP_LEN
    }

    /// Same as [`Template::begin`], for other layouts. Takes the header by value, so that the common case need not store it in memory.
    #[inline(never)]
    fn begin_other(&self, head: &mut [u8; HEADERS_MAX], h: Header) -> usize {
        let h = &h;
        match (self.ipv6, self.l3 as usize == ETH_LEN) {
            (false, true) => self.begin_at::<{ ETH_LEN }, { ETH_LEN + IPV4_LEN }>(head, h),
            (false, false) => {
                self.begin_at::<{ ETH_LEN + VLAN_LEN }, { ETH_LEN + VLAN_LEN + IPV4_LEN }>(head, h)
            }
            (true, true) => self.begin_at::<{ ETH_LEN }, { ETH_LEN + IPV6_LEN }>(head, h),
            (true, false) => {
                self.begin_at::<{ ETH_LEN + VLAN_LEN }, { ETH_LEN + VLAN_LEN + IPV6_LEN }>(head, h)
            }
        }
    }

    #[inline(always)]
    fn begin_at<const L3: usize, const UDP: usize>(&self, buf: &mut [u8; HEADERS_MAX], h: &Header) -> usize {
        let bth = UDP + UDP_LEN;
        buf[..bth + Bth::LEN].copy_from_slice(&self.head[..bth + Bth::LEN]);

        let ext: &mut [u8; EXT_MAX] =
            buf[bth + Bth::LEN..].first_chunk_mut().expect("HEADERS_MAX has room for it");
        let ext_len = write_ext(ext, h);
        debug_assert_eq!(
            h.opcode.row().map(|row| row.header_len as usize),
            Some(Bth::LEN + ext_len),
            "{:?} does not go with {:?}",
            h.ext,
            h.opcode,
        );

        let pad = pad_count(h.payload_len as usize);
        let udp_len = UDP_LEN + Bth::LEN + ext_len + h.payload_len as usize + pad + ICRC_LEN;
        debug_assert!(udp_len + IPV4_LEN <= u16::MAX as usize, "an IP packet has 16 bits of length");
        if UDP - L3 == IPV4_LEN {
            buf[L3 + 2..L3 + 4].copy_from_slice(&((IPV4_LEN + udp_len) as u16).to_be_bytes());
            buf[L3 + 4..L3 + 6].copy_from_slice(&h.ip_id.to_be_bytes());
        } else {
            buf[L3 + 4..L3 + 6].copy_from_slice(&(udp_len as u16).to_be_bytes());
        }
        buf[UDP + 4..UDP + 6].copy_from_slice(&(udp_len as u16).to_be_bytes());

        buf[bth] = h.opcode.0;
        buf[bth + 1] = self.mig_req | u8::from(h.solicited) << 7 | (pad as u8) << 4;
        buf[bth + 8..bth + 12].copy_from_slice(&(u32::from(h.ack_req) << 31 | h.psn.get()).to_be_bytes());
        bth + Bth::LEN + ext_len
    }

    /// Finishes a packet that [`Template::begin`] began: [`Template::close`], then [`Template::stamp`].
    ///
    /// # Panics
    /// Those of these methods.
    #[inline(always)]
    pub fn seal(&self, buf: &mut [u8], payload_offset: usize, payload_len: usize) -> usize {
        let len = self.close(buf, payload_offset, payload_len);
        self.stamp(&mut buf[..len]);
        len
    }

    /// Zeroes the pad after the payload. `payload_len` is the same as in the header. Returns the length of the frame, without Ethernet
    /// padding and FCS.
    ///
    /// # Panics
    /// If `buf` has no room for pad and ICRC. Debug builds also panic if `payload_len` is another length.
    #[inline(always)]
    pub fn close(&self, buf: &mut [u8], payload_offset: usize, payload_len: usize) -> usize {
        let end = payload_offset + payload_len;
        let len = end + pad_count(payload_len) + ICRC_LEN;
        debug_assert_eq!(
            be16(buf, self.bth as usize - 4) as usize,
            len - (self.bth as usize - UDP_LEN),
            "the payload is not as long as begin() was told"
        );
        // Four zeros at the end of the payload are the pad and the room for the ICRC, whatever the pad count.
        buf[..len][end..end + 4].fill(0);
        len
    }

    /// Writes the ICRC, the variant fields and the IPv4 header checksum into a whole frame in masked form.
    ///
    /// The wide loads of the CRC overlap narrow stores that were made just before, and have to wait until these have left the store buffer.
    /// So a caller that builds many frames closes all of them, then stamps all.
    ///
    /// # Panics
    /// If `frame` is shorter than [`Template::begin`] and [`Template::close`] left it.
    #[inline(always)]
    pub fn stamp(&self, frame: &mut [u8]) {
        let end = frame.len() - ICRC_LEN;
        let icrc = if self.is_plain() {
            // With this no other bounds check remains.
            assert!(frame.len() >= PLAIN_LEN + ICRC_LEN, "begin() wrote more than that");
            icrc::of_frame(frame, ETH_LEN, end, false)
        } else {
            icrc::of_frame(frame, self.l3.into(), end, self.ipv6)
        };
        self.finish(frame, icrc);
    }

    /// The writer for long frames of this flow, in place of [`Template::close`] and [`Template::stamp`]; after it the caller calls
    /// [`Template::finish`]. `None` if the processor lacks the features.
    #[inline(always)]
    pub(crate) fn one_pass(&self) -> Option<OnePass> {
        OnePass::new(self.l3 as usize != ETH_LEN, self.ipv6)
    }

    /// Writes this ICRC, the variant fields and the IPv4 header checksum into a whole frame in masked form.
    ///
    /// # Panics
    /// If `frame` is shorter than its headers and an ICRC.
    #[inline(always)]
    pub fn finish(&self, frame: &mut [u8], icrc: u32) {
        let end = frame.len() - ICRC_LEN;
        frame[end..].copy_from_slice(&icrc.to_le_bytes());
        match self.is_plain() {
            true => self.finish_v4::<{ ETH_LEN }>(frame),
            false => self.finish_other(frame),
        }
    }

    /// Writes the real values of the masked fields of a packet whose IPv4 header is at `L3`.
    #[inline(always)]
    fn finish_v4<const L3: usize>(&self, frame: &mut [u8]) {
        let packet: &mut [u8; IPV4_LEN + UDP_LEN + Bth::LEN] =
            frame[L3..].first_chunk_mut().expect("begin() wrote more than that");
        // The sum is the same in any order of bytes (RFC 1071). Two folds are enough for ten words.
        let word = |at: usize| u32::from(u16::from_ne_bytes([packet[at], packet[at + 1]]));
        let sum = self.sum + word(2) + word(4);
        let sum = (sum & 0xffff) + (sum >> 16);
        let sum = (sum & 0xffff) + (sum >> 16);
        packet[1] = self.traffic_class;
        packet[8] = self.hop_limit;
        packet[10..12].copy_from_slice(&(!sum as u16).to_ne_bytes());
        finish_udp(packet.last_chunk_mut().expect("the array is longer"));
    }

    /// Writes the real values of the masked fields of a packet over IPv6, or with a VLAN tag.
    #[inline(never)]
    fn finish_other(&self, frame: &mut [u8]) {
        if !self.ipv6 {
            return self.finish_v4::<{ ETH_LEN + VLAN_LEN }>(frame);
        }
        let packet: &mut [u8; IPV6_LEN + UDP_LEN + Bth::LEN] =
            frame[self.l3 as usize..].first_chunk_mut().expect("begin() wrote more than that");
        let word = 6 << 28 | u32::from(self.traffic_class) << 20 | self.flow_label;
        packet[..4].copy_from_slice(&word.to_be_bytes());
        packet[7] = self.hop_limit;
        finish_udp(packet.last_chunk_mut().expect("the array is longer"));
    }

    /// Builds a whole congestion notification packet and returns its length (IBA A17.9.3).
    ///
    /// # Panics
    /// If `buf` has no room for it; [`HEADERS_MAX`] bytes are enough.
    pub fn cnp(&self, buf: &mut [u8], ip_id: u16) -> usize {
        let h = Header { opcode: Opcode::CNP, ip_id, payload_len: CNP_PAYLOAD as u32, ..Header::default() };
        let at = self.begin(buf, &h);
        buf[at..at + CNP_PAYLOAD].fill(0);
        self.seal(buf, at, CNP_PAYLOAD)
    }
}

const _: () = assert!(HEADERS_MAX >= OUTER_MAX + Bth::LEN + CNP_PAYLOAD + ICRC_LEN, "cnp() says so");

/// Writes the real values of the masked fields of UDP header and BTH. There is no UDP checksum: the ICRC is stronger.
#[inline(always)]
fn finish_udp(b: &mut [u8; UDP_LEN + Bth::LEN]) {
    b[6] = 0;
    b[7] = 0;
    b[UDP_LEN + 4] = if b[UDP_LEN] == Opcode::CNP.0 { BECN } else { 0 };
}

/// Writes the extension headers and returns their length.
#[inline(always)]
fn write_ext(b: &mut [u8; EXT_MAX], h: &Header) -> usize {
    if h.opcode.transport() == Some(Transport::Xrc)
        && h.opcode.row().is_some_and(|row| row.has(ExtHeader::Xrceth))
    {
        b[..4].copy_from_slice(&(h.srqn & 0x00ff_ffff).to_be_bytes());
        return 4 + write_base_ext::<4>(b, &h.ext);
    }
    write_base_ext::<0>(b, &h.ext)
}

/// Writes `ext` at offset `AT` and returns its length.
#[inline(always)]
fn write_base_ext<const AT: usize>(b: &mut [u8; EXT_MAX], ext: &Ext) -> usize {
    /// The `N` bytes at `at`; both are constants, so this is checked at compile time in effect.
    #[inline(always)]
    fn field<const N: usize>(b: &mut [u8; EXT_MAX], at: usize) -> &mut [u8; N] {
        b[at..].first_chunk_mut().expect("EXT_MAX is the longest row")
    }
    match ext {
        Ext::None => 0,
        Ext::Imm(imm) => {
            *field(b, AT) = *imm;
            4
        }
        Ext::Inv(rkey) => {
            *field(b, AT) = rkey.to_be_bytes();
            4
        }
        Ext::Reth(reth) => {
            reth.write(field(b, AT));
            Reth::LEN
        }
        Ext::RethImm(reth, imm) => {
            reth.write(field(b, AT));
            *field(b, AT + Reth::LEN) = *imm;
            Reth::LEN + 4
        }
        Ext::FlushReth(feth, reth) => {
            feth.write(field(b, AT));
            reth.write(field(b, AT + Feth::LEN));
            Feth::LEN + Reth::LEN
        }
        Ext::Atomic(atomic) => {
            atomic.write(field(b, AT));
            AtomicEth::LEN
        }
        Ext::Aeth(aeth) => {
            aeth.write(field(b, AT));
            Aeth::LEN
        }
        Ext::AtomicAck(aeth, original) => {
            aeth.write(field(b, AT));
            *field(b, AT + Aeth::LEN) = original.to_be_bytes();
            Aeth::LEN + 8
        }
        Ext::Deth(deth) => {
            deth.write(field(b, AT));
            Deth::LEN
        }
        Ext::DethImm(deth, imm) => {
            deth.write(field(b, AT));
            *field(b, AT + Deth::LEN) = *imm;
            Deth::LEN + 4
        }
    }
}
