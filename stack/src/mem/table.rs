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
const _: () = assert!(MR_MAX.is_multiple_of(CHUNK));
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

/// Why a key does not grant an access, in the order of the checks.
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

/// A chunk of slots in which nothing is registered, made on the heap.
fn chunk() -> Box<[Slot; CHUNK]> {
    let slots: Box<[Slot]> = (0..CHUNK).map(|_| Slot::default()).collect();
    slots.try_into().unwrap_or_else(|_| unreachable!("collected as many slots as a chunk has"))
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
    chunks: [OnceLock<Box<[Slot; CHUNK]>>; CHUNKS],
    free: Mutex<Free>,
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

        let chunk = self.chunks[index >> CHUNK_LOG2].get_or_init(chunk);
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

    /// SEND with invalidate: revokes a key that its owner gave to the peer for this ([`Access::REMOTE_INVALIDATE`]).
    ///
    /// # Errors
    /// Those of [`MrTable::check`]; the key stays.
    pub fn invalidate(&self, key: u32, pd: PdId) -> Result<(), KeyFault> {
        self.granting(key, pd, Access::REMOTE_INVALIDATE)?;
        self.revoke(key).map_err(|_| KeyFault::UnknownKey)
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
        let (slot, access) = self.granting(key, pd, need)?;
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

    /// The slot and rights of a live key of this domain that grants `need`.
    #[inline]
    fn granting(&self, key: u32, pd: PdId, need: Access) -> Result<(&Slot, u32), KeyFault> {
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
        Ok((slot, access))
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

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashSet;
    use std::sync::atomic::AtomicBool;

    const PD: PdId = PdId(7);
    const ALL: Access = Access::LOCAL_WRITE
        .union(Access::REMOTE_WRITE)
        .union(Access::REMOTE_READ)
        .union(Access::REMOTE_ATOMIC);

    fn renew(table: &MrTable, key: u32, addr: u64, random: u32) -> u32 {
        table.revoke(key).unwrap();
        table.reclaim(key);
        table.register(PD, addr, 64, ALL, random).unwrap()
    }

    #[test]
    fn checks_in_order() {
        let t = MrTable::new();
        let key = t.register(PD, 0x1000, 0x100, Access::REMOTE_READ, 0x1234_5678).unwrap();
        let check = |key, pd, need, va, len| t.check(key, pd, need, va, len);
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
            let key = t.register(PD, addr, len, Access::empty(), 1).unwrap();
            let ok = |va: u64, n| t.check(key, PD, Access::empty(), va, n) == Ok(va);
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
        let end = t.register(PD, u64::MAX, 1, Access::empty(), 1);
        assert_eq!(end, Err(MemError::InvalidRange));
        assert_eq!(t.register(PD, 1, u64::MAX, Access::empty(), 1), Err(MemError::InvalidRange));
    }

    #[test]
    fn zero_based_addresses_are_offsets() {
        let t = MrTable::new();
        let key = t.register(PD, 0x1000, 0x100, Access::ZERO_BASED, 1).unwrap();
        assert_eq!(t.check(key, PD, Access::empty(), 0, 0x100), Ok(0x1000));
        assert_eq!(t.check(key, PD, Access::empty(), 0xff, 1), Ok(0x10ff));
        assert_eq!(t.check(key, PD, Access::empty(), 0x1000, 1), Err(KeyFault::OutOfRange));
        assert_eq!(t.check(key, PD, Access::empty(), u64::MAX, 1), Err(KeyFault::OutOfRange));
    }

    #[test]
    fn rights_that_do_not_go_together() {
        let t = MrTable::new();
        for access in [Access::REMOTE_WRITE, Access::REMOTE_ATOMIC, Access::from_bits_retain(1 << 31)] {
            assert_eq!(t.register(PD, 0, 1, access, 1), Err(MemError::InvalidAccess));
        }
    }

    #[test]
    fn revoked_once_reclaimed_once() {
        let t = MrTable::new();
        let key = t.register(PD, 0x1000, 64, ALL, 1).unwrap();
        assert_eq!(t.revoke(key ^ 1), Err(MemError::UnknownKey));
        assert_eq!(t.revoke(u32::MAX), Err(MemError::UnknownKey));
        assert_eq!(t.revoke(NO_KEY), Err(MemError::UnknownKey));
        t.revoke(key).unwrap();
        assert_eq!(t.revoke(key), Err(MemError::UnknownKey));
        assert_eq!(t.check(key, PD, ALL, 0x1000, 1), Err(KeyFault::UnknownKey));
        t.reclaim(key);
        let again = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| t.reclaim(key)));
        assert!(again.is_err(), "reclaimed twice");
        let live = t.register(PD, 0x1000, 64, ALL, 1).unwrap();
        let early = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| t.reclaim(live)));
        assert!(early.is_err(), "reclaimed alive");
        assert_eq!(t.check(live, PD, ALL, 0x1000, 1), Ok(0x1000));
    }

    /// Fills the table, so that each slot comes back as soon as it is freed, and walks one slot through every
    /// generation: no key repeats before the wrap.
    #[test]
    fn stale_keys_never_match_until_the_generation_wraps() {
        let t = MrTable::new();
        let keys: Vec<u32> = (0..MR_MAX)
            .map(|i| t.register(PD, 0, 64, ALL, (i as u32).wrapping_mul(0x9e37_79b9)).unwrap())
            .collect();
        assert_eq!(t.register(PD, 0, 64, ALL, 1), Err(MemError::Full));
        let distinct: HashSet<u32> = keys.iter().copied().collect();
        assert_eq!(distinct.len(), MR_MAX);
        for slot in [0, 5] {
            let first = keys[slot];
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
    fn slots_are_reused_in_the_order_they_became_free() {
        let t = MrTable::new();
        let keys: Vec<u32> = (0..MR_MAX).map(|i| t.register(PD, 0, 64, ALL, i as u32).unwrap()).collect();
        let order = [40_000, 3, 65_535, 0, 17];
        for i in order {
            t.revoke(keys[i]).unwrap();
        }
        assert_eq!(t.register(PD, 0, 64, ALL, 1), Err(MemError::Full), "revoked is not free yet");
        for i in order {
            t.reclaim(keys[i]);
        }
        for i in order {
            assert_eq!(t.register(PD, 0, 64, ALL, 1).unwrap() >> TAG_BITS, i as u32);
        }
    }

    /// Tags of one generation under different secrets, and of successive generations under one, spread.
    #[test]
    fn tags_are_a_permutation_and_spread() {
        for secret in [0, 1, 0xdead_beef, u32::MAX] {
            let tags: HashSet<u16> = (0..=u16::MAX).map(|x| permute(x, secret)).collect();
            assert_eq!(tags.len(), 1 << 16);
            let mut steps: Vec<u16> =
                (0..1000).map(|x| permute(x + 1, secret).wrapping_sub(permute(x, secret))).collect();
            steps.sort_unstable();
            steps.dedup();
            assert!(steps.len() > 950, "{} different steps", steps.len());
        }
        let tags: HashSet<u16> = (0..1000).map(|secret| permute(0, secret)).collect();
        assert!(tags.len() > 950, "{} different tags", tags.len());
    }

    #[derive(Clone, Debug)]
    enum Op {
        Register { pd: u32, addr: u64, len: u64, access: u32, random: u32 },
        Revoke(usize),
        Reclaim(usize),
        Check { which: usize, flip: u32, pd: u32, need: u32, va: i64, len: u64 },
    }

    fn op() -> impl Strategy<Value = Op> {
        let addr = prop_oneof![0..64u64, 1000..1064u64, u64::MAX - 64..=u64::MAX];
        let len = prop_oneof![0..64u64, u64::MAX - 64..=u64::MAX];
        let flip = prop_oneof![8 => Just(0), 1 => any::<u32>(), 1 => (0..32u32).prop_map(|b| 1 << b)];
        prop_oneof![
            (0..2u32, addr, len.clone(), 0..64u32, any::<u32>())
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
        fn table_matches_a_list(ops in proptest::collection::vec(op(), 1..200)) {
            let t = MrTable::new();
            let mut list: Vec<(u32, u32, u64, u64, u32, Life)> = Vec::new();
            for op in ops {
                match op {
                    Op::Register { pd, addr, len, access, random } => {
                        let got = t.register(PdId(pd), addr, len, Access::from_bits_retain(access), random);
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
                        t.reclaim(list[i].0);
                        list[i].5 = Life::Gone;
                    }
                    Op::Check { which, flip, pd, need, va, len } if which < list.len() => {
                        let key = list[which].0 ^ flip;
                        let zero_based = list[which].4 & 32 != 0;
                        let va = if zero_based { 0 } else { list[which].2 }.wrapping_add_signed(va);
                        let got = t.check(key, PdId(pd), Access::from_bits_retain(need), va, len);
                        let region = list.iter().find(|r| r.0 == key && r.5 == Life::Live);
                        let want = match region {
                            None => Err(KeyFault::UnknownKey),
                            Some(r) if r.1 != pd => Err(KeyFault::WrongPd),
                            Some(r) if r.4 & need != need => Err(KeyFault::NoAccess),
                            Some(&(_, _, addr, size, access, _)) => {
                                let start = if access & 32 != 0 { 0 } else { addr } as u128;
                                let (va, end) = (va as u128, va as u128 + len as u128);
                                if va < start || end > start + size as u128 {
                                    Err(KeyFault::OutOfRange)
                                } else {
                                    Ok((addr as u128 + va - start) as u64)
                                }
                            }
                        };
                        prop_assert_eq!(got, want);
                    }
                    _ => {}
                }
            }
        }
    }

    /// Two threads turn shards and look keys up while the main thread registers, revokes, waits for the turn
    /// boundaries and reclaims. Every region has its own domain, address and length: a mixture would show.
    #[test]
    fn lookups_race_revocation() {
        const SHARDS: usize = 2;
        let t = MrTable::new();
        // Slots beyond the first few are taken, so that those few are reused all the time.
        for i in 0..MR_MAX - 4 {
            t.register(PdId(u32::MAX), 0, 0, Access::empty(), i as u32).unwrap();
        }
        let published: [AtomicU64; 4] = Default::default();
        let turns: [AtomicU64; SHARDS] = Default::default();
        let stop = AtomicBool::new(false);
        // What region number `n` looks like.
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
                                            assert_eq!(host, addr);
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
            let mut keys: [Option<u32>; 4] = [None; 4];
            // Bounded by time too: on a busy machine a turn may last as long as a time slice.
            let start = std::time::Instant::now();
            for n in 1..20_000u64 {
                if start.elapsed().as_millis() > 1500 {
                    break;
                }
                let i = n as usize % 4;
                if let Some(key) = keys[i].take() {
                    t.revoke(key).unwrap();
                    let before: Vec<u64> = turns.iter().map(|turn| turn.load(Ordering::Acquire)).collect();
                    // Two boundaries: the turn that may have begun before the revocation is over.
                    for (turn, before) in turns.iter().zip(before) {
                        while turn.load(Ordering::Acquire) < before + 2 {
                            std::thread::yield_now();
                        }
                    }
                    t.reclaim(key);
                }
                let (pd, addr, len) = shape(n);
                let key = t.register(pd, addr, len, ALL, n as u32).unwrap();
                published[i].store(n << 32 | u64::from(key), Ordering::Release);
                keys[i] = Some(key);
            }
            stop.store(true, Ordering::Relaxed);
            for reader in readers {
                let (hits, misses) = reader.join().unwrap();
                assert!(hits > 0, "{hits} hits, {misses} misses");
            }
        });
    }
}
