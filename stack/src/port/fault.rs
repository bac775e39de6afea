//! A port that mistreats its frames, the same way each time for the same seed.
//!
//! There is no clock here: a frame is held back by counting the frames and the bursts that pass it.

use super::{Frame, Port, PortError, PortInfo, PortQueue, PortStats, RxBurst, TxBurst};
use core::sync::atomic::{AtomicU64, Ordering};
use std::collections::VecDeque;
use std::sync::Arc;

/// What happens to frames. Chances are probabilities from 0 to 1, drawn for each frame and each kind by itself.
#[derive(Clone, Debug, PartialEq)]
pub struct FaultPlan {
    /// Chance that a frame is lost.
    pub loss: f64,
    /// Frames that are lost by number: the first frame of a queue in one direction is number 0.
    pub lose: Vec<u64>,
    /// Chance that a frame arrives twice.
    pub duplicate: f64,
    /// Chance that a frame is held back until [`distance`](Self::distance) later ones have passed it.
    pub reorder: f64,
    /// How many frames pass a frame that is held back. (Bursts that move nothing count as well, so that the last
    /// frame of all comes through.)
    pub distance: u32,
    /// Chance that a frame is held back for [`bursts`](Self::bursts) bursts.
    pub delay: f64,
    /// How many bursts a delayed frame waits.
    pub bursts: u32,
    /// Chance that one bit of a frame is flipped.
    pub corrupt: f64,
    /// Chance that a frame loses its end: 1 byte to all but one.
    pub truncate: f64,
    /// Whether frames on the way in are treated.
    pub rx: bool,
    /// Whether frames on the way out are treated.
    pub tx: bool,
}

impl Default for FaultPlan {
    /// No faults, both directions.
    fn default() -> Self {
        Self {
            loss: 0.0,
            lose: Vec::new(),
            duplicate: 0.0,
            reorder: 0.0,
            distance: 3,
            delay: 0.0,
            bursts: 8,
            corrupt: 0.0,
            truncate: 0.0,
            rx: true,
            tx: true,
        }
    }
}

/// Wraps `port` so that its frames meet the faults of `plan`. Each queue and direction draws its own sequence from
/// `seed`. Frames lost here are counted under [`PortStats::rx_dropped`] and [`PortStats::tx_dropped`].
pub fn fault(port: Box<dyn Port>, plan: FaultPlan, seed: u64) -> Box<dyn Port> {
    Box::new(FaultPort { port, plan: Arc::new(plan), seed, lost: Arc::default() })
}

#[derive(Default)]
struct Lost {
    rx: AtomicU64,
    tx: AtomicU64,
}

struct FaultPort {
    port: Box<dyn Port>,
    plan: Arc<FaultPlan>,
    seed: u64,
    lost: Arc<Lost>,
}

impl Port for FaultPort {
    fn info(&self) -> &PortInfo {
        self.port.info()
    }

