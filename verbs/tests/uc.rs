//! UC through the public API: against a scripted peer, and between two devices whose link loses frames.

use std::time::Instant;

use crate::common::{PATIENCE, all_rights, enter, options, pump, take};
use crate::wire::{self, PEER_PSN, PEER_QPN, Wire, mtu256};
use sim::peer::{Pkt, pkt};
use stack::wire::Opcode;
use verbs::port::fault::{Fault, Plan};
use verbs::port::{Port, fault, pair};
use verbs::{
    Access, AsyncEvent, Context, Counter, Cq, DeviceConfig, Discard, Drive, Mr, Mtu, Pd, Qp, QpInitAttr,
    QpState, RcOptions, RecvWr, SendWr, Wc, WcFlags, WcOpcode, WcStatus,
};

/// A UC queue pair that is connected to the scripted peer, with path MTU 256.
fn uc(wire: &mut Wire) -> Qp {
    let qp = wire.pd.create_qp(&QpInitAttr::uc(&wire.cq, &wire.cq)).unwrap();
    qp.connect_uc(&wire.endpoint(), &mtu256()).unwrap();
    assert!(wire.run().is_empty());
    qp
}

/// The packets of a SEND of `parts` full packets and one of `last` bytes, from PSN `psn` on.
fn send(psn: u32, parts: usize, last: usize, fill: u8) -> Vec<Pkt> {
    let full = [fill; 256];
    let mut pkts = vec![pkt(Opcode::UC_SEND_FIRST, psn).data(&full)];
    pkts.extend((1..parts).map(|i| pkt(Opcode::UC_SEND_MIDDLE, psn + i as u32).data(&full)));
    pkts.push(pkt(Opcode::UC_SEND_LAST, psn + parts as u32).data(&vec![fill; last]));
    pkts
}

fn only(psn: u32, data: &[u8]) -> Pkt {
    pkt(Opcode::UC_SEND_ONLY, psn).data(data)
}

/// Tag, status and length of each waiting completion.
fn done(w: &mut Wire) -> Vec<(u64, WcStatus, u32)> {
    w.done().iter().map(|wc| (wc.wr_id, wc.status, wc.byte_len)).collect()
}

#[test]
fn u01_a_lost_middle_keeps_the_receive() {
    let mut w = Wire::new(false);
    let qp = uc(&mut w);
    w.wipe();
    w.post_recvs(&qp, 0..2, 1024);
    let mut pkts = send(PEER_PSN, 2, 10, 1);
    pkts.remove(1);
    assert!(w.send(&qp, &pkts).is_empty(), "nothing is ever answered");
    assert!(w.done().is_empty());
    assert_eq!(w.dropped(Discard::OutOfSequence), 1, "the LAST");
    // The next message fills the same buffers from their start.
    w.send(&qp, &[only(PEER_PSN + 3, b"next")]);
    assert_eq!(done(&mut w), [(0, WcStatus::Success, 4)]);
    assert_eq!(w.received(0, 6), [&b"next"[..], &[1, 1]].concat());
    w.send(&qp, &send(PEER_PSN + 4, 2, 10, 2));
    assert_eq!(done(&mut w), [(1, WcStatus::Success, 522)]);
    assert_eq!(w.received(1, 522), [2; 522]);
    assert_eq!(qp.query().unwrap().0.rq_psn, PEER_PSN + 7);
}

#[test]
fn u02_a_first_with_a_jump_starts_a_message() {
    let mut w = Wire::new(false);
    let qp = uc(&mut w);
    w.post_recvs(&qp, 0..4, 1024);
    // PSNs that jump forward, far ahead, and backwards across the wrap.
    for (id, psn) in [(0, PEER_PSN + 5), (1, 0x80_0000 + PEER_PSN), (2, 0xff_fffe)] {
        w.send(&qp, &[only(psn, b"jump")]);
        assert_eq!(done(&mut w), [(id, WcStatus::Success, 4)]);
        assert_eq!(qp.query().unwrap().0.rq_psn, psn + 1);
    }
    // The next message cuts a message off, and uses its receive.
    let mut pkts = send(50, 2, 3, 1);
    pkts.truncate(2);
    pkts.extend(send(60, 1, 7, 2));
    w.send(&qp, &pkts);
    assert_eq!(done(&mut w), [(3, WcStatus::Success, 263)]);
    assert_eq!(w.received(3, 263), [2; 263]);
    assert_eq!(w.dropped(Discard::OutOfSequence), 1);
    assert_eq!(qp.counters().discarded(Discard::OutOfSequence), 1, "of its queue pair, too");
}

