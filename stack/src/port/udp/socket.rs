//! The sockets of a port: how they are made, and what to do if one cannot be made.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use core::ops::{Range, RangeInclusive};
use core::sync::atomic::AtomicU32;
use std::io::{Error, ErrorKind};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use rustix::net::{AddressFamily, SocketFlags, SocketType};

use super::control::{self, Control, Name};
use super::host::Table;
use super::packet::{IpFields, Outgoing};
use super::sys::Message;
use super::{buffers, steering, sys};
use crate::registry::Registry;
use crate::sync::unforked::Unforked;
use crate::wire::UDP_PORT;

/// Default TTL and hop limit of a socket, the same as the stack's usual one.
pub(super) const HOP_LIMIT: u8 = 64;
/// A UDP socket that is bound to one address, or to all.
pub(super) struct Socket {
    /// Dropped first.
    unforked: Unforked,
    pub(super) fd: Arc<OwnedFd>,
    /// Its address; `None`: all.
    pub(super) addr: Option<IpAddr>,
    /// Whether it is an IPv6 socket, which may carry IPv4, too.
    pub(super) v6: bool,
    /// Bytes of memory that the datagrams in its receive buffer may take.
    pub(super) memory: usize,
    /// Datagrams that were dropped so far because its buffer was full.
    pub(super) overflows: AtomicU32,
}

impl Socket {
    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
    /// Its descriptor, for packets that are sent when the process ends.
    pub(super) fn shared_fd(&self) -> Arc<OwnedFd> {
        Arc::clone(&self.fd)
    }
    pub(super) fn v6(&self) -> bool {
        self.v6
    }
    pub(super) fn is_wildcard(&self) -> bool {
        self.addr.is_none()
    }
    /// Whether packets from this address are sent by this socket.
    pub(super) fn serves(&self, src: IpAddr) -> bool {
        self.addr.map_or(self.v6 || src.is_ipv4(), |addr| addr == src)
    }

    /// A destination on this host: the address of this socket (or loopback) with a UDP port. What is sent there stays on the host.
    pub(super) fn beside(&self, port: u16) -> Name {
        Name::new(self.v6, self.addr.unwrap_or(Ipv4Addr::LOCALHOST.into()), port, 0)
    }

    /// Makes a message by this socket to a UDP port, of these parts, which are packets with the same headers as the first one.
    pub(super) fn message(&self, table: &Table, port: u16, first: &Outgoing, parts: Range<usize>) -> Message {
        let IpFields { src, dst, traffic_class, hop_limit } = first.ip;
        let v6 = dst.is_ipv6();
        // A link-local peer, and a group, is on the link of our own address.
        let scope = if dst.is_multicast() { table.interface(src) } else { table.scope(src) };
        let mut control = Control::empty();
        if self.is_wildcard() || dst.is_multicast() {
            control.push_source(src, scope);
        }
        if traffic_class != 0 {
            control.push_traffic_class(v6, traffic_class);
        }
        if hop_limit != HOP_LIMIT {
            control.push_hop_limit(v6, hop_limit);
        }
        if parts.len() > 1 {
            control.push_segment(first.payload.len() as u16);
        }
        Message { to: Name::new(self.v6(), dst, port, scope), control, parts }
    }

    /// Opens a socket that sends and receives on a UDP port. An IPv6 socket for all addresses carries IPv4 as well. `shared` sets
    /// SO_REUSEPORT.
    fn open(addr: Option<IpAddr>, v6: bool, buffer: u32, port: u16, shared: bool) -> Result<Self, Error> {
        let socket = Self::receiving(addr, v6, buffer)?;
        sys::set(socket.fd(), libc::SOL_SOCKET, libc::SO_REUSEPORT, shared.into())?;
        socket.bind(port)?;
        Ok(socket)
    }

