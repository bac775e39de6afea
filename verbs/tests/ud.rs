//! UD through the public API: against a scripted peer, and between queue pairs of a device.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::common::{self, assert_no_completion, embedded, enter, options, pump, take};
use crate::wire::{self, PEER_QPN, Wire, datagram};
use sim::peer::{frame, pkt};
use stack::wire::{Deth, Ext, Opcode};
use verbs::port::{Port, PortOptions, pair_with};
use verbs::{
    Access, AhAttr, Context, Counter, DeviceConfig, Discard, Drive, GRH_LEN, GSI_QKEY, Gid, PostErrorKind,
    Qp, QpAttr, QpInitAttr, QpState, QpType, Qpn, RecvWr, SendWr, Wc, WcFlags, WcOpcode, WcStatus,
    ah_attr_to, attr_to, errno,
};

const QKEY: u32 = 0x1111_1111;

fn ud(wire: &Wire) -> Qp {
    let qp = wire.pd.create_qp(&QpInitAttr::ud(&wire.cq, &wire.cq)).unwrap();
    qp.activate_ud(QKEY).unwrap();
    qp
}

fn text(n: usize) -> Vec<u8> {
    (0..n).map(|i| (i * 7 + 3) as u8).collect()
}

#[test]
fn u08_grh_area_ipv4() {
    let mut w = Wire::new(false);
    let qp = ud(&w);
    w.wipe();
    w.post_recvs(&qp, 0..1, 200);
    let said = w.send(&qp, &[datagram(5, QKEY, &text(100))]);
    assert!(said.is_empty(), "nobody answers a datagram: {said:?}");
    let wc = w.done()[0];
    assert_eq!((wc.wr_id, wc.status, wc.opcode), (0, WcStatus::Success, WcOpcode::Recv));
    assert_eq!((wc.byte_len, wc.src_qp, wc.wc_flags), (140, PEER_QPN, WcFlags::GRH));
    assert_eq!((wc.sl, wc.pkey_index, wc.imm_data()), (0, 0, None));
    let sent = frame(&w.flow(&qp), &datagram(5, QKEY, &text(100)));
    let area = w.received(0, 141);
    assert_eq!(area[..20], [0; 20]);
    assert_eq!(area[20..40], sent[14..34], "the header as received, with its checksum");
    let sum: u32 = area[20..40].chunks(2).map(|b| u32::from(u16::from_be_bytes([b[0], b[1]]))).sum();
    assert_eq!((sum & 0xffff) + (sum >> 16), 0xffff);
    assert_eq!(area[40..140], text(100)[..]);
    assert_eq!(area[140], 0xee);
}

#[test]
fn u09_grh_area_ipv6() {
    let mut w = Wire::new(true);
    let qp = ud(&w);
    w.post_recvs(&qp, 0..1, 200);
    let mut flow = w.flow(&qp);
    (flow.traffic_class, flow.flow_label, flow.hop_limit) = (0x6a, 0x12345, 17);
    w.send_on(&flow, &[datagram(5, QKEY, &text(33))]);
    let wc = w.done()[0];
    assert_eq!((wc.status, wc.byte_len, wc.wc_flags), (WcStatus::Success, 73, WcFlags::GRH));
    let sent = frame(&flow, &datagram(5, QKEY, &text(33)));
    let area = w.received(0, 73);
    assert_eq!(area[..40], sent[14..54]);
    assert_eq!(area[40..], text(33)[..]);

    // The completion and the 40 bytes of network header contain the path back to the sender.
    let attr = w.context.init_ah_from_wc(&wc, area[..GRH_LEN].try_into().unwrap()).unwrap();
    let grh = attr.grh.unwrap();
    assert_eq!((grh.dgid, grh.sgid_index, grh.traffic_class, grh.flow_label), (w.peer, 1, 0x6a, 0x12345));
}

#[test]
fn u10_wrong_qkey_keeps_the_receive() {
    let mut w = Wire::new(false);
    let qp = ud(&w);
    w.post_recvs(&qp, 0..1, 200);
    for (n, key) in [QKEY + 1, 0, QKEY ^ 1 << 31, GSI_QKEY].into_iter().enumerate() {
        w.send(&qp, &[datagram(1, key, b"no")]);
        assert_eq!(w.dropped(Discard::BadQkey), n as u64 + 1);
    }
    assert!(w.done().is_empty());
    w.send(&qp, &[datagram(2, QKEY, b"yes")]);
    assert_eq!((w.done()[0].wr_id, w.received(0, 43)[40..].to_vec()), (0, b"yes".to_vec()));
}

