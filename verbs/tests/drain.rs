//! Draining: when a drain returns, the completions of all requests that were posted before it are in their queues.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use crate::common::{self, PATIENCE, Pair, Stop, embedded, enter, options};
use crate::link::Link;
use verbs::{
    AsyncEvent, Context, Counter, DeviceConfig, DrainKind, Drive, EventElement, PostErrorKind, Qp,
    QpInitAttr, QpState, QpType, RecvWr, SendWr, Wc, WcStatus, errno,
};

use WcStatus::{RetryExcErr, Success, WrFlushErr};

fn drives() -> [Drive; 3] {
    [Drive::Embedded, Drive::Caller, Drive::Dedicated { cores: vec![] }]
}

/// Polls the queue without driving a shard.
fn poll_only(cq: &verbs::Cq) -> Vec<(u64, WcStatus)> {
    let mut wc = [Wc::default(); 64];
    let n = cq.poll(&mut wc).unwrap();
    wc[..n].iter().map(|wc| (wc.wr_id, wc.status)).collect()
}

fn sends(qp: &Qp, ids: std::ops::Range<u64>) {
    ids.for_each(|id| qp.post_send(&[SendWr::send(id, &[])]).unwrap());
}

fn receives(qp: &Qp, ids: std::ops::Range<u64>) {
    ids.for_each(|id| qp.post_recv(&[RecvWr::new(id, &[])]).unwrap());
}

fn flushed(ids: impl IntoIterator<Item = u64>) -> Vec<(u64, WcStatus)> {
    ids.into_iter().map(|id| (id, WrFlushErr)).collect()
}

// In the embedded drive the calling thread alone drives the device.
#[test]
fn both_queues_are_flushed_in_every_drive() {
    for drive in drives() {
        let p = Pair::new(Context::open(DeviceConfig::loopback().drive(drive.clone())).unwrap());
        // No receive at B: the first SEND is retried for ever.
        sends(&p.a, 0..5);
        receives(&p.a, 10..13);
        p.a.drain_qp(PATIENCE).unwrap();
        assert_eq!(p.a.state().unwrap(), QpState::Err);
        assert_eq!(poll_only(&p.cq_a), flushed((0..5).chain(10..13)), "{drive:?}");
        // In ERR already, and nothing in the queues.
        p.a.drain_qp(PATIENCE).unwrap();
        assert_eq!(poll_only(&p.cq_a), []);
        // In ERR already, with new requests.
        sends(&p.a, 20..22);
        receives(&p.a, 22..24);
        p.a.drain_qp(PATIENCE).unwrap();
        let mut done = poll_only(&p.cq_a);
        done.sort_by_key(|d| d.0);
        assert_eq!(done, flushed(20..24), "{drive:?}");
    }
}

#[test]
fn what_succeeded_before_completes_with_success() {
    let p = Pair::new(embedded());
    receives(&p.b, 0..2);
    p.a.post_send(&[SendWr::send(1, &[]).signaled()]).unwrap();
    // The completion of the first SEND is not polled; the second is not sent.
    for _ in 0..20 {
        common::pump(&p.context);
    }
    p.a.post_send(&[SendWr::send(2, &[])]).unwrap();
    p.a.drain_qp(PATIENCE).unwrap();
    assert_eq!(poll_only(&p.cq_a), [(1, Success), (2, WrFlushErr)]);
    p.b.drain_rq(PATIENCE).unwrap();
    assert_eq!(poll_only(&p.cq_b), [(0, Success), (1, WrFlushErr)]);
}

#[test]
fn empty_queues_in_every_state() {
    let context = embedded();
    let (pd, cq) = (context.alloc_pd().unwrap(), context.create_cq(8).unwrap());
    let all = |qp: &Qp| {
        qp.drain_qp(Duration::ZERO).or_else(|_| qp.drain_qp(PATIENCE)).unwrap();
        assert_eq!(qp.state().unwrap(), QpState::Err);
        qp.drain_sq(PATIENCE).unwrap();
        qp.drain_rq(PATIENCE).unwrap();
        assert_eq!(qp.drain_by_sqd(PATIENCE).unwrap(), QpState::Err);
        assert_eq!(poll_only(&cq), []);
    };
    for kind in [QpType::Rc, QpType::Uc, QpType::Ud, QpType::Gsi] {
        let qp = pd.create_qp(&QpInitAttr::new(kind, &cq, &cq)).unwrap();
        assert_eq!(qp.begin_drain(DrainKind::Sqd).unwrap_err().errno(), errno::EINVAL, "SQD from RESET");
        all(&qp);
    }
    let qp = pd.create_qp(&QpInitAttr::rc(&cq, &cq)).unwrap();
    qp.init_rc(&options()).unwrap();
    assert_eq!(qp.drain_by_sqd(PATIENCE).unwrap_err().errno(), errno::EINVAL, "SQD from INIT");
    assert_eq!(qp.state().unwrap(), QpState::Init, "and nothing changed");
    all(&qp);
    enter(&qp, QpState::Reset);
    qp.init_rc(&options()).unwrap();
    receives(&qp, 1..3);
    qp.drain_rq(PATIENCE).unwrap();
    assert_eq!(poll_only(&cq), flushed(1..3), "receives are posted from INIT on");
}

