//! Two ports of one process joined back to back: a link for tests. The loopback port consists of the same parts.

use super::counters::{Counters, sum};
use super::error::PortError;
use super::frame::{Frame, HeapPool, RxBurst, TxBurst};
use super::info::{PortInfo, PortOptions, PortStats};
use super::taken::Taken;
use super::traits::{Armed, Build, FlowKind, Host, Numbers, Port, PortQueue, Route, Routes, Stalled};
use crate::id::Mac;
use crate::time::Instant;
use core::sync::atomic::{AtomicUsize, Ordering};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, TryLockError};

/// The most frames that wait in one queue of the link.
const DEPTH: usize = 1024;

/// Chooses the queue on which a frame arrives: from the sending queue, the frame, and the number of queues at
/// the receiving end. The result is taken modulo that number.
pub type Steering = Arc<dyn Fn(usize, &[u8], usize) -> usize + Send + Sync>;

/// Two ports with `queues` queues each; a frame sent on one arrives at the other, on the queue of the same number.
///
/// Their addresses are 02:00:00:00:00:01 and 02:00:00:00:00:02, their MTU 4200.
pub fn pair(queues: usize) -> (Box<dyn Port>, Box<dyn Port>) {
    let options = PortOptions { queues, ..PortOptions::default() };
    join(&options, &options, None)
}

/// Joins two ports whose frames arrive on the queue that `steering` chooses. If the options have no address, it is that of [`pair`].
///
/// # Panics
/// When the options have no queue or no frames.
pub fn pair_with(a: &PortOptions, b: &PortOptions, steering: Steering) -> (Box<dyn Port>, Box<dyn Port>) {
    join(a, b, Some(&steering))
}

/// Joins two ports. Without steering, a frame arrives on the queue of the same number as the queue that sent it.
fn join(a: &PortOptions, b: &PortOptions, steering: Option<&Steering>) -> (Box<dyn Port>, Box<dyn Port>) {
    let (to_a, to_b) = (Wire::new(a.queues, steering), Wire::new(b.queues, steering));
    let port = |name: &str, last: u8, options: &PortOptions, tx: &Arc<Wire>, rx: &Arc<Wire>| {
        let mac = options.mac.unwrap_or(Mac([2, 0, 0, 0, 0, last]));
        Box::new(WirePort::new(name.into(), mac, options, Arc::clone(tx), Arc::clone(rx)))
    };
    (port("pair:a", 1, a, &to_b, &to_a), port("pair:b", 2, b, &to_a, &to_b))
}

/// One direction of a link.
pub(super) struct Wire {
    queues: Vec<Lane>,
    steering: Option<Steering>,
}

/// Frames on their way to one queue. Both ends move whole bursts. An end that finds the lock taken returns and tries again later.
struct Lane {
    /// Number of these frames: a check of an empty lane takes no lock.
    waiting: AtomicUsize,
    frames: Mutex<VecDeque<Frame>>,
}

impl Lane {
    fn new() -> Self {
        Self { waiting: AtomicUsize::new(0), frames: Mutex::new(VecDeque::with_capacity(DEPTH)) }
    }

    /// Calls `with` on the frames; `None` while the other end has the lock.
    fn with<T>(&self, with: impl FnOnce(&mut VecDeque<Frame>) -> T) -> Option<T> {
        let mut frames = match self.frames.try_lock() {
            Ok(frames) => frames,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        let result = with(&mut frames);
        self.waiting.store(frames.len(), Ordering::Release);
        Some(result)
    }
}

impl Wire {
    pub(super) fn new(queues: usize, steering: Option<&Steering>) -> Arc<Self> {
        assert!(queues > 0, "a port has at least one queue");
        let steering = steering.cloned();
        Arc::new(Self { queues: (0..queues).map(|_| Lane::new()).collect(), steering })
    }
}

/// A port at the end of two wires.
pub(super) struct WirePort {
    info: PortInfo,
    tx: Arc<Wire>,
    rx: Arc<Wire>,
    pool: HeapPool,
    taken: Taken,
    counters: Arc<[Counters]>,
}

impl WirePort {
    pub(super) fn new(name: String, mac: Mac, options: &PortOptions, tx: Arc<Wire>, rx: Arc<Wire>) -> Self {
        let info = PortInfo { name, mac, mtu: options.mtu, queues: options.queues, message: 0 };
        let pool = HeapPool::new(options.queues * options.frames, info.max_frame());
        let taken = Taken::none_of(options.queues);
        let counters = (0..options.queues).map(|_| Counters::default()).collect();
        Self { info, tx, rx, pool, taken, counters }
    }
}

impl Port for WirePort {
    fn info(&self) -> &PortInfo {
        &self.info
    }

