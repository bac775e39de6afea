//! The ring of a shared receive queue: one poster, any number of takers, first in first out.
//!
//! An entry is a fixed number of 64-bit words. The [`Poster`] writes entries and publishes them. A [`Taker`] copies the oldest entry and
//! takes it with one compare-exchange. No taker keeps entries in reserve, so the count is exact at any time. No taker waits: a
//! compare-exchange fails only because another taker got the entry, or the ring was closed.
//!
//! # Why a copy before the compare-exchange is good
//!
//! A slot is written again only after `head` has moved past it. A taker copies the words first and moves `head`
//! then, with release; the poster reads `head` with acquire before it writes. So if the compare-exchange
//! succeeds, the copy was made while the slot was full; if it fails, the copy, which may be of two entries, is
//! thrown away. The words are atomics, so even that copy is no data race. `head` is 64 bits wide and never
//! comes back to a value.
//!
//! # Resizing
//!
//! [`Poster::resize`] copies the entries into a new ring at the same sequence numbers, links it to the old one as its successor, and closes
//! the old one by a bit in `head`. Takers that find the bit continue in the new ring. Until then they take from the old ring; so none of
//! them sees a gap, an entry twice, or another order.

use super::primitive::{Arc, AtomicU32, AtomicU64, Ordering};
use crossbeam_utils::CachePadded;
use std::sync::OnceLock;

/// A bit in `head`: the ring is closed, and its successor has the entries.
const CLOSED: u64 = 1 << 63;

struct Ring {
    /// Sequence number of the oldest entry, and [`CLOSED`]. Takers move it.
    head: CachePadded<AtomicU64>,
    /// Sequence number after the newest entry. The poster moves it.
    tail: CachePadded<AtomicU64>,
    /// The most entries that may wait.
    capacity: u32,
    /// Number of slots, a power of two, minus one.
    mask: u64,
    /// Words per entry.
    words: usize,
    slots: Box<[AtomicU64]>,
    next: OnceLock<Arc<Ring>>,
}

impl Ring {
    fn new(capacity: u32, words: usize, start: u64) -> Self {
        assert!((1..=1 << 31).contains(&capacity), "a shared receive queue of {capacity} entries");
        let slots = capacity.next_power_of_two() as usize;
        Self {
            head: CachePadded::new(AtomicU64::new(start)),
            tail: CachePadded::new(AtomicU64::new(start)),
            capacity,
            mask: slots as u64 - 1,
            words,
            slots: (0..slots * words).map(|_| AtomicU64::new(0)).collect(),
            next: OnceLock::new(),
        }
    }

    #[inline]
    fn slot(&self, seq: u64) -> &[AtomicU64] {
        let at = (seq & self.mask) as usize * self.words;
        &self.slots[at..at + self.words]
    }

    fn copy_to(&self, seq: u64, to: &mut [u64]) {
        for (word, to) in self.slot(seq).iter().zip(to) {
            *to = word.load(Ordering::Relaxed);
        }
    }
}

/// Makes a shared receive queue of `capacity` entries of `words` 64-bit words each.
///
/// # Panics
/// If `capacity` is 0 or above 2^31.
pub fn queue(capacity: u32, words: usize) -> (Poster, Taker) {
    queue_at(capacity, words, 0)
}

fn queue_at(capacity: u32, words: usize, start: u64) -> (Poster, Taker) {
    let ring = Arc::new(Ring::new(capacity, words, start));
    let limit = Arc::new(AtomicU32::new(0));
    (Poster { ring: ring.clone(), limit: limit.clone() }, Taker { ring, limit })
}

/// The end that posts. There is one; several threads share it under a lock.
pub struct Poster {
    ring: Arc<Ring>,
    limit: Arc<AtomicU32>,
}

/// An end that takes entries. Each shard that receives has its own.
#[derive(Clone)]
pub struct Taker {
    ring: Arc<Ring>,
    limit: Arc<AtomicU32>,
}

/// What a take reports besides the entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Taken {
    /// Whether fewer entries than the armed limit are left. Reported once: the limit is disarmed.
    pub limit_reached: bool,
}

impl Poster {
    /// Number of entries that wait.
    pub fn waiting(&self) -> u32 {
        let head = self.ring.head.load(Ordering::Acquire);
        (self.ring.tail.load(Ordering::Relaxed) - head) as u32
    }
    /// The most entries that may wait.
    pub fn capacity(&self) -> u32 {
        self.ring.capacity
    }

