//! Shared receive queues through the public API, over a cable between two devices (`link`). An entry is a receive request in such a queue.

use crate::common::{PATIENCE, options};
use crate::link::{self, Cable, Side, rc_to};
use verbs::errno;
use verbs::{
    AsyncEvent, AttrMask, EventElement, QpAttr, QpInitAttr, QpState, RecvWr, SendWr, SrqAttr, SrqAttrMask,
    SrqInitAttr, WcOpcode, WcStatus, attr_to,
};

fn limit(srq_limit: u32) -> (SrqAttr, SrqAttrMask) {
    (SrqAttr { srq_limit, ..SrqAttr::default() }, SrqAttrMask::LIMIT)
}

fn size(max_wr: u32) -> (SrqAttr, SrqAttrMask) {
    (SrqAttr { max_wr, ..SrqAttr::default() }, SrqAttrMask::MAX_WR)
}

#[test]
fn l01_the_limit_event_comes_once() {
    let link = Cable::new(1);
    let (a, b) = (Side::new(&link.a), Side::new(&link.b));
    let srq = b.pd.create_srq(&SrqInitAttr::new(10, 1)).unwrap();
    let number = srq.srq_num();
    for id in 0..10 {
        srq.post_recv(&[RecvWr::new(id, &[])]).unwrap();
    }
    let (attr, mask) = limit(5);
    srq.modify(&attr, mask).unwrap();
    let (qp, peer) = rc_to(&a, &b, &QpInitAttr::rc(&b.cq, &b.cq).srq(&srq), &options());
    let send = |n: u64| {
        for id in 0..n {
            qp.post_send(&[SendWr::send(id, &[]).signaled()]).unwrap();
        }
        assert_eq!(link.take(&a.cq, n as usize).len(), n as usize);
        link.take(&b.cq, n as usize).iter().map(|wc| wc.wr_id).collect::<Vec<_>>()
    };
    assert_eq!(send(5), [0, 1, 2, 3, 4]);
    assert_eq!((srq.waiting().unwrap(), link.event_of_b()), (5, None), "5 are not fewer than 5");
    assert_eq!(send(1), [5]);
    assert_eq!(link.event_of_b(), Some((AsyncEvent::SrqLimitReached, EventElement::Srq(number))));
    assert_eq!(srq.query().unwrap(), SrqAttr { max_wr: 10, max_sge: 1, srq_limit: 0 });
    send(2);
    assert_eq!(link.event_of_b(), None, "disarmed");
    let (attr, mask) = limit(2);
    srq.modify(&attr, mask).unwrap();
    assert_eq!(link.event_of_b(), None, "armed at what waits: the next message tells");
    send(1);
    assert_eq!(link.event_of_b(), Some((AsyncEvent::SrqLimitReached, EventElement::Srq(number))));
    drop((peer, qp));
}

#[test]
fn l02_an_empty_queue_is_not_ready() {
    let link = Cable::new(1);
    let (a, b) = (Side::new(&link.a), Side::new(&link.b));
    let srq = b.pd.create_srq(&SrqInitAttr::new(4, 1)).unwrap();
    let (qp, peer) = rc_to(&a, &b, &QpInitAttr::rc(&b.cq, &b.cq).srq(&srq), &options());
    qp.post_send(&[SendWr::send(1, &[]).signaled()]).unwrap();
    let naks = || link.b.counters().get(verbs::Counter::RnrNaksSent);
    link.until("an RNR NAK", || naks() > 0);
    srq.post_recv(&[RecvWr::new(7, &[])]).unwrap();
    assert_eq!(link.take(&a.cq, 1)[0].status, WcStatus::Success);
    let wc = link.take(&b.cq, 1)[0];
    assert_eq!((wc.wr_id, wc.status, wc.qp_num), (7, WcStatus::Success, peer.qp_num()));
    // With a single retry the request fails.
    let few = options().rnr_retry(1);
    let (qp2, peer2) = rc_to(&a, &b, &QpInitAttr::rc(&b.cq, &b.cq).srq(&srq), &few);
    qp2.post_send(&[SendWr::send(2, &[])]).unwrap();
    assert_eq!(link.take(&a.cq, 1)[0].status, WcStatus::RnrRetryExcErr);
    drop((qp, peer, qp2, peer2));
}

