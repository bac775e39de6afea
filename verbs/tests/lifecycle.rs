//! Object lifetimes: any order of dropping, busy parents, handles that are returned.

use std::any::Any;

use crate::common::{self, Pair, all_rights, embedded, options};
use verbs::errno;
use verbs::{
    Context, DeviceConfig, Drive, PostErrorKind, QpInitAttr, QpType, RecvWr, SendWr, VerbsError, WcStatus,
    ah_attr_to,
};

/// Calls `visit` with each order of `0..n`.
fn permutations(n: usize, visit: &mut impl FnMut(&[usize])) {
    fn go(order: &mut Vec<usize>, n: usize, visit: &mut impl FnMut(&[usize])) {
        if order.len() == n {
            return visit(order);
        }
        for i in 0..n {
            if !order.contains(&i) {
                order.push(i);
                go(order, n, visit);
                order.pop();
            }
        }
    }
    go(&mut Vec::new(), n, visit);
}

#[test]
fn handles_may_be_dropped_in_any_order() {
    permutations(6, &mut |order| {
        let p = Pair::new(embedded());
        p.b.post_recv(&[RecvWr::new(1, &[p.mr.sge(0..8).unwrap()])]).unwrap();
        p.a.post_send(&[SendWr::send(2, &[p.mr.sge(8..16).unwrap()])]).unwrap();
        let Pair { a, b, mr, cq_a, cq_b: _cq_b, pd, context } = p;
        let mut things: Vec<Option<Box<dyn Any>>> = vec![
            Some(Box::new(a)),
            Some(Box::new(b)),
            Some(Box::new(mr)),
            Some(Box::new(cq_a)),
            Some(Box::new(pd)),
            Some(Box::new(context)),
        ];
        for i in order {
            things[*i] = None;
        }
    });
}

/// A NIC begins to work at the post, so programs destroy a queue pair as soon as they have posted a request that needs no answer.
#[test]
fn what_was_posted_before_a_destroy_is_sent() {
    for drive in [Drive::Caller, Drive::Dedicated { cores: vec![] }] {
        let context = Context::open(DeviceConfig::loopback().drive(drive)).unwrap();
        let pd = context.alloc_pd().unwrap();
        let (cq_a, cq_b) = (context.create_cq(256).unwrap(), context.create_cq(256).unwrap());
        let mr = pd.reg_mr(64, all_rights()).unwrap();
        let ah = pd.create_ah(&ah_attr_to(context.query_gid(1, 1).unwrap(), 1)).unwrap();
        // A reliable queue pair waits for the peer's credits after its first message.
        for (qp_type, messages) in [(QpType::Ud, 100), (QpType::Uc, 100), (QpType::Rc, 1)] {
            let make = |cq| pd.create_qp(&QpInitAttr { qp_type, ..QpInitAttr::rc(cq, cq) }).unwrap();
            let (a, b) = (make(&cq_a), make(&cq_b));
            let to = b.qp_num();
            for (qp, peer) in [(&a, &b), (&b, &a)] {
                match qp_type {
                    QpType::Ud => qp.activate_ud(1),
                    QpType::Uc => qp.connect_uc(&peer.endpoint(1).unwrap(), &options()),
                    _ => qp.connect_rc(&peer.endpoint(1).unwrap(), &options()),
                }
                .unwrap();
            }
            for wr_id in 0..messages {
                b.post_recv(&[RecvWr::new(wr_id, &[mr.sge(0..64).unwrap()])]).unwrap();
            }
            for wr_id in 0..messages {
                let send = SendWr::send(wr_id, &[]).inline(b"farewell");
                let send = if qp_type == QpType::Ud { send.to(&ah, to, 1) } else { send };
                a.post_send(&[send]).unwrap();
            }
            a.destroy().unwrap();
            let done = common::take(&context, &cq_b, messages as usize);
            assert!(done.iter().all(|wc| wc.status == WcStatus::Success), "{qp_type:?}: {done:?}");
        }
    }
}

#[test]
fn a_device_with_threads_closes_too() {
    for drive in [Drive::Caller, Drive::Embedded, Drive::Dedicated { cores: vec![] }] {
        let open = || Context::open(DeviceConfig::loopback().shards(2).drive(drive.clone())).unwrap();
        open().close().unwrap();
        let Pair { a, b, mr, cq_a, cq_b, pd, context } = Pair::new(open());
        drop(context);
        a.post_send(&[SendWr::write(1, &[], 0, 0).signaled()]).unwrap();
        a.destroy().unwrap();
        cq_a.destroy().unwrap();
        b.destroy().unwrap();
        cq_b.destroy().unwrap();
        mr.dereg().unwrap();
        pd.dealloc().unwrap();
    }
}

