//! Many queue pairs, visited at random: the load of a server with very many peers.
//!
//! A visit posts a few requests to one queue pair and signals the last; the queue pair gets no other requests until that one has
//! completed. The next queue pair is drawn from all that are idle, so with many queue pairs none of its state is in a cache. The first
//! visits, which are not counted, go to one queue pair after the other. Loops and tables here are as small as possible, so that the
//! stack's own state is measured: each queue pair has one bit, and the requests are built for each visit.

use super::exchange::{self, Outcome, Receiving, Sending};
use super::flow::request;
use super::meter::Meter;
use super::queues::{QueueSet, of_wr_id, wr_id};
use super::shared;
use super::watch::Watch;
use crate::error::Result;
use crate::plan::{Op, Spec, VISIT_MAX};
use crate::protocol::Flow;
use crate::rig::Driver;
use arrayvec::ArrayVec;
use std::time::{Duration, Instant};
use verbs::{RecvWr, Sge, Wc};

/// Completions per poll: those of several visits, so that the cache misses of their queue pairs overlap.
const POLL: usize = 128;
/// Draws handled together: the memory that their handles point to is prefetched one group before they are posted to.
const GROUP: usize = 4;
/// The list of one visit.
type Visit<T> = ArrayVec<T, { VISIT_MAX as usize }>;

/// Runs one measurement at one end, until both are done.
///
/// # Errors
/// Failed requests, the peer's failure, a signal.
pub fn run(
    queues: &mut QueueSet,
    spec: &Spec,
    driver: &mut Driver,
    watch: &mut Watch<'_>,
) -> Result<Outcome> {
    // As a program with this many handles would do: the handles are accessed at random, too.
    verbs::huge_pages(&queues.sqs);
    verbs::huge_pages(&queues.rqs);
    let tx = queues.role.requests.then(|| Tx::new(spec));
    let receives = queues.inbox.is_some();
    let (outcome, peer_sent) = if spec.srq {
        exchange::run(queues, driver, watch, tx, receives.then(|| shared::Rx::new(spec)), 1)?
    } else {
        exchange::run(queues, driver, watch, tx, receives.then(|| Rx::new(spec)), 1)?
    };
    if let (Some(sent), Op::FetchAdd) = (peer_sent, spec.op) {
        queues.check_target(spec, &sent, driver)?;
    }
    Ok(outcome)
}

/// A set of queue pairs, a bit each.
#[derive(Debug)]
struct Set(Vec<u64>);

impl Set {
    fn new(len: u32) -> Self {
        Self(vec![0; len.div_ceil(64) as usize])
    }
    #[inline]
    fn has(&self, n: u32) -> bool {
        self.0[n as usize / 64] >> (n % 64) & 1 != 0
    }
    #[inline]
    fn flip(&mut self, n: u32) {
        self.0[n as usize / 64] ^= 1 << (n % 64);
    }
}

/// Draws queue pairs: each once, then at random (xorshift64*; the same sequence in every run).
#[derive(Debug)]
struct Draw {
    qps: u32,
    /// Number of queue pairs that had their first visit.
    first: u32,
    state: u64,
}

impl Draw {
    fn new(qps: u32) -> Self {
        Self { qps, first: 0, state: 0x9e37_79b9_7f4a_7c15 }
    }
    /// Draws the next one.
    #[inline]
    fn next(&mut self) -> u32 {
        if self.first < self.qps {
            self.first += 1;
            return self.first - 1;
        }
        self.state ^= self.state >> 12;
        self.state ^= self.state << 25;
        self.state ^= self.state >> 27;
        let high = self.state.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 32;
        ((high * u64::from(self.qps)) >> 32) as u32
    }
}

/// The sending half.
struct Tx<'a> {
    spec: &'a Spec,
    draw: Draw,
    /// The next draws, oldest first from `at` on: a program with much to send knows early which queue pairs come next.
    next: [u32; POLL],
    at: usize,
    busy: Set,
    in_flight: u32,
    in_flight_max: u32,
    posted: u64,
    retired: u64,
    /// Messages to send, a multiple of a visit's; the maximum if time limits the measurement.
    target: u64,
    zeros: Vec<u8>,
    meter: Meter,
    deadline: Option<Instant>,
    wcs: [Wc; POLL],
}

