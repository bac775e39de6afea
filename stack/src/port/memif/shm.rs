#![allow(unsafe_code)]
//! Memory that is shared with another process: mappings of it, and copies between it and private memory.
//!
//! The other process may write any of it at any moment. So no decision depends on a value that is read through a reference: a reference is
//! lent only to build a frame in ([`Part::into_buffer`]). All other accesses are of kinds that the compiler may neither repeat nor split:
//! words are atomics (`ring`), bytes are copied by the functions of [`racy`] and of [`crc`](crate::crc). A copy may mix old and new bytes,
//! and decisions are made on the copy.
//!
//! An access beyond the end of the file would kill the process with SIGBUS. So `region` maps only files that are sealed against shrinking,
//! and not more than their length.

use crate::crc::{CopyFn, Sum};
use crate::racy;
use crate::sync::apart::Apart;
use crate::sync::huge::{self, HUGE_PAGE};
use crate::sync::prefetch;
use core::ffi::c_void;
use core::marker::PhantomData;
use core::ops::Range;
use core::ptr::{self, NonNull};
use core::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, mmap_anonymous, munmap};
use std::io;
use std::os::fd::BorrowedFd;

/// Bytes of a block: short copies copy whole blocks, one after the other.
pub const BLOCK: usize = racy::BLOCK;

/// Bytes of the largest mapping that [`Fill::Now`] fills: bounded, because the peer may choose the size.
const FILLED_MAX: usize = 256 << 20;

/// A mapping of shared memory. When it is dropped, another thread unmaps it: to unmap a large one takes longer than a turn may.
#[derive(Debug)]
pub struct Region(Apart<Mapping>);

#[derive(Debug)]
struct Mapping {
    base: NonNull<u8>,
    len: usize,
    /// Whether it was divided among rings (`ring::divide`).
    divided: AtomicBool,
}

// SAFETY: a mapping may be used and unmapped on any thread; all accesses to it follow the rules at the head of this file.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

/// When a region gets its memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fill {
    /// At once, on huge pages if the kernel can: on small pages, the buffers of a ring need more entries than the TLB of a core has.
    Now,
    /// Page by page, on first use.
    AsUsed,
}

impl Region {
    /// Maps the first `len` bytes of a file, which cannot shrink below that.
    ///
    /// # Errors
    /// Those of mmap(2).
    pub fn map(fd: BorrowedFd<'_>, len: usize, fill: Fill) -> io::Result<Self> {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        if fill == Fill::AsUsed || !(HUGE_PAGE..=FILLED_MAX).contains(&len) {
            // SAFETY: a new mapping, at an address that the kernel chooses.
            let base = unsafe { mmap(ptr::null_mut(), len, access, MapFlags::SHARED, fd, 0)? };
            return Self::new(base, len);
        }
        // A huge page must be aligned in the file and in memory. So reserve address space first, then map the file at an aligned address in
        // it.
        let whole = len.next_multiple_of(rustix::param::page_size());
        let room = whole + HUGE_PAGE;
        let nothing = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: as above.
        let start = unsafe { mmap_anonymous(ptr::null_mut(), room, ProtFlags::empty(), nothing)? };
        let before = start.addr().next_multiple_of(HUGE_PAGE) - start.addr();
        let at = start.wrapping_byte_add(before);
        // SAFETY: this replaces part of the reservation above, which nothing else uses.
        let mapped = unsafe { mmap(at, len, access, MapFlags::SHARED | MapFlags::FIXED, fd, 0) };
        let (behind, rest) = match mapped {
            Ok(_) => (at.wrapping_byte_add(whole), HUGE_PAGE - before),
            Err(_) => (at, room - before),
        };
        // SAFETY: the parts of the reservation before and after the mapping, which nothing else uses.
        unsafe {
            if before > 0 {
                let _ = munmap(start, before);
            }
            let _ = munmap(behind, rest);
        }
        mapped?;
        let region = Self::new(at, len)?;
        // One huge page at a time: other threads of the process need its page tables meanwhile.
        for from in (at.addr()..at.addr() + whole).step_by(HUGE_PAGE) {
            huge::fill(from, (from + HUGE_PAGE).min(at.addr() + whole));
        }
        Ok(region)
    }

    fn new(base: *mut c_void, len: usize) -> io::Result<Self> {
        let base = NonNull::new(base.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self(Apart::new(Mapping { base, len, divided: AtomicBool::new(false) })))
    }

    /// The address of its first byte.
    pub(super) fn base(&self) -> NonNull<u8> {
        self.0.base
    }

    /// Returns the memory of these bytes to the system, as far as they are whole pages. They then read as zeros, in each process that has
    /// the file mapped. On failure they stay as they are.
    pub fn discard(&self, bytes: Range<usize>) {
        let page = rustix::param::page_size();
        let from = bytes.start.next_multiple_of(page);
        let to = bytes.end.min(self.len()) / page * page;
        if from < to {
            // SAFETY: the bytes lie within the mapping. They change as if the other process wrote them.
            let _ = unsafe { madvise(self.base().as_ptr().add(from).cast(), to - from, Advice::LinuxRemove) };
        }
    }

    /// Bytes of the mapping.
    pub fn len(&self) -> usize {
        self.0.len
    }

    /// Marks it as divided among rings. Returns `false` if it was divided already.
    pub(super) fn divide(&self) -> bool {
        !self.0.divided.swap(true, Ordering::AcqRel)
    }
}

