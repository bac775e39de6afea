//! Keys whose low 8 bits belong to the user: memory windows and fast-registration regions (IBA 10.6.7, 11.2.8).
//!
//! A control call allocates them once. Work requests then give them a range of memory ([`MrTable::bind`], [`MrTable::fast_register`]) and
//! take it away ([`MrTable::invalidate`]), as often as the user likes. Each of these is one step under the table's lock, without a turn
//! boundary; the [table](super::table)'s documentation says why a lookup is right nevertheless.

use super::access::Access;
use super::allocator::SlotKind;
use super::key::{MwType, NO_KEY, TAG_BITS};
use super::range::UserMemory;
use super::table::{Grant, KeyFault, MemError, MrTable, VARIABLE, WINDOW, region};
use crate::id::{PdId, Qpn};

/// The rights that a window can grant.
const WINDOW_ACCESS: Access = Access::REMOTE_WRITE
    .union(Access::REMOTE_READ)
    .union(Access::REMOTE_ATOMIC)
    .union(Access::ZERO_BASED)
    .union(Access::FLUSH_GLOBAL)
    .union(Access::RELAXED_ORDERING);

/// A bind request.
#[derive(Clone, Copy, Debug)]
pub struct Bind {
    /// The window's key from now on; its low 8 bits may be any.
    pub window: u32,
    /// The queue pair that executes the request.
    pub qpn: Qpn,
    /// The protection domain of the queue pair.
    pub pd: PdId,
    /// Key of the region.
    pub region: u32,
    /// First byte, as requests name it in the region.
    pub addr: u64,
    /// Length in bytes; 0 unbinds a window of type 1.
    pub len: u64,
    /// What the peer may do through the window.
    pub access: Access,
}

impl MrTable {
    /// Allocates a memory window, which is not bound. Returns its key.
    ///
    /// # Errors
    /// [`MemError::Full`].
    pub fn alloc_window(&self, pd: PdId, ty: MwType, random: u128) -> Result<u32, MemError> {
        self.allocator().allocate(random, SlotKind::Window(ty), pd).map(|(_, key)| key).ok_or(MemError::Full)
    }

    /// Allocates a region for fast registration of this memory, of which nothing is registered yet. Returns its key.
    ///
    /// # Errors
    /// [`MemError::InvalidRange`], [`MemError::Full`].
    pub fn alloc_fast(&self, pd: PdId, memory: UserMemory, random: u128) -> Result<u32, MemError> {
        let (addr, len) = (memory.addr(), memory.len());
        addr.checked_add(len).ok_or(MemError::InvalidRange)?;
        let allocated = self.allocator().allocate(random, SlotKind::Fast { addr, len }, pd);
        allocated.map(|(_, key)| key).ok_or(MemError::Full)
    }

    /// REG_MR: registers the `len` bytes at host address `addr` under `key`, with these rights. With [`Access::ZERO_BASED`], requests name
    /// bytes by their offset from `addr`.
    ///
    /// # Errors
    /// [`KeyFault::UnknownKey`] if no fast-registration region has this key, whatever its low 8 bits; [`KeyFault::WrongPd`];
    /// [`KeyFault::WrongState`] while it is registered; [`KeyFault::NoAccess`] for rights that no region can have, and for a range that
    /// wraps around the end of the address space; [`KeyFault::OutOfRange`] if the bytes are not in its memory.
    pub fn fast_register(
        &self,
        key: u32,
        pd: PdId,
        addr: u64,
        len: u64,
        access: Access,
    ) -> Result<(), KeyFault> {
        let mut allocator = self.allocator();
        let record = allocator.record_of_key(key).ok_or(KeyFault::UnknownKey)?;
        let SlotKind::Fast { addr: base, len: size } = record.kind else { return Err(KeyFault::UnknownKey) };
        if record.pd != pd {
            return Err(KeyFault::WrongPd);
        }
        let slot = self.slot_at((key >> TAG_BITS) as usize);
        if slot.key() != NO_KEY {
            return Err(KeyFault::WrongState);
        }
        if access.intersects(Access::UNSUPPORTED) {
            return Err(KeyFault::NoAccess);
        }
        let grant = region(pd, UserMemory::part(addr, len), access).map_err(|_| KeyFault::NoAccess)?;
        let offset = addr.wrapping_sub(base);
        if offset > size || len > size - offset {
            return Err(KeyFault::OutOfRange);
        }
        slot.publish(key, &Grant { access: access.bits() | VARIABLE, ..grant });
        Ok(())
    }

