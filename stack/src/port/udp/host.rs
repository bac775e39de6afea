//! The addresses and interfaces of the host, and their changes.

use core::net::IpAddr;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::{Duration, Instant};

use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType};

use super::control::is_link_local;
use super::order::{self, Standing};
use super::route::{self, Router, Way};
use super::segmentation;
use super::sys::{self, Interface, Local};
use crate::port::netdevice;
use crate::port::spec::HostAddress;
use crate::sync::apart;
use crate::sync::lock::lock;

/// Multicast groups of rtnetlink(7) for messages about interfaces, their addresses, and routes: `RTMGRP_LINK`, `RTMGRP_IPV4_IFADDR`,
/// `RTMGRP_IPV6_IFADDR`, `RTMGRP_IPV4_ROUTE`, `RTMGRP_IPV4_RULE`, `RTMGRP_IPV6_ROUTE`.
const GROUPS: u32 = 0x1 | 0x10 | 0x100 | 0x40 | 0x80 | 0x400;
/// Least time between two readings of the host's state: if the kernel reports changes, and if it does not.
const REFRESH_GAP: Duration = Duration::from_millis(100);
const REFRESH_EVERY: Duration = Duration::from_secs(1);
/// The most reports of changes that are taken at a time.
const MESSAGES: usize = 64;

/// An address, and what is known of it.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Entry {
    local: Local,
    /// Largest IP packet, in bytes, that routes carry from it.
    mtu: usize,
    /// Whether the kernel segments messages that leave by this interface, and so numbers their datagrams from 0.
    segments: bool,
    standing: Standing,
}

/// The addresses of the host at one moment.
#[derive(Default, PartialEq, Eq, Debug)]
pub(super) struct Table(Vec<Entry>);

