//! Completion queues: one ring (*lane*) for each shard that feeds the queue, and one reader.
//!
//! A shard stages completions while it works through a turn. It publishes them at the end of the turn, when the packets that they depend on
//! have been sent. The reader takes from the lanes in rotation. Each lane keeps its order; there is none between lanes, as verbs promises
//! none between queue pairs.
//!
//! # The bound
//!
//! `cqe` bounds the completions that wait in all lanes together. A sole lane counts those in its ring. If there are several, each takes
//! credits from a shared budget in blocks of [`BLOCK`], and a poll returns one credit for each completion that it takes. A lane may hold
//! unused credits of a block, so the budget has `BLOCK` credits per lane more than `cqe`: the queue never overflows below `cqe` entries,
//! and always above `cqe + lanes * BLOCK`. A lane that takes staged completions back keeps at most one block of credits; the rest returns
//! to the budget.
//!
//! # Events
//!
//! A queue made by [`cq_with_events`] can be armed. Both sides write, fence and read: the lane publishes, then checks whether the
//! queue is armed; the reader arms the queue, then polls once more. One of them sees the other's write, so either the event fires
//! or the poll finds the completion. Queues made by [`cq`] skip the fence.
//!
//! # Another size
//!
//! [`CqReader::resize`] makes new lanes, which replace the old ones one by one, each between two turns of its shard
//! ([`CqLane::replace_with`]). The reader empties the old rings first, so each lane keeps its order. Completions in an old ring do not
//! count against the new bound.

use super::primitive::{Arc, AtomicU8, AtomicU32, Ordering, fence};
use super::spsc::{self, Consumer, Producer};
use crossbeam_utils::CachePadded;

/// Credits that a lane takes from the shared budget at a time.
pub const BLOCK: u32 = 16;
/// The most entries that a poll takes from one lane before it looks at the next.
pub const POLL_BATCH: usize = 16;

/// The completion queue is full: the completion was not taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("completion queue overflow")]
pub struct Overflow;

/// Which completion raises the next event (`ibv_req_notify_cq(3)`).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[repr(u8)]
pub enum Arm {
    /// The next completion that is solicited or in error.
    Solicited = 1,
    /// The next completion of any kind.
    Next = 2,
}

const NOT_ARMED: u8 = 0;

struct Shared {
    /// Credits that no lane holds. Not used by a queue with one lane.
    budget: CachePadded<AtomicU32>,
    /// `NOT_ARMED` or an `Arm`. Not used by a queue without events. The queue keeps it when its lanes change.
    armed: Arc<CachePadded<AtomicU8>>,
}

/// The shard's end of a lane. `Send`, not `Sync`.
pub struct CqLane<E> {
    ring: Producer<E>,
    /// Number of entries after the published index, which the reader does not see yet.
    staged: u32,
    /// Entries that may be staged before credits have to be fetched.
    credits: u32,
    /// The bound of a queue with one lane; `None` if the budget is shared.
    sole_bound: Option<u32>,
    events: bool,
    staged_solicited: bool,
    /// Whether every push fails.
    poisoned: bool,
    shared: Arc<Shared>,
}

/// The polling end of a completion queue. `Send`, not `Sync`.
pub struct CqReader<E> {
    lanes: Box<[Consumer<E>]>,
    /// The lane that the next poll looks at first.
    next: usize,
    events: bool,
    shared: Arc<Shared>,
    /// The lanes from before a resize, whose entries come first; no writer uses them any more.
    older: Option<Box<CqReader<E>>>,
}

/// Arms a completion queue, from any thread.
#[derive(Clone)]
pub struct Armer(Arc<CachePadded<AtomicU8>>);

/// Makes a completion queue of at least `cqe` entries that `lanes` lanes feed, for polling only.
///
/// # Panics
/// If `cqe` or `lanes` is zero, or `cqe` is above 2^31.
pub fn cq<E: Copy + Default + Send>(cqe: u32, lanes: usize) -> (CqReader<E>, Vec<CqLane<E>>) {
    build(cqe, lanes, 0, None)
}

