//! Prefetching: with very many queue pairs nothing of the next one is in a cache, and what a message touches of it is
//! scattered. So a part that goes through a list of queue pairs prefetches for several of them at once, in steps, because each step
//! finds the addresses of the next one: first the queue pairs, then the rings and counters that they point to, then the data of
//! their messages. The cache misses of a step overlap.
//!
//! A prefetch of a page that was not used for long is a TLB miss, and the program stalls behind it before long. So the first
//! lines of all pages are prefetched right after each other, and their TLB misses overlap.
//!
//! Every message pays for it, so it is as few instructions as can be.

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

/// Queue pairs that send are prefetched in groups of so many: the cache misses of a group overlap.
pub(super) const GROUP: usize = 4;
/// Messages whose cache misses overlap well enough: no further burst is received for more.
const ENOUGH: usize = 4;

impl Qp {
    /// Prefetches what sending its next requests touches beside it.
    #[inline(always)]
    fn prefetch_behind_sends(&self) {
        let next = self.requester.next_to_send();
        self.sq.0.prefetch_ends();
        self.sq.0.prefetch(next, QP_TX_BUDGET as u32);
        prefetch::line(self.requester.remembers(next));
        prefetch::line(&raw const *self.counters);
    }

    /// Prefetches the first bytes of each message that it sends next.
    #[inline(always)]
    fn prefetch_sends(&self) {
        prefetch_data(&self.sq.0, self.requester.next_to_send(), QP_TX_BUDGET as u32, SendWqe::sges);
    }

    /// Prefetches what received requests touch beside it, other than receive requests.
    #[inline(always)]
    fn prefetch_behind_requests(&self) {
        if let Some((ring, _)) = self.rq.own() {
            ring.prefetch_ends();
        }
        prefetch::line(&raw const *self.counters);
    }

    /// Prefetches the receive requests that so many requests, of a packet each, take.
    #[inline(always)]
    fn prefetch_taken(&self, packets: u32) {
        if let Some((ring, next)) = self.rq.own() {
            ring.prefetch(next, packets);
        }
    }

    /// Prefetches where the data of so many requests go.
    #[inline(always)]
    fn prefetch_receives(&self, packets: u32) {
        if let Some((ring, next)) = self.rq.own() {
            prefetch_data(ring, next, packets, RecvWqe::sges);
        }
    }
}

/// Prefetches the first bytes of the list in each of the next `n` slots of a ring, as far as they are posted and lie behind
/// each other.
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

/// How many of the next frames have this glance: queue pair and operation. Every fourth is looked at, and the frames between two
/// that have it count as well.
#[inline(always)]
fn alike(glance: Glance, frames: &[Frame]) -> usize {
    const SAMPLE: usize = 4;
    let looks = |frame: &&Frame| glance.is_of(frame.data());
    let sampled = SAMPLE * frames.iter().skip(SAMPLE - 1).step_by(SAMPLE).take_while(looks).count();
    sampled + frames[sampled..].iter().take_while(looks).count()
}

impl Qps {
    /// Prefetches this part of queue pairs that are about to be worked on.
    #[inline(always)]
    pub fn prefetch_each(&self, slots: &[u32], part: Part) {
        slots.iter().for_each(|slot| self.prefetch(*slot, part));
    }

    /// Prefetches what sending needs of queue pairs whose doorbells were rung.
    #[inline]
    pub fn prefetch_senders(&self, slots: &[u32], wheel: &Wheel) {
        for &slot in slots {
            self.prefetch(slot, Part::Send);
            wheel.prefetch(slot);
        }
    }

    /// Prefetches what the queue pairs at the front of the ready list point to; the next group of them is about to send. The
    /// queue pairs themselves were prefetched when their doorbells were taken, or touched since.
    #[inline]
    pub fn prefetch_ready(&self, ready: &VecDeque<u32>, first: bool) {
        let qps = |from: usize, to: usize| {
            (from * GROUP..to * GROUP).filter_map(|place| self.peek(*ready.get(place)?))
        };
        qps(if first { 0 } else { 2 }, 3).for_each(Qp::prefetch_behind_sends);
        qps(if first { 0 } else { 1 }, 2).for_each(Qp::prefetch_sends);
    }

    /// Prefetches this part of what is in a slot, which is not looked at.
    #[inline(always)]
    fn prefetch(&self, slot: u32, part: Part) {
        let qp = self.slots.place(slot);
        for (first, end) in part.lines() {
            prefetch::lines(qp, first, end);
        }
    }
}

/// A packet train: requests that follow each other and are for one queue pair.
struct Train {
    /// The queue pair's number, then its slot.
    of: u32,
    packets: u32,
}

/// Bursts that were received early, and wait to be handled. What requests need is prefetched in steps, each of which finds
/// in what the one before prefetched where to look. What responses need was touched when their requests were sent, and is in
/// a cache since: only their entries in the table of queue pairs are prefetched.
pub(super) struct Lookahead {
    /// There are so many queue pairs that each is likely to be in no cache: `from` or more.
    on: bool,
    from: usize,
    bursts: [Box<RxBurst>; RX_BURSTS],
    /// Those from `next` up to and not including `end` wait, oldest first.
    next: usize,
    end: usize,
    /// The requests among them, until there is nothing left to prefetch.
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
    /// A step is due after every so many frames of the burst before.
    pub const EVERY: usize = 8;
    /// A frame's header is prefetched again so many frames before it is handled.
    pub const AGAIN: usize = 2;

    /// It prefetches while there are at least so many queue pairs; [`PREFETCH_FROM`] unless told otherwise.
    pub fn set_from(&mut self, qps: usize) {
        self.from = qps;
    }

    /// The number of queue pairs is this now.
    pub fn count(&mut self, qps: usize) {
        self.on = qps >= self.from;
    }

    /// Whether the shard prefetches, or did, and received bursts are left from then.
    #[inline(always)]
    pub fn is_active(&self) -> bool {
        self.on || !self.is_empty()
    }

    /// Whether there are so many queue pairs that prefetching pays.
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

    /// Receives up to so many bursts, while none waits: as long as they are full and bring packets of few messages. Prefetches
    /// their queue pairs' entries in the table.
    #[inline(never)]
    pub fn receive(&mut self, queue: &mut dyn PortQueue, qps: &Qps, most: usize) {
        self.trains.clear();
        (self.next, self.end, self.step) = (0, 0, 0);
        // Whose packet was last and whether it is a request, and how often that changed.
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
        // Not one by one above: between two of them there are too many frames for their cache misses to overlap.
        for train in &self.trains {
            qps.table.prefetch(Qpn::new(train.of));
        }
    }

    /// Takes the oldest burst, after the steps that are left. `into` is empty.
    #[inline]
    pub fn take(&mut self, into: &mut Box<RxBurst>, qps: &Qps, words: &Words) {
        while !self.trains.is_empty() {
            self.step(qps, words);
        }
        core::mem::swap(into, &mut self.bursts[self.next]);
        self.next += 1;
    }

    /// The next step, if there is one.
    #[inline(always)]
    pub fn step_if_any(&mut self, qps: &Qps, words: &Words) {
        if !self.trains.is_empty() {
            self.step(qps, words);
        }
    }

    /// The next step.
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
                    words.prefetch(qp.index); // whoever polls the completion looks at it
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
