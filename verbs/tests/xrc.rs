//! XRC through the public API, over a cable between two devices: A has the initiators, B the domain.

use crate::common::options;
use crate::link::{self, Cable, Side};
use stack::wire::{Kind, Transport};
use verbs::errno;
use verbs::{
    AsyncEvent, AttrMask, Cq, EventElement, Qp, QpAttr, QpInitAttr, QpState, QpType, Qpn, RcEndpoint,
    RcOptions, RecvWr, SendWr, Sge, Srq, SrqAttr, SrqAttrMask, SrqInitAttr, WcOpcode, WcStatus, XrcTarget,
    Xrcd, XrcdInitAttr, XrcdOflags, attr_to,
};

fn initiator(a: &Side) -> Qp {
    a.pd.create_qp(&QpInitAttr::xrc_ini(&a.cq)).unwrap()
}

fn connect(ini: &Qp, target: &XrcTarget, options: &RcOptions) {
    target.connect(&ini.endpoint(1).unwrap(), options).unwrap();
    ini.connect_rc(&target.endpoint(1).unwrap(), options).unwrap();
}

fn srq(b: &Side, xrcd: &Xrcd, cq: &Cq) -> Srq {
    b.pd.create_xrc_srq(&SrqInitAttr::new(64, 2), xrcd, cq).unwrap()
}

/// A connected initiator and target, with a domain and one of its shared receive queues.
struct Pair {
    ini: Qp,
    target: XrcTarget,
    srq: Srq,
    xrcd: Xrcd,
}

impl Pair {
    fn new(link: &Cable, a: &Side, b: &Side) -> Self {
        let xrcd = link.b.open_xrcd(&XrcdInitAttr::anonymous()).unwrap();
        let (ini, target) = (initiator(a), xrcd.create_qp(None).unwrap());
        connect(&ini, &target, &options());
        Self { ini, target, srq: srq(b, &xrcd, &b.cq), xrcd }
    }
}

fn gone(qpn: Qpn, link: &Cable, a: &Side, ini: &Qp, srqn: u32) {
    ini.post_send(&[SendWr::send(77, &[]).remote_srqn(srqn)]).unwrap();
    let wc = link.take(&a.cq, 1)[0];
    assert_eq!((wc.wr_id, wc.status), (77, WcStatus::RetryExcErr), "{qpn:?}");
}

/// Options with few and short retries.
fn hasty() -> RcOptions {
    options().timeout(10).retry_cnt(2)
}

#[test]
fn x01_a_send_goes_to_the_queue_that_it_names() {
    const LEN: usize = 40_000;
    let link = Cable::recorded("x01");
    let (number, target, ini);
    {
        let (a, b) = (Side::new(&link.a), Side::new(&link.b));
        let p = Pair::new(&link, &a, &b);
        let other = srq(&b, &p.xrcd, &b.cq);
        (number, target, ini) = (p.srq.srq_num(), p.target.qp_num(), p.ini.qp_num());
        a.mr.write(0, &[0x5a; LEN]).unwrap();
        other.post_recv(&[RecvWr::new(9, &[b.mr.sge(100_000..100_000 + LEN).unwrap()])]).unwrap();
        let list = [b.mr.sge(0..10_001).unwrap(), b.mr.sge(20_000..20_000 + LEN).unwrap()];
        p.srq.post_recv(&[RecvWr::new(1, &list), RecvWr::new(2, &[])]).unwrap();
        let whole = [a.mr.sge(0..LEN).unwrap()];
        let wrs = [
            SendWr::send(5, &whole).remote_srqn(number).signaled(),
            SendWr::send_with_imm(6, &[], 0xfeed).remote_srqn(number).signaled().solicited(),
        ];
        p.ini.post_send(&wrs).unwrap();
        assert!(link.take(&a.cq, 2).iter().all(|wc| wc.is_ok()));
        let done = link.take(&b.cq, 2);
        assert_eq!((done[0].wr_id, done[0].byte_len, done[0].opcode), (1, LEN as u32, WcOpcode::Recv));
        assert_eq!((done[1].wr_id, done[1].imm_data()), (2, Some(0xfeed)));
        for wc in done {
            assert_eq!((wc.status, wc.qp_num, wc.srq_num()), (WcStatus::Success, target, Some(number)));
        }
        let parts = [b.bytes(0, 10_001), b.bytes(20_000, LEN - 10_001)].concat();
        assert!(parts == [0x5a; LEN], "the list is filled in order");
        assert_eq!((p.srq.waiting().unwrap(), other.waiting().unwrap()), (0, 1));
    }
    let seen = link.close();
    let requests: Vec<_> = seen.iter().filter(|p| p.dqpn == target.get()).collect();
    assert!(requests.len() > 10);
    for p in &requests {
        assert_eq!((p.row.transport, p.row.request, p.srqn), (Transport::Xrc, true, Some(number)), "{p:?}");
    }
    let answers: Vec<_> = seen.iter().filter(|p| p.dqpn == ini.get()).collect();
    assert!(!answers.is_empty());
    for p in &answers {
        assert_eq!((p.row.transport, p.row.kind, p.srqn), (Transport::Xrc, Kind::Ack, None), "{p:?}");
        assert_eq!(p.syndrome, Some(0x1f), "no credits: {p:?}");
    }
}

