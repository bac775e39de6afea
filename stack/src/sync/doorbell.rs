//! Doorbells: which of up to 2^18 objects have work, as an atomic bitmap of two levels, or of three for more than 4096.
//!
//! Ringing twice is ringing once, so nothing overflows. Any thread rings; the shard's owner drains.
//!
//! # Why no ring is lost
//!
//! A ringer publishes its work, then reads its bit. If the bit is clear it sets it (release). A ringer that makes a word of bits
//! non-zero then sets the word's bit on the level above (release), and so on up to the summary. The drainer clears from the
//! summary down (acquire), then looks for work; it sets a bit above again where it left something. So a bit is set only while
//! those above it are set, or a ringer is about to set them, or the drainer is at that word.
//!
//! If the bit is set already the ringer leaves it alone. Then the drainer has yet to clear it, and must find the work when it
//! looks afterwards. That takes a sequentially consistent fence on both sides: between the ringer's "write work" and "read bit",
//! and between the drainer's "clear bit" and "read work".

use super::prefetch;
use super::primitive::{AtomicU32, AtomicU64, Ordering, fence};
use crate::mark::step;
use arrayvec::ArrayVec;
use crossbeam_utils::CachePadded;

const WORD: u32 = u64::BITS;
/// Words of a [`Line`].
const LINE_WORDS: usize = 16;
/// Words of bits that a drain clears before one fence.
const TAKEN_MAX: usize = 64;
/// 128 bytes, which the processor fetches together (adjacent-line prefetch).
type Line = CachePadded<[AtomicU64; LINE_WORDS]>;

/// A set of doorbells, numbered from 0.
pub struct Doorbells {
    /// Bit `w`: word `w` may be non-zero; with `groups`, bit `g`: the word of group `g` may be.
    summary: CachePadded<AtomicU64>,
    /// Where the next drain starts, so that a small budget reaches every doorbell. Only a hint.
    cursor: CachePadded<AtomicU32>,
    /// Whole cache lines, so that two sets share none.
    lines: Box<[Line]>,
    /// A word for each group of 64 words; bit `w`: word `w` of the group may be non-zero. Empty for one group.
    groups: Box<[Line]>,
    len: u32,
}

impl core::fmt::Debug for Doorbells {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Doorbells").finish_non_exhaustive()
    }
}

impl Doorbells {
    /// Makes `n` doorbells, none of them rung.
    ///
    /// # Panics
    /// If `n` is above 2^18.
    pub fn new(n: u32) -> Self {
        assert!(n <= WORD * WORD * WORD, "too many doorbells");
        let words = n.div_ceil(WORD);
        let lines = |words: u32| (0..(words as usize).div_ceil(LINE_WORDS)).map(|_| line()).collect();
        Self {
            summary: CachePadded::new(AtomicU64::new(0)),
            cursor: CachePadded::new(AtomicU32::new(0)),
            lines: lines(words),
            groups: lines(if words > WORD { words.div_ceil(WORD) } else { 0 }),
            len: n,
        }
    }

    #[inline]
    fn word(&self, w: u32) -> &AtomicU64 {
        &self.lines[w as usize / LINE_WORDS][w as usize % LINE_WORDS]
    }

    #[inline]
    fn group(&self, g: u32) -> &AtomicU64 {
        &self.groups[g as usize / LINE_WORDS][g as usize % LINE_WORDS]
    }

    /// The memory that ringing and draining write: addresses and lengths, in bytes.
    #[cfg(test)]
    pub(crate) fn written(&self) -> Vec<(usize, usize)> {
        let mut all = vec![
            (core::ptr::from_ref(&self.summary) as usize, size_of_val(&self.summary)),
            (core::ptr::from_ref(&self.cursor) as usize, size_of_val(&self.cursor)),
        ];
        all.extend(
            self.lines
                .iter()
                .chain(&self.groups)
                .map(|line| (core::ptr::from_ref(line) as usize, size_of_val(line))),
        );
        all
    }

    /// Number of doorbells.
    pub fn len(&self) -> u32 {
        self.len
    }

    /// Whether the set has no doorbells at all. For "is one rung" see [`Doorbells::any`].
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Prefetches what ringing doorbell `i` writes.
    ///
    /// # Panics
    /// If there is no doorbell `i`.
    #[inline]
    pub fn prefetch(&self, i: u32) {
        prefetch::line(self.word(i / WORD));
    }

