//! Multicast through the public API: attaching, membership reports on the link, and copies for every attached queue pair.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use crate::common::{self, PATIENCE, all_rights, assert_no_completion, embedded, pump, take};
use crate::wire::{PEER_QPN, Wire, datagram};
use sim::peer::{frame, pkt};
use stack::wire::{Flow, Opcode};
use verbs::port::{
    Port, PortLayer, PortOptions, PortQueue, PortSpec, Route, RxBurst, TxBurst, pair, pair_with,
};
use verbs::{
    Clock, Context, Counter, Cq, DeviceConfig, Discard, Drive, Gid, Mac, Mr, Pd, Qp, QpInitAttr, QpState,
    QpType, Qpn, RecvWr, SendWr, Wc, WcFlags, WcStatus, ah_attr_to, errno,
};

const QKEY: u32 = 0x1111_1111;

fn group(last: u8) -> Gid {
    Gid::v4([239, 1, 2, last])
}

fn ud(pd: &Pd, cq: &Cq) -> Qp {
    pd.create_qp(&QpInitAttr::new(QpType::Ud, cq, cq)).unwrap()
}

/// A port whose cable can be pulled.
struct Cable(Box<dyn Port>, Arc<AtomicBool>);

impl PortLayer for Cable {
    fn inner(&self) -> &dyn Port {
        &*self.0
    }
    fn link_up(&self) -> bool {
        self.1.load(Ordering::Acquire)
    }
}

/// A device with a link whose other end the test controls.
struct Line {
    context: Context,
    pd: Pd,
    cq: Cq,
    peer: Box<dyn PortQueue>,
    clock: Arc<AtomicU64>,
    link: Arc<AtomicBool>,
    _port: Box<dyn Port>,
}

impl Line {
    fn new() -> Self {
        let (ours, port) = pair(1);
        let link = Arc::new(AtomicBool::new(true));
        let ours: Box<dyn Port> = Box::new(Cable(ours, link.clone()));
        let clock = Arc::new(AtomicU64::new(1));
        let mut config = DeviceConfig::new(ours).addr([192, 0, 2, 1], 24).drive(Drive::Embedded);
        config.clock = Clock::Manual(clock.clone());
        let context = Context::open(config).unwrap();
        let (pd, cq) = (context.alloc_pd().unwrap(), context.create_cq(64).unwrap());
        let peer = port.take_queue(0).unwrap();
        Self { context, pd, cq, peer, clock, link, _port: port }
    }

    /// The frames that the device sends in a few turns.
    fn sent(&mut self) -> Vec<Vec<u8>> {
        let mut sent = Vec::new();
        for _ in 0..5 {
            pump(&self.context);
            let mut burst = RxBurst::new();
            self.peer.rx_burst(&mut burst);
            sent.extend(burst.drain(..).map(|frame| frame.data().to_vec()));
        }
        sent
    }

    fn pass(&self, time: Duration) {
        self.clock.fetch_add(time.as_nanos() as u64, Ordering::AcqRel);
    }

    fn send(&mut self, bytes: &[u8]) {
        let mut burst = TxBurst::new();
        let mut frame = self.peer.alloc().unwrap();
        assert!(frame.fill(bytes));
        burst.push(frame);
        self.peer.tx_burst(Route::default(), &mut burst);
    }
}

/// Kind and group of an IGMP message.
fn igmp(frame: &[u8]) -> (u8, Gid) {
    assert_eq!((frame[12..14].to_vec(), frame[23]), (vec![8, 0], 2), "IPv4, IGMP: {frame:x?}");
    (frame[38], Gid::v4(frame[42..46].try_into().unwrap()))
}

