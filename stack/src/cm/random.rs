//! Numbers that peers cannot predict, from a seed.

use std::hash::{DefaultHasher, Hasher};

/// A keyed hash of a counter: some of the numbers do not reveal the others.
pub(super) struct Random {
    seed: u64,
    drawn: u64,
}

impl Random {
    pub const fn new(seed: u64) -> Self {
        Self { seed, drawn: 0 }
    }
    /// 64 bits.
    pub fn next(&mut self) -> u64 {
        self.drawn += 1;
        let mut hash = DefaultHasher::new();
        hash.write_u64(self.seed);
        hash.write_u64(self.drawn);
        hash.finish()
    }
    /// 32 bits, not all zero, and not `taken`.
    pub fn id(&mut self, taken: impl Fn(u32) -> bool) -> u32 {
        // At most 2^17 of 2^32 are taken: a second round is rare.
        loop {
            let id = self.next() as u32;
            if id != 0 && !taken(id) {
                return id;
            }
        }
    }
}