#[test]
fn u11_privileged_remote_qkey_sends_our_own() {
    let mut w = Wire::new(false);
    let qp = w.pd.create_qp(&QpInitAttr::ud(&w.cq, &w.cq)).unwrap();
    qp.activate_ud(0x11).unwrap();
    let ah = w.pd.create_ah(&ah_attr_to(w.peer, 1)).unwrap();
    let said = |w: &mut Wire, key| {
        qp.post_send(&[SendWr::send(1, &[]).inline(b"hello").to(&ah, PEER_QPN, key)]).unwrap();
        w.run().remove(0)
    };
    let first = said(&mut w, 0x8000_0000);
    let deth = |qkey| Ext::Deth(Deth { qkey, src_qpn: qp.qp_num() });
    assert_eq!((first.opcode, first.ext), (Opcode::UD_SEND_ONLY, deth(0x11)));
    assert_eq!((first.dqpn, first.ack_req, first.payload.as_slice()), (PEER_QPN, false, &b"hello"[..]));
    let second = said(&mut w, 0x22);
    assert_eq!(second.ext, deth(0x22));
    assert_eq!(second.psn, qp.first_psn().add(1).get(), "the PSN goes on");
    assert_eq!(qp.query().unwrap().0.sq_psn, qp.first_psn().add(2).get());
}

#[test]
fn u12_immediate() {
    let mut w = Wire::new(false);
    let qp = ud(&w);
    w.post_recvs(&qp, 0..1, 200);
    let deth = Deth { qkey: QKEY, src_qpn: PEER_QPN };
    let p = pkt(Opcode::UD_SEND_ONLY_IMM, 1).ext(Ext::DethImm(deth, [1, 2, 3, 4])).data(b"x").se();
    w.send(&qp, &[p]);
    let wc = w.done()[0];
    assert_eq!(wc.wc_flags, WcFlags::GRH | WcFlags::WITH_IMM);
    assert_eq!((wc.imm_data(), wc.byte_len), (Some(0x0102_0304), 41));

    let ah = w.pd.create_ah(&ah_attr_to(w.peer, 1)).unwrap();
    qp.post_send(&[SendWr::send_with_imm(2, &[], 0x0a0b_0c0d).solicited().to(&ah, PEER_QPN, 5)]).unwrap();
    let said = w.run().remove(0);
    let deth = Deth { qkey: 5, src_qpn: qp.qp_num() };
    assert_eq!((said.ext, said.solicited), (Ext::DethImm(deth, [10, 11, 12, 13]), true));
}

#[test]
fn u13_too_small_a_receive_is_not_overrun() {
    let mut w = Wire::new(false);
    let qp = ud(&w);
    w.wipe();
    w.post_recvs(&qp, 0..1, 139);
    w.send(&qp, &[datagram(1, QKEY, &text(100))]);
    assert!(w.done().is_empty());
    assert_eq!(w.dropped(Discard::ReceiveTooSmall), 1);
    assert!(w.received(0, 200).iter().all(|b| *b == 0xee), "not a byte was written");
    assert_eq!(qp.state().unwrap(), QpState::Rts);
    // The receive request waits for a datagram that fits.
    w.send(&qp, &[datagram(1, QKEY, &text(99))]);
    let wc = w.done()[0];
    assert_eq!((wc.wr_id, wc.status, wc.byte_len), (0, WcStatus::Success, 139));
}

#[test]
fn u14_no_receive_drops() {
    let mut w = Wire::new(false);
    let qp = ud(&w);
    let said = w.send(&qp, &[datagram(1, QKEY, b"lost")]);
    assert_eq!((said.len(), w.done().len(), w.dropped(Discard::NoReceive)), (0, 0, 1));
    w.post_recvs(&qp, 0..1, 100);
    w.send(&qp, &[datagram(2, QKEY, b"found")]);
    assert_eq!(w.received(0, 45)[40..], b"found"[..]);
    assert_eq!(w.done().len(), 1);
}

#[test]
fn u15_longer_than_the_path_mtu() {
    let mut w = Wire::new(false);
    let qp = ud(&w);
    let mtu = w.context.query_port(1).unwrap().active_mtu.bytes();
    let ah = w.pd.create_ah(&ah_attr_to(w.peer, 1)).unwrap();
    let post = |id, len| {
        let sge = [w.mr.sge(0..len).unwrap()];
        qp.post_send(&[SendWr::send(id, &sge).to(&ah, PEER_QPN, 1).signaled()]).unwrap();
    };
    post(1, mtu);
    post(2, mtu + 1);
    post(3, 1);
    let said = w.run();
    assert_eq!(said.iter().map(|s| s.payload.len()).collect::<Vec<_>>(), [mtu]);
    let done: Vec<_> = w.done().iter().map(|wc| (wc.wr_id, wc.status)).collect();
    assert_eq!(done, [(1, WcStatus::Success), (2, WcStatus::LocLenErr), (3, WcStatus::WrFlushErr)]);
    assert_eq!(qp.state().unwrap(), QpState::Sqe);
}

