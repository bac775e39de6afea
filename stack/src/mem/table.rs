//! The table of memory regions: keys in, host addresses out.
//!
//! # Keys
//!
//! A key is the slot's index in its upper 16 bits and a tag in its lower 16. The tag is the slot's generation
//! under a permutation of the 16-bit numbers that is drawn from the random number of the slot's first
//! registration: tags look random to whoever does not know it, and as a permutation repeats nothing, a key that
//! was revoked matches again only after its slot was registered 2^16 times. Slots are used in the order in
//! which they became free, so that takes 2^16 registrations of every slot when the others are free too. Zero is
//! never a key.
//!
//! # Why a lookup cannot mix two registrations
//!
//! A slot is a handful of atomics. [`MrTable::register`] stores the fields, then the key with release order; a
//! lookup loads the key with acquire order, compares all 32 bits, then loads the fields: it sees those of that
//! key or of a later registration of the slot. There is no later one before [`MrTable::reclaim`], and `reclaim`
//! is called only after every shard has passed a turn boundary since [`MrTable::revoke`]. A lookup belongs to a
//! turn. One that found the key alive began before the revocation was visible to its shard, and its turn,
//! including every copy that relies on the answer, is over when that shard passes the boundary; one that begins
//! later finds the key gone. The boundary (the claim of the shard, taken and given back) also orders the loads of
//! that turn before the stores of the next registration. Whoever looks up keys without turning a shard must
//! hold the claim of one.

use super::Access;
use crate::config::MR_MAX;
use crate::id::PdId;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

const TAG_BITS: u32 = 16;
const CHUNK_LOG2: usize = 10;
/// Slots that are allocated together.
const CHUNK: usize = 1 << CHUNK_LOG2;
const CHUNKS: usize = MR_MAX / CHUNK;
/// In the key field of a slot: nothing is registered.
const NO_KEY: u32 = 0;

const _: () = assert!(MR_MAX <= 1 << (32 - TAG_BITS), "a key names every slot");
const _: () = assert!(MR_MAX % CHUNK == 0);
const _: () = assert!(size_of::<Slot>() == 32, "two slots a cache line");

/// Why a registration or deregistration was refused: the caller is wrong, or the table is full.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum MemError {
    /// Remote write or remote atomic access without local write, or an unknown right.
    #[error("access flags do not go together: what the peer may write needs local write access")]
    InvalidAccess,
    /// The region reaches past the end of the address space.
    #[error("the region wraps around the end of the address space")]
    InvalidRange,
    /// Every slot is registered, or waits for its reclaim.
    #[error("the table of memory regions is full")]
    Full,
    /// No region with this key is registered.
    #[error("no memory region has this key")]
    UnknownKey,
}

/// Why a key does not grant an access, in the order of the checks (IBA 9.7.4.1.5, 9.7.5.2.4).
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum KeyFault {
    /// No region with this key is registered (any more).
    #[error("no memory region has this key")]
    UnknownKey,
    /// The region belongs to another protection domain.
    #[error("the memory region belongs to another protection domain")]
    WrongPd,
    /// The region does not allow this kind of access.
    #[error("the memory region does not allow this access")]
    NoAccess,
    /// The range is not inside the region.
    #[error("the range is not inside the memory region")]
    OutOfRange,
}

/// One region. Written by `register` while no lookup can find it.
#[derive(Default)]
#[repr(C, align(32))]
struct Slot {
    /// The key of the region that is registered here, or `NO_KEY`.
    key: AtomicU32,
    pd: AtomicU32,
    access: AtomicU32,
    /// Host address of the first byte.
    addr: AtomicU64,
    /// Length in bytes; `addr + len` does not overflow.
    len: AtomicU64,
}

/// What only registration needs to know of a slot.
struct Issue {
    /// Key of the permutation that makes tags of generations.
    secret: u32,
    /// Of the next registration.
    generation: u16,
    /// The key that was given out and not yet reclaimed.
    key: Option<u32>,
}

