//! A cache of free frames for one queue of a port with heap buffers. To take and to return frames needs neither a lock nor an atomic
//! operation as long as the queue's frames come back to it.

use super::frame::{Frame, HeapPool, RxBurst, TxBurst};

use arrayvec::ArrayVec;

/// The most frames in the cache.
pub(super) const STOCK: usize = 256;
/// Frames that move between a cache and its pool at a time.
const MOVED: usize = 64;

/// Free frames of a pool, all of them empty. Last in, first out: the last one is still in L1 or L2.
pub(super) struct Stock {
    frames: ArrayVec<Frame, STOCK>,
    pool: HeapPool,
}

impl Stock {
    pub(super) fn new(pool: HeapPool) -> Self {
        Self { frames: ArrayVec::new(), pool }
    }

    /// Takes an empty frame; `None` while all are in use.
    #[inline]
    pub(super) fn take(&mut self) -> Option<Frame> {
        if self.frames.is_empty() {
            self.refill();
        }
        self.frames.pop()
    }

    #[cold]
    fn refill(&mut self) {
        self.pool.alloc_burst(&mut self.frames, MOVED);
    }

    /// Returns a frame to the cache; drops a frame of another pool.
    #[inline]
    pub(super) fn put(&mut self, mut frame: Frame) {
        if !self.pool.owns(&frame) {
            return;
        }
        if self.frames.is_full() {
            self.spill();
        }
        frame.set_len(0);
        self.frames.push(frame);
    }

    /// Returns some frames to the pool. The cache fills up if frames that other queues took come back to this one.
    #[cold]
    fn spill(&mut self) {
        let mut some: RxBurst = ArrayVec::new();
        for _ in 0..MOVED / some.capacity() {
            some.extend(self.frames.drain(..some.capacity()));
            HeapPool::recycle(&mut some);
        }
    }

    /// Appends up to `n` empty frames to `out`, until it is full.
    #[inline]
    pub(super) fn take_burst(&mut self, out: &mut TxBurst, n: usize) {
        let n = n.min(out.remaining_capacity());
        out.extend(core::iter::from_fn(|| self.take()).take(n));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_come_back_through_any_queue() {
        const FRAMES: usize = 600;
        let pool = HeapPool::new(FRAMES, 100);
        let (mut a, mut b) = (Stock::new(pool.clone()), Stock::new(pool.clone()));
        for round in 0..5 {
            // All frames of one queue end up at the other one.
            let all: Vec<Frame> = core::iter::from_fn(|| a.take()).collect();
            assert!(all.len() + STOCK >= FRAMES, "round {round}: {}", all.len());
            for mut frame in all {
                assert!(frame.is_empty() && frame.capacity() == 100);
                frame.fill(b"something");
                b.put(frame);
            }
            assert!(b.frames.len() <= STOCK);
            core::mem::swap(&mut a, &mut b);
        }
        a.put(Frame::from_vec(vec![1, 2, 3]));
        b.put(HeapPool::new(1, 100).alloc().unwrap());
        drop((a, b));
        assert_eq!(pool.available(), FRAMES);
    }
}