impl<'a> Tx<'a> {
    fn new(spec: &'a Spec) -> Self {
        let visit = u64::from(spec.visit);
        let all = spec.iters.map(|n| n.saturating_mul(spec.qps.into()).div_ceil(visit).saturating_mul(visit));
        let mut draw = Draw::new(spec.qps);
        Self {
            spec,
            next: std::array::from_fn(|_| draw.next()),
            at: 0,
            draw,
            busy: Set::new(spec.qps),
            in_flight: 0,
            in_flight_max: spec.in_flight,
            posted: 0,
            retired: 0,
            target: all.map_or(u64::MAX, |all| all.saturating_add(spec.before())),
            zeros: vec![0; if spec.inline { spec.size as usize } else { 0 }],
            meter: Meter::after(spec.before()),
            deadline: None,
            wcs: [Wc::default(); POLL],
        }
    }

    #[inline]
    fn visit(&self, queues: &mut QueueSet, q: u32) -> Result<()> {
        let (spec, qp) = (self.spec, q as usize);
        let buffers = queues.tx.from(qp, 0, spec.visit).take(spec.visit as usize);
        let sges: Visit<[Sge; 1]> = buffers.map(|(_, sge)| [sge]).collect();
        let inline = spec.inline.then_some(&self.zeros[..]);
        let mut wrs = Visit::new();
        for (n, sge) in sges.iter().enumerate() {
            let wr = request(queues, spec.op, sge, inline, (qp, n as u32), n as u64);
            wrs.push(if n + 1 == sges.len() { wr.signaled() } else { wr });
        }
        Ok(queues.sqs[qp].post_send(&wrs)?)
    }
}

impl Sending for Tx<'_> {
    /// Draws queue pairs until the limit on busy ones is reached, then posts to them.
    #[inline]
    fn post(&mut self, queues: &mut QueueSet, _: &mut Driver) -> Result<()> {
        let mut drawn = ArrayVec::<u32, POLL>::new();
        while self.in_flight < self.in_flight_max && self.posted < self.target && !drawn.is_full() {
            let mut q = self.next[(self.at + drawn.len()) % POLL];
            // Few queue pairs are busy, which bounds the distance to an idle one.
            while self.busy.has(q) {
                q = if q + 1 == self.spec.qps { 0 } else { q + 1 };
            }
            self.busy.flip(q);
            self.in_flight += 1;
            self.posted += u64::from(self.spec.visit);
            drawn.push(q);
        }
        for &q in &drawn {
            self.visit(queues, q)?;
            let next = self.draw.next();
            verbs::prefetch(&queues.sqs[next as usize]);
            self.next[self.at % POLL] = next;
            self.at += 1;
            if self.at.is_multiple_of(GROUP) {
                let ahead = (GROUP..2 * GROUP).map(|n| self.next[(self.at + n) % POLL] as usize);
                ahead.for_each(|q| queues.sqs[q].prefetch(self.spec.visit));
            }
        }
        Ok(())
    }

    /// Polls completions: each ends a visit.
    #[inline]
    fn reap(&mut self, queues: &mut QueueSet, _: &mut Driver) -> Result<()> {
        let n = queues.send_cq.poll(&mut self.wcs)?;
        if n == 0 {
            self.meter.pause();
            return Ok(());
        }
        for wc in &self.wcs[..n] {
            if !wc.is_ok() {
                let wc = *wc;
                return Err(queues.failed(self.spec.op.name(), &wc));
            }
            self.busy.flip(of_wr_id(wc.wr_id).0 as u32);
        }
        self.in_flight -= n as u32;
        let messages = n as u64 * u64::from(self.spec.visit);
        self.retired += messages;
        self.meter.count(messages);
        if self.deadline.is_none() && self.retired > self.spec.before() {
            self.deadline = Some(Instant::now() + Duration::from_millis(self.spec.duration_ms));
        }
        Ok(())
    }

    /// Sets the end of a measurement limited by time: the posted requests.
    fn stop_when_due(&mut self, now: Instant) {
        if self.spec.iters.is_none() && self.deadline.is_some_and(|deadline| now >= deadline) {
            self.target = self.posted;
        }
    }

    fn is_done(&self) -> bool {
        self.retired == self.target
    }

    fn counts(&self) -> Vec<u64> {
        vec![self.posted]
    }

    fn flow(self) -> Flow {
        self.meter.flow()
    }
}

