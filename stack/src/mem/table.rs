//! The table of keys: keys in, host addresses out.
//!
//! # Keys
//!
//! A key has the slot's index in its upper 16 bits and a tag in its lower 16. The tag is the slot's generation under a permutation that is
//! drawn from the random number of the slot's first use. So tags look random to an attacker, and a revoked key matches again only after its
//! slot was used 2^16 times. Slots that were never used are drawn at random, so an attacker has to guess both slot and tag. After that,
//! slots are reused in the order in which they became free: if all others are free, a key returns only after 2^16 uses of each. Zero is
//! never a key.
//!
//! Memory windows and fast-registration regions are *variable*: the low 8 bits of their key belong to the user, and the tag has 8 bits.
//! Nevertheless all 32 bits are compared. Variable keys get slots that had variable keys before, as long as there are any, so that neither
//! kind meets the stale keys of the other. See [`variable`](super::variable).
//!
//! # Why a lookup cannot mix two registrations
//!
//! Slots are reclaimed as memory is in read-copy-update, by quiescent states (McKenney and Slingwine, "Read-Copy Update: Using
//! Execution History to Solve Concurrency Problems", 1998; QSBR in Desnoyers et al., "User-Level Implementations of Read-Copy
//! Update", 2012). A turn is the read-side critical section of its lookups and of every copy that relies on them, and its end, the
//! turn boundary, is a quiescent state of the shard. The grace period of a revocation is over when every shard has passed one:
//! [`TurnsPassed`] proves that.
//!
//! A slot is a handful of atomics. [`MrTable::register`] stores the fields, then the key with release order; a lookup loads the
//! key with acquire order, compares all 32 bits, then loads the fields: it sees those of that key or of a later registration of
//! the slot. There is no later one before [`MrTable::reclaim`] (or [`MrTable::restore`]), which comes after the grace period of
//! [`MrTable::revoke`]. A lookup that found the key alive began before the revocation was visible to its shard, so its turn is
//! over then; one that begins later finds the key gone. The boundary (the claim of the shard, taken and released) also orders the
//! loads of that turn before the stores of the next registration. A thread that looks up keys outside of a turn must hold the
//! claim of a shard.
//!
//! Work requests give a variable slot its key and take it away, without a grace period in between. So such a slot is a seqlock: it has a
//! version, which is odd while the slot changes (Boehm, "Can Seqlocks Get Along with Programming Language Memory Models?", 2012). A lookup
//! that finds the mark of a variable slot reads everything once more, between two reads of the version. If the version changed, the lookup
//! does not try again, as most readers of a seqlock do. It fails, since the key was gone for a moment. For an ordinary region the mark
//! costs nothing, as it is part of the mask with which the rights are compared.
//!
//! # Why memory outlives its keys
//!
//! A window grants memory of a region; the region counts its windows, and is neither deregistered nor invalidated while it has
//! some (or takes them with it, when its owner drops it). So any address that a lookup has returned belongs to a region whose
//! key, and whose windows' keys, are revoked before the turn boundary that ends its life. A work request that takes a key away
//! revokes it at once; its completion waits for the turn boundary of the other shards, so that after the completion no shard uses
//! the key any more (see `shard`).
//!
//! Everything except a lookup takes the table's lock. No code blocks while it holds the lock.

use super::access::Access;
use super::allocator::{KeyAllocator, SlotKind, SlotRecord};
use super::key::{NO_KEY, TAG_BITS};
use super::range::{GrantedRange, TurnsPassed, UserMemory};
use crate::config::MR_MAX;
use crate::id::{PdId, Qpn};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

/// Log2 of the slots in a chunk, which is one page: slots are drawn at random, and each is likely to need a chunk of its own.
const CHUNK_LOG2: usize = 6;
/// Slots that are allocated together.
const CHUNK: usize = 1 << CHUNK_LOG2;
const CHUNKS: usize = MR_MAX / CHUNK;
/// A mark in the rights of a slot, besides those of [`Access`]: the slot is variable, or its memory is not accessed directly; a lookup
/// takes the slow path.
pub(super) const VARIABLE: u32 = 1 << 31;
/// A mark in the rights of a slot: it is a memory window, whose key grants nothing locally.
pub(super) const WINDOW: u32 = 1 << 30;
/// A mark in the rights of a slot: it is a null region, which has every address and no memory.
const NOWHERE: u32 = 1 << 29;

const _: () = assert!(MR_MAX <= 1 << (32 - TAG_BITS), "a key names every slot");
const _: () = assert!(MR_MAX.is_multiple_of(CHUNK));
const _: () = assert!(size_of::<Slot>() == 64, "a lookup touches one cache line");
const _: () = assert!(Access::all().bits() & (VARIABLE | WINDOW | NOWHERE) == 0);

/// Why a registration or deregistration was refused: a mistake of the caller, or the table is full.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MemError {
    /// Remote write or remote atomic access without local write, or an unknown right.
    #[error("access flags do not go together: what the peer may write needs local write access")]
    InvalidAccess,
    /// The region reaches past the end of the address space, by its host addresses or by those of requests.
    #[error("the region wraps around the end of the address space; choose lower addresses, or fewer bytes")]
    InvalidRange,
    /// Every slot is registered, or waits for its reclaim.
    #[error("the table of memory regions is full")]
    Full,
    /// No region with this key is registered.
    #[error("no memory region has this key")]
    UnknownKey,
    /// Memory windows are bound to the region.
    #[error("{0} memory window(s) are bound to the memory region; unbind or deallocate them first")]
    Bound(u32),
}