/// Who gets which slot next.
struct Free {
    /// Slots that were used before and may be used again, longest free first.
    queue: VecDeque<u16>,
    /// One entry for each slot that was ever used. Those beyond have been free for longer than any in `queue`.
    issues: Vec<Issue>,
}

/// Every memory region of a device. Control threads register and revoke; every shard looks up, without a lock.
pub struct MrTable {
    chunks: [OnceLock<Box<[Slot]>>; CHUNKS],
    free: Mutex<Free>,
}

impl Default for MrTable {
    fn default() -> Self {
        Self::new()
    }
}

impl MrTable {
    /// An empty table. Memory is allocated as slots come into use, 32 KiB at a time.
    pub fn new() -> Self {
        Self {
            chunks: [const { OnceLock::new() }; CHUNKS],
            free: Mutex::new(Free { queue: VecDeque::new(), issues: Vec::new() }),
        }
    }

    /// Registers `len` bytes at host address `addr` for protection domain `pd` and returns the key, which
    /// serves as lkey and rkey. With [`Access::ZERO_BASED`] lookups name bytes by their offset, else by their
    /// host address. `random` comes from the operating system's randomness. A region of length zero is allowed
    /// and grants nothing.
    ///
    /// # Errors
    /// [`MemError::InvalidAccess`], [`MemError::InvalidRange`], [`MemError::Full`].
    pub fn register(
        &self,
        pd: PdId,
        addr: u64,
        len: u64,
        access: Access,
        random: u32,
    ) -> Result<u32, MemError> {
        if !access.is_valid() {
            return Err(MemError::InvalidAccess);
        }
        addr.checked_add(len).ok_or(MemError::InvalidRange)?;
        let (index, key) = self.free().issue(random).ok_or(MemError::Full)?;

        let chunk =
            self.chunks[index >> CHUNK_LOG2].get_or_init(|| (0..CHUNK).map(|_| Slot::default()).collect());
        let slot = &chunk[index & (CHUNK - 1)];
        slot.pd.store(pd.0, Ordering::Relaxed);
        slot.access.store(access.bits(), Ordering::Relaxed);
        slot.addr.store(addr, Ordering::Relaxed);
        slot.len.store(len, Ordering::Relaxed);
        slot.key.store(key, Ordering::Release);
        Ok(key)
    }

    /// Takes the key away: no lookup that begins after this finds it. A lookup that is under way may still
    /// succeed, so the memory is in use until every shard has passed a turn boundary; then [`MrTable::reclaim`].
    ///
    /// # Errors
    /// [`MemError::UnknownKey`] if no region has this key, as after an earlier revocation: of several threads
    /// that revoke a key one succeeds.
    pub fn revoke(&self, key: u32) -> Result<(), MemError> {
        let slot = self.slot(key).filter(|_| key != NO_KEY).ok_or(MemError::UnknownKey)?;
        slot.key
            .compare_exchange(key, NO_KEY, Ordering::AcqRel, Ordering::Relaxed)
            .map(|_| ())
            .map_err(|_| MemError::UnknownKey)
    }

    /// Lets the slot of a revoked key be used again, under a new generation. To be called once, after every
    /// shard has passed a turn boundary since the revocation.
    ///
    /// # Panics
    /// If the key was not revoked, or was reclaimed before.
    pub fn reclaim(&self, key: u32) {
        let live = self.slot(key).is_none_or(|slot| slot.key.load(Ordering::Acquire) == key);
        let returned = !live && self.free().put_back(key);
        assert!(returned, "reclaimed a key that is not revoked");
    }