    /// Binds a memory window to a range of a region (IBA 10.6.7.1).
    ///
    /// # Errors
    /// [`KeyFault::UnknownKey`] for the window or the region; [`KeyFault::WrongPd`] if they and the queue pair are not of one domain;
    /// [`KeyFault::WrongState`] for a window of type 2 that is bound already or with `len` 0, for a zero-based window of type 1, and for a
    /// zero-based region; [`KeyFault::NoAccess`] for a right that a window cannot grant, a region without [`Access::MW_BIND`], or one
    /// without [`Access::LOCAL_WRITE`] if the peer may write; [`KeyFault::OutOfRange`]. After an error the window is unchanged.
    pub fn bind(&self, bind: &Bind) -> Result<(), KeyFault> {
        let mut allocator = self.allocator();
        let index = (bind.window >> TAG_BITS) as usize;
        let record = allocator.record_of_key(bind.window).ok_or(KeyFault::UnknownKey)?;
        let SlotKind::Window(ty) = record.kind else { return Err(KeyFault::UnknownKey) };
        if record.pd != bind.pd {
            return Err(KeyFault::WrongPd); // C10-72
        }
        let window = self.slot_at(index);
        let wrong = match ty {
            MwType::One => bind.access.contains(Access::ZERO_BASED), // o10-36.2.2
            MwType::Two => window.key() != NO_KEY || bind.len == 0,  // o10-37.2.30, o10-37.2.40
        };
        if wrong {
            return Err(KeyFault::WrongState);
        }
        let bound = if bind.len == 0 { None } else { Some(self.bindable(bind)?) };
        // Nothing fails from here on.
        let Some(grant) = bound else {
            allocator.unbind(index);
            let _ = window.clear(window.key()); // fails if it was not bound
            return Ok(());
        };
        let region = (bind.region >> TAG_BITS) as u16;
        let qpn = if ty == MwType::Two { bind.qpn.get() } else { 0 };
        allocator.bind(index, region, qpn);
        window.publish(bind.window, &Grant { qpn, ..grant });
        Ok(())
    }

    /// Makes the grant of the window, if the region allows it. Needs the table's lock.
    fn bindable(&self, bind: &Bind) -> Result<Grant, KeyFault> {
        let slot = self.slot(bind.region).filter(|slot| slot.key() == bind.region && bind.region != NO_KEY);
        let region = slot.ok_or(KeyFault::UnknownKey)?.grant();
        let rights = Access::from_bits_truncate(region.access);
        if region.access & WINDOW != 0 {
            return Err(KeyFault::UnknownKey);
        }
        if region.pd != bind.pd {
            return Err(KeyFault::WrongPd);
        }
        if rights.contains(Access::ZERO_BASED) {
            return Err(KeyFault::WrongState); // C10-75
        }
        let writes = bind.access.intersects(Access::REMOTE_WRITE | Access::REMOTE_ATOMIC);
        let needs = if writes { Access::MW_BIND | Access::LOCAL_WRITE } else { Access::MW_BIND };
        if !WINDOW_ACCESS.contains(bind.access) || !rights.contains(needs) {
            return Err(KeyFault::NoAccess); // C10-73, C10-74
        }
        let offset = bind.addr.wrapping_sub(region.start);
        if offset > region.len || bind.len > region.len - offset {
            return Err(KeyFault::OutOfRange); // C10-75
        }
        let addr = region.addr + offset;
        let start = if bind.access.contains(Access::ZERO_BASED) { 0 } else { bind.addr };
        // The window's memory is accessed in the same way as the region's.
        let access = bind.access.bits() | region.access & Access::ON_DEMAND.bits() | VARIABLE | WINDOW;
        Ok(Grant { pd: bind.pd, access, qpn: 0, start, addr, len: bind.len })
    }