/// Two UD queue pairs of a context, their completion queue and memory.
fn pair_of(context: &Context, shards: [usize; 2]) -> (verbs::Pd, verbs::Cq, verbs::Mr, Qp, Qp) {
    let (pd, cq) = (context.alloc_pd().unwrap(), context.create_cq(64).unwrap());
    let mr = pd.reg_mr(64 << 10, common::all_rights()).unwrap();
    let make = |shard| {
        let qp = pd.create_qp(&QpInitAttr::ud(&cq, &cq).on_shard(shard)).unwrap();
        qp.activate_ud(QKEY).unwrap();
        qp
    };
    let (a, b) = (make(shards[0]), make(shards[1]));
    (pd, cq, mr, a, b)
}

// To the sender itself, to a queue pair on the same shard and to one on another shard, over both IP versions.
#[test]
fn u18_to_our_own_address() {
    let config = DeviceConfig::loopback().addr([0xfd00, 0, 0, 0, 0, 0, 0, 1], 64);
    let context = Context::open(config.shards(2).drive(Drive::Embedded)).unwrap();
    for (shards, sgid) in [([0, 0], 1), ([0, 1], 1), ([1, 0], 2), ([0, 0], 0)] {
        let (pd, cq, mr, a, b) = pair_of(&context, shards);
        let gid = context.query_gid(1, usize::from(sgid)).unwrap();
        let ah = pd.create_ah(&ah_attr_to(gid, sgid)).unwrap();
        let before = context.counters().get(Counter::ToSelf);
        for to in [&a, &b] {
            mr.write(0, &text(1000)).unwrap();
            mr.fill(8192..10_000, 0).unwrap();
            to.post_recv(&[RecvWr::new(7, &[mr.sge(8192..10_000).unwrap()])]).unwrap();
            let sge = [mr.sge(0..1000).unwrap()];
            a.post_send(&[SendWr::send(1, &sge).to(&ah, to.qp_num(), QKEY).signaled()]).unwrap();
            let mut done = take(&context, &cq, 2);
            done.sort_by_key(|wc| wc.wr_id);
            assert!(done.iter().all(|wc| wc.is_ok()), "{done:?}");
            assert_eq!((done[0].wr_id, done[0].opcode), (1, WcOpcode::Send));
            assert_eq!((done[1].byte_len, done[1].src_qp), (1040, a.qp_num()));
            assert_eq!(mr.to_vec(8192 + 40..9192 + 40).unwrap(), text(1000));
            let area = mr.to_vec(8192..8192 + 40).unwrap();
            assert_eq!(area[0] >> 4 == 6, gid.as_v4().is_none());
            let back = pd.create_ah_from_wc(&done[1], area[..].try_into().unwrap()).unwrap();
            assert_eq!(back.attr().grh.unwrap().dgid, gid);
            back.destroy();
        }
        assert_eq!(context.counters().get(Counter::ToSelf), before + 2);
    }
}

// Goal: a program reuses the memory of a datagram because a message that it takes for the peer's answer has arrived; the datagram still
// leaves with the old bytes. Here that message is an earlier one, and the send completes later.
#[test]
fn a_poll_that_finds_completions_comes_after_what_was_posted_before_it() {
    let context = Context::open(DeviceConfig::loopback().drive(Drive::Caller)).unwrap();
    let (pd, cq) = (context.alloc_pd().unwrap(), context.create_cq(64).unwrap());
    let recv_cq = context.create_cq(64).unwrap();
    let mr = pd.reg_mr(8192, common::all_rights()).unwrap();
    let qp = pd.create_qp(&QpInitAttr::ud(&cq, &recv_cq)).unwrap();
    qp.activate_ud(QKEY).unwrap();
    let ah = pd.create_ah(&ah_attr_to(context.query_gid(1, 0).unwrap(), 0)).unwrap();
    let place = |n: u64| 1024 * (1 + n as usize % 2);
    let receive = |n| {
        let sge = [mr.sge(place(n)..place(n) + 100).unwrap()];
        qp.post_recv(&[RecvWr::new(n, &sge)]).unwrap();
    };
    let send = |n: u64| {
        mr.write(0, &n.to_ne_bytes()).unwrap();
        let sge = [mr.sge(0..8).unwrap()];
        qp.post_send(&[SendWr::send(n, &sge).to(&ah, qp.qp_num(), QKEY)]).unwrap();
    };
    receive(0);
    send(0);
    for n in 1..1000 {
        // The datagram before arrives, and its completion is not polled yet.
        for _ in 0..8 {
            assert_eq!(cq.poll(&mut [Wc::default()]).unwrap(), 0);
        }
        receive(n);
        send(n);
        let mut wc = [Wc::default()];
        while recv_cq.poll(&mut wc).unwrap() == 0 {}
        mr.fill(0..8, 0xee).unwrap();
        assert_eq!((wc[0].wr_id, wc[0].status), (n - 1, WcStatus::Success));
        let at = place(n - 1) + GRH_LEN;
        assert_eq!(mr.to_vec(at..at + 8).unwrap(), (n - 1).to_ne_bytes(), "datagram {}", n - 1);
    }
}

