//! Ranges of memory: what somebody vouches for, and what a key grants of it for a turn.

use core::marker::PhantomData;

/// Memory that may be registered: whoever made this vouches for it.
#[derive(Clone, Copy, Debug)]
pub struct UserMemory {
    addr: u64,
    len: u64,
}

impl UserMemory {
    /// `len` bytes at host address `addr`.
    ///
    /// # Safety
    /// As long as a key may grant something of it, the memory stays mapped, for reading and, as far as the rights let
    /// somebody write, for writing; shards read and write it at any moment ([`racy`](crate::racy)). A key may from its
    /// registration until it was revoked and every shard has passed a turn boundary since: for a region of a device, until
    /// its deregistration has returned without an error.
    pub const unsafe fn new(addr: u64, len: u64) -> Self {
        Self { addr, len }
    }
    /// Part of memory that was vouched for, which the caller has checked, or will before a key grants it.
    pub(super) const fn part(addr: u64, len: u64) -> Self {
        Self { addr, len }
    }
    /// Where there is no memory: for tests that look keys up and copy nothing.
    #[cfg(test)]
    pub(crate) const fn nowhere(addr: u64, len: u64) -> Self {
        Self { addr, len }
    }
    /// Host address of the first byte.
    pub const fn addr(&self) -> u64 {
        self.addr
    }
    /// Bytes.
    pub const fn len(&self) -> u64 {
        self.len
    }
    /// Whether it has no bytes.
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }
}

/// That every shard has passed a turn boundary since the revocation of the key that it is used for.
#[derive(Debug)]
pub struct TurnsPassed(());

impl TurnsPassed {
    /// Says so.
    ///
    /// # Safety
    /// It is true, of every shard that looks keys up in the table.
    pub const unsafe fn new() -> Self {
        Self(())
    }
    /// In tests without shards nobody looks.
    #[cfg(test)]
    pub(crate) const fn nobody_looks() -> Self {
        Self(())
    }
}

/// Bytes that a key was found to grant, good until the end of the turn in which it was looked up. It stays on its thread, and
/// nothing keeps it: what lasts beyond a turn is the key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Place {
    addr: u64,
    len: u64,
    turn: PhantomData<*const ()>,
}

impl Place {
    /// No byte.
    pub const EMPTY: Self = Self { addr: 0, len: 0, turn: PhantomData };

    /// What a lookup has found.
    #[inline(always)]
    pub(crate) const fn found(addr: u64, len: u64) -> Self {
        Self { addr, len, turn: PhantomData }
    }
    /// Host address of the first byte: as a number, to compare or to ask a cache for.
    #[inline(always)]
    pub const fn addr(self) -> u64 {
        self.addr
    }
    /// Bytes.
    #[inline(always)]
    pub const fn len(self) -> u64 {
        self.len
    }
    /// Whether it has no bytes.
    #[inline(always)]
    pub const fn is_empty(self) -> bool {
        self.len == 0
    }
    /// All but the first `n` bytes.
    ///
    /// # Panics
    /// If it has fewer.
    #[inline(always)]
    #[must_use]
    pub fn behind(self, n: usize) -> Self {
        if n as u64 > self.len {
            beyond(n, self.len);
        }
        Self { addr: self.addr + n as u64, len: self.len - n as u64, turn: PhantomData }
    }
    /// Opens `len` bytes for access.
    ///
    /// # Safety
    /// They are accessed in the turn in which the key was looked up, by the functions of [`racy`](crate::racy) alone, and written
    /// only where that is what the lookup asked for.
    ///
    /// # Panics
    /// If it has fewer.
    #[inline(always)]
    pub unsafe fn open(self, len: usize) -> *mut u8 {
        if len as u64 > self.len {
            beyond(len, self.len);
        }
        self.addr as *mut u8
    }
}

#[cold]
#[inline(never)]
fn beyond(wanted: usize, there: u64) -> ! {
    panic!("{wanted} bytes of a place of {there}")
}
