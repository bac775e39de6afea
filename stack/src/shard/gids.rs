//! The port's GID table: addresses may be added and removed while the device is open.
//!
//! An index that a queue pair holds keeps its address, also when that is removed from the port; the place is used again
//! when the last holder lets go (IBA A17.4, as kernels do it). Changes are made under a lock; looking an index up takes
//! none.

use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::id::Gid;
use crate::net::GIDS_MAX;

/// An entry; all zeros while it is free. Written under the table's lock only, and the address only while nobody holds
/// the entry.
#[derive(Debug, Default)]
struct Slot {
    high: AtomicU64,
    low: AtomicU64,
    /// The port does not have the address any more.
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
        self.high.store((bits >> 64) as u64, Ordering::Relaxed);
        self.low.store(bits as u64, Ordering::Relaxed);
        self.removed.store(false, Ordering::Relaxed);
    }
    /// Whether the port has the address.
    fn live(&self) -> bool {
        !self.removed.load(Ordering::Relaxed) && !self.gid().is_zero()
    }
}

/// Why an address was not added.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum GidRefused {
    /// The table has it.
    Exists,
    /// No entry is free.
    Full,
}

/// The GID table.
#[derive(Debug)]
pub struct Gids {
    slots: Box<[Slot]>,
    /// Behind the last entry that was ever used.
    len: AtomicUsize,
    lock: Mutex<()>,
}

impl Gids {
    /// A table with these entries, the link-local address first.
    pub fn new(gids: &[Gid]) -> Self {
        let slots: Box<[Slot]> = (0..GIDS_MAX).map(|_| Slot::default()).collect();
        let len = gids.len().min(GIDS_MAX);
        for (slot, gid) in slots.iter().zip(gids) {
            slot.set(*gid);
        }
        Self { slots, len: AtomicUsize::new(len), lock: Mutex::new(()) }
    }

    fn changing(&self) -> MutexGuard<'_, ()> {
        self.lock.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Entries, free ones between others too.
    #[inline]
    #[expect(clippy::len_without_is_empty, reason = "it never is")]
    pub fn len(&self) -> usize {
        self.len.load(Ordering::Acquire)
    }

    /// The address at an index; `None` where there is none. Of an index that is not held it may change at once.
    #[inline]
    pub fn get(&self, index: usize) -> Option<Gid> {
        self.slots.get(index).map(Slot::gid).filter(|gid| !gid.is_zero())
    }

    /// The addresses by index; zero where there is none, or where the port does not have it any more.
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

    /// Holds an index: its address stays until [`Gids::release`]. `None`: the port has no address there.
    pub fn hold(&self, index: usize) -> Option<Gid> {
        let _changing = self.changing();
        let slot = self.slots.get(index).filter(|slot| slot.live())?;
        slot.holders.fetch_add(1, Ordering::Relaxed);
        Some(slot.gid())
    }

    /// Ends one [`Gids::hold`]. An address that was removed is gone with its last holder.
    pub fn release(&self, index: usize) {
        let _changing = self.changing();
        let slot = &self.slots[index];
        if slot.holders.fetch_sub(1, Ordering::Relaxed) == 1 && slot.removed.load(Ordering::Relaxed) {
            slot.set(Gid::default());
        }
    }

    /// Adds an address at the first free index, or at its old one where somebody still holds that.
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
        self.slots[index].set(gid);
        self.len.fetch_max(index + 1, Ordering::Release);
        Ok(index)
    }

    /// Removes an address; its index, or `None` where the port does not have it. The first one, which belongs to the
    /// port's Ethernet address, stays.
    pub fn remove(&self, gid: &Gid) -> Option<usize> {
        let _changing = self.changing();
        let index = self.slots.iter().position(|slot| slot.gid() == *gid && slot.live())?;
        if index == 0 {
            return None;
        }
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
        assert_eq!((gids.len(), gids.hold(1), gids.hold(2)), (2, Some(a), None));
        assert_eq!(gids.insert(b), Ok(2));
        assert_eq!(
            (gids.insert(b), gids.remove(&c), gids.remove(&own)),
            (Err(GidRefused::Exists), None, None)
        );
        assert_eq!(gids.remove(&a), Some(1));
        assert_eq!((gids.get(1), gids.hold(1), gids.contains(&a)), (Some(a), None, false));
        assert_eq!(gids.snapshot(), [own, Gid::default(), b]);
        assert_eq!(gids.insert(c), Ok(3), "the held index is not used again");
        assert_eq!(gids.insert(a), Ok(1), "its own address comes back to it");
        assert_eq!(gids.remove(&a), Some(1));
        gids.release(1);
        assert_eq!((gids.get(1), gids.remove(&c)), (None, Some(3)));
        assert_eq!(gids.insert(c), Ok(1), "free now");
        let more = (0..GIDS_MAX).map(|n| Gid::v4([10, 1, (n >> 8) as u8, n as u8]));
        assert_eq!(more.filter(|gid| gids.insert(*gid).is_ok()).count(), GIDS_MAX - 3);
        assert_eq!(gids.insert(a), Err(GidRefused::Full));
    }
}
