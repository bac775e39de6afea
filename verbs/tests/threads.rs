//! Threads: a single thread, several threads that share a queue, and reactors that control each other's queue pairs.

mod common;

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use common::{PATIENCE, Pair, Stop, all_rights, enter, options};
use verbs::port::{Port, pair};
use verbs::{
    AsyncEvent, AttrMask, Context, CqPoller, DeviceConfig, Drive, EventElement, QpCap, QpInitAttr, QpState,
    RecvWr, SendWr, Wc, attr_to,
};

fn drives() -> [Drive; 3] {
    [Drive::Caller, Drive::Embedded, Drive::Dedicated { cores: vec![] }]
}

fn open(port: Box<dyn Port>, last: u8, drive: &Drive, shards: usize) -> Context {
    let config = DeviceConfig::new(port).addr([192, 0, 2, last], 24).shards(shards).drive(drive.clone());
    Context::open(config).unwrap()
}

/// Polls until `n` completions have arrived; in the embedded drive it drives both devices meanwhile.
fn poll(drive: &Drive, contexts: [&Context; 2], cq: &verbs::Cq, n: usize) -> Vec<Wc> {
    let start = Instant::now();
    let (mut done, mut wc) = (Vec::new(), [Wc::default(); 32]);
    while done.len() < n {
        assert!(start.elapsed() < PATIENCE, "{} of {n} in {drive:?}", done.len());
        if *drive == Drive::Embedded {
            contexts.into_iter().for_each(common::pump);
        }
        let got = cq.poll(&mut wc).unwrap();
        done.extend_from_slice(&wc[..got]);
    }
    assert!(done.iter().all(Wc::is_ok), "{done:?}");
    done
}

// A queue of one request: a thread that has polled its completion can post the next one, whichever thread drives the shard.
#[test]
fn who_polled_a_completion_finds_room() {
    let drive = Drive::Dedicated { cores: vec![] };
    let (a, b) = pair(1);
    let (a, b) = (open(a, 1, &drive, 1), open(b, 2, &drive, 1));
    let (pd_a, pd_b) = (a.alloc_pd().unwrap(), b.alloc_pd().unwrap());
    let (cq_a, cq_b) = (a.create_cq(4).unwrap(), b.create_cq(4).unwrap());
    let mr = [pd_a.reg_mr(64, all_rights()).unwrap(), pd_b.reg_mr(64, all_rights()).unwrap()];
    let one = QpCap { max_send_wr: 1, max_recv_wr: 1, ..QpInitAttr::rc(&cq_a, &cq_a).cap };
    let qp_a = pd_a.create_qp(&QpInitAttr::rc(&cq_a, &cq_a).cap(one)).unwrap();
    let qp_b = pd_b.create_qp(&QpInitAttr::rc(&cq_b, &cq_b).cap(one)).unwrap();
    qp_a.connect_rc(&qp_b.endpoint(1).unwrap(), &options()).unwrap();
    qp_b.connect_rc(&qp_a.endpoint(1).unwrap(), &options()).unwrap();
    for n in 0..50 {
        qp_b.post_recv(&[RecvWr::new(n, &[mr[1].sge(0..8).unwrap()])]).unwrap();
        qp_a.post_send(&[SendWr::send(n, &[mr[0].sge(0..8).unwrap()]).signaled()]).unwrap();
        poll(&drive, [&a, &b], &cq_b, 1);
        poll(&drive, [&a, &b], &cq_a, 1);
    }
}

