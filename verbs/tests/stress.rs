//! Races between threads, each run for a while: ThreadSanitizer detects what a single-threaded simulator cannot.
//!
//! `STRESS_MS` sets the duration of each (default 250; `scripts/deep` takes longer, under ThreadSanitizer and
//! AddressSanitizer).

mod common;

use std::collections::HashSet;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use common::{PATIENCE, Pair, Stop, all_rights, enter, options};
use verbs::{Context, Cq, DeviceConfig, Drive, Qp, QpInitAttr, QpState, RecvWr, SendWr, Wc, WcStatus};

fn time() -> Duration {
    let ms = std::env::var("STRESS_MS").ok().and_then(|s| s.parse().ok()).unwrap_or(250);
    Duration::from_millis(ms)
}

fn drives() -> [Drive; 2] {
    [Drive::Caller, Drive::Dedicated { cores: vec![] }]
}

fn open(drive: Drive, shards: usize) -> Context {
    Context::open(DeviceConfig::loopback().shards(shards).drive(drive)).unwrap()
}

/// The tags that have completed; none may complete twice.
#[derive(Default)]
struct Seen(Mutex<HashSet<u64>>);

impl Seen {
    /// Polls a queue. Returns whether it had completions.
    fn poll(&self, cq: &Cq) -> bool {
        let mut wc = [Wc::default(); 16];
        let n = cq.poll(&mut wc).unwrap();
        let mut seen = self.0.lock().unwrap();
        for wc in &wc[..n] {
            assert!(seen.insert(wc.wr_id), "{wc:?} completes twice");
        }
        n > 0
    }

    fn count(&self) -> usize {
        self.0.lock().unwrap().len()
    }
}

/// Runs `bodies` on separate threads until the time is over, and `main` on this one, repeatedly.
fn press(bodies: &[&(dyn Fn() + Sync)], main: impl FnMut()) {
    press_until(|| true, bodies, main);
}

/// As [`press`], but continues until the race has happened: on a busy machine the threads may hardly overlap.
fn press_until(happened: impl Fn() -> bool, bodies: &[&(dyn Fn() + Sync)], mut main: impl FnMut()) {
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for body in bodies {
            let stop = &stop;
            scope.spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    body();
                }
            });
        }
        let _stop = Stop(&stop);
        let start = Instant::now();
        while start.elapsed() < time() || !happened() && start.elapsed() < PATIENCE {
            main();
        }
    });
}

/// A clean cycle: from any state to RTS, connected to itself, then one message with both completions.
fn works(context: &Context, qp: &Qp, cq: &Cq) {
    enter(qp, QpState::Reset);
    qp.connect_rc(&qp.endpoint(1).unwrap(), &options()).unwrap();
    let ids = [u64::MAX, u64::MAX - 1];
    qp.post_recv(&[RecvWr::new(ids[0], &[])]).unwrap();
    qp.post_send(&[SendWr::send(ids[1], &[]).signaled()]).unwrap();
    let done = common::take(context, cq, 2);
    assert!(done.iter().all(|wc| wc.is_ok() && ids.contains(&wc.wr_id)), "{done:?}");
}

// Two threads post to one queue pair, one polls, one cycles it through its states.
#[test]
fn post_against_modify() {
    for drive in drives() {
        let context = open(drive, 1);
        let pd = context.alloc_pd().unwrap();
        let cq = context.create_cq(8192).unwrap();
        let qp = pd.create_qp(&QpInitAttr::rc(&cq, &cq).sig_all()).unwrap();
        let (seen, next, posted) = (Seen::default(), AtomicU64::new(0), AtomicUsize::new(0));
        let post = || {
            let id = next.fetch_add(2, Ordering::Relaxed);
            // Refused in states that accept no requests, and when the queue is full.
            let received = qp.post_recv(&[RecvWr::new(id, &[])]).is_ok();
            let sent = qp.post_send(&[SendWr::send(id + 1, &[])]).is_ok();
            posted.fetch_add(usize::from(received) + usize::from(sent), Ordering::Relaxed);
            // Polls, so that the queue cannot overrun however the threads are scheduled.
            seen.poll(&cq);
        };
        let poll = || {
            seen.poll(&cq);
        };
        press_until(
            || posted.load(Ordering::Relaxed) > 0,
            &[&post, &post, &poll],
            || {
                qp.connect_rc(&qp.endpoint(1).unwrap(), &options()).unwrap();
                std::thread::yield_now();
                enter(&qp, QpState::Err);
                enter(&qp, QpState::Reset);
            },
        );
        assert!(posted.into_inner() > 0);
        while seen.poll(&cq) {}
        works(&context, &qp, &cq);
    }
}

// One thread polls the completion queue of queue pairs that another thread creates, loads and destroys.
#[test]
fn poll_against_destroy() {
    for drive in drives() {
        let context = open(drive, 2);
        let pd = context.alloc_pd().unwrap();
        let cq = context.create_cq(8192).unwrap();
        let (seen, next) = (Seen::default(), AtomicU64::new(0));
        let poll = || {
            seen.poll(&cq);
        };
        let live = || {
            let shard = next.load(Ordering::Relaxed) as usize / 16 % 2;
            let qp = pd.create_qp(&QpInitAttr::rc(&cq, &cq).on_shard(shard)).unwrap();
            qp.connect_rc(&qp.endpoint(1).unwrap(), &options()).unwrap();
            for _ in 0..4 {
                let id = next.fetch_add(2, Ordering::Relaxed);
                qp.post_recv(&[RecvWr::new(id, &[])]).unwrap();
                qp.post_send(&[SendWr::send(id + 1, &[]).signaled()]).unwrap();
            }
            poll();
            qp.destroy().unwrap();
        };
        press(&[&poll, &live], live);
        let qp = pd.create_qp(&QpInitAttr::rc(&cq, &cq)).unwrap();
        while seen.poll(&cq) {}
        works(&context, &qp, &cq);
    }
}

