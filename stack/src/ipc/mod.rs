//! What processes of one machine hand each other: descriptors, along with the bytes of a unix socket, and memory that cannot shrink
//! under who has mapped it.
//!
//! Nothing here waits, but where a descriptor that another process sent is closed: so who receives some decides on which thread.

pub mod rights;
pub mod sealed;

use rustix::io::Errno;
use std::io;
use std::os::fd::{OwnedFd, RawFd};

/// Whether there are no descriptors or no memory.
pub fn is_exhausted(error: &io::Error) -> bool {
    let no_more = [Errno::MFILE, Errno::NFILE, Errno::NOMEM, Errno::NOBUFS].map(Errno::raw_os_error);
    error.raw_os_error().is_some_and(|number| no_more.contains(&number))
}

/// The same with a number of at least `least`, where that is possible: a process may have fewer.
pub fn renumbered(fd: OwnedFd, least: RawFd) -> OwnedFd {
    rustix::io::fcntl_dupfd_cloexec(&fd, least).unwrap_or(fd)
}
