//! The conformance cases of codec and ICRC.

use super::vectors::{self, Vector};
use super::*;

/// Goal: the vector's fields make its bytes, and its bytes give its fields.
fn both_ways(v: &Vector) {
    let bytes = build(&v.flow, &v.header, v.payload);
    assert_eq!(bytes, v.bytes, "{:?}", v.header.opcode);
    let layout = accept(&v.bytes).expect("a good packet");
    assert_eq!(layout.end as usize, v.bytes.len());
    let packet = layout.packet(&v.bytes);
    assert_eq!(packet.payload, v.payload);
    assert_eq!(packet.to_header(), Some(v.header));
    assert_eq!(layout.flow(&v.bytes), v.flow);
    assert_eq!((layout.dqpn, layout.dst(&v.bytes)), (v.flow.dqpn, v.flow.dst));
    let (dqpn, request) = peek(&v.bytes).expect("as much as a good packet");
    assert_eq!(dqpn, v.flow.dqpn);
    assert!(request == layout.row.request || layout.row.transport != Transport::Rc);
}

#[test]
fn p01_worked_packet_a() {
    let v = vectors::a();
    assert_eq!(v.bytes.len(), 66);
    both_ways(&v);
    assert!(v.bytes.ends_with(&[0x40, 0xbf, 0xdf, 0xb7]));
}

#[test]
fn p02_worked_packets_b_to_f() {
    for (v, len) in [vectors::b(), vectors::c(), vectors::d(), vectors::e(), vectors::f()]
        .iter()
        .zip([62, 98, 86, 322, 86])
    {
        assert_eq!(v.bytes.len(), len);
        both_ways(v);
    }
}

#[test]
fn p03_captured_cnp() {
    let v = vectors::cnp();
    both_ways(&v);
    let layout = accept(&v.bytes).unwrap();
    let packet = layout.packet(&v.bytes);
    assert_eq!(packet.row.opcode, Opcode(0x81));
    assert_eq!(packet.bth.0[4], 0x40, "BECN alone");
    assert_eq!(packet.dqpn(), Qpn::new(0x118));
    // The shortcut builds the same.
    let mut buf = [0xa5; HEADERS_MAX];
    let len = Template::new(&v.flow).cnp(&mut buf, 0x718c);
    assert_eq!(buf[..len], v.bytes);
}

/// The UC packet of another implementation's test suite, 18 bytes and 2 of pad.
fn uc_vector(flow: Flow, ip_id: u16) -> Vec<u8> {
    let payload = [
        0x46, 0x30, 0x81, 0x8b, 0xe2, 0x89, 0x35, 0xd9, 0x0e, 0x9a, 0x95, 0x50, 0x54, 0x01, 0xbe, 0x88, 0x5e,
        0x50,
    ];
    let flow = Flow { src_port: 49152, dqpn: Qpn::new(211), mig_req: true, ..flow };
    let header = Header { opcode: Opcode::UC_SEND_ONLY, psn: Psn::new(13571856), ip_id, ..Header::default() };
    build(&flow, &header, &payload)
}

#[test]
fn p04_uc_vectors_of_another_implementation() {
    let here = Gid::v4([192, 168, 0, 7]);
    let v4 = uc_vector(Flow { src: here, dst: here, traffic_class: 1, ..Flow::default() }, 1144);
    assert!(v4.ends_with(&[0x78, 0xf3, 0x53, 0xf3]), "{v4:02x?}");
    let gid = |text: &str| Gid::from_ip(text.parse().unwrap());
    let flow = Flow {
        src: gid("2022::1023"),
        dst: gid("2023::1024"),
        traffic_class: 226,
        flow_label: 0x1face,
        hop_limit: 255,
        ..Flow::default()
    };
    let v6 = uc_vector(flow, 0);
    assert!(v6.ends_with(&[0x3e, 0x5b, 0x74, 0x3b]), "{v6:02x?}");
}

