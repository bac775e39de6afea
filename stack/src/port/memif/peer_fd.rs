//! Descriptors over which another process has power: those that it sent, and the socket on which it sends them.
//!
//! close(2) blocks for as long as another process likes if the descriptor is a file of FUSE, or a TCP socket that lingers; and
//! closing a unix socket closes the descriptors that nobody has received from it. So a separate thread closes what may come from
//! another user.

use crate::sync::process::Process;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Descriptors that may wait to be closed before no more are taken.
const WAITING_MAX: usize = 64;

/// A descriptor that another process may have made.
#[derive(Debug)]
pub struct PeerFd {
    /// `None` only while it is dropped or handed on.
    fd: Option<OwnedFd>,
    /// It comes from our own user or root, who could stop this process anyway.
    trusted: bool,
}

impl PeerFd {
    /// A descriptor from a process of this user.
    pub fn new(fd: OwnedFd, uid: u32) -> Self {
        Self { fd: Some(fd), trusted: uid == 0 || uid == rustix::process::geteuid().as_raw() }
    }

    /// The descriptor, if `is_safe` finds that closing it cannot block.
    pub fn checked(mut self, is_safe: impl FnOnce(&OwnedFd) -> bool) -> Option<OwnedFd> {
        self.fd.take_if(|fd| is_safe(fd))
    }
}

impl AsFd for PeerFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_ref().expect("it is there until it is dropped").as_fd()
    }
}

impl Drop for PeerFd {
    fn drop(&mut self) {
        if let Some(fd) = self.fd.take()
            && !self.trusted
        {
            close_elsewhere(fd);
        }
    }
}

/// What waits to be closed.
struct Waiting {
    fds: Vec<OwnedFd>,
    /// The process whose thread closes them.
    closer: Option<Process>,
}

static WAITING: Mutex<Waiting> = Mutex::new(Waiting { fds: Vec::new(), closer: None });

fn waiting() -> MutexGuard<'static, Waiting> {
    WAITING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether so much waits to be closed that nothing more should be taken.
pub fn is_full() -> bool {
    waiting().fds.len() >= WAITING_MAX
}

fn close_elsewhere(fd: OwnedFd) {
    let mut waiting = waiting();
    waiting.fds.push(fd);
    // A fork has no thread of its parent's.
    if !waiting.closer.is_some_and(Process::is_this) {
        // Where no thread can be had, the next descriptor tries again.
        let closer = std::thread::Builder::new().name("roce-close".into()).spawn(close_all);
        waiting.closer = closer.is_ok().then(Process::this);
    }
}

/// Closes what waits, and ends.
fn close_all() {
    loop {
        let mut waiting = waiting();
        let Some(fd) = waiting.fds.pop() else {
            waiting.closer = None;
            return;
        };
        drop(waiting);
        drop(fd);
    }
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;
    use std::os::unix::net::UnixStream;

    #[test]
    fn what_another_user_sent_is_closed_by_another_thread() {
        let me = rustix::process::geteuid().as_raw();
        for uid in [me, 0, me + 1] {
            let (fd, other) = UnixStream::pair().unwrap();
            drop(PeerFd::new(fd.into(), uid));
            // The end shows: it is closed.
            assert_eq!(std::io::Read::read(&mut &other, &mut [0]).unwrap(), 0);
        }
        let (fd, other) = UnixStream::pair().unwrap();
        let kept = PeerFd::new(fd.into(), me + 1).checked(|_| true).unwrap();
        other.set_nonblocking(true).unwrap();
        assert!(std::io::Read::read(&mut &other, &mut [0]).is_err(), "it is open");
        drop(kept);
        assert_eq!(std::io::Read::read(&mut &other, &mut [0]).unwrap(), 0);
        let (fd, other) = UnixStream::pair().unwrap();
        assert!(PeerFd::new(fd.into(), me + 1).checked(|_| false).is_none());
        assert_eq!(std::io::Read::read(&mut &other, &mut [0]).unwrap(), 0);
    }
}