#[test]
fn u03_a_middle_with_a_jump_is_dropped() {
    let mut w = Wire::new(false);
    let qp = uc(&mut w);
    w.post_recvs(&qp, 0..1, 4096);
    let pkts = send(PEER_PSN, 5, 1, 1);
    let lost = [&pkts[..1], &pkts[2..]].concat();
    w.send(&qp, &lost);
    assert_eq!(w.dropped(Discard::OutOfSequence), 4, "all that follow the gap");
    // A packet without a first packet, and a packet of another operation than its first packet.
    w.send(&qp, &pkts[1..2]);
    w.send(&qp, &[pkts[0].clone(), pkt(Opcode::UC_WRITE_MIDDLE, PEER_PSN + 1).data(&[0; 256])]);
    assert_eq!(w.dropped(Discard::OutOfSequence), 6);
    assert!(w.done().is_empty());
    w.send(&qp, &pkts);
    assert_eq!(done(&mut w), [(0, WcStatus::Success, 1281)]);
}

#[test]
fn u04_bad_messages_are_dropped_in_silence() {
    let mut w = Wire::new(false);
    let qp = w.pd.create_qp(&QpInitAttr::uc(&w.cq, &w.cq)).unwrap();
    qp.connect_uc(&w.endpoint(), &mtu256().access(Access::REMOTE_WRITE)).unwrap();
    w.run();
    let (va, key) = (w.mr.addr(), w.mr.rkey());
    let local = w.pd.reg_mr(4096, Access::LOCAL_WRITE).unwrap();
    w.wipe();
    let psn = PEER_PSN;
    let write = |va, key, len: u32| pkt(Opcode::UC_WRITE_ONLY, psn).reth(va, key, len);
    let silent = |w: &mut Wire, pkts: &[Pkt], reason| {
        let before = w.dropped(reason);
        assert!(w.send(&qp, pkts).is_empty());
        assert!(w.done().is_empty());
        assert!(w.dropped(reason) > before, "{reason}: {pkts:?}");
        assert_eq!(qp.state().unwrap(), QpState::Rts);
        assert!(w.mr.to_vec(0..64 << 10).unwrap().iter().all(|b| *b == 0xee));
    };
    silent(&mut w, &[only(psn, b"no receive")], Discard::NoReceive);
    let imm = pkt(Opcode::UC_WRITE_ONLY_IMM, psn).reth(va, key, 4).imm([0; 4]).data(b"data");
    silent(&mut w, &[imm], Discard::NoReceive);
    silent(&mut w, &[write(va, key ^ 0x100, 4).data(b"data")], Discard::BadRequest);
    silent(&mut w, &[write(local.addr(), local.rkey(), 4).data(b"data")], Discard::BadRequest);
    silent(&mut w, &[write(va + (64 << 10) - 3, key, 4).data(b"data")], Discard::BadRequest);
    silent(&mut w, &[write(va, key, 5).data(b"data")], Discard::BadRequest);
    silent(&mut w, &[write(va, key, 257).data(&[0; 257])], Discard::BadRequest);
    let short = pkt(Opcode::UC_SEND_FIRST, psn).data(&[0; 255]);
    silent(&mut w, &[short, pkt(Opcode::UC_SEND_LAST, psn + 1).data(b"x")], Discard::OutOfSequence);
    // A message whose second packet is bad is dropped to its end.
    let pkts = [
        pkt(Opcode::UC_WRITE_FIRST, psn).reth(va, key ^ 0x100, 600).data(&[0; 256]),
        pkt(Opcode::UC_WRITE_MIDDLE, psn + 1).data(&[0; 256]),
        pkt(Opcode::UC_WRITE_LAST, psn + 2).data(&[0; 88]),
    ];
    silent(&mut w, &pkts, Discard::OutOfSequence);
    // Longer than the receive: the receive stays for the next message.
    w.post_recvs(&qp, 0..1, 300);
    w.send(&qp, &send(psn, 1, 45, 0xee));
    assert!(w.done().is_empty());
    w.send(&qp, &send(psn, 1, 44, 3));
    assert_eq!(done(&mut w), [(0, WcStatus::Success, 300)]);

    // A queue pair without any remote access.
    let qp = w.pd.create_qp(&QpInitAttr::uc(&w.cq, &w.cq)).unwrap();
    qp.connect_uc(&w.endpoint(), &mtu256().access(Access::empty())).unwrap();
    w.run();
    w.wipe();
    let before = w.dropped(Discard::BadRequest);
    w.send(&qp, &[write(va, key, 4).data(b"data")]);
    assert_eq!((w.dropped(Discard::BadRequest), w.mr.read_u8(0).unwrap()), (before + 1, 0xee));
    assert_eq!(w.context.counters().get(Counter::AcksSent) + w.context.counters().get(Counter::NaksSent), 0);
}