/// Why a key does not grant an access, in the order of the checks.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum KeyFault {
    /// No region with this key is registered (any more).
    #[error("no memory region has this key")]
    UnknownKey,
    /// The region belongs to another protection domain.
    #[error("the memory region belongs to another protection domain")]
    WrongPd,
    /// The memory window is bound to another queue pair.
    #[error("the memory window is bound to another queue pair")]
    WrongQp,
    /// The region does not allow this kind of access.
    #[error("the memory region does not allow this access")]
    NoAccess,
    /// The range is not inside the region.
    #[error("the range is not inside the memory region")]
    OutOfRange,
    /// The key is of a kind, or in a state, that does not allow this operation.
    #[error("the key is of a kind or in a state that does not allow this operation")]
    WrongState,
}

/// What a key grants.
#[derive(Clone, Copy, Debug)]
pub(super) struct Grant {
    pub pd: PdId,
    /// The rights, and the marks `VARIABLE`, `WINDOW` and `NOWHERE`.
    pub access: u32,
    /// The only queue pair that may use the key; 0 for any.
    pub qpn: u32,
    /// Address by which requests name the first byte.
    pub start: u64,
    /// Host address of the first byte.
    pub addr: u64,
    /// Length in bytes; neither `start + len` nor `addr + len` overflows.
    pub len: u64,
}

/// One region or window. Written under the table's lock, while no lookup can find it or while its version is odd.
#[derive(Default)]
#[repr(C, align(64))]
pub(super) struct Slot {
    /// The key of what is registered here, or `NO_KEY`.
    key: AtomicU32,
    pd: AtomicU32,
    access: AtomicU32,
    qpn: AtomicU32,
    start: AtomicU64,
    addr: AtomicU64,
    len: AtomicU64,
    /// Odd while a variable slot changes.
    version: AtomicU32,
}

impl Slot {
    pub fn key(&self) -> u32 {
        self.key.load(Ordering::Acquire)
    }

    /// Makes `key` grant `grant`. The slot must be a variable one, or one that no lookup can find.
    pub fn publish(&self, key: u32, grant: &Grant) {
        let version = self.version.load(Ordering::Relaxed);
        self.key.store(NO_KEY, Ordering::Relaxed);
        self.version.store(version.wrapping_add(1), Ordering::Relaxed);
        fence(Ordering::Release); // a reader that sees one of the stores below sees the odd version
        self.pd.store(grant.pd.0, Ordering::Relaxed);
        self.access.store(grant.access, Ordering::Relaxed);
        self.qpn.store(grant.qpn, Ordering::Relaxed);
        self.start.store(grant.start, Ordering::Relaxed);
        self.addr.store(grant.addr, Ordering::Relaxed);
        self.len.store(grant.len, Ordering::Relaxed);
        self.key.store(key, Ordering::Release);
        self.version.store(version.wrapping_add(2), Ordering::Release);
    }

    /// Removes the key. An error if the slot has another one.
    pub fn clear(&self, key: u32) -> Result<(), MemError> {
        self.key
            .compare_exchange(key, NO_KEY, Ordering::AcqRel, Ordering::Relaxed)
            .map(|_| ())
            .map_err(|_| MemError::UnknownKey)
    }

    /// The grant of the slot's key. Needs the table's lock if the slot is variable.
    pub fn grant(&self) -> Grant {
        Grant {
            pd: PdId(self.pd.load(Ordering::Relaxed)),
            access: self.access.load(Ordering::Relaxed),
            qpn: self.qpn.load(Ordering::Relaxed),
            start: self.start.load(Ordering::Relaxed),
            addr: self.addr.load(Ordering::Relaxed),
            len: self.len.load(Ordering::Relaxed),
        }
    }

    /// Host address of the `len` bytes at `va`.
    #[inline]
    fn place(&self, va: u64, len: u64) -> Result<GrantedRange, KeyFault> {
        let start = self.start.load(Ordering::Relaxed);
        let addr = self.addr.load(Ordering::Relaxed);
        let size = self.len.load(Ordering::Relaxed);
        place(start, addr, size, va, len)
    }

    /// Looks up a key in a variable slot, whose fields may change meanwhile.
    #[inline(never)]
    fn check_variable(
        &self,
        key: u32,
        qpn: Option<Qpn>,
        need: Access,
        va: u64,
        len: u64,
    ) -> Result<GrantedRange, KeyFault> {
        let version = self.version.load(Ordering::Acquire);
        let live = self.key.load(Ordering::Relaxed) == key;
        let access = self.access.load(Ordering::Relaxed);
        let tied = self.qpn.load(Ordering::Relaxed);
        let placed = self.place(va, len);
        fence(Ordering::Acquire);
        let changed = version & 1 != 0 || self.version.load(Ordering::Relaxed) != version;
        if !live || changed || access & WINDOW != 0 && qpn.is_none() {
            return Err(KeyFault::UnknownKey); // also if the key came back: it was gone for a moment
        }
        if tied != 0 && qpn.is_none_or(|qpn| qpn.get() != tied) {
            return Err(KeyFault::WrongQp);
        }
        if access & need.bits() != need.bits() {
            return Err(KeyFault::NoAccess);
        }
        Ok(match placed? {
            place if access & NOWHERE != 0 => place.nowhere(),
            place if access & Access::ON_DEMAND.bits() != 0 => place.by_kernel(),
            place => place,
        })
    }
}

