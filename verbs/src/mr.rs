//! Memory regions: registration, keys and checked access. The memory itself is handled in `memory.rs`.
//!
//! A region that owns its buffer never lends a reference to it, because peers and the shards of this process may write to it at any moment.
//! The safe API accesses it only through the functions that shards use too ([`racy`]), which are opaque to the compiler. A reader sees some
//! mix of old and new bytes but causes no undefined behaviour, and an aligned 8-byte word that is accessed as a word is always read and
//! written as a whole. One restriction is left to the program: a buffer that is being sent must not be changed until its request has
//! completed (see [`racy`]).

#![allow(unsafe_code, reason = "registered memory is raw memory")]

use core::marker::PhantomData;
use core::ops::Range;
use core::sync::atomic::Ordering;
use std::sync::Arc;

use stack::device::{Access, DeviceError, MemError, MrCore, PdCore, Sge, racy};

use crate::error::VerbsError;
use crate::memory::Memory;
use crate::pd::Pd;

/// A registered memory region (`struct ibv_mr`).
///
/// Created by [`Pd::reg_mr`], which allocates its buffer, by [`Pd::reg_mr_raw`] over memory of the program, or by [`Pd::alloc_mr`] for fast
/// registration. Dropping it deregisters it and unbinds its memory windows. Requests that name it and have not started yet then end with a
/// protection error, here or at the peer.
#[derive(Debug)]
#[doc(alias = "ibv_mr")]
pub struct Mr {
    core: MrCore,
    /// The address of the first byte in requests, unless the region is zero-based.
    iova: u64,
    pub(crate) memory: Memory,
}

/// What to change in a region (`ibv_rereg_mr(3)`). A field that is `None` changes nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct Rereg<'a> {
    /// The new protection domain (`IBV_REREG_MR_CHANGE_PD`).
    pub pd: Option<&'a Pd>,
    /// The length in bytes of a new buffer (`IBV_REREG_MR_CHANGE_TRANSLATION`).
    pub len: Option<usize>,
    /// The new access rights (`IBV_REREG_MR_CHANGE_ACCESS`).
    pub access: Option<Access>,
}

impl Pd {
    /// Registers a new, zeroed buffer of `len` bytes, which the region owns. The buffer starts on a page boundary, from 2 MiB on at a huge
    /// page boundary.
    ///
    /// ```
    /// # use verbs::{Access, Context, DeviceConfig};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let context = Context::open(DeviceConfig::loopback())?;
    /// let pd = context.alloc_pd()?;
    /// let mr = pd.reg_mr(4096, Access::LOCAL_WRITE | Access::REMOTE_READ)?;
    /// mr.write(0, b"for whoever has the key")?;
    /// println!("read it at {:#x} with key {:#x}", mr.addr(), mr.rkey());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// `EINVAL` for rights that cannot be combined (remote write or atomic without local write, ibv_reg_mr(3)); `EOPNOTSUPP` for those that
    /// this device does not have ([`Access::UNSUPPORTED`]); `ENOMEM` if no memory or no key is left. [`Access::RELAXED_ORDERING`] and
    /// [`Access::HUGETLB`] are hints that have no effect here.
    #[doc(alias = "ibv_reg_mr")]
    pub fn reg_mr(&self, len: usize, access: Access) -> Result<Mr, VerbsError> {
        Mr::register(self.core(), Memory::alloc(len)?, None, access)
    }

    /// As [`reg_mr`](Self::reg_mr), but requests name the first byte by the address `iova` (I/O virtual address), here and at the peer. It
    /// may be 0 or any other number that the program and its peer agree on. The methods of [`Mr`] still count bytes from 0.
    ///
    /// ```
    /// # use verbs::{Access, Context, DeviceConfig};
    /// # fn main() -> Result<(), verbs::VerbsError> {
    /// # let pd = Context::open(DeviceConfig::loopback())?.alloc_pd()?;
    /// let mr = pd.reg_mr_iova(4096, 0x1000_0000, Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
    /// assert_eq!(mr.sge(16..32)?.addr, 0x1000_0010);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`reg_mr`](Self::reg_mr); `EINVAL` if `iova + len` is beyond 2^64, and for an `iova` other than 0 or the buffer's address
    /// together with [`Access::ZERO_BASED`].
    #[doc(alias = "ibv_reg_mr_iova")]
    #[doc(alias = "ibv_reg_mr_iova2")]
    pub fn reg_mr_iova(&self, len: usize, iova: u64, access: Access) -> Result<Mr, VerbsError> {
        Mr::register(self.core(), Memory::alloc(len)?, Some(iova), access)
    }

