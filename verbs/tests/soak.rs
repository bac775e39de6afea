//! Creates and destroys many queue pairs under load, and checks for leaks of buffers, keys, slots, numbers, descriptors, threads and
//! memory.
//!
//! `SOAK_SECONDS` sets the duration (default 2; `scripts/deep` runs it for minutes).

mod common;

use std::collections::HashMap;
use std::fs;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use common::{PATIENCE, all_rights, enter, options};
use verbs::port::{Frame, Port, PortLayer, PortOptions, PortQueue, QueueLayer, RxBurst, pair_with};
use verbs::{
    Context, Cq, DeviceConfig, Drive, Mr, Pd, Qp, QpInitAttr, QpState, RecvWr, SendWr, VerbsError, Wc,
    WcStatus,
};

const SHARDS: usize = 2;
/// Buffers of each queue of a port.
const FRAMES: usize = 512;
const QPS_PER_SHARD: usize = 32;
/// Threads that create, use and destroy queue pairs.
const WORKERS: u64 = 2;
/// Bytes of a memory region.
const REGION: usize = 16 << 10;
/// Allowed growth of the process after the warm-up, in KiB.
const GROWTH_KIB: u64 = 24 << 10;

/// Holds a port queue while no device uses it.
type Home = Arc<Mutex<Option<Box<dyn PortQueue>>>>;

/// A port whose queues return to it when the device is closed, so that the returned buffers can be counted.
struct Kept {
    port: Box<dyn Port>,
    queues: Vec<Home>,
}

struct KeptQueue {
    /// `None` only during the drop.
    queue: Option<Box<dyn PortQueue>>,
    home: Home,
}

impl Kept {
    fn new(port: Box<dyn Port>) -> Self {
        let queues = (0..port.info().queues).map(|i| port.take_queue(i));
        Self { queues: queues.map(|queue| Arc::new(Mutex::new(queue))).collect(), port }
    }
}

impl PortLayer for Kept {
    fn inner(&self) -> &dyn Port {
        &*self.port
    }
    fn take_queue(&self, index: usize) -> Option<Box<dyn PortQueue>> {
        let home = self.queues.get(index)?;
        let queue = home.lock().unwrap().take()?;
        Some(Box::new(KeptQueue { queue: Some(queue), home: home.clone() }))
    }
}

impl QueueLayer for KeptQueue {
    fn inner(&mut self) -> &mut dyn PortQueue {
        &mut **self.queue.as_mut().expect("it is there until it is dropped")
    }
}

impl Drop for KeptQueue {
    fn drop(&mut self) {
        *self.home.lock().unwrap() = self.queue.take();
    }
}

/// The SplitMix64 generator.
struct Random(u64);

impl Random {
    /// A number below `n`.
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ z >> 31) % n
    }
}

/// Number of entries of a directory.
fn entries(dir: &str) -> usize {
    fs::read_dir(dir).expect("Linux has it").count()
}

/// Resident memory of this process, in KiB.
fn rss_kib() -> u64 {
    let status = fs::read_to_string("/proc/self/status").expect("Linux has it");
    let line = status.lines().find_map(|l| l.strip_prefix("VmRSS:")).expect("it has this line");
    line.trim().trim_end_matches("kB").trim().parse().expect("a number")
}

/// One side of a connection, with everything that belongs to it.
struct Side {
    qp: Qp,
    mr: Mr,
    cq: Cq,
    pd: Pd,
}

impl Side {
    fn new(context: &Context, shard: usize) -> Self {
        let pd = context.alloc_pd().unwrap();
        let cq = context.create_cq(256).unwrap();
        let qp = pd.create_qp(&QpInitAttr::rc(&cq, &cq).on_shard(shard)).unwrap();
        let mr = pd.reg_mr(REGION, all_rights()).unwrap();
        Self { qp, mr, cq, pd }
    }

    /// Destroys the objects in the order that verbs require.
    fn destroy(self) {
        let fail = |e: VerbsError| panic!("{e}");
        self.qp.destroy().unwrap_or_else(|(e, _)| fail(e));
        self.mr.dereg().unwrap_or_else(|(e, _)| fail(e));
        self.cq.destroy().unwrap_or_else(|(e, _)| fail(e));
        self.pd.dealloc().unwrap_or_else(|(e, _)| fail(e));
    }
}

const SENDS: u64 = 24;
const RECEIVES: u64 = 16;