/// Shared memory of which this process and others change single bytes. No reference to non-atomic bytes is ever lent.
#[derive(Debug)]
pub struct Page(Region);

impl Page {
    /// Maps the first `len` bytes of a file, which cannot shrink below that.
    ///
    /// # Errors
    /// Those of mmap(2).
    pub fn map(fd: BorrowedFd<'_>, len: usize) -> io::Result<Self> {
        Region::map(fd, len, Fill::AsUsed).map(Self)
    }

    /// The byte at an offset; `None` beyond the end.
    #[inline]
    pub fn byte(&self, at: usize) -> Option<&AtomicU8> {
        // SAFETY: the byte lies within the mapping, which lives as long as `self`. This process accesses it only as an atomic, or by copies
        // that tolerate concurrent writes.
        (at < self.0.len()).then(|| unsafe { AtomicU8::from_ptr(self.0.base().as_ptr().add(at)) })
    }

    /// A copy of the [`BLOCK`] at an offset, which may mix old and new bytes; `None` if the block exceeds the memory.
    #[inline]
    pub fn block(&self, at: usize) -> Option<[u8; BLOCK]> {
        if at >= self.0.len() || self.0.len() - at < BLOCK {
            return None;
        }
        let mut block = [0; BLOCK];
        // SAFETY: `at + BLOCK` bytes lie within the mapping, and `block` has `BLOCK`.
        unsafe { racy::read_block(self.0.base().as_ptr().add(at), block.as_mut_ptr()) };
        Some(block)
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: mapped by `map`, and nothing that refers to it outlives the region.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), self.len) };
    }
}

/// Some bytes of a region, which are known to be within it.
#[derive(Clone, Copy, Debug)]
pub struct Part<'a> {
    at: NonNull<u8>,
    len: usize,
    region: PhantomData<&'a Region>,
}

impl<'a> Part<'a> {
    /// The bytes `offset..offset + len` of a region of `size` bytes at `base`, if it has them.
    ///
    /// # Safety
    /// `base` and `size` are those of a [`Region`] that lives as long as `'a`.
    #[inline(always)]
    pub(super) unsafe fn of(base: NonNull<u8>, size: usize, offset: u32, len: u32) -> Option<Self> {
        let (offset, len) = (offset as usize, len as usize);
        // The sum does not overflow: both are below 2^32.
        if offset + len > size {
            return None;
        }
        // SAFETY: the check above says that it lies within the region.
        Some(Self { at: unsafe { base.add(offset) }, len, region: PhantomData })
    }

