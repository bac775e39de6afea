//! A sender that uses few buffers at first, and more as it needs them.

use super::growth::Growth;
use super::ring::Ring;
use super::slots::Buffers;
use super::tx::Tx;
use core::ops::Range;

impl Tx {
    /// The sending end of an unused ring whose buffers this process laid out. It uses `count` of them, a power of two, until it
    /// [grows](Self::grow).
    ///
    /// # Panics
    /// If the ring has fewer buffers, `count` is not a power of two, or the other process laid the buffers out.
    pub fn growing(ring: Ring, buffers: Buffers, max_frame: usize, count: u16) -> Self {
        let slots = ring.slots();
        assert!(
            buffers.are_ours() && count.is_power_of_two() && count <= slots,
            "{count} of {slots} buffers"
        );
        let mut tx = Self::new(ring, buffers, max_frame);
        (tx.free_end, tx.growth) = (count, Some(Box::new(Growth::new(slots, count))));
        tx
    }

    /// The slot of the next frame.
    pub fn next(&self) -> u16 {
        self.next
    }

    /// The byte range of these buffers; empty if the other process laid them out.
    pub fn bytes_of(&self, buffers: Range<u16>) -> Range<usize> {
        let Buffers::Ours { first, size } = self.buffers else { return 0..0 };
        let at = |buffer: u16| first as usize + usize::from(buffer) * size as usize;
        at(buffers.start)..at(buffers.end)
    }

    /// Whether more buffers are needed: all are in flight, and the ring has more.
    #[inline(always)]
    pub fn wants_more(&self) -> bool {
        self.growth.as_ref().is_some_and(|growth| growth.is_full && growth.count() < self.ring.slots())
    }

    /// Uses twice as many buffers from now on, if [`wants_more`](Self::wants_more).
    pub fn grow(&mut self) {
        if self.wants_more()
            && let Some(growth) = &mut self.growth
        {
            self.free_end = self.next.wrapping_add(growth.count());
            growth.grow();
        }
    }

    /// Goes back to `count` buffers, a power of two, if nothing is in flight. Returns whether it does.
    pub fn shrink_to(&mut self, count: u16) -> bool {
        let Some(growth) = self.growth.as_mut().filter(|growth| growth.count() >= count) else {
            return false;
        };
        if self.ring.tail() != self.next || !count.is_power_of_two() {
            return false;
        }
        growth.shrink_to(count);
        self.free_end = self.next.wrapping_add(count);
        true
    }
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;
    use crate::port::frame::{Frame, HeapPool, RxBurst};
    use crate::port::memif::connection::Connection;
    use crate::port::memif::region::Layout;
    use crate::port::memif::rx::Rx;
    use crate::port::memif::shm::Fill;
    use crate::port::stock::Stock;
    use crate::port::traits::AtOnce;
    use std::os::fd::AsFd;

    const LOG2: u8 = 6;
    const FRAME: usize = 100;

    /// Both ends of a ring that uses two buffers at first.
    fn ends() -> (Tx, Rx) {
        let layout = Layout { queues: 1, log2: LOG2, buffer: 128 };
        let (fd, ours) = layout.make_empty("test", Fill::AsUsed).unwrap();
        let theirs = super::super::region::take(fd.as_fd(), layout.size(), Fill::AsUsed).unwrap();
        let [sender, receiver] = [(ours, true), (theirs, false)]
            .map(|(region, is_client)| Connection::of_equal(layout, region, is_client));
        let (ring, buffers) = sender.sending(0).unwrap();
        let tx = Tx::growing(ring, buffers, FRAME, 2);
        let (ring, buffers) = receiver.receiving(0).unwrap();
        (tx, Rx::new(ring, buffers, None, FRAME))
    }

    fn frame(number: u32) -> Vec<u8> {
        let mut bytes = vec![number as u8; 8 + number as usize % (FRAME - 8)];
        bytes[..4].copy_from_slice(&number.to_ne_bytes());
        bytes
    }

    // Goal: whenever a ring grows and shrinks, and however many frames are in flight, each frame arrives intact and in order.
    #[test]
    fn a_ring_that_grows_and_shrinks_loses_nothing() {
        let mut most_used = 0;
        for seed in 0..64u64 {
            let (mut tx, mut rx) = ends();
            let mut stock = Stock::new(HeapPool::new(256, 128));
            let (mut sent, mut received) = (0u32, 0u32);
            let mut state = seed;
            let mut random = |below: u64| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                (state >> 33) % below
            };
            for _ in 0..2000 {
                match random(8) {
                    0..=1 => {
                        let frames: Vec<Frame> = (sent..)
                            .take(1 + random(32) as usize)
                            .map(|at| Frame::from_vec(frame(at)))
                            .collect();
                        sent += tx.burst(&frames).unwrap().taken as u32;
                    }
                    2..=3 => {
                        let mut next = sent;
                        let mut fill = AtOnce(|buffer: &mut [u8]| {
                            let bytes = frame(next);
                            next += 1;
                            buffer[..bytes.len()].copy_from_slice(&bytes);
                            Some(bytes.len())
                        });
                        let lens = tx.build(1 + random(32) as usize, &mut fill).unwrap();
                        sent += lens.expect("it lends its buffers").len() as u32;
                    }
                    4..=5 => {
                        let mut got = RxBurst::new();
                        rx.burst_of(random(24) as usize, &mut got, &mut stock).unwrap();
                        for frame in &got {
                            assert_eq!(frame.data(), self::frame(received), "seed {seed}");
                            received += 1;
                        }
                        rx.give_back();
                    }
                    6 if tx.wants_more() => tx.grow(),
                    7 if random(16) == 0 => {
                        let is_idle = tx.reached().is_none();
                        assert_eq!(tx.shrink_to(2), is_idle);
                    }
                    _ => {}
                }
                assert!(sent - received <= u32::from(tx.count()), "seed {seed}");
                most_used = most_used.max(tx.count());
            }
            assert!(received > 1000, "seed {seed}: {received}");
        }
        assert_eq!(most_used, 1 << LOG2);
    }
}