#[test]
fn one_queue_at_a_time() {
    let p = Pair::new(embedded());
    sends(&p.a, 0..2);
    p.a.drain_sq(PATIENCE).unwrap();
    assert_eq!((p.a.state().unwrap(), poll_only(&p.cq_a)), (QpState::Err, flushed(0..2)));
    receives(&p.b, 2..4);
    p.b.drain_rq(PATIENCE).unwrap();
    assert_eq!((p.b.state().unwrap(), poll_only(&p.cq_b)), (QpState::Err, flushed(2..4)));
}

#[test]
fn a_dead_peer() {
    let link = Link::new();
    link.valve.shut();
    sends(&link.a.qp, 0..3);
    link.turns(5);
    receives(&link.a.qp, 3..5);
    link.a.qp.drain_qp(PATIENCE).unwrap();
    assert_eq!(link.a.done(), flushed(0..5));
}

#[test]
fn a_full_completion_queue_loses_completions_and_ends() {
    let context = embedded();
    let (pd, cq) = (context.alloc_pd().unwrap(), context.create_cq(4).unwrap());
    let qp = pd.create_qp(&QpInitAttr::rc(&cq, &cq)).unwrap();
    qp.init_rc(&options()).unwrap();
    receives(&qp, 0..100);
    qp.drain_qp(PATIENCE).unwrap();
    let events = std::iter::from_fn(|| context.try_get_async_event());
    assert!(events.map(|e| e.event).any(|e| e == AsyncEvent::CqErr), "the overrun is told");
    assert!(context.counters().get(Counter::CqOverflows) > 0);
    qp.drain_qp(PATIENCE).unwrap();
}

// The program drains without blocking, by begin_drain, and polls its shard itself.
#[test]
fn in_steps_from_a_reactor_of_ones_own() {
    let p = Pair::new(embedded());
    sends(&p.a, 0..3);
    let mut drain = p.a.begin_drain(DrainKind::Qp).unwrap();
    assert!(!drain.try_finish().unwrap(), "completions are published by a turn");
    assert_eq!(drain.wait(Duration::ZERO).map_err(|e| e.errno()), Err(errno::ETIMEDOUT));
    let mut reactor = p.context.reactor(0).unwrap();
    let mut turns = 0;
    while !drain.try_finish().unwrap() {
        assert!(turns < 10);
        reactor.poll_once();
        turns += 1;
    }
    assert_eq!(poll_only(&p.cq_a), flushed(0..3));
}

// A RESET discards the requests to be drained.
#[test]
fn a_reset_ends_a_drain() {
    let p = Pair::new(embedded());
    sends(&p.a, 0..3);
    let mut drain = p.a.begin_drain(DrainKind::Qp).unwrap();
    enter(&p.a, QpState::Reset);
    assert!(drain.try_finish().unwrap());
    assert_eq!(poll_only(&p.cq_a), []);
}

#[test]
fn orderly_waits_for_the_peer_and_can_go_on() {
    let link = Link::new();
    let (a, b) = (&link.a, &link.b);
    receives(&b.qp, 0..2);
    link.valve.shut();
    a.qp.post_send(&[SendWr::send(1, &[]).signaled()]).unwrap();
    link.turns(5);
    let mut drain = a.qp.begin_drain(DrainKind::Sqd).unwrap();
    a.qp.post_send(&[SendWr::send(2, &[]).signaled()]).unwrap();
    receives(&a.qp, 3..4);
    link.turns(5);
    assert!(!drain.try_finish().unwrap());
    assert_eq!(drain.wait(Duration::from_millis(1)).unwrap_err().errno(), errno::ETIMEDOUT);
    assert_eq!(a.qp.state().unwrap(), QpState::Sqd);
    // Checked once more after the answers have arrived.
    link.valve.open();
    link.turns(10);
    assert!(drain.try_finish().unwrap());
    assert_eq!(a.qp.drain_by_sqd(PATIENCE).unwrap(), QpState::Sqd);
    assert_eq!(a.done(), [(1, Success)], "with its success, and nothing else");
    assert_eq!(a.drained_events(), 0);
    a.to(QpState::Rts);
    link.turns(10);
    assert_eq!(a.done(), [(2, Success)]);
    assert_eq!(a.qp.drain_by_sqd(PATIENCE).unwrap(), QpState::Sqd);
    a.qp.drain_qp(PATIENCE).unwrap();
    assert_eq!(a.done(), flushed([3]));
}