/// The receiving half of SEND.
struct Rx<'a> {
    spec: &'a Spec,
    /// Whether the receive at a position is the last of a visit: a queue pair's messages arrive in order, and fill whole
    /// visits.
    ends_visit: Vec<bool>,
    /// Visits that ended at the last two polls. For those of the last poll the handles have been prefetched, and for those of the poll
    /// before it the memory that the handles point to. The two lists are swapped, not copied.
    over: [ArrayVec<(usize, u32), POLL>; 2],
    /// Index of the list of the last poll.
    last: usize,
    meter: Meter,
    wcs: [Wc; POLL],
}

impl<'a> Rx<'a> {
    fn new(spec: &'a Spec) -> Self {
        Self {
            spec,
            ends_visit: (1..=spec.rx_depth).map(|n| n.is_multiple_of(spec.visit)).collect(),
            over: [ArrayVec::new(), ArrayVec::new()],
            last: 0,
            meter: Meter::after(spec.before()),
            wcs: [Wc::default(); POLL],
        }
    }

    /// Reposts the receives of a visit; its last receive is at position `last`.
    #[inline]
    fn repost(&self, queues: &mut QueueSet, q: usize, last: u32) -> Result<()> {
        let (spec, depth) = (self.spec, self.spec.rx_depth);
        let first = (last + depth + 1 - spec.visit) % depth;
        let buffers = queues.rx.from(q, first, depth).take(spec.visit as usize);
        let sges: Visit<(u32, [Sge; 1])> = buffers.map(|(index, sge)| (index, [sge])).collect();
        let wrs: Visit<_> = sges.iter().map(|(index, sge)| RecvWr::new(wr_id(q, *index), sge)).collect();
        Ok(queues.rqs[q].post_recv(&wrs)?)
    }
}

impl Receiving for Rx<'_> {
    /// Polls completions and reposts receives, those of a visit at a time.
    #[inline]
    fn reap(&mut self, queues: &mut QueueSet, _: &mut Driver) -> Result<()> {
        let (before, last) = (1 - self.last, self.last);
        for &(q, index) in &self.over[before] {
            self.repost(queues, q, index)?;
        }
        self.over[before].clear();
        for &(q, _) in &self.over[last] {
            queues.rqs[q].prefetch(self.spec.visit);
        }
        self.last = before;
        let n = queues.recv_cq.poll(&mut self.wcs)?;
        if n == 0 {
            self.meter.pause();
            return Ok(());
        }
        for wc in &self.wcs[..n] {
            let (q, index) = queues.received(wc, self.spec.size)?;
            if !self.ends_visit[index as usize] {
                continue;
            }
            self.over[before].push((q, index));
        }
        // One after the other, so that their TLB misses overlap.
        for &(q, _) in &self.over[before] {
            verbs::prefetch(&queues.rqs[q]);
        }
        self.meter.count(n as u64);
        Ok(())
    }

    fn total(&self) -> u64 {
        self.meter.total
    }

    fn flow(self) -> Flow {
        self.meter.flow()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn draws_reach_every_queue_pair_about_equally_often() {
        let (mut draw, mut seen) = (Draw::new(100), [0u32; 100]);
        assert!((0..100).eq((0..100).map(|_| draw.next())), "each once before");
        for _ in 0..100_000 {
            seen[draw.next() as usize] += 1;
        }
        assert!(seen.iter().all(|n| (850..1150).contains(n)), "{seen:?}");
        let mut only = Draw::new(1);
        assert_eq!([(); 3].map(|()| only.next()), [0; 3]);
    }

    #[test]
    fn a_set_tells_its_members() {
        let mut set = Set::new(100_000);
        for n in [0, 63, 64, 99_999] {
            assert!(!set.has(n));
            set.flip(n);
            assert!(set.has(n));
        }
        set.flip(63);
        assert_eq!([0, 62, 63, 64].map(|n| set.has(n)), [true, false, false, true]);
    }
}