    /// Writes the `ahead`-th entry that is not published yet. Returns `false` if the queue is full.
    ///
    /// # Panics
    /// If `entry` is longer than the queue's entries. A shorter one leaves the rest of the slot as it was.
    #[inline]
    pub fn put(&mut self, ahead: u32, entry: &[u64]) -> bool {
        let ring = &*self.ring;
        assert!(entry.len() <= ring.words, "an entry of {} words", entry.len());
        if self.waiting() + ahead >= ring.capacity {
            return false;
        }
        let seq = ring.tail.load(Ordering::Relaxed) + u64::from(ahead);
        for (word, value) in ring.slot(seq).iter().zip(entry) {
            word.store(*value, Ordering::Relaxed);
        }
        true
    }

    /// Makes the next `n` entries, all of which were written, visible to takers.
    #[inline]
    pub fn publish(&mut self, n: u32) {
        let tail = self.ring.tail.load(Ordering::Relaxed);
        self.ring.tail.store(tail + u64::from(n), Ordering::Release);
    }

    /// Arms the limit: the take that leaves fewer entries than this reports it, once. 0 disarms it.
    pub fn arm(&mut self, limit: u32) {
        self.limit.store(limit, Ordering::Relaxed);
    }
    /// The armed limit; 0 if there is none.
    pub fn limit(&self) -> u32 {
        self.limit.load(Ordering::Relaxed)
    }

    /// Makes another end that takes entries.
    pub fn taker(&self) -> Taker {
        Taker { ring: self.ring.clone(), limit: self.limit.clone() }
    }

    /// Resizes the queue to `capacity` entries. Entries that wait stay, in their order.
    ///
    /// # Errors
    /// The number of entries that wait, if it is above `capacity`; nothing has changed then.
    ///
    /// # Panics
    /// Those of [`queue`].
    pub fn resize(&mut self, capacity: u32) -> Result<(), u32> {
        let old = &*self.ring;
        let tail = old.tail.load(Ordering::Relaxed);
        let mut head = old.head.load(Ordering::Acquire);
        if tail - head > u64::from(capacity) {
            return Err((tail - head) as u32);
        }
        let new = Arc::new(Ring::new(capacity, old.words, head));
        let mut entry = vec![0; old.words];
        for seq in head..tail {
            old.copy_to(seq, &mut entry);
            for (word, value) in new.slot(seq).iter().zip(&entry) {
                word.store(*value, Ordering::Relaxed);
            }
        }
        new.tail.store(tail, Ordering::Relaxed);
        assert!(old.next.set(new.clone()).is_ok(), "a ring is closed once");
        // Fails once for each entry that is taken meanwhile, at most for those that were there.
        loop {
            new.head.store(head, Ordering::Relaxed);
            match old.head.compare_exchange(head, head | CLOSED, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => break,
                Err(moved) => head = moved,
            }
        }
        self.ring = new;
        Ok(())
    }
}

impl Taker {
    /// Takes the oldest entry: copies as much of it to `to` as fits. `None` if the queue is empty.
    ///
    /// Lock-free: it tries again only if another taker was quicker.
    #[inline]
    pub fn take(&mut self, to: &mut [u64]) -> Option<Taken> {
        loop {
            let head = self.ring.head.load(Ordering::Acquire);
            if head & CLOSED != 0 {
                self.refresh();
                continue;
            }
            if head == self.ring.tail.load(Ordering::Acquire) {
                return None;
            }
            self.ring.copy_to(head, to);
            if self.ring.head.compare_exchange(head, head + 1, Ordering::AcqRel, Ordering::Acquire).is_ok() {
                let left = self.ring.tail.load(Ordering::Relaxed) - (head + 1);
                return Some(Taken { limit_reached: self.limit_reached(left) });
            }
        }
    }

    fn limit_reached(&self, left: u64) -> bool {
        let limit = self.limit.load(Ordering::Relaxed);
        limit != 0
            && left < u64::from(limit)
            && self.limit.compare_exchange(limit, 0, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }

    /// Switches to the newest ring after a resize. [`take`](Self::take) does so by itself; this is for a taker that is seldom used, which
    /// would keep the old ring in memory.
    pub fn refresh(&mut self) {
        while let Some(next) = self.ring.next.get().cloned() {
            if self.ring.head.load(Ordering::Acquire) & CLOSED == 0 {
                return; // not closed yet: entries are still taken here
            }
            self.ring = next;
        }
    }

    /// Words per entry.
    pub fn words(&self) -> usize {
        self.ring.words
    }
}

impl core::fmt::Debug for Poster {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Poster")
            .field("waiting", &self.waiting())
            .field("capacity", &self.capacity())
            .finish()
    }
}

