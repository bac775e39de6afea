//! Properties over random inputs.

use proptest::prelude::*;

use super::*;
use crate::crc;
use crate::id::Mtu;

prop_compose! {
    fn flows()(
        v6: bool, macs: ([u8; 6], [u8; 6]), vlan: Option<u16>, src: [u8; 16], dst: [u8; 16], traffic_class: u8,
        hop_limit: u8, flow_label in 0..1u32 << 20, src_port: u16, dqpn: u32, pkey: u16, mig_req: bool,
    ) -> Flow {
        let gid = |g: [u8; 16]| if v6 { Gid([&[0x20], &g[1..]].concat().try_into().unwrap()) }
            else { Gid::v4([g[0], g[1], g[2], g[3]]) };
        Flow {
            src_mac: Mac(macs.0), dst_mac: Mac(macs.1), vlan, src: gid(src), dst: gid(dst), traffic_class, hop_limit,
            flow_label: if v6 { flow_label } else { 0 }, src_port, dqpn: Qpn::new(dqpn), pkey, mig_req,
        }
    }
}

/// Headers of every row that a template can build.
fn headers() -> impl Strategy<Value = Header> {
    let rows: Vec<&'static Row> = Row::all().iter().filter(|row| row.transport != Transport::Rd).collect();
    let fields = (any::<u32>(), any::<bool>(), any::<bool>(), any::<u16>(), any::<u32>());
    let numbers = (any::<u64>(), any::<u32>(), any::<u32>(), any::<[u8; 4]>(), any::<u64>(), any::<u64>());
    (prop::sample::select(rows), fields, numbers, any::<(u8, u8)>()).prop_map(|(row, bth, n, (x, y))| {
        use ExtHeader as E;
        let reth = Reth { va: n.0, rkey: n.1, len: n.2 };
        let aeth = Aeth { syndrome: x, msn: n.1 & 0xff_ffff };
        let deth = Deth { qkey: n.1, src_qpn: Qpn::new(n.2) };
        let (srqn, rest) = match row.headers {
            [E::Xrceth, rest @ ..] => (bth.4 & 0xff_ffff, rest),
            rest => (0, rest),
        };
        let ext = match rest {
            [] => Ext::None,
            [E::ImmDt] => Ext::Imm(n.3),
            [E::Ieth] => Ext::Inv(n.1),
            [E::Reth] => Ext::Reth(reth),
            [E::Reth, E::ImmDt] => Ext::RethImm(reth, n.3),
            [E::Feth, E::Reth] => Ext::FlushReth(Feth { selectivity: x & 3, placement: y & 15 }, reth),
            [E::AtomicEth] => Ext::Atomic(AtomicEth { va: n.0, rkey: n.1, swap_add: n.4, compare: n.5 }),
            [E::Aeth] => Ext::Aeth(aeth),
            [E::Aeth, E::AtomicAckEth] => Ext::AtomicAck(aeth, n.4),
            [E::Deth] => Ext::Deth(deth),
            [E::Deth, E::ImmDt] => Ext::DethImm(deth, n.3),
            other => unreachable!("{other:?}"),
        };
        Header {
            opcode: row.opcode,
            psn: Psn::new(bth.0),
            ack_req: bth.1,
            solicited: bth.2,
            ip_id: bth.3,
            srqn,
            ext,
            payload_len: 0,
        }
    })
}