    /// Allocates a null region, which covers every address and has no memory. Data that a receive or a READ stores with its key is
    /// discarded, and a SEND or a WRITE reads zeros from it, so a scatter/gather list can skip bytes of a message. The key is local: peers
    /// cannot use it.
    ///
    /// ```
    /// # use verbs::{Context, DeviceConfig};
    /// # fn main() -> Result<(), verbs::VerbsError> {
    /// # let pd = Context::open(DeviceConfig::loopback())?.alloc_pd()?;
    /// let null = pd.alloc_null_mr()?;
    /// let skipped = null.sge(512);
    /// # assert_eq!((skipped.length, skipped.lkey), (512, null.lkey()));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// `ENOMEM` if no key is left.
    #[doc(alias = "ibv_alloc_null_mr")]
    pub fn alloc_null_mr(&self) -> Result<NullMr, VerbsError> {
        Ok(NullMr(self.core().alloc_null_mr()?))
    }

    /// Allocates a region for fast registration and a new, zeroed buffer of `len` bytes, which it owns. Its key grants nothing until a
    /// [`SendWr::reg_mr`](crate::SendWr::reg_mr) request registers all or part of the buffer.
    ///
    /// # Errors
    /// `ENOMEM` if no memory or no key is left.
    #[doc(alias = "ib_alloc_mr")]
    pub fn alloc_mr(&self, len: usize) -> Result<Mr, VerbsError> {
        let memory = Memory::alloc(len)?;
        let user = memory.vouched();
        Ok(Mr { core: self.core().alloc_mr(user)?, iova: user.addr(), memory })
    }

    /// Registers a new buffer with a copy of `data`.
    ///
    /// # Errors
    /// As [`reg_mr`](Self::reg_mr).
    pub fn reg_mr_from(&self, data: &[u8], access: Access) -> Result<Mr, VerbsError> {
        let mr = self.reg_mr(data.len(), access)?;
        mr.write(0, data)?;
        Ok(mr)
    }

    /// Registers memory that belongs to the caller, and faults the range in.
    ///
    /// # Safety
    /// Until the region is deregistered, or the region and its pins ([`Mr::pin`]) are dropped, `addr..addr + len` must stay mapped and
    /// valid for reads, and with [`Access::LOCAL_WRITE`] for writes. Peers, shards and the methods of [`Mr`] access it at any moment, from
    /// other threads. During that time no reference to it (`&[u8]`, `&mut [u8]`) may exist, and accesses must be volatile or atomic, or
    /// ordered by completions.
    ///
    /// With [`Access::ON_DEMAND`] the memory must be mapped only while a method of [`Mr`] accesses it. A request, local or of a peer, that
    /// accesses an unmapped page fails. If the program has mapped something else there, the request accesses that.
    ///
    /// # Errors
    /// As [`reg_mr`](Self::reg_mr); `EFAULT` if the memory is not mapped with these rights.
    #[doc(alias = "ibv_reg_mr")]
    pub unsafe fn reg_mr_raw(&self, addr: *mut u8, len: usize, access: Access) -> Result<Mr, VerbsError> {
        // SAFETY: as the caller promises.
        let memory = unsafe { Memory::of_program(addr, len, access) }?;
        Mr::register(self.core(), memory, None, access)
    }

    /// As [`reg_mr_raw`](Self::reg_mr_raw), but requests name the first byte by `iova`, as with [`reg_mr_iova`](Self::reg_mr_iova).
    ///
    /// # Safety
    /// As for `reg_mr_raw`.
    ///
    /// # Errors
    /// As `reg_mr_raw`, and as [`reg_mr_iova`](Self::reg_mr_iova).
    #[doc(alias = "ibv_reg_mr_iova")]
    #[doc(alias = "ibv_reg_mr_iova2")]
    pub unsafe fn reg_mr_iova_raw(
        &self,
        addr: *mut u8,
        len: usize,
        iova: u64,
        access: Access,
    ) -> Result<Mr, VerbsError> {
        // SAFETY: as the caller promises.
        let memory = unsafe { Memory::of_program(addr, len, access) }?;
        Mr::register(self.core(), memory, Some(iova), access)
    }
}

/// A region without memory, from [`Pd::alloc_null_mr`]. Dropping it deregisters it.
#[derive(Debug)]
#[doc(alias = "ibv_alloc_null_mr")]
pub struct NullMr(MrCore);