#[test]
fn u05_write_with_immediate_that_lost_its_last() {
    let mut w = Wire::new(false);
    let qp = uc(&mut w);
    w.wipe();
    w.post_recvs(&qp, 8..9, 16);
    let (va, key) = (w.mr.addr(), w.mr.rkey());
    let pkts = |psn, fill| {
        [
            pkt(Opcode::UC_WRITE_FIRST, psn).reth(va, key, 260).data(&[fill; 256]),
            pkt(Opcode::UC_WRITE_LAST_IMM, psn + 1).imm([9, 8, 7, 6]).data(&[fill; 4]),
        ]
    };
    w.send(&qp, &pkts(PEER_PSN, 1)[..1]);
    assert!(w.done().is_empty());
    assert_eq!(w.mr.to_vec(0..257).unwrap(), [&[1; 256][..], &[0xee]].concat(), "its first packet is there");
    w.send(&qp, &pkts(PEER_PSN + 2, 2));
    let wc = w.done()[0];
    assert_eq!((wc.wr_id, wc.opcode, wc.byte_len), (8, WcOpcode::RecvRdmaWithImm, 260));
    assert_eq!((wc.imm_data(), wc.wc_flags), (Some(0x0908_0706), WcFlags::WITH_IMM));
    assert_eq!(w.mr.to_vec(0..260).unwrap(), [2; 260]);
    assert_eq!(w.received(8, 16), [0xee; 16], "the receive's own buffer is untouched");
}

#[test]
fn u06_requests_ask_for_nothing_and_complete_when_sent() {
    let mut w = Wire::new(false);
    let qp = uc(&mut w);
    let sge = [w.mr.sge(0..600).unwrap()];
    qp.post_send(&[
        SendWr::send_with_imm(1, &sge, 0x0102_0304).signaled().solicited(),
        SendWr::write(2, &sge, 0x7000, 0x55),
        SendWr::write_with_imm(3, &[], 0x7000, 0x55, 7).signaled(),
    ])
    .unwrap();
    let said = w.run();
    let first = qp.first_psn();
    let expected = [
        Opcode::UC_SEND_FIRST,
        Opcode::UC_SEND_MIDDLE,
        Opcode::UC_SEND_LAST_IMM,
        Opcode::UC_WRITE_FIRST,
        Opcode::UC_WRITE_MIDDLE,
        Opcode::UC_WRITE_LAST,
        Opcode::UC_WRITE_ONLY_IMM,
    ];
    assert_eq!(said.iter().map(|s| s.opcode).collect::<Vec<_>>(), expected);
    for (i, s) in said.iter().enumerate() {
        assert_eq!((s.psn, s.ack_req, s.dqpn), (first.add(i as u32).get(), false, PEER_QPN));
        assert_eq!(s.solicited, i == 2);
    }
    assert_eq!((said[3].reth().va, said[3].reth().rkey, said[3].reth().len), (0x7000, 0x55, 600));
    assert_eq!(
        done(&mut w).iter().map(|d| (d.0, d.1)).collect::<Vec<_>>(),
        [(1, WcStatus::Success), (3, WcStatus::Success)]
    );
    assert_eq!(qp.query().unwrap().0.sq_psn, first.add(7).get());
    assert!(w.run().is_empty(), "nothing goes out again");
}