#[test]
fn x01_write_read_and_atomics_in_the_queues_domain() {
    let link = Cable::new(1);
    let (a, b, b2) = (Side::new(&link.a), Side::new(&link.b), Side::new(&link.b));
    let p = Pair::new(&link, &a, &b);
    // A second queue of the same XRC domain, in another protection domain.
    let srq2 = srq(&b2, &p.xrcd, &b2.cq);
    let (n, n2) = (p.srq.srq_num(), srq2.srq_num());
    let at = |side: &Side, from: usize, to: usize| -> (u64, u32) {
        (side.mr.sge(from..to).unwrap().addr, side.mr.rkey())
    };
    let local = |from: usize, to: usize| -> [Sge; 1] { [a.mr.sge(from..to).unwrap()] };
    let data: Vec<u8> = (0..30_000u32).map(|i| (i % 251) as u8).collect();
    a.mr.write(0, &data).unwrap();
    let (src, word) = (local(0, 30_000), local(40_000, 40_008));
    let ((w, k), (w2, k2)) = (at(&b, 0, 30_000), at(&b2, 8, 30_008));
    let (back, back2) = (local(50_000, 80_000), local(100_000, 130_000));
    p.srq.post_recv(&[RecvWr::new(1, &[])]).unwrap();
    let wrs = [
        SendWr::write(1, &src, w, k).remote_srqn(n).signaled(),
        SendWr::write_with_imm(2, &src[..], w2, k2, 7).remote_srqn(n2).signaled(),
        SendWr::read(3, &back, w, k).remote_srqn(n).signaled(),
        SendWr::read(4, &back2, w2, k2).remote_srqn(n2).signaled(),
        SendWr::fetch_and_add(5, &word, w, k, 5).remote_srqn(n).fenced().signaled(),
        SendWr::cmp_and_swp(6, &word, w2, k2, 1, 2).remote_srqn(n2).signaled(),
    ];
    srq2.post_recv(&[RecvWr::new(2, &[])]).unwrap();
    p.ini.post_send(&wrs).unwrap();
    let done = link.take(&a.cq, 6);
    assert!(done.iter().all(|wc| wc.is_ok()), "{done:?}");
    let wc = link.take(&b2.cq, 1)[0];
    assert_eq!((wc.wr_id, wc.opcode, wc.byte_len), (2, WcOpcode::RecvRdmaWithImm, 30_000));
    assert_eq!((wc.imm_data(), wc.srq_num(), wc.qp_num), (Some(7), Some(n2), p.target.qp_num()));
    assert!(a.bytes(50_000, 30_000) == data && a.bytes(100_000, 30_000) == data);
    let first = u64::from_ne_bytes(data[..8].try_into().unwrap());
    assert_eq!(b.bytes(0, 8), first.wrapping_add(5).to_ne_bytes());
    assert_eq!(b2.bytes(8, 8), &data[..8], "the compare did not match");
    assert_eq!(p.srq.waiting().unwrap(), 1, "WRITE, READ and atomics take no receive request");
    // A key of the other queue's protection domain.
    p.ini.post_send(&[SendWr::write(7, &src, w2, k2).remote_srqn(n)]).unwrap();
    assert_eq!(link.take(&a.cq, 1)[0].status, WcStatus::RemAccessErr);
    assert_eq!(p.target.state(), QpState::Err);
}

