//! The port's GID table: addresses may be added and removed while the device is open.
//!
//! An index that a queue pair or an address handle holds keeps its address, even after that address is removed from the port; the entry
//! is reused when the last holder releases it (IBA A17.4, as kernels do it). A waiting datagram may outlive the holder, so it refers
//! to an address by its [`Source`], which never refers to another address. Changes are made under a lock; lookups of an index or
//! a source take no lock.

use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};
use std::sync::{Mutex, MutexGuard};

use crate::id::Gid;
use crate::net::GIDS_MAX;
use crate::proto::address::Source;
use crate::sync::lock::lock;

/// An entry; all zeros while it is free. Written under the table's lock only; the address changes only while the entry has no
/// holders.
#[derive(Debug, Default)]
struct Slot {
    high: AtomicU64,
    low: AtomicU64,
    /// The version of a seqlock: twice the number of changes of the address, odd during a change.
    changes: AtomicU32,
    /// The port has lost the address.
    removed: AtomicBool,
    holders: AtomicU32,
}

impl Slot {
    fn gid(&self) -> Gid {
        let (high, low) = (self.high.load(Ordering::Relaxed), self.low.load(Ordering::Relaxed));
        Gid((u128::from(high) << 64 | u128::from(low)).to_be_bytes())
    }
    fn set(&self, gid: Gid) {
        let bits = u128::from_be_bytes(gid.0);
        let changes = self.changes.load(Ordering::Relaxed);
        self.changes.store(changes.wrapping_add(1), Ordering::Relaxed);
        fence(Ordering::Release);
        self.high.store((bits >> 64) as u64, Ordering::Relaxed);
        self.low.store(bits as u64, Ordering::Relaxed);
        self.removed.store(false, Ordering::Relaxed);
        self.changes.store(changes.wrapping_add(2), Ordering::Release);
    }
    /// Whether the port has the address.
    fn live(&self) -> bool {
        !self.removed.load(Ordering::Relaxed) && !self.gid().is_zero()
    }
    /// The identifier of the address that the entry has at this version.
    fn source(index: usize, changes: u32) -> Source {
        Source::new(index as u8, changes / 2)
    }
}

/// Why an address was not added.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum GidRefused {
    /// The table has the address already.
    Exists,
    /// No entry is free.
    Full,
}

/// The GID table.
#[derive(Debug)]
pub struct Gids {
    slots: Box<[Slot]>,
    /// One more than the highest index ever used.
    len: AtomicUsize,
    lock: Mutex<()>,
}

impl Gids {
    /// A table with these entries; the first is the link-local address.
    pub fn new(gids: &[Gid]) -> Self {
        let slots: Box<[Slot]> = (0..GIDS_MAX).map(|_| Slot::default()).collect();
        let len = gids.len().min(GIDS_MAX);
        for (slot, gid) in slots.iter().zip(gids) {
            slot.set(*gid);
        }
        Self { slots, len: AtomicUsize::new(len), lock: Mutex::new(()) }
    }

