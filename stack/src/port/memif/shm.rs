#![allow(unsafe_code)]
//! Memory that another process has mapped, too: mappings of it, and copies between it and our own.
//!
//! The other process may write any of it at any moment. So no decision depends on what a reference into it
//! reads: a reference is lent only to build a frame in ([`Part::into_buffer`]). All else is read and written by accesses that
//! the compiler may neither repeat nor split: words are atomics (`ring`), bytes are copied by the functions of
//! [`racy`] and of [`crc`](crate::crc). A copy is some mix of what was there meanwhile, and decisions are made on
//! the copy.
//!
//! An access beyond the end of the file would end the process by SIGBUS. So `region` maps only files that are sealed against
//! shrinking, and no more than their present length.

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

/// Bytes of a block: short copies are made of whole blocks, one after the other.
pub const BLOCK: usize = racy::BLOCK;

/// Bytes of the largest mapping that [`Fill::Now`] fills: bounded, because the peer may choose the size.
const FILLED_MAX: usize = 256 << 20;

/// A mapping of shared memory. When it is dropped, another thread unmaps it: to free a large one takes longer than a turn may.
#[derive(Debug)]
pub struct Region(Apart<Mapping>);

#[derive(Debug)]
struct Mapping {
    base: NonNull<u8>,
    len: usize,
    /// Whether it was divided among rings (`ring::divide`).
    divided: AtomicBool,
}

// SAFETY: a mapping may be used and unmapped on any thread; all accesses to it are as the head of the file says.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

/// When a region gets its memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fill {
    /// At once, on huge pages where the kernel can: the buffers of a ring are on more small pages than the TLB of a core has entries.
    Now,
    /// Page by page, as it is used.
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
            // SAFETY: a new mapping, wherever there is room.
            let base = unsafe { mmap(ptr::null_mut(), len, access, MapFlags::SHARED, fd, 0)? };
            return Self::new(base, len);
        }
        // A huge page has to be aligned in the file and in memory. So reserve address space first, then map the file at an aligned
        // address in it.
        let whole = len.next_multiple_of(rustix::param::page_size());
        let room = whole + HUGE_PAGE;
        let nothing = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: as above.
        let start = unsafe { mmap_anonymous(ptr::null_mut(), room, ProtFlags::empty(), nothing)? };
        let before = start.addr().next_multiple_of(HUGE_PAGE) - start.addr();
        let at = start.wrapping_byte_add(before);
        // SAFETY: what is replaced is the room that was made above, which nothing else uses.
        let mapped = unsafe { mmap(at, len, access, MapFlags::SHARED | MapFlags::FIXED, fd, 0) };
        let (behind, rest) = match mapped {
            Ok(_) => (at.wrapping_byte_add(whole), HUGE_PAGE - before),
            Err(_) => (at, room - before),
        };
        // SAFETY: the room before and behind the mapping, which nothing else uses.
        unsafe {
            if before > 0 {
                let _ = munmap(start, before);
            }
            let _ = munmap(behind, rest);
        }
        mapped?;
        let region = Self::new(at, len)?;
        // Page by page: other threads of the process need its page tables meanwhile.
        for from in (at.addr()..at.addr() + whole).step_by(HUGE_PAGE) {
            huge::fill(from, (from + HUGE_PAGE).min(at.addr() + whole));
        }
        Ok(region)
    }

    fn new(base: *mut c_void, len: usize) -> io::Result<Self> {
        let base = NonNull::new(base.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self(Apart::new(Mapping { base, len, divided: AtomicBool::new(false) })))
    }

    /// Where it begins.
    pub(super) fn base(&self) -> NonNull<u8> {
        self.0.base
    }

    /// Gives the memory of these bytes back to the system, as far as they are whole pages: they read as zeros, in each process that has
    /// the file mapped. What fails leaves them as they are.
    pub fn discard(&self, bytes: Range<usize>) {
        let page = rustix::param::page_size();
        let from = bytes.start.next_multiple_of(page);
        let to = bytes.end.min(self.len()) / page * page;
        if from < to {
            // SAFETY: the bytes lie within the mapping. They change as if the other process wrote them.
            let _ = unsafe { madvise(self.base().as_ptr().add(from).cast(), to - from, Advice::LinuxRemove) };
        }
    }

    /// Bytes of it.
    pub fn len(&self) -> usize {
        self.0.len
    }

    /// Marks it as divided among rings; returns false if it was divided already.
    pub(super) fn divide(&self) -> bool {
        !self.0.divided.swap(true, Ordering::AcqRel)
    }
}

