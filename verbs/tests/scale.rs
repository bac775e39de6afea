//! The maximum number of queue pairs of a shard, through the verbs API.

use std::collections::HashSet;
use std::time::Instant;

use crate::common::{self, Pair, all_rights, embedded_with, options};
use verbs::errno::ENOMEM;
use verbs::limits::QPS_PER_SHARD_MAX;
use verbs::port::pair;
use verbs::{
    Counter, DeviceConfig, Discard, Mtu, QpCap, QpInitAttr, RecvQueue, RecvWr, SendQueue, SendWr, Wc,
};

const SMALL: QpCap =
    QpCap { max_send_wr: 1, max_recv_wr: 1, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 0 };

// Every number of a shard is used for a queue pair that is connected to another; one more is refused; all are destroyed, and as many
// created again.
#[test]
fn as_many_queue_pairs_as_a_shard_has() {
    let context = embedded_with(DeviceConfig::loopback().qps_per_shard(QPS_PER_SHARD_MAX));
    let max = context.query_device().max_qp;
    assert_eq!(max, QPS_PER_SHARD_MAX);
    let (pd, cq) = (context.alloc_pd().unwrap(), context.create_cq(256).unwrap());
    let init = QpInitAttr::rc(&cq, &cq).cap(SMALL);
    let mut qps: Vec<_> = (0..max).map(|_| pd.create_qp(&init).unwrap()).collect();
    assert_eq!(pd.create_qp(&init).unwrap_err().errno(), ENOMEM);

    let options = options().max_rd_atomic(1).max_dest_rd_atomic(1);
    for (n, qp) in qps.iter().enumerate() {
        qp.connect_rc(&qps[n ^ 1].endpoint(1).unwrap(), &options).unwrap();
    }
    // An odd stride visits each of a power of two queue pairs once.
    let mut order = (0..max).map(|n| n.wrapping_mul(0x9e37_79b1) % max);
    assert!(max.is_power_of_two());
    for _ in 0..max / 64 {
        let visited: Vec<usize> = order.by_ref().take(64).collect();
        for &n in &visited {
            qps[n ^ 1].post_recv(&[RecvWr::new(n as u64, &[])]).unwrap();
            qps[n].post_send(&[SendWr::send(n as u64, &[]).signaled()]).unwrap();
        }
        let mut done: Vec<_> =
            common::take(&context, &cq, 128).iter().map(|wc| (wc.is_ok(), wc.wr_id)).collect();
        done.sort_unstable();
        let mut want: Vec<_> = visited.iter().flat_map(|&n| [(true, n as u64); 2]).collect();
        want.sort_unstable();
        assert_eq!(done, want);
    }
    qps.clear();
    qps.extend((0..max).map(|_| pd.create_qp(&init).unwrap()));
    let numbers: HashSet<_> = qps.iter().map(|qp| qp.qp_num()).collect();
    assert_eq!(numbers.len(), max);
}

// Enough queue pairs that shards prefetch their state, over a link: lists of messages in memory and inline, each to its own buffer,
// repeatedly.
#[test]
fn hundreds_between_two_devices() {
    const QPS: usize = 300;
    const LIST: usize = 3;
    const LEN: usize = 64;
    let (a, b) = pair(1);
    let open = |port, last: u8| {
        let context = embedded_with(DeviceConfig::new(port).addr([192, 0, 2, last], 24));
        let (pd, cq) = (context.alloc_pd().unwrap(), context.create_cq((QPS * LIST) as u32).unwrap());
        let mr = pd.reg_mr(QPS * LIST * LEN, all_rights()).unwrap();
        let cap = QpCap {
            max_send_wr: LIST as u32,
            max_recv_wr: LIST as u32,
            max_inline_data: LEN as u32,
            ..SMALL
        };
        let init = QpInitAttr::rc(&cq, &cq).cap(cap);
        let qps: Vec<_> = (0..QPS).map(|_| pd.create_qp(&init).unwrap()).collect();
        (context, cq, mr, qps)
    };
    let (a, b) = (open(a, 1), open(b, 2));
    for (n, qp) in a.3.iter().enumerate() {
        qp.connect_rc(&b.3[n].endpoint(1).unwrap(), &options()).unwrap();
        b.3[n].connect_rc(&qp.endpoint(1).unwrap(), &options()).unwrap();
    }
    let at = |q: usize, k: usize| (q * LIST + k) * LEN..(q * LIST + k + 1) * LEN;
    let contents = |round: u8, q: usize, k: usize| [round ^ (q * LIST + k) as u8; LEN];
    for round in 0..3 {
        for q in 0..QPS {
            let sges = [0, 1, 2].map(|k| [b.2.sge(at(q, k)).unwrap()]);
            let recvs: [_; LIST] = core::array::from_fn(|k| RecvWr::new(0, &sges[k]));
            b.3[q].post_recv(&recvs).unwrap();
            (0..LIST).for_each(|k| a.2.write(at(q, k).start, &contents(round, q, k)).unwrap());
            let sges = [0, 1, 2].map(|k| [a.2.sge(at(q, k)).unwrap()]);
            let inline = contents(round, q, 1);
            let send = |k: usize| SendWr::send(0, &sges[k]);
            a.3[q].post_send(&[send(0), SendWr::send(0, &[]).inline(&inline), send(2).signaled()]).unwrap();
        }
        let (mut sent, mut received) = (0, 0);
        let until = Instant::now() + common::PATIENCE;
        let mut wcs = [Wc::default(); 64];
        while (sent, received) != (QPS, QPS * LIST) {
            common::pump(&a.0);
            common::pump(&b.0);
            for (cq, n) in [(&a.1, &mut sent), (&b.1, &mut received)] {
                let got = cq.poll(&mut wcs).unwrap();
                assert!(wcs[..got].iter().all(Wc::is_ok), "{:?}", &wcs[..got]);
                *n += got;
            }
            assert!(Instant::now() < until, "{sent} sent and {received} received");
        }
        let mut is = [0; LEN];
        for (q, k) in (0..QPS).flat_map(|q| (0..LIST).map(move |k| (q, k))) {
            b.2.read(at(q, k).start, &mut is).unwrap();
            assert_eq!(is, contents(round, q, k), "message {k} of queue pair {q}");
        }
    }
}