    /// Rings doorbell `i`. What the calling thread wrote before is visible to the drain that reports it.
    ///
    /// # Panics
    /// If there is no doorbell `i`.
    #[inline]
    pub fn ring(&self, i: u32) {
        assert!(i < self.len, "doorbell {i} of {}", self.len);
        let word = self.word(i / WORD);
        let bit = 1 << (i % WORD);
        if word.load(Ordering::Relaxed) & bit != 0 {
            // Set already: the drainer has yet to clear it, but finds the caller's work only if that was visible before the bit
            // was read. Pairs with the fence in `report`.
            fence(Ordering::SeqCst);
            if word.load(Ordering::Relaxed) & bit != 0 {
                return;
            }
        }
        // The ringer that makes a word non-zero must set its bit a level above. Ringers of other bells do so too where they see it
        // clear, so that they wait for no thread that was preempted between the two steps.
        let mut fresh = word.fetch_or(bit, Ordering::Release) == 0;
        let mut at = i / WORD;
        if !self.groups.is_empty() {
            let (group, bit) = (self.group(at / WORD), 1 << (at % WORD));
            let set = fresh || group.load(Ordering::Relaxed) & bit == 0;
            fresh = set && group.fetch_or(bit, Ordering::Release) == 0;
            at /= WORD;
        }
        if fresh || self.summary.load(Ordering::Relaxed) >> at & 1 == 0 {
            self.summary.fetch_or(1 << at, Ordering::Release);
        }
    }

    /// Whether a doorbell is rung: one load. Can be true when none is; false for a rung one only while its ring or a drain is
    /// under way.
    #[inline]
    pub fn any(&self) -> bool {
        self.summary.load(Ordering::Relaxed) != 0
    }

    /// Clears up to `max` doorbells and calls `each` for every one, after clearing it. Returns how many.
    ///
    /// The order is circular: a doorbell that did not fit in `max` comes first next time. A drain reports a doorbell at most once. One that
    /// is rung meanwhile may be reported only by the next drain.
    #[inline]
    pub fn drain(&self, max: u32, mut each: impl FnMut(u32)) -> u32 {
        if max == 0 || !self.any() {
            return 0;
        }
        let from = self.cursor.load(Ordering::Relaxed);
        let mut taken = Taken::new();
        let mut left = max;
        let mut stopped = self.sweep(from, self.len, &mut left, &mut taken, &mut each);
        if stopped.is_none() && from > 0 {
            stopped = self.sweep(0, from, &mut left, &mut taken, &mut each);
        }
        report(&mut taken, &mut each);
        let next = stopped.unwrap_or(0);
        if next != from {
            self.cursor.store(next, Ordering::Relaxed);
        }
        max - left
    }

    /// Clears the doorbells `lo .. hi` into `taken`. Returns the number after the last one when `left` ran out.
    fn sweep(
        &self,
        lo: u32,
        hi: u32,
        left: &mut u32,
        taken: &mut Taken,
        each: &mut impl FnMut(u32),
    ) -> Option<u32> {
        let mut last = 0;
        let mut take = |w: u32| {
            if taken.is_full() {
                report(taken, each);
            }
            let (bits, remain) = self.take(w, range_mask(w, lo, hi), *left);
            if bits != 0 {
                *left -= bits.count_ones();
                last = (w + 1) * WORD - bits.leading_zeros();
                taken.push((w, bits));
            }
            (*left > 0, remain)
        };
        let (first, end) = (lo / WORD, hi.div_ceil(WORD));
        if self.groups.is_empty() {
            visit(&self.summary, (first, end), 0, take);
        } else {
            let groups = (first / WORD, end.div_ceil(WORD));
            visit(&self.summary, groups, 0, |g| visit(self.group(g), (first, end), g, &mut take));
        }
        (*left == 0).then_some(if last >= self.len { 0 } else { last })
    }

    /// Clears up to `max` of the bits `of` in word `w`. Returns those that it cleared, and whether others remain.
    #[inline]
    fn take(&self, w: u32, of: u64, max: u32) -> (u64, bool) {
        step();
        let word = self.word(w);
        let rung = word.load(Ordering::Relaxed);
        let take = lowest(rung & of, max);
        if take == 0 {
            return (0, rung != 0);
        }
        let before = word.fetch_and(!take, Ordering::AcqRel);
        (before & take, before & !take != 0)
    }
}

