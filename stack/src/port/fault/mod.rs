//! A port that loses, repeats, delays and damages frames; the same seed gives the same faults.
//!
//! A [`Link`], which the simulator uses as well, decides what happens to a frame. Each queue, direction and route has its own.

mod link;
pub mod rng;

pub use link::{Fault, Flight, Link, Plan};

use crate::port::frame::{Frame, RxBurst, TxBurst};
use crate::port::info::PortStats;
use crate::port::layer::{PortLayer, QueueLayer};
use crate::port::traits::{Armed, Build, Port, PortQueue, Route};
use crate::time::Instant;
use core::cmp::Reverse;
use core::sync::atomic::{AtomicU64, Ordering};
use core::time::Duration;
use rng::Rng;
use std::collections::{BinaryHeap, VecDeque};
use std::sync::Arc;

/// Virtual time of one burst call: there is no clock here, so that a seed repeats.
const BURST: Duration = Duration::from_micros(1);

/// Wraps `port` so that the frames it receives meet the faults of `rx`, and those it sends the faults of `tx`. Time is counted in
/// bursts: each call, also one that moves nothing, lasts a microsecond. Each queue and direction draws its own sequence from
/// `seed`. Frames lost here are counted under [`PortStats::rx_dropped`] and [`PortStats::tx_dropped`].
pub fn fault(port: Box<dyn Port>, rx: Plan, tx: Plan, seed: u64) -> Box<dyn Port> {
    counted(port, rx, tx, seed).0
}

/// The same, with the counts of what happened.
pub fn counted(port: Box<dyn Port>, rx: Plan, tx: Plan, seed: u64) -> (Box<dyn Port>, Arc<Met>) {
    let met = Arc::<Met>::default();
    (Box::new(FaultPort { port, rx, tx, seed, met: Arc::clone(&met), lost: Arc::default() }), met)
}

/// How often each fault happened, in both directions of all queues. A fault that lasts, like a blackhole, counts once.
#[derive(Debug, Default)]
pub struct Met([AtomicU64; Fault::ALL.len()]);

impl Met {
    /// How often this one did.
    pub fn count(&self, fault: Fault) -> u64 {
        self.0[fault as usize].load(Ordering::Relaxed)
    }
    fn add(&self, fault: Fault) {
        self.0[fault as usize].fetch_add(1, Ordering::Relaxed);
    }
}

#[derive(Default)]
struct Lost {
    rx: AtomicU64,
    tx: AtomicU64,
}

struct FaultPort {
    port: Box<dyn Port>,
    rx: Plan,
    tx: Plan,
    seed: u64,
    met: Arc<Met>,
    lost: Arc<Lost>,
}

impl PortLayer for FaultPort {
    fn inner(&self) -> &dyn Port {
        &*self.port
    }

    fn take_queue(&self, index: usize) -> Option<Box<dyn PortQueue>> {
        let queue = self.port.take_queue(index)?;
        let mut rng = Rng::new(self.seed).fork(index as u64);
        let rx = (self.rx != Plan::CLEAN).then(|| Direction::new(self.rx, rng.fork(0), &self.met));
        let (plan, met, lost) = (self.tx, Arc::clone(&self.met), Arc::clone(&self.lost));
        Some(Box::new(FaultQueue { queue, rx, plan, rng, tx: Vec::new(), now: Instant::ZERO, met, lost }))
    }

    fn stats(&self) -> PortStats {
        let mut stats = self.port.stats();
        stats.rx_dropped += self.lost.rx.load(Ordering::Relaxed);
        stats.tx_dropped += self.lost.tx.load(Ordering::Relaxed);
        stats
    }
}

/// Frames that may be on their way in one direction of a queue before no more are taken.
const WAITING_MAX: usize = 512;

/// One direction of a queue, with faults.
struct Direction {
    plan: Plan,
    link: Link,
    met: Arc<Met>,
    /// The frame that arrives first comes first; of two that arrive at once, the one sent first.
    waiting: BinaryHeap<Reverse<(Instant, u64, Vec<u8>)>>,
    number: u64,
    arrivals: Vec<Flight>,
}

impl Direction {
    fn new(plan: Plan, rng: Rng, met: &Arc<Met>) -> Self {
        let (link, met) = (Link::new(rng), Arc::clone(met));
        Self { plan, link, met, waiting: BinaryHeap::new(), number: 0, arrivals: Vec::new() }
    }

    fn is_full(&self) -> bool {
        self.waiting.len() >= WAITING_MAX
    }

