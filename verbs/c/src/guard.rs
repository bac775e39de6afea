//! The boundary to C: converts results to what C expects, and a panic to an error number and a line on stderr.
//!
//! pthread_cancel(3) unwinds the thread. A guard would stop that, which aborts the process. Therefore calls that block are outside of
//! guarded functions (`wait`), and no guarded function reaches a cancellation point of libc while its thread may be cancelled. The libc
//! functions that the library calls are wrapped (`uncancelled.c`), for every port, at no cost where none is called. Calls that may use much
//! of libc, some of which waits inside where no wrapper is (getaddrinfo(3)), disable cancellation as a whole (`uncancelled`). Posts and
//! polls do not.

use core::ffi::c_int;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::errno::{self, EIO, Errno, Result};
use crate::log::say;

/// Runs a C function's body. A panic becomes `EIO`.
#[inline]
pub(crate) fn guarded<T>(call: impl FnOnce() -> Result<T>) -> Result<T> {
    // Only an object that C may still destroy can be left in an inconsistent state; the stack itself survives panics.
    catch_unwind(AssertUnwindSafe(call)).unwrap_or_else(|_| Err(panicked()))
}

/// Prints that a call panicked, and returns `EIO`.
#[cold]
fn panicked() -> Errno {
    // The panic hook has already printed the panic's message.
    say("a call of libibverbs panicked, which is a bug of this library; it returns EIO");
    EIO
}

/// As [`guarded`], for calls that may open or close something or start threads: the thread is not cancelled before the call has ended.
pub(crate) fn uncancelled<T>(call: impl FnOnce() -> Result<T>) -> Result<T> {
    const DISABLE: c_int = 1; // PTHREAD_CANCEL_DISABLE
    let mut before = 0;
    // SAFETY: only changes a state of the calling thread.
    unsafe { pthread_setcancelstate(DISABLE, &raw mut before) };
    let result = guarded(call);
    // SAFETY: as above.
    unsafe { pthread_setcancelstate(before, core::ptr::null_mut()) };
    result
}

/// Locks the mutex, even if a thread has panicked while it held it.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

unsafe extern "C" {
    fn pthread_setcancelstate(state: c_int, old: *mut c_int) -> c_int;
}

/// For functions that return 0 or an error number. Sets `errno` too, for programs that read it.
pub(crate) fn returning_errno(call: impl FnOnce() -> Result<()>) -> c_int {
    match uncancelled(call) {
        Ok(()) => 0,
        Err(error) => {
            errno::set(error);
            error.0
        }
    }
}

/// For functions that return -1 and set `errno` on failure.
pub(crate) fn returning_minus_one(call: impl FnOnce() -> Result<c_int>) -> c_int {
    uncancelled(call).unwrap_or_else(errno::fail)
}

/// For functions that return 0, or -1 and set `errno`, as all of librdmacm do.
pub(crate) fn returning_zero(call: impl FnOnce() -> Result<()>) -> c_int {
    returning_minus_one(|| call().map(|()| 0))
}

/// For functions that return NULL and set `errno` on failure.
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
