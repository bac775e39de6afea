//! Random numbers that peers cannot predict, derived from a seed.

use core::ops::RangeInclusive;
use std::hash::{DefaultHasher, Hasher};

/// Draws numbers as keyed hashes of a counter, so that known numbers do not reveal others.
pub(super) struct Random {
    seed: u64,
    /// How many numbers were drawn.
    drawn: u64,
    /// How many ids were drawn from ranges shorter than [`PERMUTED_BELOW`].
    ids: u32,
}

impl Random {
    pub const fn new(seed: u64) -> Self {
        Self { seed, drawn: 0, ids: 0 }
    }
    /// The next 64 random bits.
    pub fn next(&mut self) -> u64 {
        self.drawn += 1;
        let mut hash = DefaultHasher::new();
        hash.write_u64(self.seed);
        hash.write_u64(self.drawn);
        hash.finish()
    }
    /// An id in the range `of` that is neither 0 nor `taken`. In a range shorter than [`PERMUTED_BELOW`] no id is drawn again before
    /// all others were drawn.
    pub fn id(&mut self, of: &RangeInclusive<u32>, taken: impl Fn(u32) -> bool) -> u32 {
        // At most 2^17 of 2^23 ids are taken, so a second round is rare.
        loop {
            let id = match of.end() - of.start() {
                // The range is long enough that random ids do not repeat soon.
                range if range >= PERMUTED_BELOW => self.next() as u32,
                range => {
                    self.ids = self.ids.wrapping_add(1);
                    of.start() + self.permuted(self.ids, range)
                }
            };
            if of.contains(&id) && id != 0 && !taken(id) {
                return id;
            }
        }
    }
    /// A random permutation of `0 ..= last`, applied to `n` modulo its length; `last` is below [`PERMUTED_BELOW`]. It is a Feistel
    /// network, repeated while the result exceeds `last`.
    fn permuted(&self, n: u32, last: u32) -> u32 {
        let half = (32 - last.leading_zeros()).div_ceil(2);
        let mask = (1 << half) - 1;
        let mut number = n % (last + 1);
        loop {
            let (mut high, mut low) = (number >> half, number & mask);
            for round in 0..ROUNDS {
                let mut hash = DefaultHasher::new();
                hash.write_u64(self.seed);
                hash.write_u32(round);
                hash.write_u32(low);
                (high, low) = (low, high ^ hash.finish() as u32 & mask);
            }
            number = high << half | low;
            if number <= last {
                return number;
            }
        }
    }
}

/// In ranges shorter than this, ids are drawn from a permutation, because random ones would repeat too soon.
const PERMUTED_BELOW: u32 = 1 << 24;
/// Rounds of the Feistel network.
const ROUNDS: u32 = 4;

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn ids_of_a_short_range_come_once_each_in_random_order() {
        for (of, seed) in [(0x10_0000..=0x10_0fff, 1), (0..=0x2fff, 2), (7..=7 + 999, 3)] {
            let (count, mut random) = ((of.end() - of.start() + 1) as usize, Random::new(seed));
            let ids: Vec<u32> = (0..count - 1).map(|_| random.id(&of, |_| false)).collect();
            assert!(ids.iter().all(|id| of.contains(id) && *id != 0));
            assert_eq!(ids.iter().collect::<HashSet<_>>().len(), count - 1);
            let ascending = ids.windows(2).filter(|pair| pair[0] < pair[1]).count();
            assert!((count / 3..count * 2 / 3).contains(&ascending), "{ascending} of {count}");
        }
    }

    #[test]
    fn an_id_that_is_taken_is_not_drawn() {
        let mut random = Random::new(1);
        for of in [1..=u32::MAX, 0x50_0000..=0x50_ffff] {
            let first = random.id(&of, |_| false);
            for _ in 0..1000 {
                let id = random.id(&of, |id| id == first || id % 2 == 0);
                assert!(id != first && id % 2 == 1 && of.contains(&id));
            }
        }
    }
}
