//! Ranges of memory: registered ones, whose validity the caller guarantees, and those that a key grants for a turn.

use core::marker::PhantomData;

/// Memory that may be registered. The code that made this guarantees its validity.
#[derive(Clone, Copy, Debug)]
pub struct UserMemory {
    addr: u64,
    len: u64,
    /// The address by which requests name the first byte.
    iova: u64,
}

impl UserMemory {
    /// Describes `len` bytes at host address `addr`.
    ///
    /// # Safety
    /// While a key may grant access to any of it, the memory stays mapped: readable, and as far as the rights allow anyone to write,
    /// writable. Shards read and write it at any time ([`racy`](crate::racy)). A key may grant access from its registration until it was
    /// revoked and every shard has passed a turn boundary since: for a region of a device, until its deregistration has returned without an
    /// error.
    ///
    /// With [`Access::ON_DEMAND`](crate::mem::Access::ON_DEMAND) the memory need not stay mapped. Whatever is mapped there at the time of
    /// an access is accessed.
    pub const unsafe fn new(addr: u64, len: u64) -> Self {
        Self { addr, len, iova: addr }
    }
    /// Part of memory whose validity is guaranteed; the caller has checked the range, or will before a key grants it.
    pub(super) const fn part(addr: u64, len: u64) -> Self {
        Self { addr, len, iova: addr }
    }
    /// No memory: for tests that look keys up and copy nothing.
    #[cfg(test)]
    pub(crate) const fn nowhere(addr: u64, len: u64) -> Self {
        Self { addr, len, iova: addr }
    }
    /// The same memory, with another address by which requests name the first byte.
    #[must_use]
    pub const fn at_iova(self, iova: u64) -> Self {
        Self { iova, ..self }
    }
    /// The address by which requests name the first byte: the host address, unless another one was chosen.
    pub const fn iova(&self) -> u64 {
        self.iova
    }
    /// Host address of the first byte.
    pub const fn addr(&self) -> u64 {
        self.addr
    }
    /// Length in bytes.
    pub const fn len(&self) -> u64 {
        self.len
    }
    /// Whether it has no bytes.
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }
}

/// Proof that the grace period of a revoked key is over: every shard has passed a turn boundary since.
#[derive(Debug)]
pub struct TurnsPassed(());

impl TurnsPassed {
    /// Makes the proof.
    ///
    /// # Safety
    /// Every shard that looks keys up in the table has passed a turn boundary since the revocation.
    pub const unsafe fn new() -> Self {
        Self(())
    }
    /// For tests without shards, where no lookup is under way.
    #[cfg(test)]
    pub(crate) const fn without_shards() -> Self {
        Self(())
    }
}

/// Bytes that a key grants, valid until the end of the turn in which the key was looked up. It stays on its thread and is not stored: what
/// lasts beyond a turn is the key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct GrantedRange {
    addr: u64,
    /// Length in bytes. A range that is not accessed directly has marks in the upper bits: as a signed number the length is then negative,
    /// and so shorter than any access.
    len: u64,
    turn: PhantomData<*const ()>,
}

/// A mark in the length of a range: its bytes may be unmapped, so the kernel copies them.
const BY_KERNEL: u64 = 1 << 63;
/// A second mark, together with [`BY_KERNEL`]: there is no memory.
const NOWHERE: u64 = 1 << 62;

/// How to access a range that is not accessed directly.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Indirect {
    /// By system calls, from this address on: the bytes may not be mapped.
    ByKernel(u64),
    /// There is no memory: what is written is discarded, and zeros are read.
    Nowhere,
}

impl GrantedRange {
    /// No byte.
    pub const EMPTY: Self = Self { addr: 0, len: 0, turn: PhantomData };

    /// Makes the result of a lookup.
    #[inline(always)]
    pub(crate) const fn found(addr: u64, len: u64) -> Self {
        Self { addr, len, turn: PhantomData }
    }
    /// The same bytes, which may not be mapped.
    #[inline]
    pub(super) const fn by_kernel(self) -> Self {
        Self { len: self.len | BY_KERNEL, ..self }
    }
    /// A range of the same length without memory.
    #[inline]
    pub(super) const fn nowhere(self) -> Self {
        Self { len: self.len | BY_KERNEL | NOWHERE, ..self }
    }
    /// Whether [`open`](Self::open) returns its bytes.
    #[inline(always)]
    pub const fn is_direct(self) -> bool {
        self.len as i64 >= 0
    }
    /// Host address of the first byte: as a number, to compare or to prefetch.
    #[inline(always)]
    pub const fn addr(self) -> u64 {
        self.addr
    }
    /// Length in bytes.
    #[inline(always)]
    pub const fn len(self) -> u64 {
        self.len & !(BY_KERNEL | NOWHERE)
    }
    /// Whether it has no bytes.
    #[inline(always)]
    pub const fn is_empty(self) -> bool {
        self.len() == 0
    }
    /// The range without its first `n` bytes.
    ///
    /// # Panics
    /// If it has fewer.
    #[inline(always)]
    #[must_use]
    pub fn behind(self, n: usize) -> Self {
        if n as u64 > self.len() {
            beyond(n, self.len());
        }
        Self { addr: self.addr + n as u64, len: self.len - n as u64, turn: PhantomData }
    }
    /// Opens `len` bytes for access; `None` for a range that is [indirect](Self::indirect).
    ///
    /// # Safety
    /// The bytes are accessed only in the turn in which the key was looked up, only by the functions of [`racy`](crate::racy) or by loads
    /// like theirs (`crc/line.rs`), and written only if the lookup was for a right to write.
    ///
    /// # Panics
    /// If it has fewer.
    #[inline(always)]
    pub unsafe fn open(self, len: usize) -> Option<*mut u8> {
        if len as i64 <= self.len as i64 { Some(self.addr as *mut u8) } else { self.not_open(len) }
    }

    #[cold]
    #[inline(never)]
    fn not_open(self, len: usize) -> Option<*mut u8> {
        if self.is_direct() || len as u64 > self.len() {
            beyond(len, self.len());
        }
        None
    }

    /// How to access a range for which [`open`](Self::open) returns `None`.
    #[cold]
    pub const fn indirect(self) -> Indirect {
        if self.len & NOWHERE == 0 { Indirect::ByKernel(self.addr) } else { Indirect::Nowhere }
    }
}

#[cold]
#[inline(never)]
fn beyond(wanted: usize, there: u64) -> ! {
    panic!("{wanted} bytes of a range of {there}")
}