#[test]
fn membership_is_reported_for_the_first_and_the_last() {
    let mut w = Line::new();
    let (a, b) = (ud(&w.pd, &w.cq), ud(&w.pd, &w.cq));
    a.attach_mcast(group(3), 0).unwrap();
    let sent = w.sent();
    assert_eq!(sent.len(), 1);
    assert_eq!(sent[0][..6], [1, 0, 0x5e, 1, 2, 3]);
    assert_eq!(igmp(&sent[0]), (0x16, group(3)));
    b.attach_mcast(group(3), 0xc000).unwrap();
    a.attach_mcast(group(3), 0).unwrap();
    a.detach_mcast(group(3), 0).unwrap();
    assert_eq!(w.sent(), Vec::<Vec<u8>>::new(), "it is a member all the while");
    // A router's query with the shortest response time, a tenth of a second.
    let mut query = sent[0].clone();
    query[..6].copy_from_slice(&[1, 0, 0x5e, 0, 0, 1]);
    query[6..12].copy_from_slice(&[2, 0, 0, 0, 0, 2]);
    query[26..34].copy_from_slice(&[192, 0, 2, 9, 224, 0, 0, 1]);
    query[38..46].copy_from_slice(&[0x11, 1, 0xee, 0xfe, 0, 0, 0, 0]);
    query[24..26].copy_from_slice(&[0, 0]);
    let sum: u32 = query[14..38].chunks(2).map(|b| u32::from(u16::from_be_bytes([b[0], b[1]]))).sum();
    let sum = !((sum & 0xffff) + (sum >> 16)) as u16;
    query[24..26].copy_from_slice(&sum.to_be_bytes());
    w.send(&query);
    let mut sent = w.sent();
    w.pass(Duration::from_millis(100));
    sent.extend(w.sent());
    assert_eq!(sent.iter().map(|f| igmp(f)).collect::<Vec<_>>(), [(0x16, group(3))]);

    drop(b);
    let sent = w.sent();
    assert_eq!(sent.last().map(|f| igmp(f)), Some((0x17, group(3))), "a queue pair that is dropped leaves");
}

#[test]
fn a_link_that_comes_up_gets_a_report_of_every_group() {
    let mut w = Line::new();
    let qp = ud(&w.pd, &w.cq);
    qp.attach_mcast(group(1), 0).unwrap();
    qp.attach_mcast(group(2), 0).unwrap();
    for _ in 0..10 {
        w.sent();
        w.pass(Duration::from_secs(1));
    }
    assert_eq!(w.sent(), Vec::<Vec<u8>>::new(), "everything has been sent");
    w.link.store(false, Ordering::Release);
    w.pass(Duration::from_millis(20));
    assert_eq!(w.sent(), Vec::<Vec<u8>>::new());
    w.link.store(true, Ordering::Release);
    w.pass(Duration::from_millis(20));
    let mut sent: Vec<_> = w.sent().iter().map(|f| igmp(f)).collect();
    sent.sort_by_key(|(_, group)| group.0);
    assert_eq!(sent, [(0x16, group(1)), (0x16, group(2))]);
}

#[test]
fn ipv6_groups_are_reported_by_mld() {
    let mut w = Line::new();
    let qp = ud(&w.pd, &w.cq);
    let group = Gid::from_ip("ff05::1:3".parse().unwrap());
    qp.attach_mcast(group, 0).unwrap();
    let sent = w.sent();
    assert_eq!(sent.len(), 1);
    assert_eq!((&sent[0][..6], &sent[0][12..14]), (&[0x33, 0x33, 0, 1, 0, 3][..], &[0x86, 0xdd][..]));
    assert_eq!((sent[0][62], &sent[0][70..86]), (131, &group.0[..]));
}

#[test]
fn attach_and_detach_refuse_what_makes_no_sense() {
    let context = embedded();
    let (pd, cq) = (context.alloc_pd().unwrap(), context.create_cq(1).unwrap());
    let qp = ud(&pd, &cq);
    for gid in [Gid::v4([10, 0, 0, 1]), Gid::default(), Gid::from_ip("fe80::1".parse().unwrap())] {
        let e = qp.attach_mcast(gid, 0).unwrap_err();
        assert_eq!(e.errno(), errno::EINVAL);
        assert!(e.to_string().contains(&gid.to_string()), "{e}");
        assert_eq!(qp.detach_mcast(gid, 0).unwrap_err().errno(), errno::EINVAL);
    }
    for ty in [QpType::Rc, QpType::Uc, QpType::Gsi] {
        let other = pd.create_qp(&QpInitAttr::new(ty, &cq, &cq)).unwrap();
        let e = other.attach_mcast(group(1), 0).unwrap_err();
        assert_eq!(e.errno(), errno::EINVAL);
        assert!(e.to_string().contains(verbs::type_name(ty)), "{e}");
        other.destroy().unwrap();
    }
    assert_eq!(qp.detach_mcast(group(1), 0).unwrap_err().errno(), errno::EINVAL, "not attached");
    qp.attach_mcast(group(1), 0).unwrap();
    assert_eq!(qp.detach_mcast(group(2), 0).unwrap_err().errno(), errno::EINVAL, "to another one");
    qp.detach_mcast(group(1), 0).unwrap();
    assert_eq!(qp.detach_mcast(group(1), 0).unwrap_err().errno(), errno::EINVAL, "not any more");
}