/// A field of the BTH: its name, its lowest bit and its width in the header as one number, and what reads it.
type Field = (&'static str, u32, u32, fn(&Bth) -> u32);

/// Every field of the BTH that is read.
#[rustfmt::skip]
const FIELDS: [Field; 9] = [
    ("opcode",    88,  8, |b| b.opcode().0.into()),
    ("solicited", 87,  1, |b| b.solicited().into()),
    ("mig_req",   86,  1, |b| b.mig_req().into()),
    ("pad",       84,  2, |b| b.pad().into()),
    ("tver",      80,  4, |b| b.tver().into()),
    ("pkey",      64, 16, |b| b.pkey().into()),
    ("dqpn",      32, 24, |b| b.dqpn().get()),
    ("ack_req",   31,  1, |b| b.ack_req().into()),
    ("psn",        0, 24, |b| b.psn().get()),
];

/// A field of the BTH: its name, and what sets it.
type Setter = (&'static str, fn(&mut Bth, u32));

/// The fields that are set in a header that was made before.
#[rustfmt::skip]
const SETTERS: [Setter; 3] = [
    ("mig_req", |b, v| b.set_mig_req(v & 1 != 0)),
    ("pkey",    |b, v| b.set_pkey(v as u16)),
    ("dqpn",    |b, v| b.set_dqpn(Qpn::new(v))),
];

/// The header as one number.
fn number(bth: &Bth) -> u128 {
    bth.0.iter().fold(0, |n, byte| n << 8 | u128::from(*byte))
}

/// A packet by way of a stencil, in a buffer of garbage; its extension headers from `ext`.
fn stenciled<const EXT: usize>(
    template: &Template,
    stencil: &Stencil,
    h: &Header,
    ext: &[u8],
    payload: &[u8],
) -> Vec<u8> {
    let mut frame = vec![0xa5; Stencil::frame_len::<EXT>(payload.len())];
    let laid = stencil.lay::<EXT>(&mut frame, h.ip_id, h.psn, h.ack_req, payload.len());
    laid.ext.copy_from_slice(&ext[..EXT]);
    laid.payload.copy_from_slice(payload);
    template.stamp(&mut frame);
    frame
}

proptest! {
    /// Goal: frames with equal glances are for the same queue pair and of the same kind, whatever else differs.
    #[test]
    fn frames_that_peek_alike(
        flow in flows(), h in headers(), payload: Vec<u8>, psn: u32, changed: Option<(u8, u8)>, cut: Option<u8>,
    ) {
        let frame = build(&flow, &h, &payload);
        let mut other = build(&flow, &Header { psn: Psn::new(psn), ..h }, &payload);
        let plain = flow.vlan.is_none() && flow.src.as_v4().is_some();
        prop_assert_eq!(Glance::at(&frame).is_some(), plain);
        prop_assert_eq!(Glance::at(&frame), Glance::at(&other));
        if let Some((at, to)) = changed {
            let len = other.len().min(60);
            other[usize::from(at) % len] = to;
        }
        other.truncate(cut.map_or(other.len(), usize::from));
        if let Some(glance) = Glance::at(&frame) {
            prop_assert_eq!(glance.is_of(&other), Glance::at(&other) == Some(glance));
        }
        if Glance::at(&frame).is_some() && Glance::at(&frame) == Glance::at(&other) {
            prop_assert_eq!(peek(&frame), peek(&other));
            prop_assert!(peek(&frame).is_some());
        }
    }

    /// Goal: `locate` takes a frame that a template builds, and returns every field.
    #[test]
    fn headers_round_trip(flow in flows(), header in headers(), payload: Vec<u8>) {
        let frame = build(&flow, &header, &payload);
        let layout = accept(&frame).unwrap();
        prop_assert_eq!(layout.flow(&frame), flow);
        prop_assert_eq!(layout.end as usize, frame.len());
        let plain = !layout.ipv6 && layout.l3 as usize == ETH_LEN;
        prop_assert_eq!(locate_plain(&frame), plain.then_some(layout));
        let packet = layout.packet(&frame);
        prop_assert_eq!(packet.payload, &payload[..]);
        let ip_id = if layout.ipv6 { 0 } else { header.ip_id };
        prop_assert_eq!(packet.to_header(), Some(Header { payload_len: payload.len() as u32, ip_id, ..header }));
        let congested = if header.opcode == Opcode::CNP { 0x40 } else { 0 };
        prop_assert_eq!(packet.bth.0[4], congested, "FECN, BECN and reserved bits");
        let covered = &frame[layout.l3 as usize..frame.len() - 4];
        prop_assert_eq!(&frame[frame.len() - 4..], slow_icrc(covered).to_le_bytes());
    }

    /// Goal: a long packet's ICRC is the same whether the sum of its payload is known or not, on both sides; and with a sum no
    /// damaged packet passes, whether the damage is before or after the byte where it begins, nor does Ethernet padding count as
    /// the packet.
    #[test]
    fn a_sum_stands_for_its_bytes(
        flow in flows(), header in headers(), payload in prop::collection::vec(any::<u8>(), 60..2200),
        at: prop::sample::Index, bit in 0..8u8, padding in 1..80usize,
    ) {
        let frame = build(&flow, &header, &payload);
        let layout = accept(&frame).unwrap();
        let (l3, end) = (layout.l3 as usize, frame.len() - ICRC_LEN);
        prop_assert_eq!(&frame[end..], slow_icrc(&frame[l3..end]).to_le_bytes());

        let template = Template::new(&flow);
        let mut again = vec![0xa5; frame.len().max(HEADERS_MAX)];
        let payload_at = template.begin(&mut again, &Header { payload_len: payload.len() as u32, ..header });
        again[payload_at..payload_at + payload.len()].copy_from_slice(&payload);
        prop_assert_eq!(template.close(&mut again, payload_at, payload.len()), frame.len());
        again.truncate(frame.len());
        template.stamp(&mut again);
        prop_assert_eq!(&again, &frame);

        let check = |frame: &mut Vec<u8>| {
            let sum = crc::of(frame);
            (icrc::check(frame, &layout, sum), icrc::check(frame, &layout, None))
        };
        prop_assert_eq!(check(&mut again), (true, true));
        again.resize(frame.len() + padding, 0x5a);
        prop_assert_eq!(check(&mut again), (true, true));
        let mut damaged = frame.clone();
        let at = l3 + 12 + at.index(frame.len() - l3 - 12);
        damaged[at] ^= 1 << bit;
        let seen = check(&mut damaged);
        let variant = slow_icrc(&damaged[l3..end]).to_le_bytes() == damaged[end..];
        prop_assert_eq!(seen, (variant, variant), "byte {}", at);
        damaged[at] ^= 1 << bit;
        prop_assert_eq!(damaged, frame, "a check changes nothing");
    }

    /// Goal: a stencil lays out the packets of its template, byte for byte.
    #[test]
    fn a_stencil_is_its_template(
        flow in flows(), v4: [u8; 4], header in headers(), payload in prop::collection::vec(any::<u8>(), 0..300),
    ) {
        let flow = Flow { vlan: None, dst: Gid::v4(v4), ..flow };
        let template = Template::new(&flow);
        let wanted = build(&flow, &Header { srqn: 0, ..header }, &payload);
        let stencil = template.stencil(header.opcode, header.solicited).expect("IPv4, no VLAN tag");
        let ext = &wanted[ETH_LEN + IPV4_LEN + UDP_LEN + Bth::LEN..];
        let made = match header.opcode.row().unwrap().header_len as usize - Bth::LEN {
            0 => stenciled::<0>(&template, &stencil, &header, ext, &payload),
            4 => stenciled::<4>(&template, &stencil, &header, ext, &payload),
            8 => stenciled::<8>(&template, &stencil, &header, ext, &payload),
            12 => stenciled::<12>(&template, &stencil, &header, ext, &payload),
            16 => stenciled::<16>(&template, &stencil, &header, ext, &payload),
            20 => stenciled::<20>(&template, &stencil, &header, ext, &payload),
            24 => stenciled::<24>(&template, &stencil, &header, ext, &payload),
            28 => stenciled::<28>(&template, &stencil, &header, ext, &payload),
            _ => return Ok(()), // XRC: its packets are built otherwise
        };
        if header.opcode.transport() != Some(Transport::Xrc) {
            prop_assert_eq!(made, wanted);
        }
        let tagged = Template::new(&Flow { vlan: Some(7), ..flow }).stencil(header.opcode, false);
        prop_assert!(tagged.is_none());
    }

    /// Goal: a template knows its addresses, and which packets are for it: those of the flow in the other direction, and no
    /// others, over either version of IP, with a VLAN tag or without.
    #[test]
    fn a_template_knows_its_peer(flow in flows(), other in flows(), near in 0..16usize, bit in 0..8u8) {
        let template = Template::new(&flow);
        prop_assert_eq!((template.src(), template.dst()), (flow.src, flow.dst));
        let back = Flow { src: flow.dst, dst: flow.src, ..flow };
        let flipped = |gid: Gid| {
            let mut gid = gid;
            gid.0[if gid.as_v4().is_some() { 12 + near % 4 } else { near }] ^= 1 << bit;
            gid
        };
        let near_src = Flow { src: flipped(back.src), ..back };
        let near_dst = Flow { dst: flipped(back.dst), ..back };
        for theirs in [back, near_src, near_dst, other, flow] {
            let frame = build(&theirs, &Header::default(), &[]);
            let packet = accept(&frame).unwrap().packet(&frame);
            prop_assert_eq!(template.goes_to_source_of(&packet), theirs.src == flow.dst, "{:?}", theirs);
            prop_assert_eq!(template.comes_from_destination_of(&packet), theirs.dst == flow.src, "{:?}", theirs);
        }
    }

    /// Goal: each field of the BTH is its bits, and setting one changes no others.
    #[test]
    fn fields_keep_to_their_bits(bytes: [u8; 12], value: u32) {
        let bth = Bth(bytes);
        for (name, at, width, get) in FIELDS {
            let mask = (1 << width) - 1;
            prop_assert_eq!(u128::from(get(&bth)), number(&bth) >> at & mask, "{}", name);
            let Some((_, set)) = SETTERS.iter().find(|(of, _)| *of == name) else { continue };
            let mut changed = bth;
            set(&mut changed, value);
            let expected = number(&bth) & !(mask << at) | (u128::from(value) & mask) << at;
            prop_assert_eq!(number(&changed), expected, "{}", name);
        }
    }

    /// Goal: extension headers give their bytes back.
    #[test]
    fn extension_headers_round_trip(b: [u8; 28]) {
        let mut out = [0; 28];
        let (reth, aeth) = (b.first_chunk().unwrap(), b.first_chunk().unwrap());
        Reth::read(reth).write(out.first_chunk_mut().unwrap());
        prop_assert_eq!(&out[..16], &b[..16]);
        Aeth::read(aeth).write(out.first_chunk_mut().unwrap());
        prop_assert_eq!(&out[..4], &b[..4]);
        AtomicEth::read(&b).write(&mut out);
        prop_assert_eq!(out, b);
        let mut deth: [u8; 8] = *b.first_chunk().unwrap();
        deth[4] = 0;
        let mut out = [0xa5; 8];
        Deth::read(&deth).write(&mut out);
        prop_assert_eq!(out, deth);
        let feth = [0, 0, 0, b[3] & 0x3f];
        let mut out = [0xa5; 4];
        Feth::read(&feth).write(&mut out);
        prop_assert_eq!(out, feth);
    }

    /// Goal: a message takes as many packets as [`Mtu::packets`] says, and each obeys the rule of its row.
    #[test]
    fn packets_of_a_message_obey_their_rows(
        len in prop_oneof![0..20_000u32, (1u32 << 31) - 10_000..=1 << 31],
        mtu in prop::sample::select(Mtu::ALL.to_vec()),
        start: prop::sample::Index,
    ) {
        let count = mtu.packets(len);
        prop_assert!(count == 1 || u64::from(count - 1) * (mtu.bytes() as u64) < len.into());
        // All of a short message, a part of a long one.
        let first = if count <= 100 { 0 } else { start.index(count as usize) as u32 };
        for index in first..count.min(first + 100) {
            let position = match (index == 0, index + 1 == count) {
                (true, true) => Position::Only,
                (true, false) => Position::First,
                (false, false) => Position::Middle,
                (false, true) => Position::Last,
            };
            let rest = (len - (index << mtu.log2())) as usize;
            let bytes = if position.ends() { rest } else { mtu.bytes() };
            let row = Opcode::rc(Kind::Send, position, Tail::None).row().unwrap();
            prop_assert!(row.payload.allows(bytes, mtu), "{} bytes {:?}", bytes, row);
            prop_assert_eq!((bytes + template::pad_count(bytes)) % 4, 0);
        }
    }

    /// Goal: for any bytes, nothing panics, and a located frame has its parts inside the frame.
    #[test]
    fn random_frames_do_no_harm(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        harmless(&bytes);
    }

    /// Goal: as above, near valid packets.
    #[test]
    fn damaged_packets_do_no_harm(
        which in 0..7usize,
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
        cut: prop::sample::Index,
        extra in prop::collection::vec(any::<u8>(), 0..8),
    ) {
        let mut bytes = vectors::all()[which].bytes.clone();
        for (at, byte) in damage {
            // The first bytes after the addresses decide most.
            let at = 12 + at.index(60);
            if let Some(b) = bytes.get_mut(at) {
                *b = byte;
            }
        }
        harmless(&bytes);
        bytes.extend(extra);
        harmless(&bytes);
        bytes.truncate(cut.index(bytes.len()));
        harmless(&bytes);
    }
}

fn harmless(bytes: &[u8]) {
    let _ = peek(bytes);
    // The fast path accepts nothing that the slow one refuses, and finds the same.
    if let Some(plain) = locate_plain(bytes) {
        assert_eq!(locate(bytes), Ok(Ingress::Roce(plain)));
    }
    let Ok(Ingress::Roce(layout)) = locate(bytes) else { return };
    assert!(layout.end as usize <= bytes.len());
    let mut frame = bytes.to_vec();
    icrc::check(&mut frame, &layout, None);
    assert_eq!(frame, bytes);
    let packet = layout.packet(bytes);
    let parts = 12 + packet.ext.len() + packet.payload.len() + packet.pad() as usize + 4;
    assert_eq!(parts, (layout.end - layout.bth) as usize);
    layout.flow(bytes);
    packet.to_header();
}
