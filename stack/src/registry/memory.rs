#![allow(unsafe_code)]
//! The shared memory itself: a memfd of fixed size, mapped as words.
//!
//! Other processes write to it at any moment. All accesses are 64-bit atomics, so none is torn or repeated. A descriptor from another
//! process is mapped only if it is sealed and long enough ([`sealed`]).

use super::layout::{BYTES, WORDS};
use super::table::Words;
use crate::ipc::sealed;
use crate::sync::unforked::Unforked;
use core::ptr::{self, NonNull};
use core::sync::atomic::AtomicU64;
use rustix::fs::SealFlags;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

/// Memory that processes share.
#[derive(Clone, Debug)]
pub struct Memory(Arc<Mapped>);

#[derive(Debug)]
struct Mapped {
    at: NonNull<AtomicU64>,
    /// Dropped first. A forked child does not keep the descriptor.
    _unforked: Unforked,
    fd: OwnedFd,
}

// SAFETY: the mapping stays until the last owner drops it, and is accessed only by atomics.
unsafe impl Send for Mapped {}
// SAFETY: as above.
unsafe impl Sync for Mapped {}

impl Memory {
    /// Creates the memory, filled with zeros.
    ///
    /// # Errors
    /// Those of memfd_create(2), ftruncate(2) and mmap(2).
    pub fn make() -> io::Result<Self> {
        let (fd, unforked) = Unforked::make(|| sealed::make("roce-registry", BYTES as u64))?;
        Self::map(fd, unforked)
    }

    /// Maps memory that another process has passed; `None` if it is not suitable.
    pub fn take(given: OwnedFd) -> Option<Self> {
        if sealed::len(&given, SealFlags::SHRINK | SealFlags::GROW) != Some(BYTES as u64) {
            return None;
        }
        let (fd, unforked) = Unforked::make(|| Ok(given)).ok()?;
        Self::map(fd, unforked).ok()
    }

    fn map(fd: OwnedFd, unforked: Unforked) -> io::Result<Self> {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping, at an address that the kernel chooses.
        let at = unsafe { mmap(ptr::null_mut(), BYTES, access, MapFlags::SHARED, &fd, 0)? };
        let at = NonNull::new(at.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self(Arc::new(Mapped { at, _unforked: unforked, fd })))
    }
}

impl AsFd for Memory {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.fd.as_fd()
    }
}

impl Words for Memory {
    fn word(&self, index: usize) -> &AtomicU64 {
        assert!(index < WORDS);
        // SAFETY: the word lies within the mapping, which begins at a page and stays as long as `self`; any bits are a valid value, and
        // this process accesses it only as an atomic.
        unsafe { self.0.at.add(index).as_ref() }
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: mapped by `map`, and no reference to it outlives the owner. A forked child has a mapping of its own.
        let _ = unsafe { munmap(self.at.as_ptr().cast(), BYTES) };
    }
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;
    use core::sync::atomic::Ordering;
    use rustix::fs::MemfdFlags;

    #[test]
    fn what_one_writes_another_reads() {
        let made = Memory::make().unwrap();
        let taken = Memory::take(made.as_fd().try_clone_to_owned().unwrap()).unwrap();
        made.word(WORDS - 1).store(77, Ordering::Relaxed);
        assert_eq!(taken.word(WORDS - 1).load(Ordering::Relaxed), 77);
        assert!(rustix::fs::ftruncate(&taken, 0).is_err() && rustix::fs::ftruncate(&taken, 1 << 20).is_err());
    }

    // Goal: no descriptor that a process passes can end the process that maps it.
    #[test]
    fn other_descriptors_are_refused() {
        let memfd = |bytes: usize, seals| {
            let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
            let fd = rustix::fs::memfd_create("other", flags).unwrap();
            rustix::fs::ftruncate(&fd, bytes as u64).unwrap();
            rustix::fs::fcntl_add_seals(&fd, seals).unwrap();
            fd
        };
        let both = SealFlags::SHRINK | SealFlags::GROW;
        assert!(Memory::take(memfd(BYTES, both)).is_some());
        assert!(Memory::take(memfd(BYTES, both | SealFlags::WRITE)).is_none(), "not writable");
        for (bytes, seals) in [
            (BYTES, SealFlags::empty()),
            (BYTES, SealFlags::GROW),
            (BYTES - 8, both),
            (0, both),
            (BYTES + 8, both),
        ] {
            assert!(Memory::take(memfd(bytes, seals)).is_none(), "{bytes} {seals:?}");
        }
        for path in ["/dev/null", "/proc/self/exe", "/"] {
            assert!(Memory::take(std::fs::File::open(path).unwrap().into()).is_none(), "{path}");
        }
    }
}
