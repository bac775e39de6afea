//! UC and UD traffic of Linux soft-RoCE: the stack accepts these packets, and sends the same ones.

use crate::common;
use std::path::Path;

use crate::wire::{PEER_QPN, Wire};
use sim::peer::{Pkt, pkt};
use stack::wire::{Ext, Header, Ingress, Kind, Reth, locate};
use verbs::{Gid, Mtu, Qp, QpInitAttr, QpType, Qpn, RecvWr, SendWr, WcOpcode, ah_attr_to};

/// A captured packet: its source, its varying fields, its payload.
struct Captured {
    src: Gid,
    dqpn: Qpn,
    pkey: u16,
    header: Header,
    payload: Vec<u8>,
}

/// The RoCE packets of a capture (a pcap file: 24 bytes, then records of a 16-byte header and the frame).
fn capture(name: &str) -> Vec<Captured> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../stack/testdata/pcap").join(name);
    let bytes = std::fs::read(path.with_extension("pcap")).expect(name);
    let mut rest = &bytes[24..];
    let mut out = Vec::new();
    while !rest.is_empty() {
        let len = u32::from_le_bytes(rest[8..12].try_into().unwrap()) as usize;
        let frame = &rest[16..16 + len];
        rest = &rest[16 + len..];
        let Ok(Ingress::Roce(layout)) = locate(frame) else { panic!("{name}: not RoCE") };
        let packet = layout.packet(frame);
        out.push(Captured {
            src: packet.src(),
            dqpn: packet.dqpn(),
            pkey: packet.pkey(),
            header: packet.to_header().unwrap(),
            payload: packet.payload.to_vec(),
        });
    }
    assert!(!out.is_empty(), "{name}");
    out
}

/// The packets of a capture, grouped by sender.
fn directions(name: &str) -> Vec<Vec<Captured>> {
    let mut by_source: Vec<Vec<Captured>> = Vec::new();
    for packet in capture(name) {
        match by_source.iter_mut().find(|list| list[0].src == packet.src) {
            Some(list) => list.push(packet),
            None => by_source.push(vec![packet]),
        }
    }
    by_source
}

/// A captured packet as the peer sends it here, with other extension headers.
fn replayed(c: &Captured, ext: Ext) -> Pkt {
    let p = pkt(c.header.opcode, c.header.psn.get()).ext(ext).data(&c.payload);
    let p = if c.header.solicited { p.se() } else { p };
    if c.header.ack_req { p.a() } else { p }
}

fn uc(w: &mut Wire) -> Qp {
    let qp = w.pd.create_qp(&QpInitAttr::uc(&w.cq, &w.cq)).unwrap();
    // The path MTU of the captures; the peer's first PSN differs, which UC allows.
    let options = common::options().path_mtu(Mtu::Mtu1024);
    qp.connect_uc(&w.endpoint(), &options).unwrap();
    w.run();
    qp
}

/// The fields in which both sides' packets must agree: all but numbers that each side chooses.
fn shape(h: &Header, first: u32) -> (Header, u32) {
    let ext = match h.ext {
        Ext::Reth(reth) => Ext::Reth(Reth { va: 0, rkey: 0, ..reth }),
        ext => ext,
    };
    let psn = h.psn.get().wrapping_sub(first) & 0xff_ffff;
    (Header { ip_id: 0, psn: Default::default(), ext, ..*h }, psn)
}

#[test]
fn uc_sends_of_soft_roce() {
    for theirs in directions("uc-send") {
        let mut w = Wire::new(false);
        let qp = uc(&mut w);
        let messages = theirs.iter().filter(|c| c.header.opcode.row().unwrap().position.ends()).count();
        w.post_recvs(&qp, 0..messages as u64, 4096);
        let pkts: Vec<_> = theirs.iter().map(|c| replayed(c, c.header.ext)).collect();
        assert!(w.send(&qp, &pkts).is_empty());
        let done = w.done();
        assert_eq!(done.len(), messages);
        assert!(done.iter().all(|wc| wc.is_ok() && wc.byte_len == 4096), "{done:?}");
        let all: Vec<u8> = theirs.iter().flat_map(|c| c.payload.clone()).collect();
        assert_eq!(w.mr.to_vec(0..all.len()).unwrap(), all);

        // The same messages from this stack give the same opcodes, lengths and flags, packet for packet.
        for i in 0..messages {
            let sge = [w.mr.sge(i * 4096..(i + 1) * 4096).unwrap()];
            qp.post_send(&[SendWr::send(9, &sge)]).unwrap();
        }
        let sent = w.run();
        assert_eq!(sent.len(), theirs.len());
        for (i, (ours, c)) in sent.iter().zip(&theirs).enumerate() {
            assert_eq!(ours.payload, c.payload);
            let header = Header {
                opcode: ours.opcode,
                psn: stack::id::Psn::new(ours.psn),
                ack_req: ours.ack_req,
                solicited: ours.solicited,
                ext: ours.ext,
                payload_len: ours.payload.len() as u32,
                ..Header::default()
            };
            let (first, their_first) = (qp.first_psn().get(), theirs[0].header.psn.get());
            assert_eq!(shape(&header, first), shape(&c.header, their_first), "packet {i}");
        }
    }
}

