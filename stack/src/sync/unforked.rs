//! Sockets that a fork does not get.
//!
//! A fork has every descriptor of its parent. A socket that the fork keeps open outlives the parent: the peer does not see that
//! the parent ended, and a path where no process serves any more looks served. Linux can close descriptors on exec, but not on
//! fork. So the fork handler (`process.rs`) calls `let_go` in the child, which replaces each socket that is listed here by an
//! unconnected one. The child's objects keep the numbers of their descriptors, and close them as usual.

use core::sync::atomic::{AtomicI32, Ordering};
use std::io;
use std::os::fd::{AsFd, AsRawFd, IntoRawFd};
use std::os::unix::net::UnixDatagram;

/// Most sockets that are listed at the same time.
const LISTED_MAX: usize = 1024;
const NONE: i32 = -1;

static LISTED: [AtomicI32; LISTED_MAX] = [const { AtomicI32::new(NONE) }; LISTED_MAX];
/// The unconnected socket that replaces them.
static NOTHING: AtomicI32 = AtomicI32::new(NONE);

/// Keeps a descriptor from forks while this exists. Drop it before you close the descriptor.
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

/// Replaces the listed sockets in this process, a new fork, before `fork` returns in it. Makes only system calls.
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