/// Makes a connection, loads it, and ends it in one of several ways. Returns the number of completed requests.
fn life(contexts: [&Context; 2], random: &mut Random) -> u64 {
    let shard = random.below(SHARDS as u64) as usize;
    let [a, b] = contexts.map(|c| Side::new(c, shard));
    a.qp.connect_rc(&b.qp.endpoint(1).unwrap(), &options()).unwrap();
    b.qp.connect_rc(&a.qp.endpoint(1).unwrap(), &options()).unwrap();
    a.mr.fill(0..REGION, random.below(256) as u8).unwrap();
    for i in 0..RECEIVES {
        b.qp.post_recv(&[RecvWr::new(i, &[b.mr.sge(0..4096).unwrap()])]).unwrap();
    }
    let mut sends = 0;
    for id in 0..SENDS {
        let len = random.below(4096) as usize;
        let local = [a.mr.sge(4096..4096 + len).unwrap()];
        let word = [a.mr.sge(0..8).unwrap()];
        let (va, key) = (b.mr.addr() + 8192, b.mr.rkey());
        let wr = match random.below(5) {
            0 if sends < RECEIVES => {
                sends += 1;
                SendWr::send(id, &local)
            }
            1 => SendWr::read(id, &local, va, key),
            2 => SendWr::fetch_and_add(id, &word, va, key, 1),
            _ => SendWr::write(id, &local, va, key),
        };
        a.qp.post_send(&[wr.signaled()]).unwrap();
    }
    let (ending, start) = (random.below(6), Instant::now());
    // Some connections are ended while requests are outstanding.
    let enough = if ending < 3 { random.below(SENDS) } else { SENDS };
    let (mut done, mut wc) = (0, [Wc::default(); 32]);
    while done < enough {
        assert!(start.elapsed() < PATIENCE, "{done} of {enough} requests completed");
        let n = a.cq.poll(&mut wc).unwrap();
        assert!(wc[..n].iter().all(Wc::is_ok), "{:?}", &wc[..n]);
        done += n as u64;
        b.cq.poll(&mut wc).unwrap();
    }
    match ending {
        // The target is destroyed first; the requester is left without a peer.
        0 => {
            b.destroy();
            a.destroy();
        }
        1 => {
            enter(&a.qp, QpState::Err);
            while done < SENDS {
                assert!(
                    start.elapsed() < PATIENCE,
                    "{done} of {SENDS} requests completed, flushed ones included"
                );
                let n = a.cq.poll(&mut wc).unwrap();
                let good = |wc: &Wc| matches!(wc.status, WcStatus::Success | WcStatus::WrFlushErr);
                assert!(wc[..n].iter().all(good), "{:?}", &wc[..n]);
                done += n as u64;
            }
            a.destroy();
            b.destroy();
        }
        // The target's memory is deregistered while WRITEs may be outstanding.
        2 => {
            let Side { qp, mr, cq, pd } = b;
            mr.dereg().unwrap_or_else(|(e, _)| panic!("{e}"));
            drop((a, qp, cq, pd));
        }
        // The handles are dropped, in another order.
        3 => {
            let Side { qp, mr, cq, pd } = a;
            drop((pd, cq, mr, b, qp));
        }
        4 => {
            enter(&a.qp, QpState::Reset);
            a.destroy();
            b.destroy();
        }
        _ => {
            a.destroy();
            b.destroy();
        }
    }
    done
}