    /// LOCAL_INV, or a peer's SEND with invalidate to queue pair `remote`: takes away the key of a fast-registration region or of a window
    /// of type 2, until it is registered or bound again.
    ///
    /// # Errors
    /// [`KeyFault::UnknownKey`] if nothing has all 32 bits of this key at present; [`KeyFault::WrongPd`]; [`KeyFault::WrongQp`] if the peer
    /// names a window that is bound to another queue pair; [`KeyFault::WrongState`] for an ordinary region, a window of type 1, and a
    /// region with windows. After an error the key stays valid.
    pub fn invalidate(&self, key: u32, pd: PdId, remote: Option<Qpn>) -> Result<(), KeyFault> {
        let mut allocator = self.allocator();
        let slot = self.slot(key).filter(|slot| slot.key() == key && key != NO_KEY);
        let (slot, record) = slot.zip(allocator.record_of_key(key)).ok_or(KeyFault::UnknownKey)?;
        if record.pd != pd {
            return Err(KeyFault::WrongPd);
        }
        match record.kind {
            SlotKind::Fast { .. } if record.windows == 0 => {}
            SlotKind::Window(MwType::Two) if remote.is_none_or(|qpn| qpn.get() == record.qpn) => {}
            SlotKind::Window(MwType::Two) => return Err(KeyFault::WrongQp),
            _ => return Err(KeyFault::WrongState),
        }
        slot.clear(key).map_err(|_| KeyFault::UnknownKey)?;
        allocator.unbind((key >> TAG_BITS) as usize);
        Ok(())
    }