// Two shards, each with its own queue and peer: no traffic of one passes through the other.
#[test]
fn two_shards_share_nothing_on_the_data_path() {
    const MESSAGES: u64 = 200;
    let drive = Drive::Embedded;
    let (a, b) = pair(2);
    let (a, b) = (open(a, 1, &drive, 2), open(b, 2, &drive, 2));
    let (pd_a, pd_b) = (a.alloc_pd().unwrap(), b.alloc_pd().unwrap());
    let mr = [pd_a.reg_mr(64, all_rights()).unwrap(), pd_b.reg_mr(64, all_rights()).unwrap()];
    let mut ends = Vec::new();
    for shard in [0, 1] {
        let (cq_a, cq_b) = (a.create_cq(64).unwrap(), b.create_cq(64).unwrap());
        let qp_a = pd_a.create_qp(&QpInitAttr::rc(&cq_a, &cq_a).on_shard(shard)).unwrap();
        let qp_b = pd_b.create_qp(&QpInitAttr::rc(&cq_b, &cq_b).on_shard(shard)).unwrap();
        qp_a.connect_rc(&qp_b.endpoint(1).unwrap(), &options()).unwrap();
        qp_b.connect_rc(&qp_a.endpoint(1).unwrap(), &options()).unwrap();
        ends.push((qp_a, qp_b, cq_a, cq_b));
    }
    for n in 0..MESSAGES {
        for (qp_a, qp_b, ..) in &ends {
            qp_b.post_recv(&[RecvWr::new(n, &[mr[1].sge(0..8).unwrap()])]).unwrap();
            qp_a.post_send(&[SendWr::send(n, &[mr[0].sge(0..8).unwrap()]).signaled()]).unwrap();
        }
        for (_, _, cq_a, cq_b) in &ends {
            poll(&drive, [&a, &b], cq_b, 1);
            poll(&drive, [&a, &b], cq_a, 1);
        }
    }
    for context in [&a, &b] {
        let counters = context.counters();
        let of = |wanted: &str| counters.iter().find(|(name, _)| *name == wanted).map(|(_, n)| n);
        assert_eq!((of("handed_over"), of("to_self")), (Some(0), Some(0)));
        assert!(of("tx_frames") >= Some(2 * MESSAGES) && of("rx_frames") >= Some(2 * MESSAGES));
    }
}

// Two devices on a link, so that neighbours are resolved, too, and a single thread.
#[test]
fn a_single_thread_does_everything_in_each_drive() {
    for drive in drives() {
        let (a, b) = pair(2);
        let (a, b) = (open(a, 1, &drive, 2), open(b, 2, &drive, 2));
        let (pd_a, pd_b) = (a.alloc_pd().unwrap(), b.alloc_pd().unwrap());
        let (cq_a, cq_b) = (a.create_cq(64).unwrap(), b.create_cq(64).unwrap());
        let (mr_a, mr_b) =
            (pd_a.reg_mr(1 << 16, all_rights()).unwrap(), pd_b.reg_mr(1 << 16, all_rights()).unwrap());
        mr_a.write(0, b"over the link").unwrap();
        for shard in [0, 1] {
            let qp_a = pd_a.create_qp(&QpInitAttr::rc(&cq_a, &cq_a).on_shard(shard)).unwrap();
            let qp_b = pd_b.create_qp(&QpInitAttr::rc(&cq_b, &cq_b).on_shard(shard)).unwrap();
            assert_eq!((qp_a.shard(), qp_b.shard()), (shard, shard));
            qp_a.connect_rc(&qp_b.endpoint(1).unwrap(), &options()).unwrap();
            qp_b.connect_rc(&qp_a.endpoint(1).unwrap(), &options()).unwrap();
            qp_b.post_recv(&[RecvWr::new(1, &[mr_b.sge(0..100).unwrap()])]).unwrap();
            qp_a.post_send(&[SendWr::send(2, &[mr_a.sge(0..13).unwrap()]).signaled()]).unwrap();
            assert_eq!(poll(&drive, [&a, &b], &cq_b, 1)[0].byte_len, 13);
            poll(&drive, [&a, &b], &cq_a, 1);
            assert_eq!(mr_b.to_vec(0..13).unwrap(), b"over the link");
            let whole = [mr_a.sge(0..1 << 16).unwrap()];
            qp_a.post_send(&[SendWr::read(3, &whole, mr_b.addr(), mr_b.rkey()).signaled()]).unwrap();
            poll(&drive, [&a, &b], &cq_a, 1);

            let (mut attr, mask) = attr_to(QpState::Sqd);
            attr.en_sqd_async_notify = true;
            qp_a.modify(&attr, mask | AttrMask::EN_SQD_ASYNC_NOTIFY).unwrap();
            let event = a.get_async_event(PATIENCE).unwrap().unwrap();
            assert_eq!(
                (event.event, event.element),
                (AsyncEvent::SqDrained, EventElement::Qp(qp_a.qp_num()))
            );
            drop(event);
            enter(&qp_a, QpState::Err);
            qp_a.destroy().unwrap();
            qp_b.destroy().unwrap();
        }
        mr_a.dereg().unwrap();
        mr_b.dereg().unwrap();
        cq_a.destroy().unwrap();
        cq_b.destroy().unwrap();
        pd_a.dealloc().unwrap();
        pd_b.dealloc().unwrap();
        assert!(a.counters().iter().any(|(name, value)| name == "tx_frames" && value > 0));
        a.close().unwrap();
        b.close().unwrap();
    }
}