impl Table {
    fn read() -> std::io::Result<Self> {
        let socket =
            rustix::net::socket_with(AddressFamily::INET, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
        let socket = socket.as_fd();
        let about = |iface: &str| {
            let mtu = netdevice::mtu(socket, iface).ok()?;
            let segments = segmentation::by_kernel(socket, iface) == Some(true);
            Some((mtu, segments))
        };
        let sources = order::default_sources();
        let standing = |local: &Local| Standing::of(local, &sources, order::is_bridge(&local.iface));
        let (addresses, interfaces) = sys::interfaces()?;
        Ok(Self::new(addresses, &interfaces, &route::ways(), about, standing))
    }

    /// Makes a table of these addresses, without those whose interface has gone since.
    fn new(
        addresses: Vec<Local>,
        interfaces: &[Interface],
        ways: &[Way],
        about: impl Fn(&str) -> Option<(usize, bool)>,
        standing: impl Fn(&Local) -> Standing,
    ) -> Self {
        let mut known = BTreeMap::new();
        let mut about = |iface: &str| match known.get(iface) {
            Some(said) => *said,
            None => *known.entry(iface.to_owned()).or_insert(about(iface)),
        };
        let out = ways.iter().filter_map(|way| {
            let iface = interfaces.iter().find(|iface| iface.index == way.index && iface.leads_out)?;
            let (mtu, _) = about(&iface.name)?;
            Some(Way { mtu: Some(way.mtu.unwrap_or(mtu).min(mtu)), ..*way })
        });
        let out: Vec<_> = out.collect();
        let entries = addresses.into_iter().filter_map(|local| {
            let (mtu, segments) = about(&local.iface)?;
            Some(Entry { mtu: carried(&local, mtu, &out), standing: standing(&local), local, segments })
        });
        Self(entries.collect())
    }

    /// The entry of an address of ours. All of 127.0.0.0/8 is on the loopback interface.
    fn of(&self, addr: IpAddr) -> Option<&Entry> {
        let exact = self.0.iter().find(|entry| entry.local.addr == addr);
        let near = |entry: &&Entry| addr.is_loopback() && entry.local.loopback && addr.is_ipv4();
        exact.or_else(|| self.0.iter().find(near))
    }

    /// The interface index of an address of ours; 0 for any other address.
    pub fn interface(&self, addr: IpAddr) -> u32 {
        self.of(addr).map_or(0, |entry| entry.local.index)
    }

    /// The interface index of a link-local address of ours; 0 for any other address.
    pub fn scope(&self, addr: IpAddr) -> u32 {
        if is_link_local(addr) { self.interface(addr) } else { 0 }
    }

    /// Our link-local address from which a peer on this interface is reached. If `scope` is 0, it is the address on the only interface that
    /// has one. `None` also if another interface has the same address and sends from it.
    fn link_local(&self, scope: u32, is_ours: impl Fn(IpAddr) -> bool) -> Option<IpAddr> {
        let of = |entry: &&Entry| is_link_local(entry.local.addr) && is_ours(entry.local.addr);
        let here = |entry: &&Entry| scope == 0 || entry.local.index == scope;
        let sends = |entry: &&Entry| self.scope(entry.local.addr) == entry.local.index;
        let found = self.0.iter().find(|entry| of(entry) && here(entry) && sends(entry))?;
        let only = self.0.iter().filter(of).all(|entry| entry.local.index == found.local.index);
        (scope != 0 || only).then_some(found.local.addr)
    }

    /// Link-local addresses that several interfaces have: the address, the interface that sends from it, and another interface.
    fn equal(&self) -> impl Iterator<Item = (IpAddr, &str, &str)> {
        self.0.iter().filter(|entry| is_link_local(entry.local.addr)).filter_map(|entry| {
            let first = self.of(entry.local.addr)?;
            let other = first.local.index != entry.local.index;
            other.then_some((entry.local.addr, first.local.iface.as_str(), entry.local.iface.as_str()))
        })
    }

    /// Whether datagrams between these addresses may be sent as one message that is segmented later: only if the IPv4 identifications of
    /// the segments are known, or they have none. `egress` returns the index of the interface by which they leave.
    fn may_segment(&self, src: IpAddr, dst: IpAddr, egress: impl FnOnce() -> Option<u32>) -> bool {
        // What stays on the host is segmented by the kernel, or not at all.
        dst.is_ipv6() || self.of(dst).is_some() || {
            let index = egress().or_else(|| self.of(src).map(|entry| entry.local.index));
            self.0.iter().any(|entry| Some(entry.local.index) == index && entry.segments)
        }
    }
}

/// The addresses that a port with these names would have at present, in the order of a device's GID table, each with its interface.
///
/// # Errors
/// When the kernel does not report the addresses.
pub fn addresses(named: &[IpAddr]) -> std::io::Result<Vec<HostAddress>> {
    let host = Host::new(named);
    host.refresh()?;
    let table = host.table();
    let own = host.addresses();
    let with_iface = |addr| {
        let entry = table.of(addr);
        let iface = entry.map_or_else(String::new, |entry| entry.local.iface.clone());
        let up = entry.is_some_and(|entry| entry.local.up);
        HostAddress { addr, iface, up, segments: entry.is_some_and(|entry| entry.segments) }
    };
    Ok(own.into_iter().map(with_iface).collect())
}

/// Largest IP packet, in bytes, that routes carry from an address of an interface with this MTU: the most that any route by this interface
/// carries. If no route leaves by it (the loopback interface, a dummy), the least of what the other interfaces with routes carry. A route
/// to some peers that carries less than others by its interface is left to [`mtu_to`](crate::port::Host::mtu_to).
fn carried(local: &Local, mtu: usize, out: &[Way]) -> usize {
    if is_link_local(local.addr) || local.addr.is_loopback() {
        return mtu;
    }
    let by = |index| {
        let ways = out.iter().filter(move |way| way.v6 == local.addr.is_ipv6() && way.index == index);
        ways.filter_map(|way| way.mtu).max()
    };
    by(local.index).or_else(|| out.iter().filter_map(|way| by(way.index)).min()).unwrap_or(mtu)
}

/// The host below a port.
pub(super) struct Host {
    /// The addresses that the port was given. Empty: it has all addresses of the host.
    named: Vec<IpAddr>,
    table: RwLock<Arc<Table>>,
    generation: AtomicU64,
    /// Whether the host has ever had an address that is not on the loopback interface.
    beyond: AtomicBool,
    /// A socket on which the kernel reports that interfaces, addresses or routes changed.
    changes: Option<OwnedFd>,
    /// Counts how often they may have changed.
    changed: AtomicU64,
    router: Option<Mutex<Router>>,
    /// The host's state is not read before this.
    next_refresh: Mutex<Instant>,
    /// Whether a thread is reading the host's state.
    refreshing: AtomicBool,
}

impl Host {
    /// A host whose state has not been read yet.
    pub fn new(named: &[IpAddr]) -> Self {
        Self {
            named: named.to_vec(),
            table: RwLock::default(),
            generation: AtomicU64::new(0),
            beyond: AtomicBool::new(false),
            changes: changes().ok(),
            changed: AtomicU64::new(0),
            router: Router::open().map(Mutex::new),
            next_refresh: Mutex::new(Instant::now()),
            refreshing: AtomicBool::new(false),
        }
    }