    /// Takes frames. Returns how many of them do not arrive.
    fn take<'a>(&mut self, now: Instant, frames: impl IntoIterator<Item = &'a Frame>) -> u64 {
        let mut lost = 0;
        for frame in frames {
            self.link.carry(&self.plan, now, frame.data(), |fault| self.met.add(fault), &mut self.arrivals);
            // A frame that was truncated to nothing is lost.
            self.arrivals.retain(|flight| !flight.bytes.is_empty());
            lost += u64::from(self.arrivals.is_empty());
            for Flight { at, bytes, .. } in self.arrivals.drain(..) {
                self.waiting.push(Reverse((at, self.number, bytes)));
                self.number += 1;
            }
        }
        lost
    }

    /// Whether a frame has arrived.
    fn is_due(&self, now: Instant) -> bool {
        self.waiting.peek().is_some_and(|Reverse((at, ..))| *at <= now)
    }

    /// The next frame that has arrived.
    fn arrived(&mut self, now: Instant) -> Option<Vec<u8>> {
        if !self.is_due(now) {
            return None;
        }
        self.waiting.pop().map(|Reverse((.., bytes))| bytes)
    }
}

/// The way out by one route.
struct WayOut {
    route: Route,
    direction: Direction,
    /// Frames that the port did not accept yet.
    ready: VecDeque<Frame>,
}

impl WayOut {
    /// Sends the frames that have arrived.
    fn pump(&mut self, queue: &mut dyn PortQueue, now: Instant, lost: &Lost) {
        loop {
            let mut burst = TxBurst::new();
            while !burst.is_full()
                && let Some(frame) = self.ready.pop_front()
            {
                burst.push(frame);
            }
            while !burst.is_full()
                && self.direction.is_due(now)
                && let Some(mut frame) = queue.alloc()
                && let Some(bytes) = self.direction.arrived(now)
            {
                if frame.fill(&bytes) {
                    burst.push(frame);
                } else {
                    lost.tx.fetch_add(1, Ordering::Relaxed);
                }
            }
            if burst.is_empty() {
                return;
            }
            queue.tx_burst(self.route, &mut burst);
            if !burst.is_empty() {
                self.ready.extend(burst);
                return;
            }
        }
    }
}

struct FaultQueue {
    queue: Box<dyn PortQueue>,
    /// `None`: no faults.
    rx: Option<Direction>,
    /// What frames meet on their way out, and what draws it.
    plan: Plan,
    rng: Rng,
    /// By route, as they were used.
    tx: Vec<WayOut>,
    now: Instant,
    met: Arc<Met>,
    lost: Arc<Lost>,
}

impl FaultQueue {
    /// Sends the frames that have arrived.
    fn pump(&mut self) {
        for way in &mut self.tx {
            way.pump(&mut *self.queue, self.now, &self.lost);
        }
    }

    /// The way out by a route.
    fn way_out(&mut self, route: Route) -> &mut WayOut {
        let at = self.tx.iter().position(|way| way.route == route).unwrap_or_else(|| {
            let rng = self.rng.clone().fork(1 + u64::from(route.0));
            let direction = Direction::new(self.plan, rng, &self.met);
            self.tx.push(WayOut { route, direction, ready: VecDeque::new() });
            self.tx.len() - 1
        });
        &mut self.tx[at]
    }
}

impl QueueLayer for FaultQueue {
    fn inner(&mut self) -> &mut dyn PortQueue {
        &mut *self.queue
    }

    fn rx_burst(&mut self, out: &mut RxBurst) -> usize {
        self.now = self.now.after(BURST);
        // Frames on their way out go even if nothing more is sent.
        self.pump();
        let Some(direction) = &mut self.rx else { return self.queue.rx_burst(out) };
        if !direction.is_full() {
            let mut burst = RxBurst::new();
            self.queue.rx_burst(&mut burst);
            let lost = direction.take(self.now, &burst);
            self.lost.rx.fetch_add(lost, Ordering::Relaxed);
            self.queue.recycle(&mut burst);
        }
        let before = out.len();
        while !out.is_full()
            && let Some(bytes) = direction.arrived(self.now)
        {
            out.push(Frame::from_vec(bytes));
        }
        out.len() - before
    }

    fn tx_burst(&mut self, route: Route, frames: &mut TxBurst) -> usize {
        self.now = self.now.after(BURST);
        if self.plan == Plan::CLEAN {
            return self.queue.tx_burst(route, frames);
        }
        self.pump();
        let now = self.now;
        let way = self.way_out(route);
        if way.direction.is_full() {
            return 0;
        }
        let lost = way.direction.take(now, frames.iter());
        self.lost.tx.fetch_add(lost, Ordering::Relaxed);
        let n = frames.len();
        frames.clear();
        self.pump();
        n
    }

    /// Everything is sent in frames, which meet the faults.
    fn build_burst(&mut self, _: Route, _: usize, _: &mut dyn Build) -> Option<usize> {
        None
    }

    /// Time passes here by calls alone, and frames on their way wait for it.
    fn arm(&mut self) -> Armed {
        Armed::Unable
    }
}

