//! Keys whose low 8 bits belong to the user: memory windows and fast-registration regions (IBA 10.6.7, 11.2.8).
//!
//! They are allocated once by a control call, and then come alive and die in work requests, as often as the user
//! likes: [`MrTable::bind`] and [`MrTable::fast_register`] give them a range of memory, [`MrTable::invalidate`] takes
//! it away. Each of them is one step under the table's lock, without a turn boundary; why a lookup is right all the
//! same stands in the [table](super::table)'s documentation.

use super::Access;
use super::issue::{Kind, USER_BITS};
use super::table::{Grant, KeyFault, MemError, MrTable, NO_KEY, TAG_BITS, VARIABLE, WINDOW, region};
use crate::id::{PdId, Qpn};

/// The types of memory window (`enum ibv_mw_type`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
#[repr(u8)]
#[doc(alias = "ibv_mw_type")]
pub enum MwType {
    /// Bound by [`ibv_bind_mw(3)`](https://man7.org/linux/man-pages/man3/ibv_bind_mw.3.html), which chooses the key;
    /// usable through every queue pair of the protection domain; ends by binding it anew.
    One = 1,
    /// Bound by a work request with a key that the user chooses; usable through the queue pair that bound it alone
    /// (type 2B); ends by invalidation.
    Two = 2,
}

/// The same key with the next variant byte (`ibv_inc_rkey(3)`): the low 8 bits count up and wrap.
#[doc(alias = "ibv_inc_rkey")]
pub const fn inc_rkey(rkey: u32) -> u32 {
    const MASK: u32 = (1 << USER_BITS) - 1;
    rkey & !MASK | rkey.wrapping_add(1) & MASK
}

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
    /// The window's key from now on; its low 8 bits are free to choose.
    pub window: u32,
    /// The queue pair that carries the request out.
    pub qpn: Qpn,
    /// Its protection domain.
    pub pd: PdId,
    /// Key of the region.
    pub region: u32,
    /// First byte, as requests name it in the region.
    pub addr: u64,
    /// Bytes; 0 unbinds a window of type 1.
    pub len: u64,
    /// What the peer may do through the window.
    pub access: Access,
}

impl MrTable {
    /// A memory window that is not bound; returns its key.
    ///
    /// # Errors
    /// [`MemError::Full`].
    pub fn alloc_window(&self, pd: PdId, ty: MwType, random: u32) -> Result<u32, MemError> {
        self.free().issue(random, Kind::Window(ty), pd).map(|(_, key)| key).ok_or(MemError::Full)
    }

    /// A region for fast registration, of `len` bytes at host address `addr`, none of which is registered; returns its
    /// key.
    ///
    /// # Errors
    /// [`MemError::InvalidRange`], [`MemError::Full`].
    pub fn alloc_fast(&self, pd: PdId, addr: u64, len: u64, random: u32) -> Result<u32, MemError> {
        addr.checked_add(len).ok_or(MemError::InvalidRange)?;
        let issue = self.free().issue(random, Kind::Fast { addr, len }, pd);
        issue.map(|(_, key)| key).ok_or(MemError::Full)
    }