#[test]
fn an_attached_queue_pair_is_busy() {
    let context = embedded();
    let (pd, cq) = (context.alloc_pd().unwrap(), context.create_cq(1).unwrap());
    let qp = ud(&pd, &cq);
    qp.attach_mcast(group(1), 0).unwrap();
    qp.attach_mcast(group(2), 0).unwrap();
    let (e, qp) = qp.destroy().unwrap_err();
    assert_eq!(e.errno(), errno::EBUSY, "{e}");
    qp.detach_mcast(group(1), 0).unwrap();
    let (e, qp) = qp.destroy().unwrap_err();
    assert_eq!(e.errno(), errno::EBUSY, "{e}");
    qp.detach_mcast(group(2), 0).unwrap();
    qp.destroy().unwrap();
}

#[test]
fn limits_are_those_announced() {
    let context = embedded();
    let attr = context.query_device();
    assert_eq!(attr.max_total_mcast_qp_attach, attr.max_mcast_grp * attr.max_mcast_qp_attach);
    let (pd, cq) = (context.alloc_pd().unwrap(), context.create_cq(1).unwrap());
    let qps: Vec<Qp> = (0..=attr.max_mcast_qp_attach).map(|_| ud(&pd, &cq)).collect();
    let (last, most) = qps.split_last().unwrap();
    let group = |n: usize| Gid::v4([239, 2, (n >> 8) as u8, n as u8]);
    most.iter().for_each(|qp| qp.attach_mcast(group(0), 0).unwrap());
    assert_eq!(last.attach_mcast(group(0), 0).unwrap_err().errno(), errno::ENOMEM);
    (1..attr.max_mcast_grp).for_each(|n| last.attach_mcast(group(n), 0).unwrap());
    let e = last.attach_mcast(group(attr.max_mcast_grp), 0).unwrap_err();
    assert_eq!(e.errno(), errno::ENOMEM, "{e}");
    assert_eq!(most[0].attach_mcast(group(attr.max_mcast_grp), 0).unwrap_err().errno(), errno::ENOMEM);
    // A member that leaves makes room at once.
    last.detach_mcast(group(7), 0).unwrap();
    last.attach_mcast(group(attr.max_mcast_grp), 0).unwrap();
    drop(qps);
    let qp = ud(&pd, &cq);
    (0..attr.max_mcast_grp).for_each(|n| qp.attach_mcast(group(1000 + n), 0).unwrap());
}

/// A flow from the peer to a group.
fn to_group(w: &Wire, qp: &Qp, group: Gid) -> Flow {
    Flow { dst: group, dst_mac: Mac::multicast(&group), dqpn: Qpn::MULTICAST, ..w.flow(qp) }
}

/// Creates `n` UD queue pairs with a receive each, the i-th with wr_id i, in RTS and attached to `group`.
fn attached(w: &Wire, n: u64, group: Gid) -> Vec<Qp> {
    let qp = |i| {
        let qp = w.pd.create_qp(&QpInitAttr::ud(&w.cq, &w.cq)).unwrap();
        qp.activate_ud(QKEY).unwrap();
        qp.attach_mcast(group, 0).unwrap();
        w.post_recvs(&qp, i..i + 1, 200);
        qp
    };
    (0..n).map(qp).collect()
}