// A request completes when the port has taken its last frame, not before; here the port takes none for a while.
#[test]
fn u06_no_completion_before_the_port_took_the_frames() {
    let (a, b) = pair(1);
    let context = Context::open(DeviceConfig::new(a).addr([10, 0, 0, 1], 24).drive(Drive::Embedded)).unwrap();
    let far = Context::open(DeviceConfig::new(b).addr([10, 0, 0, 2], 24).drive(Drive::Embedded)).unwrap();
    let (pd, cq) = (context.alloc_pd().unwrap(), context.create_cq(8192).unwrap());
    let (pd2, cq2) = (far.alloc_pd().unwrap(), far.create_cq(16).unwrap());
    let mr = pd.reg_mr(1 << 20, all_rights()).unwrap();
    let cap = verbs::QpCap { max_send_wr: 4096, ..QpInitAttr::uc(&cq, &cq).cap };
    let qp = pd.create_qp(&QpInitAttr::uc(&cq, &cq).cap(cap)).unwrap();
    let peer = pd2.create_qp(&QpInitAttr::uc(&cq2, &cq2)).unwrap();
    qp.connect_uc(&peer.endpoint(1).unwrap(), &options()).unwrap();
    peer.connect_uc(&qp.endpoint(1).unwrap(), &options()).unwrap();
    for _ in 0..16 {
        pump(&context);
        pump(&far);
    }
    // The link holds 1024 frames, and nobody receives any.
    for id in 0..2000 {
        qp.post_send(&[SendWr::write(id, &[mr.sge(0..8).unwrap()], 0, 0).signaled()]).unwrap();
    }
    let before = context.port_stats().tx_frames;
    let mut wc = [Wc::default(); 64];
    let (mut n, start) = (0, Instant::now());
    while n < 2000 {
        assert!(start.elapsed() < PATIENCE, "{n} completions");
        pump(&context);
        let got = cq.poll(&mut wc).unwrap();
        for (i, wc) in wc[..got].iter().enumerate() {
            assert_eq!((wc.wr_id, wc.status), ((n + i) as u64, WcStatus::Success), "in order");
        }
        n += got;
        let stats = context.port_stats();
        let lost = context.counters().discarded(Discard::TxStalled);
        assert!(n as u64 <= stats.tx_frames - before + lost, "{n} completions, {stats:?}");
    }
    assert!(context.counters().discarded(Discard::TxStalled) > 0, "the link was full");
}

#[test]
fn s32_sqe_of_a_connection_and_back() {
    let mut w = Wire::new(false);
    let qp = uc(&mut w);
    w.post_recvs(&qp, 10..12, 1024);
    let good = [w.mr.sge(0..300).unwrap()];
    // The second packet's buffer is invalid, but the first packet has left already.
    let torn = [w.mr.sge(0..256).unwrap(), verbs::Sge { lkey: 0x55, ..w.mr.sge(0..44).unwrap() }];
    qp.post_send(&[SendWr::send(1, &good), SendWr::send(2, &torn), SendWr::send(3, &good).signaled()])
        .unwrap();
    assert_eq!(w.run().len(), 3);
    assert_eq!(
        done(&mut w).iter().map(|d| (d.0, d.1)).collect::<Vec<_>>(),
        [(2, WcStatus::LocProtErr), (3, WcStatus::WrFlushErr)]
    );
    assert_eq!(qp.state().unwrap(), QpState::Sqe);
    w.send(&qp, &[only(PEER_PSN, b"in")]);
    assert_eq!(done(&mut w), [(10, WcStatus::Success, 2)]);
    qp.post_send(&[SendWr::send(4, &good)]).unwrap();
    assert!(w.run().is_empty());
    assert_eq!(done(&mut w)[0].1, WcStatus::WrFlushErr);
    enter(&qp, QpState::Rts);
    qp.post_send(&[SendWr::send(5, &good).signaled()]).unwrap();
    let said = w.run();
    assert_eq!(
        said.iter().map(|s| s.opcode).collect::<Vec<_>>(),
        [Opcode::UC_SEND_FIRST, Opcode::UC_SEND_LAST]
    );
    assert!(said[0].psn >= qp.first_psn().add(3).get(), "the numbers go on");
    assert_eq!(done(&mut w)[0].0, 5);
    w.send(&qp, &[only(PEER_PSN + 1, b"in")]);
    assert_eq!(done(&mut w), [(11, WcStatus::Success, 2)]);
}