#[test]
fn uc_writes_of_soft_roce() {
    for theirs in directions("uc-write") {
        let mut w = Wire::new(false);
        let qp = uc(&mut w);
        let (va, key) = (w.mr.addr() + 8192, w.mr.rkey());
        w.wipe();
        let at_ours = |c: &Captured| match c.header.ext {
            Ext::Reth(reth) => Ext::Reth(Reth { va, rkey: key, ..reth }),
            ext => ext,
        };
        let pkts: Vec<_> = theirs.iter().map(|c| replayed(c, at_ours(c))).collect();
        assert!(w.send(&qp, &pkts).is_empty());
        let starts = theirs.iter().rposition(|c| c.header.opcode.row().unwrap().position.starts()).unwrap();
        assert_eq!(theirs[starts].header.opcode.row().unwrap().kind, Kind::Write);
        let last: Vec<u8> = theirs[starts..].iter().flat_map(|c| c.payload.clone()).collect();
        assert_eq!(last.len(), 3000);
        assert_eq!(w.mr.to_vec(8192..8192 + 3001).unwrap(), [&last[..], &[0xee]].concat());
        assert_eq!(w.context.counters().get(verbs::Counter::RequestsReceived), theirs.len() as u64);
    }
}

#[test]
fn ud_datagrams_of_soft_roce() {
    for theirs in directions("ud-pingpong") {
        let mut w = Wire::new(false);
        let qp = w.pd.create_qp(&QpInitAttr::ud(&w.cq, &w.cq)).unwrap();
        qp.activate_ud(0x1111_1111).unwrap();
        for (id, _) in theirs.iter().enumerate() {
            let sge = [w.mr.sge(id * 2048..id * 2048 + 1040).unwrap()];
            qp.post_recv(&[RecvWr::new(id as u64, &sge)]).unwrap();
        }
        let pkts: Vec<_> = theirs.iter().map(|c| replayed(c, c.header.ext)).collect();
        assert!(w.send(&qp, &pkts).is_empty());
        let done = w.done();
        assert_eq!(done.len(), theirs.len());
        let ah = w.pd.create_ah(&ah_attr_to(w.peer, 1)).unwrap();
        for (id, (wc, c)) in done.iter().zip(&theirs).enumerate() {
            let Ext::Deth(deth) = c.header.ext else { panic!("a UD SEND has a DETH") };
            assert_eq!((wc.byte_len, wc.src_qp, wc.opcode), (1040, deth.src_qpn, WcOpcode::Recv));
            let at = id * 2048;
            assert_eq!(w.mr.to_vec(at + 40..at + 1040).unwrap(), c.payload);
            let sge = [w.mr.sge(at + 40..at + 1040).unwrap()];
            qp.post_send(&[SendWr::send(9, &sge).to(&ah, PEER_QPN, deth.qkey)]).unwrap();
            let ours = w.run().remove(0);
            assert_eq!((ours.opcode, &ours.payload), (c.header.opcode, &c.payload));
            assert_eq!((ours.ack_req, ours.solicited), (c.header.ack_req, c.header.solicited));
            let Ext::Deth(our_deth) = ours.ext else { panic!("a DETH") };
            assert_eq!((our_deth.qkey, our_deth.src_qpn), (deth.qkey, qp.qp_num()));
        }
    }
}

// The management datagrams of an address resolution by SIDR go to queue pair 1.
#[test]
fn management_datagrams_of_soft_roce_reach_queue_pair_1() {
    let mads: Vec<_> = capture("cm-udaddy-sidr").into_iter().filter(|c| c.dqpn == Qpn::GSI).collect();
    assert!(!mads.is_empty());
    let mut w = Wire::new(false);
    let gsi = w.pd.create_qp(&QpInitAttr::new(QpType::Gsi, &w.cq, &w.cq)).unwrap();
    gsi.activate_ud(verbs::GSI_QKEY).unwrap();
    w.post_recvs(&gsi, 0..mads.len() as u64, 512);
    let pkts: Vec<_> = mads.iter().map(|c| replayed(c, c.header.ext)).collect();
    w.send(&gsi, &pkts);
    let done = w.done();
    assert_eq!(done.len(), mads.len());
    for (wc, c) in done.iter().zip(&mads) {
        assert_eq!((wc.src_qp, wc.byte_len as usize), (Qpn::GSI, 40 + c.payload.len()));
        assert_eq!(c.pkey & 0x7fff, 0x7fff);
        assert_eq!(w.received(wc.wr_id, wc.byte_len as usize)[40..], c.payload);
    }
}