#[test]
fn u16_a_copy_for_each_queue_pair_with_the_qkey() {
    for ipv6 in [false, true] {
        let mut w = Wire::new(ipv6);
        let group = if ipv6 { Gid::from_ip("ff05::1:3".parse().unwrap()) } else { group(3) };
        let qps = attached(&w, 3, group);
        let (attr, mask) = (verbs::QpAttr { qkey: 0x22, ..Default::default() }, verbs::AttrMask::QKEY);
        qps[1].modify(&attr, mask).unwrap();
        let bystander = w.pd.create_qp(&QpInitAttr::ud(&w.cq, &w.cq)).unwrap();
        bystander.activate_ud(QKEY).unwrap();
        w.post_recvs(&bystander, 9..10, 200);
        let flow = to_group(&w, &qps[0], group);
        w.send_on(&flow, &[datagram(5, QKEY, b"to everybody")]);
        let done = w.done();
        let ids: Vec<_> = done.iter().map(|wc| (wc.wr_id, wc.status, wc.byte_len, wc.src_qp)).collect();
        assert_eq!(ids, [(0, WcStatus::Success, 52, PEER_QPN), (2, WcStatus::Success, 52, PEER_QPN)]);
        assert!(done.iter().all(|wc| wc.wc_flags == WcFlags::GRH));
        assert_eq!(w.dropped(Discard::BadQkey), 1);
        let of_each = |reason| qps.iter().map(|qp| qp.counters().discarded(reason)).collect::<Vec<_>>();
        assert_eq!(of_each(Discard::BadQkey), [0, 1, 0], "by whom it was dropped");
        let sent = frame(&flow, &datagram(5, QKEY, b"to everybody"));
        for id in [0, 2] {
            let area = w.received(id, 52);
            let ip = if ipv6 { &sent[14..54] } else { &sent[14..34] };
            assert_eq!(&area[40 - ip.len()..40], ip, "the header, with the group's address");
            assert_eq!(&area[40..], b"to everybody");
        }
        // This Q_Key belongs to another queue pair.
        w.send_on(&flow, &[datagram(6, 0x22, b"x")]);
        assert_eq!(w.done().iter().map(|wc| wc.wr_id).collect::<Vec<_>>(), [1]);
    }
}

#[test]
fn u16_one_that_drops_its_copy_keeps_nobody_from_theirs() {
    let mut w = Wire::new(false);
    let qps = attached(&w, 4, group(3));
    common::enter(&qps[0], QpState::Err);
    common::enter(&qps[1], QpState::Reset);
    w.run();
    assert_eq!(w.done().len(), 1, "flushed");
    let flow = to_group(&w, &qps[0], group(3));
    w.send_on(&flow, &[datagram(1, QKEY, b"a")]);
    assert_eq!(w.done().iter().map(|wc| wc.wr_id).collect::<Vec<_>>(), [2, 3]);
    assert_eq!(w.dropped(Discard::BadState), 2);
    w.post_recvs(&qps[3], 7..8, 200);
    w.send_on(&flow, &[datagram(2, QKEY, b"b")]);
    assert_eq!(w.done().iter().map(|wc| wc.wr_id).collect::<Vec<_>>(), [7]);
    assert_eq!(w.dropped(Discard::NoReceive), 1);
    let of_each = |reason| qps.iter().map(|qp| qp.counters().discarded(reason)).collect::<Vec<_>>();
    assert_eq!(of_each(Discard::BadState), [2, 2, 0, 0]);
    assert_eq!(of_each(Discard::NoReceive), [0, 0, 1, 0]);
}