/// Offsets and bits of packet A that the ICRC does not cover.
const A_VARIANT: [(usize, u8); 7] =
    [(15, 0xff), (22, 0xff), (24, 0xff), (25, 0xff), (40, 0xff), (41, 0xff), (46, 0xff)];

#[test]
fn p05_variant_fields_of_ipv4_are_outside_the_icrc() {
    for (at, mask) in A_VARIANT {
        for bit in (0..8).map(|b| 1 << b).filter(|b| b & mask != 0) {
            let mut frame = vectors::a().bytes;
            frame[at] ^= bit;
            accept(&frame).unwrap_or_else(|why| panic!("byte {at} bit {bit:#04x}: {why}"));
        }
    }
}

#[test]
fn p06_every_other_bit_of_ipv4_is_inside_the_icrc() {
    let good = vectors::a().bytes;
    let layout = accept(&good).unwrap();
    for at in 14..good.len() {
        for bit in (0..8).map(|b| 1u8 << b) {
            if A_VARIANT.iter().any(|(v, mask)| *v == at && mask & bit != 0) {
                continue;
            }
            let mut frame = good.clone();
            frame[at] ^= bit;
            assert!(!icrc::check(&mut frame, &layout, None), "byte {at} bit {bit:#04x} is not protected");
            if let Ok(Ingress::Roce(_)) = locate(&frame) {
                assert_eq!(accept(&frame), Err(Discard::BadIcrc));
            }
        }
    }
}

#[test]
fn p07_variant_fields_of_ipv6_are_outside_the_icrc_and_no_others() {
    let good = vectors::c().bytes;
    let layout = accept(&good).unwrap();
    let l3 = 18;
    let variant = |at: usize, bit: u8| match at - l3 {
        0 => bit & 0x0f != 0,
        1..=3 | 7 | 46 | 47 | 52 => true,
        _ => false,
    };
    for at in l3..good.len() {
        for bit in (0..8).map(|b| 1u8 << b) {
            let mut frame = good.clone();
            frame[at] ^= bit;
            let before = frame.clone();
            assert_eq!(icrc::check(&mut frame, &layout, None), variant(at, bit), "byte {at} bit {bit:#04x}");
            assert_eq!(frame, before);
        }
    }
}

#[test]
fn p08_the_vlan_tag_is_outside_the_icrc() {
    let mut frame = vectors::c().bytes;
    for tci in [0x6065, 0x0064, 0xffff, 0x0001] {
        frame[14..16].copy_from_slice(&u16::to_be_bytes(tci));
        assert_eq!(accept(&frame).unwrap().vlan, Some(tci));
    }
    frame[14..16].copy_from_slice(&[0x60, 0]);
    assert_eq!(accept(&frame).unwrap().vlan, None, "a priority tag counts as untagged");
}

#[test]
fn p09_reserved_bits_beside_ack_req_are_ignored_but_covered() {
    let mut frame = vectors::a().bytes;
    frame[14 + 36] |= 0x15;
    assert_eq!(accept(&frame), Err(Discard::BadIcrc));
    reseal(&mut frame, 14);
    assert_ne!(frame[62..], vectors::a().bytes[62..]);
    let layout = accept(&frame).unwrap();
    let packet = layout.packet(&frame);
    assert!(packet.ack_req);
    assert_eq!(packet.psn, Psn::new(0x100));
}

#[test]
fn p10_reversed_icrc_is_wrong() {
    let mut frame = vectors::a().bytes;
    frame[62..].reverse();
    assert_eq!(accept(&frame), Err(Discard::BadIcrc));
}

#[test]
fn p11_residue() {
    let mut packet = vectors::a().bytes[14..].to_vec();
    for (at, mask) in A_VARIANT {
        packet[at - 14] |= mask;
    }
    assert_eq!(icrc::of_masked(&packet), 0x2144_df1c);
    let covered = packet.len() - 4;
    assert_eq!(icrc::of_masked(&packet[..covered]), slow_icrc(&packet[..covered]));
}

