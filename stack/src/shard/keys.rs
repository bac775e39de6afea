//! Keys within a turn: what is known of those in use, and what waits until no shard uses one that was revoked.
//!
//! Each shard has a number in [`Shared::turning`](super::Shared) that tells whether it is in a turn; every turn writes it. A
//! lookup is good until the end of its turn; so a revoked key is out of use when each shard has passed the end of the turn in
//! which it may have found it alive.

use core::sync::atomic::{AtomicU32, Ordering};

use arrayvec::ArrayVec;
use crossbeam_utils::CachePadded;

use super::copy::{LocalProtection, Memory};
use crate::config::SHARDS_MAX;
use crate::mem::{Access, KnownKey, Sge};
use crate::sync::asymmetric::{heavy, light};

/// For each shard of a device, a number that is odd during its turns and moves on at each end of one.
type Turning = [CachePadded<AtomicU32>];

#[derive(Debug)]
pub(super) struct Keys {
    /// Address behind the bytes that were placed last: a hint of where the next ones go.
    pub placed_to: u64,
    /// What is known of the key that was scattered to last in this turn.
    known: KnownKey,
    /// Completions wait for other shards: see [`Keys::settle`].
    settling: bool,
    /// A key was revoked since the last look at the other shards.
    revoked: bool,
    /// Other shards that were in a turn when a key was revoked, and which turn it was.
    unsettled: ArrayVec<(usize, u32), SHARDS_MAX>,
}

impl Keys {
    pub fn new() -> Self {
        Self {
            placed_to: 0,
            known: KnownKey::new(Access::LOCAL_WRITE),
            settling: false,
            revoked: false,
            unsettled: ArrayVec::new(),
        }
    }

    /// From here to [`Keys::end_turn`] keys are looked up and used, by shard `id`.
    #[inline]
    pub fn begin_turn(&self, turning: &Turning, id: usize) {
        let turn = &turning[id];
        turn.store(turn.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
        if turning.len() > 1 {
            light(); // before the first lookup: pairs with the fence in `settle`
        }
    }

    /// Nothing that was looked up in this turn is used any more.
    #[inline]
    pub fn end_turn(&mut self, turning: &Turning, id: usize) {
        self.known.forget();
        let turn = &turning[id];
        turn.store(turn.load(Ordering::Relaxed).wrapping_add(1), Ordering::Release);
    }

    /// [`Memory::scatter`], with what is known of this turn's keys. Notes where the next bytes are likely to go.
    #[inline(always)]
    pub fn scatter(
        &mut self,
        memory: Memory<'_>,
        sges: &[Sge],
        offset: u64,
        from: &[u8],
        last: bool,
    ) -> Result<(), LocalProtection> {
        self.placed_to = memory.scatter(&mut self.known, sges, offset, from, last)?;
        Ok(())
    }

    /// A key may have been revoked in this turn: completions, which may report that, wait until no other shard uses it.
    pub fn note_revoked(&mut self) {
        (self.revoked, self.settling) = (true, true);
    }

    /// Whether completions wait until no other shard uses a key that was revoked.
    #[inline]
    pub fn settling(&self) -> bool {
        self.settling
    }

    /// Whether each other shard has passed the end of the turn in which it may have found a revoked key alive. The heavy half
    /// of the asymmetric fence lies between the revocation and the look at their turns.
    #[cold]
    pub fn settle(&mut self, turning: &Turning, id: usize) -> bool {
        if self.revoked {
            self.revoked = false;
            self.unsettled.clear();
            if turning.len() > 1 {
                heavy();
                let others = turning.iter().enumerate().filter(|(shard, _)| *shard != id);
                let turns = others.map(|(shard, turn)| (shard, turn.load(Ordering::Acquire)));
                self.unsettled.extend(turns.filter(|(_, turn)| turn % 2 != 0));
            }
        }
        self.unsettled.retain(|(shard, turn)| turning[*shard].load(Ordering::Acquire) == *turn);
        self.settling = !self.unsettled.is_empty();
        !self.settling
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    // A revocation is settled when every shard that was in a turn then has ended it, whatever it began since.
    #[test]
    fn a_revocation_waits_for_the_turns_of_its_time() {
        let turning: [CachePadded<AtomicU32>; 3] = Default::default();
        let (mut ours, mut other) = (Keys::new(), Keys::new());
        other.begin_turn(&turning, 2);
        ours.begin_turn(&turning, 0);
        assert!(!ours.settling());
        ours.note_revoked();
        assert!(ours.settling());
        assert!(!ours.settle(&turning, 0), "shard 2 may use it");
        other.end_turn(&turning, 2);
        other.begin_turn(&turning, 2);
        assert!(ours.settle(&turning, 0) && !ours.settling(), "its next turn finds the key gone");
        ours.note_revoked();
        assert!(!ours.settle(&turning, 0), "another key");
    }

    #[test]
    fn a_shard_alone_waits_for_nobody() {
        let turning: [CachePadded<AtomicU32>; 1] = Default::default();
        let mut keys = Keys::new();
        keys.begin_turn(&turning, 0);
        keys.note_revoked();
        assert!(keys.settle(&turning, 0));
    }
}
