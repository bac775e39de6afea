//! Keys within a turn: a cache of the key in use, and the grace period of revoked keys.
//!
//! This is user-space RCU by quiescent states (QSBR: Desnoyers and others, "User-Level Implementations of Read-Copy Update", 2012). A
//! turn is a read-side critical section: a key that was looked up is valid until the turn ends. Between two turns a shard is in a
//! quiescent state. So the grace period of a revoked key is over when each shard that was in a turn at the revocation has ended that
//! turn: no shard uses the key any more. Each shard has a number in [`Shared::turn_counters`](super::Shared) that is odd in a turn.
//!
//! The completion of a work request that revokes a key waits here for the grace period, while turns go on. A control call waits for
//! it at the claims of the shards (`device/claim.rs`).

use core::sync::atomic::{AtomicU32, Ordering};

use arrayvec::ArrayVec;
use crossbeam_utils::CachePadded;

use super::copy::{LocalProtection, Memory};
use crate::config::SHARDS_MAX;
use crate::mem::{Access, CachedKey, Sge};
use crate::sync::asymmetric::{heavy, light};

/// For each shard of a device, a number that is odd during its turns and increases when one begins and when it ends.
type TurnCounters = [CachePadded<AtomicU32>];

#[derive(Debug)]
pub(super) struct Keys {
    /// The address behind the bytes that were placed last: a hint where the next bytes go.
    pub placed_to: u64,
    /// The cached check of the key of the last scatter in this turn.
    cached: CachedKey,
    /// Completions wait for a grace period: see [`Keys::poll_grace_period`].
    in_grace_period: bool,
    /// A key was revoked since the turns of the other shards were last read.
    revoked: bool,
    /// Other shards that were in a turn when a key was revoked and have not ended it, each with the number of that turn.
    readers: ArrayVec<(usize, u32), SHARDS_MAX>,
}

impl Keys {
    pub fn new() -> Self {
        Self {
            placed_to: 0,
            cached: CachedKey::new(Access::LOCAL_WRITE),
            in_grace_period: false,
            revoked: false,
            readers: ArrayVec::new(),
        }
    }

    /// Begins a turn: shard `id` looks up and uses keys until [`Keys::end_turn`].
    #[inline]
    pub fn begin_turn(&self, turn_counters: &TurnCounters, id: usize) {
        let turn = &turn_counters[id];
        turn.store(turn.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
        if turn_counters.len() > 1 {
            light(); // before the first lookup: pairs with the fence in `poll_grace_period`
        }
    }

    /// Ends a turn: keys that were looked up in it are no longer used.
    #[inline]
    pub fn end_turn(&mut self, turn_counters: &TurnCounters, id: usize) {
        self.cached.forget();
        let turn = &turn_counters[id];
        turn.store(turn.load(Ordering::Relaxed).wrapping_add(1), Ordering::Release);
    }

    /// [`Memory::scatter`], with the cached key of this turn. Notes where the next bytes are likely to go.
    #[inline(always)]
    pub fn scatter(
        &mut self,
        memory: Memory<'_>,
        sges: &[Sge],
        offset: u64,
        from: &[u8],
        last: bool,
    ) -> Result<(), LocalProtection> {
        self.placed_to = memory.scatter(&mut self.cached, sges, offset, from, last)?;
        Ok(())
    }

    /// Notes that a key may have been revoked in this turn: completions, which may report the revocation, wait for its grace period.
    pub fn note_revoked(&mut self) {
        (self.revoked, self.in_grace_period) = (true, true);
    }

    /// Whether completions wait for a grace period.
    #[inline]
    pub fn in_grace_period(&self) -> bool {
        self.in_grace_period
    }

    /// Whether the grace period of the revoked keys is over. The heavy half of the asymmetric fence lies between the revocation and the
    /// reads of the other shards' turns.
    #[cold]
    pub fn poll_grace_period(&mut self, turn_counters: &TurnCounters, id: usize) -> bool {
        if self.revoked {
            self.revoked = false;
            self.readers.clear();
            if turn_counters.len() > 1 {
                heavy();
                let others = turn_counters.iter().enumerate().filter(|(shard, _)| *shard != id);
                let turns = others.map(|(shard, turn)| (shard, turn.load(Ordering::Acquire)));
                self.readers.extend(turns.filter(|(_, turn)| turn % 2 != 0));
            }
        }
        self.readers.retain(|(shard, turn)| turn_counters[*shard].load(Ordering::Acquire) == *turn);
        self.in_grace_period = !self.readers.is_empty();
        !self.in_grace_period
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    // A grace period is over when every shard that was in a turn at the revocation has ended that turn, whatever it has begun since.
    #[test]
    fn a_revocation_waits_for_the_turns_of_its_time() {
        let turn_counters: [CachePadded<AtomicU32>; 3] = Default::default();
        let (mut ours, mut other) = (Keys::new(), Keys::new());
        other.begin_turn(&turn_counters, 2);
        ours.begin_turn(&turn_counters, 0);
        assert!(!ours.in_grace_period());
        ours.note_revoked();
        assert!(ours.in_grace_period());
        assert!(!ours.poll_grace_period(&turn_counters, 0), "shard 2 may use it");
        other.end_turn(&turn_counters, 2);
        other.begin_turn(&turn_counters, 2);
        assert!(
            ours.poll_grace_period(&turn_counters, 0) && !ours.in_grace_period(),
            "its next turn finds the key gone"
        );
        ours.note_revoked();
        assert!(!ours.poll_grace_period(&turn_counters, 0), "another key");
    }

    #[test]
    fn a_shard_alone_waits_for_nobody() {
        let turn_counters: [CachePadded<AtomicU32>; 1] = Default::default();
        let mut keys = Keys::new();
        keys.begin_turn(&turn_counters, 0);
        keys.note_revoked();
        assert!(keys.poll_grace_period(&turn_counters, 0));
    }
}
