//! File descriptors that report events: one that is readable once it was signalled (eventfd(2)), and one that is readable while one of the
//! descriptors that it watches is (epoll(7)).

use core::ffi::c_int;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

use verbs::{DeviceError, VerbsError};

use crate::errno::Result;

/// Creates a descriptor for [`signal`].
///
/// # Errors
/// If no descriptor is left.
pub(crate) fn event_fd() -> Result<OwnedFd> {
    // SAFETY: takes numbers only.
    own(unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) })
}

/// Creates a descriptor that watches others.
///
/// # Errors
/// If no descriptor is left.
pub(crate) fn epoll() -> Result<OwnedFd> {
    // SAFETY: takes a number only.
    own(unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) })
}

/// Takes ownership of a new descriptor; fails if the number is negative.
fn own(fd: c_int) -> Result<OwnedFd> {
    if fd < 0 {
        let why = DeviceError::Descriptor(std::io::Error::last_os_error().kind());
        return Err(VerbsError::from(why).into());
    }
    // SAFETY: the caller has just created it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Makes a descriptor of [`event_fd`] readable.
pub(crate) fn signal(fd: RawFd) {
    static ONE: u64 = 1;
    // SAFETY: reads 8 bytes of ours; a number that is not a descriptor is refused.
    unsafe { libc::write(fd, (&raw const ONE).cast(), 8) };
}

/// Makes a descriptor of [`event_fd`] unreadable.
pub(crate) fn clear(fd: RawFd) {
    let mut count = 0_u64;
    // SAFETY: writes 8 bytes of ours; the descriptor does not block.
    unsafe { libc::read(fd, (&raw mut count).cast(), 8) };
}

/// Makes a descriptor of [`epoll`] watch another one.
pub(crate) fn watch(epoll: RawFd, fd: RawFd) -> Result<()> {
    epoll_ctl(epoll, libc::EPOLL_CTL_ADD, fd)
}

/// Makes it stop watching that descriptor.
pub(crate) fn unwatch(epoll: RawFd, fd: RawFd) -> Result<()> {
    epoll_ctl(epoll, libc::EPOLL_CTL_DEL, fd)
}

fn epoll_ctl(epoll: RawFd, operation: c_int, fd: RawFd) -> Result<()> {
    let mut event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: 0 };
    // SAFETY: numbers, and a structure of ours that the call reads.
    let done = unsafe { libc::epoll_ctl(epoll, operation, fd, &raw mut event) };
    if done < 0 { Err(std::io::Error::last_os_error().into()) } else { Ok(()) }
}

/// Makes the descriptor `old` refer to the file of `new`. It keeps its blocking mode.
///
/// # Errors
/// Those of dup3(2).
pub(crate) fn renew(old: &OwnedFd, new: OwnedFd) -> Result<()> {
    let (old, new) = (old.as_raw_fd(), new.as_raw_fd());
    // SAFETY: both descriptors are ours.
    let renewed = unsafe {
        libc::fcntl(new, libc::F_SETFL, libc::fcntl(old, libc::F_GETFL));
        libc::dup3(new, old, libc::O_CLOEXEC)
    };
    if renewed < 0 { Err(std::io::Error::last_os_error().into()) } else { Ok(()) }
}