/// Same as [`cq`], for a queue that can be armed: [`CqLane::publish`] then costs a full fence.
///
/// # Panics
/// Those of [`cq`].
pub fn cq_with_events<E: Copy + Default + Send>(cqe: u32, lanes: usize) -> (CqReader<E>, Vec<CqLane<E>>) {
    build(cqe, lanes, 0, Some(not_armed()))
}

fn not_armed() -> Arc<CachePadded<AtomicU8>> {
    Arc::new(CachePadded::new(AtomicU8::new(NOT_ARMED)))
}

fn build<E: Copy + Default + Send>(
    cqe: u32,
    lanes: usize,
    start: u32,
    armed: Option<Arc<CachePadded<AtomicU8>>>,
) -> (CqReader<E>, Vec<CqLane<E>>) {
    assert!(cqe > 0 && lanes > 0, "a completion queue has entries and lanes");
    assert!(cqe <= 1 << 31, "a completion queue of {cqe} entries");
    let slack = u32::try_from(lanes).ok().and_then(|n| n.checked_mul(BLOCK));
    let budget = slack.and_then(|n| n.checked_add(cqe)).expect("too many lanes");
    let events = armed.is_some();
    let shared = Arc::new(Shared {
        budget: CachePadded::new(AtomicU32::new(budget)),
        armed: armed.unwrap_or_else(not_armed),
    });
    // Each lane can hold all of `cqe`, because it is not known beforehand which shard completes how much.
    let (producers, consumers): (Vec<_>, Vec<_>) =
        (0..lanes).map(|_| spsc::ring_at(cqe.next_power_of_two(), 1, start)).unzip();
    let writers = producers
        .into_iter()
        .map(|ring| CqLane {
            ring,
            staged: 0,
            credits: 0,
            sole_bound: (lanes == 1).then_some(cqe),
            events,
            staged_solicited: false,
            poisoned: false,
            shared: shared.clone(),
        })
        .collect();
    (CqReader { lanes: consumers.into(), next: 0, events, shared, older: None }, writers)
}

impl<E: Copy + Default + Send> CqLane<E> {
    /// Stages a completion. The reader sees it after [`CqLane::publish`].
    ///
    /// # Errors
    /// [`Overflow`] when the queue is full. What was staged before stays staged.
    #[inline(always)]
    pub fn push(&mut self, e: E) -> Result<(), Overflow> {
        *self.stage()? = e;
        Ok(())
    }

    /// Same as [`CqLane::push`], for a completion that the caller writes in place. The caller has to write all of it: the slot holds an old
    /// one.
    ///
    /// # Errors
    /// Those of [`CqLane::push`].
    #[inline(always)]
    pub fn stage(&mut self) -> Result<&mut E, Overflow> {
        if self.credits == 0 {
            self.fetch_credits()?;
        }
        let [slot] = self.ring.slot(self.staged).ok_or(Overflow)? else { return Err(Overflow) };
        self.staged += 1;
        self.credits -= 1;
        Ok(slot)
    }

    /// Marks that something staged since the last publish is solicited or an error, for [`Arm::Solicited`].
    #[inline]
    pub fn mark_solicited(&mut self) {
        self.staged_solicited = true;
    }

    /// Takes back the staged completions for which `take` returns true; calls it in order, and closes the gaps. The caller calls
    /// [`CqLane::mark_solicited`] again if one of the others is solicited.
    #[cold]
    pub fn withdraw(&mut self, mut take: impl FnMut(&E) -> bool) {
        let mut kept = 0;
        for ahead in 0..self.staged {
            let Some(slot) = self.ring.slot(ahead) else { unreachable!("what is staged has its slot") };
            let entry = slot[0];
            if take(&entry) {
                continue;
            }
            if let Some(slot) = self.ring.slot(kept) {
                slot[0] = entry;
            }
            kept += 1;
        }
        self.unstage(self.staged - kept);
        self.staged_solicited = false;
    }

    /// Drops the last `n` staged entries, and returns their credits.
    fn unstage(&mut self, n: u32) {
        self.staged -= n;
        if self.poisoned {
            return;
        }
        self.credits += n;
        if self.sole_bound.is_none() {
            let spare = self.credits.saturating_sub(BLOCK);
            self.credits -= spare;
            self.shared.budget.fetch_add(spare, Ordering::Relaxed);
        }
    }

