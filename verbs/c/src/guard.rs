//! The border to C: results become what C expects, and a panic becomes an error number and a line on stderr.
//!
//! A call that may block is no part of a guarded function: a thread that is cancelled in there is unwound, which a guard would
//! stop, and with it the process.

use core::ffi::c_int;
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::errno::{self, EIO, Errno, Result};

/// Runs a call of C; a panic is `EIO`.
#[inline]
pub(crate) fn guarded<T>(call: impl FnOnce() -> Result<T>) -> Result<T> {
    // What a panic left half done belongs to an object that C may still destroy; the stack itself survives panics.
    catch_unwind(AssertUnwindSafe(call)).unwrap_or_else(|_| Err(panicked()))
}

#[cold]
fn panicked() -> Errno {
    // The panic's own message was printed by its hook.
    eprintln!("roce: a call of libibverbs failed by a bug of this library; it returns EIO");
    EIO
}

/// For calls that return 0 or an error number; `errno` is set too, for programs that look there.
#[inline]
pub(crate) fn number(call: impl FnOnce() -> Result<()>) -> c_int {
    match guarded(call) {
        Ok(()) => 0,
        Err(error) => {
            errno::set(error);
            error.0
        }
    }
}

/// For calls that return -1 and set `errno`.
#[inline]
pub(crate) fn minus_one(call: impl FnOnce() -> Result<c_int>) -> c_int {
    guarded(call).unwrap_or_else(|error| {
        errno::set(error);
        -1
    })
}

/// For calls that return NULL and set `errno`.
#[inline]
pub(crate) fn pointer<T>(call: impl FnOnce() -> Result<*mut T>) -> *mut T {
    guarded(call).unwrap_or_else(|error| {
        errno::set(error);
        core::ptr::null_mut()
    })
}