    /// A number that changes whenever addresses, interfaces or routes may have changed.
    pub fn changed(&self) -> u64 {
        self.changed.load(Ordering::Acquire)
    }

    /// Whether datagrams between these addresses may be sent as one message at present. Asks the kernel.
    #[cold]
    pub fn may_segment(&self, src: IpAddr, dst: IpAddr) -> bool {
        self.table().may_segment(src, dst, || match (src, dst, &self.router) {
            (IpAddr::V4(src), IpAddr::V4(dst), Some(router)) => lock(router).egress(src, dst),
            _ => None,
        })
    }

    /// The addresses as last read.
    pub fn table(&self) -> Arc<Table> {
        Arc::clone(&self.table.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Reads the addresses of the host.
    ///
    /// # Errors
    /// When the kernel does not report the addresses.
    pub fn refresh(&self) -> std::io::Result<()> {
        let now = Arc::new(Table::read()?);
        if now.0.iter().any(|entry| !entry.local.loopback) {
            self.beyond.store(true, Ordering::Relaxed);
        }
        let mut table = self.table.write().unwrap_or_else(PoisonError::into_inner);
        if *table != now {
            for (addr, first, other) in now.equal().filter(|_| self.named.is_empty()) {
                tracing::warn!(
                    "{addr} is an address of {first} and of {other}: packets from it leave by {first} alone; give {other} another \
                     link-local address to have RoCE there"
                );
            }
            *table = now;
            self.generation.fetch_add(1, Ordering::Release);
        }
        drop(table);
        self.changed.fetch_add(1, Ordering::Release);
        Ok(())
    }

    /// Reads the addresses of the host on a thread of its own, if something may have changed. The kernel lets a reader wait while others
    /// change interfaces, so the calling thread does not read.
    pub fn follow(self: &Arc<Self>) {
        let mut next = lock(&self.next_refresh);
        let now = Instant::now();
        // Changes during a reading are left for the next one.
        if now < *next || self.refreshing.load(Ordering::Acquire) || !self.may_have_changed() {
            return;
        }
        *next = now + if self.changes.is_some() { REFRESH_GAP } else { REFRESH_EVERY };
        self.refreshing.store(true, Ordering::Relaxed);
        // If no thread can be started, this one reads.
        let host = Arc::clone(self);
        if apart::spawn("roce-host", move || host.refresh_apart()).is_err() {
            self.refresh_apart();
        }
    }

    fn refresh_apart(&self) {
        if let Err(error) = self.refresh() {
            tracing::warn!("the addresses of the host cannot be read: {error}");
        }
        self.refreshing.store(false, Ordering::Release);
    }

    /// Whether the kernel reported a change, or cannot report changes.
    fn may_have_changed(&self) -> bool {
        let Some(changes) = &self.changes else { return true };
        let mut message = [0; 64];
        let take = |_: &usize| {
            let taken = rustix::net::recv(changes, &mut message, RecvFlags::DONTWAIT | RecvFlags::TRUNC);
            // If a report finds no room (ENOBUFS), the kernel drops it: then something changed as well.
            matches!(taken, Ok(_) | Err(rustix::io::Errno::NOBUFS))
        };
        (0..MESSAGES).take_while(take).count() > 0
    }

    /// Calls `with` on the entries of the port's addresses. If none were named, the loopback interface counts only if the host never had
    /// another one.
    fn used<R>(&self, with: impl FnOnce(&mut dyn Iterator<Item = &Entry>) -> R) -> R {
        let table = self.table();
        if !self.named.is_empty() {
            return with(&mut self.named.iter().filter_map(|addr| table.of(*addr)));
        }
        let beyond = self.beyond.load(Ordering::Relaxed);
        with(&mut table.0.iter().filter(|entry| !(beyond && entry.local.loopback)))
    }

    /// Interface indices of the port's addresses of one family.
    pub fn interfaces(&self, v6: bool) -> BTreeSet<u32> {
        let table = self.table();
        let addresses = self.addresses();
        let of_family = addresses.iter().filter(|addr| addr.is_ipv6() == v6);
        of_family.map(|addr| table.interface(*addr)).filter(|index| *index != 0).collect()
    }

    /// Largest IP packet, in bytes, that routes carry from every address of the port. `None` if none of them is on an interface that is up.
    pub fn mtu(&self) -> Option<usize> {
        self.used(|entries| entries.filter(|entry| entry.local.up).map(|entry| entry.mtu).min())
    }
}

/// What a [port's host](crate::port::Host) says.
impl Host {
    pub fn addresses(&self) -> Vec<IpAddr> {
        if !self.named.is_empty() {
            return self.named.clone();
        }
        let table = self.table();
        let mut all: Vec<&Entry> = table.0.iter().collect();
        all.sort_by_key(|entry| (entry.standing, entry.local.addr.is_ipv6()));
        let mut seen = BTreeSet::new();
        all.into_iter().map(|entry| entry.local.addr).filter(|addr| seen.insert(*addr)).collect()
    }

    pub fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    pub fn source_to(&self, peer: IpAddr, scope: u32) -> Option<IpAddr> {
        let own = self.addresses();
        if is_link_local(peer) {
            return self.table().link_local(scope, |addr| own.contains(&addr));
        }
        // A multicast group needs no route: it is on the link of the address that is used.
        let source = route::towards(peer).and_then(|socket| Some(socket.local_addr().ok()?.ip()));
        if source.is_none() && !peer.is_multicast() {
            return None;
        }
        let same_family = |addr: &&IpAddr| addr.is_ipv6() == peer.is_ipv6();
        own.iter().find(|addr| Some(**addr) == source).or_else(|| own.iter().find(same_family)).copied()
    }

    pub fn mtu_to(&self, peer: IpAddr) -> Option<usize> {
        let (level, option) = match peer {
            IpAddr::V4(_) => (libc::IPPROTO_IP, libc::IP_MTU),
            IpAddr::V6(_) => (libc::IPPROTO_IPV6, libc::IPV6_MTU),
        };
        sys::get(route::towards(peer)?.as_fd(), level, option).ok()?.try_into().ok()
    }
}

/// Opens a socket on which the kernel reports that interfaces, addresses or routes changed.
fn changes() -> rustix::io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, None)?;
    rustix::net::bind(socket.as_fd(), &SocketAddrNetlink::new(0, GROUPS))?;
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use super::*;