    fn take_queue(&self, index: usize) -> Option<Box<dyn PortQueue>> {
        self.taken.take(index)?;
        Some(Box::new(WireQueue {
            index,
            max_frame: self.info.max_frame(),
            tx: Arc::clone(&self.tx),
            rx: Arc::clone(&self.rx),
            pool: self.pool.clone(),
            counters: Arc::clone(&self.counters),
            late: None,
        }))
    }

    fn start(&self) -> Result<(), PortError> {
        Ok(())
    }

    fn mtu(&self) -> usize {
        self.info.mtu
    }

    fn link_up(&self) -> bool {
        true
    }

    fn host(&self) -> Option<&dyn Host> {
        None
    }

    fn window(&self) -> Option<usize> {
        None
    }
    fn steer(&self, _: &[(core::ops::RangeInclusive<crate::id::Qpn>, usize)]) {}
    fn numbers(&self) -> Option<&dyn Numbers> {
        None
    }

    fn maintain(&self) {}

    fn stats(&self) -> PortStats {
        sum(&self.counters)
    }
}

struct WireQueue {
    index: usize,
    max_frame: usize,
    tx: Arc<Wire>,
    rx: Arc<Wire>,
    pool: HeapPool,
    counters: Arc<[Counters]>,
    /// A frame that was built in place and for which the link had no room.
    late: Option<Frame>,
}

impl WireQueue {
    /// The queue on which a frame arrives.
    fn lane_of(&self, frame: &Frame) -> usize {
        let lanes = self.tx.queues.len();
        match &self.tx.steering {
            Some(steering) => steering(self.index, frame.data(), lanes) % lanes,
            None => self.index % lanes,
        }
    }

    /// Puts a frame on the link, or gives it back.
    fn push(&self, frame: Frame) -> Result<(), Frame> {
        let (len, lane) = (frame.len(), self.lane_of(&frame));
        let mut frame = Some(frame);
        self.tx.queues[lane].with(|queue| {
            if queue.len() < DEPTH {
                queue.extend(frame.take());
            }
        });
        match frame {
            Some(frame) => Err(frame),
            None => {
                self.counters[self.index].tx(1, len);
                Ok(())
            }
        }
    }

    /// Retries the frame for which the link had no room. Returns whether every frame that was built is on the link now.
    fn push_late(&mut self) -> bool {
        self.late = self.late.take().and_then(|frame| self.push(frame).err());
        self.late.is_none()
    }
}

impl PortQueue for WireQueue {
    fn rx_burst(&mut self, out: &mut RxBurst) -> usize {
        self.push_late();
        let lane = &self.rx.queues[self.index];
        if lane.waiting.load(Ordering::Acquire) == 0 {
            return 0;
        }
        let (before, mut bytes, mut too_long) = (out.len(), 0, 0);
        lane.with(|frames| {
            for _ in 0..frames.len().min(out.remaining_capacity()) {
                let Some(frame) = frames.pop_front() else { break };
                if frame.len() > self.max_frame {
                    too_long += 1;
                    continue;
                }
                bytes += frame.len();
                out.push(frame);
            }
        });
        let n = out.len() - before;
        let counters = &self.counters[self.index];
        counters.rx(n, bytes);
        counters.rx_dropped.add(too_long);
        n
    }

    fn routes(&mut self) -> Option<&mut dyn Routes> {
        None
    }
    fn take_source_port(&mut self, hint: u16, _: FlowKind) -> u16 {
        hint
    }
    fn release_source_port(&mut self, _: u16) {}