/// Opens two devices, loads them for `time`, closes them, and checks that all buffers were returned; with `thorough` also that all
/// numbers and keys are free. Returns how many connections were made.
fn run(time: Duration, seed: u64, thorough: bool) -> u64 {
    let frames = PortOptions { queues: SHARDS, frames: FRAMES, ..PortOptions::default() };
    let (a, b) = pair_with(&frames, &frames, Arc::new(|from, _, _| from));
    let ports = [Kept::new(a), Kept::new(b)];
    let queues: Vec<_> = ports.iter().flat_map(|p| p.queues.clone()).collect();
    let mut last = 0;
    let [a, b] = ports.map(|port| {
        last += 1;
        let port: Box<dyn Port> = Box::new(port);
        let mut config =
            DeviceConfig::new(port).addr([192, 0, 2, last], 24).shards(SHARDS).drive(Drive::Caller);
        config.qps_per_shard = QPS_PER_SHARD;
        Context::open(config).unwrap()
    });
    let (stop, lives) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for worker in 0..WORKERS {
            let (a, b, stop, lives) = (&a, &b, &stop, &lives);
            scope.spawn(move || {
                let mut random = Random(seed << 8 | worker);
                while !stop.load(Ordering::Relaxed) {
                    life([a, b], &mut random);
                    lives.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        std::thread::sleep(time);
        stop.store(true, Ordering::Relaxed);
    });
    if thorough {
        [&a, &b].into_iter().for_each(everything_is_free);
    }
    a.close().unwrap_or_else(|(e, _)| panic!("{e}"));
    b.close().unwrap_or_else(|(e, _)| panic!("{e}"));
    assert_eq!(buffers_back(&queues), [SHARDS * FRAMES; 2], "buffers of the two ports");
    lives.into_inner()
}

/// Free buffers of each port, after frames that are still on the link were received and dropped.
fn buffers_back(queues: &[Home]) -> Vec<usize> {
    let mut queues: Vec<_> = queues.iter().map(|home| home.lock().unwrap()).collect();
    let mut queues: Vec<_> = queues.iter_mut().map(|queue| queue.as_mut().expect("it came back")).collect();
    let mut burst = RxBurst::new();
    for queue in &mut queues {
        while queue.rx_burst(&mut burst) > 0 {
            burst.clear();
        }
    }
    // The queues of a port share one pool.
    let count = |queues: &mut [&mut Box<dyn PortQueue>]| {
        std::iter::from_fn(|| queues[0].alloc()).collect::<Vec<Frame>>().len()
    };
    queues.chunks_mut(SHARDS).map(count).collect()
}

/// Asserts that as many queue pairs and regions can be created as on a new device.
fn everything_is_free(context: &Context) {
    let limits = context.query_device();
    let pd = context.alloc_pd().unwrap();
    let cq = context.create_cq(16).unwrap();
    let mut numbers = HashMap::new();
    let mut qps = Vec::new();
    for shard in 0..SHARDS {
        for _ in 0..QPS_PER_SHARD {
            let mut init = QpInitAttr::rc(&cq, &cq).on_shard(shard);
            (init.cap.max_send_wr, init.cap.max_recv_wr) = (1, 1);
            qps.push(pd.create_qp(&init).unwrap_or_else(|e| panic!("queue pair {}: {e}", qps.len())));
            let number = qps[qps.len() - 1].qp_num();
            assert!(numbers.insert(number, ()).is_none(), "{number:?} is given out twice");
        }
    }
    let regions: Vec<Mr> = (0..limits.max_mr)
        .map(|i| {
            pd.reg_mr(1, all_rights()).unwrap_or_else(|e| panic!("region {i} of {}: {e}", limits.max_mr))
        })
        .collect();
    assert!(pd.reg_mr(1, all_rights()).is_err(), "the limit is where it is announced");
    drop((qps, regions));
}

#[test]
fn nothing_leaks() {
    let seconds: u64 = std::env::var("SOAK_SECONDS").ok().and_then(|s| s.parse().ok()).unwrap_or(2);
    a_lost_buffer_is_seen();
    let (fds, threads) = (entries("/proc/self/fd"), entries("/proc/self/task"));
    let slice = Duration::from_millis((seconds * 1000 / 4).min(5000));
    let (start, total) = (Instant::now(), Duration::from_secs(seconds));
    // The second round is thorough, so that its memory is part of the baseline.
    let (mut lives, mut warm, mut rounds) = (0, None, 0);
    while rounds < 4 || start.elapsed() < total {
        lives += run(slice, rounds, rounds % 4 == 1);
        rounds += 1;
        assert_eq!(entries("/proc/self/fd"), fds, "descriptors");
        // A joined thread may stay in the list for a moment.
        let waited = Instant::now();
        while entries("/proc/self/task") != threads {
            assert!(waited.elapsed() < PATIENCE, "{} threads, not {threads}", entries("/proc/self/task"));
            std::thread::yield_now();
        }
        let rss = rss_kib();
        match warm {
            None if rounds == 2 => warm = Some(rss),
            Some(warm) => {
                assert!(rss < warm + GROWTH_KIB, "{rss} KiB after {rounds} rounds, {warm} KiB after two")
            }
            None => {}
        }
    }
    assert!(lives > 4 * WORKERS, "{lives} connections lived");
    println!("{lives} connections in {rounds} rounds, {} KiB", rss_kib());
}

/// Checks that a lost buffer is detected. Not a separate test: tests that run at the same time would change the numbers of descriptors
/// and threads of the process.
fn a_lost_buffer_is_seen() {
    let frames = PortOptions { queues: SHARDS, frames: FRAMES, ..PortOptions::default() };
    let (a, b) = pair_with(&frames, &frames, Arc::new(|from, _, _| from));
    let ports = [Kept::new(a), Kept::new(b)];
    let queues: Vec<_> = ports.iter().flat_map(|p| p.queues.clone()).collect();
    let kept = queues[1].lock().unwrap().as_mut().unwrap().alloc();
    assert_eq!(buffers_back(&queues), [SHARDS * FRAMES - 1, SHARDS * FRAMES]);
    drop(kept);
    assert_eq!(buffers_back(&queues), [SHARDS * FRAMES; 2]);
}