#[cfg(test)]
mod tests {
    use super::super::pair;
    use super::*;

    /// Sends `n` numbered frames through a port with the plan; the treatment is at the sender or at the receiver.
    fn run(plan: Plan, at_sender: bool, seed: u64, n: u32) -> (Vec<Vec<u8>>, PortStats) {
        let (a, b) = pair(1);
        let (a, b) = if at_sender {
            (fault(a, Plan::CLEAN, plan, seed), b)
        } else {
            (a, fault(b, plan, Plan::CLEAN, seed))
        };
        let (mut qa, mut qb) = (a.take_queue(0).unwrap(), b.take_queue(0).unwrap());
        let mut arrived = Vec::new();
        let mut burst = TxBurst::new();
        let mut got = RxBurst::new();
        for i in 0..n {
            let mut frame = qa.alloc().unwrap();
            frame.fill(&sent(i));
            burst.push(frame);
            qa.tx_burst(Route::default(), &mut burst);
            qb.rx_burst(&mut got);
            arrived.extend(got.drain(..).map(|frame| frame.data().to_vec()));
        }
        for _ in 0..64 {
            qa.rx_burst(&mut got);
            qb.rx_burst(&mut got);
            arrived.extend(got.drain(..).map(|frame| frame.data().to_vec()));
        }
        (arrived, if at_sender { a.stats() } else { b.stats() })
    }

    fn sent(i: u32) -> Vec<u8> {
        [i.to_be_bytes(), [0; 4], [0xff; 4], [0x55; 4]].concat()
    }

    fn number(frame: &[u8]) -> u32 {
        u32::from_be_bytes(frame[..4].try_into().unwrap())
    }

    const N: u32 = 2000;
    const TENTH: u32 = 100_000;
    const ALWAYS: u32 = 1_000_000;

    #[test]
    fn no_faults_change_nothing_and_a_seed_repeats() {
        for at_sender in [true, false] {
            let (frames, _) = run(Plan::CLEAN, at_sender, 1, N);
            assert!(frames.iter().map(|frame| number(frame)).eq(0..N));
            let plan = [Fault::Loss, Fault::Duplicate, Fault::Reorder, Fault::Corrupt, Fault::Truncate]
                .iter()
                .fold(Plan::CLEAN, |plan, fault| plan.with(*fault, TENTH));
            assert_eq!(run(plan, at_sender, 7, N), run(plan, at_sender, 7, N));
            assert_ne!(run(plan, at_sender, 7, N).0, run(plan, at_sender, 8, N).0);
        }
    }

    #[test]
    fn lost_frames_do_not_arrive() {
        for at_sender in [true, false] {
            let (frames, stats) = run(Plan::CLEAN.with(Fault::Loss, TENTH), at_sender, 3, N);
            let lost = N as usize - frames.len();
            assert!((150..250).contains(&lost), "{lost} of {N} lost");
            assert_eq!(stats.tx_dropped + stats.rx_dropped, lost as u64);
        }
    }

    #[test]
    fn what_frames_meet_is_counted() {
        let plan = Plan::CLEAN.with(Fault::Loss, TENTH).with(Fault::Blackhole, 1000);
        for at_sender in [true, false] {
            let (a, b) = pair(1);
            let clean = Plan::CLEAN;
            let (a, b, met) = if at_sender {
                let (a, met) = counted(a, clean, plan, 3);
                (a, b, met)
            } else {
                let (b, met) = counted(b, plan, clean, 3);
                (a, b, met)
            };
            let (mut qa, mut qb) = (a.take_queue(0).unwrap(), b.take_queue(0).unwrap());
            let (mut burst, mut got, mut arrived) = (TxBurst::new(), RxBurst::new(), 0);
            for i in 0..N {
                burst.push(Frame::from_vec(sent(i)));
                qa.tx_burst(Route::default(), &mut burst);
                qb.rx_burst(&mut got);
                arrived += got.drain(..).count();
            }
            let lost = N as usize - arrived;
            let (losses, holes) = (met.count(Fault::Loss) as usize, met.count(Fault::Blackhole) as usize);
            assert!(losses > 0 && holes > 0, "{losses} losses, {holes} holes");
            assert!(losses + holes < lost, "a hole takes many frames: {losses} + {holes} of {lost}");
            assert_eq!(met.count(Fault::Duplicate), 0);
        }
    }

    #[test]
    fn duplicates_arrive_twice() {
        for at_sender in [true, false] {
            let (frames, _) = run(Plan::CLEAN.with(Fault::Duplicate, TENTH), at_sender, 3, N);
            assert!((N as usize + 150..N as usize + 250).contains(&frames.len()));
            for i in 0..N {
                let copies: Vec<_> = frames.iter().filter(|frame| number(frame) == i).collect();
                assert!(copies.len() == 1 || copies.len() == 2 && copies[0] == copies[1]);
            }
        }
    }

