//! Sockets that a forked child does not get.
//!
//! A forked child has every descriptor of its parent. A socket that the child keeps open outlives the parent: the peer does not see that
//! the parent ended, and a path that no process serves any more looks served. Linux can close descriptors on exec, but not on fork. So the
//! fork handler (`process.rs`) calls `let_go` in the child, which replaces each socket that is listed here by an unconnected one. The
//! child's objects keep the numbers of their descriptors, and close them as usual.
//!
//! To make and list a socket is one step, and so is to end it and take it off the list. Forks wait for these steps, because the kernel
//! copies the descriptors of a process first and its memory afterwards. So a child keeps a port that its parent has closed in use only
//! until its handler runs.

use core::cell::Cell;
use core::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::io;
use std::os::fd::{AsFd, AsRawFd};

/// Most sockets that are listed at the same time.
const LISTED_MAX: usize = 4096;
const NONE: i32 = -1;

static LISTED: [AtomicI32; LISTED_MAX] = [const { AtomicI32::new(NONE) }; LISTED_MAX];

/// Whether a thread changes the list, or the process forks.
static CHANGING: AtomicBool = AtomicBool::new(false);

std::thread_local! {
    /// Whether this thread does: a signal handler that forks meanwhile must not wait for it.
    static MINE: Cell<bool> = const { Cell::new(false) };
}

/// Makes a few system calls. No fork happens between them.
fn change<T>(calls: impl FnOnce() -> T) -> T {
    begin();
    MINE.set(true);
    let result = calls();
    MINE.set(false);
    CHANGING.store(false, Ordering::Release);
    result
}

fn begin() {
    while CHANGING.swap(true, Ordering::Acquire) {
        std::thread::yield_now();
    }
}

/// Called before a fork.
#[cfg_attr(miri, allow(dead_code, reason = "Miri has no fork"))]
pub(super) fn forking() {
    if !MINE.get() {
        begin();
    }
}

/// Called after a fork, in the parent.
#[cfg_attr(miri, allow(dead_code, reason = "Miri has no fork"))]
pub(super) fn forked() {
    if !MINE.get() {
        CHANGING.store(false, Ordering::Release);
    }
}

/// Keeps a descriptor from forked children while this exists. Drop it before you close the descriptor.
#[derive(Debug)]
pub struct Unforked {
    slot: &'static AtomicI32,
    fd: i32,
}

impl Unforked {
    /// Makes a socket that forked children do not get.
    ///
    /// # Errors
    /// Those of `make`, which makes a few system calls and no more; EMFILE if too many are listed.
    pub fn make<S: AsFd>(make: impl FnOnce() -> io::Result<S>) -> io::Result<(S, Self)> {
        change(|| {
            let socket = make()?;
            let unforked = Self::new(&socket)?;
            Ok((socket, unforked))
        })
    }

    fn new(fd: impl AsFd) -> io::Result<Self> {
        super::process::Process::this();
        let fd = fd.as_fd().as_raw_fd();
        let free =
            |slot: &&AtomicI32| slot.compare_exchange(NONE, fd, Ordering::Relaxed, Ordering::Relaxed).is_ok();
        let slot = LISTED.iter().find(free);
        slot.map(|slot| Self { slot, fd }).ok_or_else(|| io::Error::from_raw_os_error(libc::EMFILE))
    }

    /// Ends the object of the descriptor, which nobody uses any more. The descriptor's number stays taken until it is closed. Does nothing
    /// if no other descriptor is left at the moment.
    pub fn end(&self) {
        change(|| {
            if let Some(nothing) = nothing() {
                put(nothing, self.fd);
                self.forget();
            }
        });
    }

    /// Takes it off the list. In a forked child it is not listed any more, and another one may have its place.
    fn forget(&self) {
        let _ = self.slot.compare_exchange(self.fd, NONE, Ordering::Relaxed, Ordering::Relaxed);
    }
}

impl Drop for Unforked {
    fn drop(&mut self) {
        self.forget();
    }
}

/// Replaces the listed sockets in this process, a forked child, before `fork` returns in it, and empties the list: the program may close
/// their numbers and use them for files. Makes only system calls.
#[cfg_attr(miri, allow(dead_code, reason = "Miri has no fork"))]
pub(super) fn let_go() {
    forked();
    for slot in &LISTED {
        let fd = slot.swap(NONE, Ordering::Relaxed);
        if fd == NONE {
            continue;
        }
        let nothing = nothing().or_else(|| {
            // No descriptor is left. This process has one thread, which nobody can get the number from meanwhile.
            // SAFETY: takes a number, of an object that was copied from the parent: it uses, and closes, whatever has that number.
            unsafe { libc::close(fd) };
            nothing()
        });
        if let Some(nothing) = nothing {
            put(nothing, fd);
        }
    }
}

/// Makes a socket that is connected to nothing. `None` if no descriptor is left.
fn nothing() -> Option<i32> {
    // SAFETY: takes numbers.
    let fd = unsafe {
        libc::socket(libc::AF_UNIX, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK, 0)
    };
    (fd >= 0).then_some(fd)
}

/// Gives a descriptor another number, in place of the one that has it.
fn put(fd: i32, number: i32) {
    if fd != number {
        // SAFETY: takes numbers; `fd` is this module's own, and the number is that of an object, which continues to use it.
        unsafe {
            libc::dup3(fd, number, libc::O_CLOEXEC);
            libc::close(fd);
        }
    }
}