// No thread polls: the helper thread answers, and a peer sees that.
#[test]
fn the_helper_works_while_nobody_polls() {
    let (a, b) = pair(1);
    let (a, b) = (open(a, 1, &Drive::Caller, 1), open(b, 2, &Drive::Caller, 1));
    let (pd_a, pd_b) = (a.alloc_pd().unwrap(), b.alloc_pd().unwrap());
    let (cq_a, cq_b) = (a.create_cq(64).unwrap(), b.create_cq(64).unwrap());
    let qp_a = pd_a.create_qp(&QpInitAttr::rc(&cq_a, &cq_a)).unwrap();
    let qp_b = pd_b.create_qp(&QpInitAttr::rc(&cq_b, &cq_b)).unwrap();
    qp_a.connect_rc(&qp_b.endpoint(1).unwrap(), &options()).unwrap();
    qp_b.connect_rc(&qp_a.endpoint(1).unwrap(), &options()).unwrap();
    let mr = pd_b.reg_mr(64, all_rights()).unwrap();
    qp_a.post_send(&[
        SendWr::write(1, &[], 0, 0),
        SendWr::write(2, &[], mr.addr(), mr.rkey()).inline(b"helped"),
    ])
    .unwrap();
    let start = Instant::now();
    while mr.read_u8(5).unwrap() != b'd' {
        assert!(start.elapsed() < PATIENCE);
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(mr.to_vec(0..6).unwrap(), b"helped");
}

// Each request completes exactly once although two threads post to either end of one connection. A request may be posted before the
// completion of the earlier request in its slot is polled: the queue has room for all completions.
#[test]
fn two_threads_post_through_the_plain_object() {
    const EACH: usize = 2000;
    let context = Context::open(DeviceConfig::loopback()).unwrap();
    let p = Pair::new(context);
    assert!([&p.cq_a, &p.cq_b].iter().all(|cq| cq.cqe() as usize >= 2 * EACH));
    let (received, stop) = (AtomicUsize::new(0), AtomicBool::new(false));
    std::thread::scope(|scope| {
        for thread in 0..2u64 {
            let (p, received, stop) = (&p, &received, &stop);
            scope.spawn(move || {
                let again = || {
                    std::thread::yield_now();
                    assert!(!stop.load(Ordering::Relaxed), "whoever polls has stopped");
                };
                for i in 0..EACH as u64 {
                    let id = thread << 32 | i;
                    while p.b.post_recv(&[RecvWr::new(id, &[])]).is_err() {
                        again();
                    }
                    while p.a.post_send(&[SendWr::send_with_imm(id, &[], i as u32).signaled()]).is_err() {
                        again();
                    }
                }
            });
            scope.spawn(move || {
                let _stop = Stop(stop);
                let start = Instant::now();
                let mut wc = [Wc::default(); 7];
                while received.load(Ordering::Relaxed) < 2 * EACH {
                    assert!(start.elapsed() < 3 * PATIENCE, "{} received", received.load(Ordering::Relaxed));
                    let n = p.cq_b.poll(&mut wc).unwrap();
                    assert!(wc[..n].iter().all(Wc::is_ok));
                    received.fetch_add(n, Ordering::Relaxed);
                }
            });
        }
        let _stop = Stop(&stop);
        let mut seen = std::collections::HashSet::new();
        let (start, mut wc) = (Instant::now(), [Wc::default(); 32]);
        while seen.len() < 2 * EACH {
            assert!(start.elapsed() < 3 * PATIENCE, "{} of {}", seen.len(), 2 * EACH);
            let n = p.cq_a.poll(&mut wc).unwrap();
            for wc in &wc[..n] {
                assert!(wc.is_ok() && seen.insert(wc.wr_id), "{wc:?}");
            }
        }
    });
    assert_eq!(received.load(Ordering::Relaxed), 2 * EACH);
}

// Two reactors, each on its own shard, modify queue pairs of the other's shard while both poll.
#[test]
fn control_calls_of_two_reactors_against_each_other() {
    let context = Context::open(DeviceConfig::loopback().shards(2).drive(Drive::Embedded)).unwrap();
    let pd = context.alloc_pd().unwrap();
    let busy = AtomicUsize::new(2);
    std::thread::scope(|scope| {
        for shard in 0..2 {
            let (context, pd, busy) = (&context, &pd, &busy);
            scope.spawn(move || {
                let mut reactor = context.reactor(shard).unwrap();
                let cq = context.create_cq(16).unwrap();
                let other = pd.create_qp(&QpInitAttr::rc(&cq, &cq).on_shard(1 - shard)).unwrap();
                for _ in 0..300 {
                    reactor.poll_once();
                    other.connect_rc(&other.endpoint(1).unwrap(), &options()).unwrap();
                    let mr = pd.reg_mr(64, all_rights()).unwrap();
                    reactor.poll_once();
                    mr.dereg().unwrap();
                    enter(&other, QpState::Err);
                    enter(&other, QpState::Reset);
                    let extra = pd.create_qp(&QpInitAttr::rc(&cq, &cq).on_shard(1 - shard)).unwrap();
                    reactor.poll_once();
                    drop(extra);
                }
                // Continues to poll until the other thread has finished.
                busy.fetch_sub(1, Ordering::Relaxed);
                let start = Instant::now();
                while busy.load(Ordering::Relaxed) > 0 && start.elapsed() < PATIENCE {
                    reactor.poll_once();
                }
            });
        }
    });
}

// A control call makes progress although other threads poll the shard in tight loops.
#[test]
fn control_calls_are_not_starved_by_hot_loops() {
    for drive in drives() {
        let context = Context::open(DeviceConfig::loopback().drive(drive.clone())).unwrap();
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    let mut reactor = context.reactor(0).unwrap();
                    while !stop.load(Ordering::Relaxed) {
                        reactor.poll_once();
                    }
                });
            }
            let _stop = Stop(&stop);
            let pd = context.alloc_pd().unwrap();
            let cq = context.create_cq(16).unwrap();
            let start = Instant::now();
            for _ in 0..50 {
                let qp = pd.create_qp(&QpInitAttr::rc(&cq, &cq)).unwrap();
                qp.connect_rc(&qp.endpoint(1).unwrap(), &options()).unwrap();
                qp.destroy().unwrap();
            }
            let took = start.elapsed();
            assert!(took < PATIENCE, "250 control calls took {took:?} in {drive:?}");
        });
    }
}

