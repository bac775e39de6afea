//! Frames that a reliable connection must accept, and frames that it must drop: without a reply, a completion or a change of state, but
//! with one counter raised. A `p` and a number name the case.

use sim::peer::{Rig, bth_of, pkt, reseal};
use sim::rng::Rng;
use stack::id::{Gid, QpState, Qpn};
use stack::wire::{Discard, Ext, Opcode as O, Row, Transport};

fn send_frame(rig: &Rig, len: usize) -> Vec<u8> {
    rig.frame(&pkt(O::RC_SEND_ONLY, 0x100).a().len(len))
}

/// Checks that the frame is dropped without an answer; and for this reason, if one is given.
#[track_caller]
fn dropped(rig: &mut Rig, frame: &[u8], reason: Option<Discard>) {
    let before = rig.node.counters();
    let said = rig.send_frame(frame);
    assert!(said.is_empty(), "{said:?}");
    let counted = rig.node.counters() - before;
    assert_eq!(counted.drops(), 1, "one reason for one frame");
    if let Some(reason) = reason {
        assert_eq!(counted.discarded(reason), 1, "{reason}");
    }
    assert!(rig.cqes().is_empty());
    assert_eq!(rig.state(), QpState::Rts);
}

/// Checks that the connection works as before.
#[track_caller]
fn works(rig: &mut Rig) {
    let frame = send_frame(rig, 5);
    assert!(rig.send_frame(&frame)[0].is_ack(0x100));
    assert_eq!(rig.cqes()[0].byte_len, 5);
}

/// Offset of the UDP length in an IPv4 frame.
const UDP_LEN: usize = 14 + 20 + 4;

fn set16(frame: &mut [u8], at: usize, v: u16) {
    frame[at..at + 2].copy_from_slice(&v.to_be_bytes());
}

#[test]
fn p13_padding_of_the_ethernet() {
    for ipv6 in [false, true] {
        let mut rig = Rig::with(|c| c.ipv6 = ipv6);
        let mut frame = send_frame(&rig, 0);
        frame.resize(frame.len().max(60) + 20, 0xee);
        assert!(rig.send_frame(&frame)[0].is_ack(0x100));
        assert_eq!(rig.cqes()[0].byte_len, 0);
    }
}

#[test]
fn p14_p15_udp_length() {
    let mut rig = Rig::new();
    let good = send_frame(&rig, 8);
    let len = u16::from_be_bytes([good[UDP_LEN], good[UDP_LEN + 1]]);
    for (wrong, reason) in [
        (len + 4, Discard::BadLength),
        (8 + 12, Discard::BadLength),
        (4, Discard::BadLength),
        (0, Discard::BadLength),
        (len - 1, Discard::BadLength),
        (len - 2, Discard::BadLength),
        (len - 4, Discard::BadIcrc),
    ] {
        let mut frame = good.clone();
        set16(&mut frame, UDP_LEN, wrong);
        dropped(&mut rig, &frame, Some(reason));
    }
    works(&mut rig);
}

#[test]
fn p16_frame_cut_anywhere() {
    let mut rig = Rig::new();
    let good = send_frame(&rig, 7);
    for len in 0..good.len() {
        dropped(&mut rig, &good[..len], None);
    }
    works(&mut rig);
}

#[test]
fn p17_shorter_than_its_headers() {
    let mut rig = Rig::new();
    for row in Row::all().iter().filter(|row| row.header_len > 12) {
        let mut frame = send_frame(&rig, 0);
        let bth = bth_of(&frame);
        frame[bth] = row.opcode.0;
        // One word less than the headers need, with matching lengths and a valid ICRC.
        frame.truncate(bth + usize::from(row.header_len) - 4);
        frame.resize(bth + usize::from(row.header_len), 0);
        let udp = (frame.len() - bth + 8) as u16;
        set16(&mut frame, UDP_LEN, udp);
        set16(&mut frame, 16, udp + 20);
        reseal(&mut frame);
        dropped(&mut rig, &frame, Some(Discard::BadLength));
    }
    works(&mut rig);
}

#[test]
fn p18_pad_without_payload() {
    let mut rig = Rig::new();
    let mut frame = send_frame(&rig, 0);
    let bth = bth_of(&frame);
    frame[bth + 1] |= 0x30;
    reseal(&mut frame);
    dropped(&mut rig, &frame, Some(Discard::BadLength));
    works(&mut rig);
}

#[test]
fn p19_transport_version() {
    let mut rig = Rig::new();
    let mut frame = send_frame(&rig, 4);
    let bth = bth_of(&frame);
    frame[bth + 1] |= 1;
    reseal(&mut frame);
    dropped(&mut rig, &frame, Some(Discard::BadTver));
    works(&mut rig);
}

#[test]
fn p20_p21_opcodes_that_are_not_ours() {
    let mut rig = Rig::new();
    let with_opcode = |rig: &Rig, opcode: u8| {
        let mut frame = send_frame(rig, 64);
        let bth = bth_of(&frame);
        frame[bth] = opcode;
        reseal(&mut frame);
        frame
    };
    for opcode in 0..=255u8 {
        let known = stack::wire::Opcode(opcode).row();
        let reason = match known {
            None => Discard::UnknownOpcode,
            Some(row) if row.transport == Transport::Rc => continue,
            Some(row) if row.transport == Transport::Cnp => Discard::BadRequest, // 64 bytes are too many
            Some(_) => Discard::WrongTransport,
        };
        let frame = with_opcode(&rig, opcode);
        dropped(&mut rig, &frame, Some(reason));
    }
    works(&mut rig);
}

