//! Which frames are located, and where their parts are: every small case of both ways to locate, against a slow third one.

use super::super::numbers::{ETHER_VLAN, VLAN_LEN};
use super::*;

/// A kind of frame that can carry RoCEv2.
#[derive(Clone, Copy, Debug)]
struct Form {
    ipv6: bool,
    /// Tag control information.
    tag: Option<u16>,
}

/// Untagged, in a VLAN, and with a priority only; over both versions of IP.
fn forms() -> impl Iterator<Item = Form> {
    [false, true]
        .into_iter()
        .flat_map(|ipv6| [None, Some(0x6005), Some(0x6000)].map(|tag| Form { ipv6, tag }))
}

impl Form {
    fn l3(self) -> usize {
        if self.tag.is_some() { ETH_LEN + VLAN_LEN } else { ETH_LEN }
    }
    fn udp(self) -> usize {
        self.l3() + if self.ipv6 { IPV6_LEN } else { IPV4_LEN }
    }
    /// A frame with this opcode and pad count, with these lengths in its UDP and its IP header, and `len` bytes.
    fn frame(self, opcode: u8, pad: u8, udp_len: u16, body_len: u16, len: usize) -> Vec<u8> {
        let mut frame = vec![0x5a; len.max(self.udp() + UDP_LEN + Bth::LEN)];
        let mut put = |at: usize, bytes: &[u8]| frame[at..at + bytes.len()].copy_from_slice(bytes);
        let (l3, udp) = (self.l3(), self.udp());
        if let Some(tag) = self.tag {
            put(12, &ETHER_VLAN.to_be_bytes());
            put(14, &tag.to_be_bytes());
        }
        if self.ipv6 {
            put(l3 - 2, &ETHER_IPV6.to_be_bytes());
            put(l3, &[0x60, 0, 0, 0]);
            put(l3 + 4, &body_len.to_be_bytes());
            put(l3 + 6, &[IP_PROTO_UDP, 64]);
        } else {
            put(l3 - 2, &ETHER_IPV4.to_be_bytes());
            put(l3, &[0x45, 0]);
            put(l3 + 2, &body_len.wrapping_add(IPV4_LEN as u16).to_be_bytes());
            put(l3 + 6, &[0x40, 0, 64, IP_PROTO_UDP]);
        }
        put(udp + 2, &UDP_PORT.to_be_bytes());
        put(udp + 4, &udp_len.to_be_bytes());
        put(udp + UDP_LEN, &[opcode, pad << 4, 0xff, 0xff, 0, 1, 2, 3]);
        frame.truncate(len);
        frame
    }
}

/// Shortest UDP datagram with this opcode, whole words of four bytes; of an unknown one with no extension header.
fn shortest(opcode: u8) -> u16 {
    let headers = Opcode(opcode).row().map_or(Bth::LEN, |row| row.header_len as usize);
    (UDP_LEN + headers + ICRC_LEN) as u16
}

/// One opcode for each length of headers, and one that does not exist.
fn opcodes() -> Vec<u8> {
    let mut seen = std::collections::BTreeSet::new();
    (0..=u8::MAX).filter(|op| seen.insert(Opcode(*op).row().map(|row| row.header_len))).collect()
}