    /// Unbinds the windows of type 2 that a queue pair has bound. Call it when the queue pair is destroyed, because its number will be
    /// given out again.
    pub(crate) fn forget_qp(&self, qpn: Qpn) {
        let mut allocator = self.allocator();
        if allocator.bound > 0 {
            self.unbind_all(&mut allocator, |record| record.qpn == qpn.get());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::edges::{ALL, PD, QP};
    use super::super::key::{USER_BITS, inc_rkey};
    use super::super::{GrantedRange, TurnsPassed};
    use super::*;
    use std::sync::atomic::{AtomicBool, Ordering};

    fn bind(window: u32, region: u32, addr: u64, len: u64) -> Bind {
        Bind { window, qpn: QP, pd: PD, region, addr, len, access: Access::REMOTE_WRITE }
    }

    fn at(addr: u64, len: u64) -> UserMemory {
        UserMemory::nowhere(addr, len)
    }

    fn remote(t: &MrTable, key: u32, va: u64, len: u64) -> Result<u64, KeyFault> {
        t.check_remote(key, PD, QP, Access::REMOTE_WRITE, va, len).map(GrantedRange::addr)
    }

    #[test]
    fn variants_count_up_and_wrap() {
        assert_eq!(inc_rkey(0x1234_5600), 0x1234_5601);
        assert_eq!(inc_rkey(0x1234_56ff), 0x1234_5600);
        assert_eq!(inc_rkey(u32::MAX), 0xffff_ff00);
    }

    /// Each of the user's 256 choices is a key, and no other choice is while it is bound.
    #[test]
    fn every_variant_is_compared_in_full() {
        let t = MrTable::new();
        let region = t.register(PD, at(0x1000, 0x1000), ALL, 1).unwrap();
        let mut key = t.alloc_window(PD, MwType::Two, 0).unwrap();
        for _ in 0..if cfg!(miri) { 3 } else { 256 } {
            key = inc_rkey(key);
            t.bind(&bind(key, region, 0x1000, 64)).unwrap();
            assert_eq!(remote(&t, key, 0x1000, 64), Ok(0x1000));
            for bit in 0..32 {
                let other = key ^ 1 << bit;
                assert!(other == region || remote(&t, other, 0x1000, 64).is_err(), "{key:#x} {other:#x}");
                assert_ne!(t.invalidate(other, PD, None), Ok(()));
            }
            t.invalidate(key, PD, Some(QP)).unwrap();
            assert_eq!(remote(&t, key, 0x1000, 64), Err(KeyFault::UnknownKey));
            assert_eq!(t.invalidate(key, PD, None), Err(KeyFault::UnknownKey));
        }
    }

    /// A window on a region that requests name by other addresses is named by those, too.
    #[test]
    fn a_window_has_the_addresses_of_its_region() {
        let t = MrTable::new();
        let region = t.register(PD, at(0x1000, 0x1000).at_iova(0x7000_0000), ALL, 1).unwrap();
        let key = t.alloc_window(PD, MwType::Two, 2).unwrap();
        assert_eq!(t.bind(&bind(key, region, 0x1800, 64)), Err(KeyFault::OutOfRange));
        t.bind(&bind(key, region, 0x7000_0800, 64)).unwrap();
        assert_eq!(remote(&t, key, 0x7000_0800, 64), Ok(0x1800));
        assert_eq!(remote(&t, key, 0x1800, 64), Err(KeyFault::OutOfRange));
        t.invalidate(key, PD, None).unwrap();
        let zero =
            Bind { access: Access::REMOTE_WRITE | Access::ZERO_BASED, ..bind(key, region, 0x7000_0800, 64) };
        t.bind(&zero).unwrap();
        assert_eq!(remote(&t, key, 8, 56), Ok(0x1808));
    }

    /// Faults come in the order of the checks, and none of them changes anything.
    #[test]
    fn a_window_grants_what_it_says() {
        let t = MrTable::new();
        let region = t.register(PD, at(0x1000, 0x1000), ALL, 1).unwrap();
        let key = t.alloc_window(PD, MwType::Two, 2).unwrap();
        t.bind(&bind(key, region, 0x1800, 64)).unwrap();
        let check = |pd, qpn, need, va| t.check_remote(key, pd, qpn, need, va, 8).map(GrantedRange::addr);
        let (write, read, other) = (Access::REMOTE_WRITE, Access::REMOTE_READ, Qpn::new(9));
        assert_eq!(check(PD, QP, write, 0x1838), Ok(0x1838));
        assert_eq!(check(PdId(8), other, read, 0), Err(KeyFault::WrongPd));
        assert_eq!(check(PD, other, read, 0), Err(KeyFault::WrongQp));
        assert_eq!(check(PD, QP, read, 0), Err(KeyFault::NoAccess));
        assert_eq!(check(PD, QP, write, 0x1839), Err(KeyFault::OutOfRange));
        assert_eq!(check(PD, QP, write, 0x17ff), Err(KeyFault::OutOfRange));
        assert_eq!(t.check(key, PD, Access::empty(), 0x1800, 1), Err(KeyFault::UnknownKey), "locally");
        assert_eq!(t.check_whole(key, PD, QP, write), Ok(()));
        assert_eq!(t.check_whole(key, PD, QP, read), Err(KeyFault::NoAccess));
        // Bound already; and the same with another domain, which comes first.
        let again = bind(inc_rkey(key), region, 0x1000, 64);
        assert_eq!(t.bind(&Bind { pd: PdId(8), ..again }), Err(KeyFault::WrongPd));
        assert_eq!(t.bind(&again), Err(KeyFault::WrongState));
        assert_eq!(t.invalidate(key, PD, Some(other)), Err(KeyFault::WrongQp));
        assert_eq!(t.invalidate(region, PD, None), Err(KeyFault::WrongState));
        assert_eq!(remote(&t, key, 0x1800, 64), Ok(0x1800));
    }

    /// The count of windows is exact over every way in which one ends.
    #[test]
    fn a_region_stays_as_long_as_its_windows() {
        let t = MrTable::new();
        let (a, b) =
            (t.register(PD, at(0, 64), ALL, 1).unwrap(), t.register(PD, at(64, 64), ALL, 2).unwrap());
        let (one, two) =
            (t.alloc_window(PD, MwType::One, 3).unwrap(), t.alloc_window(PD, MwType::Two, 4).unwrap());
        t.bind(&bind(one, a, 0, 8)).unwrap();
        t.bind(&bind(two, a, 0, 8)).unwrap();
        assert_eq!(t.revoke(a), Err(MemError::Bound(2)));
        t.bind(&bind(inc_rkey(one), b, 64, 8)).unwrap();
        assert_eq!((t.revoke(a), t.revoke(b)), (Err(MemError::Bound(1)), Err(MemError::Bound(1))));
        t.invalidate(two, PD, None).unwrap();
        t.revoke(a).unwrap();
        t.bind(&bind(one, b, 0, 0)).unwrap();
        t.bind(&bind(two, b, 64, 8)).unwrap();
        t.forget_qp(Qpn::new(77));
        assert_eq!(t.revoke(b), Err(MemError::Bound(1)));
        t.forget_qp(QP);
        t.bind(&bind(two, b, 64, 8)).unwrap();
        t.revoke(two).unwrap();
        assert_eq!(t.revoke(two), Err(MemError::UnknownKey));
        assert_eq!(t.bind(&bind(two, b, 64, 8)), Err(KeyFault::UnknownKey), "it is gone");
        t.bind(&bind(one, b, 64, 8)).unwrap();
        t.revoke_with_windows(b).unwrap();
        assert_eq!(remote(&t, one, 64, 8), Err(KeyFault::UnknownKey));
        assert_eq!(t.allocator().bound, 0);
        for key in [a, b, two] {
            t.reclaim(key, TurnsPassed::without_shards());
        }
        t.revoke(one).unwrap();
        t.reclaim(one, TurnsPassed::without_shards());
    }

    /// The part of a variable key that is not the user's comes back only after its slot was used 256 times.
    #[test]
    #[cfg_attr(miri, ignore = "fills the table: arithmetic, and too long for Miri")]
    fn stale_variable_keys_never_match_until_the_generation_wraps() {
        let t = MrTable::new();
        let fill = crate::config::MR_MAX - 1;
        for i in 0..fill {
            t.register(PD, at(0, 0), Access::empty(), i as u128).unwrap();
        }
        let mut seen = std::collections::HashSet::new();
        for _ in 0..256 {
            let key = t.alloc_fast(PD, at(0x1000, 64), 0x9e37_79b9).unwrap();
            assert!(seen.insert(key >> USER_BITS), "a key came back");
            t.fast_register(key, PD, 0x1000, 64, ALL).unwrap();
            t.revoke(key).unwrap();
            t.reclaim(key, TurnsPassed::without_shards());
        }
        let key = t.alloc_window(PD, MwType::One, 1).unwrap();
        assert!(!seen.insert(key >> USER_BITS), "the generation wrapped");
    }

    /// A thread binds one window to one range after another under the same key; others look it up. Every range has its
    /// own address and length, and all of them hold the byte that is looked up: a mixture of two would show.
    #[test]
    fn lookups_race_rebinding() {
        let t = MrTable::new();
        let region = t.register(PD, at(0x10_0000, 0x10_0000), ALL, 1).unwrap();
        let key = t.alloc_window(PD, MwType::Two, 2).unwrap();
        let stop = AtomicBool::new(false);
        let zero_based = |n: u64| Bind {
            access: Access::REMOTE_WRITE | Access::ZERO_BASED,
            ..bind(key, region, 0x10_0000 + n, n + 1)
        };
        std::thread::scope(|scope| {
            let reader = || {
                // At least once, however late the thread is scheduled.
                loop {
                    for n in 0..64u64 {
                        // The window that starts at `start` has `start + 1` bytes: it holds byte `n` only if `start >= n`.
                        match t.check_remote(key, PD, QP, Access::REMOTE_WRITE, n, 1) {
                            Ok(place) => {
                                let start = place.addr() - n - 0x10_0000;
                                assert!(start >= n, "byte {n} of the window at {start}, which has fewer");
                            }
                            Err(KeyFault::UnknownKey | KeyFault::OutOfRange) => {}
                            Err(other) => panic!("{other}"),
                        }
                    }
                    if stop.load(Ordering::Relaxed) {
                        break;
                    }
                }
            };
            let readers = [scope.spawn(reader), scope.spawn(reader)];
            let start = std::time::Instant::now();
            let mut n = 0;
            while start.elapsed().as_millis() < 300 {
                t.bind(&zero_based(n)).unwrap();
                n = (n + 37) % 64;
                if n % 3 == 0 {
                    std::thread::yield_now();
                }
                t.invalidate(key, PD, None).unwrap();
            }
            // Independent of the machine's load: at rest it is found.
            t.bind(&zero_based(63)).unwrap();
            assert!(remote(&t, key, 0, 64).is_ok());
            stop.store(true, Ordering::Relaxed);
            readers.into_iter().for_each(|reader| reader.join().unwrap());
        });
    }
}