/// Clears those bits of `word`, number `n` of its level, that stand for the words `first .. end` of the level below, and calls
/// `each` for each of them. `each` returns whether to go on, and whether its bit has to be set again; bits that were not visited
/// are set again, too. Returns whether to go on, and whether bits of `word` are set.
#[inline]
fn visit(
    word: &AtomicU64,
    (first, end): (u32, u32),
    n: u32,
    mut each: impl FnMut(u32) -> (bool, bool),
) -> (bool, bool) {
    let of = range_mask(n, first, end);
    if word.load(Ordering::Relaxed) & of == 0 {
        return (true, word.load(Ordering::Relaxed) != 0);
    }
    // Acquire: makes visible what the ringer set on the level below before.
    let before = word.fetch_and(!of, Ordering::AcqRel);
    let (mut bits, mut again) = (before & of, 0);
    let mut on = true;
    while on && bits != 0 {
        let at = bits.trailing_zeros();
        bits &= bits - 1;
        let (more, remain) = each(n * WORD + at);
        on = more;
        again |= u64::from(remain) << at;
    }
    if bits | again != 0 {
        word.fetch_or(bits | again, Ordering::Release);
    }
    (on, before & !of != 0 || bits | again != 0)
}

/// Words by their numbers, with the bits in them that were cleared and are not reported yet.
type Taken = ArrayVec<(u32, u64), TAKEN_MAX>;

/// Reports the doorbells that were cleared: one fence for all of them.
#[inline]
fn report(taken: &mut Taken, each: &mut impl FnMut(u32)) {
    if taken.is_empty() {
        return;
    }
    // Pairs with the fence in `ring`: cleared before the caller looks for work.
    fence(Ordering::SeqCst);
    for (w, mut bits) in taken.drain(..) {
        while bits != 0 {
            let i = w * WORD + bits.trailing_zeros();
            bits &= bits - 1;
            each(i);
        }
    }
}

/// A word in which the lowest `n` bits are set.
#[inline]
fn below(n: u32) -> u64 {
    if n >= WORD { u64::MAX } else { (1 << n) - 1 }
}

fn line() -> Line {
    CachePadded::new(core::array::from_fn(|_| AtomicU64::new(0)))
}

/// The lowest `n` bits that are set in `bits`.
#[inline]
fn lowest(bits: u64, n: u32) -> u64 {
    if bits.count_ones() <= n {
        return bits;
    }
    let mut rest = bits;
    for _ in 0..n {
        rest &= rest - 1;
    }
    bits & !rest
}