#[test]
fn l03_queue_pairs_on_several_shards_fill_their_own_entries() {
    const SHARDS: usize = 3;
    const LEN: usize = 20_000;
    let link = Cable::new(SHARDS);
    let (a, b) = (Side::new(&link.a), Side::new(&link.b));
    let srq = b.pd.create_srq(&SrqInitAttr::new(32, 2)).unwrap();
    let pairs: Vec<_> = (0..SHARDS)
        .map(|shard| rc_to(&a, &b, &QpInitAttr::rc(&b.cq, &b.cq).srq(&srq).on_shard(shard), &options()))
        .collect();
    for (i, (_, peer)) in pairs.iter().enumerate() {
        assert_eq!(peer.shard(), i);
        a.mr.write(i * LEN, &vec![i as u8 + 1; LEN]).unwrap();
    }
    for id in 0..SHARDS {
        let at = id * 2 * LEN;
        let list = [b.mr.sge(at..at + 9000).unwrap(), b.mr.sge(at + 9000..at + LEN).unwrap()];
        srq.post_recv(&[RecvWr::new(id as u64, &list)]).unwrap();
    }
    for (i, (qp, _)) in pairs.iter().enumerate() {
        let part = a.mr.sge(i * LEN..(i + 1) * LEN).unwrap();
        qp.post_send(&[SendWr::send(i as u64, &[part]).signaled()]).unwrap();
    }
    let done = link.take(&b.cq, SHARDS);
    let mut ids = Vec::new();
    for wc in done {
        assert_eq!((wc.status, wc.opcode, wc.byte_len), (WcStatus::Success, WcOpcode::Recv, LEN as u32));
        let sender = pairs.iter().position(|(_, peer)| peer.qp_num() == wc.qp_num).unwrap();
        let at = wc.wr_id as usize * 2 * LEN;
        assert!(b.bytes(at, LEN) == [sender as u8 + 1; LEN], "one sender's bytes, all of them");
        ids.push(wc.wr_id);
    }
    ids.sort_unstable();
    assert_eq!(ids, [0, 1, 2]);
    assert_eq!(srq.waiting().unwrap(), 0);
    assert_eq!(link.take(&a.cq, SHARDS).len(), SHARDS);
}

#[test]
fn l03_entries_are_taken_in_the_order_of_posting() {
    let link = Cable::new(2);
    let (a, b) = (Side::new(&link.a), Side::new(&link.b));
    let srq = b.pd.create_srq(&SrqInitAttr::new(64, 1)).unwrap();
    let x = rc_to(&a, &b, &QpInitAttr::rc(&b.cq, &b.cq).srq(&srq).on_shard(0), &options());
    let y = rc_to(&a, &b, &QpInitAttr::rc(&b.cq, &b.cq).srq(&srq).on_shard(1), &options());
    for id in 0..60 {
        srq.post_recv(&[RecvWr::new(id, &[])]).unwrap();
    }
    for id in 0..60 {
        let qp = if id % 3 == 0 { &x.0 } else { &y.0 };
        qp.post_send(&[SendWr::send(id, &[]).signaled()]).unwrap();
        assert_eq!(link.take(&a.cq, 1)[0].wr_id, id);
        assert_eq!(link.take(&b.cq, 1)[0].wr_id, id, "the oldest entry");
        assert_eq!(u64::from(srq.waiting().unwrap()), 59 - id);
    }
}