    fn changing(&self) -> MutexGuard<'_, ()> {
        lock(&self.lock)
    }

    /// Number of entries, including free ones in between.
    #[inline]
    pub fn len(&self) -> usize {
        self.len.load(Ordering::Acquire)
    }

    /// The address at an index; `None` if the entry is free. Unless the index is held, the address may change at any time.
    #[inline]
    pub fn get(&self, index: usize) -> Option<Gid> {
        self.slots.get(index).map(Slot::gid).filter(|gid| !gid.is_zero())
    }

    /// The identifier of the address at an index, for users that may outlive the address.
    pub fn source(&self, index: usize) -> Option<Source> {
        let _changing = self.changing();
        let slot = self.slots.get(index).filter(|slot| slot.live())?;
        Some(Slot::source(index, slot.changes.load(Ordering::Relaxed)))
    }

    /// The address with that identifier. `None` if the port has lost it and it has no holders.
    pub fn of(&self, source: Source) -> Option<Gid> {
        let index = usize::from(source.index());
        let slot = &self.slots[index];
        let before = slot.changes.load(Ordering::Acquire);
        let gid = slot.gid();
        fence(Ordering::Acquire);
        let unchanged = before.is_multiple_of(2) && slot.changes.load(Ordering::Relaxed) == before;
        (unchanged && Slot::source(index, before) == source && !gid.is_zero()).then_some(gid)
    }

    /// The addresses by index; zero where the entry is free or the port has lost the address.
    pub fn snapshot(&self) -> Vec<Gid> {
        let _changing = self.changing();
        let gid = |slot: &Slot| if slot.live() { slot.gid() } else { Gid::default() };
        self.slots[..self.len()].iter().map(gid).collect()
    }

    /// Whether an address is one of the port's.
    #[inline]
    pub fn contains(&self, gid: &Gid) -> bool {
        self.slots[..self.len()].iter().any(|slot| slot.gid() == *gid && slot.live())
    }

    /// Whether packets may carry this source address: the port has it, or it still has a holder.
    pub fn is_source(&self, gid: &Gid) -> bool {
        !gid.is_zero() && self.slots[..self.len()].iter().any(|slot| slot.gid() == *gid)
    }

    /// Takes a hold on an index, so that its address stays. `None` if the port has no address there.
    pub(super) fn hold(&self, index: usize) -> Option<(Gid, Source)> {
        let _changing = self.changing();
        let slot = self.slots.get(index).filter(|slot| slot.live())?;
        slot.holders.fetch_add(1, Ordering::Relaxed);
        Some((slot.gid(), Slot::source(index, slot.changes.load(Ordering::Relaxed))))
    }

    /// Ends a hold. Returns whether the address is gone now: it was removed from the port, and this was its last holder.
    pub(super) fn release(&self, index: usize) -> bool {
        let _changing = self.changing();
        let slot = &self.slots[index];
        let last = slot.holders.fetch_sub(1, Ordering::Relaxed) == 1 && slot.removed.load(Ordering::Relaxed);
        if last {
            slot.set(Gid::default());
        }
        last
    }

    /// Adds an address at the first free index, or at its old index if that still has a holder.
    ///
    /// # Errors
    /// [`GidRefused`]; nothing has changed then.
    pub fn insert(&self, gid: Gid) -> Result<usize, GidRefused> {
        let _changing = self.changing();
        let old = self.slots.iter().position(|slot| slot.gid() == gid);
        if old.is_some_and(|index| self.slots[index].live()) {
            return Err(GidRefused::Exists);
        }
        let free = || self.slots.iter().position(|slot| slot.gid().is_zero());
        let index = old.or_else(free).ok_or(GidRefused::Full)?;
        if old.is_some() {
            self.slots[index].removed.store(false, Ordering::Relaxed);
        } else {
            self.slots[index].set(gid);
        }
        self.len.fetch_max(index + 1, Ordering::Release);
        Ok(index)
    }

    /// Removes an address. Returns its index, or `None` if the port does not have the address.
    pub fn remove(&self, gid: &Gid) -> Option<usize> {
        let _changing = self.changing();
        let index = self.slots.iter().position(|slot| slot.gid() == *gid && slot.live())?;
        let slot = &self.slots[index];
        slot.removed.store(true, Ordering::Relaxed);
        if slot.holders.load(Ordering::Relaxed) == 0 {
            slot.set(Gid::default());
        }
        Some(index)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn held_indexes_keep_their_addresses() {
        let [own, a, b, c] = [1, 2, 3, 4].map(|n| Gid::v4([10, 0, 0, n]));
        let gids = Gids::new(&[own, a]);
        let hold = |index| gids.hold(index).map(|(gid, _)| gid);
        assert_eq!((gids.len(), hold(1), hold(2)), (2, Some(a), None));
        assert_eq!(gids.insert(b), Ok(2));
        assert_eq!((gids.insert(b), gids.remove(&c)), (Err(GidRefused::Exists), None));
        assert_eq!(gids.remove(&a), Some(1));
        assert_eq!(
            (gids.get(1), hold(1), gids.contains(&a), gids.is_source(&a)),
            (Some(a), None, false, true)
        );
        assert_eq!(gids.snapshot(), [own, Gid::default(), b]);
        assert_eq!(gids.insert(c), Ok(3), "the held index is not used again");
        assert_eq!(gids.insert(a), Ok(1), "its own address comes back to it");
        assert_eq!(gids.remove(&a), Some(1));
        assert!(gids.release(1));
        assert_eq!((gids.get(1), gids.remove(&c), gids.is_source(&a)), (None, Some(3), false));
        assert_eq!(gids.insert(c), Ok(1), "free now");
        let more = (0..GIDS_MAX).map(|n| Gid::v4([10, 1, (n >> 8) as u8, n as u8]));
        assert_eq!(more.filter(|gid| gids.insert(*gid).is_ok()).count(), GIDS_MAX - 3);
        assert_eq!(gids.insert(a), Err(GidRefused::Full));
    }

    #[test]
    fn a_source_is_one_address_for_ever() {
        let [own, a, b] = [1, 2, 3].map(|n| Gid::v4([10, 0, 0, n]));
        let gids = Gids::new(&[own, a]);
        let first = gids.source(1).unwrap();
        assert_eq!((gids.of(first), gids.source(2)), (Some(a), None));
        assert_eq!((gids.remove(&a), gids.of(first), gids.source(1)), (Some(1), None, None));
        assert_eq!((gids.insert(b), gids.of(first)), (Ok(1), None), "the same index, another address");
        let second = gids.source(1).unwrap();
        assert_eq!((gids.of(second), gids.hold(1)), (Some(b), Some((b, second))));
        assert_eq!((gids.remove(&b), gids.of(second)), (Some(1), Some(b)), "held");
        assert_eq!((gids.insert(b), gids.source(1)), (Ok(1), Some(second)), "back while it was held");
        assert!(!gids.release(1));
        assert_eq!((gids.of(second), gids.remove(&b), gids.of(second)), (Some(b), Some(1), None));
        // The same address, added again, gets another identifier: what was lost stays lost.
        assert_eq!((gids.insert(a), gids.of(first), gids.of(second)), (Ok(1), None, None));
    }
}