// A member counts a group datagram, and a switch's ECN mark on it, like a datagram to its own number.
#[test]
fn a_group_datagram_counts_as_one_by_number() {
    let mut w = Wire::new(false);
    let qps = attached(&w, 2, group(3));
    w.post_recvs(&qps[0], 2..3, 200);
    let marked = |flow| Flow { traffic_class: 3, ..flow };
    let counted = |qp: &Qp| {
        let counters = qp.counters();
        [Counter::RxFrames, Counter::RxBytes, Counter::MarksReceived].map(|c| counters.get(c))
    };
    let (own, to_all) = (marked(w.flow(&qps[0])), marked(to_group(&w, &qps[0], group(3))));
    w.send_on(&own, &[datagram(1, QKEY, b"a")]);
    let one = counted(&qps[0]);
    assert_eq!((one[0], one[2]), (1, 1));
    w.send_on(&to_all, &[datagram(2, QKEY, b"b")]);
    assert_eq!(w.done().len(), 3);
    assert_eq!(counted(&qps[0]), one.map(|n| 2 * n));
    assert_eq!(counted(&qps[1]), one);
}

#[test]
fn u17_a_group_that_was_left() {
    let mut w = Wire::new(false);
    let qps = attached(&w, 2, group(3));
    let flow = to_group(&w, &qps[0], group(3));
    qps[0].detach_mcast(group(3), 0).unwrap();
    w.send_on(&flow, &[datagram(1, QKEY, b"a")]);
    assert_eq!(w.done().iter().map(|wc| wc.wr_id).collect::<Vec<_>>(), [1]);
    qps[1].detach_mcast(group(3), 0).unwrap();
    w.send_on(&flow, &[datagram(2, QKEY, b"b")]);
    assert_eq!((w.done().len(), w.dropped(Discard::NotOurMulticast)), (0, 1));
    // The queue pair's own number still works.
    w.send(&qps[0], &[datagram(3, QKEY, b"c")]);
    assert_eq!(w.done().iter().map(|wc| wc.wr_id).collect::<Vec<_>>(), [0]);
}

#[test]
fn u17_packets_that_no_group_takes() {
    let mut w = Wire::new(false);
    let qps = attached(&w, 1, group(3));
    let flow = to_group(&w, &qps[0], group(3));
    let others = [
        (Flow { dst: group(4), ..flow }, Discard::NotOurMulticast),
        (Flow { dst: w.gid, ..flow }, Discard::NotOurMulticast), // the group's number, the local address
        (Flow { dqpn: qps[0].qp_num(), ..flow }, Discard::NotOurMulticast), // the reverse
        (Flow { src: w.gid, ..flow }, Discard::OwnMulticast),    // the link sends the device's own frame back
    ];
    for (flow, reason) in others {
        let before = w.dropped(reason);
        w.send_on(&flow, &[datagram(1, QKEY, b"a")]);
        assert_eq!(w.dropped(reason), before + 1, "{reason}");
    }
    w.send_on(&flow, &[pkt(Opcode::RC_SEND_ONLY, 1).len(8)]);
    assert_eq!(w.dropped(Discard::WrongTransport), 1);
    let mut bytes = frame(&flow, &datagram(1, QKEY, b"a"));
    let at = bytes.len() - 5;
    bytes[at] ^= 1;
    w.inject(&bytes);
    w.run();
    assert_eq!(w.dropped(Discard::BadIcrc), 1);
    assert!(w.done().is_empty());
}

/// A device with attached queue pairs, the i-th on shard i with receives from 100 * i on.
struct Member {
    context: Context,
    cq: Cq,
    mr: Mr,
    pd: Pd,
    qps: Vec<Qp>,
}

impl Member {
    fn new(port: Box<dyn Port>, last: u8, shards: usize, block: bool) -> Self {
        Self::open(DeviceConfig::new(port).addr([192, 0, 2, last], 24), shards, block)
    }

    fn open(config: DeviceConfig, shards: usize, block: bool) -> Self {
        let context = Context::open(config.shards(shards).drive(Drive::Embedded)).unwrap();
        let (pd, cq) = (context.alloc_pd().unwrap(), context.create_cq(256).unwrap());
        let mr = pd.reg_mr(4096, all_rights()).unwrap();
        let qp = |i: usize| {
            let mut init = QpInitAttr::ud(&cq, &cq).on_shard(i);
            init.block_self_mcast_lb = block;
            let qp = pd.create_qp(&init).unwrap();
            assert_eq!(qp.query().unwrap().1.block_self_mcast_lb, block);
            qp.activate_ud(QKEY).unwrap();
            qp.attach_mcast(group(3), 0).unwrap();
            for n in 0..4 {
                qp.post_recv(&[RecvWr::new(100 * i as u64 + n, &[mr.sge(0..1024).unwrap()])]).unwrap();
            }
            qp
        };
        let qps = (0..shards).map(qp).collect();
        Self { context, cq, mr, pd, qps }
    }

