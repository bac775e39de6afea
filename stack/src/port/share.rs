#![allow(unsafe_code)]
//! How many threads peers may keep busy or waiting: a share for each peer, and a bound for all.
//!
//! A peer costs a thread while it is met, and while its descriptors are closed, which can take as long as it likes. So the bound is
//! divided: among the ports of the process, among the users at a port, and among the processes of a user. Each gets, at its level, at
//! most half of what the others leave: one that takes all it can still leaves as much to the next one.
//!
//! Nothing here waits for a lock: a thread that had one when the process forked would never give it back in the fork.

use crate::sync::process::Process;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::io;
use std::os::fd::{AsFd, AsRawFd};

/// Threads for all ports of the process.
const ALL: usize = 64;
/// Threads for a port, if no other one needs any.
const PORT: usize = 32;
/// Threads for a user's processes at a port, if no other user needs any; a process of them gets at most half.
const USER: usize = 16;
/// Entries of the table: links that end take one beyond the bounds, each port one at a time.
const ENTRIES: usize = 4 * ALL;

/// A number for a port that no other one of the process has.
pub fn port_number() -> u64 {
    static PORTS: AtomicU64 = AtomicU64::new(0);
    PORTS.fetch_add(1, Ordering::Relaxed)
}

/// Who is at the other end of a socket, as far as the kernel says. Processes that are invisible here (another PID namespace) are
/// one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Party {
    /// The port, by a number that no other one of the process has.
    pub port: u64,
    /// The user of the peer's process.
    pub uid: u32,
    /// The process, or 0.
    pub pid: u32,
}

/// A part of a share in use; given back when it is dropped.
#[derive(Debug)]
pub struct Share {
    party: Party,
    /// `None`: at rest, or every entry was taken.
    entry: Option<&'static InUse>,
}

/// A share in use.
#[derive(Debug)]
struct InUse {
    /// The number of the process that uses it, plus 1; any other one: it is free.
    used_by: AtomicU32,
    port: AtomicU64,
    /// User and process of the peer.
    who: AtomicU64,
}

static TABLE: [InUse; ENTRIES] =
    [const { InUse { used_by: AtomicU32::new(0), port: AtomicU64::new(0), who: AtomicU64::new(0) } };
        ENTRIES];

impl Party {
    /// Whose end the other one of a connected unix socket of `port` was when that connected, or began to listen.
    ///
    /// # Errors
    /// Those of getsockopt(2), which has none for such a socket.
    pub fn of_peer(socket: impl AsFd, port: u64) -> io::Result<Self> {
        // rustix has a type for this that has no process 0.
        let mut peer = libc::ucred { pid: 0, uid: 0, gid: 0 };
        let mut len = size_of::<libc::ucred>() as libc::socklen_t;
        let (fd, at) = (socket.as_fd().as_raw_fd(), (&raw mut peer).cast());
        // SAFETY: there is room for three numbers, and for their length, until the call returns.
        match unsafe { libc::getsockopt(fd, libc::SOL_SOCKET, libc::SO_PEERCRED, at, &raw mut len) } {
            0 => Ok(Self { port, uid: peer.uid, pid: peer.pid as u32 }),
            _ => Err(io::Error::last_os_error()),
        }
    }

    fn who(self) -> u64 {
        u64::from(self.uid) << 32 | u64::from(self.pid)
    }

    /// Whether one more thread is within its share. Others may take theirs meanwhile, which moves a bound by as many.
    fn has_room(self) -> bool {
        let (mut all, mut port, mut user, mut process) = (0, 0, 0, 0);
        let me = mark();
        for entry in TABLE.iter().filter(|entry| entry.used_by.load(Ordering::Acquire) == me) {
            let who = entry.who.load(Ordering::Relaxed);
            let same_port = entry.port.load(Ordering::Relaxed) == self.port;
            let same_user = same_port && who >> 32 == u64::from(self.uid);
            all += 1;
            port += usize::from(same_port);
            user += usize::from(same_user);
            process += usize::from(same_user && who == self.who());
        }
        all + port < ALL && port + user < PORT && user + process < USER
    }