#[test]
fn x02_an_unknown_queue_is_refused() {
    let link = Cable::recorded("x02");
    {
        let (a, b) = (Side::new(&link.a), Side::new(&link.b));
        let p = Pair::new(&link, &a, &b);
        let elsewhere = link.b.open_xrcd(&XrcdInitAttr::anonymous()).unwrap();
        let foreign = srq(&b, &elsewhere, &b.cq);
        let basic = b.pd.create_srq(&SrqInitAttr::new(4, 1)).unwrap();
        foreign.post_recv(&[RecvWr::new(1, &[])]).unwrap();
        basic.post_recv(&[RecvWr::new(1, &[])]).unwrap();
        for number in [0, 0xff_ffff, foreign.srq_num(), basic.srq_num()] {
            let (ini, target) = (initiator(&a), p.xrcd.create_qp(None).unwrap());
            connect(&ini, &target, &options());
            ini.post_send(&[SendWr::send(1, &[]).remote_srqn(number)]).unwrap();
            assert_eq!(link.take(&a.cq, 1)[0].status, WcStatus::RemInvReqErr);
            assert_eq!((target.state(), ini.state().unwrap()), (QpState::Err, QpState::Err));
            let of = EventElement::Qp(target.qp_num());
            assert_eq!(link.event_of_b(), Some((AsyncEvent::QpAccessErr, of)));
            assert_eq!(link.event_of_b(), Some((AsyncEvent::QpLastWqeReached, of)));
        }
        assert_eq!((foreign.waiting().unwrap(), basic.waiting().unwrap()), (1, 1));
        link.assert_no_completion(&b.cq);
    }
    let naks = link.close().iter().filter(|p| p.syndrome == Some(0x61)).count();
    assert_eq!(naks, 4);
}

#[test]
fn x02_a_queue_destroyed_in_mid_message() {
    let link = Cable::new(1);
    let (a, b) = (Side::new(&link.a), Side::new(&link.b));
    let p = Pair::new(&link, &a, &b);
    let number = p.srq.srq_num();
    p.srq.post_recv(&[RecvWr::new(1, &[b.mr.sge(0..256 << 10).unwrap()])]).unwrap();
    let whole = [a.mr.sge(0..256 << 10).unwrap()];
    p.ini.post_send(&[SendWr::send(1, &whole).remote_srqn(number)]).unwrap();
    link.until("the first packet", || p.srq.waiting().unwrap() == 0);
    p.srq.destroy().unwrap();
    assert_eq!(link.take(&a.cq, 1)[0].status, WcStatus::RemInvReqErr);
    link.assert_no_completion(&b.cq);
    b.cq.destroy().unwrap();
}