#[test]
fn l04_err_completes_the_held_entry_and_leaves_the_others() {
    let link = Cable::new(1);
    let (a, b) = (Side::new(&link.a), Side::new(&link.b));
    let srq = b.pd.create_srq(&SrqInitAttr::new(4, 1)).unwrap();
    let room = b.mr.sge(0..256 << 10).unwrap();
    for id in 0..3 {
        srq.post_recv(&[RecvWr::new(id, &[room])]).unwrap();
    }
    let (qp, peer) = rc_to(&a, &b, &QpInitAttr::rc(&b.cq, &b.cq).srq(&srq), &options());
    // The first turns transfer only a part of the message.
    let whole = a.mr.sge(0..256 << 10).unwrap();
    qp.post_send(&[SendWr::send(1, &[whole])]).unwrap();
    link.until("the first packet", || srq.waiting().unwrap() == 2);
    let (attr, mask) = attr_to(QpState::Err);
    peer.modify(&attr, mask).unwrap();
    let wc = link.take(&b.cq, 1)[0];
    assert_eq!((wc.wr_id, wc.status, wc.qp_num), (0, WcStatus::WrFlushErr, peer.qp_num()));
    let number = peer.qp_num();
    assert_eq!(link.event_of_b(), Some((AsyncEvent::QpLastWqeReached, EventElement::Qp(number))));
    link.assert_no_completion(&b.cq);
    assert_eq!((srq.waiting().unwrap(), link.event_of_b()), (2, None));
    // RESET makes the queue pair usable again; the other entries serve the next message, in order.
    let (attr, mask) = attr_to(QpState::Reset);
    peer.modify(&attr, mask).unwrap();
    qp.modify(&attr, mask).unwrap();
    link::connect(&qp, &peer, &options());
    qp.post_send(&[SendWr::send(2, &[]).signaled()]).unwrap();
    assert_eq!(link.take(&b.cq, 1)[0].wr_id, 1);
}

#[test]
fn l04_the_failed_request_tells_the_reason() {
    let link = Cable::new(1);
    let (a, b) = (Side::new(&link.a), Side::new(&link.b));
    let srq = b.pd.create_srq(&SrqInitAttr::new(4, 1)).unwrap();
    let short = b.mr.sge(0..8).unwrap();
    srq.post_recv(&[RecvWr::new(1, &[short]), RecvWr::new(2, &[short])]).unwrap();
    let (qp, peer) = rc_to(&a, &b, &QpInitAttr::rc(&b.cq, &b.cq).srq(&srq), &options());
    qp.post_send(&[SendWr::send(9, &[a.mr.sge(0..9).unwrap()])]).unwrap();
    assert_eq!(link.take(&a.cq, 1)[0].status, WcStatus::RemInvReqErr);
    let wc = link.take(&b.cq, 1)[0];
    assert_eq!((wc.wr_id, wc.status), (1, WcStatus::LocLenErr));
    assert_eq!(peer.state().unwrap(), QpState::Err);
    let number = peer.qp_num();
    assert_eq!(link.event_of_b(), Some((AsyncEvent::QpLastWqeReached, EventElement::Qp(number))));
    assert_eq!(srq.waiting().unwrap(), 1);
}

// RESET in mid-message: the held entry ends without a completion, and the others stay in the queue.
#[test]
fn l04_reset_ends_the_held_entry() {
    let link = Cable::new(1);
    let (a, b) = (Side::new(&link.a), Side::new(&link.b));
    let srq = b.pd.create_srq(&SrqInitAttr::new(4, 1)).unwrap();
    let room = b.mr.sge(0..256 << 10).unwrap();
    srq.post_recv(&[RecvWr::new(1, &[room]), RecvWr::new(2, &[room])]).unwrap();
    let (qp, peer) = rc_to(&a, &b, &QpInitAttr::rc(&b.cq, &b.cq).srq(&srq), &options());
    qp.post_send(&[SendWr::send(1, &[a.mr.sge(0..256 << 10).unwrap()])]).unwrap();
    link.until("the first packet", || srq.waiting().unwrap() == 1);
    let (attr, mask) = attr_to(QpState::Reset);
    peer.modify(&attr, mask).unwrap();
    link.assert_no_completion(&b.cq);
    assert_eq!((srq.waiting().unwrap(), link.event_of_b()), (1, None));
}

#[test]
fn l05_post_recv_belongs_to_the_shared_queue() {
    let link = Cable::new(1);
    let b = Side::new(&link.b);
    let srq = b.pd.create_srq(&SrqInitAttr::new(4, 1)).unwrap();
    let qp = b.pd.create_qp(&QpInitAttr::rc(&b.cq, &b.cq).srq(&srq)).unwrap();
    assert_eq!((qp.cap().max_recv_wr, qp.cap().max_recv_sge), (0, 0));
    qp.init_rc(&options()).unwrap();
    let e = qp.post_recv(&[RecvWr::new(1, &[])]).unwrap_err();
    assert_eq!((e.errno(), e.bad_wr), (errno::EINVAL, 0), "{e}");
    let (send, mut recv) = qp.split().unwrap();
    let e = recv.post_recv(&[RecvWr::new(1, &[])]).unwrap_err();
    assert_eq!((e.errno(), recv.free()), (errno::EINVAL, 0), "{e}");
    drop((send, recv));
    assert_eq!(srq.waiting().unwrap(), 0);
    assert_eq!(qp.query().unwrap().1.srq.unwrap().srq_num(), srq.srq_num());
}