    fn tx_burst(&mut self, _: Route, frames: &mut TxBurst) -> usize {
        if !self.push_late() {
            return 0;
        }
        let (mut taken, mut sent, mut bytes) = (0, 0, 0);
        while let Some(first) = frames.first() {
            // Frames to the same queue mostly follow each other.
            let lane = self.lane_of(first);
            let alike = match self.tx.steering {
                None => frames.len(),
                Some(_) => frames.iter().take_while(|frame| self.lane_of(frame) == lane).count(),
            };
            let moved = self.tx.queues[lane].with(|queue| {
                let n = alike.min(DEPTH - queue.len());
                for frame in frames.drain(..n).filter(|frame| frame.len() <= self.max_frame) {
                    (sent, bytes) = (sent + 1, bytes + frame.len());
                    queue.push_back(frame);
                }
                n
            });
            taken += moved.unwrap_or(0);
            if moved != Some(alike) {
                break;
            }
        }
        let counters = &self.counters[self.index];
        counters.tx(sent, bytes);
        counters.tx_dropped.add((taken - sent) as u64);
        taken
    }

    fn alloc(&mut self) -> Option<Frame> {
        self.pool.alloc()
    }

    fn alloc_burst(&mut self, out: &mut TxBurst, n: usize) {
        self.pool.alloc_burst(out, n);
    }

    /// Builds in place as a memif does, for tests of that: the link takes each frame when it is built, or at the next call.
    fn build_burst(&mut self, _: Route, most: usize, builder: &mut dyn Build) -> Option<usize> {
        let mut built = 0;
        while built < most.min(crate::config::TX_BURST) && self.push_late() {
            let Some(mut frame) = self.pool.alloc() else { break };
            let buffer = &mut frame.buffer_mut()[..self.max_frame];
            let Some(len) = builder.build(buffer) else { break };
            builder.finish(built, buffer);
            frame.set_len(len.min(self.max_frame));
            self.late = self.push(frame).err();
            built += 1;
        }
        Some(built)
    }

    fn stalled(&mut self, _: Route, _: Instant) -> Stalled {
        Stalled::No
    }

    fn arm(&mut self) -> Armed {
        Armed::Unable
    }

    fn recycle(&mut self, frames: &mut RxBurst) {
        HeapPool::recycle(frames);
    }
}

#[cfg(test)]
mod tests {
    use super::super::traits::AtOnce;
    use super::*;

    fn send(queue: &mut dyn PortQueue, bytes: &[u8]) -> usize {
        let mut burst = TxBurst::new();
        let mut frame = queue.alloc().unwrap();
        frame.fill(bytes);
        burst.push(frame);
        queue.tx_burst(Route::default(), &mut burst)
    }

    #[test]
    fn frames_arrive_at_the_other_end_and_buffers_come_back() {
        let options = PortOptions { frames: 64, ..PortOptions::default() };
        let (a, b) = pair_with(&options, &options, Arc::new(|from, _, _| from));
        let (mut qa, mut qb) = (a.take_queue(0).unwrap(), b.take_queue(0).unwrap());
        assert!(a.take_queue(0).is_none() && a.take_queue(1).is_none(), "a queue has one owner");
        for round in 0..1000u32 {
            assert_eq!(send(&mut *qa, &round.to_be_bytes()), 1);
            let mut got = RxBurst::new();
            assert_eq!(qb.rx_burst(&mut got), 1);
            assert_eq!(got[0].data(), round.to_be_bytes());
            qb.recycle(&mut got);
            assert_eq!(qa.rx_burst(&mut got), 0);
        }
        assert_eq!((a.stats().tx_frames, b.stats().rx_bytes), (1000, 4000));
        let all: Vec<Frame> = std::iter::from_fn(|| qa.alloc()).collect();
        assert_eq!(all.len(), 64, "no buffer was lost");
    }