#[test]
fn x03_messages_to_two_queues_take_turns() {
    let link = Cable::new(3);
    let (a, b) = (Side::new(&link.a), Side::new(&link.b));
    let xrcd = link.b.open_xrcd(&XrcdInitAttr::anonymous()).unwrap();
    let (cq1, cq2) = (link.b.create_cq(64).unwrap(), link.b.create_cq(64).unwrap());
    let (one, two) = (srq(&b, &xrcd, &cq1), srq(&b, &xrcd, &cq2));
    let targets: Vec<_> = (0..3)
        .map(|shard| {
            let (ini, target) = (initiator(&a), xrcd.create_qp(Some(shard)).unwrap());
            connect(&ini, &target, &options());
            assert_eq!(target.shard(), Some(shard));
            (ini, target)
        })
        .collect();
    for (ini, target) in &targets {
        a.mr.write(0, &(0..20).collect::<Vec<u8>>()).unwrap();
        for id in 0..10 {
            let at = id as usize * 9000;
            one.post_recv(&[RecvWr::new(id, &[b.mr.sge(at..at + 9000).unwrap()])]).unwrap();
            two.post_recv(&[RecvWr::new(100 + id, &[b.mr.sge(100_000 + at..109_000 + at).unwrap()])])
                .unwrap();
        }
        for i in 0..20 {
            let srqn = if i % 2 == 0 { one.srq_num() } else { two.srq_num() };
            // Several packets; messages differ in their first byte.
            let list = [a.mr.sge(i..i + 1).unwrap(), a.mr.sge(1000..9000).unwrap()];
            ini.post_send(&[SendWr::send(i as u64, &list).remote_srqn(srqn).signaled()]).unwrap();
        }
        assert!(link.take(&a.cq, 20).iter().all(|wc| wc.is_ok()));
        for (cq, base, first, number) in [(&cq1, 0, 0, one.srq_num()), (&cq2, 100, 1, two.srq_num())] {
            for (k, wc) in link.take(cq, 10).iter().enumerate() {
                assert_eq!((wc.wr_id, wc.byte_len), (base + k as u64, 8001));
                assert_eq!((wc.qp_num, wc.srq_num()), (target.qp_num(), Some(number)));
                let at = base as usize * 1000 + k * 9000;
                assert_eq!(b.bytes(at, 1), [(2 * k + first) as u8]);
            }
        }
    }
    // Several targets, on several shards, consume from one queue.
    for id in 0..30 {
        one.post_recv(&[RecvWr::new(id, &[])]).unwrap();
    }
    for id in 0..30 {
        let (ini, _) = &targets[id % 3];
        ini.post_send(&[SendWr::send(0, &[]).remote_srqn(one.srq_num()).signaled()]).unwrap();
        link.take(&a.cq, 1);
        let wc = link.take(&cq1, 1)[0];
        assert_eq!((wc.wr_id, wc.qp_num), (id as u64, targets[id % 3].1.qp_num()));
    }
}

#[test]
fn an_empty_queue_is_not_ready_and_a_low_one_says_so() {
    let link = Cable::new(1);
    let (a, b) = (Side::new(&link.a), Side::new(&link.b));
    let p = Pair::new(&link, &a, &b);
    let number = p.srq.srq_num();
    let send = |id| p.ini.post_send(&[SendWr::send(id, &[]).remote_srqn(number).signaled()]).unwrap();
    send(1);
    link.until("an RNR NAK", || link.b.counters().get(verbs::Counter::RnrNaksSent) > 0);
    p.srq.modify(&SrqAttr { srq_limit: 2, ..SrqAttr::default() }, SrqAttrMask::LIMIT).unwrap();
    p.srq.post_recv(&[RecvWr::new(1, &[]), RecvWr::new(2, &[]), RecvWr::new(3, &[])]).unwrap();
    assert_eq!((link.take(&a.cq, 1)[0].wr_id, link.take(&b.cq, 1)[0].wr_id), (1, 1));
    assert_eq!(link.event_of_b(), None);
    // The queue is enlarged while a target consumes from it.
    p.srq.modify(&SrqAttr { max_wr: 200, ..SrqAttr::default() }, SrqAttrMask::MAX_WR).unwrap();
    send(2);
    assert_eq!((link.take(&a.cq, 1)[0].wr_id, link.take(&b.cq, 1)[0].wr_id), (2, 2));
    assert_eq!(link.event_of_b(), Some((AsyncEvent::SrqLimitReached, EventElement::Srq(number))));
}

#[test]
fn a_request_names_a_queue_and_only_initiators_do() {
    let link = Cable::new(1);
    let (a, b) = (Side::new(&link.a), Side::new(&link.b));
    let p = Pair::new(&link, &a, &b);
    let refused = |wr: SendWr<'_>| {
        let e = p.ini.post_send(&[wr]).unwrap_err();
        assert_eq!((e.errno(), e.bad_wr), (errno::EINVAL, 0), "{e}");
    };
    refused(SendWr::send(1, &[]));
    refused(SendWr::send(1, &[]).remote_srqn(0x100_0000));
    let e = p.ini.post_recv(&[RecvWr::new(1, &[])]).unwrap_err();
    assert_eq!(e.errno(), errno::EINVAL, "{e}");
    let (send, mut recv) = p.ini.split().unwrap();
    assert_eq!(recv.post_recv(&[RecvWr::new(1, &[])]).unwrap_err().errno(), errno::EINVAL);
    drop((send, recv));
    let (rc, _peer) = link::rc_to(&a, &b, &QpInitAttr::rc(&b.cq, &b.cq), &options());
    let e = rc.post_send(&[SendWr::send(1, &[]).remote_srqn(p.srq.srq_num())]).unwrap_err();
    assert_eq!(e.errno(), errno::EINVAL, "{e}");
    // Inline data follows the number of the queue in the request.
    p.srq.post_recv(&[RecvWr::new(1, &[b.mr.sge(0..64).unwrap()])]).unwrap();
    let wr = SendWr::send(2, &[]).inline(b"behind").remote_srqn(p.srq.srq_num()).signaled();
    p.ini.post_send(&[wr]).unwrap();
    assert_eq!((link.take(&b.cq, 1)[0].byte_len, b.bytes(0, 6)), (6, b"behind".to_vec()));
    assert!(link.take(&a.cq, 1)[0].is_ok());
}