// A region is deregistered while the peer writes and reads it: the peer gets an error, and no byte is written to freed memory.
#[test]
fn dereg_against_traffic() {
    for drive in drives() {
        let p = Pair::new(open(drive, 1));
        let target = Mutex::new((p.mr.addr(), p.mr.rkey()));
        let refused = AtomicUsize::new(0);
        let seen = Seen::default();
        let next = AtomicU64::new(0);
        let traffic = || {
            let (va, key) = *target.lock().unwrap();
            let local = [p.mr.sge(0..2000).unwrap()];
            for _ in 0..4 {
                let id = next.fetch_add(2, Ordering::Relaxed);
                let wrs =
                    [SendWr::write(id, &local, va, key).signaled(), SendWr::read(id + 1, &local, va, key)];
                if p.a.post_send(&wrs).is_err() {
                    break;
                }
            }
            let mut wc = [Wc::default(); 16];
            let n = p.cq_a.poll(&mut wc).unwrap();
            for wc in &wc[..n] {
                assert!(seen.0.lock().unwrap().insert(wc.wr_id), "{wc:?} completes twice");
                match wc.status {
                    WcStatus::Success | WcStatus::WrFlushErr => {}
                    WcStatus::RemAccessErr => {
                        refused.fetch_add(1, Ordering::Relaxed);
                    }
                    status => panic!("{status:?}"),
                }
            }
            if p.a.state().unwrap() == QpState::Err {
                enter(&p.a, QpState::Reset);
                enter(&p.b, QpState::Reset);
                p.a.connect_rc(&p.b.endpoint(1).unwrap(), &options()).unwrap();
                p.b.connect_rc(&p.a.endpoint(1).unwrap(), &options()).unwrap();
            }
        };
        press_until(
            || refused.load(Ordering::Relaxed) > 0,
            &[&traffic],
            || {
                let mr = p.pd.reg_mr(4096, all_rights()).unwrap();
                *target.lock().unwrap() = (mr.addr(), mr.rkey());
                std::thread::yield_now();
                mr.dereg().unwrap();
            },
        );
        assert!(refused.into_inner() > 0, "no key went while it was used");
    }
}

// Threads compete for the shard: some drive it, some poll, some make control calls, some post.
#[test]
fn hand_over_of_the_claim() {
    for drive in [Drive::Caller, Drive::Embedded, Drive::Dedicated { cores: vec![] }] {
        let p = Pair::new(open(drive.clone(), 1));
        let (sent, received, next) = (Seen::default(), Seen::default(), AtomicU64::new(0));
        let (asked, turned) = (Mutex::new(0), AtomicUsize::new(0));
        let turn = || {
            let mut reactor = p.context.reactor(0).unwrap();
            for _ in 0..32 {
                turned.fetch_add(usize::from(reactor.poll_once().is_some()), Ordering::Relaxed);
            }
        };
        let poll = || {
            sent.poll(&p.cq_a);
            received.poll(&p.cq_b);
        };
        let post = || {
            let id = next.fetch_add(1, Ordering::Relaxed);
            let start = Instant::now();
            // One message at a time, so that as many are received as are sent, and never so many that a queue overruns.
            let mut asked = asked.lock().unwrap();
            while sent.count() + 1000 < *asked || received.count() + 1000 < *asked {
                poll();
                common::pump(&p.context);
                assert!(start.elapsed() < PATIENCE, "{} sent, {} received", sent.count(), received.count());
            }
            while p.b.post_recv(&[RecvWr::new(id, &[])]).is_err() {
                received.poll(&p.cq_b);
                common::pump(&p.context);
                assert!(start.elapsed() < PATIENCE, "the receive queue stays full");
            }
            while p.a.post_send(&[SendWr::send(id, &[]).signaled()]).is_err() {
                sent.poll(&p.cq_a);
                common::pump(&p.context);
                assert!(start.elapsed() < PATIENCE, "the send queue stays full");
            }
            *asked += 1;
        };
        // In the dedicated drive, the device's thread may leave no turn to another thread.
        let alone = matches!(drive, Drive::Dedicated { .. });
        let all = || next.load(Ordering::Relaxed) > 0 && (alone || turned.load(Ordering::Relaxed) > 0);
        press_until(all, &[&turn, &post, &poll], || {
            let qp = p.pd.create_qp(&QpInitAttr::rc(&p.cq_a, &p.cq_a)).unwrap();
            qp.connect_rc(&qp.endpoint(1).unwrap(), &options()).unwrap();
            qp.query().unwrap();
            qp.destroy().unwrap();
        });
        let asked = asked.into_inner().unwrap();
        let start = Instant::now();
        while sent.count() < asked || received.count() < asked {
            let (sent, received) = (sent.count(), received.count());
            assert!(start.elapsed() < PATIENCE, "{drive:?}: {sent} sent and {received} received of {asked}");
            common::pump(&p.context);
            poll();
        }
        assert!(asked > 0 && (alone || turned.into_inner() > 0), "{drive:?}: {asked} asked");
    }
}