    /// Whether there is something to publish.
    #[inline]
    pub fn has_staged(&self) -> bool {
        self.staged != 0
    }

    /// Makes everything staged visible to the reader. Returns whether an event is due: at most once for each
    /// time the queue was armed, over all lanes, and never for a queue made by [`cq`].
    #[inline]
    pub fn publish(&mut self) -> bool {
        if self.staged == 0 {
            return false;
        }
        self.ring.publish(self.staged);
        self.staged = 0;
        self.events && self.take_event()
    }

    fn take_event(&mut self) -> bool {
        let solicited = core::mem::take(&mut self.staged_solicited);
        // Pairs with the fence in `Armer::arm`.
        fence(Ordering::SeqCst);
        let wanted = match self.shared.armed.load(Ordering::Relaxed) {
            NOT_ARMED => false,
            armed => solicited || armed == Arm::Next as u8,
        };
        // Two lanes may get here at once: one of them disarms the queue.
        wanted && self.shared.armed.swap(NOT_ARMED, Ordering::AcqRel) != NOT_ARMED
    }

    /// Makes every further push fail. Staged entries stay staged.
    pub fn poison(&mut self) {
        self.poisoned = true;
        self.credits = 0;
    }

    /// Replaces this lane by `new`, a lane of the resized queue. Staged entries move along; if the new lane has no room for all of them,
    /// they are published in the old one. Returns whether an event is due.
    pub fn replace_with(&mut self, mut new: Self) -> bool {
        let mut fits = true;
        for ahead in 0..self.staged {
            let Some(slot) = self.ring.slot(ahead) else { unreachable!("what is staged has its slot") };
            fits = fits && new.push(slot[0]).is_ok();
        }
        let due = if fits {
            new.staged_solicited = self.staged_solicited;
            false
        } else {
            // Slots that were filled and not published are filled again.
            new.unstage(new.staged);
            self.publish()
        };
        if self.poisoned {
            new.poison();
        }
        *self = new;
        due
    }

    #[cold]
    fn fetch_credits(&mut self) -> Result<(), Overflow> {
        if self.poisoned {
            return Err(Overflow);
        }
        self.credits = match self.sole_bound {
            Some(cqe) => cqe - self.ring.in_use() - self.staged,
            None => self
                .shared
                .budget
                .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| (n > 0).then(|| n - n.min(BLOCK)))
                .map_or(0, |n| n.min(BLOCK)),
        };
        if self.credits == 0 { Err(Overflow) } else { Ok(()) }
    }
}

impl<E: Copy + Send> CqReader<E> {
    /// Takes up to `max` completions and passes them to `each` in place. Returns how many. Takes at most [`POLL_BATCH`] from a lane before
    /// it goes to the next one.
    #[inline]
    pub fn poll_with(&mut self, max: usize, mut each: impl FnMut(&E)) -> usize {
        let mut taken = 0;
        while self.older.is_some() && taken < max {
            // Copies: `each` passed to a function that is not inlined would force what it captures into memory.
            let some = self.take_older(max - taken);
            some.iter().for_each(&mut each);
            taken += some.len();
        }
        let mut empty = 0;
        while taken < max && empty < self.lanes.len() {
            let lane = &mut self.lanes[self.next];
            let batch = POLL_BATCH.min(max - taken);
            let n = lane.ready(batch as u32);
            let end = lane.released().wrapping_add(n);
            let mut seq = lane.released();
            while seq != end {
                let run = lane.contiguous(seq, end.wrapping_sub(seq));
                run.iter().for_each(&mut each);
                seq = seq.wrapping_add(run.len() as u32);
            }
            lane.release_to(end);
            // Credits return with the entries, not at the end, so that a panic of `each` loses none.
            if n > 0 && self.lanes.len() > 1 {
                self.shared.budget.fetch_add(n, Ordering::Relaxed);
            }
            taken += n as usize;
            // A lane that gave less than a whole batch has no more: it is not read again.
            empty = if (n as usize) < batch { empty + 1 } else { 0 };
            self.next += 1;
            if self.next == self.lanes.len() {
                self.next = 0;
            }
        }
        taken
    }