#[test]
fn a_bad_receive_buffer_ends_the_connection() {
    let mut w = Wire::new(false);
    let qp = uc(&mut w);
    let read_only = w.pd.reg_mr(4096, Access::empty()).unwrap();
    qp.post_recv(&[RecvWr::new(1, &[read_only.sge(0..100).unwrap()]), RecvWr::new(2, &[])]).unwrap();
    assert!(w.send(&qp, &[only(PEER_PSN, b"x")]).is_empty());
    let done: Vec<_> = done(&mut w).iter().map(|d| (d.0, d.1)).collect();
    assert_eq!(done, [(1, WcStatus::LocProtErr), (2, WcStatus::WrFlushErr)]);
    assert_eq!(qp.state().unwrap(), QpState::Err);
}

#[test]
fn addresses_of_a_connection_are_checked() {
    let mut w = Wire::new(false);
    let qp = uc(&mut w);
    w.post_recvs(&qp, 0..1, 100);
    let mut flow = w.flow(&qp);
    flow.src = verbs::Gid::v4([10, 0, 0, 3]);
    w.send_on(&flow, &[only(PEER_PSN, b"x")]);
    assert_eq!(w.dropped(Discard::WrongPeer), 1);
    let mut flow = w.flow(&qp);
    flow.dst = verbs::Gid::v4([10, 0, 0, 9]);
    w.send_on(&flow, &[only(PEER_PSN, b"x")]);
    assert_eq!(w.dropped(Discard::NotOurAddress), 1);
    assert!(w.done().is_empty());
}

#[test]
fn the_first_packet_in_rtr_is_an_event() {
    let mut w = Wire::new(false);
    let qp = w.pd.create_qp(&QpInitAttr::uc(&w.cq, &w.cq)).unwrap();
    qp.init_rc(&mtu256()).unwrap();
    w.post_recvs(&qp, 0..1, 100);
    let peer = w.endpoint();
    let (attr, mask) = verbs::attr_rtr_uc(peer.gid, 1, peer.qpn, peer.psn, Mtu::Mtu256);
    qp.modify(&attr, mask).unwrap();
    w.run();
    w.send(&qp, &[only(PEER_PSN, b"x")]);
    assert_eq!(w.context.try_get_async_event().map(|e| e.event), Some(AsyncEvent::CommEst));
    assert_eq!(w.done().len(), 1);
}

/// One of two devices on a link.
struct End {
    context: Context,
    pd: Pd,
    cq: Cq,
    mr: Mr,
}

const HALF: usize = 128 << 10;

impl End {
    fn new(port: Box<dyn Port>, last: u16, shards: usize) -> Self {
        let config = DeviceConfig::new(port)
            .addr([10, 0, 0, last as u8], 24)
            .addr([0xfd00, 0, 0, 0, 0, 0, 0, last], 64)
            .shards(shards)
            .drive(Drive::Embedded);
        let context = Context::open(config).unwrap();
        let (pd, cq) = (context.alloc_pd().unwrap(), context.create_cq(1024).unwrap());
        let mr = pd.reg_mr(2 * HALF, all_rights()).unwrap();
        Self { context, pd, cq, mr }
    }
}

fn connect(a: &End, b: &End, shard: usize, options: &RcOptions) -> (Qp, Qp) {
    let qa = a.pd.create_qp(&QpInitAttr::uc(&a.cq, &a.cq).on_shard(shard)).unwrap();
    let qb = b.pd.create_qp(&QpInitAttr::uc(&b.cq, &b.cq).on_shard(shard)).unwrap();
    qa.connect_uc(&qb.endpoint(options.sgid_index).unwrap(), options).unwrap();
    qb.connect_uc(&qa.endpoint(options.sgid_index).unwrap(), options).unwrap();
    (qa, qb)
}