    // Goal: the polling thread continues while a reading does not end, as when the kernel lets it wait; only one reading is under way at a
    // time.
    #[test]
    #[cfg_attr(miri, ignore = "it asks the kernel")]
    fn a_look_at_the_host_keeps_nobody_waiting() {
        let host = Arc::new(Host { changes: None, ..Host::new(&[]) });
        let now = || *host.next_refresh.lock().unwrap() = Instant::now();
        let held = host.table.write().unwrap();
        for _ in 0..3 {
            now();
            host.follow();
        }
        assert!(held.0.is_empty());
        drop(held);
        while host.refreshing.load(Ordering::Acquire) {
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

    // Goal: an interface that goes away during a reading takes neither an address of another one nor the port's MTU with it.
    #[test]
    #[cfg_attr(miri, ignore = "it opens sockets")]
    fn an_interface_that_goes_during_a_look_is_left_out() {
        let local = |addr: &str, iface: &str| {
            let (addr, iface) = (addr.parse().unwrap(), iface.into());
            Local { addr, iface, index: 1, up: true, loopback: false }
        };
        let locals = vec![local("10.0.0.1", "stays"), local("10.0.1.1", "goes"), local("10.0.0.2", "stays")];
        let about = |iface: &str| (iface == "stays").then_some((1500, true));
        let table = Table::new(locals, &[], &[], about, |_| Standing::Outside);
        let host = Host::new(&[]);
        *host.table.write().unwrap() = Arc::new(table);
        assert_eq!(host.addresses(), ["10.0.0.1", "10.0.0.2"].map(|addr| addr.parse::<IpAddr>().unwrap()));
        assert_eq!(host.mtu(), Some(1500));
    }

    fn local(addr: &str, iface: &str, index: u32) -> Local {
        let loopback = iface == "lo";
        Local { addr: addr.parse().unwrap(), iface: iface.into(), index, up: true, loopback }
    }

    // Goal: an address is announced with what its packets may have on their way, whatever interface it is on.
    #[test]
    fn the_routes_decide_what_an_address_carries() {
        let names = ["lo", "eth", "jumbo", "dummy", "tunnel"];
        let mtus = [65_536, 1500, 9000, 8000, 1420];
        let interface = |(name, index): (&&str, u32)| {
            let leads_out = !matches!(*name, "lo" | "dummy");
            Interface { name: (*name).into(), index, leads_out }
        };
        let interfaces: Vec<_> = names.iter().zip(1..).map(interface).collect();
        let index = |name: &str| interfaces.iter().find(|iface| iface.name == name).unwrap().index;
        let about = |iface: &str| Some((mtus[names.iter().position(|name| *name == iface)?], false));
        let way = |name: &str, v6, mtu| Way { index: index(name), v6, mtu };
        let carried = |addr: &str, iface: &str, ways: &[Way]| {
            let table = Table::new(vec![local(addr, iface, index(iface))], &interfaces, ways, about, |_| {
                Standing::Outside
            });
            table.0[0].mtu
        };
        let ways = [way("eth", false, None), way("jumbo", false, None), way("tunnel", true, None)];
        // On the interface by which its own subnet is reached.
        assert_eq!(carried("10.0.0.1", "eth", &ways), 1500);
        assert_eq!(carried("10.0.1.1", "jumbo", &ways), 9000);
        // A virtual address, wherever it is kept.
        for iface in ["lo", "dummy"] {
            assert_eq!(carried("10.9.9.9", iface, &ways), 1500);
            assert_eq!(carried("fd00::9", iface, &ways), 1420);
        }
        // A dummy with a subnet still leads nowhere.
        let subnet = [way("dummy", false, None), way("jumbo", false, None)];
        assert_eq!(carried("10.9.9.9", "dummy", &subnet), 9000);
        // Routes that leave elsewhere, and that name less themselves.
        assert_eq!(carried("10.0.1.1", "jumbo", &[way("eth", false, None)]), 1500);
        assert_eq!(carried("10.0.1.1", "jumbo", &[way("jumbo", false, Some(4000))]), 4000);
        assert_eq!(
            carried("10.0.1.1", "jumbo", &[way("jumbo", false, Some(700)), way("jumbo", false, None)]),
            9000
        );
        // Without any route the host is alone.
        assert_eq!(carried("10.9.9.9", "lo", &[]), 65_536);
        assert_eq!(carried("127.0.0.1", "lo", &ways), 65_536);
        assert_eq!(carried("fe80::1", "jumbo", &ways), 9000);
    }

    // Goal: the scope of a link-local peer chooses the interface, and without one there is no guess.
    #[test]
    fn a_link_local_peer_is_reached_from_its_interface() {
        let about = |_: &str| Some((1500, false));
        let table = |addrs: &[(&str, &str, u32)]| {
            let locals = addrs.iter().map(|(addr, iface, index)| local(addr, iface, *index)).collect();
            Table::new(locals, &[], &[], about, |_| Standing::Outside)
        };
        let source = |table: &Table, scope| table.link_local(scope, |_| true).map(|addr| addr.to_string());
        let two = table(&[("fe80::1", "a", 1), ("fd00::1", "b", 2), ("fe80::2", "b", 2)]);
        assert_eq!(source(&two, 1).as_deref(), Some("fe80::1"));
        assert_eq!(source(&two, 2).as_deref(), Some("fe80::2"));
        assert_eq!((source(&two, 3), source(&two, 0)), (None, None));
        let one = table(&[("fe80::1", "a", 1), ("10.0.0.1", "b", 2)]);
        assert_eq!(source(&one, 0).as_deref(), Some("fe80::1"));
        // Equal addresses: the first interface sends from them; the other one needs one of its own.
        let equal = table(&[("fe80::1", "a", 1), ("fe80::1", "b", 2)]);
        assert_eq!(source(&equal, 1).as_deref(), Some("fe80::1"));
        assert_eq!(source(&equal, 2), None);
        assert_eq!(equal.equal().collect::<Vec<_>>(), [("fe80::1".parse().unwrap(), "a", "b")]);
        let more = table(&[("fe80::1", "a", 1), ("fe80::1", "b", 2), ("fe80::3", "b", 2)]);
        assert_eq!(source(&more, 2).as_deref(), Some("fe80::3"));
    }

    #[test]
    fn the_interface_of_the_route_decides_about_messages() {
        let entry = |addr: &str, index, segments| {
            let iface = format!("eth{index}");
            let local = Local { addr: addr.parse().unwrap(), iface, index, up: true, loopback: false };
            Entry { local, mtu: 1500, segments, standing: Standing::Outside }
        };
        // The kernel segments messages that leave by the first interface, hardware those of the second.
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