impl NullMr {
    /// The local key, for [`Sge`].
    pub fn lkey(&self) -> u32 {
        self.0.key()
    }
    /// A scatter/gather element that skips `length` bytes.
    pub fn sge(&self, length: u32) -> Sge {
        Sge { addr: 0, length, lkey: self.lkey() }
    }
}

impl Drop for Mr {
    fn drop(&mut self) {
        if self.core.dereg_with_windows().is_err() {
            // Deregistering failed (inside a turn, or in a forked child), so the key may still be in use. Memory that a peer may reach is
            // never freed.
            self.memory.leak();
        }
    }
}

impl Mr {
    /// Registers memory. Requests name its first byte by `iova` if given, otherwise by its address.
    fn register(
        pd: &Arc<PdCore>,
        memory: Memory,
        iova: Option<u64>,
        access: Access,
    ) -> Result<Self, VerbsError> {
        let user = memory.vouched();
        let iova = iova.unwrap_or(user.addr());
        if access.contains(Access::ZERO_BASED) && iova != 0 && iova != user.addr() {
            return Err(VerbsError::ZeroBased { iova });
        }
        let core = pd.reg_mr(user.at_iova(iova), access)?;
        Ok(Self { core, iova, memory })
    }
    pub(crate) fn pd_core(&self) -> &Arc<PdCore> {
        self.core.pd()
    }
    /// Makes every check of a fast registration that is possible when it is posted.
    pub(crate) fn may_fast_register(&self, range: &Range<usize>, access: Access) -> Result<(), VerbsError> {
        if !self.core.is_fast() {
            return Err(
                DeviceError::WrongKind { call: "REG_MR", wanted: "region for fast registration" }.into()
            );
        }
        if access.intersects(Access::UNSUPPORTED) {
            let what = format!("{:?}", access & Access::UNSUPPORTED);
            return Err(DeviceError::Access { what }.into());
        }
        if !access.is_valid() {
            return Err(DeviceError::Memory(MemError::InvalidAccess).into());
        }
        self.contains(range)
    }
    /// Chooses the low 8 bits of the key for the next [`SendWr::reg_mr`](crate::SendWr::reg_mr) of a region for fast registration. Returns
    /// the new key, which [`rkey`](Self::rkey) and [`lkey`](Self::lkey) also return from then on. A registration that is in effect keeps
    /// its previous key; to name it in requests, remember that key.
    ///
    /// # Errors
    /// `EINVAL` for an ordinary region.
    #[doc(alias = "ib_update_fast_reg_key")]
    pub fn update_fast_reg_key(&self, variant: u8) -> Result<u32, VerbsError> {
        Ok(self.core.update_key(variant)?)
    }

    /// Changes the region's protection domain, buffer and rights, each if given. The key stays the same, and grants nothing during the
    /// call. A new buffer is zeroed, and requests name it by its address. When the call returns, no shard refers to the old buffer, and it
    /// has been freed.
    ///
    /// # Errors
    /// As [`Pd::reg_mr`]; `EBUSY` while memory windows are bound to the region or pins of it exist; `EINVAL` for a region for fast
    /// registration, a protection domain of another context, or [`Access::LOCAL_WRITE`] on memory of the caller that was registered without
    /// it; `EDEADLK` from inside a turn. The region is then unchanged (in ibv_rereg_mr(3): `IBV_REREG_MR_ERR_INPUT`).
    #[doc(alias = "ibv_rereg_mr")]
    pub fn rereg(&mut self, change: &Rereg<'_>) -> Result<(), VerbsError> {
        let memory = change.len.map(Memory::alloc).transpose()?;
        let kept = memory.as_ref().unwrap_or(&self.memory);
        let writes = change.access.unwrap_or(self.core.access()).contains(Access::LOCAL_WRITE);
        if writes && !kept.is_writable() {
            return Err(VerbsError::ReadOnly);
        }
        self.change(change, memory)
    }

    /// As [`rereg`](Self::rereg), but with memory that belongs to the caller instead of a new buffer. `change.len` is ignored. The range is
    /// faulted in.
    ///
    /// # Safety
    /// As for [`Pd::reg_mr_raw`].
    ///
    /// # Errors
    /// As [`rereg`](Self::rereg); `EFAULT` if the memory is not mapped with these rights.
    #[doc(alias = "ibv_rereg_mr")]
    pub unsafe fn rereg_raw(
        &mut self,
        addr: *mut u8,
        len: usize,
        change: &Rereg<'_>,
    ) -> Result<(), VerbsError> {
        let access = change.access.unwrap_or(self.core.access());
        // SAFETY: as the caller promises.
        let memory = unsafe { Memory::of_program(addr, len, access) }?;
        self.change(change, Some(memory))
    }