#[test]
fn l06_bad_sizes_and_limits_change_nothing() {
    let link = Cable::new(1);
    let b = Side::new(&link.b);
    let max = link.b.query_device();
    for (wr, sge, limit) in [(0, 1, 0), (max.max_srq_wr + 1, 1, 0), (8, max.max_srq_sge + 1, 0), (8, 1, 9)] {
        let mut init = SrqInitAttr::new(wr, sge);
        init.attr.srq_limit = limit;
        let e = b.pd.create_srq(&init).unwrap_err();
        assert_eq!(e.errno(), errno::EINVAL, "{e}");
    }
    let srq = b.pd.create_srq(&SrqInitAttr::new(8, 2)).unwrap();
    let (attr, mask) = limit(4);
    srq.modify(&attr, mask).unwrap();
    for id in 0..6 {
        srq.post_recv(&[RecvWr::new(id, &[])]).unwrap();
    }
    let is = SrqAttr { max_wr: 8, max_sge: 2, srq_limit: 4 };
    assert_eq!(srq.query().unwrap(), is);
    let both = SrqAttrMask::MAX_WR | SrqAttrMask::LIMIT;
    let bad = [
        limit(9),
        size(0),
        size(3),
        size(5),
        size(max.max_srq_wr + 1),
        (SrqAttr { max_wr: 20, srq_limit: 21, max_sge: 0 }, both),
        (SrqAttr { max_wr: 5, srq_limit: 1, max_sge: 0 }, both),
        (is, SrqAttrMask::from_bits_retain(4)),
    ];
    for (attr, mask) in bad {
        let e = srq.modify(&attr, mask).unwrap_err();
        assert_eq!(e.errno(), errno::EINVAL, "{e}");
        assert_eq!((srq.query().unwrap(), srq.waiting().unwrap()), (is, 6), "{attr:?}");
    }
    // Both attributes at once, where each alone would be refused.
    srq.modify(&SrqAttr { max_wr: 20, srq_limit: 20, max_sge: 0 }, both).unwrap();
    assert_eq!(srq.query().unwrap(), SrqAttr { max_wr: 20, max_sge: 2, srq_limit: 20 });
    srq.modify(&SrqAttr::default(), SrqAttrMask::empty()).unwrap();
}

#[test]
fn l06_a_resize_keeps_the_order() {
    let link = Cable::new(1);
    let (a, b) = (Side::new(&link.a), Side::new(&link.b));
    let srq = b.pd.create_srq(&SrqInitAttr::new(3, 1)).unwrap();
    let (qp, peer) = rc_to(&a, &b, &QpInitAttr::rc(&b.cq, &b.cq).srq(&srq), &options());
    let mut next = 0;
    let mut want = 0;
    for depth in [3, 7, 2, 9, 1] {
        let (attr, mask) = size(depth);
        srq.modify(&attr, mask).unwrap();
        loop {
            match srq.post_recv(&[RecvWr::new(next, &[])]) {
                Ok(()) => next += 1,
                Err(e) => {
                    assert_eq!(e.errno(), errno::ENOMEM, "{e}");
                    break;
                }
            }
        }
        assert_eq!(srq.waiting().unwrap(), depth);
        // Until a single request waits across the resize.
        for _ in 0..depth - 1 {
            qp.post_send(&[SendWr::send(0, &[]).signaled()]).unwrap();
            link.take(&a.cq, 1);
            assert_eq!(link.take(&b.cq, 1)[0].wr_id, want);
            want += 1;
        }
    }
    assert_eq!(next - want, 1);
    drop(peer);
}

