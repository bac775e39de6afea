//! The multicast groups of a port: a socket for each, bound to the group's address, which has joined the group on the interfaces of the
//! port's addresses.
//!
//! The kernel copies a datagram for a group to each socket of the host that has joined the group, also if this host sent it. So processes
//! with the same addresses get a copy each, the sender included. The port's other sockets get none.

use core::net::IpAddr;
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::collections::BTreeSet;
use std::io::{Error, ErrorKind};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex};

use rustix::event::{Timespec, epoll};
use rustix::net::sockopt;

use super::socket::Socket;
use crate::sync::lock::lock;

/// A group that a port has joined.
pub(super) struct Membership {
    group: IpAddr,
    /// Identifies its epoll events.
    number: u64,
    pub socket: Socket,
    /// The interfaces on which it has joined.
    interfaces: Mutex<BTreeSet<u32>>,
}

impl Membership {
    /// Joins the group on those of these interfaces on which it has not joined yet.
    ///
    /// # Errors
    /// When it could join on none of them, and had joined on none before.
    fn join(&self, interfaces: &BTreeSet<u32>) -> Result<(), Error> {
        let mut joined = lock(&self.interfaces);
        let mut last = Error::from(ErrorKind::AddrNotAvailable);
        for index in interfaces.difference(&joined.clone()) {
            let fd = self.socket.fd();
            let result = match &self.group {
                IpAddr::V4(group) => sockopt::set_ip_add_membership_with_ifindex(
                    fd,
                    group,
                    &core::net::Ipv4Addr::UNSPECIFIED,
                    *index,
                ),
                IpAddr::V6(group) => sockopt::set_ipv6_add_membership(fd, group, *index),
            };
            match result {
                Ok(()) => _ = joined.insert(*index),
                Err(error) => last = error.into(),
            }
        }
        if joined.is_empty() { Err(last) } else { Ok(()) }
    }
}

/// The groups of a port.
pub(super) struct Memberships {
    /// Requested size of a socket's buffers, in bytes.
    buffer: u32,
    /// Readable while a datagram waits at one of the sockets. `None`: it could not be opened, so the port joins no groups.
    ready: Option<OwnedFd>,
    joined: Mutex<Vec<Arc<Membership>>>,
    /// Number of joined groups.
    count: AtomicUsize,
    /// The number of the next membership.
    next: AtomicU64,
    /// [`Host::changed`](super::host::Host::changed) at the last call of [`follow`](Self::follow).
    seen: AtomicU64,
}

impl Memberships {
    pub fn new(buffer: u32) -> Self {
        Self {
            buffer,
            ready: epoll::create(epoll::CreateFlags::CLOEXEC).ok(),
            joined: Mutex::default(),
            count: AtomicUsize::new(0),
            next: AtomicU64::new(0),
            seen: AtomicU64::new(0),
        }
    }

    /// A descriptor that is readable while a datagram waits.
    pub fn ready(&self) -> Option<BorrowedFd<'_>> {
        self.ready.as_ref().map(AsFd::as_fd)
    }

    /// Joins a group on these interfaces. `beside` are the port's other sockets: they have to permit the group's socket the UDP port, too.
    ///
    /// # Errors
    /// When the kernel provides no socket, or lets it join on none of the interfaces.
    pub fn join(
        &self,
        group: IpAddr,
        interfaces: &BTreeSet<u32>,
        port: u16,
        beside: &[Vec<Socket>],
    ) -> Result<(), Error> {
        let mut joined = lock(&self.joined);
        if joined.iter().any(|one| one.group == group) {
            return Ok(());
        }
        let ready = self.ready().ok_or(ErrorKind::Unsupported)?;
        let index = interfaces.first().copied().unwrap_or_default();
        let socket = Socket::of_group(group, index, self.buffer, port, beside)?;
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let one = Membership { group, number, socket, interfaces: Mutex::default() };
        one.join(interfaces)?;
        epoll::add(ready, &one.socket.fd, epoll::EventData::new_u64(number), epoll::EventFlags::IN)?;
        joined.push(Arc::new(one));
        self.count.store(joined.len(), Ordering::Release);
        Ok(())
    }

    /// Leaves a group.
    pub fn leave(&self, group: IpAddr) {
        let mut joined = lock(&self.joined);
        joined.retain(|one| {
            let stays = one.group != group;
            if !stays && let Some(ready) = self.ready() {
                let _ = epoll::delete(ready, &one.socket.fd); // closing the descriptor would remove it, too
            }
            stays
        });
        self.count.store(joined.len(), Ordering::Release);
    }

    /// Joins on new interfaces, if `changed` differs from the last call.
    pub fn follow(&self, changed: u64, interfaces: impl Fn(bool) -> BTreeSet<u32>) {
        if self.count.load(Ordering::Acquire) == 0 || self.seen.swap(changed, Ordering::AcqRel) == changed {
            return;
        }
        for one in lock(&self.joined).iter() {
            let _ = one.join(&interfaces(one.group.is_ipv6())); // fails if it has joined on none
        }
    }

    /// A group for which a datagram waits.
    pub fn waiting(&self) -> Option<Arc<Membership>> {
        if self.count.load(Ordering::Acquire) == 0 {
            return None;
        }
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        let mut events = [const { core::mem::MaybeUninit::<epoll::Event>::uninit() }; 1];
        let (found, _) = epoll::wait(self.ready()?, &mut events, Some(&now)).ok()?;
        let number = found.first()?.data.u64();
        lock(&self.joined).iter().find(|one| one.number == number).cloned()
    }
}