    /// As [`rereg`](Self::rereg), but the region keeps its memory, which belongs to the caller. It may get [`Access::LOCAL_WRITE`] even if
    /// it was registered without it; the range is then faulted in for writing. `change.len` is ignored.
    ///
    /// # Safety
    /// As for [`Pd::reg_mr_raw`], with the rights that the region has after the call.
    ///
    /// # Errors
    /// As [`rereg`](Self::rereg); `EFAULT` if the memory is not mapped for writing.
    #[doc(alias = "ibv_rereg_mr")]
    pub unsafe fn rereg_in_place_raw(&mut self, change: &Rereg<'_>) -> Result<(), VerbsError> {
        let access = change.access.unwrap_or(self.core.access());
        let is_new = access.contains(Access::LOCAL_WRITE) && !self.memory.is_writable();
        if is_new && !self.core.access().contains(Access::ON_DEMAND) {
            self.memory.check_writes()?;
        }
        self.change(change, None)?;
        if is_new {
            // SAFETY: as the caller promises.
            unsafe { self.memory.allow_writes() };
        }
        Ok(())
    }

    /// Changes the region. `memory` replaces its memory if given.
    fn change(&mut self, change: &Rereg<'_>, memory: Option<Memory>) -> Result<(), VerbsError> {
        self.not_pinned()?;
        // New memory is named by its own address; memory that is kept, by the same address as before.
        let user = match &memory {
            Some(memory) => memory.vouched(),
            None => self.memory.vouched().at_iova(self.iova),
        };
        // Memory that is kept may be unmapped now, so it stays on demand, whatever the new rights are.
        let kept = if memory.is_none() { self.core.access() & Access::ON_DEMAND } else { Access::empty() };
        self.core.rereg(change.pd.map(Pd::core), user, change.access.map(|access| access | kept))?;
        self.iova = user.iova();
        if let Some(memory) = memory {
            self.memory = memory; // the old buffer is freed: no shard refers to it
        }
        Ok(())
    }

    /// Fails while pins of the memory exist.
    fn not_pinned(&self) -> Result<(), DeviceError> {
        match self.memory.others() {
            0 => Ok(()),
            users => Err(DeviceError::Busy { object: "memory of the region", users }),
        }
    }

    /// The local key, for use in an [`Sge`].
    #[inline]
    pub fn lkey(&self) -> u32 {
        self.core.key()
    }
    /// The remote key, to give to peers. The same number as [`lkey`](Self::lkey).
    #[inline]
    pub fn rkey(&self) -> u32 {
        self.core.key()
    }
    /// The address of the first byte in this process (`addr` of `struct ibv_mr`). Requests name the byte by [`iova`](Self::iova), which is
    /// the same unless another one was chosen.
    #[inline]
    pub fn addr(&self) -> u64 {
        self.as_ptr() as u64
    }
    /// The address of the first byte in requests, to give to peers: the one given to [`Pd::reg_mr_iova`], 0 for a zero-based region,
    /// otherwise [`addr`](Self::addr).
    #[inline]
    pub fn iova(&self) -> u64 {
        if self.core.access().contains(Access::ZERO_BASED) { 0 } else { self.iova }
    }
    /// Length in bytes.
    #[inline]
    pub fn len(&self) -> usize {
        self.memory.len()
    }
    /// Whether the region has no bytes.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// The current access rights.
    pub fn access(&self) -> Access {
        self.core.access()
    }
    /// A pointer to the first byte. Accesses through it race with peers and shards: use volatile or atomic accesses, within
    /// [`len`](Self::len) and the lifetime of the region.
    #[inline]
    pub fn as_ptr(&self) -> *mut u8 {
        self.memory.as_ptr()
    }

    /// A scatter/gather element for a range of bytes.
    ///
    /// A hot loop that needs millions of elements per second for buffers of the same size may create one element and advance its `addr`. An
    /// element outside of the region is refused when it is used.
    ///
    /// # Errors
    /// [`VerbsError::OutOfRegion`] if the range is not inside the region or is longer than 2^32 - 1 bytes.
    #[inline]
    pub fn sge(&self, range: Range<usize>) -> Result<Sge, VerbsError> {
        if range.start > range.end || range.end > self.len() || range.end - range.start > u32::MAX as usize {
            return Err(self.outside(range.start, range.end));
        }
        Ok(Sge {
            addr: self.iova() + range.start as u64,
            length: (range.end - range.start) as u32,
            lkey: self.lkey(),
        })
    }