    /// Opens a socket that receives what is sent to a multicast group, once it has joined the group. Each socket that joined it gets a
    /// copy, also in other programs. `index` is the interface of a group with link-local scope.
    pub(super) fn of_group(
        group: IpAddr,
        index: u32,
        buffer: u32,
        port: u16,
        beside: &[Vec<Self>],
    ) -> Result<Self, Error> {
        let socket = Self::receiving(Some(group), group.is_ipv6(), buffer)?;
        sys::set(socket.fd(), libc::SOL_SOCKET, libc::SO_REUSEADDR, 1)?;
        sys::set(socket.fd(), libc::SOL_SOCKET, libc::SO_REUSEPORT, 1)?;
        // A socket for all addresses shares its UDP port only until this one is bound.
        let alone = |socket: &&Self| {
            socket.is_wildcard()
                && sys::get(socket.fd(), libc::SOL_SOCKET, libc::SO_REUSEPORT).is_ok_and(|on| on == 0)
        };
        let alone: Vec<_> = beside.iter().flatten().filter(alone).collect();
        let share = |on| {
            alone
                .iter()
                .try_for_each(|socket| sys::set(socket.fd(), libc::SOL_SOCKET, libc::SO_REUSEPORT, on))
        };
        let name = Name::new(socket.v6, group, port, index);
        let bound = share(1).and_then(|()| sys::bind(socket.fd(), &name));
        share(0)?;
        bound.map(|()| socket)
    }

    /// Makes a socket that can receive, and is not bound yet.
    fn receiving(addr: Option<IpAddr>, v6: bool, buffer: u32) -> Result<Self, Error> {
        let mut socket = Self::make(addr, v6, buffer)?;
        let set = |level, option, value| sys::set(socket.fd(), level, option, value);
        if v6 {
            set(libc::IPPROTO_IPV6, libc::IPV6_RECVPKTINFO, 1)?;
            set(libc::IPPROTO_IPV6, libc::IPV6_RECVTCLASS, 1)?;
            set(libc::IPPROTO_IPV6, libc::IPV6_RECVHOPLIMIT, 1)?;
            // Messages to multicast groups are for the sockets that joined them. Kernels before 4.20 have no such option.
            let _ = set(libc::IPPROTO_IPV6, IPV6_MULTICAST_ALL, 0);
            // Linux soft-RoCE sends packets without a UDP checksum; they have an ICRC.
            set(libc::SOL_UDP, UDP_NO_CHECK6_RX, 1)?;
        }
        if !v6 || addr.is_none() {
            set(libc::IPPROTO_IP, libc::IP_PKTINFO, 1)?;
            set(libc::IPPROTO_IP, libc::IP_RECVTOS, 1)?;
            set(libc::IPPROTO_IP, libc::IP_RECVTTL, 1)?;
            set(libc::IPPROTO_IP, IP_MULTICAST_ALL, 0)?;
        }
        let memory = buffers::set_receiving(socket.fd(), buffer)?;
        set(libc::SOL_SOCKET, libc::SO_RXQ_OVFL, 1)?;
        // Kernels before 5.0 do not coalesce datagrams: these arrive one by one.
        let _ = set(libc::SOL_UDP, libc::UDP_GRO, 1);
        socket.memory = memory;
        Ok(socket)
    }

    /// Opens a socket on another UDP port that sends as this one does, and drops what arrives.
    pub(super) fn source(&self, port: u16, buffer: u32) -> Result<Self, Error> {
        let socket = Self::make(self.addr, self.v6, buffer)?;
        sys::drop_all(socket.fd())?;
        sys::set(socket.fd(), libc::SOL_SOCKET, libc::SO_RCVBUF, ERRORS_HELD)?;
        socket.bind(port)?;
        Ok(socket)
    }

    /// Makes a socket that can send, and is not bound yet.
    fn make(addr: Option<IpAddr>, v6: bool, buffer: u32) -> Result<Self, Error> {
        let family = if v6 { AddressFamily::INET6 } else { AddressFamily::INET };
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let make = || Ok(rustix::net::socket_with(family, SocketType::DGRAM, flags, None)?);
        let (fd, unforked) = Unforked::make(make)?;
        let set = |level, option, value| sys::set(fd.as_fd(), level, option, value);
        if v6 {
            set(libc::IPPROTO_IPV6, libc::IPV6_V6ONLY, addr.is_some().into())?;
            // An ICMP message about a smaller path MTU may be forged, so only the MTU of the interface counts.
            set(libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER, libc::IPV6_PMTUDISC_PROBE)?;
            set(libc::IPPROTO_IPV6, libc::IPV6_DONTFRAG, 1)?;
            set(libc::IPPROTO_IPV6, libc::IPV6_RECVERR, 1)?;
            set(libc::IPPROTO_IPV6, libc::IPV6_UNICAST_HOPS, HOP_LIMIT.into())?;
            set(libc::IPPROTO_IPV6, libc::IPV6_MULTICAST_HOPS, HOP_LIMIT.into())?;
        }
        if !v6 || addr.is_none() {
            // As for IPv6. The socket is not connected and sets DF, so the kernel sends the identification 0.
            set(libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, libc::IP_PMTUDISC_PROBE)?;
            set(libc::IPPROTO_IP, libc::IP_RECVERR, 1)?;
            set(libc::IPPROTO_IP, libc::IP_TTL, HOP_LIMIT.into())?;
            set(libc::IPPROTO_IP, libc::IP_MULTICAST_TTL, HOP_LIMIT.into())?;
        }
        buffers::set_sending(fd.as_fd(), buffer)?;
        Ok(Self { unforked, fd: Arc::new(fd), addr, v6, memory: 0, overflows: AtomicU32::new(0) })
    }