fn wait(ends: [&End; 2], of: &End, n: usize) -> Vec<Wc> {
    let mut done = Vec::new();
    let (mut wc, start) = ([Wc::default(); 16], Instant::now());
    while done.len() < n {
        assert!(start.elapsed() < PATIENCE, "{} of {n}: {done:?}", done.len());
        ends.iter().for_each(|end| pump(&end.context));
        let got = of.cq.poll(&mut wc).unwrap();
        done.extend_from_slice(&wc[..got]);
    }
    assert!(done.iter().all(Wc::is_ok), "{done:?}");
    done
}

fn pattern(len: usize, seed: usize) -> Vec<u8> {
    (0..len).map(|i| (i.wrapping_mul(2_654_435_761).wrapping_add(seed * 977) >> 7) as u8).collect()
}

// SEND and WRITE of many lengths at each path MTU, both IP versions, two shards; the data is compared.
#[test]
fn messages_of_many_sizes_arrive_whole() {
    let (a, b) = pair(2);
    let (a, b) = (End::new(a, 1, 2), End::new(b, 2, 2));
    let mut seed = 0;
    for (path_mtu, sgid_index, shard) in [
        (Mtu::Mtu256, 1, 0),
        (Mtu::Mtu512, 2, 1),
        (Mtu::Mtu1024, 1, 1),
        (Mtu::Mtu2048, 2, 0),
        (Mtu::Mtu4096, 1, 0),
    ] {
        let options = options().path_mtu(path_mtu).sgid_index(sgid_index);
        let (qa, qb) = connect(&a, &b, shard, &options);
        let mtu = path_mtu.bytes();
        for len in [0, 1, 3, mtu - 1, mtu, mtu + 1, 2 * mtu, 5 * mtu + 7, 100_001] {
            seed += 1;
            a.mr.write(0, &pattern(len, seed)).unwrap();
            // An odd split, so that packets span scatter/gather elements.
            let cut = len / 3;
            let from = [a.mr.sge(0..cut).unwrap(), a.mr.sge(cut..len).unwrap()];
            let to = [b.mr.sge(HALF..HALF + cut / 2).unwrap(), b.mr.sge(HALF + cut / 2..HALF + len).unwrap()];
            qb.post_recv(&[RecvWr::new(1, &to), RecvWr::new(2, &[])]).unwrap();
            let (va, key) = (b.mr.addr(), b.mr.rkey());
            qa.post_send(&[
                SendWr::send(3, &from).signaled(),
                SendWr::write_with_imm(4, &from, va, key, seed as u32).signaled(),
            ])
            .unwrap();
            let got = wait([&a, &b], &b, 2);
            assert_eq!((got[0].byte_len as usize, got[1].byte_len as usize), (len, len));
            assert_eq!(got[1].imm_data(), Some(seed as u32));
            assert_eq!(wait([&a, &b], &a, 2).iter().map(|wc| wc.wr_id).collect::<Vec<_>>(), [3, 4]);
            assert!(b.mr.to_vec(HALF..HALF + len).unwrap() == pattern(len, seed), "SEND of {len} at {mtu}");
            assert!(b.mr.to_vec(0..len).unwrap() == pattern(len, seed), "WRITE of {len} at {mtu}");
        }
    }
}