#[test]
fn orderly_with_a_dead_peer_ends_in_err_with_everything_flushed() {
    let options = verbs::RcOptions::default().timeout(8).retry_cnt(1);
    let link = Link::with(&options, |init| init);
    let a = &link.a;
    link.valve.shut();
    sends(&a.qp, 1..2);
    receives(&a.qp, 3..5);
    link.turns(5);
    let mut drain = a.qp.begin_drain(DrainKind::Sqd).unwrap();
    sends(&a.qp, 2..3);
    link.wait(Duration::from_millis(30));
    drain.wait(PATIENCE).unwrap();
    assert_eq!(a.qp.drain_by_sqd(PATIENCE).unwrap(), QpState::Err);
    assert_eq!(a.done(), [vec![(1, RetryExcErr)], flushed(2..5)].concat());
    assert_eq!(a.drained_events(), 0);
}

/// Threads post to a queue pair of their own device all the time, while it is drained. When the drain returns, the completions of
/// requests posted before are in the queue, and every accepted request gets its completion. As every program must, the threads post no
/// more than the completion queue has room for.
#[test]
fn concurrent_posters_lose_nothing() {
    for drive in drives() {
        let context = Context::open(DeviceConfig::loopback().drive(drive.clone())).unwrap();
        let p = Pair::new(context);
        let (mut sq, mut rq) = p.a.split().unwrap();
        let (sent, received) = (AtomicU64::new(0), AtomicU64::new(0));
        // Numbers of polled completions of sends and of receives: each kind has half of the completion queue.
        let (sends_done, receives_done) = (AtomicU64::new(0), AtomicU64::new(0));
        let half = u64::from(p.cq_a.cqe()) / 2;
        let wait_for_room = |posted: &AtomicU64, done: &AtomicU64| {
            let full = posted.load(Ordering::Acquire) - done.load(Ordering::Acquire) >= half;
            if full {
                std::thread::yield_now();
            }
            full
        };
        // Polls all available completions; returns how many were polled in total.
        let take = || {
            let mut wc = [Wc::default(); 256];
            loop {
                let n = p.cq_a.poll(&mut wc).unwrap();
                for wc in &wc[..n] {
                    (if wc.wr_id == 0 { &sends_done } else { &receives_done }).fetch_add(1, Ordering::AcqRel);
                }
                if n < wc.len() {
                    return (sends_done.load(Ordering::Acquire), receives_done.load(Ordering::Acquire));
                }
            }
        };
        let stop = AtomicBool::new(false);
        std::thread::scope(|s| {
            s.spawn(|| {
                while !stop.load(Ordering::Acquire) {
                    if wait_for_room(&sent, &sends_done) {
                        continue;
                    }
                    match sq.post_send(&[SendWr::send(0, &[]).signaled()]) {
                        Ok(()) => drop(sent.fetch_add(1, Ordering::AcqRel)),
                        Err(e) => {
                            assert!(matches!(e.kind, PostErrorKind::Full { .. }), "{e}");
                            std::thread::yield_now();
                        }
                    }
                }
            });
            s.spawn(|| {
                while !stop.load(Ordering::Acquire) {
                    if wait_for_room(&received, &receives_done) {
                        continue;
                    }
                    match rq.post_recv(&[RecvWr::new(1, &[])]) {
                        Ok(()) => drop(received.fetch_add(1, Ordering::AcqRel)),
                        Err(e) => {
                            assert!(matches!(e.kind, PostErrorKind::Full { .. }), "{e}");
                            std::thread::yield_now();
                        }
                    }
                }
            });
            let _stop = Stop(&stop);
            while sent.load(Ordering::Acquire) < 10 || received.load(Ordering::Acquire) < 10 {
                std::thread::yield_now();
            }
            for _ in 0..20 {
                let before = (sent.load(Ordering::Acquire), received.load(Ordering::Acquire));
                p.a.drain_qp(PATIENCE).unwrap();
                let done = take();
                assert!(done.0 >= before.0 && done.1 >= before.1, "{done:?} of {before:?} in {drive:?}");
            }
        });
        p.a.drain_qp(PATIENCE).unwrap();
        let posted = (sent.load(Ordering::Acquire), received.load(Ordering::Acquire));
        assert_eq!(take(), posted, "each once, in {drive:?}");
    }
}

// The drain adds no completion and polls none: another thread may be polling the queue.
#[test]
fn the_completion_queue_is_left_alone() {
    let p = Pair::new(embedded());
    let mut poller = p.cq_a.poller().unwrap();
    sends(&p.a, 0..3);
    p.a.drain_qp(PATIENCE).unwrap();
    let mut wc = [Wc::default(); 8];
    assert_eq!(poller.poll(&mut wc).unwrap(), 3);
    let element = EventElement::Qp(p.a.qp_num());
    let events = std::iter::from_fn(|| p.context.try_get_async_event());
    assert_eq!(events.filter(|e| e.element == element).count(), 0, "nor is there an event");
}