    /// Sends to the group from one of the queue pairs.
    fn send_from(&self, qp: usize, sgid_index: u8) {
        let ah = self.pd.create_ah(&ah_attr_to(group(3), sgid_index)).unwrap();
        self.mr.write(2048, b"hello").unwrap();
        let list = [self.mr.sge(2048..2053).unwrap()];
        self.qps[qp].post_send(&[SendWr::send(7777, &list).to(&ah, Qpn::MULTICAST, QKEY)]).unwrap();
    }

    /// The completed receives, sorted, after `n` have arrived and a while has passed.
    fn received(&self, others: &Context, n: usize) -> Vec<u64> {
        let (mut ids, start) = (Vec::new(), std::time::Instant::now());
        let mut wc = [Wc::default(); 16];
        let mut after = 0;
        while after < 50 {
            assert!(start.elapsed() < PATIENCE, "{ids:?} of {n}");
            pump(others);
            pump(&self.context);
            let got = self.cq.poll(&mut wc).unwrap();
            ids.extend(wc[..got].iter().map(|wc| wc.wr_id));
            after += usize::from(ids.len() >= n);
        }
        ids.sort_unstable();
        ids
    }
}

// Whichever queue a frame arrives on, each attached queue pair of each shard gets one copy.
#[test]
fn u16_queue_pairs_on_every_shard() {
    for (shards, arrives_on) in [(1, 0), (2, 0), (2, 1), (16, 3), (16, 15)] {
        let one = PortOptions::default();
        let many = PortOptions { queues: shards, ..PortOptions::default() };
        let (a, b) = pair_with(&one, &many, Arc::new(move |_, _, _| arrives_on));
        let (a, b) = (Member::new(a, 1, 1, true), Member::new(b, 2, shards, false));
        a.send_from(0, 1);
        let all: Vec<u64> = (0..shards as u64).map(|i| 100 * i).collect();
        assert_eq!(b.received(&a.context, shards), all, "{shards} shards, arriving on {arrives_on}");
        assert_eq!(b.context.counters().drops(), 0);
        assert_no_completion(&a.context, &a.cq);
    }
}

// An attached sender gets a copy like the others, unless it was created to get no copies of its own messages.
#[test]
fn u16_copies_of_ones_own() {
    for block in [false, true] {
        let options = PortOptions { queues: 3, ..PortOptions::default() };
        let (a, b) = pair_with(&options, &options, Arc::new(|from, _, _| from));
        let (a, b) = (Member::new(a, 1, 3, block), Member::new(b, 2, 3, block));
        a.send_from(1, 1);
        let want: &[u64] = if block { &[0, 200] } else { &[0, 100, 200] };
        assert_eq!(a.received(&b.context, want.len()), want, "blocked: {block}");
        assert_eq!(b.received(&a.context, 3), [0, 100, 200], "another device's copies are not its business");
    }
}

// Over the sockets of a host, the host's kernel joins the group and copies to each device, including what this host sends. The sender gets
// no second copy.
#[test]
#[cfg_attr(miri, ignore = "it opens sockets")]
fn u16_over_udp_the_host_is_the_member() {
    let open = |last: u8, block| {
        let port: PortSpec = format!("udp:127.47.93.{last}").parse().unwrap();
        Member::open(DeviceConfig::new(port), 2, block)
    };
    let (a, b) = (open(20, false), open(21, true));
    a.send_from(1, 0);
    assert_eq!(a.received(&b.context, 2), [0, 100]);
    assert_eq!(b.received(&a.context, 2), [0, 100], "another device's copies are not its business");
    assert_eq!(a.context.counters().discarded(Discard::OwnMulticast), 1);
    b.send_from(0, 0);
    assert_eq!(b.received(&a.context, 1), [101]);
    assert_eq!(a.received(&b.context, 2), [1, 101]);
    // When the last queue pair leaves, the host's membership ends.
    b.qps.iter().for_each(|qp| qp.detach_mcast(group(3), 0).unwrap());
    a.send_from(0, 0);
    assert_eq!(a.received(&b.context, 2), [2, 102]);
    assert_no_completion(&b.context, &b.cq);
    assert_eq!(b.context.counters().discarded(Discard::NotOurMulticast), 0, "the kernel has dropped it");
    b.qps[1].attach_mcast(group(3), 0).unwrap();
    a.send_from(0, 0);
    assert_eq!(b.received(&a.context, 1), [102]);
}

