//! A file descriptor that is readable while a queue holds something, for epoll(7).
//!
//! An eventfd(2). A thread that adds to the queue signals, and one that empties the queue clears, both under the queue's lock. So the
//! descriptor is readable exactly while the queue holds something. Each signal wakes the waiters, so level- and edge-triggered waiting both
//! work. Programs wait on the descriptor; they must not read or write it.

use core::time::Duration;

use arrayvec::ArrayVec;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd};

/// An eventfd(2), closed on exec, not blocking.
///
/// Signals and clears are bare system calls. Those of the C library are cancellation points (pthread_cancel(3)): a cancelled
/// thread would end inside them, and leave the device's state half changed.
#[derive(Debug)]
pub struct EventFd(OwnedFd);

impl EventFd {
    /// A new descriptor, not readable.
    ///
    /// # Errors
    /// Those of eventfd(2): the process has no descriptor left.
    pub fn new() -> io::Result<Self> {
        // SAFETY: takes two numbers, touches no memory.
        let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: eventfd just made the descriptor, and nothing else owns it.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    /// Makes the descriptor readable and wakes its waiters.
    pub fn signal(&self) {
        // Fails only at 2^64 - 2 signals without a clear, and the descriptor is readable then.
        let _ = rustix::io::write(&self.0, &1u64.to_ne_bytes());
    }

    /// Makes the descriptor not readable. If the program has the descriptor, call this only after a signal: the program may have made it
    /// blocking.
    pub fn clear(&self) {
        // Fails only if nothing was signalled.
        let _ = rustix::io::read(&self.0, &mut [0u8; 8]);
    }

    /// Waits until the descriptor is readable, a signal handler ran, or `timeout` is over.
    pub fn wait(&self, timeout: Duration) {
        wait_readable(&mut [PollFd::new(self, PollFlags::IN)], timeout);
    }
}

/// Prepares these descriptors, at most the first `N` of them, for [`wait_readable`].
pub(crate) fn to_wait_for<'a, const N: usize>(
    fds: impl IntoIterator<Item = BorrowedFd<'a>>,
) -> ArrayVec<PollFd<'a>, N> {
    fds.into_iter().take(N).map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect()
}

/// Waits until one of the descriptors is readable, a signal handler ran, or `timeout` is over. Returns whether one is readable.
pub(crate) fn wait_readable(fds: &mut [PollFd<'_>], timeout: Duration) -> bool {
    // A timeout that the system cannot express counts as none.
    poll(fds, Timespec::try_from(timeout).ok().as_ref()).is_ok_and(|ready| ready > 0)
}

impl From<EventFd> for OwnedFd {
    fn from(event: EventFd) -> Self {
        event.0
    }
}

impl AsFd for EventFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

// Miri has no ppoll.
#[cfg(all(test, not(loom), not(miri)))]
mod tests {
    use super::*;
    use std::time::Instant;

    #[test]
    fn readable_between_signal_and_clear() {
        let fd = EventFd::new().unwrap();
        let start = Instant::now();
        fd.wait(Duration::from_millis(2));
        assert!(start.elapsed() >= Duration::from_millis(2), "nothing was signalled");
        fd.signal();
        fd.signal();
        fd.wait(Duration::MAX);
        fd.clear();
        let start = Instant::now();
        fd.wait(Duration::from_millis(2));
        assert!(start.elapsed() >= Duration::from_millis(2), "one clear takes every signal");
    }
}
