//! Copies that the kernel makes: an address that is not mapped, or lacks the access right, is an error instead of a SIGSEGV.
//!
//! For registered memory that its program may unmap at any moment ([`Access::ON_DEMAND`](crate::mem::Access::ON_DEMAND)). The kernel
//! copies within this process (process_vm_readv(2)) by the page tables at the time of the copy, and pages in what is missing. A
//! check before a plain copy could be out of date by then. A copy costs a system call, some ten times the copy of a packet.

use std::sync::{Mutex, OnceLock, PoisonError};

/// Some of the bytes are not mapped, or lack the access right.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NotMapped;

/// Copies bytes at an address of this process. After an error `to` has any bytes.
///
/// # Errors
/// [`NotMapped`].
///
/// # Safety
/// The program permits that these bytes are read while others write them, whatever it has mapped there.
pub unsafe fn read(from: u64, to: &mut [u8]) -> Result<(), NotMapped> {
    let local = [libc::iovec { iov_base: to.as_mut_ptr().cast(), iov_len: to.len() }];
    let remote = [libc::iovec { iov_base: from as *mut _, iov_len: to.len() }];
    // SAFETY: the kernel writes to the bytes of `to`, which nobody else has, and checks the other range; the caller permits that it
    // is read.
    let copied = unsafe { libc::process_vm_readv(libc::getpid(), local.as_ptr(), 1, remote.as_ptr(), 1, 0) };
    whole(copied, to.len())
}

/// Copies bytes to an address of this process, in their order; with `last` the last byte is stored after all others. After an
/// error some of them may be stored.
///
/// # Errors
/// [`NotMapped`].
///
/// # Safety
/// The program tolerates that these bytes change, whatever it has mapped there.
pub unsafe fn write(to: u64, from: &[u8], last: bool) -> Result<(), NotMapped> {
    let piece = |at: usize, len: usize| libc::iovec { iov_base: at as *mut _, iov_len: len };
    let body = if last { from.len().saturating_sub(1) } else { from.len() };
    let local = [piece(from.as_ptr().addr(), from.len())];
    let remote = [piece(to as usize, body), piece((to as usize).wrapping_add(body), from.len() - body)];
    // SAFETY: the kernel reads the bytes of `from`, and checks the other ranges; the caller permits what it writes.
    let copied = unsafe { libc::process_vm_writev(libc::getpid(), local.as_ptr(), 1, remote.as_ptr(), 2, 0) };
    whole(copied, from.len())
}

/// Replaces the host-order word at an address of this process by what `new` makes of it; returns the old word. Atomic only with
/// respect to other calls of this function, which take one lock; not to atomic instructions.
///
/// # Errors
/// [`NotMapped`].
///
/// # Safety
/// As for [`write()`].
pub unsafe fn update(at: u64, new: impl FnOnce(u64) -> u64) -> Result<u64, NotMapped> {
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _guard = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let mut bytes = [0; 8];
    // SAFETY: as the caller guarantees.
    unsafe { read(at, &mut bytes) }?;
    let before = u64::from_ne_bytes(bytes);
    // SAFETY: as the caller guarantees.
    unsafe { write(at, &new(before).to_ne_bytes(), false) }?;
    Ok(before)
}

/// Whether this kernel makes such copies; it may be built without them, or a seccomp filter may refuse the call.
pub fn works() -> bool {
    static WORKS: OnceLock<bool> = OnceLock::new();
    *WORKS.get_or_init(|| {
        let (here, mut there) = ([0x5a; 9], [0; 9]);
        // SAFETY: bytes of ours, and the first page of the address space, which is never mapped.
        let mut read = |from| unsafe { read(from, &mut there) };
        !cfg!(miri) && read(here.as_ptr() as u64).is_ok() && read(8).is_err() && there == here
    })
}

fn whole(copied: isize, wanted: usize) -> Result<(), NotMapped> {
    if usize::try_from(copied) == Ok(wanted) { Ok(()) } else { Err(NotMapped) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: usize = 4096;

    /// Two pages. The second is as inaccessible as if it were not mapped, but no other thread can map its addresses.
    struct Pages(*mut u8);

    impl Pages {
        fn new(protection: i32) -> Self {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            // SAFETY: new memory; nothing may be done with the second of its two pages.
            unsafe {
                let at = libc::mmap(core::ptr::null_mut(), 2 * PAGE, protection, flags, -1, 0);
                assert_ne!(at, libc::MAP_FAILED);
                assert_eq!(libc::mprotect(at.byte_add(PAGE), PAGE, libc::PROT_NONE), 0);
                Self(at.cast())
            }
        }
        fn at(&self, offset: usize) -> u64 {
            self.0 as u64 + offset as u64
        }
    }

    impl Drop for Pages {
        fn drop(&mut self) {
            // SAFETY: mapped by `new`, and nothing refers to it.
            unsafe { libc::munmap(self.0.cast(), 2 * PAGE) };
        }
    }

    #[test]
    #[cfg_attr(miri, ignore = "the kernel copies")]
    fn what_is_not_mapped_is_an_error() {
        assert!(works());
        let pages = Pages::new(libc::PROT_READ | libc::PROT_WRITE);
        let (text, mut back) = (*b"at the end of a page", [0; 20]);
        for last in [false, true] {
            let at = pages.at(PAGE - 20);
            // SAFETY: memory of this test.
            assert_eq!(unsafe { write(at, &text, last) }, Ok(()));
            // SAFETY: as above.
            assert_eq!((unsafe { read(at, &mut back) }, back), (Ok(()), text));
            // SAFETY: memory of this test, as far as it is mapped.
            assert_eq!(unsafe { write(at + 1, &text, last) }, Err(NotMapped));
            // SAFETY: nothing is mapped there.
            assert_eq!(unsafe { write(pages.at(PAGE), &text[..1], last) }, Err(NotMapped));
        }
        // SAFETY: memory of this test, as far as it is mapped, nothing, and no byte.
        unsafe {
            assert_eq!(read(pages.at(PAGE - 19), &mut back), Err(NotMapped));
            assert_eq!(read(u64::MAX - 3, &mut back), Err(NotMapped));
            assert_eq!((read(0, &mut []), write(0, &[], true)), (Ok(()), Ok(())));
        }

        let word = pages.at(64);
        // SAFETY: memory of this test, and none.
        unsafe {
            assert_eq!(update(word, |word| word + 7), Ok(0));
            assert_eq!(update(word, |word| word * 3), Ok(7));
            assert_eq!(update(word, |_| 0), Ok(21));
            assert_eq!(update(pages.at(PAGE), |_| 0), Err(NotMapped));
        }
    }

    #[test]
    #[cfg_attr(miri, ignore = "the kernel copies")]
    fn what_may_not_be_written_is_not_written() {
        let pages = Pages::new(libc::PROT_READ);
        let mut byte = [1];
        // SAFETY: it may not be written, so nothing changes.
        assert_eq!(unsafe { write(pages.at(0), &byte, false) }, Err(NotMapped));
        // SAFETY: memory of this test.
        assert_eq!((unsafe { read(pages.at(0), &mut byte) }, byte), (Ok(()), [0]));
    }
}
