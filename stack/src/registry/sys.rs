#![allow(unsafe_code)]
//! Calls that rustix does not have: who is at the other end of a socket, the cookie of a network namespace, a clock, the number of a user.
//!
//! Each call takes numbers, and memory that this file owns until the call returns.

use core::mem::MaybeUninit;
use core::ptr;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags};
use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};

/// The process at the other end of a connected socket: the one that called connect(2) or listen(2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Its effective user at that time.
    pub uid: u32,
    /// Its PID; 0 if it is not visible from this PID namespace.
    pub pid: u32,
}

/// Whether a process lives.
#[derive(Debug)]
pub enum Life {
    /// It has ended, and is gone.
    Over,
    /// It lived at the call. This pidfd is readable when it has ended.
    Watched(OwnedFd),
    /// The system cannot tell.
    Unknown,
}

/// Reads an option of a socket.
fn option<T: Copy>(socket: impl AsFd, name: libc::c_int) -> io::Result<T> {
    let mut value = MaybeUninit::<T>::zeroed();
    let mut len = size_of::<T>() as libc::socklen_t;
    let (fd, at) = (socket.as_fd().as_raw_fd(), value.as_mut_ptr().cast());
    // SAFETY: there is room for `len` bytes and for their number until the call returns.
    match unsafe { libc::getsockopt(fd, libc::SOL_SOCKET, name, at, &raw mut len) } {
        // SAFETY: every `T` here is made of integers, for which zeros and any other bytes are values.
        0 => Ok(unsafe { value.assume_init() }),
        _ => Err(io::Error::last_os_error()),
    }
}

/// The process at the other end of a unix socket.
///
/// # Errors
/// Those of getsockopt(2).
pub fn peer(socket: impl AsFd) -> io::Result<Peer> {
    // The type that rustix has for this cannot represent PID 0.
    option::<libc::ucred>(socket, libc::SO_PEERCRED).map(|of| Peer { uid: of.uid, pid: of.pid as u32 })
}

/// Whether the process at the other end of a unix socket lives.
///
/// # Errors
/// This process has no descriptor left.
pub fn life_of_peer(socket: impl AsFd, peer: Peer) -> io::Result<Life> {
    match option::<RawFd>(socket, libc::SO_PEERPIDFD) {
        // SAFETY: the call has just created the descriptor, and nothing else owns it.
        Ok(fd) => Ok(Life::Watched(unsafe { OwnedFd::from_raw_fd(fd) })),
        Err(error) => match error.raw_os_error() {
            // Kernels before 6.16 report one of these errors for a process that has ended and was waited for.
            Some(libc::ESRCH | libc::EINVAL) => Ok(Life::Over),
            Some(libc::EMFILE | libc::ENFILE | libc::ENOMEM) => Err(error),
            _ => life_of(peer.pid),
        },
    }
}

/// Whether a process lives, by its PID, for Linux before 6.5. Another process may have got the PID since.
fn life_of(pid: u32) -> io::Result<Life> {
    let Some(pid) = Pid::from_raw(pid as i32) else { return Ok(Life::Unknown) };
    match rustix::process::pidfd_open(pid, PidfdFlags::empty()) {
        Ok(fd) => Ok(Life::Watched(fd)),
        Err(Errno::SRCH) => Ok(Life::Over),
        Err(error @ (Errno::MFILE | Errno::NFILE | Errno::NOMEM)) => Err(error.into()),
        Err(_) => Ok(Life::Unknown),
    }
}

impl Life {
    /// Whether the process has ended.
    pub fn is_over(&self) -> bool {
        match self {
            Self::Over => true,
            Self::Watched(fd) => {
                let mut fds = [PollFd::new(fd, PollFlags::IN)];
                rustix::event::poll(&mut fds, Some(&Timespec::default())).is_ok_and(|ready| ready > 0)
            }
            Self::Unknown => false,
        }
    }

    /// The descriptor that is readable when the process has ended, if there is one.
    pub fn fd(&self) -> Option<&OwnedFd> {
        match self {
            Self::Watched(fd) => Some(fd),
            Self::Over | Self::Unknown => None,
        }
    }
}

/// The cookie of a socket's network namespace.
///
/// # Errors
/// Those of getsockopt(2): Linux before 5.14 has none.
pub fn namespace_cookie(socket: impl AsFd) -> io::Result<u64> {
    option(socket, libc::SO_NETNS_COOKIE)
}

/// The number of the user with a name, by whatever tells the system of users; `None`: there is none.
///
/// # Errors
/// Those of getpwnam(3).
pub fn user_number(name: &str) -> io::Result<Option<u32>> {
    let Ok(name) = CString::new(name) else { return Ok(None) };
    let mut entry = MaybeUninit::<libc::passwd>::uninit();
    let mut texts = vec![0; USER_TEXTS];
    let mut found = ptr::null_mut();
    let (at, len) = (texts.as_mut_ptr(), texts.len());
    // SAFETY: the name ends with a NUL; there is room for an entry, and for so many bytes of its texts, until the call returns.
    let failed = unsafe { libc::getpwnam_r(name.as_ptr(), entry.as_mut_ptr(), at, len, &raw mut found) };
    match failed {
        // SAFETY: `found` points to the entry, which the call has filled; nobody else has it. Its texts are not looked at.
        0 if !found.is_null() => Ok(Some(unsafe { (*found).pw_uid })),
        // So some say that they know no such user.
        0 | libc::ENOENT | libc::ESRCH => Ok(None),
        error => Err(io::Error::from_raw_os_error(error)),
    }
}

/// Bytes of all texts of a user.
const USER_TEXTS: usize = 64 << 10;

/// Nanoseconds since the start of the system, those included in which it slept.
pub fn since_boot() -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `now` is a local variable. Every Linux that this runs on has the clock.
    unsafe { libc::clock_gettime(libc::CLOCK_BOOTTIME, &raw mut now) };
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;
    use std::os::unix::net::UnixStream;

    #[test]
    fn the_peer_of_a_socket_is_known_and_lives() {
        let (one, _other) = UnixStream::pair().unwrap();
        let peer = peer(&one).unwrap();
        assert_eq!(peer, Peer { uid: rustix::process::geteuid().as_raw(), pid: std::process::id() });
        assert!(!life_of_peer(&one, peer).unwrap().is_over());
        assert!(since_boot() > 0 && since_boot() <= since_boot());
    }

    // Goal: kernels with and without SO_PEERPIDFD give the same results.
    #[test]
    fn the_end_of_a_process_is_seen_by_its_number() {
        let mut child = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
        let life = life_of(child.id()).unwrap();
        assert!(!life.is_over() && life.fd().is_some());
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(life.is_over());
        assert!(life_of(child.id()).unwrap().is_over());
        assert!(matches!(life_of(0).unwrap(), Life::Unknown));
    }
}
