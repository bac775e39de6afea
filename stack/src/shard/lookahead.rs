//! Prefetching: with very many queue pairs, the state of the next one is in no cache, and what a message touches of it is scattered.
//! So code that walks a list of queue pairs prefetches for several of them at once, in steps, because each step finds the addresses for
//! the next step: first the queue pairs, then the rings and counters that they point to, then the data of their messages. The cache
//! misses of a step overlap.
//!
//! A prefetch from a page that was not used for long is a TLB miss, and the program soon stalls behind it. So the first lines of all
//! pages are prefetched back to back, and their TLB misses overlap.
//!
//! Every message pays for prefetching, so it takes as few instructions as possible.

use std::collections::VecDeque;

use super::qp::{Part, Qp};
use super::qps::Qps;
use super::wheel::Wheel;
use crate::config::{PREFETCH_FROM, QP_TX_BUDGET, RX_BURST, RX_BURSTS};
use crate::id::Qpn;
use crate::mem::Sge;
use crate::port::{Frame, PortQueue, RxBurst};
use crate::proto::wqe::{Granule, RecvWqe, SendWqe};
use crate::sync::prefetch;
use crate::sync::spsc::Consumer;
use crate::sync::words::Words;
use crate::wire::{Glance, peek};
use arrayvec::ArrayVec;

/// Queue pairs with requests to send are prefetched in groups of this many: the cache misses of a group overlap.
pub(super) const GROUP: usize = 4;
/// Number of messages whose cache misses overlap well enough: no further burst is received for more.
const ENOUGH: usize = 4;

impl Qp {
    /// Prefetches what sending the next requests touches besides the queue pair itself.
    #[inline(always)]
    fn prefetch_behind_sends(&self) {
        let next = self.requester.next_to_send();
        self.sq.0.prefetch_ends();
        self.sq.0.prefetch(next, QP_TX_BUDGET as u32);
        prefetch::line(self.requester.remembers(next));
        prefetch::line(&raw const *self.counters);
    }

    /// Prefetches the first bytes of each of the next messages to send.
    #[inline(always)]
    fn prefetch_sends(&self) {
        prefetch_data(&self.sq.0, self.requester.next_to_send(), QP_TX_BUDGET as u32, SendWqe::sges);
    }

    /// Prefetches what receiving requests touches besides the queue pair itself, except receive requests.
    #[inline(always)]
    fn prefetch_behind_requests(&self) {
        if let Some((ring, _)) = self.rq.own() {
            ring.prefetch_ends();
        }
        prefetch::line(&raw const *self.counters);
    }

    /// Prefetches the receive requests that `packets` one-packet requests consume.
    #[inline(always)]
    fn prefetch_taken(&self, packets: u32) {
        if let Some((ring, next)) = self.rq.own() {
            ring.prefetch(next, packets);
        }
    }

    /// Prefetches the destinations of the data of `packets` requests.
    #[inline(always)]
    fn prefetch_receives(&self, packets: u32) {
        if let Some((ring, next)) = self.rq.own() {
            prefetch_data(ring, next, packets, RecvWqe::sges);
        }
    }
}

/// Prefetches the first bytes of the data of the requests in the next `n` slots of a ring, as far as these are posted and contiguous.
#[inline(always)]
fn prefetch_data(ring: &Consumer<Granule>, next: u32, n: u32, sges: impl Fn(&[Granule]) -> &[Sge]) {
    if !ring.has(next) {
        return;
    }
    let mut slots = ring.contiguous(next, ring.published().wrapping_sub(next).min(n));
    while let Some((slot, rest)) = slots.split_at_checked(ring.stride())
        && let Some(sge) = sges(slot).first()
    {
        prefetch::line(sge.addr as *const u8);
        slots = rest;
    }
}

/// Number of following frames with the same queue pair and operation (the glance). Samples every fourth frame, and counts the frames
/// between matching samples as matching; then compares the remaining frames one by one.
#[inline(always)]
fn alike(glance: Glance, frames: &[Frame]) -> usize {
    const SAMPLE: usize = 4;
    let looks = |frame: &&Frame| glance.is_of(frame.data());
    let sampled = SAMPLE * frames.iter().skip(SAMPLE - 1).step_by(SAMPLE).take_while(looks).count();
    sampled + frames[sampled..].iter().take_while(looks).count()
}

impl Qps {
    /// Prefetches a part of the queue pairs that are about to be processed.
    #[inline(always)]
    pub fn prefetch_each(&self, slots: &[u32], part: Part) {
        slots.iter().for_each(|slot| self.prefetch(*slot, part));
    }

    /// Prefetches what sending needs, for queue pairs whose doorbells were rung.
    #[inline]
    pub fn prefetch_senders(&self, slots: &[u32], wheel: &Wheel) {
        for &slot in slots {
            self.prefetch(slot, Part::Send);
            wheel.prefetch(slot);
        }
    }

    /// Prefetches what the queue pairs at the front of the ready list point to; their next group is about to send. The queue pairs
    /// themselves were prefetched when their doorbells were taken, or touched since.
    #[inline]
    pub fn prefetch_ready(&self, ready: &VecDeque<u32>, first: bool) {
        let qps = |from: usize, to: usize| {
            (from * GROUP..to * GROUP).filter_map(|place| self.peek(*ready.get(place)?))
        };
        qps(if first { 0 } else { 2 }, 3).for_each(Qp::prefetch_behind_sends);
        qps(if first { 0 } else { 1 }, 2).for_each(Qp::prefetch_sends);
    }

    /// Prefetches a part of the contents of a slot, without reading them.
    #[inline(always)]
    fn prefetch(&self, slot: u32, part: Part) {
        let qp = self.slots.place(slot);
        for (first, end) in part.lines() {
            prefetch::lines(qp, first, end);
        }
    }
}