impl core::fmt::Debug for Taker {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Taker").field("words", &self.words()).finish_non_exhaustive()
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
        /// Put this many entries and publish them.
        Post(u32),
        Take(u32),
        Arm(u32),
        Resize(u32),
    }

    fn op() -> impl Strategy<Value = Op> {
        prop_oneof![
            3 => (0..6u32).prop_map(Op::Post),
            3 => (0..6u32).prop_map(Op::Take),
            1 => (0..6u32).prop_map(Op::Arm),
            1 => (1..20u32).prop_map(Op::Resize),
        ]
    }

    proptest! {
        /// Against a queue: order, counts, capacity, the limit event, across resizes.
        #[test]
        fn matches_a_queue(
            capacity in 1..12u32,
            words in 1..4usize,
            ops in proptest::collection::vec(op(), 1..if cfg!(miri) { 12 } else { 200 }),
        ) {
            let (mut poster, mut taker) = queue(capacity, words);
            let mut other = taker.clone();
            let (mut model, mut room, mut limit, mut value) = (VecDeque::new(), capacity, 0u32, 0u64);
            for op in ops {
                match op {
                    Op::Post(n) => {
                        let mut put = 0;
                        while put < n && poster.put(put, &vec![value + 1; words]) {
                            value += 1;
                            model.push_back(value);
                            put += 1;
                        }
                        prop_assert_eq!(put < n, put + poster.waiting() == room && put < n);
                        poster.publish(put);
                    }
                    Op::Take(n) => {
                        for i in 0..n {
                            let mut got = vec![0; words];
                            let taken = if i % 2 == 0 { &mut taker } else { &mut other }.take(&mut got);
                            let expected = model.pop_front();
                            prop_assert_eq!(taken.is_some(), expected.is_some());
                            let (Some(taken), Some(expected)) = (taken, expected) else { continue };
                            prop_assert_eq!(got, vec![expected; words]);
                            let reached = limit != 0 && (model.len() as u32) < limit;
                            prop_assert_eq!(taken.limit_reached, reached);
                            if reached {
                                limit = 0;
                            }
                        }
                    }
                    Op::Arm(n) => {
                        limit = n;
                        poster.arm(n);
                    }
                    Op::Resize(n) => {
                        let fits = model.len() <= n as usize;
                        prop_assert_eq!(poster.resize(n), if fits { Ok(()) } else { Err(model.len() as u32) });
                        if fits {
                            room = n;
                        }
                    }
                }
                prop_assert_eq!(poster.waiting() as usize, model.len());
                prop_assert_eq!((poster.capacity(), poster.limit()), (room, limit));
                prop_assert!(poster.waiting() <= room);
            }
        }
    }

    /// Every short sequence of what a poster and two takers do, across changes of size and where 32 bits of the entries' numbers
    /// wrap: order, count, bound, and the limit reported once.
    #[test]
    #[cfg_attr(miri, ignore = "arithmetic alone, and too long for Miri")]
    fn every_short_history_matches_a_queue() {
        let starts = [0, u64::from(u32::MAX), u64::from(u32::MAX) - 2];
        for (capacity, start) in (1..=3).flat_map(|capacity| starts.map(|start| (capacity, start))) {
            sequences(6, 7).for_each(|history| replay(capacity, start, history));
        }
    }

    fn replay(mut capacity: u32, start: u64, history: impl Iterator<Item = usize> + Clone) {
        let (mut poster, taker) = queue_at(capacity, 1, start);
        let mut takers = [taker.clone(), taker];
        let (mut model, mut limit, mut value) = (VecDeque::new(), 0u32, 0u64);
        let case = || format!("{:?} from {start:#x}", history.clone().collect::<Vec<_>>());
        for op in history.clone() {
            match op {
                // Publishes one, or two at once.
                0 | 1 => {
                    let mut put = 0;
                    while put <= op as u32 && poster.put(put, &[value]) {
                        model.push_back(value);
                        value += 1;
                        put += 1;
                    }
                    assert!(put == op as u32 + 1 || model.len() == capacity as usize, "{}", case());
                    poster.publish(put);
                }
                2 | 3 => {
                    let mut got = [u64::MAX];
                    let taken = takers[op - 2].take(&mut got);
                    let expected = model.pop_front();
                    assert_eq!(taken.map(|_| got[0]), expected, "{}", case());
                    let reached = expected.is_some() && (model.len() as u32) < limit;
                    assert_eq!(taken.is_some_and(|taken| taken.limit_reached), reached, "{}", case());
                    if reached {
                        limit = 0;
                    }
                }
                4 => {
                    limit = 2;
                    poster.arm(limit);
                }
                _ => {
                    let next = capacity % 3 + 1;
                    let waiting = model.len() as u32;
                    let fits = waiting <= next;
                    assert_eq!(poster.resize(next), if fits { Ok(()) } else { Err(waiting) }, "{}", case());
                    if fits {
                        capacity = next;
                    }
                }
            }
            let state = (poster.waiting() as usize, poster.waiting() == 0, poster.limit(), poster.capacity());
            assert_eq!(state, (model.len(), model.is_empty(), limit, capacity), "{}", case());
        }
    }

    /// Three takers and a poster that resizes now and then: every entry arrives once, whole, and in order.
    #[test]
    fn threads_share_every_entry() {
        const ITEMS: u64 = if cfg!(miri) { 300 } else { 60_000 };
        const RESIZE: u64 = if cfg!(miri) { 20 } else { 1000 };
        const WORDS: usize = 5;
        let (mut poster, taker) = queue(8, WORDS);
        let done = std::sync::atomic::AtomicU64::new(0);
        let seen: Vec<Vec<u64>> = std::thread::scope(|s| {
            let takers: Vec<_> = (0..3)
                .map(|_| {
                    let (mut taker, done) = (taker.clone(), &done);
                    s.spawn(move || {
                        let (mut seen, mut entry) = (Vec::new(), [0; WORDS]);
                        while done.load(std::sync::atomic::Ordering::Relaxed) < ITEMS {
                            if taker.take(&mut entry).is_none() {
                                std::thread::yield_now();
                                continue;
                            }
                            assert_eq!(entry, [entry[0]; WORDS], "an entry of one piece");
                            seen.push(entry[0]);
                            done.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                        }
                        seen
                    })
                })
                .collect();
            let mut next = 0;
            while next < ITEMS {
                if next % RESIZE == RESIZE - 1 {
                    let _ = poster.resize(4 + (next / RESIZE % 13) as u32);
                }
                if poster.put(0, &[next; WORDS]) {
                    poster.publish(1);
                    next += 1;
                } else {
                    std::thread::yield_now();
                }
            }
            takers.into_iter().map(|t| t.join().unwrap()).collect()
        });
        for one in &seen {
            assert!(one.windows(2).all(|w| w[0] < w[1]), "a taker sees the order of posting");
        }
        let mut all: Vec<u64> = seen.into_iter().flatten().collect();
        all.sort_unstable();
        assert!(all.into_iter().eq(0..ITEMS));
        assert_eq!(poster.waiting(), 0);
    }

    #[test]
    #[should_panic(expected = "of 0 entries")]
    fn an_empty_queue_is_refused() {
        let _ = queue(0, 1);
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use loom::thread;

    /// Tries twice and never spins, so that the model stays small.
    fn take_twice(taker: &mut Taker) -> Vec<u64> {
        let mut seen = Vec::new();
        for _ in 0..2 {
            let mut entry = [0; 2];
            if taker.take(&mut entry).is_some() {
                assert_eq!(entry[0], entry[1], "an entry of one piece");
                seen.push(entry[0]);
            }
        }
        seen
    }

    /// Three entries through two slots, two takers: a slot is written again while another taker may still copy it.
    #[test]
    fn capacity_two() {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(3);
        model.check(|| {
            let (mut poster, mut taker) = queue(2, 2);
            poster.put(0, &[1, 1]);
            poster.put(1, &[2, 2]);
            poster.publish(2);
            let other = {
                let mut taker = taker.clone();
                thread::spawn(move || take_twice(&mut taker))
            };
            let third = thread::spawn(move || {
                let put = poster.put(0, &[3, 3]);
                poster.publish(u32::from(put));
                (put, poster)
            });
            let mine = take_twice(&mut taker);
            let theirs = other.join().unwrap();
            let (put, poster) = third.join().unwrap();
            let rest = take_twice(&mut taker);
            assert_eq!(poster.waiting(), 0);
            assert!(mine.is_sorted() && theirs.is_sorted() && rest.is_sorted());
            let mut all = [mine, theirs, rest].concat();
            all.sort_unstable();
            assert_eq!(all, [1, 2, 3][..2 + usize::from(put)]);
        });
    }

    /// A resize under a take: nothing is lost, doubled or out of order, and the limit is reported once.
    #[test]
    fn resize_under_a_take() {
        loom::model(|| {
            let (mut poster, mut taker) = queue(2, 2);
            poster.put(0, &[1, 1]);
            poster.put(1, &[2, 2]);
            poster.publish(2);
            poster.arm(2);
            let resizer = thread::spawn(move || {
                poster.resize(3).unwrap();
                poster.put(0, &[3, 3]);
                poster.publish(1);
            });
            let (mut expected, mut reports) = (1, 0);
            while expected <= 3 {
                let mut entry = [0; 2];
                match taker.take(&mut entry) {
                    Some(taken) => {
                        assert_eq!(entry, [expected, expected]);
                        reports += u32::from(taken.limit_reached);
                        expected += 1;
                    }
                    None => thread::yield_now(),
                }
            }
            resizer.join().unwrap();
            assert_eq!(reports, 1);
        });
    }
}