#[test]
fn l07_no_credits_are_granted() {
    let link = Cable::recorded("l07");
    {
        let (a, b) = (Side::new(&link.a), Side::new(&link.b));
        let srq = b.pd.create_srq(&SrqInitAttr::new(16, 1)).unwrap();
        let (qp, peer) = rc_to(&a, &b, &QpInitAttr::rc(&b.cq, &b.cq).srq(&srq), &options());
        srq.post_recv(&[RecvWr::new(1, &[]), RecvWr::new(2, &[])]).unwrap();
        let word = b.mr.sge(0..8).unwrap();
        let (addr, key) = (word.addr, b.mr.rkey());
        let local = [a.mr.sge(0..8).unwrap()];
        qp.post_send(&[SendWr::send(1, &[]).signaled(), SendWr::read(2, &local, addr, key).signaled()])
            .unwrap();
        qp.post_send(&[SendWr::fetch_and_add(3, &local, addr, key, 1).signaled()]).unwrap();
        assert!(link.take(&a.cq, 3).iter().all(|wc| wc.is_ok()));
        drop(peer);
    }
    let syndromes: Vec<u8> = link.close().iter().filter_map(|p| p.syndrome).collect();
    assert!(syndromes.len() >= 2 && syndromes.iter().all(|s| *s == 0x1f), "{syndromes:x?}");
}

#[test]
fn l08_s34_a_queue_in_use_is_busy() {
    let link = Cable::new(1);
    let b = Side::new(&link.b);
    let srq = b.pd.create_srq(&SrqInitAttr::new(4, 1)).unwrap();
    let qp = b.pd.create_qp(&QpInitAttr::rc(&b.cq, &b.cq).srq(&srq)).unwrap();
    let (e, srq) = srq.destroy().unwrap_err();
    assert_eq!(e.errno(), errno::EBUSY, "{e}");
    srq.post_recv(&[RecvWr::new(1, &[])]).unwrap();
    qp.destroy().unwrap();
    let Side { pd, mr, .. } = b;
    mr.dereg().unwrap();
    let (e, pd) = pd.dealloc().unwrap_err();
    assert_eq!(e.errno(), errno::EBUSY, "the shared receive queue is of the domain: {e}");
    srq.destroy().unwrap();
    pd.dealloc().unwrap();
}

#[test]
fn s36_s37_a_list_is_taken_up_to_the_bad_request() {
    let link = Cable::new(1);
    let b = Side::new(&link.b);
    let srq = b.pd.create_srq(&SrqInitAttr::new(3, 1)).unwrap();
    let one = b.mr.sge(0..8).unwrap();
    let two = [one, one];
    let e = srq.post_recv(&[RecvWr::new(1, &[one]), RecvWr::new(2, &two), RecvWr::new(3, &[])]).unwrap_err();
    assert_eq!((e.errno(), e.bad_wr, srq.waiting().unwrap()), (errno::EINVAL, 1, 1), "{e}");
    let e = srq.post_recv(&[RecvWr::new(2, &[]), RecvWr::new(3, &[]), RecvWr::new(4, &[])]).unwrap_err();
    assert_eq!((e.errno(), e.bad_wr, srq.waiting().unwrap()), (errno::ENOMEM, 2, 3), "{e}");
}

// The buffers must belong to the shared receive queue's protection domain, whatever the queue pair's domain is.
#[test]
fn the_queues_domain_counts_for_its_buffers() {
    let link = Cable::new(1);
    let (a, b, other) = (Side::new(&link.a), Side::new(&link.b), Side::new(&link.b));
    let srq = other.pd.create_srq(&SrqInitAttr::new(4, 1)).unwrap();
    let (qp, _peer) = rc_to(&a, &b, &QpInitAttr::rc(&b.cq, &b.cq).srq(&srq), &options());
    a.mr.write(0, b"domain").unwrap();
    let six = [a.mr.sge(0..6).unwrap()];
    srq.post_recv(&[RecvWr::new(1, &[other.mr.sge(0..64).unwrap()])]).unwrap();
    qp.post_send(&[SendWr::send(1, &six).signaled()]).unwrap();
    assert_eq!(link.take(&a.cq, 1)[0].status, WcStatus::Success);
    assert_eq!((link.take(&b.cq, 1)[0].byte_len, other.bytes(0, 6)), (6, b"domain".to_vec()));
    // The peer's keys are still checked in the queue pair's domain.
    srq.post_recv(&[RecvWr::new(2, &[b.mr.sge(0..64).unwrap()])]).unwrap();
    let to = b.mr.sge(100..106).unwrap();
    qp.post_send(&[SendWr::write(2, &six, to.addr, b.mr.rkey()), SendWr::send(3, &six)]).unwrap();
    assert_eq!(link.take(&b.cq, 1)[0].status, WcStatus::LocProtErr);
    assert_eq!(link.take(&a.cq, 1)[0].status, WcStatus::RemOpErr);
    assert_eq!(b.bytes(100, 6), b"domain");
}