/// Allocates a chunk of slots in which nothing is registered.
fn chunk() -> Box<[Slot; CHUNK]> {
    let slots: Box<[Slot]> = (0..CHUNK).map(|_| Slot::default()).collect();
    slots.try_into().unwrap_or_else(|_| unreachable!("collected as many slots as a chunk has"))
}

/// Every memory region and window of a device. Control threads register and revoke; every shard looks up, without a
/// lock.
pub struct MrTable {
    chunks: [OnceLock<Box<[Slot; CHUNK]>>; CHUNKS],
    allocator: Mutex<KeyAllocator>,
}

impl Default for MrTable {
    fn default() -> Self {
        Self::new()
    }
}

impl core::fmt::Debug for MrTable {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("MrTable").finish_non_exhaustive()
    }
}

/// Makes the grant of a region. Checks rights and range.
pub(super) fn region(pd: PdId, memory: UserMemory, access: Access) -> Result<Grant, MemError> {
    let (addr, len) = (memory.addr(), memory.len());
    if !access.is_valid() {
        return Err(MemError::InvalidAccess);
    }
    let start = if access.contains(Access::ZERO_BASED) { 0 } else { memory.iova() };
    addr.checked_add(len).and(start.checked_add(len)).ok_or(MemError::InvalidRange)?;
    let mark = if access.contains(Access::ON_DEMAND) { VARIABLE } else { 0 };
    Ok(Grant { pd, access: access.bits() | mark, qpn: 0, start, addr, len })
}

/// Host address of the `len` bytes at `va`, in a region of `size` bytes at host address `addr`, whose first byte requests call `start`.
#[inline(always)]
fn place(start: u64, addr: u64, size: u64, va: u64, len: u64) -> Result<GrantedRange, KeyFault> {
    // An address before the start gives an offset of at least 2^64 - start, which is above size because
    // start + size is below 2^64.
    let offset = va.wrapping_sub(start);
    if offset > size || len > size - offset {
        return Err(KeyFault::OutOfRange);
    }
    Ok(GrantedRange::found(addr.wrapping_add(offset), len))
}

/// A key's grant as found by [`MrTable::span`], valid until the end of the turn. The default has no key and no bytes.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Span {
    /// The key.
    pub(super) key: u32,
    start: u64,
    addr: u64,
    size: u64,
}

impl Span {
    /// Host address of the `len` bytes at `va`.
    #[inline(always)]
    pub(super) fn place(&self, va: u64, len: u64) -> Result<GrantedRange, KeyFault> {
        place(self.start, self.addr, self.size, va, len)
    }
}

impl MrTable {
    /// An empty table. Memory is allocated as slots come into use, 4 KiB at a time.
    pub fn new() -> Self {
        Self { chunks: [const { OnceLock::new() }; CHUNKS], allocator: Mutex::new(KeyAllocator::default()) }
    }

    /// Registers memory for protection domain `pd` and returns the key, which serves as lkey and rkey. With [`Access::ZERO_BASED`],
    /// requests name bytes by their offset, otherwise by addresses from the memory's [`iova`](UserMemory::iova) on. `random` comes from the
    /// operating system's randomness. A region of length zero is allowed and grants nothing.
    ///
    /// # Errors
    /// [`MemError::InvalidAccess`], [`MemError::InvalidRange`], [`MemError::Full`].
    pub fn register(
        &self,
        pd: PdId,
        memory: UserMemory,
        access: Access,
        random: u128,
    ) -> Result<u32, MemError> {
        self.register_grant(&region(pd, memory, access)?, random)
    }

    /// Registers a null region, which has no memory: its key grants every address to local access. Bytes scattered to it are
    /// dropped, bytes gathered from it are zeros. Peers get no access by it.
    ///
    /// # Errors
    /// [`MemError::Full`].
    pub(crate) fn register_null(&self, pd: PdId, random: u128) -> Result<u32, MemError> {
        let access = Access::LOCAL_WRITE.bits() | VARIABLE | NOWHERE;
        self.register_grant(&Grant { pd, access, qpn: 0, start: 0, addr: 0, len: u64::MAX }, random)
    }

    fn register_grant(&self, grant: &Grant, random: u128) -> Result<u32, MemError> {
        let mut allocator = self.allocator();
        let (index, key) = allocator.allocate(random, SlotKind::Region, grant.pd).ok_or(MemError::Full)?;
        self.slot_at(index).publish(key, grant);
        Ok(key)
    }

    /// Revokes a key: no lookup that begins after this finds it. A lookup that is under way may still succeed, so the memory is in use
    /// until every shard has passed a turn boundary; then call [`MrTable::reclaim`].
    ///
    /// A window or fast-registration region is named by the key that it was allocated with, with any low 8 bits. This deallocates it,
    /// whether it is registered or not; a bound window is unbound.
    ///
    /// # Errors
    /// [`MemError::UnknownKey`] if nothing has this key, as after an earlier revocation: of several threads that revoke a key, one
    /// succeeds. [`MemError::Bound`] while windows are bound to the region.
    pub(crate) fn revoke(&self, key: u32) -> Result<(), MemError> {
        self.revoke_and(key, false)
    }