    fn enter(self) -> Option<&'static InUse> {
        let me = mark();
        let take = |entry: &&InUse| {
            let was = entry.used_by.load(Ordering::Relaxed);
            was != me && entry.used_by.compare_exchange(was, me, Ordering::AcqRel, Ordering::Relaxed).is_ok()
        };
        let entry = TABLE.iter().find(take)?;
        entry.port.store(self.port, Ordering::Relaxed);
        entry.who.store(self.who(), Ordering::Relaxed);
        Some(entry)
    }
}

/// What marks an entry as used by this process: a fork has a copy of its parent's table, whose threads it has not.
fn mark() -> u32 {
    Process::this().number() + 1
}

impl Share {
    /// A thread for this party, if that is within its share.
    pub fn take(party: Party) -> Option<Self> {
        if !party.has_room() {
            return None;
        }
        Some(Self { party, entry: Some(party.enter()?) })
    }

    /// A thread for this party, whether that is within its share or not: the port ends, and its descriptors have to be closed.
    pub fn beyond(party: Party) -> Self {
        let mut share = Self { party, entry: None };
        share.resume();
        share
    }

    /// Whose it is.
    pub fn party(&self) -> Party {
        self.party
    }

    /// Gives it back for a while: the peer is connected, and costs no thread.
    pub fn rest(&mut self) {
        if let Some(entry) = self.entry.take() {
            entry.used_by.store(0, Ordering::Release);
        }
    }

    /// Takes it again, whether there is room or not: the link is over, and its descriptors have to be closed.
    pub fn resume(&mut self) {
        if self.entry.is_none() {
            self.entry = self.party.enter();
        }
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.rest();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn party(port: u64, uid: u32, pid: u32) -> Party {
        // No port of another test has such a number.
        Party { port: port + (1 << 40), uid, pid }
    }

    fn take_all(party: Party) -> Vec<Share> {
        core::iter::from_fn(|| Share::take(party)).take(ENTRIES).collect()
    }

    // Goal: whoever takes all it can leaves room for the next process, user and port; and what is given back can be taken again. The
    // other tests of the process use the table, too: so only what holds beside them is checked.
    #[test]
    fn the_greediest_leaves_room_for_the_next() {
        let process = take_all(party(1, 7, 100));
        assert_eq!(process.len(), USER / 2);
        let another = take_all(party(1, 7, 101));
        assert_eq!(another.len(), (USER - process.len()) / 2);
        // As many processes as there are entries.
        let many: Vec<Share> = (200..300).flat_map(|pid| take_all(party(1, 7, pid))).collect();
        assert!(Share::take(party(1, 7, 300)).is_none(), "its user has no more");
        assert!(process.len() + another.len() + many.len() <= USER);
        let user = take_all(party(1, 8, 100));
        assert!(!user.is_empty() && user.len() <= (PORT - USER) / 2, "{}", user.len());
        let users: Vec<Share> = (10..60).flat_map(|uid| take_all(party(1, uid, 1))).collect();
        assert!(Share::take(party(1, 60, 1)).is_none(), "the port has no more");
        let port = take_all(party(2, 7, 100));
        assert!(!port.is_empty(), "another port has");
        drop((process, another, many, user, users));
        assert!(Share::take(party(1, 60, 1)).is_some());
    }

    #[test]
    fn a_link_that_is_over_takes_its_share_again() {
        let who = party(3, 7, 100);
        let mut all = take_all(who);
        all[0].rest();
        let next = Share::take(who).expect("there is room");
        assert!(Share::take(who).is_none());
        all[0].resume();
        drop(next);
        assert!(Share::take(who).is_none(), "it counts again");
        drop(all);
        assert!(Share::take(who).is_some());
    }
}
