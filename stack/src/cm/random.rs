//! Numbers that peers cannot predict, from a seed.

use core::ops::RangeInclusive;
use std::hash::{DefaultHasher, Hasher};

/// A keyed hash of a counter: some of the numbers do not reveal the others.
pub(super) struct Random {
    seed: u64,
    drawn: u64,
    /// Ids drawn from a part of all numbers.
    ids: u32,
}

impl Random {
    pub const fn new(seed: u64) -> Self {
        Self { seed, drawn: 0, ids: 0 }
    }
    /// 64 bits.
    pub fn next(&mut self) -> u64 {
        self.drawn += 1;
        let mut hash = DefaultHasher::new();
        hash.write_u64(self.seed);
        hash.write_u64(self.drawn);
        hash.finish()
    }
    /// A number of this range that is not 0, and not `taken`. From a part of all numbers none comes again before the others have come.
    pub fn id(&mut self, of: &RangeInclusive<u32>, taken: impl Fn(u32) -> bool) -> u32 {
        // At most 2^17 of 2^23 are taken: a second round is rare.
        loop {
            let id = match of.end() - of.start() {
                // Of so many none comes again soon.
                range if range >= SCATTERED => self.next() as u32,
                range => {
                    self.ids = self.ids.wrapping_add(1);
                    of.start() + self.scattered(self.ids, range)
                }
            };
            if of.contains(&id) && id != 0 && !taken(id) {
                return id;
            }
        }
    }
    /// Takes each of the numbers up to `last`, below [`SCATTERED`], to another one of them: a Feistel network, repeated as long as the
    /// result is too large.
    fn scattered(&self, n: u32, last: u32) -> u32 {
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

/// Ids of fewer numbers than these do not come again soon.
const SCATTERED: u32 = 1 << 24;
/// Rounds of the network.
const ROUNDS: u32 = 4;

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn ids_of_a_part_of_all_come_once_each_in_no_order() {
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