    /// Same as [`MrTable::revoke`], but unbinds the windows that are bound to the region.
    ///
    /// # Errors
    /// [`MemError::UnknownKey`].
    pub(crate) fn revoke_with_windows(&self, key: u32) -> Result<(), MemError> {
        self.revoke_and(key, true)
    }

    fn revoke_and(&self, key: u32, windows: bool) -> Result<(), MemError> {
        let mut allocator = self.allocator();
        let index = (key >> TAG_BITS) as usize;
        let record = allocator.record_of_key(key).ok_or(MemError::UnknownKey)?;
        if record.windows > 0 {
            if !windows {
                return Err(MemError::Bound(record.windows));
            }
            self.unbind_all(&mut allocator, |record| record.region == Some(index as u16));
        }
        let slot = self.slot_at(index);
        let record = allocator.record_of_key(key).ok_or(MemError::UnknownKey)?;
        if record.kind == SlotKind::Region {
            return slot.clear(key);
        }
        record.kind = SlotKind::Retired;
        let live = slot.key();
        if live != NO_KEY {
            slot.clear(live)?;
        }
        allocator.unbind(index);
        Ok(())
    }

    /// Lets the slot of a revoked key be used again, with a new generation. Call it once; `_passed` proves that every shard has passed a
    /// turn boundary since the revocation.
    ///
    /// # Panics
    /// If the key was not revoked, or was reclaimed before.
    pub(crate) fn reclaim(&self, key: u32, _passed: TurnsPassed) {
        let mut allocator = self.allocator();
        let live = self.slot(key).is_none_or(|slot| slot.key() != NO_KEY);
        let returned = !live && allocator.put_back(key);
        assert!(returned, "reclaimed a key that is not revoked");
    }

    /// Re-registration: gives a revoked region its key back, with new contents. `_passed` proves that every shard has passed a
    /// turn boundary since the revocation.
    ///
    /// # Errors
    /// Those of [`MrTable::register`]; nothing has changed then.
    ///
    /// # Panics
    /// If the key was not revoked.
    pub fn restore(
        &self,
        key: u32,
        pd: PdId,
        memory: UserMemory,
        access: Access,
        _passed: TurnsPassed,
    ) -> Result<(), MemError> {
        let grant = region(pd, memory, access)?;
        let mut allocator = self.allocator();
        let record = allocator.record_of_key(key).filter(|record| record.kind == SlotKind::Region);
        let slot = self.slot_at((key >> TAG_BITS) as usize);
        assert!(record.is_some() && slot.key() == NO_KEY, "restored a key that is not revoked");
        slot.publish(key, &grant);
        Ok(())
    }

    /// Checks whether `key` grants `need` on the `len` bytes at `va` to local access. Returns their host address. Keys of memory windows
    /// grant nothing here.
    ///
    /// `need` is what the operation does: [`Access::LOCAL_WRITE`] for what is scattered locally, the empty set for
    /// what is gathered. The answer holds until the end of the turn.
    ///
    /// If `len` is zero, `va` may be any address from the first byte to one past the last. The caller does not call this for requests of
    /// length zero (IBA C9-88), and checks alignment itself.
    ///
    /// # Errors
    /// The first of [`KeyFault::UnknownKey`], [`KeyFault::WrongPd`], [`KeyFault::NoAccess`],
    /// [`KeyFault::OutOfRange`] that applies.
    #[inline]
    pub fn check(
        &self,
        key: u32,
        pd: PdId,
        need: Access,
        va: u64,
        len: u64,
    ) -> Result<GrantedRange, KeyFault> {
        self.look_up(key, pd, None, need, va, len)
    }

    /// The whole range on which `key` grants `need` to local access, for callers that use one key many times in a turn. After `None`,
    /// [`MrTable::check`] may still succeed: a variable key has no span.
    #[inline]
    pub(super) fn span(&self, key: u32, pd: PdId, need: Access) -> Option<Span> {
        let slot = self.slot(key)?;
        let good = slot.key() == key
            && key != NO_KEY
            && slot.pd.load(Ordering::Relaxed) == pd.0
            && slot.access.load(Ordering::Relaxed) & (need.bits() | VARIABLE) == need.bits();
        good.then(|| Span {
            key,
            start: slot.start.load(Ordering::Relaxed),
            addr: slot.addr.load(Ordering::Relaxed),
            size: slot.len.load(Ordering::Relaxed),
        })
    }

    /// Same as [`MrTable::check`], for a request of the peer to queue pair `qpn`. `need` is [`Access::REMOTE_WRITE`],
    /// [`Access::REMOTE_READ`], [`Access::REMOTE_ATOMIC`] or a right to flush, and `key` may be that of a memory window.
    ///
    /// # Errors
    /// Those of [`MrTable::check`], and [`KeyFault::WrongQp`] if a window is bound to another queue pair.
    #[inline]
    pub fn check_remote(
        &self,
        key: u32,
        pd: PdId,
        qpn: Qpn,
        need: Access,
        va: u64,
        len: u64,
    ) -> Result<GrantedRange, KeyFault> {
        self.look_up(key, pd, Some(qpn), need, va, len)
    }