    /// Takes up to `max` completions from before the last resize, at most one batch.
    #[cold]
    fn take_older(&mut self, max: usize) -> arrayvec::ArrayVec<E, POLL_BATCH> {
        let mut some = arrayvec::ArrayVec::new();
        let Some(older) = &mut self.older else { return some };
        older.poll_with(max.min(POLL_BATCH), |e| some.push(*e));
        // Only a resize adds a ring to this chain, and a ring that holds nothing is dropped: the chain is short.
        if older.older.is_none() && older.is_empty() {
            self.older = None;
        }
        some
    }

    /// Drops completions at the front of each lane for as long as `dead` returns true, so that they take no room.
    pub fn discard_while(&mut self, mut dead: impl FnMut(&E) -> bool) {
        self.discard_from_lanes(&mut dead);
    }

    fn discard_from_lanes(&mut self, dead: &mut dyn FnMut(&E) -> bool) {
        let mut dropped = 0;
        for lane in &mut self.lanes {
            let from = lane.released();
            let mut seq = from;
            while lane.get(seq).is_some_and(|slot| dead(&slot[0])) {
                seq = seq.wrapping_add(1);
            }
            lane.release_to(seq);
            dropped += seq.wrapping_sub(from);
        }
        if dropped > 0 && self.lanes.len() > 1 {
            self.shared.budget.fetch_add(dropped, Ordering::Relaxed);
        }
        if let Some(older) = &mut self.older {
            older.discard_from_lanes(dead);
        }
    }

    /// Number of completions that a poll would find now.
    pub fn len(&self) -> usize {
        let older = self.older.as_ref().map_or(0, |older| older.len());
        older + self.lanes.iter().map(|lane| lane.unreleased() as usize).sum::<usize>()
    }

    /// Whether a poll would find nothing now.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.lanes.iter().all(|lane| lane.unreleased() == 0)
            && self.older.as_ref().is_none_or(|older| older.is_empty())
    }

    /// A handle that arms the queue.
    ///
    /// # Panics
    /// If the queue was made by [`cq`].
    pub fn armer(&self) -> Armer {
        assert!(self.events, "armed a completion queue that was made without events");
        Armer(self.shared.armed.clone())
    }

    /// Resizes the queue to `cqe` entries. The new lanes are for [`CqLane::replace_with`], each for the writer of the same number. All of
    /// them must be handed over before the next poll. Completions that wait now are polled first.
    ///
    /// # Panics
    /// Those of [`cq`].
    pub fn resize(&mut self, cqe: u32) -> Vec<CqLane<E>>
    where
        E: Default,
    {
        let armed = self.events.then(|| self.shared.armed.clone());
        let (reader, writers) = build(cqe, self.lanes.len(), 0, armed);
        let mut older = core::mem::replace(self, reader);
        // Drops an old reader that holds nothing, so that there is at most one more in the chain than entries. The newest one may
        // still be written to.
        if older.older.as_ref().is_some_and(|o| o.lanes.iter().all(|lane| lane.unreleased() == 0)) {
            older.older = older.older.take().and_then(|o| o.older);
        }
        self.older = Some(Box::new(older));
        writers
    }
}

impl Armer {
    /// Requests one event. The caller then polls once more: completions that were published before raise none. A later [`Arm::Solicited`]
    /// does not replace [`Arm::Next`].
    pub fn arm(&self, what: Arm) {
        self.0.fetch_max(what as u8, Ordering::AcqRel);
        // Pairs with the fence in `CqLane::publish`.
        fence(Ordering::SeqCst);
    }
}

