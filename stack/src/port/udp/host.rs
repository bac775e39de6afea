//! The addresses and interfaces of the host, followed as they change.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::{Duration, Instant};

use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType};

use super::control::is_link_local;
use super::route::Router;
use super::sys::{self, Local};
use crate::port::{HostAddress, netdevice};
use crate::wire::UDP_PORT;

/// Groups of messages about interfaces, their addresses, and routes of IPv4 (rtnetlink(7)): `RTMGRP_LINK`, `RTMGRP_IPV4_IFADDR`,
/// `RTMGRP_IPV6_IFADDR`, `RTMGRP_IPV4_ROUTE`, `RTMGRP_IPV4_RULE`.
const GROUPS: u32 = 0x1 | 0x10 | 0x100 | 0x40 | 0x80;
/// Least time between two looks at the host: where the kernel reports changes, and where it does not.
const LOOK_GAP: Duration = Duration::from_millis(100);
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Messages about changes that are taken in one look.
const MESSAGES: usize = 64;

/// An address, and what is behind it.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Entry {
    local: Local,
    /// Largest IP packet of its interface.
    mtu: usize,
    /// The kernel itself takes apart messages that leave by this interface, and numbers their datagrams from 0.
    segments: bool,
}

/// The host at one moment.
#[derive(Default, PartialEq, Eq, Debug)]
pub(super) struct Table(Vec<Entry>);

impl Table {
    fn look() -> std::io::Result<Self> {
        let socket =
            rustix::net::socket_with(AddressFamily::INET, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
        let socket = socket.as_fd();
        let about = |iface: &str| {
            let mtu = netdevice::mtu(socket, iface).ok()?;
            let segments = netdevice::has_feature(socket, iface, "tx-udp-segmentation") == Some(false);
            Some((mtu, segments))
        };
        Ok(Self::new(sys::addresses()?, about))
    }

    /// A table of these addresses, without those whose interface cannot be asked any more: it has gone since.
    fn new(addresses: Vec<Local>, about: impl Fn(&str) -> Option<(usize, bool)>) -> Self {
        let mut ifaces = BTreeMap::new();
        let entries = addresses.into_iter().filter_map(|local| {
            let said = *ifaces.entry(local.iface.clone()).or_insert_with_key(|iface| about(iface));
            said.map(|(mtu, segments)| Entry { local, mtu, segments })
        });
        Self(entries.collect())
    }

    /// What is behind an address of ours. All of 127.0.0.0/8 is on the loopback interface.
    fn of(&self, addr: IpAddr) -> Option<&Entry> {
        let exact = self.0.iter().find(|entry| entry.local.addr == addr);
        let near = |entry: &&Entry| addr.is_loopback() && entry.local.loopback && addr.is_ipv4();
        exact.or_else(|| self.0.iter().find(near))
    }

    /// The interface of a link-local address of ours, 0 for any other address.
    pub fn scope(&self, addr: IpAddr) -> u32 {
        if is_link_local(addr) { self.of(addr).map_or(0, |entry| entry.local.index) } else { 0 }
    }

    /// Whether datagrams between these addresses may leave in one message, to be taken apart on their way: only where their IPv4
    /// identifications are known, or there are none. `egress` says by which interface they leave.
    fn may_segment(&self, src: IpAddr, dst: IpAddr, egress: impl FnOnce() -> Option<u32>) -> bool {
        // What stays on the host is taken apart by the kernel, or not at all.
        dst.is_ipv6() || self.of(dst).is_some() || {
            let index = egress().or_else(|| self.of(src).map(|entry| entry.local.index));
            self.0.iter().any(|entry| Some(entry.local.index) == index && entry.segments)
        }
    }
}

/// The addresses that a port with these names would have now, in the order of a device's GID table, each with its interface.
///
/// # Errors
/// The kernel does not say what addresses there are.
pub fn addresses(named: &[IpAddr]) -> std::io::Result<Vec<HostAddress>> {
    let host = Host::new(named);
    host.look()?;
    let table = host.table();
    let own = crate::port::Host::addresses(&host);
    let with_iface = |addr| {
        let local = table.of(addr).map(|entry| &entry.local);
        let iface = local.map_or_else(String::new, |local| local.iface.clone());
        HostAddress { addr, iface, up: local.is_some_and(|local| local.up) }
    };
    Ok(own.into_iter().map(with_iface).collect())
}

/// The host of a port.
pub(super) struct Host {
    /// The addresses that the port was given; empty: it has all addresses of the host.
    named: Vec<IpAddr>,
    table: RwLock<Arc<Table>>,
    generation: AtomicU64,
    /// Whether the host had an address beyond the loopback interface at any time.
    beyond: AtomicBool,
    /// A socket on which the kernel reports that interfaces, addresses or routes changed.
    changes: Option<OwnedFd>,
    /// How often they may have.
    changed: AtomicU64,
    router: Option<Mutex<Router>>,
    /// The host is not looked at before this.
    next_look: Mutex<Instant>,
    /// Whether a thread looks at the host now.
    looking: AtomicBool,
}

impl Host {
    /// A host that is not looked at yet.
    pub fn new(named: &[IpAddr]) -> Self {
        Self {
            named: named.to_vec(),
            table: RwLock::default(),
            generation: AtomicU64::new(0),
            beyond: AtomicBool::new(false),
            changes: changes().ok(),
            changed: AtomicU64::new(0),
            router: Router::open().map(Mutex::new),
            next_look: Mutex::new(Instant::now()),
            looking: AtomicBool::new(false),
        }
    }