/// A packet train: consecutive requests for one queue pair.
struct Train {
    /// The queue pair's number; after step 0 its slot.
    of: u32,
    packets: u32,
}

/// Bursts that were received early and wait to be handled. What requests need is prefetched in steps; each step reads the addresses
/// to prefetch from lines that the step before prefetched. What responses need was touched when their requests were sent, and has been
/// cached since: only their entries in the queue pair table are prefetched.
pub(super) struct Lookahead {
    /// At least `from` queue pairs exist, so that the state of each is likely to be in no cache.
    on: bool,
    from: usize,
    bursts: [Box<RxBurst>; RX_BURSTS],
    /// Bursts `next..end` wait, oldest first.
    next: usize,
    end: usize,
    /// The trains of requests in the bursts, until all of their prefetches are issued.
    trains: ArrayVec<Train, { ENOUGH + RX_BURST }>,
    step: u8,
}

impl Default for Lookahead {
    fn default() -> Self {
        Self {
            on: false,
            from: PREFETCH_FROM,
            bursts: Default::default(),
            next: 0,
            end: 0,
            trains: ArrayVec::new(),
            step: 0,
        }
    }
}

impl Lookahead {
    /// A step is due after this many frames of the previous burst.
    pub const EVERY: usize = 8;
    /// A frame's header is prefetched again this many frames before the frame is handled.
    pub const AGAIN: usize = 2;

    /// Sets the number of queue pairs from which on the shard prefetches; the default is [`PREFETCH_FROM`].
    pub fn set_from(&mut self, qps: usize) {
        self.from = qps;
    }

    /// Notes the current number of queue pairs.
    pub fn count(&mut self, qps: usize) {
        self.on = qps >= self.from;
    }

    /// Whether the shard prefetches, or received bursts are left from when it did.
    #[inline(always)]
    pub fn is_active(&self) -> bool {
        self.on || !self.is_empty()
    }

    /// Whether enough queue pairs exist for prefetching to pay.
    #[inline(always)]
    pub fn is_on(&self) -> bool {
        self.on
    }

    /// Whether no burst waits.
    #[inline(always)]
    pub fn is_empty(&self) -> bool {
        self.next == self.end
    }

    /// Whether a burst waits.
    #[inline(always)]
    pub fn has_more(&self) -> bool {
        !self.is_empty()
    }

    /// Receives up to `most` bursts; stops after a burst that is not full, or when enough messages came. No burst may be waiting.
    /// Prefetches the table entries of the packets' queue pairs.
    #[inline(never)]
    pub fn receive(&mut self, queue: &mut dyn PortQueue, qps: &Qps, most: usize) {
        self.trains.clear();
        (self.next, self.end, self.step) = (0, 0, 0);
        // Queue pair of the last packet and whether it is a request; and the number of changes of that pair.
        let (mut last, mut messages) = (None, 0);
        for burst in self.bursts.iter_mut().take(most) {
            let n = queue.rx_burst(burst);
            if n == 0 {
                break;
            }
            self.end += 1;
            let mut frames = burst.as_slice();
            while let Some((first, others)) = frames.split_first() {
                let like = Glance::at(first.data()).map_or(0, |glance| alike(glance, others));
                frames = &others[like..];
                let Some(this @ (of, request)) = peek(first.data()) else { continue };
                if last != Some(this) {
                    last = Some(this);
                    messages += 1;
                    if request {
                        self.trains.push(Train { of: of.get(), packets: 0 });
                    } else {
                        qps.table.prefetch(of);
                    }
                }
                if request && let Some(train) = self.trains.last_mut() {
                    train.packets += 1 + like as u32;
                }
            }
            if n < RX_BURST || messages >= ENOUGH {
                break;
            }
        }
        // Not one by one above: too many frames lie between two of them for their cache misses to overlap.
        for train in &self.trains {
            qps.table.prefetch(Qpn::new(train.of));
        }
    }

    /// Takes the oldest burst, after all steps that are left. `into` is empty.
    #[inline]
    pub fn take(&mut self, into: &mut Box<RxBurst>, qps: &Qps, words: &Words) {
        while !self.trains.is_empty() {
            self.step(qps, words);
        }
        core::mem::swap(into, &mut self.bursts[self.next]);
        self.next += 1;
    }

    /// Performs the next step, if one is left.
    #[inline(always)]
    pub fn step_if_any(&mut self, qps: &Qps, words: &Words) {
        if !self.trains.is_empty() {
            self.step(qps, words);
        }
    }

    /// Performs the next step.
    #[inline(never)]
    fn step(&mut self, qps: &Qps, words: &Words) {
        match self.step {
            0 => self.trains.retain(|train| {
                let slot = qps.table.get(Qpn::new(train.of));
                train.of = slot.unwrap_or_default();
                qps.prefetch(train.of, Part::Request);
                slot.is_some()
            }),
            1 => {
                self.each(qps, |_, qp| {
                    qp.prefetch_behind_requests();
                    words.prefetch(qp.index); // the thread that polls the completion reads it
                });
                self.each(qps, |train, qp| qp.prefetch_taken(train.packets));
            }
            _ => {
                self.each(qps, |_, qp| qp.prefetch_receives(1));
                self.each(qps, |train, qp| qp.prefetch_receives(train.packets));
                self.trains.clear();
            }
        }
        self.step += 1;
    }

    #[inline(always)]
    fn each(&self, qps: &Qps, prefetch: impl Fn(&Train, &Qp)) {
        for train in &self.trains {
            if let Some(qp) = qps.peek(train.of) {
                prefetch(train, qp);
            }
        }
    }
}