#[test]
fn u19_any_psn_and_again() {
    let mut w = Wire::new(false);
    let qp = ud(&w);
    w.post_recvs(&qp, 0..6, 100);
    let psns = [9, 9, 0, 0xff_ffff, 8, 9];
    w.send(&qp, &psns.map(|psn| datagram(psn, QKEY, &psn.to_be_bytes())));
    let done = w.done();
    assert_eq!(done.iter().map(|wc| wc.wr_id).collect::<Vec<_>>(), [0, 1, 2, 3, 4, 5]);
    for (id, psn) in psns.into_iter().enumerate() {
        assert_eq!(w.received(id as u64, 44)[40..], psn.to_be_bytes());
    }
}

#[test]
fn u20_address_handles_of_others_are_refused() {
    let context = embedded();
    let (pd, _cq, _mr, a, _b) = pair_of(&context, [0, 0]);
    let other_pd = context.alloc_pd().unwrap();
    let gid = context.query_gid(1, 1).unwrap();
    let ours = pd.create_ah(&ah_attr_to(gid, 1)).unwrap();
    let theirs = other_pd.create_ah(&ah_attr_to(gid, 1)).unwrap();
    let stranger = embedded();
    let foreign = stranger.alloc_pd().unwrap().create_ah(&ah_attr_to(gid, 1)).unwrap();
    let to = |ah| SendWr::send(1, &[]).to(ah, a.qp_num(), QKEY);
    for ah in [&theirs, &foreign] {
        let e = a.post_send(&[to(&ours), to(ah), to(&ours)]).unwrap_err();
        assert_eq!((e.errno(), e.bad_wr, e.kind), (errno::EINVAL, 1, PostErrorKind::ForeignAh));
    }
    let e = a.post_send(&[SendWr::send(1, &[])]).unwrap_err();
    assert_eq!(e.kind, PostErrorKind::NoAddress { qp_type: QpType::Ud });
    assert_eq!(a.state().unwrap(), QpState::Rts);
    // A domain with address handles is busy.
    let (e, other_pd) = other_pd.dealloc().unwrap_err();
    assert_eq!(e.errno(), errno::EBUSY);
    theirs.destroy();
    other_pd.dealloc().unwrap();
}

#[test]
fn u20_a_connected_queue_pair_takes_no_address() {
    let p = common::Pair::new(embedded());
    let gid = p.context.query_gid(1, 1).unwrap();
    let ah = p.pd.create_ah(&ah_attr_to(gid, 1)).unwrap();
    let e = p.a.post_send(&[SendWr::send(1, &[]).to(&ah, Qpn::new(5), 0)]).unwrap_err();
    assert_eq!(
        (e.errno(), e.kind),
        (errno::EINVAL, PostErrorKind::UnexpectedAddress { qp_type: QpType::Rc })
    );
}

#[test]
fn bad_address_vectors_are_refused() {
    let context = embedded();
    let pd = context.alloc_pd().unwrap();
    let good = ah_attr_to(context.query_gid(1, 1).unwrap(), 1);
    let mut bad =
        vec![AhAttr { grh: None, ..good }, AhAttr { sl: 8, ..good }, AhAttr { port_num: 2, ..good }];
    for change in [
        (|g| g.sgid_index = 2) as fn(&mut verbs::GlobalRoute),
        |g| g.sgid_index = 0, // the link-local address is IPv6
        |g| g.flow_label = 1 << 20,
        |g| g.dgid = Gid::default(),
    ] {
        let mut grh = good.grh.unwrap();
        change(&mut grh);
        bad.push(AhAttr { grh: Some(grh), ..good });
    }
    for attr in bad {
        let e = pd.create_ah(&attr).unwrap_err();
        assert_eq!(e.errno(), errno::EINVAL, "{attr:?}: {e}");
    }
    pd.dealloc().unwrap();
    context.close().unwrap();
}

