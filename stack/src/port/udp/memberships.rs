//! The multicast groups of a port: a socket for each, bound to the group's address, which has joined the group on the interfaces of the
//! port's addresses.
//!
//! What arrives for a group the kernel copies to each socket of the host that has joined it, also what this host sends: so processes
//! with the same addresses have a copy each, the sender among them. The port's other sockets get none.

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
    /// What its events are called.
    number: u64,
    pub socket: Socket,
    /// The interfaces on which it has joined.
    interfaces: Mutex<BTreeSet<u32>>,
}

impl Membership {
    /// Joins on these interfaces, where it has not yet.
    ///
    /// # Errors
    /// It could join on none, and has joined on none before.
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
    /// What the buffers of a socket are asked to hold.
    buffer: u32,
    /// Readable while something waits at one of the sockets; `None`: it could not be had, so there are no groups.
    ready: Option<OwnedFd>,
    joined: Mutex<Vec<Arc<Membership>>>,
    /// How many there are.
    count: AtomicUsize,
    /// The number of the next one.
    next: AtomicU64,
    /// [`Host::changed`](super::host::Host::changed) when they were last looked at.
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

    /// Readable while something waits.
    pub fn ready(&self) -> Option<BorrowedFd<'_>> {
        self.ready.as_ref().map(AsFd::as_fd)
    }

    /// Joins a group on these interfaces. `beside` are the sockets on the UDP port of all, which let the group's socket have it, too.
    ///
    /// # Errors
    /// The kernel gives no socket, or lets it join on none of the interfaces.
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
                let _ = epoll::delete(ready, &one.socket.fd); // it goes with its descriptor, too
            }
            stays
        });
        self.count.store(joined.len(), Ordering::Release);
    }

    /// Joins on interfaces that have come, when `changed` says that some may have.
    pub fn follow(&self, changed: u64, interfaces: impl Fn(bool) -> BTreeSet<u32>) {
        if self.count.load(Ordering::Acquire) == 0 || self.seen.swap(changed, Ordering::AcqRel) == changed {
            return;
        }
        for one in lock(&self.joined).iter() {
            let _ = one.join(&interfaces(one.group.is_ipv6())); // on those that there are
        }
    }

    /// A group for which something waits.
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
