//! The parameters on which two processes agree: the number of rings, the length of frames, and the layout of the shared memory.
//!
//! The process that calls creates the memory. In each direction it holds as many rings as the process with more shards has shards, and each
//! process lays out the buffers of the rings on which it sends. A shard sends on the ring of its own number, and receives from the rings
//! whose number, modulo the number of its process's shards, is its own. So each ring has one sender and one receiver.

use crate::config::RUNS_PER_PROCESS;
use crate::port::memif::region::Layout;
use crate::registry::Run;
use arrayvec::ArrayVec;

/// Base-2 logarithm of the slots of a ring. The sender decides how many of them are in use at a time ([`budget`](super::budget)).
pub const LOG2: u8 = 9;

/// The parameters that a process announces.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct About {
    /// Number of its shards.
    pub queues: usize,
    /// Bytes of its longest frame.
    pub max_frame: usize,
    /// Its runs in order, at least one. All but the run by which the process was called are hints.
    pub runs: ArrayVec<Run, RUNS_PER_PROCESS>,
}

/// The memory that a process offers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Offer {
    /// Rings in each direction.
    pub queues: u32,
    /// Base-2 logarithm of the slots of each ring.
    pub log2: u32,
    /// Bytes of each buffer.
    pub buffer: u32,
    /// Bytes of the whole memory.
    pub size: u64,
}

/// The parameters of a link, which both ends compute alike.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Terms {
    /// Bytes of the longest frame that both processes take.
    pub max_frame: usize,
    /// The layout of its memory.
    pub layout: Layout,
}

impl Terms {
    /// The parameters of a link between two processes.
    pub fn of(one: &About, other: &About) -> Self {
        let max_frame = one.max_frame.min(other.max_frame);
        // A stride that is not a power of two spreads the buffers over the sets of a cache. the buffers over the sets of a cache.
        let buffer = max_frame.next_multiple_of(64) as u32 + 64;
        Self { max_frame, layout: Layout { queues: one.queues.max(other.queues), log2: LOG2, buffer } }
    }

    /// The offer that the creator of the memory sends.
    pub fn offer(&self) -> Offer {
        let Layout { queues, log2, buffer } = self.layout;
        Offer { queues: queues as u32, log2: log2.into(), buffer, size: self.layout.size() }
    }
}

/// The rings, of those on which the peer sends, from which a shard receives. `shards`: shards of this process; `theirs`: rings on which the
/// peer sends.
pub fn rings_to(shard: usize, shards: usize, theirs: usize) -> impl Iterator<Item = usize> {
    (shard..theirs).step_by(shards)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::SHARDS_MAX;

    pub fn about(queues: usize, max_frame: usize) -> About {
        About { queues, max_frame, runs: ArrayVec::from_iter(Run::all().take(1)) }
    }

    #[test]
    fn both_ends_come_to_the_same_terms_and_no_region_is_large() {
        for one in 1..=SHARDS_MAX {
            for other in 1..=SHARDS_MAX {
                let (a, b) = (about(one, 9618), about(other, 4218));
                assert_eq!(Terms::of(&a, &b), Terms::of(&b, &a));
                assert_eq!(Terms::of(&a, &b).max_frame, 4218);
            }
        }
        let most = about(SHARDS_MAX, 16 << 10);
        assert!(Terms::of(&most, &most).layout.size() < 512 << 20);
    }

    // Goal: each ring has one receiver, whatever the numbers of shards.
    #[test]
    fn each_ring_has_one_receiver() {
        for shards in 1..=SHARDS_MAX {
            for theirs in 1..=SHARDS_MAX {
                let mut all: Vec<usize> =
                    (0..shards).flat_map(|shard| rings_to(shard, shards, theirs)).collect();
                all.sort_unstable();
                assert!(all.into_iter().eq(0..theirs), "{shards} {theirs}");
            }
        }
    }
}
