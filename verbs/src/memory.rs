//! The memory of a region: allocated here or owned by the program, and accessed by raw address.

#![allow(unsafe_code, reason = "registered memory is raw memory")]

use core::ptr::NonNull;
use std::alloc::{Layout, alloc, alloc_zeroed, dealloc};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::Arc;

use stack::device::racy::kernel::NotMapped;
use stack::device::{Access, UserMemory, prefetch_bytes, racy};

use crate::error::VerbsError;
use crate::populate::{page_size, populate};

/// Buffers start on a page boundary, so that an offset in a region and its address agree in their low bits.
pub(crate) const PAGE: usize = 4096;
/// Buffers of at least this size start on a huge page boundary and ask the kernel for huge pages.
const HUGE_PAGE: usize = 2 << 20;

/// The memory of a region. Clones share the buffer, if the region owns one.
#[derive(Clone, Debug)]
pub(crate) struct Memory {
    base: NonNull<u8>,
    len: usize,
    /// Whether this process may write to it.
    writable: bool,
    /// The buffer that the region owns, kept until the last clone is dropped; `None` inside if the memory belongs to the program.
    buffer: Arc<Option<Buffer>>,
}

/// A buffer that is freed when it is dropped.
#[derive(Debug)]
struct Buffer {
    base: NonNull<u8>,
    layout: Layout,
}

// SAFETY: `base..base + len` is valid while a `Memory` exists, because it owns its buffer or by the contract of `reg_mr_raw`. Only the
// functions of `racy` and the kernel access it, so any thread may do so through a shared reference.
unsafe impl Send for Memory {}
// SAFETY: as for Send.
unsafe impl Sync for Memory {}
// SAFETY: it owns its allocation, which is not tied to a thread.
unsafe impl Send for Buffer {}
// SAFETY: a shared reference gives access to nothing.
unsafe impl Sync for Buffer {}

// SAFETY of the accesses: `at` has checked that the bytes are inside the memory, which exists; callers that write have checked that they
// may. The other side of a copy is borrowed, so it is other memory.
impl Memory {
    /// Allocates a zeroed buffer of `len` bytes.
    pub(crate) fn alloc(len: usize) -> Result<Self, VerbsError> {
        let align = if len >= HUGE_PAGE { HUGE_PAGE } else { PAGE };
        let no_memory = VerbsError::NoMemory { len };
        // At least 1 byte, rounded up to whole words, so that every byte lies in an 8-byte word of the buffer.
        let Ok(layout) = Layout::from_size_align(len.max(1), align) else { return Err(no_memory) };
        let layout = layout.pad_to_align();
        // SAFETY: the layout's size is not 0.
        let base = unsafe { if align == HUGE_PAGE { alloc(layout) } else { alloc_zeroed(layout) } };
        let Some(base) = NonNull::new(base) else { return Err(no_memory) };
        if align == HUGE_PAGE {
            // SAFETY: the range was just allocated here, and the advice changes no content. Without huge pages it fails, which only affects
            // speed. The advice precedes the first write, because that write determines the page size.
            unsafe {
                libc::madvise(base.as_ptr().cast(), layout.size(), libc::MADV_HUGEPAGE);
                base.as_ptr().write_bytes(0, layout.size());
            }
        }
        Ok(Self { base, len, writable: true, buffer: Arc::new(Some(Buffer { base, layout })) })
    }

