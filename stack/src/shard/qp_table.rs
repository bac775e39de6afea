//! Maps queue pair numbers to slots. Numbers are unpredictable, so this is a hash table: open addressing, linear probing, no
//! tombstones. Grows when a queue pair is created, never on the data path.

use crate::id::Qpn;
use crate::mark::step;
use crate::sync::prefetch;

const FREE: u32 = u32::MAX;

/// Slots by queue pair number.
#[derive(Debug)]
pub struct QpTable {
    /// (number, slot); a free entry has the number [`FREE`]. The length is a power of two; at most half of the entries are used.
    entries: Box<[(u32, u32)]>,
    /// Right shift of a 32-bit hash that leaves the bits of an index.
    shift: u32,
    len: usize,
}

impl Default for QpTable {
    fn default() -> Self {
        Self { entries: vec![(FREE, 0); 16].into(), shift: 32 - 4, len: 0 }
    }
}

impl QpTable {
    /// Size of an entry in bytes.
    #[cfg(not(loom))]
    pub const ENTRY: usize = size_of::<(u32, u32)>();

    #[inline]
    fn home(&self, qpn: u32) -> usize {
        // Fibonacci hashing: the product's upper bits depend on all of the number.
        let hash = qpn.wrapping_mul(0x9e37_79b9);
        (hash >> self.shift) as usize
    }

    #[inline]
    fn find(&self, qpn: u32) -> Result<usize, usize> {
        let mask = self.entries.len() - 1;
        let mut at = self.home(qpn);
        loop {
            step();
            match self.entries[at].0 {
                FREE => return Err(at),
                found if found == qpn => return Ok(at),
                _ => at = (at + 1) & mask,
            }
        }
    }

    /// The slot of a queue pair.
    #[inline]
    pub fn get(&self, qpn: Qpn) -> Option<u32> {
        self.find(qpn.get()).ok().map(|at| self.entries[at].1)
    }

    /// Prefetches the entry of a queue pair.
    #[inline]
    pub fn prefetch(&self, qpn: Qpn) {
        prefetch::line(&raw const self.entries[self.home(qpn.get())]);
    }

    /// Adds a queue pair.
    ///
    /// # Panics
    /// If the table has the number already.
    pub fn insert(&mut self, qpn: Qpn, slot: u32) {
        if (self.len + 1) * 2 > self.entries.len() {
            let bigger = vec![(FREE, 0); self.entries.len() * 2].into();
            self.shift -= 1;
            for (q, s) in core::mem::replace(&mut self.entries, bigger) {
                if q != FREE {
                    let at = self.find(q).expect_err("each number is there once");
                    self.entries[at] = (q, s);
                }
            }
        }
        let at = self.find(qpn.get()).expect_err("a queue pair number is given out once");
        self.entries[at] = (qpn.get(), slot);
        self.len += 1;
    }

    /// Removes a queue pair.
    pub fn remove(&mut self, qpn: Qpn) {
        let Ok(mut hole) = self.find(qpn.get()) else { return };
        let mask = self.entries.len() - 1;
        let mut at = hole;
        loop {
            at = (at + 1) & mask;
            let (q, _) = self.entries[at];
            if q == FREE {
                break;
            }
            // An entry may fill the hole unless its home lies behind the hole.
            if (at.wrapping_sub(self.home(q)) & mask) >= (at.wrapping_sub(hole) & mask) {
                self.entries[hole] = self.entries[at];
                hole = at;
            }
        }
        self.entries[hole] = (FREE, 0);
        self.len -= 1;
    }

    /// Number of queue pairs in the table.
    pub fn len(&self) -> usize {
        self.len
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;

    #[test]
    fn agrees_with_a_hash_map() {
        let mut table = QpTable::default();
        let mut oracle = HashMap::new();
        let mut x = 12345u32;
        for i in 0..200_000u32 {
            x = x.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let qpn = Qpn::new(x >> 20 & 0x3ff);
            if x & 0x100 == 0 {
                table.remove(qpn);
                oracle.remove(&qpn);
            } else if let std::collections::hash_map::Entry::Vacant(free) = oracle.entry(qpn) {
                table.insert(qpn, i);
                free.insert(i);
            }
            let probe = Qpn::new(x >> 5 & 0x3ff);
            assert_eq!(table.get(probe), oracle.get(&probe).copied());
            assert_eq!(table.len(), oracle.len());
        }
    }
}