#[test]
fn what_does_not_go_together_is_refused() {
    let link = Cable::new(1);
    let (a, b) = (Side::new(&link.a), Side::new(&link.b));
    let p = Pair::new(&link, &a, &b);
    let basic = b.pd.create_srq(&SrqInitAttr::new(4, 1)).unwrap();
    let refused = |init: QpInitAttr<'_>| {
        let e = b.pd.create_qp(&init).unwrap_err();
        assert_eq!(e.errno(), errno::EINVAL, "{e}");
    };
    refused(QpInitAttr::rc(&b.cq, &b.cq).srq(&p.srq));
    refused(QpInitAttr::new(QpType::XrcTgt, &b.cq, &b.cq));
    refused(QpInitAttr::xrc_ini(&b.cq).srq(&basic));
    let e = a.pd.create_xrc_srq(&SrqInitAttr::new(4, 1), &p.xrcd, &a.cq).unwrap_err();
    assert_eq!(e.errno(), errno::EINVAL, "the domain is another device's: {e}");
    let e = b.pd.create_xrc_srq(&SrqInitAttr::new(4, 1), &p.xrcd, &a.cq).unwrap_err();
    assert_eq!(e.errno(), errno::EINVAL, "the completion queue is another device's: {e}");
    let e = p.xrcd.create_qp(Some(1)).unwrap_err();
    assert_eq!(e.errno(), errno::EINVAL, "{e}");
}

#[test]
fn s34_a_domain_in_use_is_busy() {
    let link = Cable::new(1);
    let (a, b) = (Side::new(&link.a), Side::new(&link.b));
    let Pair { ini, target, srq, xrcd } = Pair::new(&link, &a, &b);
    let (e, xrcd) = xrcd.close().unwrap_err();
    assert_eq!(e.errno(), errno::EBUSY, "{e}");
    target.destroy().unwrap();
    let (e, xrcd) = xrcd.close().unwrap_err();
    assert_eq!(e.errno(), errno::EBUSY, "the shared receive queue is left: {e}");
    let Side { cq, mr, pd } = b;
    mr.dereg().unwrap();
    let (e, cq) = cq.destroy().unwrap_err();
    assert_eq!(e.errno(), errno::EBUSY, "{e}");
    let (e, pd) = pd.dealloc().unwrap_err();
    assert_eq!(e.errno(), errno::EBUSY, "{e}");
    srq.destroy().unwrap();
    xrcd.close().unwrap();
    cq.destroy().unwrap();
    pd.dealloc().unwrap();
    drop((ini, a));
    link.close();
}