    /// Copies `out.len()` bytes at `offset` out of the region.
    ///
    /// # Errors
    /// [`VerbsError::OutOfRegion`].
    pub fn read(&self, offset: usize, out: &mut [u8]) -> Result<(), VerbsError> {
        self.within(offset, out.len())?;
        self.memory.read(offset, out);
        Ok(())
    }

    /// Copies `data` into the region at `offset`.
    ///
    /// # Errors
    /// [`VerbsError::OutOfRegion`]; [`VerbsError::ReadOnly`].
    pub fn write(&self, offset: usize, data: &[u8]) -> Result<(), VerbsError> {
        self.within(offset, data.len())?;
        self.writable()?;
        self.memory.write(offset, data);
        Ok(())
    }

    /// Copies a range of another region, or of this one, into the region at `offset`. If source and destination overlap, the result is
    /// unspecified.
    ///
    /// # Errors
    /// [`VerbsError::OutOfRegion`], for either region; [`VerbsError::ReadOnly`].
    #[inline]
    pub fn copy_from(&self, offset: usize, from: &Self, range: Range<usize>) -> Result<(), VerbsError> {
        from.contains(&range)?;
        self.within(offset, range.len())?;
        self.writable()?;
        self.memory.copy_from(offset, &from.memory, range.start, range.len());
        Ok(())
    }

    /// Prefetches the cache lines of a range that is about to be read, written or sent, without waiting for them. For programs that know
    /// several ranges at random places in advance: when these are prefetched in sequence, their cache misses and page walks overlap. Does
    /// nothing for a range that is not inside the region.
    #[inline]
    pub fn prefetch(&self, range: Range<usize>) {
        if self.contains(&range).is_ok() {
            self.memory.prefetch(range.start, range.len());
        }
    }

    /// Returns the memory of whole pages to the operating system, for a region that allocated its buffer
    /// ([`Pd::reg_mr`](crate::Pd::reg_mr)). The pages then read as zeros and are allocated again when they are written. Returns whether
    /// this was done. It is not done for a range that does not consist of whole pages or is not inside the region, for memory of the
    /// program, or while the region is pinned.
    pub fn discard(&self, range: Range<usize>) -> bool {
        self.contains(&range).is_ok()
            && self.memory.is_writable()
            && self.memory.discard(range.start, range.len())
    }

    /// Sets a range of bytes to `value`.
    ///
    /// # Errors
    /// [`VerbsError::OutOfRegion`]; [`VerbsError::ReadOnly`].
    pub fn fill(&self, range: Range<usize>, value: u8) -> Result<(), VerbsError> {
        let len = range.end.checked_sub(range.start).ok_or_else(|| self.outside(range.start, range.end))?;
        self.within(range.start, len)?;
        self.writable()?;
        self.memory.fill(range.start, len, value);
        Ok(())
    }

    /// A copy of a range of bytes.
    ///
    /// # Errors
    /// [`VerbsError::OutOfRegion`].
    pub fn to_vec(&self, range: Range<usize>) -> Result<Vec<u8>, VerbsError> {
        let len = range.end.checked_sub(range.start).ok_or_else(|| self.outside(range.start, range.end))?;
        self.within(range.start, len)?;
        let mut out = vec![0; len];
        self.read(range.start, &mut out)?;
        Ok(out)
    }

    /// Loads one byte with acquire ordering: what the peer wrote before the byte is visible after the load. For a program that spins on the
    /// last byte of a message.
    ///
    /// # Errors
    /// [`VerbsError::OutOfRegion`].
    #[inline]
    pub fn read_u8(&self, offset: usize) -> Result<u8, VerbsError> {
        self.within(offset, 1)?;
        Ok(self.memory.load_u8(offset))
    }