    /// Same as [`MrTable::check_remote`], for all of the memory that the key names.
    ///
    /// # Errors
    /// Those of [`MrTable::check_remote`].
    pub(crate) fn check_whole(&self, key: u32, pd: PdId, qpn: Qpn, need: Access) -> Result<(), KeyFault> {
        let start = self.slot(key).ok_or(KeyFault::UnknownKey)?.start.load(Ordering::Relaxed);
        self.check_remote(key, pd, qpn, need, start, 0).map(|_| ())
    }

    #[inline]
    pub(super) fn look_up(
        &self,
        key: u32,
        pd: PdId,
        qpn: Option<Qpn>,
        need: Access,
        va: u64,
        len: u64,
    ) -> Result<GrantedRange, KeyFault> {
        let slot = self.slot(key).ok_or(KeyFault::UnknownKey)?;
        if slot.key() != key || key == NO_KEY {
            return Err(KeyFault::UnknownKey);
        }
        if slot.pd.load(Ordering::Relaxed) != pd.0 {
            return Err(KeyFault::WrongPd);
        }
        let access = slot.access.load(Ordering::Relaxed);
        if access & (need.bits() | VARIABLE) != need.bits() {
            if access & VARIABLE != 0 {
                return slot.check_variable(key, qpn, need, va, len);
            }
            return Err(KeyFault::NoAccess);
        }
        slot.place(va, len)
    }

    #[inline]
    pub(super) fn slot(&self, key: u32) -> Option<&Slot> {
        let index = (key >> TAG_BITS) as usize;
        Some(&self.chunks.get(index >> CHUNK_LOG2)?.get()?[index & (CHUNK - 1)])
    }

    /// The slot with this index; allocates its chunk if necessary.
    pub(super) fn slot_at(&self, index: usize) -> &Slot {
        &self.chunks[index >> CHUNK_LOG2].get_or_init(chunk)[index & (CHUNK - 1)]
    }