// Hints about handles, in any order and more often than needed, then a message each way; and hints about memory, which keeps its
// contents.
#[test]
fn hints_change_nothing() {
    let pair = Pair::new(common::embedded());
    let (mut sqs, mut rqs): (Vec<_>, Vec<_>) =
        [&pair.a, &pair.b].into_iter().map(|qp| qp.split().unwrap()).unzip();
    for round in 0..4 {
        SendQueue::prefetch_each(&sqs, [1, 0, 1, 1].into_iter(), 1000);
        RecvQueue::prefetch_each(&rqs, [0, 1].into_iter(), round);
        SendQueue::prefetch_each(&[], core::iter::empty(), 1);
        rqs.iter().for_each(verbs::prefetch);
        for (n, rq) in rqs.iter_mut().enumerate() {
            rq.post_recv(&[RecvWr::new(n as u64, &[])]).unwrap();
        }
        for (n, sq) in sqs.iter_mut().enumerate() {
            sq.post_send(&[SendWr::send(10 + n as u64, &[]).signaled()]).unwrap();
        }
        for (cq, want) in [(&pair.cq_a, [0, 10]), (&pair.cq_b, [1, 11])] {
            let done = common::take(&pair.context, cq, 2);
            let mut done: Vec<_> = done.iter().map(|wc| (wc.is_ok(), wc.wr_id)).collect();
            done.sort_unstable();
            assert_eq!(done, want.map(|id| (true, id)));
        }
    }
    let memory: Vec<u64> = (0..1 << 20).collect();
    let told = verbs::huge_pages(&memory);
    assert!(memory.iter().copied().eq(0..1 << 20), "{told}");
    assert!(verbs::huge_pages::<u8>(&[]), "nothing to do is done");
}

#[test]
#[should_panic(expected = "index out of bounds")]
fn a_hint_about_no_queue() {
    let pair = Pair::new(common::embedded());
    SendQueue::prefetch_each(&[pair.a.split().unwrap().0], core::iter::once(1), 1);
}

// Goal: many queue pairs that a process connects to each other lose no packet, however many are on the way: packets for which the inbox of
// the shard has no room wait.
#[test]
fn hundreds_within_a_device_lose_nothing() {
    const QPS: usize = 500;
    const LEN: usize = 8 << 10;
    let context = embedded_with(DeviceConfig::loopback());
    let (pd, cq) = (context.alloc_pd().unwrap(), context.create_cq(4 * QPS as u32).unwrap());
    let mr = pd.reg_mr(2 * LEN, all_rights()).unwrap();
    let qps: Vec<_> = (0..QPS).map(|_| pd.create_qp(&QpInitAttr::rc(&cq, &cq)).unwrap()).collect();
    for (n, qp) in qps.iter().enumerate() {
        qp.connect_rc(&qps[n ^ 1].endpoint(1).unwrap(), &options().path_mtu(Mtu::Mtu1024)).unwrap();
    }
    let (from, to) = ([mr.sge(0..LEN).unwrap()], [mr.sge(LEN..2 * LEN).unwrap()]);
    for qp in &qps {
        let write = SendWr::write(0, &from, mr.addr() + LEN as u64, mr.rkey()).signaled();
        let read = SendWr::read(1, &to, mr.addr(), mr.rkey()).signaled();
        qp.post_send(&[write, read]).unwrap();
    }
    assert!(common::take(&context, &cq, 2 * QPS).iter().all(Wc::is_ok));
    let counters = context.counters();
    assert_eq!((counters.discarded(Discard::InboxFull), counters.get(Counter::Retransmitted)), (0, 0));
}