#[test]
fn p12_pad() {
    for flow in [flow_v4(), flow_v6()] {
        for len in (0..=8).chain(1021..=1024) {
            let payload = vec![0xee; len];
            let frame = build(&flow, &Header::default(), &payload);
            let layout = accept(&frame).unwrap();
            let packet = layout.packet(&frame);
            let pad = (4 - len % 4) % 4;
            assert_eq!(packet.pad() as usize, pad);
            assert_eq!(packet.payload, payload);
            let end = frame.len() - 4;
            assert!(frame[end - pad..end].iter().all(|b| *b == 0), "pad is zero");
            assert_eq!(be16(&frame, layout.bth as usize - 4) % 4, 0);
        }
    }
}

#[test]
fn p13_ethernet_padding_is_not_payload() {
    let mut frame = build(&flow_v4(), &Header::default(), &[]);
    assert_eq!(frame.len(), 58);
    frame.extend([0xdd; 2]);
    let layout = accept(&frame).unwrap();
    assert_eq!(layout.end, 58);
    assert!(layout.packet(&frame).payload.is_empty());
}

/// Packet A with another UDP length and a right ICRC, if there is room for one.
fn with_udp_len(len: u16) -> Vec<u8> {
    let mut frame = vectors::a().bytes;
    frame[38..40].copy_from_slice(&len.to_be_bytes());
    if (28..=32).contains(&len) {
        reseal(&mut frame, 14);
    }
    frame
}

#[test]
fn p14_udp_length_out_of_bounds() {
    for len in [0, 4, 8, 16, 20, 36, 0xfffc] {
        assert_eq!(accept(&with_udp_len(len)), Err(Discard::BadLength), "UDP length {len}");
    }
    // Over IPv6, too.
    for len in [0, 8, 20, 44, 0xfffc] {
        let mut frame = vectors::c().bytes;
        frame[62..64].copy_from_slice(&u16::to_be_bytes(len));
        assert_eq!(accept(&frame), Err(Discard::BadLength), "UDP length {len}");
    }
    // An IP packet with a length beyond the frame, or below its header.
    let mut frame = vectors::a().bytes;
    frame[16..18].copy_from_slice(&[0, 0x35]);
    assert_eq!(accept(&frame), Err(Discard::TooShort));
    frame[16..18].copy_from_slice(&[0, 19]);
    assert_eq!(accept(&frame), Err(Discard::BadLength));
}

#[test]
fn p15_udp_length_no_multiple_of_4() {
    for len in [25, 26, 27, 29, 30, 31] {
        assert_eq!(accept(&with_udp_len(len)), Err(Discard::BadLength), "UDP length {len}");
    }
}

#[test]
fn p16_truncation_at_every_byte() {
    for v in vectors::all() {
        for len in 0..v.bytes.len() {
            let cut = &v.bytes[..len];
            assert_eq!(locate(cut), Err(Discard::TooShort), "{:?} cut to {len}", v.header.opcode);
        }
        accept(&v.bytes).unwrap();
    }
}

/// A frame of any opcode with `body` bytes between BTH and ICRC, right in everything else.
fn raw(code: u8, bth_1: u8, body: usize) -> Vec<u8> {
    let udp_len = (8 + 12 + body + 4) as u16;
    let mut frame = vectors::a().bytes[..54].to_vec();
    frame[16..18].copy_from_slice(&(udp_len + 20).to_be_bytes());
    frame[38..40].copy_from_slice(&udp_len.to_be_bytes());
    frame[42] = code;
    frame[43] = bth_1;
    frame.resize(54 + body + 4, 0);
    reseal(&mut frame, 14);
    frame
}