    /// The 8 bytes at `offset` as an atomic word in host byte order. It is atomic with respect to remote atomics and to the CPUs.
    ///
    /// # Errors
    /// [`VerbsError::OutOfRegion`]; [`VerbsError::Misaligned`] if the address is not a multiple of 8; [`VerbsError::ReadOnly`].
    #[inline]
    pub fn atomic_u64(&self, offset: usize) -> Result<AtomicWord<'_>, VerbsError> {
        self.writable()?;
        Ok(AtomicWord { word: self.aligned_word(offset)?, region: PhantomData })
    }
    /// The address of the 8 bytes at `offset`, after checking range and alignment.
    #[inline]
    fn aligned_word(&self, offset: usize) -> Result<*mut u64, VerbsError> {
        self.within(offset, 8)?;
        let addr = self.addr() + offset as u64;
        if addr & 7 != 0 {
            return Err(VerbsError::Misaligned { addr });
        }
        Ok(self.memory.at(offset, 8).cast())
    }

    /// Reads the 8 bytes at `offset` as a number in host byte order, atomically, with acquire ordering.
    ///
    /// # Errors
    /// [`VerbsError::OutOfRegion`]; [`VerbsError::Misaligned`] if the address is not a multiple of 8.
    #[inline]
    pub fn read_u64(&self, offset: usize) -> Result<u64, VerbsError> {
        // SAFETY: `aligned_word` has checked that the word exists and is aligned.
        Ok(unsafe { racy::load_u64(self.aligned_word(offset)?) })
    }

    /// Stores a number in host byte order into the 8 bytes at `offset`, atomically, with release ordering.
    ///
    /// # Errors
    /// As for [`atomic_u64`](Self::atomic_u64).
    #[inline]
    pub fn write_u64(&self, offset: usize, value: u64) -> Result<(), VerbsError> {
        self.writable()?;
        // SAFETY: `aligned_word` has checked that the word exists and is aligned; the region is writable.
        unsafe { racy::store_u64(self.aligned_word(offset)?, value) };
        Ok(())
    }

    /// Deregisters the region and frees its buffer. When the call returns, no shard refers to the memory.
    ///
    /// # Errors
    /// `EBUSY` while memory windows are bound to it or pins of it exist ([`Mr::pin`]); `EDEADLK` from inside a turn. The region is returned
    /// with the error.
    #[doc(alias = "ibv_dereg_mr")]
    pub fn dereg(self) -> Result<(), (VerbsError, Self)> {
        match self.not_pinned().and_then(|()| self.core.dereg()) {
            Ok(()) => Ok(()),
            Err(e) => Err((e.into(), self)),
        }
    }

    /// Checks that a range of bytes is inside the region.
    pub(crate) fn contains(&self, range: &Range<usize>) -> Result<(), VerbsError> {
        let len = range.end.checked_sub(range.start).ok_or_else(|| self.outside(range.start, range.end))?;
        self.within(range.start, len)
    }
    /// Checks that `len` bytes at `offset` are inside the region.
    #[inline]
    pub(crate) fn within(&self, offset: usize, len: usize) -> Result<(), VerbsError> {
        match offset.checked_add(len) {
            Some(end) if end <= self.len() => Ok(()),
            end => Err(self.outside(offset, end.unwrap_or(usize::MAX))),
        }
    }
    /// Fails if the region may not be written.
    #[inline]
    pub(crate) fn writable(&self) -> Result<(), VerbsError> {
        if self.memory.is_writable() { Ok(()) } else { Err(VerbsError::ReadOnly) }
    }
    /// The error for a range outside of the region.
    fn outside(&self, start: usize, end: usize) -> VerbsError {
        VerbsError::OutOfRegion { start: start as u64, end: end as u64, len: self.len() as u64 }
    }
}

/// A word of a region, from [`Mr::atomic_u64`]. It works like `AtomicU64`, but on memory that peers and shards may access with other sizes
/// at the same time, which Rust's atomics do not allow. Loads acquire, stores release, and read-modify-write operations are sequentially
/// consistent. A weaker `Ordering` is accepted and strengthened to that.
#[derive(Clone, Copy, Debug)]
pub struct AtomicWord<'a> {
    word: *mut u64,
    region: PhantomData<&'a Mr>,
}

// SAFETY: as for `Memory`; the borrow of the region keeps it alive.
unsafe impl Send for AtomicWord<'_> {}
// SAFETY: as above.
unsafe impl Sync for AtomicWord<'_> {}