#[test]
fn objects_of_another_device_are_refused() {
    let link = Cable::new(1);
    let (a, b) = (Side::new(&link.a), Side::new(&link.b));
    let srq = a.pd.create_srq(&SrqInitAttr::new(4, 1)).unwrap();
    let e = b.pd.create_qp(&QpInitAttr::rc(&b.cq, &b.cq).srq(&srq)).unwrap_err();
    assert_eq!(e.errno(), errno::EINVAL, "{e}");
    srq.destroy().unwrap();
}

// Several posters and two shards that consume requests, driven by the device's threads.
#[test]
fn posters_and_shards_share_the_queue() {
    use verbs::{Context, DeviceConfig, Wc};
    const MESSAGES: u64 = 1000;
    // On a busy machine a thread may get no core for long, and retries are not the subject of this test.
    let options = options().timeout(20);
    let context = Context::open(DeviceConfig::loopback().shards(2)).unwrap();
    let side = Side::new(&context);
    let srq = side.pd.create_srq(&SrqInitAttr::new(64, 1)).unwrap();
    let senders: Vec<_> = (0..2)
        .map(|shard| {
            let init = QpInitAttr::rc(&side.cq, &side.cq).srq(&srq).on_shard(shard);
            let cq = context.create_cq(256).unwrap();
            let from = side.pd.create_qp(&QpInitAttr::rc(&cq, &cq)).unwrap();
            let to = side.pd.create_qp(&init).unwrap();
            link::connect(&from, &to, &options);
            (from, cq, to)
        })
        .collect();
    let next = std::sync::atomic::AtomicU64::new(0);
    let start = std::time::Instant::now();
    // A thread that fails ends the others, too.
    let patient = || assert!(start.elapsed() < 4 * PATIENCE, "the test goes on");
    std::thread::scope(|s| {
        for _ in 0..2 {
            s.spawn(|| {
                loop {
                    let id = next.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                    if id >= MESSAGES {
                        return;
                    }
                    while srq.post_recv(&[RecvWr::new(id, &[])]).is_err() {
                        patient();
                        std::thread::yield_now();
                    }
                }
            });
        }
        for (qp, cq, _) in &senders {
            let patient = &patient;
            s.spawn(move || {
                let mut wc = [Wc::default(); 1];
                for id in 0..MESSAGES / 2 {
                    qp.post_send(&[SendWr::send(id, &[]).signaled()]).unwrap();
                    while cq.poll(&mut wc).unwrap() == 0 {
                        patient();
                        std::thread::yield_now();
                    }
                    assert_eq!(wc[0].status, WcStatus::Success);
                }
            });
        }
        let mut seen = Vec::new();
        let mut wc = [Wc::default(); 16];
        while seen.len() < MESSAGES as usize {
            let n = side.cq.poll(&mut wc).unwrap();
            for wc in &wc[..n] {
                assert_eq!(wc.status, WcStatus::Success);
                seen.push(wc.wr_id);
            }
            if n == 0 {
                patient();
                std::thread::yield_now();
            }
        }
        seen.sort_unstable();
        assert!(seen.into_iter().eq(0..MESSAGES), "each entry completes once");
    });
    assert_eq!(srq.waiting().unwrap(), 0);
}

#[test]
fn a_queue_pair_without_a_shared_queue_names_none_and_has_no_last_entry() {
    let link = Cable::new(1);
    let b = Side::new(&link.b);
    let qp = b.pd.create_qp(&QpInitAttr::rc(&b.cq, &b.cq)).unwrap();
    assert!(qp.query().unwrap().1.srq.is_none());
    let attr = QpAttr { qp_state: QpState::Err, ..QpAttr::default() };
    qp.modify(&attr, AttrMask::STATE).unwrap();
    assert_eq!(link.event_of_b(), None, "no last entry where there is no shared receive queue");
}