    fn take_queue(&self, index: usize) -> Option<Box<dyn PortQueue>> {
        let queue = self.port.take_queue(index)?;
        let way = |on: bool, which: u64| {
            let rng = Rng(self.seed ^ (index as u64 * 2 + which + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
            Way {
                plan: Arc::clone(&self.plan),
                on,
                rng,
                number: 0,
                calls: 0,
                held: Vec::new(),
                ready: VecDeque::new(),
            }
        };
        let (rx, tx) = (way(self.plan.rx, 0), way(self.plan.tx, 1));
        Some(Box::new(FaultQueue { queue, rx, tx, lost: Arc::clone(&self.lost) }))
    }

    fn start(&self) -> Result<(), PortError> {
        self.port.start()
    }

    fn mtu(&self) -> usize {
        self.port.mtu()
    }

    fn link_up(&self) -> bool {
        self.port.link_up()
    }

    fn host(&self) -> Option<&dyn super::Host> {
        self.port.host()
    }

    fn maintain(&self) {
        self.port.maintain();
    }

    fn stats(&self) -> PortStats {
        let mut stats = self.port.stats();
        stats.rx_dropped += self.lost.rx.load(Ordering::Relaxed);
        stats.tx_dropped += self.lost.tx.load(Ordering::Relaxed);
        stats
    }
}

/// SplitMix64: small, and good enough to choose frames.
struct Rng(u64);

impl Rng {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Draws even where the outcome is certain, so that changing one chance leaves the others' draws alone.
    fn chance(&mut self, probability: f64) -> bool {
        ((self.next() >> 11) as f64) < probability * (1u64 << 53) as f64
    }
}

/// Frames held back at most in one direction of a queue; more are let through untouched.
const HELD_MAX: usize = 256;
/// Frames that may wait to go on before no more are taken.
const READY_MAX: usize = 256;

struct Held {
    frame: Frame,
    /// Passed by when this many frames have gone on.
    at_number: Option<u64>,
    /// Over when this many bursts were called.
    at_call: u64,
}

/// One direction of a queue.
struct Way {
    plan: Arc<FaultPlan>,
    on: bool,
    rng: Rng,
    number: u64,
    calls: u64,
    held: Vec<Held>,
    ready: VecDeque<Frame>,
}

impl Way {
    /// Applies the faults to `frame`; what is left of it goes to `ready` or is held. Returns whether it was lost.
    fn pass(&mut self, mut frame: Frame, copy: impl FnOnce() -> Option<Frame>) -> bool {
        if !self.on {
            self.ready.push_back(frame);
            return false;
        }
        let plan = Arc::clone(&self.plan);
        let number = self.number;
        self.number += 1;
        // Every kind draws for every frame.
        let loss = self.rng.chance(plan.loss) || plan.lose.contains(&number);
        let duplicate = self.rng.chance(plan.duplicate);
        let reorder = self.rng.chance(plan.reorder);
        let delay = self.rng.chance(plan.delay);
        let corrupt = self.rng.chance(plan.corrupt);
        let truncate = self.rng.chance(plan.truncate);
        let place = self.rng.next();
        let cut = self.rng.next();
        if !loss {
            if truncate && frame.len() > 1 {
                frame.set_len(1 + (cut % (frame.len() as u64 - 1)) as usize);
            }
            if corrupt && !frame.is_empty() {
                let bit = place % (frame.len() as u64 * 8);
                frame.data_mut()[(bit / 8) as usize] ^= 1 << (bit % 8);
            }
            let twin = if duplicate { copy() } else { None };
            let twin = twin.and_then(|mut twin| twin.fill(frame.data()).then_some(twin));
            if (reorder || delay) && self.held.len() < HELD_MAX {
                let at_number = reorder.then_some(number + 1 + u64::from(plan.distance));
                let wait = if delay { plan.bursts } else { plan.distance };
                self.held.push(Held { frame, at_number, at_call: self.calls + 1 + u64::from(wait) });
            } else {
                self.ready.push_back(frame);
            }
            self.ready.extend(twin);
        }
        self.release();
        loss
    }

    /// Releases the frames that were held long enough.
    fn release(&mut self) {
        let mut i = 0;
        while let Some(held) = self.held.get(i) {
            let over = match held.at_number {
                Some(at) => self.number >= at,
                None => self.calls >= held.at_call,
            };
            if over {
                self.ready.push_back(self.held.remove(i).frame);
            } else {
                i += 1;
            }
        }
    }

    /// A burst was called that moved `moved` frames.
    fn tick(&mut self, moved: usize) {
        self.calls += 1;
        if moved == 0 {
            let calls = self.calls;
            for held in &mut self.held {
                if calls >= held.at_call {
                    held.at_number = None;
                }
            }
        }
        self.release();
    }
}

struct FaultQueue {
    queue: Box<dyn PortQueue>,
    rx: Way,
    tx: Way,
    lost: Arc<Lost>,
}

impl FaultQueue {
    /// Sends what is ready.
    fn pump(&mut self) {
        let mut burst = TxBurst::new();
        while !self.tx.ready.is_empty() {
            while !burst.is_full() {
                let Some(frame) = self.tx.ready.pop_front() else { break };
                burst.push(frame);
            }
            self.queue.tx_burst(&mut burst);
            if !burst.is_empty() {
                // Not accepted: back to the front, in order.
                while let Some(frame) = burst.pop() {
                    self.tx.ready.push_front(frame);
                }
                break;
            }
        }
    }
}

impl PortQueue for FaultQueue {
    fn rx_burst(&mut self, out: &mut RxBurst) -> usize {
        let before = out.len();
        if self.rx.ready.len() < READY_MAX {
            let mut burst = RxBurst::new();
            let n = self.queue.rx_burst(&mut burst);
            for frame in burst {
                if self.rx.pass(frame, || self.queue.alloc()) {
                    self.lost.rx.fetch_add(1, Ordering::Relaxed);
                }
            }
            self.rx.tick(n);
        }
        while !out.is_full() {
            let Some(frame) = self.rx.ready.pop_front() else { break };
            out.push(frame);
        }
        // Frames held back on the way out go even if nothing more is sent.
        if !self.tx.held.is_empty() || !self.tx.ready.is_empty() {
            self.tx.tick(0);
            self.pump();
        }
        out.len() - before
    }

    fn tx_burst(&mut self, frames: &mut TxBurst) -> usize {
        self.pump();
        if self.tx.ready.len() >= READY_MAX {
            return 0;
        }
        let n = frames.len();
        for frame in frames.drain(..) {
            if self.tx.pass(frame, || self.queue.alloc()) {
                self.lost.tx.fetch_add(1, Ordering::Relaxed);
            }
        }
        self.tx.tick(n);
        self.pump();
        n
    }

    fn alloc(&mut self) -> Option<Frame> {
        self.queue.alloc()
    }
    fn alloc_burst(&mut self, out: &mut TxBurst, n: usize) {
        self.queue.alloc_burst(out, n);
    }
    fn recycle(&mut self, frames: &mut RxBurst) {
        self.queue.recycle(frames);
    }
}

#[cfg(test)]
mod tests {
    use super::super::pair;
    use super::*;

    /// Sends `n` numbered frames through a port with the plan; the treatment is at the sender or at the receiver.
    fn run(plan: &FaultPlan, at_sender: bool, seed: u64, n: u32) -> (Vec<Vec<u8>>, PortStats) {
        let (a, b) = pair(1);
        let (a, b) =
            if at_sender { (fault(a, plan.clone(), seed), b) } else { (a, fault(b, plan.clone(), seed)) };
        let (mut qa, mut qb) = (a.take_queue(0).unwrap(), b.take_queue(0).unwrap());
        let mut arrived = Vec::new();
        let mut burst = TxBurst::new();
        let mut got = RxBurst::new();
        for i in 0..n {
            let mut frame = qa.alloc().unwrap();
            frame.fill(&[i.to_be_bytes(), [0; 4], [0xff; 4], [0x55; 4]].concat());
            burst.push(frame);
            qa.tx_burst(&mut burst);
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

    fn number(frame: &[u8]) -> u32 {
        u32::from_be_bytes(frame[..4].try_into().unwrap())
    }

    const N: u32 = 2000;

    #[test]
    fn no_faults_change_nothing_and_a_seed_repeats() {
        for at_sender in [true, false] {
            let (frames, _) = run(&FaultPlan::default(), at_sender, 1, N);
            assert!(frames.iter().map(|frame| number(frame)).eq(0..N));
            let plan = FaultPlan {
                loss: 0.1,
                duplicate: 0.1,
                reorder: 0.1,
                delay: 0.1,
                corrupt: 0.1,
                truncate: 0.1,
                ..FaultPlan::default()
            };
            assert_eq!(run(&plan, at_sender, 7, N), run(&plan, at_sender, 7, N));
            assert_ne!(run(&plan, at_sender, 7, N).0, run(&plan, at_sender, 8, N).0);
        }
    }

    #[test]
    fn lost_frames_do_not_arrive() {
        for at_sender in [true, false] {
            let plan = FaultPlan { loss: 0.1, lose: vec![0, 5], ..FaultPlan::default() };
            let (frames, stats) = run(&plan, at_sender, 3, N);
            let lost = N as usize - frames.len();
            assert!((150..250).contains(&lost), "{lost} of {N} lost");
            assert_eq!(stats.tx_dropped + stats.rx_dropped, lost as u64);
            assert!(frames.iter().all(|frame| ![0, 5].contains(&number(frame))));
        }
    }

    #[test]
    fn duplicates_arrive_twice() {
        for at_sender in [true, false] {
            let (frames, _) = run(&FaultPlan { duplicate: 0.1, ..FaultPlan::default() }, at_sender, 3, N);
            assert!((N as usize + 150..N as usize + 250).contains(&frames.len()));
            for i in 0..N {
                let copies: Vec<_> = frames.iter().filter(|frame| number(frame) == i).collect();
                assert!(copies.len() == 1 || copies.len() == 2 && copies[0] == copies[1]);
            }
        }
    }

    #[test]
    fn reordered_frames_arrive_later_by_the_distance() {
        for at_sender in [true, false] {
            let plan = FaultPlan { reorder: 0.02, distance: 5, ..FaultPlan::default() };
            let (frames, _) = run(&plan, at_sender, 3, N);
            let order: Vec<u32> = frames.iter().map(|frame| number(frame)).collect();
            let mut sorted = order.clone();
            sorted.sort_unstable();
            assert!(sorted.into_iter().eq(0..N), "none is lost");
            let late = order.windows(2).filter(|pair| pair[1] < pair[0]).count();
            assert!((20..80).contains(&late), "{late} came late");
            for (i, pair) in order.windows(2).enumerate() {
                // The very last ones are released by the count of bursts.
                if pair[1] < pair[0] && pair[1] < N - 8 {
                    let passed = order[..=i].iter().filter(|&&n| n > pair[1]).count();
                    assert!((4..=6).contains(&passed), "{passed} frames passed {}", pair[1]);
                }
            }
        }
    }

    #[test]
    fn delayed_frames_wait_for_bursts_even_when_nothing_follows() {
        for at_sender in [true, false] {
            let plan = FaultPlan { delay: 1.0, bursts: 6, ..FaultPlan::default() };
            let (frames, _) = run(&plan, at_sender, 3, 50);
            assert!(frames.iter().map(|frame| number(frame)).eq(0..50));
            let plan = FaultPlan { reorder: 1.0, distance: 6, ..FaultPlan::default() };
            assert_eq!(run(&plan, at_sender, 3, 1).0.len(), 1, "the last frame comes through");
        }
    }

    #[test]
    fn corrupted_frames_differ_in_one_bit() {
        for at_sender in [true, false] {
            let (frames, _) = run(&FaultPlan { corrupt: 1.0, ..FaultPlan::default() }, at_sender, 3, N);
            assert_eq!(frames.len(), N as usize);
            let mut places = [0; 128];
            for (i, frame) in frames.iter().enumerate() {
                let sent = [(i as u32).to_be_bytes(), [0; 4], [0xff; 4], [0x55; 4]].concat();
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
            let (frames, _) = run(&FaultPlan { truncate: 1.0, ..FaultPlan::default() }, at_sender, 3, N);
            assert_eq!(frames.len(), N as usize);
            for len in 1..16 {
                assert!(frames.iter().any(|frame| frame.len() == len), "length {len}");
            }
            assert!(frames.iter().all(|frame| (1..16).contains(&frame.len())));
        }
    }

    #[test]
    fn one_direction_alone() {
        let (a, b) = pair(1);
        let a = fault(a, FaultPlan { loss: 1.0, rx: false, ..FaultPlan::default() }, 1);
        let (mut qa, mut qb) = (a.take_queue(0).unwrap(), b.take_queue(0).unwrap());
        let mut burst = TxBurst::new();
        let mut got = RxBurst::new();
        burst.push(Frame::from_vec(vec![1]));
        assert_eq!((qa.tx_burst(&mut burst), qb.rx_burst(&mut got)), (1, 0));
        burst.push(Frame::from_vec(vec![2]));
        assert_eq!((qb.tx_burst(&mut burst), qa.rx_burst(&mut got)), (1, 1));
    }
}