/// The layout of a RoCEv2 packet, from the requirements of the specifications, field by field and in no order; `None` for all
/// other frames.
fn slowly(frame: &[u8]) -> Option<Layout> {
    let byte = |at: usize| frame.get(at).copied().map(usize::from);
    let half = |at: usize| Some(byte(at)? << 8 | byte(at + 1)?);
    let tagged = half(12)? == usize::from(ETHER_VLAN);
    let l3 = if tagged { 18 } else { 14 };
    let vlan = if tagged && half(14)? % 4096 != 0 { Some(half(14)? as u16) } else { None };
    let (ipv6, udp, body_len) = match (half(l3 - 2)?, byte(l3)?) {
        (0x0800, 0x45) => {
            let fragment = half(l3 + 6)? & 0x3fff != 0;
            let protocol = byte(l3 + 9)?;
            let body_len = half(l3 + 2)?.checked_sub(20)?;
            (!fragment && protocol == 17).then_some((false, l3 + 20, body_len))?
        }
        (0x86dd, 0x60..=0x6f) => {
            let v4 = |at: usize| {
                let addr = frame.get(at..at + 16).and_then(|addr| addr.try_into().ok());
                addr.is_some_and(|addr: [u8; 16]| core::net::Ipv6Addr::from(addr).to_ipv4_mapped().is_some())
            };
            let good = byte(l3 + 6)? == 17 && !v4(l3 + 8) && !v4(l3 + 24);
            good.then_some((true, l3 + 40, half(l3 + 4)?))?
        }
        _ => return None,
    };
    let udp_len = half(udp + 4)?;
    let bth = udp + 8;
    let row = Opcode(byte(bth)? as u8).row()?;
    let pad = byte(bth + 1)? >> 4 & 3;
    let good = [
        half(udp + 2)? == 4791,
        byte(bth + 1)? & 15 == 0,
        udp + body_len <= frame.len(),
        udp_len <= body_len,
        udp_len % 4 == 0,
        udp_len >= 8 + usize::from(row.header_len) + pad + 4,
        udp + udp_len < 1 << 16,
    ];
    let dqpn = Qpn::new((byte(bth + 5)? << 16 | byte(bth + 6)? << 8 | byte(bth + 7)?) as u32);
    let end = (udp + udp_len) as u16;
    let layout = Layout { l3: l3 as u16, ipv6, vlan, bth: bth as u16, end, row, dqpn };
    good.iter().all(|good| *good).then_some(layout)
}

/// All ways to locate a frame agree; `made` describes one where they do not. Returns whether it was located.
fn agree(frame: &[u8], made: impl core::fmt::Debug) -> bool {
    let expected = slowly(frame);
    let found = match locate(frame) {
        Ok(Ingress::Roce(layout)) => Some(layout),
        _ => None,
    };
    assert_eq!(found, expected, "{made:x?}");
    // The fast path finds frames without a tag, over IPv4 without options, with nothing after the UDP datagram in its IP packet.
    let plain = |layout: &Layout| {
        let whole = usize::from(layout.end) == ETH_LEN + usize::from(be16(frame, 16));
        !layout.ipv6 && usize::from(layout.l3) == ETH_LEN && whole
    };
    assert_eq!(locate_plain(frame), expected.filter(plain), "{made:x?}");
    if let Some(layout) = expected {
        assert_eq!(peek(frame).map(|(qpn, _)| qpn), Some(layout.dqpn), "{made:x?}");
        let glances = !layout.ipv6 && usize::from(layout.l3) == ETH_LEN;
        assert_eq!(Glance::at(frame).map(|glance| glance.is_of(frame)), glances.then_some(true), "{made:x?}");
    }
    expected.is_some()
}

/// 256 opcodes, four pad counts, every length of the UDP datagram up to more than the longest headers take, and an IP packet that
/// is shorter, as long and longer; in every form.
#[test]
#[cfg_attr(miri, ignore = "arithmetic alone, and too long for Miri")]
fn every_opcode_and_length_is_located_alike() {
    let mut located = 0;
    for form in forms() {
        for (opcode, pad) in (0..=u8::MAX).flat_map(|opcode| (0..4).map(move |pad| (opcode, pad))) {
            for udp_len in 0..=72u16 {
                for body_len in [-1, 0, 1, 4].map(|more| udp_len.wrapping_add_signed(more)) {
                    let len = form.udp() + usize::from(udp_len.max(body_len.min(200)));
                    let frame = form.frame(opcode, pad, udp_len, body_len, len);
                    located += u32::from(agree(&frame, (form, opcode, pad, udp_len, body_len)));
                }
            }
        }
    }
    assert!(located > 10_000, "{located}");
}