/// The bits of word `w` of a level that stand for numbers in `lo .. hi`.
#[inline]
fn range_mask(w: u32, lo: u32, hi: u32) -> u64 {
    let base = w * WORD;
    below(hi.saturating_sub(base)) & !below(lo.saturating_sub(base))
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    /// Around the sizes at which another word, or another level, is needed; only small ones under Miri.
    const SIZES: &[u32] =
        if cfg!(miri) { &[1, 2, 63, 64, 65, 200] } else { &[1, 2, 63, 64, 65, 4096, 4097, 20_000, 1 << 17] };

    #[test]
    fn every_bell_of_every_size() {
        for &n in SIZES {
            let bells = Doorbells::new(n);
            assert!(!bells.any() && bells.len() == n);
            for i in 0..n {
                bells.ring(i);
            }
            assert!(bells.any());
            let mut seen = Vec::new();
            assert_eq!(bells.drain(u32::MAX, |i| seen.push(i)), n);
            assert!(seen.into_iter().eq(0..n));
            assert!(!bells.any());
            assert_eq!(bells.drain(u32::MAX, |_| panic!("nothing rung")), 0);
        }
        assert_eq!(Doorbells::new(0).drain(1, |_| ()), 0);
    }

    #[test]
    #[should_panic(expected = "doorbell 65 of 65")]
    fn no_such_bell() {
        Doorbells::new(65).ring(65);
    }

    /// Low numbers that ring all the time do not keep a high one waiting.
    #[test]
    fn small_budgets_go_round() {
        for &n in SIZES {
            let bells = Doorbells::new(n);
            let low = n.min(200);
            bells.ring(n - 1);
            let mut turns = 0;
            let mut done = false;
            while !done {
                (0..low).for_each(|i| bells.ring(i));
                assert!(bells.drain(7, |i| done |= i == n - 1) <= 7);
                turns += 1;
                assert!(turns <= low / 7 + 2, "{n} bells, {turns} turns");
            }
        }
    }

    proptest! {
        /// Against a set: each drain reports what is in it, once, and nothing else; small budgets in turn
        /// report everything that was in the set when they began.
        #[test]
        fn bells_match_a_set(
            size in 0..SIZES.len(),
            ops in proptest::collection::vec((any::<u32>(), 0..8u32, 0..6u32), 1..if cfg!(miri) { 12 } else { 100 }),
        ) {
            let n = SIZES[size];
            let bells = Doorbells::new(n);
            let mut set = BTreeSet::new();
            for (seed, rings, max) in ops {
                for k in 0..rings {
                    // Near each other and far apart.
                    let i = seed.wrapping_mul(if k % 2 == 0 { 1 } else { k * 7919 }).wrapping_add(k) % n;
                    bells.ring(i);
                    set.insert(i);
                }
                let expected = (max as usize).min(set.len());
                let mut out = Vec::new();
                prop_assert_eq!(bells.drain(max, |i| out.push(i)) as usize, out.len());
                prop_assert_eq!(out.len(), expected);
                for i in out {
                    prop_assert!(set.remove(&i), "{} was not rung", i);
                }
                prop_assert!(bells.any() || set.is_empty());
            }
            let mut rest = Vec::new();
            bells.drain(u32::MAX, |i| rest.push(i));
            rest.sort_unstable();
            prop_assert!(rest.into_iter().eq(set));
        }
    }

    /// Two ringers count work up, a drainer looks for it only where a bell was reported: none is left over.
    #[test]
    fn threads_lose_no_ring() {
        const WORK: u32 = if cfg!(miri) { 100 } else { 40_000 };
        let bells = Doorbells::new(8192);
        let ids = [3u32, 4, 70, 4100, 8191];
        let work: Vec<AtomicU32> = (0..2 * ids.len()).map(|_| AtomicU32::new(0)).collect();
        std::thread::scope(|scope| {
            for ringer in 0..2 {
                let (bells, work) = (&bells, &work);
                scope.spawn(move || {
                    for n in 1..=WORK {
                        let k = n as usize % ids.len();
                        work[ringer * ids.len() + k].store(n, Ordering::Relaxed);
                        bells.ring(ids[k]);
                    }
                });
            }
            let last =
                |k: usize| (0..ids.len() as u32).map(|i| WORK - i).find(|n| *n as usize % ids.len() == k);
            let mut seen = vec![0; work.len()];
            while (0..work.len()).any(|w| Some(seen[w]) != last(w % ids.len())) {
                bells.drain(3, |i| {
                    let k = ids.iter().position(|&id| id == i).expect("rung");
                    for w in [k, ids.len() + k] {
                        seen[w] = work[w].load(Ordering::Relaxed);
                    }
                });
            }
        });
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use crate::sync::primitive::Arc;
    use loom::thread;

    /// The bell is rung already and the drainer is about to clear it: the work of a ringer that leaves the bit alone is found all
    /// the same, by this drain or by the next.
    #[test]
    fn a_skipped_ring_is_drained() {
        loom::model(|| {
            let bells = Arc::new(Doorbells::new(64));
            let work = Arc::new(AtomicU32::new(0));
            bells.ring(0);
            let ringer = {
                let (bells, work) = (bells.clone(), work.clone());
                thread::spawn(move || {
                    work.store(1, Ordering::Relaxed);
                    bells.ring(0);
                })
            };
            let mut seen = 0;
            bells.drain(1, |_| seen = work.load(Ordering::Relaxed));
            ringer.join().unwrap();
            bells.drain(1, |_| seen = work.load(Ordering::Relaxed));
            assert_eq!(seen, 1);
        });
    }

    /// Two bells of a word and a budget of one: a later drain finds what one leaves.
    #[test]
    fn neighbours_and_a_small_budget() {
        loom::model(|| {
            let bells = Arc::new(Doorbells::new(64));
            let ringers: Vec<_> = [5, 9]
                .into_iter()
                .map(|i| {
                    let bells = bells.clone();
                    thread::spawn(move || bells.ring(i))
                })
                .collect();
            let mut seen = 0u64;
            bells.drain(1, |i| seen |= 1 << i);
            for ringer in ringers {
                ringer.join().unwrap();
            }
            while bells.any() {
                bells.drain(1, |i| seen |= 1 << i);
            }
            assert_eq!(seen, 1 << 5 | 1 << 9);
        });
    }
}