// SAFETY of every block: `Mr::atomic_u64` has checked the word, and the borrow of the region keeps it valid.
impl AtomicWord<'_> {
    /// Loads the word.
    ///
    /// # Panics
    /// As `AtomicU64::load`: for `Release` and `AcqRel`.
    #[inline]
    pub fn load(&self, order: Ordering) -> u64 {
        assert!(!matches!(order, Ordering::Release | Ordering::AcqRel), "a load cannot release");
        // SAFETY: see above.
        let value = unsafe { racy::load_u64(self.word) };
        if order == Ordering::SeqCst {
            core::sync::atomic::fence(Ordering::SeqCst);
        }
        value
    }
    /// Stores a value.
    ///
    /// # Panics
    /// As `AtomicU64::store`: for `Acquire` and `AcqRel`.
    #[inline]
    pub fn store(&self, value: u64, order: Ordering) {
        assert!(!matches!(order, Ordering::Acquire | Ordering::AcqRel), "a store cannot acquire");
        if order == Ordering::SeqCst {
            self.swap(value, order);
            return;
        }
        // SAFETY: see above.
        unsafe { racy::store_u64(self.word, value) }
    }
    /// Stores a value and returns the previous one.
    #[inline]
    pub fn swap(&self, value: u64, _: Ordering) -> u64 {
        // SAFETY: see above.
        unsafe { racy::swap_u64(self.word, value) }
    }
    /// Adds with wrap-around and returns the previous value.
    #[inline]
    pub fn fetch_add(&self, add: u64, _: Ordering) -> u64 {
        // SAFETY: see above.
        unsafe { racy::fetch_add_u64(self.word, add) }
    }
    /// Subtracts with wrap-around and returns the previous value.
    #[inline]
    pub fn fetch_sub(&self, sub: u64, order: Ordering) -> u64 {
        self.fetch_add(sub.wrapping_neg(), order)
    }
    /// Stores `new` if the word equals `current`. Returns the previous value.
    ///
    /// # Errors
    /// The previous value, if it differs from `current`.
    #[inline]
    pub fn compare_exchange(&self, current: u64, new: u64, _: Ordering, _: Ordering) -> Result<u64, u64> {
        // SAFETY: see above.
        let was = unsafe { racy::compare_exchange_u64(self.word, current, new) };
        if was == current { Ok(was) } else { Err(was) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::errno::EFAULT;
    use crate::{Context, DeviceConfig, QpInitAttr, RcOptions, SendWr, Wc};

    const RIGHTS: Access = Access::LOCAL_WRITE.union(Access::REMOTE_WRITE);

    // This test is here and not with the other tests of the API because this file may use `unsafe`.
    #[test]
    fn raw_memory_is_checked_and_used() {
        let context = Context::open(DeviceConfig::loopback()).unwrap();
        let (pd, cq) = (context.alloc_pd().unwrap(), context.create_cq(4).unwrap());
        let qp = pd.create_qp(&QpInitAttr::rc(&cq, &cq)).unwrap();
        let options = RcOptions::default().sgid_index(1);
        qp.connect_rc(&qp.endpoint(1).unwrap(), &options).unwrap();
        let mut memory = vec![7u8; 10_000];
        // SAFETY: the vector outlives the region and is only touched through it meanwhile.
        let raw = unsafe { pd.reg_mr_raw(memory.as_mut_ptr(), memory.len(), RIGHTS) }.unwrap();
        qp.post_send(&[SendWr::write(1, &[], raw.addr() + 5001, raw.rkey()).inline(b"data").signaled()])
            .unwrap();
        let mut wc = [Wc::default()];
        while cq.poll(&mut wc).unwrap() == 0 {}
        assert!(wc[0].is_ok(), "{wc:?}");
        raw.dereg().unwrap();
        assert_eq!(&memory[5000..5006], b"\x07data\x07");
        // SAFETY: as above.
        let raw = unsafe { pd.reg_mr_iova_raw(memory.as_mut_ptr(), memory.len(), u64::MAX - 10_000, RIGHTS) };
        let raw = raw.unwrap();
        assert_eq!((raw.addr(), raw.iova()), (memory.as_ptr() as u64, u64::MAX - 10_000));
        qp.post_send(&[SendWr::write(1, &[], raw.iova() + 1, raw.rkey()).inline(b"iova").signaled()])
            .unwrap();
        while cq.poll(&mut wc).unwrap() == 0 {}
        assert!(wc[0].is_ok(), "{wc:?}");
        raw.dereg().unwrap();
        assert_eq!(&memory[..6], b"\x07iova\x07");
        // SAFETY: refused, so it is never accessed.
        let e = unsafe { pd.reg_mr_iova_raw(memory.as_mut_ptr(), 10_000, u64::MAX - 9_998, RIGHTS) };
        assert_eq!(e.unwrap_err().errno(), crate::errno::EINVAL);
    }

    // Goal: a prefetch changes nothing and never fails, whatever the range.
    #[test]
    fn any_range_can_be_prefetched() {
        let pd = Context::open(DeviceConfig::loopback()).unwrap().alloc_pd().unwrap();
        let mr = pd.reg_mr(1000, RIGHTS).unwrap();
        mr.fill(0..1000, 7).unwrap();
        let backwards = Range { start: 1000, end: 0 };
        for range in [0..1000, 0..0, 999..1000, 1000..1000, 0..1001, 5000..usize::MAX, backwards] {
            mr.prefetch(range);
        }
        assert_eq!(mr.to_vec(0..1000).unwrap(), [7; 1000]);
    }

    // Goal: rereg_raw registers other memory of the caller under the same key; memory registered without write access does not get it.
    #[test]
    fn raw_memory_is_registered_again() {
        let context = Context::open(DeviceConfig::loopback()).unwrap();
        let pd = context.alloc_pd().unwrap();
        let mut memory = vec![7u8; 8192];
        let text = "only to be read";
        // SAFETY: the text is static, and the region only reads it.
        let mut mr = unsafe { pd.reg_mr_raw(text.as_ptr().cast_mut(), text.len(), Access::empty()) }.unwrap();
        let (key, write) = (mr.rkey(), Rereg { access: Some(RIGHTS), ..Rereg::default() });
        assert!(matches!(mr.rereg(&write), Err(VerbsError::ReadOnly)));
        // SAFETY: refused, so it is never accessed.
        let e = unsafe { mr.rereg_raw(0x1000 as *mut u8, 1, &write) }.unwrap_err();
        assert_eq!((e.errno(), mr.to_vec(0..4).unwrap()), (EFAULT, b"only".to_vec()));
        // SAFETY: refused, so it is never written.
        let e = unsafe { mr.rereg_in_place_raw(&write) }.unwrap_err();
        assert_eq!((e.errno(), mr.access()), (EFAULT, Access::empty()));
        // The same memory gets the right to write, and keeps the address that requests name it by.
        // SAFETY: as below.
        let mut read =
            unsafe { pd.reg_mr_iova_raw(memory.as_mut_ptr(), memory.len(), 0x7000, Access::REMOTE_READ) }
                .unwrap();
        assert!(matches!(read.write(0, b"x"), Err(VerbsError::ReadOnly)));
        // SAFETY: as below.
        unsafe { read.rereg_in_place_raw(&write) }.unwrap();
        read.write(0, b"x").unwrap();
        assert_eq!((read.iova(), read.access(), memory[0]), (0x7000, RIGHTS, b'x'));
        read.dereg().unwrap();
        memory[0] = 7;
        // SAFETY: the vector outlives the region and is only touched through it meanwhile.
        unsafe { mr.rereg_raw(memory.as_mut_ptr(), memory.len(), &write) }.unwrap();
        assert_eq!((mr.rkey(), mr.len(), mr.access()), (key, 8192, RIGHTS));
        mr.write(0, b"new").unwrap();
        // A buffer that the region owns again; the vector stays the caller's.
        mr.rereg(&Rereg { len: Some(16), ..Rereg::default() }).unwrap();
        assert_eq!(mr.to_vec(0..16).unwrap(), [0; 16]);
        assert_eq!(&memory[..4], b"new\x07");
    }

    #[test]
    fn raw_memory_must_exist_with_its_rights() {
        let context = Context::open(DeviceConfig::loopback()).unwrap();
        let pd = context.alloc_pd().unwrap();
        let text = "only to be read";
        let (addr, len) = (text.as_ptr().cast_mut(), text.len());
        for (addr, len) in [(0x1000 as *mut u8, crate::memory::PAGE), (core::ptr::null_mut(), 1), (addr, len)]
        {
            // SAFETY: refused, so it is never accessed.
            let e = unsafe { pd.reg_mr_raw(addr, len, RIGHTS) }.unwrap_err();
            assert_eq!(e.errno(), EFAULT, "{e}");
        }
        // SAFETY: the text is static, and the region only reads it.
        let mr = unsafe { pd.reg_mr_raw(addr, len, Access::empty()) }.unwrap();
        assert_eq!(mr.to_vec(0..4).unwrap(), b"only");
        assert!(matches!(mr.write(0, b"x"), Err(VerbsError::ReadOnly)));
        assert!(matches!(mr.fill(0..1, 0), Err(VerbsError::ReadOnly)));
        assert!(matches!(mr.copy_from(0, &mr, 0..1), Err(VerbsError::ReadOnly)));
        assert!(matches!(mr.write_u64(0, 0), Err(VerbsError::ReadOnly)));
    }
}
