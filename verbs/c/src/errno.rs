//! Error numbers, as C functions return them.

use core::ffi::c_int;
use core::sync::atomic::AtomicBool;

use verbs::{DeviceError, PostError, VerbsError};

use crate::log::say_once;

/// A Linux error number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Errno(pub c_int);

pub(crate) type Result<T> = core::result::Result<T, Errno>;

pub(crate) const EINVAL: Errno = Errno(libc::EINVAL);
pub(crate) const EIO: Errno = Errno(libc::EIO);
pub(crate) const ENOMEM: Errno = Errno(libc::ENOMEM);
pub(crate) const ENODEV: Errno = Errno(libc::ENODEV);
pub(crate) const EOPNOTSUPP: Errno = Errno(libc::EOPNOTSUPP);

impl From<VerbsError> for Errno {
    fn from(error: VerbsError) -> Self {
        match error {
            // In a forked child the device does not exist any more, for any caller.
            VerbsError::Device(DeviceError::Forked) => EIO,
            VerbsError::Device(DeviceError::Descriptor(_)) => {
                static SAID: AtomicBool = AtomicBool::new(false);
                say_once(&SAID, &error);
                Self(error.errno())
            }
            error => Self(error.errno()),
        }
    }
}

impl From<PostError> for Errno {
    fn from(error: PostError) -> Self {
        Self(error.errno())
    }
}

impl From<std::io::Error> for Errno {
    fn from(error: std::io::Error) -> Self {
        Self(error.raw_os_error().unwrap_or(libc::EIO))
    }
}

/// Sets the calling thread's `errno`.
pub(crate) fn set(Errno(number): Errno) {
    // SAFETY: the address of the calling thread's own variable.
    unsafe { *libc::__errno_location() = number };
}

/// For functions that return -1 on failure: sets `errno` and returns -1.
#[cold]
pub(crate) fn fail(error: Errno) -> c_int {
    set(error);
    -1
}