    /// REG_MR: the region of `key` is its `len` bytes at host address `addr` from now on, with these rights; with
    /// [`Access::ZERO_BASED`] requests name bytes by their offset from `addr`.
    ///
    /// # Errors
    /// [`KeyFault::UnknownKey`] where no fast-registration region has this key, whatever its low 8 bits;
    /// [`KeyFault::WrongPd`]; [`KeyFault::WrongState`] while it is registered; [`KeyFault::NoAccess`] for rights that
    /// no region can have; [`KeyFault::OutOfRange`] where the bytes are not in its memory.
    pub fn fast_register(
        &self,
        key: u32,
        pd: PdId,
        addr: u64,
        len: u64,
        access: Access,
    ) -> Result<(), KeyFault> {
        let mut free = self.free();
        let issue = free.issued(key).ok_or(KeyFault::UnknownKey)?;
        let Kind::Fast { addr: base, len: size } = issue.kind else { return Err(KeyFault::UnknownKey) };
        if issue.pd != pd {
            return Err(KeyFault::WrongPd);
        }
        let slot = self.slot_at((key >> TAG_BITS) as usize);
        if slot.key() != NO_KEY {
            return Err(KeyFault::WrongState);
        }
        if access.intersects(Access::UNSUPPORTED) {
            return Err(KeyFault::NoAccess);
        }
        let grant = region(pd, addr, len, access).map_err(|_| KeyFault::NoAccess)?;
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
    /// [`KeyFault::UnknownKey`] for the window or the region; [`KeyFault::WrongPd`] where they and the queue pair are
    /// not of one domain; [`KeyFault::WrongState`] where a window of type 2 is bound, or is to be unbound like this,
    /// where one of type 1 is to be zero-based, or the region is; [`KeyFault::NoAccess`] for a right that a window
    /// cannot grant, a region without [`Access::MW_BIND`], or one without [`Access::LOCAL_WRITE`] where the peer is to
    /// write; [`KeyFault::OutOfRange`]. The window is as it was.
    pub fn bind(&self, bind: &Bind) -> Result<(), KeyFault> {
        let mut free = self.free();
        let index = (bind.window >> TAG_BITS) as usize;
        let issue = free.issued(bind.window).ok_or(KeyFault::UnknownKey)?;
        let Kind::Window(ty) = issue.kind else { return Err(KeyFault::UnknownKey) };
        if issue.pd != bind.pd {
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
        // From here on nothing fails.
        let Some(grant) = bound else {
            free.unbind(index);
            let _ = window.clear(window.key()); // not bound before: nothing to take away
            return Ok(());
        };
        let region = (bind.region >> TAG_BITS) as u16;
        let qpn = if ty == MwType::Two { bind.qpn.get() } else { 0 };
        free.bind(index, region, qpn);
        window.publish(bind.window, &Grant { qpn, ..grant });
        Ok(())
    }

    /// What the window grants, if the region allows it. Under the lock.
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
        let start = if bind.access.contains(Access::ZERO_BASED) { 0 } else { addr };
        let access = bind.access.bits() | VARIABLE | WINDOW;
        Ok(Grant { pd: bind.pd, access, qpn: 0, start, addr, len: bind.len })
    }

    /// LOCAL_INV, and a peer's SEND with invalidate to queue pair `remote`: takes the key of a fast-registration region
    /// or a window of type 2 away, until it is registered or bound again.
    ///
    /// # Errors
    /// [`KeyFault::UnknownKey`] where nothing alive has all 32 bits of this key; [`KeyFault::WrongPd`];
    /// [`KeyFault::WrongQp`] where the peer names a window that is bound to another queue pair;
    /// [`KeyFault::WrongState`] for an ordinary region, a window of type 1, and a region with windows. The key stays.
    pub fn invalidate(&self, key: u32, pd: PdId, remote: Option<Qpn>) -> Result<(), KeyFault> {
        let mut free = self.free();
        let slot = self.slot(key).filter(|slot| slot.key() == key && key != NO_KEY);
        let (slot, issue) = slot.zip(free.issued(key)).ok_or(KeyFault::UnknownKey)?;
        if issue.pd != pd {
            return Err(KeyFault::WrongPd);
        }
        match issue.kind {
            Kind::Fast { .. } if issue.windows == 0 => {}
            Kind::Window(MwType::Two) if remote.is_none_or(|qpn| qpn.get() == issue.qpn) => {}
            Kind::Window(MwType::Two) => return Err(KeyFault::WrongQp),
            _ => return Err(KeyFault::WrongState),
        }
        slot.clear(key).map_err(|_| KeyFault::UnknownKey)?;
        free.unbind((key >> TAG_BITS) as usize);
        Ok(())
    }

    /// A queue pair is destroyed: the windows of type 2 that it bound are unbound, because its number will be given
    /// out again.
    pub fn forget_qp(&self, qpn: Qpn) {
        let mut free = self.free();
        if free.bound > 0 {
            self.unbind_all(&mut free, |issue| issue.qpn == qpn.get());
        }
    }
}