    /// Whether `key` grants `need` on the `len` bytes at `va`, and where they are: the host address of the first.
    ///
    /// `need` is what the operation does: [`Access::REMOTE_WRITE`], [`Access::REMOTE_READ`],
    /// [`Access::REMOTE_ATOMIC`] for the peer's requests, [`Access::LOCAL_WRITE`] for what is scattered locally,
    /// the empty set for what is gathered. The answer holds until the end of the turn.
    ///
    /// Length zero: the address may be anything from the first byte to one past the last. Requests of length
    /// zero are not to be checked at all (IBA C9-88), which is the caller's to know. So is alignment.
    ///
    /// # Errors
    /// The first of [`KeyFault::UnknownKey`], [`KeyFault::WrongPd`], [`KeyFault::NoAccess`],
    /// [`KeyFault::OutOfRange`] that applies.
    #[inline]
    pub fn check(&self, key: u32, pd: PdId, need: Access, va: u64, len: u64) -> Result<u64, KeyFault> {
        let slot = self.slot(key).ok_or(KeyFault::UnknownKey)?;
        if slot.key.load(Ordering::Acquire) != key || key == NO_KEY {
            return Err(KeyFault::UnknownKey);
        }
        if slot.pd.load(Ordering::Relaxed) != pd.0 {
            return Err(KeyFault::WrongPd);
        }
        let access = slot.access.load(Ordering::Relaxed);
        if access & need.bits() != need.bits() {
            return Err(KeyFault::NoAccess);
        }
        let addr = slot.addr.load(Ordering::Relaxed);
        let size = slot.len.load(Ordering::Relaxed);
        let start = if access & Access::ZERO_BASED.bits() != 0 { 0 } else { addr };
        // An address before the start gives an offset of at least 2^64 - start, which is above size because
        // start + size is below 2^64.
        let offset = va.wrapping_sub(start);
        if offset > size || len > size - offset {
            return Err(KeyFault::OutOfRange);
        }
        Ok(addr + offset)
    }

    #[inline]
    fn slot(&self, key: u32) -> Option<&Slot> {
        let index = (key >> TAG_BITS) as usize;
        Some(&self.chunks.get(index >> CHUNK_LOG2)?.get()?[index & (CHUNK - 1)])
    }

    /// No code panics while it holds the lock, so a poisoned one would still guard a whole list.
    fn free(&self) -> MutexGuard<'_, Free> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Free {
    /// The slot that has been free for longest, and its key.
    fn issue(&mut self, random: u32) -> Option<(usize, u32)> {
        let index = if self.issues.len() < MR_MAX {
            // A generation to start from and a secret that does not give it away.
            let secret = random.wrapping_mul(0x9e37_79b1) ^ random >> 15;
            self.issues.push(Issue { secret, generation: random as u16, key: None });
            self.issues.len() - 1
        } else {
            self.queue.pop_front()? as usize
        };
        let issue = &mut self.issues[index];
        let mut key = NO_KEY;
        // Twice at most: one tag of slot 0 would make the key zero.
        while key == NO_KEY {
            key = (index as u32) << TAG_BITS | permute(issue.generation, issue.secret) as u32;
            issue.generation = issue.generation.wrapping_add(1);
        }
        issue.key = Some(key);
        Some((index, key))
    }

    /// Whether the key was out.
    fn put_back(&mut self, key: u32) -> bool {
        let index = key >> TAG_BITS;
        match self.issues.get_mut(index as usize) {
            Some(issue) if issue.key == Some(key) => {
                issue.key = None;
                self.queue.push_back(index as u16);
                true
            }
            _ => false,
        }
    }
}

/// A permutation of the 16-bit numbers chosen by `secret`: a Feistel network over two bytes.
fn permute(x: u16, secret: u32) -> u16 {
    let [mut left, mut right] = x.to_be_bytes();
    for round in 0..6u32 {
        let mixed = (secret.rotate_left(round * 5) ^ right as u32 ^ round << 8).wrapping_mul(0x85eb_ca6b);
        let mixed = (mixed ^ mixed >> 15).wrapping_mul(0xc2b2_ae35);
        (left, right) = (right, left ^ (mixed >> 24) as u8);
    }
    u16::from_be_bytes([left, right])
}