// Messages that arrive over a lossy link are whole, in order and not duplicated; of the others nothing is visible.
#[test]
fn a_lossy_link_loses_whole_messages() {
    for number in 0..3 {
        let (a, b) = pair(1);
        let lossy = Plan::CLEAN.with(Fault::Loss, 50_000);
        let (a, b) = (End::new(fault(a, Plan::CLEAN, lossy, number), 1, 1), End::new(b, 2, 1));
        let (qa, qb) = connect(&a, &b, 0, &options().path_mtu(Mtu::Mtu256));
        const MESSAGES: usize = 60;
        let len = |n: usize| 1 + n * 37 % 2000;
        for n in 0..MESSAGES {
            let at = HALF + n * 2048;
            qb.post_recv(&[RecvWr::new(n as u64, &[b.mr.sge(at..at + 2048).unwrap()])]).unwrap();
        }
        for n in 0..MESSAGES {
            a.mr.write(0, &pattern(len(n), n)).unwrap();
            let sge = [a.mr.sge(0..len(n)).unwrap()];
            qa.post_send(&[SendWr::send_with_imm(n as u64, &sge, n as u32).signaled()]).unwrap();
            assert_eq!(wait([&a, &b], &a, 1)[0].wr_id, n as u64, "sending never fails");
        }
        for _ in 0..100 {
            pump(&a.context);
            pump(&b.context);
        }
        let mut wc = [Wc::default(); MESSAGES];
        let got = b.cq.poll(&mut wc).unwrap();
        assert!((5..MESSAGES).contains(&got), "{got} arrived");
        let mut last = None;
        for (i, wc) in wc[..got].iter().enumerate() {
            assert!(wc.is_ok());
            assert_eq!(wc.wr_id, i as u64, "receives are used in order, none is wasted");
            let n = wc.imm_data().unwrap() as usize;
            assert!(last < Some(n), "{n} after {last:?}");
            last = Some(n);
            assert_eq!(wc.byte_len as usize, len(n));
            let at = HALF + i * 2048;
            assert!(b.mr.to_vec(at..at + len(n)).unwrap() == pattern(len(n), n), "message {n}");
        }
        assert!(b.context.counters().discarded(Discard::OutOfSequence) > 0);
        assert_eq!(qb.state().unwrap(), QpState::Rts);
    }
}

// A connection to itself: frames are looped back inside the stack.
#[test]
fn a_connection_to_itself() {
    let context = wire::loopback();
    let (pd, cq) = (context.alloc_pd().unwrap(), context.create_cq(64).unwrap());
    let mr = pd.reg_mr(64 << 10, all_rights()).unwrap();
    let qp = pd.create_qp(&QpInitAttr::uc(&cq, &cq)).unwrap();
    qp.connect_uc(&qp.endpoint(1).unwrap(), &options()).unwrap();
    mr.write(0, &pattern(20_000, 1)).unwrap();
    qp.post_recv(&[RecvWr::new(1, &[mr.sge(30_000..50_000).unwrap()])]).unwrap();
    qp.post_send(&[SendWr::send(2, &[mr.sge(0..20_000).unwrap()]).signaled()]).unwrap();
    assert!(take(&context, &cq, 2).iter().all(Wc::is_ok));
    assert!(mr.to_vec(30_000..50_000).unwrap() == pattern(20_000, 1));
}

// Local operations execute in the order of the queue: between messages, and an invalidation after the messages before it.
#[test]
fn local_operations_between_messages() {
    let mut w = Wire::new(false);
    let qp = uc(&mut w);
    let mr = w.pd.alloc_mr(4096).unwrap();
    qp.post_send(&[
        SendWr::reg_mr(1, &mr, 0..4096, all_rights()).unwrap().signaled(),
        SendWr::send(2, &[mr.sge(0..600).unwrap()]).signaled(),
        SendWr::local_inv(3, mr.rkey()).signaled(),
        SendWr::send(4, &[]).signaled(),
    ])
    .unwrap();
    let said = w.run();
    assert_eq!(said.len(), 4, "three packets and one: {said:?}");
    let ends = |w: &mut Wire| w.done().iter().map(|wc| (wc.wr_id, wc.status)).collect::<Vec<_>>();
    assert_eq!(ends(&mut w), [1, 2, 3, 4].map(|id| (id, WcStatus::Success)));
    // The key is invalid: the next request that needs it stops sending, but receiving continues.
    qp.post_send(&[SendWr::send(5, &[mr.sge(0..4).unwrap()]), SendWr::local_inv(6, mr.rkey())]).unwrap();
    assert!(w.run().is_empty());
    assert_eq!(ends(&mut w), [(5, WcStatus::LocProtErr), (6, WcStatus::WrFlushErr)]);
    assert_eq!(qp.state().unwrap(), QpState::Sqe);
}