    fn bind(&self, port: u16) -> Result<(), Error> {
        let any: IpAddr = if self.v6 { Ipv6Addr::UNSPECIFIED.into() } else { Ipv4Addr::UNSPECIFIED.into() };
        let scope = match self.addr {
            Some(addr) if control::is_link_local(addr) => only_interface(addr)?,
            _ => 0,
        };
        sys::bind(self.fd(), &Name::new(self.v6, self.addr.unwrap_or(any), port, scope))
    }
}

/// Receive buffer, in bytes, of a socket that only sends: for the errors that come back.
const ERRORS_HELD: i32 = 16 << 10;

impl Drop for Socket {
    fn drop(&mut self) {
        self.unforked.end();
    }
}

/// `UDP_NO_CHECK6_RX` of `<linux/udp.h>`.
const UDP_NO_CHECK6_RX: i32 = 102;
/// `IP_MULTICAST_ALL` of `<linux/in.h>`, and `IPV6_MULTICAST_ALL` of `<linux/in6.h>`.
const IP_MULTICAST_ALL: i32 = 49;
const IPV6_MULTICAST_ALL: i32 = 29;

/// Opens the sockets on port 4791: for each queue one for each of these addresses, or one for all addresses of the host. The kernel chooses
/// among those of an address by a BPF program ([`steer`](sys::steer)); if it has no such programs, the first queue receives alone.
pub(super) fn sockets(addrs: &[IpAddr], buffer: u32, queues: usize) -> Result<Vec<Vec<Socket>>, String> {
    // Fails if another program has the port, even one that would share it.
    let alone = set(addrs, buffer, false)?;
    if queues == 1 {
        return Ok(vec![alone]);
    }
    drop(alone);
    let first = set(addrs, buffer, true)?;
    let mut first_alone = steering::program(&[]);
    if let Err(error) = first.iter().try_for_each(|socket| sys::steer(socket.fd(), &mut first_alone)) {
        tracing::info!(
            "packets are received by one of {queues} shards: the system has no steering by programs ({error})"
        );
        return Ok(vec![first]);
    }
    let mut all = vec![first];
    for _ in 1..queues {
        all.push(set(addrs, buffer, true)?);
    }
    Ok(all)
}

/// The UDP ports on which the processes of a user receive from each other while another program has port 4791; far from the ports that
/// connections are sent from.
const BESIDE: RangeInclusive<u16> = 65_504..=65_535;
/// How often processes that open their first sockets at the same time try to agree on a port, and the time between two tries.
const CHOICES: usize = 20;
const CHOICE: Duration = Duration::from_millis(5);

/// Whether the processes of a user may receive on a UDP port: whatever stands in the memory that they share.
fn is_usable(port: &u16) -> bool {
    *port == UDP_PORT || BESIDE.contains(port)
}

/// The UDP port on which the processes of a host receive, as they have chosen it.
pub(super) fn chosen_port(registry: &Registry) -> u16 {
    registry.udp_port().filter(is_usable).unwrap_or(UDP_PORT)
}

/// The sockets that the processes of a user share.
pub(super) struct SharedSockets {
    /// For each queue, a socket on each address.
    pub sockets: Vec<Vec<Socket>>,
    /// Their UDP port.
    pub port: u16,
    /// Why it is not 4791; `None` if it is.
    pub why: Option<String>,
}

