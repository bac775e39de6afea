//! Sockets that a fork does not get.
//!
//! A fork has every descriptor of its parent. A socket that it keeps open outlives the parent: the peer does not see the parent's
//! end, and a path at which nobody is left to serve looks served. Linux closes descriptors on exec, not on fork. So the handler
//! of forks (`process.rs`) calls `let_go` in the child, which puts a socket that is joined with nothing in the place of each
//! one that is listed here. The child's objects keep their descriptors' numbers, and close them as usual.

use core::sync::atomic::{AtomicI32, Ordering};
use std::io;
use std::os::fd::{AsFd, AsRawFd, IntoRawFd};
use std::os::unix::net::UnixDatagram;

/// Most sockets that are listed at the same time.
const LISTED_MAX: usize = 1024;
const NONE: i32 = -1;

static LISTED: [AtomicI32; LISTED_MAX] = [const { AtomicI32::new(NONE) }; LISTED_MAX];
/// The socket that is put in their place.
static NOTHING: AtomicI32 = AtomicI32::new(NONE);

/// Keeps a descriptor from forks while this exists. To be dropped before the descriptor is closed.
#[derive(Debug)]
pub struct Unforked(&'static AtomicI32);

impl Unforked {
    /// Forks from now on do not get this descriptor.
    ///
    /// # Errors
    /// EMFILE: too many are listed, or the process has no descriptor left.
    pub fn new(fd: impl AsFd) -> io::Result<Self> {
        super::process::Process::this();
        if NOTHING.load(Ordering::Relaxed) == NONE {
            let nothing = UnixDatagram::unbound()?;
            nothing.set_nonblocking(true)?;
            let fd = nothing.as_raw_fd();
            if NOTHING.compare_exchange(NONE, fd, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
                let _ = nothing.into_raw_fd();
            }
        }
        let fd = fd.as_fd().as_raw_fd();
        let free =
            |slot: &&AtomicI32| slot.compare_exchange(NONE, fd, Ordering::Relaxed, Ordering::Relaxed).is_ok();
        let slot = LISTED.iter().find(free);
        slot.map(Self).ok_or_else(|| io::Error::from_raw_os_error(libc::EMFILE))
    }
}

impl Drop for Unforked {
    fn drop(&mut self) {
        self.0.store(NONE, Ordering::Relaxed);
    }
}

/// Takes the listed sockets from this process, a new fork, before `fork` returns there: makes system calls and no more.
#[cfg_attr(miri, allow(dead_code, reason = "Miri has no fork"))]
pub(super) fn let_go() {
    let nothing = NOTHING.load(Ordering::Relaxed);
    for slot in &LISTED {
        let fd = slot.load(Ordering::Relaxed);
        if fd != NONE {
            // SAFETY: takes numbers. The descriptor belongs to an object that was copied from the parent: it uses, and closes,
            // whatever has that number.
            unsafe { libc::dup3(nothing, fd, libc::O_CLOEXEC) };
        }
    }
}