/// Memory of which single bytes are changed, by this process and others, and of which no reference is ever lent.
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

    /// The byte at an offset; `None` behind its end.
    #[inline]
    pub fn byte(&self, at: usize) -> Option<&AtomicU8> {
        // SAFETY: the byte lies within the mapping, which lives as long as `self`. Nothing in this process accesses it but as an
        // atomic, or as memory that others write.
        (at < self.0.len()).then(|| unsafe { AtomicU8::from_ptr(self.0.base().as_ptr().add(at)) })
    }

    /// The [`BLOCK`] at an offset as it is now, some mix of what is written meanwhile; `None` if it is not whole.
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

/// Some bytes of a region: known to be in it.
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

    /// Copies it out by whole blocks, front to back.
    ///
    /// # Panics
    /// When it is no multiple of [`BLOCK`], or `to` is shorter.
    #[inline(always)]
    pub fn read_blocks(self, to: &mut [u8]) {
        assert!(self.len.is_multiple_of(BLOCK) && to.len() >= self.len);
        for at in (0..self.len).step_by(BLOCK) {
            // SAFETY: both have a block there: `len` is a multiple, and `to` is as long.
            unsafe { racy::read_block(self.at.as_ptr().add(at), to.as_mut_ptr().add(at)) }
        }
    }

    /// Copies it out, by `copy` if there is one, which returns the sum of the copy. Meanwhile prefetches as many bytes from `ahead`
    /// on, if that is not null: the hardware prefetcher stops at the end of a page.
    ///
    /// # Panics
    /// When `to` is shorter.
    #[inline(always)]
    pub fn read(self, copy: Option<CopyFn>, to: &mut [u8], ahead: *const u8) -> Option<Sum> {
        assert!(to.len() >= self.len);
        let (from, to) = (self.at.as_ptr(), to.as_mut_ptr());
        if let Some(copy) = copy {
            // SAFETY: both are valid for `self.len` bytes, and do not overlap: `to` is memory of our own.
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

    /// Copies to it by whole blocks, front to back; the last one overlaps the one before it, so that it ends where `from` does.
    ///
    /// # Panics
    /// When it is shorter than a [`BLOCK`], or `from` is not as long.
    #[inline(always)]
    pub fn write_blocks(self, from: &[u8]) {
        assert!(self.len >= BLOCK && from.len() == self.len);
        let last = self.len - BLOCK;
        // SAFETY: both have a whole block at every offset up to `last`.
        let write = |at: usize| unsafe { racy::write_block(self.at.as_ptr().add(at), from.as_ptr().add(at)) };
        (0..last).step_by(BLOCK).for_each(write);
        write(last);
    }

    /// Copies to it.
    ///
    /// # Panics
    /// When `from` is not as long.
    #[inline(always)]
    pub fn write(self, from: &[u8]) {
        assert_eq!(from.len(), self.len);
        // SAFETY: both are valid for `self.len` bytes.
        unsafe { racy::write(self.at.as_ptr(), from.as_ptr(), self.len) }
    }

    /// Its bytes, to write a frame to. The other process may change them, so what is read back means nothing.
    ///
    /// # Safety
    /// No other reference to any of it is alive, in this process.
    #[inline(always)]
    pub(super) unsafe fn into_buffer(self) -> &'a mut [u8] {
        // SAFETY: valid for `self.len` bytes, all of which are initialised, as the kernel fills memory with zeros; the rest is the
        // caller's promise.
        unsafe { core::slice::from_raw_parts_mut(self.at.as_ptr(), self.len) }
    }
}

/// Bytes that are copied between two rounds of prefetches.
const PIECE: usize = 512;