    #[test]
    fn reordered_frames_arrive_later_by_the_jitter_at_most() {
        for at_sender in [true, false] {
            let jitter = Duration::from_micros(5);
            let plan = Plan { jitter, ..Plan::CLEAN.with(Fault::Reorder, 20_000) };
            let (frames, _) = run(plan, at_sender, 3, N);
            let order: Vec<u32> = frames.iter().map(|frame| number(frame)).collect();
            let mut sorted = order.clone();
            sorted.sort_unstable();
            assert!(sorted.into_iter().eq(0..N), "none is lost");
            let late: Vec<_> = order.windows(2).filter(|pair| pair[1] < pair[0]).collect();
            assert!((15..80).contains(&late.len()), "{} came late", late.len());
            for (i, n) in order.iter().enumerate() {
                let passed = order[..i].iter().filter(|earlier| *earlier > n).count();
                assert!(passed <= 5, "{passed} frames passed {n}");
            }
        }
    }

    #[test]
    fn delayed_frames_wait_for_bursts_even_when_nothing_follows() {
        for at_sender in [true, false] {
            let plan = Plan { delay: Duration::from_micros(6), ..Plan::CLEAN };
            let (frames, _) = run(plan, at_sender, 3, 50);
            assert!(frames.iter().map(|frame| number(frame)).eq(0..50));
            let plan = Plan::CLEAN.with(Fault::Reorder, ALWAYS);
            assert_eq!(run(plan, at_sender, 3, 1).0.len(), 1, "the last frame comes through");
        }
    }

    #[test]
    fn corrupted_frames_differ_in_one_bit() {
        for at_sender in [true, false] {
            let (frames, _) = run(Plan::CLEAN.with(Fault::Corrupt, ALWAYS), at_sender, 3, N);
            assert_eq!(frames.len(), N as usize);
            let mut places = [0; 128];
            for (i, frame) in frames.iter().enumerate() {
                let sent = sent(i as u32);
                let flipped: Vec<usize> =
                    (0..128).filter(|bit| (frame[bit / 8] ^ sent[bit / 8]) >> (bit % 8) & 1 == 1).collect();
                assert_eq!(flipped.len(), 1, "frame {i}");
                places[flipped[0]] += 1;
            }
            assert!(places.iter().all(|&n| n > 0), "every bit has its turn");
        }
    }

    #[test]
    fn truncated_frames_are_shorter() {
        for at_sender in [true, false] {
            let (frames, stats) = run(Plan::CLEAN.with(Fault::Truncate, ALWAYS), at_sender, 3, N);
            let lost = (stats.tx_dropped + stats.rx_dropped) as usize;
            assert_eq!(frames.len() + lost, N as usize, "one without bytes is lost");
            for len in 1..16 {
                assert!(frames.iter().any(|frame| frame.len() == len), "length {len}");
            }
            assert!(frames.iter().all(|frame| (1..16).contains(&frame.len())));
        }
    }

    #[test]
    fn one_direction_alone() {
        let (a, b) = pair(1);
        let a = fault(a, Plan::CLEAN, Plan::CLEAN.with(Fault::Loss, ALWAYS), 1);
        let (mut qa, mut qb) = (a.take_queue(0).unwrap(), b.take_queue(0).unwrap());
        let mut burst = TxBurst::new();
        let mut got = RxBurst::new();
        burst.push(Frame::from_vec(vec![1]));
        assert_eq!((qa.tx_burst(Route::default(), &mut burst), qb.rx_burst(&mut got)), (1, 0));
        burst.push(Frame::from_vec(vec![2]));
        assert_eq!((qb.tx_burst(Route::default(), &mut burst), qa.rx_burst(&mut got)), (1, 1));
    }

    #[test]
    fn a_port_that_takes_nothing_loses_nothing() {
        let (a, b) = pair(1);
        let plan = Plan { delay: Duration::from_micros(3), ..Plan::CLEAN };
        let a = fault(a, Plan::CLEAN, plan, 1);
        let (mut qa, mut qb) = (a.take_queue(0).unwrap(), b.take_queue(0).unwrap());
        let (mut burst, mut got, mut n) = (TxBurst::new(), RxBurst::new(), 0u32);
        // Nobody receives: the pair's ring fills up, and then what waits here.
        loop {
            burst.push(Frame::from_vec(sent(n)));
            if qa.tx_burst(Route::default(), &mut burst) == 0 {
                break;
            }
            n += 1;
            assert!(n < 1_000_000, "it takes frames without end");
        }
        let mut arrived = Vec::new();
        for _ in 0..n {
            qa.rx_burst(&mut got);
            qb.rx_burst(&mut got);
            arrived.extend(got.drain(..).map(|frame| number(frame.data())));
        }
        assert!(arrived.into_iter().eq(0..n));
    }
}