// Goal: a FLUSH without a placement is refused; reserved bits of its header are ignored.
#[test]
fn p20_reserved_fields_of_a_flush() {
    let rights = sim::node::remote_rights() | stack::mem::Access::FLUSH_GLOBAL;
    for placement in [0, 1] {
        let mut rig = Rig::with(|c| c.qp.access = rights);
        let mr = rig.node.register(64, rights);
        let reth = stack::wire::Reth { va: rig.node.mr(mr).va(0), rkey: rig.node.mr(mr).key, len: 8 };
        let feth = stack::wire::Feth { selectivity: 0, placement };
        let mut frame = rig.frame(&pkt(O::RC_FLUSH, 0x100).a().ext(Ext::FlushReth(feth, reth)));
        let at = bth_of(&frame) + 12;
        frame[at..at + 3].fill(0xff);
        frame[at + 3] |= 0xc0;
        reseal(&mut frame);
        let said = rig.send_frame(&frame);
        if placement == 0 {
            assert_eq!((said[0].opcode, said[0].aeth().syndrome), (O::RC_ACKNOWLEDGE, 0x61));
        } else {
            assert_eq!((said[0].opcode, said[0].aeth().syndrome >> 5), (O::RC_READ_RESPONSE_ONLY, 0));
        }
    }
}

#[test]
fn p22_destination_queue_pair() {
    let mut rig = Rig::new();
    let ours = rig.flow.dqpn;
    for qpn in [0, ours.get() ^ 1, ours.get() ^ 0x80_0000] {
        rig.flow.dqpn = Qpn::new(qpn);
        let frame = send_frame(&rig, 4);
        dropped(&mut rig, &frame, Some(Discard::UnknownQpn));
    }
    // The multicast queue pair number; this queue pair is in no group.
    rig.flow.dqpn = Qpn::MULTICAST;
    let frame = send_frame(&rig, 4);
    dropped(&mut rig, &frame, Some(Discard::NotOurMulticast));
    rig.flow.dqpn = ours;
    works(&mut rig);
}

#[test]
fn p23_partition_key() {
    let mut rig = Rig::new();
    for pkey in [0x8001, 0x0000, 0xfffe, 0x7ffe] {
        rig.flow.pkey = pkey;
        let frame = send_frame(&rig, 4);
        dropped(&mut rig, &frame, Some(Discard::BadPkey));
    }
    rig.flow.pkey = 0x7fff; // a limited member may communicate with a full one
    works(&mut rig);
}

#[test]
fn p29_addresses() {
    for ipv6 in [false, true] {
        let mut rig = Rig::with(|c| c.ipv6 = ipv6);
        let flow = rig.flow;
        let mut other = flow.src;
        other.0[15] ^= 0x40;
        rig.flow.src = other;
        let frame = send_frame(&rig, 4);
        dropped(&mut rig, &frame, Some(Discard::WrongPeer));
        (rig.flow.src, rig.flow.dst) = (flow.src, other);
        let frame = send_frame(&rig, 4);
        dropped(&mut rig, &frame, Some(Discard::NotOurAddress));
        rig.flow = flow;
        works(&mut rig);
        // The link-local address belongs to this node, but not to the connection.
        if ipv6 {
            rig.flow.dst = Gid::link_local(rig.node.mac);
            let frame = send_frame(&rig, 4);
            dropped(&mut rig, &frame, Some(Discard::NotOurAddress));
        }
    }
}

// Goal: whatever bytes a packet with a valid ICRC has, nothing crashes and nothing outside of granted memory is written.
#[test]
fn p37_random_packets() {
    let n: u32 = std::env::var("SIM_PACKETS").ok().and_then(|n| n.parse().ok()).unwrap_or(20_000);
    let mut rng = Rng::new(37);
    let mut rig = Rig::new();
    let mut ended = 0;
    for i in 0..n {
        if rig.state() != QpState::Rts {
            assert!(rig.node.regions().iter().all(|r| r.guards_intact()));
            rig = Rig::new();
            ended += 1;
        }
        let psn = 0x100 + rng.below(8) as u32;
        let len = rng.pick(&[0, 4, 8, 24, 28, 32, 64, 1024, 1052, 2000]);
        let mut frame = rig.frame(&pkt(O::RC_SEND_ONLY, psn).data(&rng.bytes(len)));
        let bth = bth_of(&frame);
        // Mostly a random opcode of RC; fields that may hold plausible values.
        frame[bth] = if rng.one_in(8) { rng.next() as u8 } else { rng.below(0x20) as u8 };
        frame[bth + 1] = if rng.one_in(8) { rng.next() as u8 } else { frame[bth + 1] };
        frame[bth + 8] = rng.next() as u8 & 0x80;
        if len >= 24 && rng.one_in(2) {
            let offset = rng.below(1 << 17);
            frame[bth + 12..bth + 20].copy_from_slice(&(rig.va(0) + offset).to_be_bytes());
            frame[bth + 20..bth + 24].copy_from_slice(&rig.rkey().to_be_bytes());
            if rng.one_in(2) {
                let len = rng.below(1 << 17) as u32;
                frame[bth + 24..bth + 28].copy_from_slice(&len.to_be_bytes());
            }
        }
        reseal(&mut frame);
        rig.send_frame(&frame);
        if i % 16 == 0 {
            let _ = rig
                .node
                .post_send(rig.qp, &rig.wr(u64::from(i), stack::proto::status::WrOpcode::RdmaRead, 3000));
            rig.run();
            rig.cqes();
        }
    }
    assert!(rig.node.regions().iter().all(|r| r.guards_intact()));
    assert!(ended > 10, "some of them were fatal");
}
