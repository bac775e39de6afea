//! Which shards have posted datagrams that no turn has sent yet.
//!
//! A NIC reads the buffers of a request within microseconds of its doorbell, and some programs rely on that: when the reply to a datagram
//! arrives, they reuse the datagram's buffer before its completion (UCX does, when two connection requests cross). In this stack a turn
//! of the shard reads the buffer, and a poll that finds completions makes no turn. So such a poll checks here for unsent datagrams, and
//! sends them before it returns.

use core::sync::atomic::{AtomicU32, Ordering};

use crossbeam_utils::CachePadded;

/// One bit for each shard: set while the shard may have unsent datagrams.
#[derive(Debug, Default)]
pub struct Unsent(CachePadded<AtomicU32>);

impl Unsent {
    /// Marks a shard, because a datagram was posted to one of its queue pairs.
    #[inline]
    pub fn add(&self, shard: u8) {
        let bit = 1 << shard;
        if self.0.load(Ordering::Relaxed) & bit == 0 {
            self.0.fetch_or(bit, Ordering::Relaxed);
        }
    }

    /// The marked shards among `shards`. Both are bit masks.
    #[inline]
    pub fn among(&self, shards: u32) -> u32 {
        self.0.load(Ordering::Relaxed) & shards
    }

    /// Clears the marks of `shards`, a bit mask. Call it before a turn of them: the turn finds everything that was posted before.
    pub fn clear(&self, shards: u32) {
        self.0.fetch_and(!shards, Ordering::Relaxed);
    }
}