#[test]
fn s32_sqe_and_back() {
    let mut w = Wire::new(false);
    let qp = ud(&w);
    w.post_recvs(&qp, 10..12, 100);
    let ah = w.pd.create_ah(&ah_attr_to(w.peer, 1)).unwrap();
    let good = [w.mr.sge(0..8).unwrap()];
    let mut bad = good;
    bad[0].lkey ^= 0x5500;
    let to = |id, sges| SendWr::send(id, sges).to(&ah, PEER_QPN, 1).signaled();
    qp.post_send(&[to(1, &good), to(2, &bad), to(3, &good), to(4, &good)]).unwrap();
    assert_eq!(w.run().len(), 1, "the first request only");
    let done: Vec<_> = w.done().iter().map(|wc| (wc.wr_id, wc.status)).collect();
    assert_eq!(
        done,
        [
            (1, WcStatus::Success),
            (2, WcStatus::LocProtErr),
            (3, WcStatus::WrFlushErr),
            (4, WcStatus::WrFlushErr)
        ]
    );
    assert_eq!(qp.state().unwrap(), QpState::Sqe);
    // Receiving continues, and later requests are flushed.
    w.send(&qp, &[datagram(1, QKEY, b"still here")]);
    assert_eq!(
        w.done().iter().map(|wc| (wc.wr_id, wc.status)).collect::<Vec<_>>(),
        [(10, WcStatus::Success)]
    );
    qp.post_send(&[to(5, &good)]).unwrap();
    assert!(w.run().is_empty());
    assert_eq!(
        w.done().iter().map(|wc| (wc.wr_id, wc.status)).collect::<Vec<_>>(),
        [(5, WcStatus::WrFlushErr)]
    );
    // Posted in SQE and not flushed yet: the request ends with the state.
    qp.post_send(&[to(6, &good)]).unwrap();
    enter(&qp, QpState::Rts);
    qp.post_send(&[to(7, &good)]).unwrap();
    assert_eq!(w.run().len(), 1);
    let done: Vec<_> = w.done().iter().map(|wc| (wc.wr_id, wc.status)).collect();
    assert_eq!(done, [(6, WcStatus::WrFlushErr), (7, WcStatus::Success)]);
    w.send(&qp, &[datagram(2, QKEY, b"too")]);
    assert_eq!(w.done()[0].wr_id, 11);
}

#[test]
fn a_bad_receive_buffer_ends_the_queue_pair() {
    let mut w = Wire::new(false);
    let qp = ud(&w);
    let read_only = w.pd.reg_mr(4096, Access::empty()).unwrap();
    qp.post_recv(&[RecvWr::new(1, &[read_only.sge(0..100).unwrap()]), RecvWr::new(2, &[])]).unwrap();
    w.send(&qp, &[datagram(1, QKEY, b"x")]);
    let done: Vec<_> = w.done().iter().map(|wc| (wc.wr_id, wc.status)).collect();
    assert_eq!(done, [(1, WcStatus::LocProtErr), (2, WcStatus::WrFlushErr)]);
    assert_eq!(qp.state().unwrap(), QpState::Err);
}

#[test]
fn p21_a_packet_of_another_class_is_dropped() {
    let mut w = Wire::new(false);
    let qp = ud(&w);
    w.post_recvs(&qp, 0..1, 100);
    let uc = w.pd.create_qp(&QpInitAttr::uc(&w.cq, &w.cq)).unwrap();
    uc.connect_uc(&w.endpoint(), &options()).unwrap();
    let rc = w.pd.create_qp(&QpInitAttr::rc(&w.cq, &w.cq)).unwrap();
    rc.connect_rc(&w.endpoint(), &options()).unwrap();
    w.run();
    let plain = |opcode| pkt(opcode, wire::PEER_PSN).data(b"x");
    let mut dropped = 0;
    for (qp, pkts) in [
        (&qp, vec![plain(Opcode::RC_SEND_ONLY), plain(Opcode::UC_SEND_ONLY)]),
        (&uc, vec![plain(Opcode::RC_SEND_ONLY), datagram(wire::PEER_PSN, 0, b"x")]),
        (&rc, vec![plain(Opcode::UC_SEND_ONLY), datagram(wire::PEER_PSN, 0, b"x")]),
    ] {
        dropped += pkts.len() as u64;
        assert!(w.send(qp, &pkts).is_empty());
        assert_eq!(w.dropped(Discard::WrongTransport), dropped);
    }
    assert!(w.done().is_empty());
}