#[test]
fn split_handles_lock_the_plain_calls_and_give_back() {
    let p = Pair::new(embedded());
    let (mut sq, mut rq) = p.b.split().unwrap();
    let e = p.b.post_send(&[SendWr::send(1, &[])]).unwrap_err();
    assert_eq!((e.errno(), e.kind), (errno::EBUSY, PostErrorKind::Split));
    assert_eq!(p.b.post_recv(&[RecvWr::new(1, &[])]).unwrap_err().errno(), errno::EBUSY);
    assert_eq!(p.b.split().unwrap_err().errno(), errno::EBUSY);
    let mut poller = p.cq_b.poller().unwrap();
    assert_eq!(p.cq_b.poll(&mut []).unwrap_err().errno(), errno::EBUSY);
    assert!(matches!(p.cq_b.poller(), Err(VerbsError::Split { .. })));

    let depth = sq.free();
    rq.post_recv(&[RecvWr::new(2, &[])]).unwrap();
    p.a.post_send(&[SendWr::send(3, &[]).signaled()]).unwrap();
    sq.post_send(&[SendWr::write(4, &[], 0, 0).signaled()]).unwrap();
    assert_eq!(sq.free(), depth - 1);
    assert_eq!((sq.qp_num(), rq.qp_num()), (p.b.qp_num(), p.b.qp_num()));
    p.done_a(1);
    let mut wc = [verbs::Wc::default(); 4];
    let mut ids = Vec::new();
    while ids.len() < 2 {
        common::pump(&p.context);
        let n = poller.poll(&mut wc).unwrap();
        ids.extend(wc[..n].iter().map(|wc| wc.wr_id));
    }
    ids.sort_unstable();
    assert_eq!(ids, [2, 4]);

    drop(sq);
    p.b.post_send(&[SendWr::write(5, &[], 0, 0)]).unwrap();
    assert_eq!(p.b.split().unwrap_err().errno(), errno::EBUSY, "the receive queue is still away");
    drop((rq, poller));
    drop(p.b.split().unwrap());
    assert!(p.cq_b.poll(&mut wc).is_ok());
}

#[test]
fn handles_keep_what_they_need() {
    let Pair { a, b, mr, cq_a, cq_b, pd, context } = Pair::new(embedded());
    let (mut sq, rq) = a.split().unwrap();
    let (e, a) = a.destroy().unwrap_err();
    assert_eq!(e.errno(), errno::EBUSY, "{e}");
    let poller = cq_a.poller().unwrap();
    let mut reactor = context.reactor(0).unwrap();
    drop((a, rq, pd, context, mr));
    sq.post_send(&[SendWr::write(1, &[], 0, 0)]).unwrap();
    reactor.poll_once().unwrap();
    let (e, cq_a) = cq_a.destroy().unwrap_err();
    assert_eq!(e.errno(), errno::EBUSY);
    drop(sq);
    let (e, cq_a) = cq_a.destroy().unwrap_err();
    assert_eq!(e.errno(), errno::EBUSY, "the poller: {e}");
    drop(poller);
    cq_a.destroy().unwrap();
    drop(b);
    cq_b.destroy().unwrap();
}

// Completions of a destroyed queue pair are not returned by a poll, and its number is not reused at once.
#[test]
fn destroyed_queue_pairs_leave_nothing() {
    let context = embedded();
    let pd = context.alloc_pd().unwrap();
    let cq = context.create_cq(64).unwrap();
    let mut numbers = std::collections::HashSet::new();
    for _ in 0..200 {
        let qp = pd.create_qp(&QpInitAttr::rc(&cq, &cq)).unwrap();
        assert!(numbers.insert(qp.qp_num()), "{:?} came twice", qp.qp_num());
        qp.connect_rc(&qp.endpoint(1).unwrap(), &options()).unwrap();
        qp.post_send(&[SendWr::write(1, &[], 0, 0).signaled()]).unwrap();
        for _ in 0..4 {
            common::pump(&context);
        }
        qp.destroy().unwrap();
    }
    common::assert_no_completion(&context, &cq);
}

#[test]
fn a_region_that_is_gone_grants_nothing() {
    let p = Pair::new(embedded());
    let gone = p.pd.reg_mr(64, all_rights()).unwrap();
    let (addr, key) = (gone.addr(), gone.rkey());
    gone.dereg().unwrap();
    p.a.post_send(&[SendWr::write(1, &[p.mr.sge(0..8).unwrap()], addr, key)]).unwrap();
    assert_eq!(p.done_a(1)[0].status, WcStatus::RemAccessErr);
}

// A shard's cached key check for one message does not outlast its turn.
#[test]
fn a_region_that_goes_between_two_messages_takes_only_the_first() {
    let p = Pair::new(embedded());
    let gone = p.pd.reg_mr(64, all_rights()).unwrap();
    let list = [gone.sge(0..8).unwrap()];
    p.b.post_recv(&[RecvWr::new(1, &list), RecvWr::new(2, &list)]).unwrap();
    let send = || p.a.post_send(&[SendWr::send(1, &[p.mr.sge(0..8).unwrap()]).signaled()]).unwrap();
    send();
    assert!(p.done_b(1)[0].is_ok() && p.done_a(1)[0].is_ok());
    gone.dereg().unwrap();
    send();
    assert_eq!(p.done_b(1)[0].status, WcStatus::LocProtErr);
    assert_eq!(p.done_a(1)[0].status, WcStatus::RemOpErr);
}

