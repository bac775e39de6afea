//! Which shards have datagrams to send that no turn has looked for yet.
//!
//! A NIC reads the memory of a request microseconds after its doorbell. Some programs that have a protocol of their own above datagrams
//! rely on that: an answer tells them that a datagram has left, so they use its memory anew, though it is not complete (UCX does, where two
//! connection requests cross). Here it is a turn that reads the memory, and a poll that finds completions makes none. So such a poll looks
//! here before it returns.

use core::sync::atomic::{AtomicU32, Ordering};

use crossbeam_utils::CachePadded;

/// Shards, as bits.
#[derive(Debug, Default)]
pub struct Unsent(CachePadded<AtomicU32>);

impl Unsent {
    /// A datagram was posted to a queue pair of this shard.
    #[inline]
    pub fn add(&self, shard: u8) {
        let bit = 1 << shard;
        if self.0.load(Ordering::Relaxed) & bit == 0 {
            self.0.fetch_or(bit, Ordering::Relaxed);
        }
    }

    /// Those of these shards, as bits, that have some.
    #[inline]
    pub fn among(&self, shards: u32) -> u32 {
        self.0.load(Ordering::Relaxed) & shards
    }

    /// A turn of these shards begins: it finds what was posted before.
    pub fn clear(&self, shards: u32) {
        self.0.fetch_and(!shards, Ordering::Relaxed);
    }
}