#[test]
fn p17_body_shorter_than_the_headers() {
    for row in Row::all() {
        let ext = row.header_len as usize - 12;
        accept(&raw(row.opcode.0, 0, ext)).unwrap_or_else(|why| panic!("{}: {why}", row.name));
        for body in 0..ext {
            assert_eq!(
                accept(&raw(row.opcode.0, 0, body)),
                Err(Discard::BadLength),
                "{} with {body}",
                row.name
            );
        }
    }
}

#[test]
fn p18_pad_without_payload() {
    for pad in 1..=3 {
        assert_eq!(accept(&raw(0x04, pad << 4, 0)), Err(Discard::BadLength));
        accept(&raw(0x04, pad << 4, 4)).unwrap();
    }
}

#[test]
fn p19_header_version() {
    for tver in 1..16 {
        assert_eq!(accept(&raw(0x04, tver, 0)), Err(Discard::BadTver));
    }
}

#[test]
fn unknown_opcodes_are_dropped() {
    for code in 0..=255 {
        let wanted = Opcode(code).row().map(|row| row.opcode).ok_or(Discard::UnknownOpcode);
        assert_eq!(accept(&raw(code, 0, 40)).map(|l| l.row.opcode), wanted, "{code:#04x}");
    }
}

#[test]
fn p24_ip_options() {
    let mut frame = vectors::a().bytes;
    frame[14] = 0x46;
    frame.splice(34..34, [1, 1, 1, 0]);
    let total_len = frame.len() as u16 - 14;
    frame[16..18].copy_from_slice(&total_len.to_be_bytes());
    assert_eq!(accept(&frame), Err(Discard::IpOptions));
    for ihl in 0..5 {
        frame[14] = 0x40 | ihl;
        assert_eq!(accept(&frame), Err(Discard::IpOptions));
    }
}

#[test]
fn p25_fragments() {
    for bit in (0..16).map(|b| 1u16 << b) {
        let mut frame = vectors::a().bytes;
        frame[20..22].copy_from_slice(&bit.to_be_bytes());
        reseal(&mut frame, 14);
        // DF and the reserved bit make no fragment.
        let wanted = if bit >= 0x4000 { None } else { Some(Discard::Fragment) };
        assert_eq!(accept(&frame).err(), wanted, "{bit:#06x}");
    }
    let mut frame = vectors::c().bytes;
    frame[18 + 6] = 44;
    assert_eq!(accept(&frame), Err(Discard::Fragment));
}

#[test]
fn p26_no_udp_checksum() {
    for v in [vectors::a(), vectors::c()] {
        let layout = accept(&v.bytes).unwrap();
        let bth = layout.bth as usize;
        assert_eq!(v.bytes[bth - 2..bth], [0, 0]);
    }
}

#[test]
fn p27_udp_checksum_is_accepted() {
    let mut frame = vectors::a().bytes;
    // Ones' complement sum of pseudo header and datagram.
    let words = frame[26..].chunks(2).map(|w| u32::from(w[0]) << 8 | u32::from(*w.get(1).unwrap_or(&0)));
    let mut sum = words.sum::<u32>() + 17 + 32;
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    frame[40..42].copy_from_slice(&(!sum as u16).to_be_bytes());
    accept(&frame).unwrap();
}

#[test]
fn p28_any_udp_source_port() {
    for src_port in [0, 1, 4791, 49152, 65535] {
        let frame = build(&Flow { src_port, ..flow_v4() }, &Header::default(), b"x");
        assert_eq!(accept(&frame).unwrap().flow(&frame).src_port, src_port);
    }
}

#[test]
fn p31_udp_source_ports() {
    for (label, lqpn, rqpn, port) in [
        (0, 0x11, 0x12, 0xc132),
        (0, 0x12, 0x11, 0xc132),
        (0, 1, 1, 0xc001),
        (0, 0xabcdef, 0x123456, 0xc3c8),
        (0x12345, 0, 0, 0xe341),
        (0xfffff, 7, 9, 0xffc0),
        (0x00001, 0, 0, 0xc001),
        (0x04000, 0, 0, 0xc001),
    ] {
        assert_eq!(udp_source_port(label, Qpn::new(lqpn), Qpn::new(rqpn)), port, "label {label:#x}");
    }
}