    /// The bytes `offset..offset + len` of a region at `base`.
    ///
    /// # Safety
    /// `base` is that of a [`Region`] that lives as long as `'a` and has these bytes.
    #[inline(always)]
    pub(super) unsafe fn lent(base: NonNull<u8>, offset: u32, len: u32) -> Self {
        // SAFETY: as the caller promises.
        Self { at: unsafe { base.add(offset as usize) }, len: len as usize, region: PhantomData }
    }

    /// Prefetches all of it.
    #[inline(always)]
    pub fn prefetch(self) {
        for line in (0..self.len).step_by(prefetch::LINE) {
            prefetch::near(self.at.as_ptr().wrapping_add(line));
        }
    }

    /// Copies it to `to` by whole blocks, front to back.
    ///
    /// # Panics
    /// If its length is not a multiple of [`BLOCK`], or `to` is shorter.
    #[inline(always)]
    pub fn read_blocks(self, to: &mut [u8]) {
        assert!(self.len.is_multiple_of(BLOCK) && to.len() >= self.len);
        for at in (0..self.len).step_by(BLOCK) {
            // SAFETY: both have a block there: `len` is a multiple of `BLOCK`, and `to` is at least as long.
            unsafe { racy::read_block(self.at.as_ptr().add(at), to.as_mut_ptr().add(at)) }
        }
    }

    /// Copies it to `to`; by `copy` if given, which returns the CRC of the copy. Meanwhile prefetches as many bytes from `ahead` on, if
    /// that is not null: the hardware prefetcher stops at the end of a page.
    ///
    /// # Panics
    /// If `to` is shorter.
    #[inline(always)]
    pub fn read(self, copy: Option<CopyFn>, to: &mut [u8], ahead: *const u8) -> Option<Sum> {
        assert!(to.len() >= self.len);
        let (from, to) = (self.at.as_ptr(), to.as_mut_ptr());
        if let Some(copy) = copy {
            // SAFETY: both are valid for `self.len` bytes, and do not overlap: `to` is private memory of this process.
            return unsafe { copy(to, from, self.len, ahead) };
        }
        for at in (0..self.len).step_by(PIECE) {
            let n = PIECE.min(self.len - at);
            if !ahead.is_null() {
                prefetch::bytes(ahead.wrapping_add(at), n);
            }
            // SAFETY: both are valid for `at + n` bytes.
            unsafe { racy::read(from.add(at), to.add(at), n) }
        }
        None
    }

    /// Copies `from` to it by whole blocks, front to back. The last block overlaps the one before it, so that it ends where `from` does.
    ///
    /// # Panics
    /// If it is shorter than a [`BLOCK`], or `from` has another length.
    #[inline(always)]
    pub fn write_blocks(self, from: &[u8]) {
        assert!(self.len >= BLOCK && from.len() == self.len);
        let last = self.len - BLOCK;
        // SAFETY: both have a whole block at every offset up to `last`.
        let write = |at: usize| unsafe { racy::write_block(self.at.as_ptr().add(at), from.as_ptr().add(at)) };
        (0..last).step_by(BLOCK).for_each(write);
        write(last);
    }

    /// Copies `from` to it.
    ///
    /// # Panics
    /// If `from` has another length.
    #[inline(always)]
    pub fn write(self, from: &[u8]) {
        assert_eq!(from.len(), self.len);
        // SAFETY: both are valid for `self.len` bytes.
        unsafe { racy::write(self.at.as_ptr(), from.as_ptr(), self.len) }
    }

    /// Its bytes, to write a frame to. The other process may change them, so a value that is read back means nothing.
    ///
    /// # Safety
    /// No other reference to any of its bytes is alive in this process.
    #[inline(always)]
    pub(super) unsafe fn into_buffer(self) -> &'a mut [u8] {
        // SAFETY: valid for `self.len` bytes, all of which are initialised, as the kernel fills memory with zeros; the rest is the
        // caller's promise.
        unsafe { core::slice::from_raw_parts_mut(self.at.as_ptr(), self.len) }
    }
}

/// Bytes that are copied between two rounds of prefetches.
const PIECE: usize = 512;