    #[test]
    fn a_full_queue_leaves_the_rest_in_order() {
        let options = PortOptions { frames: 2000, ..PortOptions::default() };
        let (a, b) = pair_with(&options, &options, Arc::new(|from, _, _| from));
        let (mut qa, mut qb) = (a.take_queue(0).unwrap(), b.take_queue(0).unwrap());
        let mut sent = 0u32;
        let mut burst = TxBurst::new();
        loop {
            while !burst.is_full() {
                let mut frame = qa.alloc().unwrap();
                frame.fill(&sent.to_be_bytes());
                sent += 1;
                burst.push(frame);
            }
            if qa.tx_burst(Route::default(), &mut burst) < burst.capacity() {
                break;
            }
        }
        let mut got = RxBurst::new();
        let mut next = 0u32;
        while next < sent {
            qa.tx_burst(Route::default(), &mut burst);
            qb.rx_burst(&mut got);
            for frame in got.drain(..) {
                assert_eq!(frame.data(), next.to_be_bytes());
                next += 1;
            }
        }
        assert!(burst.is_empty());
    }

    #[test]
    fn frames_are_built_in_place_until_the_link_is_full() {
        // Goal: built frames arrive whole and in order with others, and one that found no room is not lost.
        let options = PortOptions { frames: 4 * DEPTH, ..PortOptions::default() };
        let (a, b) = pair_with(&options, &options, Arc::new(|from, _, _| from));
        let (mut qa, mut qb) = (a.take_queue(0).unwrap(), b.take_queue(0).unwrap());
        assert_eq!(send(&mut *qa, &u32::MAX.to_be_bytes()), 1);
        let mut next = 0u32;
        let mut number = AtOnce(|buffer: &mut [u8]| {
            assert!(buffer.len() >= a.info().max_frame());
            buffer[..4].copy_from_slice(&next.to_be_bytes());
            next += 1;
            Some(4)
        });
        let bursts = std::iter::from_fn(|| {
            qa.build_burst(Route::default(), 2 * DEPTH, &mut number).filter(|n| *n > 0)
        });
        assert_eq!(bursts.sum::<usize>(), DEPTH, "one of them waits");
        assert_eq!(
            qa.build_burst(Route::default(), 1, &mut AtOnce(|_: &mut [u8]| panic!("there is no room"))),
            Some(0)
        );
        assert_eq!(send(&mut *qa, b"not yet"), 0);
        let mut seen = Vec::new();
        let mut got = RxBurst::new();
        while qb.rx_burst(&mut got) > 0 {
            seen.extend(got.drain(..).map(|frame| u32::from_be_bytes(frame.data().try_into().unwrap())));
            qa.rx_burst(&mut RxBurst::new());
        }
        let all: Vec<u32> = std::iter::once(u32::MAX).chain(0..DEPTH as u32).collect();
        assert_eq!(seen, all);
        assert_eq!(
            qa.build_burst(Route::default(), 5, &mut AtOnce(|_: &mut [u8]| None)),
            Some(0),
            "whoever has nothing more says so"
        );
    }

    #[test]
    fn steering_chooses_the_queue() {
        let options = PortOptions { queues: 3, frames: 64, ..PortOptions::default() };
        let (a, b) = pair_with(&options, &options, Arc::new(|_, frame, _| frame[0].into()));
        let mut qa = a.take_queue(1).unwrap();
        let mut qb: Vec<_> = (0..3).map(|i| b.take_queue(i).unwrap()).collect();
        for byte in 0..7u8 {
            send(&mut *qa, &[byte]);
        }
        let mut got = RxBurst::new();
        let counts: Vec<usize> = qb.iter_mut().map(|queue| queue.rx_burst(&mut got)).collect();
        assert_eq!(counts, [3, 2, 2]);
    }

    #[test]
    fn a_frame_that_is_too_long_is_counted() {
        let (a, b) = pair(1);
        let (mut qa, mut qb) = (a.take_queue(0).unwrap(), b.take_queue(0).unwrap());
        let mut burst = TxBurst::new();
        burst.push(Frame::from_vec(vec![0; a.info().max_frame() + 1]));
        assert_eq!((qa.tx_burst(Route::default(), &mut burst), a.stats().tx_dropped), (1, 1));
        assert_eq!(qb.rx_burst(&mut RxBurst::new()), 0);
    }
}