// The Q_Key of queue pair 1 is fixed in both directions, and is used by queue pair 1 only.
#[test]
fn gsi_is_a_datagram_queue_pair_with_its_own_qkey() {
    let mut w = Wire::new(false);
    let gsi = w.pd.create_qp(&QpInitAttr::new(QpType::Gsi, &w.cq, &w.cq)).unwrap();
    gsi.activate_ud(GSI_QKEY).unwrap();
    w.post_recvs(&gsi, 0..1, 400);
    w.send(&gsi, &[datagram(0, QKEY, b"no"), datagram(0, GSI_QKEY, &text(256))]);
    assert_eq!(w.dropped(Discard::BadQkey), 1);
    let wc = w.done()[0];
    assert_eq!((wc.byte_len, wc.qp_num, wc.src_qp, wc.pkey_index), (296, Qpn::GSI, PEER_QPN, 0));
    let ah = w.pd.create_ah(&ah_attr_to(w.peer, 1)).unwrap();
    gsi.post_send(&[SendWr::send(1, &[]).inline(b"mad").to(&ah, Qpn::GSI, GSI_QKEY)]).unwrap();
    let said = w.run().remove(0);
    assert_eq!((said.ext, said.dqpn), (Ext::Deth(Deth { qkey: GSI_QKEY, src_qpn: Qpn::GSI }), Qpn::GSI));
}

// No host has the address: the datagram waits until address resolution fails, and is then dropped and counted. Datagrams of another queue
// pair are sent meanwhile.
#[test]
fn an_unreachable_peer_costs_the_datagram() {
    let mut w = Wire::new(false);
    let (a, b) = (ud(&w), ud(&w));
    let nobody = w.pd.create_ah(&ah_attr_to(Gid::v4([10, 0, 0, 77]), 1)).unwrap();
    let somebody = w.pd.create_ah(&ah_attr_to(w.peer, 1)).unwrap();
    a.post_send(&[
        SendWr::send(1, &[]).to(&nobody, PEER_QPN, 1).signaled(),
        SendWr::send(2, &[]).to(&somebody, PEER_QPN, 1).signaled(),
    ])
    .unwrap();
    b.post_send(&[SendWr::send(3, &[]).to(&somebody, PEER_QPN, 1).signaled()]).unwrap();
    assert_eq!(w.run().len(), 1);
    assert_eq!(w.done()[0].wr_id, 3);
    let start = Instant::now();
    let mut done = Vec::new();
    while done.len() < 2 {
        assert!(start.elapsed() < Duration::from_secs(10), "{done:?}");
        w.run();
        done.extend(w.done());
    }
    assert_eq!(done.iter().map(|wc| (wc.wr_id, wc.is_ok())).collect::<Vec<_>>(), [(1, true), (2, true)]);
    assert_eq!(w.dropped(Discard::Unreachable), 1);
    assert_eq!(a.counters().discarded(Discard::Unreachable), 1, "of its queue pair, too");
}

// Many peers at once: addresses that share a slot of the path table, and queue pairs that change their destination
// with each datagram.
#[test]
fn datagrams_go_where_they_are_sent() {
    let mut w = Wire::new(false);
    let qp = ud(&w);
    // Groups need no resolution: their Ethernet address follows from the IP address.
    let to: Vec<_> = (0..100u8).map(|i| Gid::v4([239, 0, i, 7])).collect();
    let ahs: Vec<_> = to.iter().map(|gid| w.pd.create_ah(&ah_attr_to(*gid, 1)).unwrap()).collect();
    let own = w.pd.create_ah(&ah_attr_to(w.peer, 1)).unwrap();
    for ah in &ahs {
        let wrs = [
            SendWr::send(1, &[]).to(ah, Qpn::MULTICAST, QKEY),
            SendWr::send(2, &[]).to(&own, PEER_QPN, QKEY),
        ];
        qp.post_send(&wrs).unwrap();
        w.run();
    }
    assert_eq!(w.frames.len(), 200);
    for (i, pair) in w.frames.chunks(2).enumerate() {
        assert_eq!(pair[0][..6], [1, 0, 0x5e, 0, i as u8, 7]);
        assert_eq!(pair[0][30..34], [239, 0, i as u8, 7]);
        assert_eq!((pair[1][..6].to_vec(), &pair[1][30..34]), (vec![2, 0, 0, 0, 0, 2], &[10, 0, 0, 2][..]));
    }
}

#[test]
fn the_address_handle_is_on_the_wire() {
    let mut w = Wire::new(true);
    let qp = ud(&w);
    let mut attr = ah_attr_to(w.peer, 1);
    let grh = attr.grh.as_mut().unwrap();
    (grh.traffic_class, grh.hop_limit, grh.flow_label) = (0xb8, 9, 0x12345);
    let ah = w.pd.create_ah(&attr).unwrap();
    qp.post_send(&[SendWr::send(1, &[]).to(&ah, PEER_QPN, 1)]).unwrap();
    assert_eq!(w.run().len(), 1);
    let ip = &w.frames[0][14..];
    assert_eq!(ip[..4], [0x6b, 0x81, 0x23, 0x45]);
    assert_eq!(ip[7], 9);
    let port = u16::from_be_bytes([ip[40], ip[41]]);
    assert_eq!(port, 0xc000 | (0x2345 ^ 0x12345 >> 14) as u16);
}

