//! Descriptors that tell of events: one that is readable while it was signalled (eventfd(2)), and one that is readable while one of
//! those that it watches is (epoll(7)).

use core::ffi::c_int;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

use verbs::{DeviceError, VerbsError};

use crate::errno::Result;

/// # Errors
/// No descriptor is left.
pub(crate) fn event_fd() -> Result<OwnedFd> {
    // SAFETY: numbers.
    own(unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) })
}

/// # Errors
/// No descriptor is left.
pub(crate) fn epoll() -> Result<OwnedFd> {
    // SAFETY: a number.
    own(unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) })
}

fn own(fd: c_int) -> Result<OwnedFd> {
    if fd < 0 {
        let why = DeviceError::Descriptor(std::io::Error::last_os_error().kind());
        return Err(VerbsError::from(why).into());
    }
    // SAFETY: the caller has just made it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Makes a descriptor of [`event_fd`] readable.
pub(crate) fn signal(fd: RawFd) {
    static ONE: u64 = 1;
    // SAFETY: a number that is no descriptor is refused; 8 bytes.
    unsafe { libc::write(fd, (&raw const ONE).cast(), 8) };
}

/// Makes a descriptor of [`event_fd`] unreadable.
pub(crate) fn clear(fd: RawFd) {
    let mut count = 0_u64;
    // SAFETY: a descriptor that does not block, and 8 bytes.
    unsafe { libc::read(fd, (&raw mut count).cast(), 8) };
}

/// A descriptor of [`epoll`] watches another one from now on.
pub(crate) fn watch(epoll: RawFd, fd: RawFd) -> Result<()> {
    epoll_ctl(epoll, libc::EPOLL_CTL_ADD, fd)
}

/// It does not watch it any more.
pub(crate) fn unwatch(epoll: RawFd, fd: RawFd) -> Result<()> {
    epoll_ctl(epoll, libc::EPOLL_CTL_DEL, fd)
}

fn epoll_ctl(epoll: RawFd, operation: c_int, fd: RawFd) -> Result<()> {
    let mut event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: 0 };
    // SAFETY: numbers, and a structure.
    let done = unsafe { libc::epoll_ctl(epoll, operation, fd, &raw mut event) };
    if done < 0 { Err(std::io::Error::last_os_error().into()) } else { Ok(()) }
}

/// Makes the number of `old` refer to what `new` is; it blocks, or not, as before.
///
/// # Errors
/// Those of dup3(2).
pub(crate) fn renew(old: &OwnedFd, new: OwnedFd) -> Result<()> {
    let (old, new) = (old.as_raw_fd(), new.as_raw_fd());
    // SAFETY: descriptors of ours.
    let renewed = unsafe {
        libc::fcntl(new, libc::F_SETFL, libc::fcntl(old, libc::F_GETFL));
        libc::dup3(new, old, libc::O_CLOEXEC)
    };
    if renewed < 0 { Err(std::io::Error::last_os_error().into()) } else { Ok(()) }
}