// One thread posts and polls by split handles while another resets the queue pair again and again.
#[test]
fn posts_against_resets() {
    let context = Context::open(DeviceConfig::loopback()).unwrap();
    let pd = context.alloc_pd().unwrap();
    let cq = context.create_cq(4096).unwrap();
    let qp = pd.create_qp(&QpInitAttr::rc(&cq, &cq).sig_all()).unwrap();
    let (mut sq, mut rq) = qp.split().unwrap();
    let mut poller: CqPoller = cq.poller().unwrap();
    let (stop, posted) = (AtomicBool::new(false), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let (stop, posted) = (&stop, &posted);
        scope.spawn(move || {
            let mut wc = [Wc::default(); 16];
            while !stop.load(Ordering::Relaxed) {
                // Errors are expected: the state changes all the time.
                let _ = rq.post_recv(&[RecvWr::new(1, &[])]);
                if sq.post_send(&[SendWr::send(2, &[]), SendWr::write(3, &[], 0, 0)]).is_ok() {
                    posted.store(true, Ordering::Relaxed);
                }
                poller.poll(&mut wc).unwrap();
            }
        });
        let _stop = Stop(stop);
        let (mut rounds, start) = (0, Instant::now());
        while rounds < 300 || !posted.load(Ordering::Relaxed) {
            assert!(start.elapsed() < PATIENCE, "nothing is posted in {rounds} lives");
            rounds += 1;
            qp.connect_rc(&qp.endpoint(1).unwrap(), &options()).unwrap();
            std::thread::sleep(Duration::from_micros(100));
            enter(&qp, QpState::Err);
            enter(&qp, QpState::Reset);
        }
    });
    // The queue pair still works after all of that.
    qp.connect_rc(&qp.endpoint(1).unwrap(), &options()).unwrap();
    qp.post_recv(&[RecvWr::new(7, &[])]).unwrap();
    qp.post_send(&[SendWr::send(8, &[])]).unwrap();
    let ids: Vec<u64> = common::take(&context, &cq, 2).iter().map(|wc| wc.wr_id).collect();
    assert!(ids.contains(&7) && ids.contains(&8), "{ids:?}");
}