/// Every frame that is cut short or has padding, with lengths that match and that do not.
#[test]
#[cfg_attr(miri, ignore = "arithmetic alone, and too long for Miri")]
fn every_truncation_is_located_alike() {
    for form in forms() {
        for opcode in opcodes() {
            for udp_len in [shortest(opcode) - 4, shortest(opcode), shortest(opcode) + 20] {
                let whole = form.udp() + usize::from(udp_len);
                for len in 0..whole + 70 {
                    let frame = form.frame(opcode, 0, udp_len, udp_len, len);
                    let located = agree(&frame, (form, opcode, udp_len, len));
                    let good = Opcode(opcode).row().is_some() && udp_len >= shortest(opcode) && len >= whole;
                    assert_eq!(located, good, "{form:?} {opcode:#x}: {len} of {whole}");
                }
            }
        }
    }
}

/// Each byte with each value, and each two bits flipped, from Ethernet header to the end.
#[test]
#[cfg_attr(miri, ignore = "arithmetic alone, and too long for Miri")]
fn every_mutation_is_located_alike() {
    for form in forms() {
        for opcode in opcodes() {
            let udp_len = shortest(opcode) + 4;
            let mut frame = form.frame(opcode, 1, udp_len, udp_len, form.udp() + usize::from(udp_len));
            for at in 0..frame.len() {
                let was = frame[at];
                for value in 0..=u8::MAX {
                    frame[at] = value;
                    agree(&frame, (form, opcode, at, value));
                }
                frame[at] = was;
            }
            let bits = 8 * 12..8 * (form.udp() + UDP_LEN + Bth::LEN);
            for (one, other) in bits.clone().flat_map(|one| (bits.start..one).map(move |other| (one, other)))
            {
                let mut flip = |bit: usize| frame[bit / 8] ^= 1 << (bit % 8);
                flip(one);
                flip(other);
                agree(&frame, (form, opcode, one, other));
                let mut flip = |bit: usize| frame[bit / 8] ^= 1 << (bit % 8);
                flip(one);
                flip(other);
            }
        }
    }
}

/// Where lengths of 16 bits end, in frames that are that long, and longer.
#[test]
#[cfg_attr(miri, ignore = "arithmetic alone, and too long for Miri")]
fn every_long_packet_is_located_alike() {
    for form in forms() {
        let mut located = 0;
        for udp_len in u16::MAX - 120..=u16::MAX {
            for body_len in [0, 1, 21].map(|more| udp_len.wrapping_add(more)) {
                let mut frame = form.frame(0x04, 0, udp_len, body_len, (1 << 16) + 200);
                for len in [(1 << 16) + 200, form.udp() + usize::from(udp_len), (1 << 16) - 1] {
                    frame.truncate(len);
                    located += u32::from(agree(&frame, (form, udp_len, body_len, len)));
                }
            }
        }
        assert!(located > 0, "{form:?}");
    }
}

/// An IPv6 packet from or to an IPv4-mapped address has the GID of an IPv4 host, but is none of that host's packets.
#[test]
fn an_ipv6_packet_with_an_ipv4_address_is_dropped() {
    for form in forms().filter(|form| form.ipv6) {
        let good = form.frame(0x04, 0, 40, 40, form.udp() + 40);
        assert!(agree(&good, form));
        for at in [8, 24].map(|at| form.l3() + at) {
            let mut frame = good.clone();
            frame[at..at + 16].copy_from_slice(&Gid::v4([10, 0, 0, 2]).0);
            assert!(!agree(&frame, (form, at)));
            assert_eq!(locate(&frame), Err(Discard::BadEtherType));
            // With another bit set, it is an ordinary IPv6 address.
            for bit in 0..96 {
                frame[at + bit / 8] ^= 1 << (bit % 8);
                assert!(agree(&frame, (form, at, bit)));
                frame[at + bit / 8] ^= 1 << (bit % 8);
            }
        }
    }
}