    /// Memory of the program for a region with these rights. Faults it in unless the region is on demand.
    ///
    /// # Errors
    /// [`VerbsError::BadAddress`] if it is not mapped with these rights.
    ///
    /// # Safety
    /// While a clone of the result exists, the memory stays mapped and valid for reads, and for writes with [`Access::LOCAL_WRITE`]; with
    /// [`Access::ON_DEMAND`] only while a method of this type accesses it. Other threads access it at any moment.
    pub(crate) unsafe fn of_program(addr: *mut u8, len: usize, access: Access) -> Result<Self, VerbsError> {
        let bad = VerbsError::BadAddress { addr: addr as u64, len: len as u64 };
        let Some(base) = NonNull::new(addr) else { return Err(bad) };
        let writable = access.contains(Access::LOCAL_WRITE);
        if !access.contains(Access::ON_DEMAND) {
            populate(addr as u64, len as u64, writable).map_err(|NotMapped| bad)?;
        }
        Ok(Self { base, len, writable, buffer: Arc::new(None) })
    }

    /// Faults the memory in for writing.
    ///
    /// # Errors
    /// [`VerbsError::BadAddress`] if it is not mapped for writing.
    pub(crate) fn check_writes(&self) -> Result<(), VerbsError> {
        let (addr, len) = (self.base.as_ptr() as u64, self.len as u64);
        populate(addr, len, true).map_err(|NotMapped| VerbsError::BadAddress { addr, len })
    }
    /// Lets the region write to the memory.
    ///
    /// # Safety
    /// From now on the memory is valid for writes, as [`of_program`](Self::of_program) demands with [`Access::LOCAL_WRITE`].
    pub(crate) unsafe fn allow_writes(&mut self) {
        self.writable = true;
    }

    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.len
    }
    #[inline]
    pub(crate) fn as_ptr(&self) -> *mut u8 {
        self.base.as_ptr()
    }
    #[inline]
    pub(crate) fn is_writable(&self) -> bool {
        self.writable
    }
    /// How many other clones of this exist.
    pub(crate) fn others(&self) -> usize {
        Arc::strong_count(&self.buffer) - 1
    }
    /// Makes sure that the buffer is never freed.
    pub(crate) fn leak(&self) {
        core::mem::forget(self.buffer.clone());
    }

    /// The address of a range of bytes.
    ///
    /// # Panics
    /// If the range is not inside the memory. Every caller has checked it.
    #[inline]
    pub(crate) fn at(&self, at: usize, len: usize) -> *mut u8 {
        assert!(at <= self.len && len <= self.len - at, "every caller has checked the range");
        // SAFETY: inside of the memory, or its end.
        unsafe { self.base.as_ptr().add(at) }
    }

    /// The memory for registration, with the guarantee that it stays valid.
    pub(crate) fn vouched(&self) -> UserMemory {
        // SAFETY: the bytes exist while a clone does. A region drops its own only after its key was revoked, and otherwise leaks it. For
        // memory of the program the contract of `of_program` holds.
        unsafe { UserMemory::new(self.base.as_ptr() as u64, self.len as u64) }
    }

    #[inline]
    pub(crate) fn read(&self, at: usize, out: &mut [u8]) {
        // SAFETY: see above.
        unsafe { racy::read(self.at(at, out.len()), out.as_mut_ptr(), out.len()) };
    }
    #[inline]
    pub(crate) fn write(&self, at: usize, data: &[u8]) {
        // SAFETY: see above.
        unsafe { racy::write(self.at(at, data.len()), data.as_ptr(), data.len()) };
    }
    /// Copies bytes from other memory, or from this one.
    #[inline]
    pub(crate) fn copy_from(&self, at: usize, from: &Self, from_at: usize, len: usize) {
        // SAFETY: see above.
        unsafe { racy::copy(self.at(at, len), from.at(from_at, len), len) };
    }
    #[inline]
    pub(crate) fn prefetch(&self, at: usize, len: usize) {
        prefetch_bytes(self.at(at, len), len);
    }
    pub(crate) fn fill(&self, at: usize, len: usize, value: u8) {
        // SAFETY: see above.
        unsafe { racy::fill(self.at(at, len), value, len) };
    }
    /// Returns whole pages to the operating system; they read as zeros until they are written again. Returns `false` if that is not
    /// possible: for a range that does not consist of whole pages, memory of the program, pinned memory, or if the system refuses.
    pub(crate) fn discard(&self, at: usize, len: usize) -> bool {
        let from = self.at(at, len);
        // The kernel may have been told by the owner of a pin which pages the bytes are in, so these pages must stay.
        if self.buffer.is_none()
            || self.others() > 0
            || !(from.addr() | len).is_multiple_of(page_size() as usize)
        {
            return false;
        }
        // SAFETY: see above. The pages belong to a buffer of our own, which is private memory of the process, so the call has the effect of
        // writing zeros.
        unsafe { libc::madvise(from.cast(), len, libc::MADV_DONTNEED) == 0 }
    }
    #[inline]
    pub(crate) fn load_u8(&self, at: usize) -> u8 {
        // SAFETY: see above.
        unsafe { racy::load_u8(self.at(at, 1)) }
    }

    /// Calls pread(2) into the memory.
    pub(crate) fn pread(&self, fd: BorrowedFd<'_>, from: i64, at: usize, len: usize) -> io::Result<usize> {
        let to = self.at(at, len);
        // SAFETY: see above; the kernel writes the bytes as a device would.
        again(|| unsafe { libc::pread(fd.as_raw_fd(), to.cast(), len, from) })
    }
    /// Calls pwrite(2) from the memory.
    pub(crate) fn pwrite(&self, fd: BorrowedFd<'_>, to: i64, at: usize, len: usize) -> io::Result<usize> {
        let from = self.at(at, len);
        // SAFETY: see above; the kernel reads the bytes as a device would.
        again(|| unsafe { libc::pwrite(fd.as_raw_fd(), from.cast(), len, to) })
    }
}