    /// Locks the allocator of keys. No code panics while it holds the lock, so a poisoned one would still guard consistent lists.
    pub(super) fn allocator(&self) -> MutexGuard<'_, KeyAllocator> {
        self.allocator.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Unbinds the windows for which `which` is true.
    pub(super) fn unbind_all(&self, allocator: &mut KeyAllocator, which: impl Fn(&SlotRecord) -> bool) {
        for index in allocator.bound_slots(which) {
            let slot = self.slot_at(index);
            // Cannot fail: under the lock no other thread takes the key away.
            let _ = slot.clear(slot.key());
            allocator.unbind(index);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::allocator::permute;
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashSet;
    use std::sync::atomic::AtomicBool;

    const PD: PdId = PdId(7);
    const ALL: Access = Access::LOCAL_WRITE
        .union(Access::REMOTE_WRITE)
        .union(Access::REMOTE_READ)
        .union(Access::REMOTE_ATOMIC);

    fn at(addr: u64, len: u64) -> UserMemory {
        UserMemory::nowhere(addr, len)
    }

    /// Makes 128 bits of 32.
    fn spread(n: u32) -> u128 {
        u128::from(n) << 96 | u128::from(n.rotate_left(13)) << 64 | u128::from(n.rotate_left(7)) << 20
    }

    fn renew(table: &MrTable, key: u32, addr: u64, random: u128) -> u32 {
        table.revoke(key).unwrap();
        table.reclaim(key, TurnsPassed::without_shards());
        table.register(PD, at(addr, 64), ALL, random).unwrap()
    }

    #[test]
    fn checks_in_order() {
        let t = MrTable::new();
        let key = t.register(PD, at(0x1000, 0x100), Access::REMOTE_READ, 0x1234_5678).unwrap();
        let check = |key, pd, need, va, len| t.check(key, pd, need, va, len).map(GrantedRange::addr);
        assert_eq!(check(key, PD, Access::REMOTE_READ, 0x1000, 0x100), Ok(0x1000));
        assert_eq!(check(key, PD, Access::empty(), 0x10ff, 1), Ok(0x10ff));
        // Everything is wrong: the key comes first, then the domain, the right, the range.
        assert_eq!(check(key ^ 1, PdId(8), Access::REMOTE_WRITE, 0, 1), Err(KeyFault::UnknownKey));
        assert_eq!(check(key ^ 1 << 31, PD, Access::empty(), 0x1000, 1), Err(KeyFault::UnknownKey));
        assert_eq!(check(0, PD, Access::empty(), 0x1000, 1), Err(KeyFault::UnknownKey));
        assert_eq!(check(key, PdId(8), Access::REMOTE_WRITE, 0, 1), Err(KeyFault::WrongPd));
        assert_eq!(check(key, PD, Access::REMOTE_WRITE, 0, 1), Err(KeyFault::NoAccess));
        assert_eq!(
            check(key, PD, Access::REMOTE_READ | Access::LOCAL_WRITE, 0x1000, 1),
            Err(KeyFault::NoAccess)
        );
        assert_eq!(check(key, PD, Access::REMOTE_READ, 0xfff, 1), Err(KeyFault::OutOfRange));
    }

    #[test]
    fn edges_of_the_range() {
        let t = MrTable::new();
        let high = u64::MAX - 0x100;
        for (addr, len) in [(0x1000, 0x100), (0, 0x100), (high, 0x100), (0x1000, 0), (0, u64::MAX)] {
            let key = t.register(PD, at(addr, len), Access::empty(), 1).unwrap();
            let ok = |va: u64, n| t.check(key, PD, Access::empty(), va, n) == Ok(GrantedRange::found(va, n));
            assert!(ok(addr, len) && ok(addr, 0) && ok(addr + len, 0));
            assert_eq!(ok(addr, 1), len > 0);
            assert!(!ok(addr + len, 1) && !ok(addr + len, u64::MAX) && !ok(u64::MAX, u64::MAX));
            if let Some(longer) = len.checked_add(1) {
                assert!(!ok(addr, longer));
                // The bytes beside the region, around the end of the address space too.
                let (before, behind) = (addr.wrapping_sub(1), (addr + len).wrapping_add(1));
                assert!([0, 1, longer].into_iter().all(|n| !ok(before, n) && !ok(behind, n)));
            }
        }
        let end = t.register(PD, at(u64::MAX, 1), Access::empty(), 1);
        assert_eq!(end, Err(MemError::InvalidRange));
        assert_eq!(t.register(PD, at(1, u64::MAX), Access::empty(), 1), Err(MemError::InvalidRange));
    }

    /// An attacker who knows the keys of one device, or some of a device, cannot tell where the next one is: slots differ by the
    /// random number and lie all over the range. The same numbers give the same slots.
    #[test]
    #[cfg_attr(miri, ignore = "arithmetic alone, and about the whole range")]
    fn slots_are_drawn_at_random() {
        let slots = |seed: u32| -> Vec<u32> {
            let t = MrTable::new();
            let random =
                |n: u32| (n ^ seed).wrapping_mul(0x9e37_79b9).rotate_left(7).wrapping_mul(0x85eb_ca6b);
            (1..=64).map(|n| t.register(PD, at(0, 64), ALL, spread(random(n))).unwrap() >> TAG_BITS).collect()
        };
        let (one, other) = (slots(1), slots(77));
        assert_eq!(one, slots(1));
        assert!(one.iter().zip(&other).filter(|(a, b)| a == b).count() < 4, "{one:?} {other:?}");
        for slots in [one, other] {
            let distinct: HashSet<&u32> = slots.iter().collect();
            assert_eq!(distinct.len(), slots.len());
            let eighths: HashSet<u32> = slots.iter().map(|slot| slot / (MR_MAX as u32 / 8)).collect();
            assert_eq!(eighths.len(), 8, "{slots:?}");
            let near = slots.windows(2).filter(|w| w[0].abs_diff(w[1]) < 64).count();
            assert!(near < 8, "{slots:?}");
        }
    }

    #[test]
    fn zero_based_addresses_are_offsets() {
        let t = MrTable::new();
        let key = t.register(PD, at(0x1000, 0x100), Access::ZERO_BASED, 1).unwrap();
        assert_eq!(t.check(key, PD, Access::empty(), 0, 0x100), Ok(GrantedRange::found(0x1000, 0x100)));
        assert_eq!(t.check(key, PD, Access::empty(), 0xff, 1), Ok(GrantedRange::found(0x10ff, 1)));
        assert_eq!(t.check(key, PD, Access::empty(), 0x1000, 1), Err(KeyFault::OutOfRange));
        assert_eq!(t.check(key, PD, Access::empty(), u64::MAX, 1), Err(KeyFault::OutOfRange));
    }

    #[test]
    fn rights_that_do_not_go_together() {
        let t = MrTable::new();
        for access in [Access::REMOTE_WRITE, Access::REMOTE_ATOMIC, Access::from_bits_retain(1 << 31)] {
            assert_eq!(t.register(PD, at(0, 1), access, 1), Err(MemError::InvalidAccess));
        }
    }

    #[test]
    fn revoked_once_reclaimed_once() {
        let t = MrTable::new();
        let key = t.register(PD, at(0x1000, 64), ALL, 1).unwrap();
        assert_eq!(t.revoke(key ^ 1), Err(MemError::UnknownKey));
        assert_eq!(t.revoke(u32::MAX), Err(MemError::UnknownKey));
        assert_eq!(t.revoke(NO_KEY), Err(MemError::UnknownKey));
        t.revoke(key).unwrap();
        assert_eq!(t.revoke(key), Err(MemError::UnknownKey));
        assert_eq!(t.check(key, PD, ALL, 0x1000, 1), Err(KeyFault::UnknownKey));
        t.reclaim(key, TurnsPassed::without_shards());
        let again = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            t.reclaim(key, TurnsPassed::without_shards())
        }));
        assert!(again.is_err(), "reclaimed twice");
        let live = t.register(PD, at(0x1000, 64), ALL, 1).unwrap();
        let early = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            t.reclaim(live, TurnsPassed::without_shards())
        }));
        assert!(early.is_err(), "reclaimed alive");
        assert_eq!(t.check(live, PD, ALL, 0x1000, 1), Ok(GrantedRange::found(0x1000, 1)));
    }

    /// Fills the table, so that each slot comes back as soon as it is freed, and walks one slot through every
    /// generation: no key repeats before the wrap.
    #[test]
    #[cfg_attr(miri, ignore = "fills the table: arithmetic, and too long for Miri")]
    fn stale_keys_never_match_until_the_generation_wraps() {
        let t = MrTable::new();
        let keys: Vec<u32> = (0..MR_MAX)
            .map(|i| t.register(PD, at(0, 64), ALL, spread((i as u32).wrapping_mul(0x9e37_79b9))).unwrap())
            .collect();
        assert_eq!(t.register(PD, at(0, 64), ALL, 1), Err(MemError::Full));
        let distinct: HashSet<u32> = keys.iter().copied().collect();
        assert_eq!(distinct.len(), MR_MAX);
        for slot in [0, 5] {
            let first = *keys.iter().find(|key| *key >> TAG_BITS == slot).expect("all slots are used");
            let mut seen = HashSet::from([first]);
            let mut key = first;
            // Slot 0 has one tag less, the one that would make its key zero.
            for _ in 1..(1 << TAG_BITS) - usize::from(slot == 0) {
                key = renew(&t, key, 0, 9);
                assert_eq!(key >> TAG_BITS, first >> TAG_BITS);
                assert!(seen.insert(key), "a key came back");
            }
            assert_eq!(renew(&t, key, 0, 9), first, "the generation wrapped");
            assert!(!seen.contains(&NO_KEY));
        }
    }

    #[test]
    #[cfg_attr(miri, ignore = "fills the table: arithmetic, and too long for Miri")]
    fn slots_are_reused_in_the_order_they_became_free() {
        let t = MrTable::new();
        let keys: Vec<u32> =
            (0..MR_MAX).map(|i| t.register(PD, at(0, 64), ALL, i as u128).unwrap()).collect();
        let order = [40_000, 3, 65_535, 0, 17];
        for i in order {
            t.revoke(keys[i]).unwrap();
        }
        assert_eq!(t.register(PD, at(0, 64), ALL, 1), Err(MemError::Full), "revoked is not free yet");
        for i in order {
            t.reclaim(keys[i], TurnsPassed::without_shards());
        }
        for i in order {
            assert_eq!(t.register(PD, at(0, 64), ALL, 1).unwrap() >> TAG_BITS, keys[i] >> TAG_BITS);
        }
    }

    /// Tags of one generation under different secrets, and of successive generations under one, spread.
    #[test]
    #[cfg_attr(miri, ignore = "arithmetic alone, and too long for Miri")]
    fn tags_are_a_permutation_and_spread() {
        for secret in [0, 1, 0xdead_beef << 32, u64::MAX] {
            let tags: HashSet<u16> = (0..=u16::MAX).map(|x| permute(x, secret)).collect();
            assert_eq!(tags.len(), 1 << 16);
            let mut steps: Vec<u16> =
                (0..1000u16).map(|x| permute(x + 1, secret).wrapping_sub(permute(x, secret))).collect();
            steps.sort_unstable();
            steps.dedup();
            assert!(steps.len() > 950, "{} different steps", steps.len());
        }
        for shift in [0, 32, 54] {
            let tags: HashSet<u16> = (0..1000u64).map(|secret| permute(0, secret << shift)).collect();
            assert!(tags.len() > 950, "{} different tags", tags.len());
        }
    }

    #[derive(Clone, Debug)]
    enum Op {
        Register { pd: u32, addr: u64, len: u64, access: u32, random: u128 },
        Revoke(usize),
        Reclaim(usize),
        Check { which: usize, flip: u32, pd: u32, need: u32, va: i64, len: u64 },
    }

    fn op() -> impl Strategy<Value = Op> {
        let addr = prop_oneof![0..64u64, 1000..1064u64, u64::MAX - 64..=u64::MAX];
        let len = prop_oneof![0..64u64, u64::MAX - 64..=u64::MAX];
        let flip = prop_oneof![8 => Just(0), 1 => any::<u32>(), 1 => (0..32u32).prop_map(|b| 1 << b)];
        prop_oneof![
            (0..2u32, addr, len.clone(), 0..64u32, any::<u128>())
                .prop_map(|(pd, addr, len, access, random)| Op::Register { pd, addr, len, access, random }),
            (0..32usize).prop_map(Op::Revoke),
            (0..32usize).prop_map(Op::Reclaim),
            (0..32usize, flip, 0..2u32, 0..16u32, -70..70i64, len)
                .prop_map(|(which, flip, pd, need, va, len)| Op::Check { which, flip, pd, need, va, len }),
        ]
    }

    #[derive(Clone, Copy, PartialEq)]
    enum Life {
        Live,
        Revoked,
        Gone,
    }

    proptest! {
        /// Against a plain list of regions, with the range arithmetic done in 128 bits.
        #[test]
        fn table_matches_a_list(ops in proptest::collection::vec(op(), 1..if cfg!(miri) { 12 } else { 200 })) {
            let t = MrTable::new();
            let mut list: Vec<(u32, u32, u64, u64, u32, Life)> = Vec::new();
            for op in ops {
                match op {
                    Op::Register { pd, addr, len, access, random } => {
                        let got = t.register(PdId(pd), at(addr, len), Access::from_bits_retain(access), random);
                        if access & 0b1010 != 0 && access & 1 == 0 {
                            prop_assert_eq!(got, Err(MemError::InvalidAccess));
                        } else if addr as u128 + len as u128 > u64::MAX as u128 {
                            prop_assert_eq!(got, Err(MemError::InvalidRange));
                        } else {
                            list.push((got.unwrap(), pd, addr, len, access, Life::Live));
                        }
                    }
                    Op::Revoke(i) if i < list.len() => {
                        let live = list[i].5 == Life::Live;
                        prop_assert_eq!(t.revoke(list[i].0).is_ok(), live);
                        if live {
                            list[i].5 = Life::Revoked;
                        }
                    }
                    Op::Reclaim(i) if i < list.len() && list[i].5 == Life::Revoked => {
                        t.reclaim(list[i].0, TurnsPassed::without_shards());
                        list[i].5 = Life::Gone;
                    }
                    Op::Check { which, flip, pd, need, va, len } if which < list.len() => {
                        let key = list[which].0 ^ flip;
                        let zero_based = list[which].4 & 32 != 0;
                        let va = if zero_based { 0 } else { list[which].2 }.wrapping_add_signed(va);
                        let got = t.check(key, PdId(pd), Access::from_bits_retain(need), va, len);
                        let region = list.iter().find(|r| r.0 == key && r.5 == Life::Live);
                        let expected = match region {
                            None => Err(KeyFault::UnknownKey),
                            Some(r) if r.1 != pd => Err(KeyFault::WrongPd),
                            Some(r) if r.4 & need != need => Err(KeyFault::NoAccess),
                            Some(&(_, _, addr, size, access, _)) => {
                                let start = if access & 32 != 0 { 0 } else { addr } as u128;
                                let (va, end) = (va as u128, va as u128 + len as u128);
                                if va < start || end > start + size as u128 {
                                    Err(KeyFault::OutOfRange)
                                } else {
                                    Ok(GrantedRange::found((addr as u128 + va - start) as u64, len))
                                }
                            }
                        };
                        prop_assert_eq!(got, expected);
                    }
                    _ => {}
                }
            }
        }
    }

    /// Two threads take turns of shards and look keys up while the main thread registers, revokes, waits for the turn boundaries
    /// and reclaims. Every region has its own domain, address and length: a mixture would show.
    #[test]
    fn lookups_race_revocation() {
        const SHARDS: usize = 2;
        let t = MrTable::new();
        // Slots beyond the first few are taken, so that those few are reused all the time.
        let (taken, rounds) = if cfg!(miri) { (0, 40) } else { (MR_MAX - 4, 20_000) };
        for i in 0..taken {
            t.register(PdId(u32::MAX), at(0, 0), Access::empty(), i as u128).unwrap();
        }
        let published: [AtomicU64; 4] = Default::default();
        let turns: [AtomicU64; SHARDS] = Default::default();
        let stop = AtomicBool::new(false);
        // The shape of region number `n`.
        let shape = |n: u64| (PdId(n as u32), n << 20, 1 + n % 1000);
        std::thread::scope(|scope| {
            let readers: Vec<_> = (0..SHARDS)
                .map(|shard| {
                    let (t, published, turns, stop) = (&t, &published, &turns, &stop);
                    scope.spawn(move || {
                        let (mut hits, mut misses) = (0u64, 0u64);
                        while !stop.load(Ordering::Relaxed) {
                            // A turn: the loads of the one before are over when the count goes up.
                            turns[shard].fetch_add(1, Ordering::AcqRel);
                            for cell in published {
                                let word = cell.load(Ordering::Acquire);
                                let (key, n) = (word as u32, word >> 32);
                                let (pd, addr, len) = shape(n);
                                for _ in 0..4 {
                                    match t.check(key, pd, ALL, addr, len) {
                                        Ok(host) => {
                                            assert_eq!(host, GrantedRange::found(addr, len));
                                            hits += 1;
                                        }
                                        Err(fault) => {
                                            assert_eq!(fault, KeyFault::UnknownKey);
                                            misses += 1;
                                        }
                                    }
                                }
                            }
                        }
                        (hits, misses)
                    })
                })
                .collect();
            // Two boundaries: a turn of each reader that may have begun before is over, and another one, too.
            let two_turns = || {
                let before: Vec<u64> = turns.iter().map(|turn| turn.load(Ordering::Acquire)).collect();
                for (turn, before) in turns.iter().zip(before) {
                    while turn.load(Ordering::Acquire) < before + 2 {
                        std::thread::yield_now();
                    }
                }
            };
            let mut keys: [Option<u32>; 4] = [None; 4];
            // Bounded by time too: on a busy machine a turn may last as long as a time slice.
            let start = std::time::Instant::now();
            for n in 1..rounds {
                if !cfg!(miri) && start.elapsed().as_millis() > 1500 {
                    break;
                }
                let i = n as usize % 4;
                if let Some(key) = keys[i].take() {
                    t.revoke(key).unwrap();
                    two_turns();
                    t.reclaim(key, TurnsPassed::without_shards());
                }
                let (pd, addr, len) = shape(n);
                let key = t.register(pd, at(addr, len), ALL, n as u128).unwrap();
                published[i].store(n << 32 | u64::from(key), Ordering::Release);
                keys[i] = Some(key);
            }
            // Each reader has looked up the last keys, however late it is scheduled.
            two_turns();
            stop.store(true, Ordering::Relaxed);
            for reader in readers {
                let (hits, misses) = reader.join().unwrap();
                assert!(hits > 0, "{hits} hits, {misses} misses");
            }
        });
    }
}