#[cfg(test)]
impl<E: Copy + Send> CqReader<E> {
    /// Takes up to `out.len()` completions. Returns how many.
    fn poll(&mut self, out: &mut [E]) -> usize {
        let max = out.len();
        let mut slots = out.iter_mut();
        self.poll_with(max, |e| *slots.next().expect("no more than asked for") = *e)
    }
    fn arm(&self, what: Arm) {
        self.armer().arm(what);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::super::sequences::sequences;
    use super::*;
    use proptest::prelude::*;
    use std::collections::VecDeque;

    #[derive(Clone, Debug)]
    enum Op {
        Push(usize, u8),
        Publish(usize),
        Poll(usize),
    }

    fn op() -> impl Strategy<Value = Op> {
        prop_oneof![
            (0..4usize, 1..30u8).prop_map(|(lane, n)| Op::Push(lane, n)),
            (0..4usize).prop_map(Op::Publish),
            (0..60usize).prop_map(Op::Poll),
        ]
    }

    proptest! {
        /// Against a queue a lane. A completion carries its lane and its number in the lane.
        #[test]
        fn lanes_match_queues(
            cqe in 1..70u32,
            lanes in 1..5usize,
            start in prop_oneof![Just(0), u32::MAX - 20..=u32::MAX],
            ops in proptest::collection::vec(op(), 1..if cfg!(miri) { 12 } else { 200 }),
        ) {
            let (mut reader, mut writers) = build::<(usize, u64)>(cqe, lanes, start, None);
            let mut staged = vec![VecDeque::new(); lanes];
            let mut visible = vec![VecDeque::new(); lanes];
            let mut next = 0;
            for op in ops {
                match op {
                    Op::Push(lane, n) => {
                        let lane = lane % lanes;
                        for _ in 0..n {
                            let waiting: usize = staged.iter().chain(&visible).map(VecDeque::len).sum();
                            let got = writers[lane].push((lane, next));
                            if waiting < cqe as usize {
                                prop_assert_eq!(got, Ok(()), "{} of {} entries", waiting, cqe);
                            }
                            let bound = if lanes == 1 { cqe } else { cqe + lanes as u32 * BLOCK };
                            if waiting >= bound as usize {
                                prop_assert_eq!(got, Err(Overflow));
                            }
                            if got.is_ok() {
                                staged[lane].push_back((lane, next));
                                next += 1;
                            }
                        }
                        prop_assert_eq!(writers[lane].has_staged(), !staged[lane].is_empty());
                    }
                    Op::Publish(lane) => {
                        let lane = lane % lanes;
                        prop_assert!(!writers[lane].publish());
                        prop_assert!(!writers[lane].has_staged());
                        let entries = core::mem::take(&mut staged[lane]);
                        visible[lane].extend(entries);
                    }
                    Op::Poll(max) => {
                        let there: usize = visible.iter().map(VecDeque::len).sum();
                        let mut out = vec![(9, 0); max];
                        let n = reader.poll(&mut out);
                        prop_assert_eq!(n, max.min(there));
                        for e in &out[..n] {
                            prop_assert_eq!(visible[e.0].pop_front(), Some(*e));
                        }
                    }
                }
                prop_assert_eq!(reader.len(), visible.iter().map(VecDeque::len).sum::<usize>());
                prop_assert_eq!(reader.is_empty(), visible.iter().all(VecDeque::is_empty));
            }
        }
    }

    /// Every short sequence of what a shard and a reader do with a queue of one lane, which has an exact bound: order, bound and
    /// count, over changes of size and across the wrap of the ring's numbers.
    #[test]
    #[cfg_attr(miri, ignore = "arithmetic alone, and too long for Miri")]
    fn every_short_history_matches_a_queue() {
        for (cqe, start) in (1..=4).flat_map(|cqe| [0, u32::MAX, u32::MAX - 2].map(|start| (cqe, start))) {
            sequences(6, 7).for_each(|history| replay(cqe, start, history));
        }
    }

    fn replay(mut cqe: u32, start: u32, history: impl Iterator<Item = usize> + Clone) {
        let (mut reader, mut lanes) = build::<u32>(cqe, 1, start, None);
        let mut lane = lanes.remove(0);
        // What waits from before a change of size, each time by itself, counts against no bound.
        let mut older: Vec<VecDeque<u32>> = Vec::new();
        let (mut visible, mut staged) = (VecDeque::new(), VecDeque::new());
        let case = || format!("{:?} from {start:#x}", history.clone().collect::<Vec<_>>());
        let mut value = 0;
        for op in history.clone() {
            match op {
                0 => {
                    let room = visible.len() + staged.len() < cqe as usize;
                    assert_eq!(lane.push(value).is_ok(), room, "{}", case());
                    if room {
                        staged.push_back(value);
                    }
                    value += 1;
                }
                1 => {
                    lane.publish();
                    visible.append(&mut staged);
                }
                2 | 3 => {
                    let mut out = [0; 8];
                    let max = if op == 2 { 1 } else { out.len() };
                    let n = reader.poll(&mut out[..max]);
                    let mut expected = Vec::new();
                    for queue in older.iter_mut().chain([&mut visible]) {
                        let left = max - expected.len();
                        expected.extend(queue.drain(..left.min(queue.len())));
                    }
                    assert_eq!(out[..n], expected, "{}", case());
                }
                // The even ones at the front of each ring are dead.
                4 => {
                    reader.discard_while(|e| e % 2 == 0);
                    for queue in older.iter_mut().chain([&mut visible]) {
                        while queue.front().is_some_and(|e| e % 2 == 0) {
                            queue.pop_front();
                        }
                    }
                }
                _ => {
                    cqe = cqe % 4 + 1;
                    lane.replace_with(reader.resize(cqe).remove(0));
                    if staged.len() > cqe as usize {
                        visible.append(&mut staged);
                    }
                    older.push(core::mem::take(&mut visible));
                }
            }
            assert_eq!(lane.has_staged(), !staged.is_empty(), "{}", case());
            // `len` would refresh indices that a poll is to find stale.
            if op != 2 {
                let there = older.iter().chain([&visible]).map(VecDeque::len).sum::<usize>();
                assert_eq!(reader.len(), there, "{}", case());
            }
        }
    }

    /// A lane that is never empty does not keep the reader from the others.
    #[test]
    fn no_lane_starves() {
        let (mut reader, mut lanes) = cq::<usize>(256, 3);
        let mut counts = [0; 3];
        for _ in 0..50 {
            while lanes[0].push(0).is_ok() && reader.len() < 100 {
                lanes[0].publish();
            }
            for (number, lane) in lanes.iter_mut().enumerate().skip(1) {
                let _ = lane.push(number);
                lane.publish();
            }
            lanes[0].publish();
            reader.poll_with(20, |&lane| counts[lane] += 1);
        }
        assert!(counts.iter().all(|&n| n >= 45), "{counts:?}");
    }

    /// What a lane takes back, and what does not fit into a new one, is room for every lane.
    #[test]
    fn what_a_lane_takes_back_is_room_for_others() {
        let (mut reader, mut lanes) = cq::<u32>(128, 2);
        (0..100).for_each(|n| lanes[0].push(n).unwrap());
        lanes[0].withdraw(|n| *n < 90);
        (0..118).for_each(|n| lanes[1].push(n).unwrap());
        lanes[0].publish();
        lanes[1].publish();
        while reader.poll(&mut [0; 32]) > 0 {}

        (0..128).for_each(|n| lanes[0].push(n).unwrap());
        let mut new = reader.resize(64).into_iter();
        for lane in &mut lanes {
            lane.replace_with(new.next().unwrap());
        }
        (0..64).for_each(|n| lanes[1].push(n).unwrap());
    }

    #[test]
    fn overflow_keeps_what_was_staged() {
        let (mut reader, mut lanes) = cq::<u32>(3, 1);
        assert_eq!([0, 1, 2, 3].map(|n| lanes[0].push(n).is_ok()), [true, true, true, false]);
        assert_eq!(reader.poll(&mut [9; 4]), 0, "staged is not visible");
        lanes[0].publish();
        let mut out = [9; 4];
        assert_eq!(reader.poll(&mut out), 3);
        assert_eq!(out, [0, 1, 2, 9]);
        assert_eq!(lanes[0].push(4), Ok(()));
    }

    #[test]
    fn events_fire_once_an_arming() {
        let (reader, mut lanes) = cq_with_events::<u32>(64, 2);
        let mut complete = |lane: usize, solicited: bool| {
            lanes[lane].push(1).unwrap();
            if solicited {
                lanes[lane].mark_solicited();
            }
            lanes[lane].publish()
        };
        assert!(!complete(0, true), "not armed");
        reader.arm(Arm::Next);
        reader.arm(Arm::Solicited);
        assert!(complete(1, false), "still armed for the next");
        assert!(!complete(0, true), "once");
        reader.arm(Arm::Solicited);
        assert!(!complete(0, false));
        assert!(complete(0, true));
        reader.arm(Arm::Solicited);
        assert!(!complete(0, false), "the mark went with its batch");
    }

    /// Staged and published entries keep their order through a resize, and an arming stays.
    #[test]
    fn resize_keeps_entries_in_order() {
        let (mut reader, mut lanes) = cq_with_events::<(usize, u32)>(8, 2);
        let mut next = [0; 2];
        let mut push = |lanes: &mut Vec<CqLane<(usize, u32)>>, lane: usize, n: u32| {
            for _ in 0..n {
                lanes[lane].push((lane, next[lane])).unwrap();
                next[lane] += 1;
            }
        };
        push(&mut lanes, 0, 3);
        push(&mut lanes, 1, 2);
        lanes[0].publish();
        push(&mut lanes, 0, 2); // staged in lane 0, and all of lane 1
        reader.arm(Arm::Next);
        for cqe in [64, 16] {
            let new = reader.resize(cqe);
            for (lane, new) in lanes.iter_mut().zip(new) {
                assert!(!lane.replace_with(new), "nothing was published");
            }
            assert_eq!(reader.len(), 3);
        }
        let mut seen = [0; 2];
        let mut check = |e: &(usize, u32)| {
            assert_eq!(e.1, seen[e.0]);
            seen[e.0] += 1;
        };
        assert_eq!(reader.poll_with(2, &mut check), 2);
        push(&mut lanes, 0, 1);
        assert!(lanes[0].publish(), "still armed");
        assert!(!lanes[1].publish(), "once");
        assert_eq!(reader.len(), 1 + 3 + 2);
        assert_eq!(reader.poll_with(64, &mut check), 6);
        assert!(reader.is_empty());
        assert_eq!(seen, [6, 2]);
        // The new bound is in force, and below it nothing is refused.
        for n in 0..16 {
            lanes[n % 2].push((0, 0)).unwrap();
        }
    }

    /// What does not fit into the new lane is published in the old one, whole and in order.
    #[test]
    fn resize_below_what_is_staged_loses_nothing() {
        let (mut reader, mut lanes) = cq_with_events::<u32>(8, 1);
        reader.arm(Arm::Next);
        (0..5).for_each(|n| lanes[0].push(n).unwrap());
        let new = reader.resize(2).remove(0);
        assert!(lanes[0].replace_with(new), "published, so the event is due");
        assert_eq!([5, 6].map(|n| lanes[0].push(n)), [Ok(()); 2]);
        lanes[0].publish();
        let mut out = [9; 8];
        assert_eq!(reader.poll(&mut out), 7);
        assert_eq!(out[..7], [0, 1, 2, 3, 4, 5, 6]);
    }

    #[test]
    fn a_poll_that_panics_loses_no_credit() {
        let (mut reader, mut lanes) = cq::<u64>(32, 2);
        for round in 0..200 {
            for lane in &mut lanes {
                lane.push(round).unwrap();
                lane.publish();
            }
            let mut seen = 0;
            let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                reader.poll_with(64, |_| {
                    seen += 1;
                    assert!(seen < 2, "at the entry of the second lane");
                })
            }));
            assert!(panicked.is_err());
            while reader.poll_with(64, |_| ()) > 0 {}
        }
    }

    /// Dropped entries return their room, after a resize too; a live entry stays, and all after it.
    #[test]
    fn the_dead_make_room() {
        for lanes in [1, 2] {
            let (mut reader, mut writers) = cq::<u32>(32, lanes);
            for round in 0..20 {
                for _ in 0..32 {
                    writers[0].push(round).unwrap();
                }
                writers[0].publish();
                if round == 10 {
                    writers[0].replace_with(reader.resize(32).remove(0));
                }
                reader.discard_while(|e| *e <= round);
                assert!(reader.is_empty());
            }
            for e in [1, 2, 1] {
                writers[0].push(e).unwrap();
            }
            writers[0].publish();
            reader.discard_while(|e| *e == 1);
            let mut out = [0; 4];
            assert_eq!((reader.poll(&mut out), out), (2, [2, 1, 0, 0]));
        }
    }

    #[test]
    fn a_poisoned_lane_takes_nothing() {
        let (mut reader, mut lanes) = cq::<u32>(4, 1);
        lanes[0].push(1).unwrap();
        lanes[0].poison();
        assert_eq!(lanes[0].push(2), Err(Overflow));
        lanes[0].publish();
        assert_eq!(reader.poll(&mut [0; 4]), 1);
        assert_eq!(lanes[0].push(3), Err(Overflow));
    }

    /// Two shards and a reader. What a lane could not push it tries again: nothing is lost, doubled or
    /// reordered, and the queue never holds more than its bound.
    #[test]
    fn threads_keep_every_completion() {
        const ITEMS: u64 = if cfg!(miri) { 300 } else { 60_000 };
        const CQE: u32 = 100;
        let (mut reader, lanes) = build::<(u64, u64, u64)>(CQE, 2, u32::MAX - 500, None);
        let seal = |lane: u64, n: u64| (lane << 32 ^ n).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        std::thread::scope(|scope| {
            for (lane, mut writer) in (0u64..).zip(lanes) {
                scope.spawn(move || {
                    let mut n = 0;
                    while n < ITEMS {
                        let refused = writer.push((lane, n, seal(lane, n))).is_err();
                        n += u64::from(!refused);
                        if refused || n % 5 == 0 || n == ITEMS {
                            writer.publish();
                        }
                        if refused {
                            std::thread::yield_now();
                        }
                    }
                });
            }
            let mut next = [0; 2];
            while next != [ITEMS; 2] {
                assert!(reader.len() <= (CQE + 2 * BLOCK) as usize);
                let n = reader.poll_with(37, |&(lane, n, sealed)| {
                    assert_eq!((n, sealed), (next[lane as usize], seal(lane, n)));
                    next[lane as usize] += 1;
                });
                if n == 0 {
                    std::thread::yield_now();
                }
            }
        });
        assert!(reader.is_empty());
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use loom::thread;

    /// The reader arms and polls once more: it gets the event or finds the completion.
    #[test]
    fn no_wakeup_is_lost() {
        loom::model(|| {
            let (mut reader, mut lanes) = cq_with_events::<u32>(2, 1);
            let mut lane = lanes.remove(0);
            let shard = thread::spawn(move || {
                lane.push(1).unwrap();
                lane.publish()
            });
            reader.arm(Arm::Next);
            let found = reader.poll(&mut [0; 2]);
            let event = shard.join().unwrap();
            assert!(event || found == 1, "the completion would sleep");
            assert_eq!(found + reader.poll(&mut [0; 2]), 1);
        });
    }

    /// Two shards complete at once: one of them, not both, takes the arming.
    #[test]
    fn one_event_an_arming() {
        loom::model(|| {
            let (mut reader, mut lanes) = cq_with_events::<u32>(2, 2);
            reader.arm(Arm::Next);
            let mut other = lanes.remove(1);
            let mut lane = lanes.remove(0);
            let shard = thread::spawn(move || {
                other.push(1).unwrap();
                other.publish()
            });
            lane.push(2).unwrap();
            let first = lane.publish();
            let second = shard.join().unwrap();
            assert!(first != second, "{first} {second}");
            assert_eq!(reader.poll(&mut [0; 4]), 2);
        });
    }

    /// Three completions through a queue of two: the credits come back with the slots.
    #[test]
    fn capacity_two() {
        loom::model(|| {
            let (mut reader, mut lanes) = cq::<u32>(2, 1);
            let mut lane = lanes.remove(0);
            let shard = thread::spawn(move || {
                let mut n = 0;
                while n < 3 {
                    match lane.push(n) {
                        Ok(()) => {
                            n += 1;
                            lane.publish();
                        }
                        Err(Overflow) => thread::yield_now(),
                    }
                }
            });
            let mut expected = 0;
            while expected < 3 {
                let before = expected;
                reader.poll_with(2, |&n| {
                    assert_eq!(n, expected);
                    expected += 1;
                });
                if expected == before {
                    thread::yield_now();
                }
            }
            shard.join().unwrap();
        });
    }
}