/// Makes a system call, and repeats it if a signal interrupts it.
fn again(mut call: impl FnMut() -> isize) -> io::Result<usize> {
    loop {
        let result = call();
        match usize::try_from(result) {
            Ok(n) => return Ok(n),
            Err(_) => match io::Error::last_os_error() {
                e if e.kind() == io::ErrorKind::Interrupted => {}
                e => return Err(e),
            },
        }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout by `Memory::alloc`, and nothing refers to it: no clone is left, and before a region drops its
        // own, the key was revoked and every shard has ended the turn in which it may have used the key.
        unsafe { dealloc(self.base.as_ptr(), self.layout) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_whole_pages_of_our_own_that_nobody_has_pinned_are_given_back() {
        // The size makes the buffer start on a page boundary even if pages are larger than `PAGE`.
        let page = page_size() as usize;
        let memory = Memory::alloc(HUGE_PAGE).unwrap();
        memory.fill(0, 4 * page, 7);
        assert!(!memory.discard(0, page - 1) && !memory.discard(8, page));
        let pin = memory.clone();
        assert!(!memory.discard(0, page));
        drop(pin);
        assert!(memory.discard(page, 2 * page));
        let mut bytes = vec![0; 4 * page];
        memory.read(0, &mut bytes);
        let expected = [7, 0, 0, 7].map(|byte| vec![byte; page]).concat();
        assert!(bytes == expected);
        let mut theirs = vec![7u8; 3 * page];
        // SAFETY: the vector outlives the handle.
        let program =
            unsafe { Memory::of_program(theirs.as_mut_ptr(), theirs.len(), Access::LOCAL_WRITE) }.unwrap();
        let from = theirs.as_ptr().align_offset(page);
        assert!(!program.discard(from, page));
    }

    // Here because this file may use `unsafe`.
    #[test]
    fn a_buffer_lives_as_long_as_a_handle() {
        let memory = Memory::alloc(64).unwrap();
        memory.write(8, b"kept");
        let other = memory.clone();
        assert_eq!((memory.others(), memory.len()), (1, 64));
        drop(memory);
        assert_eq!(other.others(), 0);
        let mut bytes = [0; 4];
        other.read(8, &mut bytes);
        assert_eq!(&bytes, b"kept");
    }
}