/// Opens sockets for each queue, on the addresses that the processes of this user on this host share, or on all. The UDP port is the one
/// that these processes have chosen: 4791, or another one if another program has that.
pub(super) fn shared_sockets(
    addrs: &[IpAddr],
    buffer: u32,
    queues: usize,
    registry: &Registry,
) -> Result<SharedSockets, String> {
    let (mut chosen, mut tries) = (registry.udp_port(), 0);
    let (first, port, why) = loop {
        tries += 1;
        let usable = chosen.filter(is_usable);
        let (first, port, why) = match usable.map(|port| (port, set_on(addrs, buffer, port, true))) {
            Some((port, Ok(first))) => (first, port, None),
            // No port is chosen, or the processes that chose it have ended and another program has taken it.
            _ => match set_first_on(addrs, buffer, UDP_PORT) {
                Ok(first) => (first, UDP_PORT, None),
                Err((_, error)) if error.kind() == ErrorKind::AddrInUse && tries < CHOICES => {
                    // Perhaps another process of the host has it for a moment, to see whether it is free.
                    std::thread::sleep(CHOICE);
                    chosen = registry.udp_port();
                    continue;
                }
                Err((addr, error)) if error.kind() == ErrorKind::AddrInUse => {
                    first_beside(addrs, buffer, why(addr, &error))?
                }
                Err((addr, error)) => return Err(why(addr, &error)),
            },
        };
        let agreed = registry.choose_udp_port(chosen, port);
        if agreed == Some(port) || tries >= CHOICES {
            break (first, port, why);
        }
        chosen = agreed;
    };
    let mut sockets = vec![first];
    for _ in 1..queues {
        sockets.push(set_on(addrs, buffer, port, true).map_err(|(addr, error)| self::why(addr, &error))?);
    }
    let beside =
        || why.unwrap_or_else(|| format!("UDP port {UDP_PORT} was taken when the first of them began"));
    Ok(SharedSockets { sockets, port, why: (port != UDP_PORT).then(beside) })
}

/// Where source ports are taken from. Linux by itself assigns none of them, unless it is told to (`ip_local_port_range`).
pub(super) const SOURCE_PORTS: RangeInclusive<u16> = 61_000..=65_535;

/// Opens the sockets of a guest: they send from a UDP port of their own, whose number this returns, and drop what arrives.
pub(super) fn sending_sockets(addrs: &[IpAddr], buffer: u32) -> Result<(Vec<Socket>, u16), String> {
    for port in SOURCE_PORTS {
        match set_on(addrs, buffer, port, false) {
            Ok(sockets) => {
                let dropped = sockets.iter().try_for_each(|socket| sys::drop_all(socket.fd()));
                return dropped.map(|()| (sockets, port)).map_err(|error| why(None, &error));
            }
            Err((_, error)) if error.kind() == ErrorKind::AddrInUse => {}
            Err((addr, error)) => return Err(why(addr, &error)),
        }
    }
    Err(format!(
        "all UDP ports from {} to {} are taken (ss -lunp names who has them)",
        SOURCE_PORTS.start(),
        SOURCE_PORTS.end()
    ))
}

/// Opens sockets on the first port of [`BESIDE`] that is free. Returns them with `why`, which says why 4791 cannot be had.
///
/// # Errors
/// `why`, if no port is free.
fn first_beside(
    addrs: &[IpAddr],
    buffer: u32,
    why: String,
) -> Result<(Vec<Socket>, u16, Option<String>), String> {
    for port in BESIDE {
        if let Ok(sockets) = set_first_on(addrs, buffer, port) {
            return Ok((sockets, port, Some(why)));
        }
    }
    Err(why)
}

/// Opens a socket on port 4791 for each of these addresses, or one for all addresses of the host. `shared`: other queues have sockets
/// there, too.
fn set(addrs: &[IpAddr], buffer: u32, shared: bool) -> Result<Vec<Socket>, String> {
    set_on(addrs, buffer, UDP_PORT, shared).map_err(|(addr, error)| why(addr, &error))
}

/// Opens the first sockets of several processes on a UDP port that is free. Otherwise a program of this user that is not one of them, and
/// shares the port among its own sockets (`udp` with several shards), would get their packets.
fn set_first_on(addrs: &[IpAddr], buffer: u32, port: u16) -> Result<Vec<Socket>, Unbound> {
    drop(set_on(addrs, buffer, port, false)?);
    set_on(addrs, buffer, port, true)
}

/// The address whose socket could not be opened, and why.
type Unbound = (Option<IpAddr>, Error);

/// Same as [`set`], on any UDP port.
fn set_on(addrs: &[IpAddr], buffer: u32, port: u16, shared: bool) -> Result<Vec<Socket>, Unbound> {
    if addrs.is_empty() {
        return on_all(buffer, port, shared).map(|socket| vec![socket]).map_err(|error| (None, error));
    }
    let open = |addr: &IpAddr| {
        let socket = Socket::open(Some(*addr), addr.is_ipv6(), buffer, port, shared);
        socket.map_err(|error| (Some(*addr), error))
    };
    addrs.iter().map(open).collect()
}

