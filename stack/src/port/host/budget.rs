//! The memory in which the links of a process send: send buffers, from one budget.
//!
//! A ring uses few buffers at first ([`FIRST`]). Each time all of them are in flight it gets twice as many, unless that exceeds a fixed
//! fraction of the rest of the budget: so the first rings that need many leave some for the others. Memory that a ring has not used for a
//! while goes back to the system.

use crate::port::memif::shm::Region;
use core::ops::Range;
use core::sync::atomic::{AtomicUsize, Ordering};
use std::sync::Arc;

/// Buffers that a ring uses at first and after it was idle.
pub const FIRST: u16 = 4;
/// Bytes that all rings of a process may use beyond [`FIRST`].
const BYTES: usize = 64 << 20;
/// A ring may have 1/`SHARE` of the rest of the budget.
const SHARE: usize = 16;

/// The budget of a process.
#[derive(Debug)]
pub struct Budget {
    left: AtomicUsize,
}

impl Default for Budget {
    fn default() -> Self {
        Self { left: AtomicUsize::new(BYTES) }
    }
}

impl Budget {
    /// Whether a ring has memory of the budget.
    pub fn is_used(&self) -> bool {
        self.left.load(Ordering::Relaxed) < BYTES
    }
}

/// Memory that a ring has of a budget, until this is dropped.
#[derive(Debug)]
pub struct Grant {
    budget: Arc<Budget>,
    bytes: usize,
}

impl Grant {
    /// A grant of no bytes.
    pub fn new(budget: &Arc<Budget>) -> Self {
        Self { budget: Arc::clone(budget), bytes: 0 }
    }

    /// Takes `bytes` more; returns whether the budget allows it.
    pub fn take(&mut self, bytes: usize) -> bool {
        let all = self.bytes + bytes;
        let rest = |left: usize| (all <= left / SHARE).then(|| left - bytes);
        let is_there = self.budget.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, rest).is_ok();
        if is_there {
            self.bytes = all;
        }
        is_there
    }
}

impl Drop for Grant {
    fn drop(&mut self) {
        self.budget.left.fetch_add(self.bytes, Ordering::Relaxed);
    }
}

/// Memory of a link that is no longer used.
pub struct Unused {
    region: Arc<Region>,
    bytes: Range<usize>,
    _grant: Grant,
}

impl Unused {
    /// These bytes of `region`, to which `grant` belongs.
    pub fn new(region: &Arc<Region>, bytes: Range<usize>, grant: Grant) -> Self {
        Self { region: Arc::clone(region), bytes, _grant: grant }
    }
}

impl Drop for Unused {
    /// Returns the memory to the system, which takes some tens of microseconds.
    fn drop(&mut self) {
        self.region.discard(self.bytes.clone());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes that each ring gets if all double what they have as often as they can, the first ring first.
    fn all(rings: usize, first: usize) -> Vec<usize> {
        let budget = Arc::new(Budget::default());
        let mut grants: Vec<Grant> = (0..rings).map(|_| Grant::new(&budget)).collect();
        for grant in &mut grants {
            while first + grant.bytes < 512 * first / usize::from(FIRST) && grant.take(first + grant.bytes) {}
        }
        assert!(budget.is_used());
        let bytes = grants.iter().map(|grant| grant.bytes).collect();
        drop(grants);
        assert!(!budget.is_used(), "all of it came back");
        bytes
    }

    #[test]
    fn one_ring_gets_all_that_it_can_use_and_many_leave_some_for_each_other() {
        let first = usize::from(FIRST) * 4288;
        assert_eq!(all(1, first), [127 * first]);
        let many = all(64, first);
        assert!(many.iter().sum::<usize>() <= BYTES);
        assert_eq!(many[0], 127 * first);
        assert!(many.iter().all(|bytes| *bytes >= 3 * first), "{many:?}");
        assert!(many.is_sorted_by(|a, b| a >= b), "{many:?}");
    }
}
