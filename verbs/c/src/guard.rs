//! The border to C: results become what C expects, and a panic becomes an error number and a line on stderr.
//!
//! pthread_cancel(3) unwinds the thread; a guard would stop that, which aborts the process. So calls that block stand outside of
//! guarded functions (`wait`), and no guarded function reaches a cancellation point of libc while its thread may be cancelled:
//! whatever the library calls of libc is wrapped (`uncancelled.c`), on every port, at no cost where nothing is called. Calls that
//! may call much of libc, some of which waits inside where no wrapper is (getaddrinfo(3)), disable cancellation as a whole
//! (`uncancelled`); posts and polls do not.

use core::ffi::c_int;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::errno::{self, EIO, Errno, Result};
use crate::log::say;

/// Runs a call of C; a panic is `EIO`.
#[inline]
pub(crate) fn guarded<T>(call: impl FnOnce() -> Result<T>) -> Result<T> {
    // What a panic left half done belongs to an object that C may still destroy; the stack itself survives panics.
    catch_unwind(AssertUnwindSafe(call)).unwrap_or_else(|_| Err(panicked()))
}

#[cold]
fn panicked() -> Errno {
    // The panic's own message was printed by its hook.
    say("a call of libibverbs panicked, which is a bug of this library; it returns EIO");
    EIO
}

/// As [`guarded`], for calls that may open, close or start threads: the thread is not cancelled before the call is over.
pub(crate) fn uncancelled<T>(call: impl FnOnce() -> Result<T>) -> Result<T> {
    const DISABLE: c_int = 1; // PTHREAD_CANCEL_DISABLE
    let mut before = 0;
    // SAFETY: changes a state of the calling thread.
    unsafe { pthread_setcancelstate(DISABLE, &raw mut before) };
    let result = guarded(call);
    // SAFETY: as above.
    unsafe { pthread_setcancelstate(before, core::ptr::null_mut()) };
    result
}

/// Locks, also after a panic of whoever held it.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

unsafe extern "C" {
    fn pthread_setcancelstate(state: c_int, old: *mut c_int) -> c_int;
}

/// For calls that return 0 or an error number; `errno` is set too, for programs that look there.
pub(crate) fn returning_errno(call: impl FnOnce() -> Result<()>) -> c_int {
    match uncancelled(call) {
        Ok(()) => 0,
        Err(error) => {
            errno::set(error);
            error.0
        }
    }
}

/// For calls that return -1 and set `errno`.
pub(crate) fn returning_minus_one(call: impl FnOnce() -> Result<c_int>) -> c_int {
    uncancelled(call).unwrap_or_else(errno::fail)
}

/// For calls that return 0, or -1 and set `errno`: all of librdmacm's.
pub(crate) fn returning_zero(call: impl FnOnce() -> Result<()>) -> c_int {
    returning_minus_one(|| call().map(|()| 0))
}

/// For calls that return NULL and set `errno`.
pub(crate) fn returning_pointer<T>(call: impl FnOnce() -> Result<*mut T>) -> *mut T {
    uncancelled(call).unwrap_or_else(|error| {
        errno::set(error);
        core::ptr::null_mut()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_an_error_number() {
        assert_eq!(guarded(|| Ok(7)), Ok(7));
        assert_eq!(returning_errno(|| panic!("a bug")), libc::EIO);
        assert_eq!(returning_minus_one(|| panic!("a bug")), -1);
        assert!(returning_pointer::<u8>(|| panic!("a bug")).is_null());
        assert_eq!(std::io::Error::last_os_error().raw_os_error(), Some(libc::EIO));
    }
}