fn uc_to(a: &Side, b: &Side, srq: &verbs::Srq) -> (verbs::Qp, verbs::Qp) {
    let from = a.pd.create_qp(&QpInitAttr::uc(&a.cq, &a.cq)).unwrap();
    let to = b.pd.create_qp(&QpInitAttr::uc(&b.cq, &b.cq).srq(srq)).unwrap();
    from.connect_uc(&to.endpoint(1).unwrap(), &options()).unwrap();
    to.connect_uc(&from.endpoint(1).unwrap(), &options()).unwrap();
    (from, to)
}

#[test]
fn l02_an_empty_queue_drops_an_unreliable_message() {
    let link = Cable::new(1);
    let (a, b) = (Side::new(&link.a), Side::new(&link.b));
    let srq = b.pd.create_srq(&SrqInitAttr::new(4, 1)).unwrap();
    let (qp, peer) = uc_to(&a, &b, &srq);
    qp.post_send(&[SendWr::send(1, &[]).signaled()]).unwrap();
    assert_eq!(link.take(&a.cq, 1)[0].status, WcStatus::Success);
    link.assert_no_completion(&b.cq);
    assert_eq!(peer.state().unwrap(), QpState::Rts);
    srq.post_recv(&[RecvWr::new(7, &[])]).unwrap();
    qp.post_send(&[SendWr::send(2, &[])]).unwrap();
    assert_eq!((link.take(&b.cq, 1)[0].wr_id, link.b.counters().get(verbs::Counter::RnrNaksSent)), (7, 0));
}

#[test]
fn u07_a_message_that_is_cut_off_completes_its_entry_in_error() {
    let link = Cable::new(1);
    let (a, b) = (Side::new(&link.a), Side::new(&link.b));
    let srq = b.pd.create_srq(&SrqInitAttr::new(4, 1)).unwrap();
    let room = b.mr.sge(0..256 << 10).unwrap();
    srq.post_recv(&[RecvWr::new(1, &[room]), RecvWr::new(2, &[room]), RecvWr::new(3, &[room])]).unwrap();
    let (qp, peer) = uc_to(&a, &b, &srq);
    qp.post_send(&[SendWr::send(1, &[a.mr.sge(0..256 << 10).unwrap()])]).unwrap();
    link.until("the first packet", || srq.waiting().unwrap() == 2);
    // The sender restarts: its next message begins before the receiver has seen the end of this one.
    let (attr, mask) = attr_to(QpState::Reset);
    qp.modify(&attr, mask).unwrap();
    qp.connect_uc(&peer.endpoint(1).unwrap(), &options()).unwrap();
    qp.post_send(&[SendWr::send(2, &[a.mr.sge(0..5).unwrap()])]).unwrap();
    let done = link.take(&b.cq, 2);
    assert_eq!((done[0].wr_id, done[0].status), (1, WcStatus::RemInvReqErr));
    assert_eq!((done[1].wr_id, done[1].status, done[1].byte_len), (2, WcStatus::Success, 5));
    assert_eq!((peer.state().unwrap(), srq.waiting().unwrap(), link.event_of_b()), (QpState::Rts, 1, None));
}

// A message longer than the entry's buffers ends like one that is cut off.
#[test]
fn u07_a_message_that_does_not_fit_completes_its_entry_in_error() {
    let link = Cable::new(1);
    let (a, b) = (Side::new(&link.a), Side::new(&link.b));
    let srq = b.pd.create_srq(&SrqInitAttr::new(4, 1)).unwrap();
    let four = b.mr.sge(0..4).unwrap();
    srq.post_recv(&[RecvWr::new(1, &[four]), RecvWr::new(2, &[four])]).unwrap();
    let (qp, peer) = uc_to(&a, &b, &srq);
    qp.post_send(&[SendWr::send(1, &[a.mr.sge(0..5).unwrap()]), SendWr::send(2, &[])]).unwrap();
    let done = link.take(&b.cq, 2);
    assert_eq!((done[0].wr_id, done[0].status), (1, WcStatus::RemInvReqErr));
    assert_eq!((done[1].wr_id, done[1].status), (2, WcStatus::Success));
    assert_eq!(peer.state().unwrap(), QpState::Rts);
}