#[test]
fn a_reset_datagram_queue_pair_starts_again() {
    let context = embedded();
    let (pd, cq, mr, a, b) = pair_of(&context, [0, 0]);
    let ah = pd.create_ah(&ah_attr_to(context.query_gid(1, 1).unwrap(), 1)).unwrap();
    for round in 0..3 {
        b.post_recv(&[RecvWr::new(round, &[mr.sge(0..100).unwrap()])]).unwrap();
        a.post_send(&[SendWr::send(9, &[]).to(&ah, b.qp_num(), QKEY).signaled()]).unwrap();
        assert!(take(&context, &cq, 2).iter().all(|wc| wc.is_ok()));
        // A posted request that was not sent disappears without a completion.
        a.post_send(&[SendWr::send(10, &[]).to(&ah, b.qp_num(), QKEY).signaled()]).unwrap();
        enter(&a, QpState::Reset);
        assert_no_completion(&context, &cq);
        a.activate_ud(QKEY).unwrap();
    }
    let (attr, mask) = attr_to(QpState::Sqd);
    a.modify(&attr, mask).unwrap();
    a.post_send(&[SendWr::send(11, &[]).to(&ah, b.qp_num(), QKEY).signaled()]).unwrap();
    assert_no_completion(&context, &cq);
    enter(&a, QpState::Rts);
    assert_eq!(take(&context, &cq, 1)[0].wr_id, 11);
    let given = QpAttr { qkey: 0x77, ..QpAttr::default() };
    a.modify(&given, verbs::AttrMask::QKEY).unwrap();
    assert_eq!(a.query().unwrap().0.qkey, 0x77);
    pump(&context);
}

/// One of two devices on a link, in a VLAN.
struct End {
    context: Context,
    pd: verbs::Pd,
    cq: verbs::Cq,
    mr: verbs::Mr,
    qps: Vec<Qp>,
}

impl End {
    fn new(port: Box<dyn Port>, last: u16, drive: &Drive) -> Self {
        let mut config = DeviceConfig::new(port)
            .addr([10, 0, 0, last as u8], 24)
            .addr([0xfd00, 0, 0, 0, 0, 0, 0, last], 64)
            .shards(2)
            .drive(drive.clone());
        config.vlan = Some(100);
        let context = Context::open(config).unwrap();
        let (pd, cq) = (context.alloc_pd().unwrap(), context.create_cq(512).unwrap());
        let mr = pd.reg_mr(256 << 10, common::all_rights()).unwrap();
        let make = |shard| {
            let qp = pd.create_qp(&QpInitAttr::ud(&cq, &cq).on_shard(shard)).unwrap();
            qp.activate_ud(QKEY).unwrap();
            qp
        };
        let qps = vec![make(0), make(1)];
        Self { context, pd, cq, mr, qps }
    }

    fn poll(&self, ends: [&Self; 2], drive: &Drive, n: usize) -> Vec<Wc> {
        let mut done = Vec::new();
        let (mut wc, start) = ([Wc::default(); 16], Instant::now());
        while done.len() < n {
            assert!(start.elapsed() < common::PATIENCE, "{} of {n} in {drive:?}: {done:?}", done.len());
            if *drive == Drive::Embedded {
                ends.iter().for_each(|end| pump(&end.context));
            }
            let got = self.cq.poll(&mut wc).unwrap();
            done.extend_from_slice(&wc[..got]);
        }
        assert!(done.iter().all(Wc::is_ok), "{done:?}");
        done
    }
}

// The extended poll returns the priority that a datagram arrived with, like `Wc::sl`.
#[test]
fn extended_poll_reads_the_service_level() {
    let drive = Drive::Embedded;
    let queues = PortOptions { queues: 2, ..PortOptions::default() };
    let (a, b) = pair_with(&queues, &queues, Arc::new(|from, _, _| from));
    let (a, b) = (End::new(a, 1, &drive), End::new(b, 2, &drive));
    let gid = b.context.query_gid(1, 2).unwrap();
    for sl in [5, 0] {
        let ah = a.pd.create_ah(&AhAttr { sl, ..ah_attr_to(gid, 2) }).unwrap();
        b.qps[0].post_recv(&[RecvWr::new(1, &[b.mr.sge(0..100).unwrap()])]).unwrap();
        let wr = SendWr::send(2, &[]).inline(b"level").to(&ah, b.qps[0].qp_num(), QKEY).signaled();
        a.qps[0].post_send(&[wr]).unwrap();
        a.poll([&a, &b], &drive, 1);
        let start = Instant::now();
        let poll = loop {
            pump(&b.context);
            if let Some(poll) = b.cq.start_poll().unwrap() {
                break poll;
            }
            assert!(start.elapsed() < common::PATIENCE, "the datagram does not come");
        };
        assert_eq!((poll.read_sl(), poll.wc().sl, poll.read_byte_len()), (sl, sl, 45));
    }
}