// A loopback port returns every frame, but the member gets no second copy.
#[test]
fn u16_one_copy_on_a_loopback_port() {
    let port = PortSpec::Loopback.open(&PortOptions::default()).unwrap();
    let m = Member::new(port, 1, 1, false);
    m.send_from(0, 1);
    assert_eq!(take(&m.context, &m.cq, 1)[0].wr_id, 0);
    assert_no_completion(&m.context, &m.cq);
    assert_eq!(m.context.counters().discarded(Discard::OwnMulticast), 1);
    assert_eq!(m.context.counters().get(Counter::RequestsSent), 1);
}

// Groups change while datagrams flow on other threads: copies arrive from attach on, and none arrives after detach has returned.
#[test]
fn u16_u17_groups_change_under_load() {
    let port = PortSpec::Loopback.open(&PortOptions { queues: 2, ..PortOptions::default() }).unwrap();
    let config = DeviceConfig::new(port).addr([192, 0, 2, 1], 24).shards(2);
    let context = Context::open(config.drive(Drive::Dedicated { cores: vec![] })).unwrap();
    let (pd, cq) = (context.alloc_pd().unwrap(), context.create_cq(256).unwrap());
    let sends = context.create_cq(256).unwrap();
    let mr = pd.reg_mr(1024, all_rights()).unwrap();
    let from = pd.create_qp(&QpInitAttr::ud(&sends, &sends).on_shard(0)).unwrap();
    from.activate_ud(QKEY).unwrap();
    let ah = pd.create_ah(&ah_attr_to(group(3), 1)).unwrap();
    let qps: Vec<Qp> = (0..2)
        .map(|shard| {
            let qp = pd.create_qp(&QpInitAttr::ud(&cq, &cq).on_shard(shard)).unwrap();
            qp.activate_ud(QKEY).unwrap();
            for _ in 0..100 {
                qp.post_recv(&[RecvWr::new(shard as u64, &[mr.sge(0..1024).unwrap()])]).unwrap();
            }
            qp
        })
        .collect();
    let mut wc = [Wc::default(); 16];
    let send_from = || {
        let mut wc = [Wc::default(); 16];
        from.post_send(&[SendWr::send(1, &[]).signaled().to(&ah, Qpn::MULTICAST, QKEY)]).unwrap();
        let start = std::time::Instant::now();
        while sends.poll(&mut wc).unwrap() == 0 {
            assert!(start.elapsed() < PATIENCE);
            std::thread::yield_now();
        }
    };
    for round in 0..6 {
        let which = round % 2;
        qps[which].attach_mcast(group(3), 0).unwrap();
        let start = std::time::Instant::now();
        loop {
            send_from();
            let n = cq.poll(&mut wc).unwrap();
            assert!(wc[..n].iter().all(|wc| wc.wr_id == which as u64 && wc.status == WcStatus::Success));
            let list = [mr.sge(0..1024).unwrap()];
            (0..n).for_each(|_| qps[which].post_recv(&[RecvWr::new(which as u64, &list)]).unwrap());
            if n > 0 {
                break;
            }
            assert!(start.elapsed() < PATIENCE);
        }
        (0..2).for_each(|_| send_from());
        qps[which].detach_mcast(group(3), 0).unwrap();
        while cq.poll(&mut wc).unwrap() > 0 {} // what came before
        (0..3).for_each(|_| send_from());
        assert_eq!(cq.poll(&mut wc).unwrap(), 0, "round {round}");
    }
}