#[test]
fn domains_are_shared_by_name_or_by_handle() {
    let link = Cable::new(1);
    let (a, b) = (Side::new(&link.a), Side::new(&link.b));
    let existing = XrcdInitAttr { name: Some("jobs"), create: false, exclusive: false };
    let e = link.b.open_xrcd(&existing).unwrap_err();
    assert_eq!(e.errno(), errno::ENOENT, "{e}");
    let e = link.b.open_xrcd(&XrcdInitAttr { name: None, ..existing }).unwrap_err();
    assert_eq!(e.errno(), errno::ENOENT, "{e}");
    let first = link.b.open_xrcd(&XrcdInitAttr::named("jobs")).unwrap();
    let exclusive = XrcdInitAttr { exclusive: true, ..XrcdInitAttr::named("jobs") };
    let e = link.b.open_xrcd(&exclusive).unwrap_err();
    assert_eq!(e.errno(), errno::EEXIST, "{e}");
    let second = link.b.open_xrcd(&existing).unwrap();
    let third = second.open_again();
    // A target of one open and a queue of another; a second handle through a third.
    let (ini, target) = (initiator(&a), first.create_qp(None).unwrap());
    connect(&ini, &target, &options());
    let queue = srq(&b, &second, &b.cq);
    queue.post_recv(&[RecvWr::new(1, &[])]).unwrap();
    ini.post_send(&[SendWr::send(1, &[]).remote_srqn(queue.srq_num()).signaled()]).unwrap();
    assert_eq!(link.take(&b.cq, 1)[0].wr_id, 1);
    let opened = third.open_qp(target.qp_num()).unwrap();
    assert_eq!((opened.qp_num(), opened.state()), (target.qp_num(), QpState::Rtr));
    target.destroy().unwrap();
    assert_eq!(opened.query().unwrap().qp_state, QpState::Rtr, "one handle is left");
    let qpn = opened.qp_num();
    opened.destroy().unwrap();
    assert_eq!(third.open_qp(qpn).unwrap_err().errno(), errno::EINVAL);
    first.close().unwrap();
    third.close().unwrap();
    queue.destroy().unwrap();
    second.close().unwrap();
    let e = link.b.open_xrcd(&existing).unwrap_err();
    assert_eq!(e.errno(), errno::ENOENT, "the last open is gone: {e}");
    link.b.open_xrcd(&exclusive).unwrap();
}

#[test]
fn a_receive_only_queue_pair_outlives_its_maker() {
    let link = Cable::new(2);
    let (a, b) = (Side::new(&link.a), Side::new(&link.b));
    let maker = link.b.open_xrcd(&XrcdInitAttr::named("shared")).unwrap();
    let user = link.b.open_xrcd(&XrcdInitAttr::named("shared")).unwrap();
    let queue = srq(&b, &user, &b.cq);
    let ini = initiator(&a);
    let qpn = maker.accept_xrc(&ini.endpoint(1).unwrap(), &options()).unwrap();
    let gid = link.b.query_gid(1, 1).unwrap();
    ini.connect_rc(&RcEndpoint { gid, qpn, psn: ini.first_psn() }, &hasty()).unwrap();
    let attr = user.query_xrc_rcv_qp(qpn).unwrap();
    assert_eq!((attr.qp_state, attr.dest_qp_num), (QpState::Rtr, ini.qp_num().get()));
    let number = queue.srq_num();
    let send = |id: u64| {
        queue.post_recv(&[RecvWr::new(id, &[])]).unwrap();
        ini.post_send(&[SendWr::send(id, &[]).remote_srqn(number).signaled()]).unwrap();
        assert!(link.take(&a.cq, 1)[0].is_ok());
        let wc = link.take(&b.cq, 1)[0];
        assert_eq!((wc.wr_id, wc.qp_num, wc.srq_num()), (id, qpn, Some(number)));
    };
    send(1);
    maker.close().unwrap();
    send(2);
    assert_eq!(link.b.try_get_async_event(), None, "its events, COMM_EST too, go to the log");
    queue.destroy().unwrap();
    user.close().unwrap();
    // With the last reference the queue pair is gone.
    gone(qpn, &link, &a, &ini, number);
}

#[test]
fn a_failed_receive_only_queue_pair_lets_retries_run_out() {
    let link = Cable::new(1);
    let (a, b) = (Side::new(&link.a), Side::new(&link.b));
    let xrcd = link.b.open_xrcd(&XrcdInitAttr::anonymous()).unwrap();
    let queue = srq(&b, &xrcd, &b.cq);
    let ini = initiator(&a);
    let qpn = xrcd.accept_xrc(&ini.endpoint(1).unwrap(), &options()).unwrap();
    let gid = link.b.query_gid(1, 1).unwrap();
    ini.connect_rc(&RcEndpoint { gid, qpn, psn: ini.first_psn() }, &hasty()).unwrap();
    queue.post_recv(&[RecvWr::new(1, &[])]).unwrap();
    let (attr, mask) = attr_to(QpState::Err);
    xrcd.modify_xrc_rcv_qp(qpn, &attr, mask).unwrap();
    assert_eq!(xrcd.query_xrc_rcv_qp(qpn).unwrap().qp_state, QpState::Err);
    gone(qpn, &link, &a, &ini, queue.srq_num());
    assert_eq!((queue.waiting().unwrap(), link.b.try_get_async_event()), (1, None));
    link.assert_no_completion(&b.cq);
}