/// Opens a socket for all addresses of the host.
fn on_all(buffer: u32, port: u16, shared: bool) -> Result<Socket, Error> {
    // An IPv6 socket carries both versions. A host without IPv6 has none.
    Socket::open(None, true, buffer, port, shared).or_else(|error| match error.kind() {
        ErrorKind::AddrInUse => Err(error),
        _ => Socket::open(None, false, buffer, port, shared),
    })
}

/// Index of the interface that has a link-local address, 0 if none has it. An error if several have it.
fn only_interface(addr: IpAddr) -> Result<u32, Error> {
    let all = sys::addresses()?;
    let mut of = all.iter().filter(|local| local.addr == addr);
    match (of.next(), of.next()) {
        (Some(one), Some(other)) => Err(Error::other(format!(
            "{} and {} have it both; give one of them another link-local address, and name the one that is left",
            one.iface, other.iface
        ))),
        (one, _) => Ok(one.map_or(0, |local| local.index)),
    }
}

/// Why an IPv6 address cannot be used yet, or at all: the kernel asks on the link whether another host has it (RFC 4862 5.4). `None` if
/// there is no such reason.
fn unusable(addr: IpAddr) -> Option<&'static str> {
    let IpAddr::V6(addr) = addr else { return None };
    unusable_in(addr, &std::fs::read_to_string("/proc/net/if_inet6").ok()?)
}

/// Same as [`unusable`], from the kernel's list: address, interface, prefix, scope and flags in hexadecimal, name.
pub(super) fn unusable_in(addr: Ipv6Addr, list: &str) -> Option<&'static str> {
    let wanted = format!("{:032x}", addr.to_bits());
    let line = list.lines().find(|line| line.starts_with(&wanted))?;
    let flags = u32::from_str_radix(line.split_whitespace().nth(4)?, 16).ok()?;
    match flags {
        flags if flags & libc::IFA_F_DADFAILED != 0 => {
            Some("is tentative for good: another host on the link has it; give this host another one")
        }
        flags if flags & libc::IFA_F_TENTATIVE != 0 => Some(
            "is still tentative: the kernel asks on the link whether another host has it; try again in some seconds",
        ),
        _ => None,
    }
}

/// A sentence that says why a socket cannot be opened, and what to do.
fn why(addr: Option<IpAddr>, error: &Error) -> String {
    let of = addr.map_or_else(String::new, |addr| format!(" of {addr}"));
    match error.kind() {
        ErrorKind::AddrInUse if std::path::Path::new("/sys/module/rdma_rxe").exists() => format!(
            "UDP port {UDP_PORT}{of} is taken, by the kernel's soft-RoCE as it seems: remove its devices (rdma link delete \
             NAME) and its module (rmmod rdma_rxe)"
        ),
        ErrorKind::AddrInUse => {
            let user = holder().map_or_else(String::new, |user| format!(" (of user {user})"));
            format!(
                "UDP port {UDP_PORT}{of} is taken by another program{user}: end that one (ss -lunp names it), or give \
                 the programs of each user addresses of their own (host:ADDR, ROCE_ADDRS), and those with udp one each (udp:ADDR), or \
                 have that user admit this one to its host (ROCE_ADMIT there, ROCE_HOST_USER here)"
            )
        }
        ErrorKind::AddrNotAvailable => match addr.and_then(|addr| Some((addr, unusable(addr)?))) {
            Some((addr, how)) => format!("the address {addr} {how}"),
            None => format!(
                "no interface of this host has the address{of}: ip address lists those that there are",
                of = of.replacen(" of", "", 1)
            ),
        },
        _ => format!("a UDP socket on port {UDP_PORT}{of} cannot be had: {error}"),
    }
}

/// The uid of a socket on port 4791, from the kernel's lists.
fn holder() -> Option<String> {
    let port = format!(":{UDP_PORT:04X}");
    ["/proc/net/udp", "/proc/net/udp6"].iter().find_map(|list| {
        let list = std::fs::read_to_string(list).ok()?;
        // sl local_address rem_address st tx:rx tr:when retrnsmt uid ...
        let mut fields = list.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
        let line = fields.find(|fields| fields.get(1).is_some_and(|local| local.ends_with(&port)))?;
        line.get(7).map(|user| (*user).to_owned())
    })
}