#[test]
fn copies_between_regions() {
    let context = embedded();
    let pd = context.alloc_pd().unwrap();
    let from = pd.reg_mr_from(&(0..=255).collect::<Vec<u8>>(), all_rights()).unwrap();
    for (at, range) in [(0, 0..256), (3, 7..8), (256, 5..5), (1, 1..255), (9, 100..120)] {
        let to = pd.reg_mr(256, all_rights()).unwrap();
        to.copy_from(at, &from, range.clone()).unwrap();
        let mut want = vec![0; 256];
        want[at..at + range.len()].copy_from_slice(&from.to_vec(range).unwrap());
        assert_eq!(to.to_vec(0..256).unwrap(), want);
    }
    from.copy_from(0, &from, 128..256).unwrap();
    assert_eq!(from.to_vec(0..2).unwrap(), [128, 129]);
}

#[test]
fn copies_in_and_out_of_a_region() {
    let context = embedded();
    let pd = context.alloc_pd().unwrap();
    for len in [1usize, 7, 8, 9, 100, 5000] {
        let mr = pd.reg_mr(len, all_rights()).unwrap();
        assert_eq!((mr.len(), mr.addr() % 4096, mr.is_empty()), (len, 0, false));
        for at in 0..len.min(17) {
            for n in [0, 1, 7, 8, 20].into_iter().chain([len - at]).filter(|n| at + n <= len) {
                mr.fill(0..len, 0xee).unwrap();
                let data: Vec<u8> = (0..n).map(|i| i as u8).collect();
                mr.write(at, &data).unwrap();
                let mut want = vec![0xee; len];
                want[at..at + n].copy_from_slice(&data);
                assert_eq!(mr.to_vec(0..len).unwrap(), want);
                let mut back = vec![0; n];
                mr.read(at, &mut back).unwrap();
                assert_eq!(back, data);
                mr.fill(at..at + n, 0x11).unwrap();
                want[at..at + n].fill(0x11);
                assert_eq!(mr.to_vec(0..len).unwrap(), want);
            }
        }
        assert_eq!(mr.read_u8(0).unwrap(), mr.to_vec(0..1).unwrap()[0]);
        assert!(mr.write(len, &[1]).is_err() && mr.write(usize::MAX, &[1]).is_err());
        assert!(mr.sge(0..len + 1).is_err() && mr.read(len, &mut []).is_ok());
    }
    let mr = pd.reg_mr_from(b"12345678abcdefgh", all_rights()).unwrap();
    assert_eq!(mr.read_u64(8).unwrap(), u64::from_ne_bytes(*b"abcdefgh"));
    mr.write_u64(0, 17).unwrap();
    let (word, relaxed) = (mr.atomic_u64(0).unwrap(), std::sync::atomic::Ordering::Relaxed);
    assert_eq!(word.fetch_add(1, relaxed), 17);
    assert_eq!(word.compare_exchange(17, 5, relaxed, relaxed), Err(18), "nothing has changed");
    assert_eq!(word.compare_exchange(18, 5, relaxed, relaxed), Ok(18));
    assert_eq!((word.swap(7, relaxed), word.fetch_sub(8, relaxed), word.load(relaxed)), (5, 7, u64::MAX));
    word.store(17, relaxed);
    assert_eq!(mr.read_u64(0).unwrap(), 17);
    assert!(matches!(mr.read_u64(4), Err(VerbsError::Misaligned { .. })));
    assert!(matches!(mr.read_u64(16), Err(VerbsError::OutOfRegion { .. })));
    let huge = pd.reg_mr(4 << 20, all_rights()).unwrap();
    assert_eq!(huge.addr() % (2 << 20), 0);
}

// The same seed gives the same numbers; without a seed they are unpredictable.
#[test]
fn numbers_come_from_the_seed() {
    let numbers = |seed: Option<u64>| {
        let config = DeviceConfig::loopback().seed(seed);
        let context = Context::open(config.drive(Drive::Embedded)).unwrap();
        let (pd, cq) = (context.alloc_pd().unwrap(), context.create_cq(1).unwrap());
        let qp = pd.create_qp(&QpInitAttr::rc(&cq, &cq)).unwrap();
        (qp.qp_num(), qp.first_psn(), pd.reg_mr(8, all_rights()).unwrap().rkey())
    };
    assert_eq!(numbers(Some(1)), numbers(Some(1)));
    assert_ne!(numbers(Some(1)), numbers(Some(2)));
    assert_ne!(numbers(None), numbers(None));
}