#[test]
fn registrations_keep_a_receive_only_queue_pair() {
    let link = Cable::new(1);
    let a = Side::new(&link.a);
    let ini = initiator(&a);
    let one = link.b.open_xrcd(&XrcdInitAttr::named("r")).unwrap();
    let two = link.b.open_xrcd(&XrcdInitAttr::named("r")).unwrap();
    let other = link.b.open_xrcd(&XrcdInitAttr::anonymous()).unwrap();
    let qpn = one.accept_xrc(&ini.endpoint(1).unwrap(), &options()).unwrap();
    let unknown = |r: Result<(), verbs::VerbsError>| {
        let e = r.unwrap_err();
        assert_eq!(e.errno(), errno::EINVAL, "{e}");
    };
    unknown(other.reg_xrc_rcv_qp(qpn));
    unknown(other.query_xrc_rcv_qp(qpn).map(drop));
    unknown(other.modify_xrc_rcv_qp(qpn, &QpAttr::default(), AttrMask::empty()));
    unknown(two.unreg_xrc_rcv_qp(qpn));
    unknown(one.open_qp(qpn).map(drop));
    two.reg_xrc_rcv_qp(qpn).unwrap();
    two.reg_xrc_rcv_qp(qpn).unwrap();
    one.unreg_xrc_rcv_qp(qpn).unwrap();
    assert_eq!(one.query_xrc_rcv_qp(qpn).unwrap().qp_state, QpState::Rtr);
    two.unreg_xrc_rcv_qp(qpn).unwrap();
    unknown(two.query_xrc_rcv_qp(qpn).map(drop));
    // With invalid attributes no target is left behind.
    let bad = QpAttr { port_num: 2, ..QpAttr::default() };
    unknown(one.alloc_xrc_rcv_qp(&bad).map(drop));
    one.close().unwrap();
    two.close().unwrap();
    other.close().unwrap();
    drop((ini, a));
    link.close();
}

#[test]
fn s02_xrc_queue_pairs_go_through_their_states() {
    let link = Cable::new(1);
    let (a, b) = (Side::new(&link.a), Side::new(&link.b));
    let p = Pair::new(&link, &a, &b);
    assert_eq!((p.ini.cap().max_recv_wr, p.ini.cap().max_recv_sge), (0, 0));
    assert_eq!((p.target.state(), p.ini.state().unwrap()), (QpState::Rtr, QpState::Rts));
    // RTR to RTS of a target has a mask of its own (TIMEOUT and SQ_PSN).
    let attr = QpAttr { qp_state: QpState::Rts, timeout: 14, sq_psn: 1, ..QpAttr::default() };
    let e = p.target.modify(&attr, AttrMask::STATE | AttrMask::SQ_PSN).unwrap_err();
    assert_eq!(e.errno(), errno::EINVAL, "{e}");
    p.target.modify(&attr, AttrMask::STATE | AttrMask::SQ_PSN | AttrMask::TIMEOUT).unwrap();
    for (i, state) in [QpState::Sqd, QpState::Rts].into_iter().enumerate() {
        let (attr, mask) = attr_to(state);
        p.target.modify(&attr, mask).unwrap();
        p.srq.post_recv(&[RecvWr::new(i as u64, &[])]).unwrap();
        p.ini.post_send(&[SendWr::send(1, &[]).remote_srqn(p.srq.srq_num()).signaled()]).unwrap();
        assert!(link.take(&a.cq, 1)[0].is_ok());
        assert_eq!(link.take(&b.cq, 1)[0].wr_id, i as u64, "received in {state:?}");
    }
    for state in [QpState::Err, QpState::Reset] {
        let (attr, mask) = attr_to(state);
        p.target.modify(&attr, mask).unwrap();
        p.ini.modify(&attr, mask).unwrap();
    }
    connect(&p.ini, &p.target, &options());
    p.srq.post_recv(&[RecvWr::new(9, &[])]).unwrap();
    p.ini.post_send(&[SendWr::send(1, &[]).remote_srqn(p.srq.srq_num()).signaled()]).unwrap();
    assert_eq!(link.take(&b.cq, 1)[0].wr_id, 9);
}