    /// Changes whenever addresses, interfaces or routes may have changed.
    pub fn changed(&self) -> u64 {
        self.changed.load(Ordering::Acquire)
    }

    /// Whether datagrams between these addresses may leave in one message now. Asks the kernel.
    #[cold]
    pub fn may_segment(&self, src: IpAddr, dst: IpAddr) -> bool {
        self.table().may_segment(src, dst, || match (src, dst, &self.router) {
            (IpAddr::V4(src), IpAddr::V4(dst), Some(router)) => {
                router.lock().unwrap_or_else(PoisonError::into_inner).egress(src, dst)
            }
            _ => None,
        })
    }

    /// The host as it was at the last look.
    pub fn table(&self) -> Arc<Table> {
        Arc::clone(&self.table.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Looks at the host.
    ///
    /// # Errors
    /// The kernel does not say what addresses there are.
    pub fn look(&self) -> std::io::Result<()> {
        let now = Arc::new(Table::look()?);
        if now.0.iter().any(|entry| !entry.local.loopback) {
            self.beyond.store(true, Ordering::Relaxed);
        }
        let mut table = self.table.write().unwrap_or_else(PoisonError::into_inner);
        if *table != now {
            *table = now;
            self.generation.fetch_add(1, Ordering::Release);
        }
        drop(table);
        self.changed.fetch_add(1, Ordering::Release);
        Ok(())
    }

    /// Looks at the host, on a thread of its own, if something may have changed. The kernel makes a look wait while others change
    /// interfaces, so the calling thread does not wait for it.
    pub fn follow(self: &Arc<Self>) {
        let mut next = self.next_look.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        // What changes during a look is left for the next one.
        if now < *next || self.looking.load(Ordering::Acquire) || !self.may_have_changed() {
            return;
        }
        *next = now + if self.changes.is_some() { LOOK_GAP } else { LOOK_EVERY };
        self.looking.store(true, Ordering::Relaxed);
        // Where no thread can be had, this one looks.
        let host = Arc::clone(self);
        let thread = std::thread::Builder::new().name("roce-host".into()).spawn(move || host.look_again());
        if thread.is_err() {
            self.look_again();
        }
    }

    fn look_again(&self) {
        if let Err(error) = self.look() {
            tracing::warn!("the addresses of the host cannot be read: {error}");
        }
        self.looking.store(false, Ordering::Release);
    }

    /// Whether the kernel reported a change, or cannot report any.
    fn may_have_changed(&self) -> bool {
        let Some(changes) = &self.changes else { return true };
        let mut message = [0; 64];
        let take = |_: &usize| {
            let taken = rustix::net::recv(changes, &mut message, RecvFlags::DONTWAIT | RecvFlags::TRUNC);
            // Without room for reports (ENOBUFS) the kernel drops them: then something changed as well.
            matches!(taken, Ok(_) | Err(rustix::io::Errno::NOBUFS))
        };
        (0..MESSAGES).take_while(take).count() > 0
    }

    /// The entries of the port's addresses. The loopback interface counts only if the host never had another one.
    fn used<R>(&self, with: impl FnOnce(&mut dyn Iterator<Item = &Entry>) -> R) -> R {
        let table = self.table();
        if !self.named.is_empty() {
            return with(&mut self.named.iter().filter_map(|addr| table.of(*addr)));
        }
        let beyond = self.beyond.load(Ordering::Relaxed);
        with(&mut table.0.iter().filter(|entry| !(beyond && entry.local.loopback)))
    }

    /// Largest packet that every interface of the port carries. `None`: it has none that is up.
    pub fn mtu(&self) -> Option<usize> {
        self.used(|entries| entries.filter(|entry| entry.local.up).map(|entry| entry.mtu).min())
    }
}

impl crate::port::Host for Host {
    fn addresses(&self) -> Vec<IpAddr> {
        if !self.named.is_empty() {
            return self.named.clone();
        }
        let table = self.table();
        let mut all: Vec<_> = table.0.iter().map(|entry| entry.local.addr).collect();
        // Those that reach farthest come first.
        all.sort_by_key(|addr| (addr.is_loopback(), is_link_local(*addr), addr.is_ipv6()));
        all.dedup();
        all
    }

    fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    fn source_to(&self, peer: IpAddr) -> Option<IpAddr> {
        let own = self.addresses();
        if is_link_local(peer) {
            return own.into_iter().find(|addr| is_link_local(*addr));
        }
        let source = towards(peer)?.local_addr().ok()?.ip();
        let same_family = |addr: &&IpAddr| addr.is_ipv6() == peer.is_ipv6();
        own.iter().find(|addr| **addr == source).or_else(|| own.iter().find(same_family)).copied()
    }

    fn mtu_to(&self, peer: IpAddr) -> Option<usize> {
        let (level, option) = match peer {
            IpAddr::V4(_) => (libc::IPPROTO_IP, libc::IP_MTU),
            IpAddr::V6(_) => (libc::IPPROTO_IPV6, libc::IPV6_MTU),
        };
        sys::get(towards(peer)?.as_fd(), level, option).ok()?.try_into().ok()
    }
}

/// A socket that is connected to a peer's address. That sends nothing: the kernel looks for a route.
fn towards(peer: IpAddr) -> Option<std::net::UdpSocket> {
    let any: IpAddr = match peer {
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let socket = std::net::UdpSocket::bind((any, 0)).ok()?;
    socket.connect(SocketAddr::new(peer, UDP_PORT)).ok()?;
    Some(socket)
}

/// A socket on which the kernel says that interfaces, addresses or routes changed.
fn changes() -> rustix::io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, None)?;
    rustix::net::bind(socket.as_fd(), &SocketAddrNetlink::new(0, GROUPS))?;
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use super::*;

    // Goal: the thread that polls goes on while a look cannot end, as where the kernel lets it wait; one look is under way at a time.
    #[test]
    #[cfg_attr(miri, ignore = "it asks the kernel")]
    fn a_look_at_the_host_keeps_nobody_waiting() {
        let host = Arc::new(Host { changes: None, ..Host::new(&[]) });
        let now = || *host.next_look.lock().unwrap() = Instant::now();
        let held = host.table.write().unwrap();
        for _ in 0..3 {
            now();
            host.follow();
        }
        assert!(held.0.is_empty());
        drop(held);
        while host.looking.load(Ordering::Acquire) {
            std::thread::yield_now();
        }
        assert!(!host.table().0.is_empty(), "there is a loopback interface");
        assert_eq!(host.changed(), 1);
        now();
        host.follow();
        while host.changed() < 2 {
            std::thread::yield_now();
        }
    }

    // Goal: what goes while the host is looked at takes no address of another interface, nor the port's MTU, with it.
    #[test]
    #[cfg_attr(miri, ignore = "it opens sockets")]
    fn an_interface_that_goes_during_a_look_is_left_out() {
        let local = |addr: &str, iface: &str| {
            let (addr, iface) = (addr.parse().unwrap(), iface.into());
            Local { addr, iface, index: 1, up: true, loopback: false }
        };
        let locals = vec![local("10.0.0.1", "stays"), local("10.0.1.1", "goes"), local("10.0.0.2", "stays")];
        let table = Table::new(locals, |iface| (iface == "stays").then_some((1500, true)));
        let host = Host::new(&[]);
        *host.table.write().unwrap() = Arc::new(table);
        assert_eq!(
            crate::port::Host::addresses(&host),
            ["10.0.0.1", "10.0.0.2"].map(|addr| addr.parse::<IpAddr>().unwrap())
        );
        assert_eq!(host.mtu(), Some(1500));
    }

    #[test]
    fn the_interface_of_the_route_decides_about_messages() {
        let entry = |addr: &str, index, segments| {
            let iface = format!("eth{index}");
            let local = Local { addr: addr.parse().unwrap(), iface, index, up: true, loopback: false };
            Entry { local, mtu: 1500, segments }
        };
        // The kernel takes messages apart that leave by the first interface, hardware those of the second.
        let table = Table(vec![entry("10.0.0.1", 1, true), entry("10.0.1.1", 2, false)]);
        let may = |src: &str, dst: &str, egress| {
            table.may_segment(src.parse().unwrap(), dst.parse().unwrap(), || egress)
        };
        for (src, same, other) in [("10.0.0.1", 1, 2), ("10.0.1.1", 2, 1)] {
            assert_eq!(may(src, "10.9.9.9", Some(same)), same == 1);
            assert_eq!(may(src, "10.9.9.9", Some(other)), other == 1, "whoever has the address");
            assert_eq!(may(src, "10.9.9.9", None), same == 1, "the best guess without a route");
            assert!(!may(src, "10.9.9.9", Some(3)), "nothing is known of it");
            assert!(may(src, "10.0.1.1", Some(2)), "it stays on this host");
        }
        assert!(may("fd00::1", "fd00::9", Some(2)), "IPv6 counts no packets");
    }
}