#[test]
fn frames_that_are_not_for_us() {
    let mut frame = vec![0; 60];
    for (ether_type, what) in [
        (0x0806, Ok(Ingress::Other)),
        (0x88cc, Ok(Ingress::Other)),
        (0x0000, Ok(Ingress::Other)),
        (0x8915, Err(Discard::BadEtherType)),
        (0x88a8, Err(Discard::BadEtherType)),
        (0x0800, Err(Discard::BadEtherType)),
        (0x86dd, Err(Discard::BadEtherType)),
    ] {
        frame[12..14].copy_from_slice(&u16::to_be_bytes(ether_type));
        assert_eq!(locate(&frame), what, "{ether_type:#06x}");
        let mut tagged = frame.clone();
        tagged.splice(12..12, [0x81, 0, 0, 7]);
        assert_eq!(locate(&tagged), what, "tagged {ether_type:#06x}");
    }
    frame[12..18].copy_from_slice(&[0x81, 0, 0, 7, 0x81, 0]);
    assert_eq!(locate(&frame), Err(Discard::BadEtherType), "two tags");

    // ICMP, IGMP with its option, and other UDP ports, over both families.
    for (v, proto, port) in [(vectors::a(), 14 + 9, 36), (vectors::c(), 18 + 6, 60)] {
        for other in [1, 2, 6, 58, 0] {
            let mut frame = v.bytes.clone();
            frame[proto] = other;
            assert_eq!(locate(&frame), Ok(Ingress::Other));
            if proto == 23 {
                frame[14] = 0x46;
                assert_eq!(locate(&frame), Ok(Ingress::Other));
            }
        }
        let mut frame = v.bytes.clone();
        frame[port + 1] ^= 1;
        assert_eq!(locate(&frame), Ok(Ingress::Other));
    }
}

#[test]
fn ipv4_header_checksum_is_right_for_every_length_and_id() {
    for len in 0..300usize {
        for ip_id in [0, 1, 0x7fff, 0xffff, (len * 219) as u16] {
            let frame = build(&vectors::a().flow, &Header { ip_id, ..Header::default() }, &vec![7; len]);
            let mut sum: u32 = frame[14..34].chunks(2).map(|w| u32::from(w[0]) << 8 | u32::from(w[1])).sum();
            while sum > 0xffff {
                sum = (sum & 0xffff) + (sum >> 16);
            }
            assert_eq!(sum, 0xffff, "length {len} id {ip_id:#x}");
        }
    }
}

#[test]
fn setters_of_a_template_equal_a_new_one() {
    for flow in [flow_v4(), flow_v6(), Flow { vlan: Some(1), ..flow_v4() }, Flow { vlan: None, ..flow_v6() }]
    {
        let changed = Flow { dst_mac: Mac([9; 6]), dqpn: Qpn::new(0xabcdef), src_port: 0xdead, ..flow };
        let mut template = Template::new(&flow);
        template.set_dst_mac(changed.dst_mac);
        template.set_dqpn(changed.dqpn);
        template.set_src_port(changed.src_port);
        let mut buf = [0xa5; 256];
        let at = template.begin(&mut buf, &Header::default());
        let len = template.seal(&mut buf, at, 0);
        assert_eq!(buf[..len], build(&changed, &Header::default(), &[]));
        assert_eq!(accept(&buf[..len]).unwrap().flow(&buf[..len]), changed);
    }
}

#[test]
fn absent_headers_panic_in_debug_builds_only() {
    let frame = build(&flow_v4(), &Header::default(), &[]);
    let layout = accept(&frame).unwrap();
    let asked = std::panic::catch_unwind(|| layout.packet(&frame).reth());
    if cfg!(debug_assertions) {
        assert!(asked.is_err());
    } else {
        assert_eq!(asked.ok(), Some(Reth::default()));
    }
}