// ERR in mid-message: the entry that the target holds completes in error, in the shared receive queue's completion queue.
#[test]
fn l04_err_of_a_target_completes_the_held_entry() {
    let link = Cable::new(1);
    let (a, b) = (Side::new(&link.a), Side::new(&link.b));
    let p = Pair::new(&link, &a, &b);
    let room = b.mr.sge(0..256 << 10).unwrap();
    p.srq.post_recv(&[RecvWr::new(1, &[room]), RecvWr::new(2, &[room])]).unwrap();
    let whole = [a.mr.sge(0..256 << 10).unwrap()];
    p.ini.post_send(&[SendWr::send(1, &whole).remote_srqn(p.srq.srq_num())]).unwrap();
    link.until("the first packet", || p.srq.waiting().unwrap() == 1);
    let (attr, mask) = attr_to(QpState::Err);
    p.target.modify(&attr, mask).unwrap();
    let wc = link.take(&b.cq, 1)[0];
    assert_eq!((wc.wr_id, wc.status, wc.qp_num), (1, WcStatus::WrFlushErr, p.target.qp_num()));
    assert_eq!(p.srq.waiting().unwrap(), 1);
    let of = EventElement::Qp(p.target.qp_num());
    assert_eq!(link.event_of_b(), Some((AsyncEvent::QpLastWqeReached, of)));
}

// An overrun of a new completion queue does not end a reset target, although the new queue reuses the slot of the queue to which the
// target completed before.
#[test]
fn an_overrun_ends_no_target_that_was_reset() {
    let link = Cable::new(1);
    let (a, b) = (Side::new(&link.a), Side::new(&link.b));
    let xrcd = link.b.open_xrcd(&XrcdInitAttr::anonymous()).unwrap();
    let (ini, target) = (initiator(&a), xrcd.create_qp(None).unwrap());
    connect(&ini, &target, &options());
    let old = link.b.create_cq(4).unwrap();
    let srq = srq(&b, &xrcd, &old);
    srq.post_recv(&[RecvWr::new(1, &[])]).unwrap();
    ini.post_send(&[SendWr::send(1, &[]).remote_srqn(srq.srq_num())]).unwrap();
    assert!(link.take(&old, 1)[0].is_ok());
    let (attr, mask) = attr_to(QpState::Reset);
    target.modify(&attr, mask).unwrap();
    srq.destroy().unwrap();
    old.destroy().unwrap();

    let small = link.b.create_cq(1).unwrap();
    let qp = b.pd.create_qp(&QpInitAttr::rc(&small, &small)).unwrap();
    target.connect(&ini.endpoint(1).unwrap(), &options()).unwrap();
    qp.connect_rc(&qp.endpoint(1).unwrap(), &options()).unwrap();
    qp.post_recv(&[RecvWr::new(1, &[]), RecvWr::new(2, &[])]).unwrap();
    let (attr, mask) = attr_to(QpState::Err);
    qp.modify(&attr, mask).unwrap();
    link.turns(10);
    let events: Vec<_> = std::iter::from_fn(|| link.event_of_b()).collect();
    assert!(events.contains(&(AsyncEvent::CqErr, EventElement::Cq(small.number()))), "{events:?}");
    assert_eq!(target.state(), QpState::Rtr, "{events:?}");
}

// Goal: over a port that does not join processes, no program is led to believe that its domain is shared.
#[test]
fn a_domain_of_a_file_needs_a_port_that_joins_processes() {
    let link = Cable::new(1);
    let file = std::fs::File::open(std::env::current_exe().unwrap()).unwrap();
    assert!(!link.b.can_share_xrcds());
    let e = link.b.open_xrcd_of(&file, XrcdOflags::CREAT).unwrap_err();
    assert_eq!(e.errno(), errno::EOPNOTSUPP);
    assert!(e.to_string().contains("the port host"), "{e}");
}
