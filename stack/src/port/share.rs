#![allow(unsafe_code)]
//! Limits the threads that peers may keep busy or blocked: a limit for each peer, and one for all.
//!
//! A peer costs a thread while a connection with it is set up, and while its descriptors are closed, which can take as long as the peer
//! likes. So the total is divided among the ports of the process, the users at a port, and the processes of a user. At each level a party
//! gets at most half of what the others leave: a party that takes all it can still leaves as much to the next one.
//!
//! Nothing here waits for a lock: after a fork, the child would wait forever for one that another thread held.

use crate::sync::process::Process;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::io;
use std::os::fd::{AsFd, AsRawFd};

/// Threads for all ports of the process.
const ALL: usize = 64;
/// Threads for one port, if no other port needs any.
const PORT: usize = 32;
/// Threads for one user's processes at a port, if no other user needs any; one process gets at most half.
const USER: usize = 16;
/// Entries of the table. A link that ends takes an entry even above the limits; each port ends one link at a time.
const ENTRIES: usize = 4 * ALL;

/// Returns a number that no other port of the process has.
pub fn port_number() -> u64 {
    static PORTS: AtomicU64 = AtomicU64::new(0);
    PORTS.fetch_add(1, Ordering::Relaxed)
}

/// The process at the other end of a socket, as far as the kernel tells. Processes that are invisible here (in another PID namespace) count
/// as one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Party {
    /// The port, by its [`port_number`].
    pub port: u64,
    /// The uid of the peer's process.
    pub uid: u32,
    /// The pid of the peer's process; 0 if it is invisible here.
    pub pid: u32,
}

/// A thread that a party uses; dropping this gives it back.
#[derive(Debug)]
pub struct Share {
    party: Party,
    /// `None` while it rests, or if every entry of the table was taken.
    entry: Option<&'static InUse>,
}

/// One entry of the table.
#[derive(Debug)]
struct InUse {
    /// [`mark`] of the process that uses the entry. With any other value the entry is free.
    used_by: AtomicU32,
    port: AtomicU64,
    /// Uid and pid of the peer.
    who: AtomicU64,
}

static TABLE: [InUse; ENTRIES] =
    [const { InUse { used_by: AtomicU32::new(0), port: AtomicU64::new(0), who: AtomicU64::new(0) } };
        ENTRIES];

impl Party {
    /// The party that connected to a unix socket of `port`, or that listened at the socket's other end.
    ///
    /// # Errors
    /// Those of getsockopt(2), which does not fail for such a socket.
    pub fn of_peer(socket: impl AsFd, port: u64) -> io::Result<Self> {
        // The type of rustix for this cannot hold process 0.
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

    /// Whether the limits allow this party one more thread. Other threads may take some at the same time, which can exceed a limit by as
    /// many.
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

/// Marks an entry as used by this process. A forked child has a copy of its parent's table, but not the parent's threads.
fn mark() -> u32 {
    Process::this().number() + 1
}

impl Share {
    /// Takes a thread for this party; `None` if the limits do not allow it.
    pub fn take(party: Party) -> Option<Self> {
        if !party.has_room() {
            return None;
        }
        Some(Self { party, entry: Some(party.enter()?) })
    }

    /// Takes a thread for this party regardless of the limits: the port ends, and its descriptors have to be closed.
    pub fn beyond(party: Party) -> Self {
        let mut share = Self { party, entry: None };
        share.resume();
        share
    }

    /// The party that uses the thread.
    pub fn party(&self) -> Party {
        self.party
    }

    /// Gives the thread back until [`resume`](Self::resume): the peer is connected, and needs none.
    pub fn rest(&mut self) {
        if let Some(entry) = self.entry.take() {
            entry.used_by.store(0, Ordering::Release);
        }
    }

    /// Takes a thread again, regardless of the limits: the link has ended, and its descriptors have to be closed.
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

    // Goal: a party that takes all it can leaves room for the next process, user and port; and what is given back can be taken again. Other
    // tests of the process use the table at the same time, so only what holds regardless of them is checked.
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