#[test]
fn s35_a_queue_waits_for_its_events_to_be_acknowledged() {
    let link = Cable::new(1);
    let (a, b) = (Side::new(&link.a), Side::new(&link.b));
    let srq = b.pd.create_srq(&SrqInitAttr::new(4, 1)).unwrap();
    srq.post_recv(&[RecvWr::new(1, &[]), RecvWr::new(2, &[])]).unwrap();
    let (attr, mask) = limit(2);
    srq.modify(&attr, mask).unwrap();
    let (qp, peer) = rc_to(&a, &b, &QpInitAttr::rc(&b.cq, &b.cq).srq(&srq), &options());
    qp.post_send(&[SendWr::send(1, &[])]).unwrap();
    link.take(&b.cq, 1);
    let event = link.b.try_get_async_event().expect("one entry is fewer than two");
    assert_eq!((event.event, event.element), (AsyncEvent::SrqLimitReached, EventElement::Srq(srq.srq_num())));
    drop((peer, qp));
    let (e, srq) = srq.destroy().unwrap_err();
    assert_eq!(e.errno(), errno::EBUSY, "{e}");
    let (e, srq) = srq.destroy_wait(std::time::Duration::from_millis(2)).unwrap_err();
    assert_eq!(e.errno(), errno::EBUSY, "{e}");
    drop(event);
    srq.destroy().unwrap();
}

#[test]
fn a_drained_queue_pair_leaves_the_shared_queue_as_it_is() {
    let link = Cable::new(1);
    let (a, b) = (Side::new(&link.a), Side::new(&link.b));
    let srq = b.pd.create_srq(&SrqInitAttr::new(4, 1)).unwrap();
    srq.post_recv(&[RecvWr::new(1, &[]), RecvWr::new(2, &[]), RecvWr::new(3, &[])]).unwrap();
    let (qp, peer) = rc_to(&a, &b, &QpInitAttr::rc(&b.cq, &b.cq).srq(&srq), &options());
    qp.post_send(&[SendWr::send(1, &[])]).unwrap();
    link.until("the first message", || srq.waiting().unwrap() == 2);
    peer.post_send(&[SendWr::send(9, &[])]).unwrap();
    peer.drain_qp(std::time::Duration::from_secs(10)).unwrap();
    // The receive and the send have completed by now; the other entries wait for other messages.
    let mut wc = [verbs::Wc::default(); 4];
    let n = b.cq.poll(&mut wc).unwrap();
    let mut done: Vec<u64> = wc[..n].iter().map(|wc| wc.wr_id).collect();
    done.sort_unstable();
    assert_eq!((done, srq.waiting().unwrap()), (vec![1, 9], 2));
    let last = link.event_of_b();
    assert_eq!(last, Some((AsyncEvent::QpLastWqeReached, EventElement::Qp(peer.qp_num()))));
}

#[test]
fn datagrams_land_in_the_shared_queue() {
    let link = Cable::new(1);
    let (a, b) = (Side::new(&link.a), Side::new(&link.b));
    let srq = b.pd.create_srq(&SrqInitAttr::new(4, 1)).unwrap();
    let room = |at: usize| b.mr.sge(at..at + 64).unwrap();
    srq.post_recv(&[RecvWr::new(1, &[room(0)]), RecvWr::new(2, &[room(64)])]).unwrap();
    let from = a.pd.create_qp(&QpInitAttr::ud(&a.cq, &a.cq)).unwrap();
    let to = b.pd.create_qp(&QpInitAttr::ud(&b.cq, &b.cq).srq(&srq)).unwrap();
    from.activate_ud(7).unwrap();
    to.activate_ud(7).unwrap();
    let ah = a.pd.create_ah(&verbs::ah_attr_to(to.endpoint(1).unwrap().gid, 1)).unwrap();
    for text in [b"first...", b"second.."] {
        a.mr.write(0, text).unwrap();
        let sge = [a.mr.sge(0..8).unwrap()];
        from.post_send(&[SendWr::send(3, &sge).to(&ah, to.qp_num(), 7).signaled()]).unwrap();
        link.take(&a.cq, 1);
    }
    let done = link.take(&b.cq, 2);
    assert_eq!((done[0].wr_id, done[0].byte_len, done[1].wr_id), (1, 48, 2));
    assert_eq!((b.bytes(40, 8), b.bytes(104, 8)), (b"first...".to_vec(), b"second..".to_vec()));
    assert_eq!(srq.waiting().unwrap(), 0);
}
