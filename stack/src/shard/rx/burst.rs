//! Received frames: bursts from the port's queue, and frames that other shards handed over.
//!
//! With very many queue pairs bursts are received ahead: they wait in [`Lookahead`], which prefetches in steps what their frames need,
//! while earlier frames are handled.

use crate::config::{RX_BURST, RX_BURST_BYTES, RX_BURSTS};
use crate::port::{Frame, RxBurst};
use crate::shard::counters::Counter;
use crate::shard::lookahead::Lookahead;
use crate::shard::state::Shard;
use crate::sync::prefetch;

/// A received frame, in its burst. A frame that is kept beyond the turn is taken out; the others go back to the port together.
pub(super) struct Arrival<'a> {
    burst: &'a mut RxBurst,
    at: usize,
}

impl Arrival<'_> {
    #[inline(always)]
    pub fn frame(&self) -> &Frame {
        &self.burst[self.at]
    }
    #[inline(always)]
    pub fn frame_mut(&mut self) -> &mut Frame {
        &mut self.burst[self.at]
    }
    /// Takes the frame out of its burst.
    pub fn take(self) -> Frame {
        self.burst.remove(self.at)
    }
}

impl Shard {
    /// Handles received frames. Returns their number.
    #[inline(always)]
    pub(in crate::shard) fn receive(&mut self) -> usize {
        let mut received = 0;
        for _ in 0..RX_BURSTS {
            self.recycle();
            let n = self.env.outbox.queue.rx_burst(&mut self.rx);
            if n == 0 {
                break;
            }
            let (mut at, mut bytes) = (0, 0);
            while at < self.rx.len() {
                bytes += self.handle(&mut at);
            }
            received += n;
            if self.finish_burst(n, bytes) {
                break;
            }
        }
        received
    }

    /// [`Self::receive`] with very many queue pairs: handles bursts that were received ahead, for which [`Lookahead`] has prefetched.
    #[inline(always)]
    pub(in crate::shard) fn receive_prefetched(&mut self) -> usize {
        self.lookahead.step_if_any(&self.qps, &self.env.shared.words);
        let mut received = 0;
        for _ in 0..RX_BURSTS {
            self.recycle();
            self.receive_early();
            if self.lookahead.is_empty() {
                break;
            }
            self.lookahead.take(&mut self.rx, &self.qps, &self.env.shared.words);
            // What the next bursts need is prefetched while this burst is handled.
            if self.lookahead.is_on() && self.lookahead.is_empty() && self.rx.is_full() {
                self.lookahead.receive(&mut *self.env.outbox.queue, &self.qps, RX_BURSTS);
            }
            let n = self.rx.len();
            let (mut at, mut bytes, mut handled) = (0, 0, 0);
            while at < self.rx.len() {
                // The frame was received a while ago, and much was prefetched since: its header has left the nearest cache.
                if let Some(soon) = self.rx.get(at + Lookahead::AGAIN) {
                    prefetch::near(soon.data().as_ptr());
                }
                bytes += self.handle(&mut at);
                handled += 1;
                if handled % Lookahead::EVERY == 0 {
                    self.lookahead.step_if_any(&self.qps, &self.env.shared.words);
                }
            }
            received += n;
            if self.finish_burst(n, bytes) {
                break;
            }
        }
        received
    }

    /// Receives a burst ahead, if none waits, and begins to prefetch what it needs.
    #[inline(always)]
    pub(in crate::shard) fn receive_early(&mut self) {
        if self.lookahead.is_on() && self.lookahead.is_empty() {
            self.lookahead.receive(&mut *self.env.outbox.queue, &self.qps, 1);
        }
    }

    /// Returns the previous burst's buffers to the port. Deferred to here so that the requests of that burst are answered first.
    #[inline(always)]
    fn recycle(&mut self) {
        if !self.rx.is_empty() {
            self.env.outbox.queue.recycle(&mut self.rx);
        }
    }

    /// Counts a burst of `n` frames that was handled. Returns whether it is the last of this turn: a burst that was neither full nor long
    /// means that the port has no more frames, and requests in a burst are answered first.
    #[inline(always)]
    fn finish_burst(&self, n: usize, bytes: u64) -> bool {
        self.env.counters.add(Counter::RxFrames, n as u64);
        self.env.counters.add(Counter::RxBytes, bytes);
        n < RX_BURST && bytes < RX_BURST_BYTES || !self.env.agenda.answering.is_empty()
    }

    /// Handles the frame at a place of the burst, and advances to the next one. Returns the frame's length in bytes.
    #[inline(always)]
    fn handle(&mut self, at: &mut usize) -> u64 {
        let before = self.rx.len();
        let arrival = Arrival { burst: &mut self.rx, at: *at };
        let len = arrival.frame().len() as u64;
        self.env.receive(&mut self.qps, arrival);
        if self.rx.len() == before {
            *at += 1; // otherwise the frame was taken out, and the next frame has its place
        }
        len
    }

    /// Handles frames that other shards handed over, and frames looped back by this shard. Returns their number.
    #[inline]
    pub(in crate::shard) fn receive_inbox(&mut self) -> usize {
        // Two loads. Popping an empty queue would be a full fence, which waits for every store to the port's memory.
        if self.env.shared.inboxes[self.env.id].is_empty() {
            return 0;
        }
        self.drain_inbox()
    }

    #[inline(never)]
    fn drain_inbox(&mut self) -> usize {
        let mut n = 0;
        self.env.from_inside = true;
        while n < RX_BURST {
            let Some(frame) = self.env.shared.inboxes[self.env.id].pop() else { break };
            let mut alone = RxBurst::from_iter([frame]);
            self.env.receive(&mut self.qps, Arrival { burst: &mut alone, at: 0 });
            n += 1;
        }
        self.env.from_inside = false;
        n
    }
}