// From every queue pair to every queue pair of the other device, over both IP versions, also with frames on the wrong queue; then back to
// the senders, in every drive.
#[test]
fn u08_u09_datagrams_between_devices_and_back() {
    for drive in [Drive::Embedded, Drive::Caller, Drive::Dedicated { cores: Vec::new() }] {
        let queues = PortOptions { queues: 2, ..PortOptions::default() };
        let (a, b) = pair_with(&queues, &queues, Arc::new(|from, _, _| from + 1));
        let (a, b) = (End::new(a, 1, &drive), End::new(b, 2, &drive));
        let ends = [&a, &b];
        for (sgid, sl) in [(1, 0), (2, 5)] {
            let gid = b.context.query_gid(1, sgid.into()).unwrap();
            let ah = a.pd.create_ah(&AhAttr { sl, ..ah_attr_to(gid, sgid) }).unwrap();
            for (i, j) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
                let len = 1000 + 700 * (i + 2 * j);
                a.mr.write(0, &text(len)).unwrap();
                b.qps[j].post_recv(&[RecvWr::new(1, &[b.mr.sge(0..5000).unwrap()])]).unwrap();
                let sge = [a.mr.sge(0..len).unwrap()];
                let wr = SendWr::send_with_imm(2, &sge, 0x1234).to(&ah, b.qps[j].qp_num(), QKEY).signaled();
                a.qps[i].post_send(&[wr]).unwrap();
                let wc = b.poll(ends, &drive, 1)[0];
                assert_eq!((wc.byte_len as usize, wc.src_qp), (40 + len, a.qps[i].qp_num()));
                assert_eq!((wc.sl, wc.imm_data()), (sl, Some(0x1234)));
                assert!(b.mr.to_vec(40..40 + len).unwrap() == text(len));
                assert_eq!(a.poll(ends, &drive, 1)[0].wr_id, 2);

                let area = b.mr.to_vec(0..40).unwrap();
                let back = b.pd.create_ah_from_wc(&wc, area[..].try_into().unwrap()).unwrap();
                assert_eq!(back.attr().sl, sl);
                a.qps[i].post_recv(&[RecvWr::new(3, &[a.mr.sge(0..200).unwrap()])]).unwrap();
                let wr = SendWr::send(4, &[]).inline(b"back").to(&back, wc.src_qp, QKEY).signaled();
                b.qps[j].post_send(&[wr]).unwrap();
                assert_eq!(a.poll(ends, &drive, 1)[0].byte_len, 44);
                assert_eq!(a.mr.to_vec(40..44).unwrap(), b"back");
                b.poll(ends, &drive, 1);
            }
        }
    }
}

// A burst far larger than a turn's budget, to a receiver that keeps up: nothing is dropped, and sends complete in order.
#[test]
fn many_datagrams_in_order() {
    let context = embedded();
    let (pd, cq) = (context.alloc_pd().unwrap(), context.create_cq(1024).unwrap());
    let rq = context.create_cq(1024).unwrap();
    let cap = verbs::QpCap { max_send_wr: 512, max_recv_wr: 512, ..QpInitAttr::ud(&cq, &cq).cap };
    let qp = pd.create_qp(&QpInitAttr::ud(&cq, &rq).cap(cap)).unwrap();
    qp.activate_ud(QKEY).unwrap();
    let mr = pd.reg_mr(512 * 64, common::all_rights()).unwrap();
    let ah = pd.create_ah(&ah_attr_to(context.query_gid(1, 1).unwrap(), 1)).unwrap();
    for i in 0..512u64 {
        let at = i as usize * 64;
        qp.post_recv(&[RecvWr::new(i, &[mr.sge(at..at + 64).unwrap()])]).unwrap();
    }
    for i in 0..512u64 {
        let wr = SendWr::send(i, &[]).inline(&[]).to(&ah, qp.qp_num(), QKEY).signaled();
        qp.post_send(&[wr]).unwrap();
    }
    for (what, cq) in [("send", &cq), ("receive", &rq)] {
        let ids: Vec<_> = take(&context, cq, 512).iter().map(|wc| wc.wr_id).collect();
        assert_eq!(ids, (0..512).collect::<Vec<_>>(), "{what}");
    }
}
