//! RoCEv2 through UDP sockets on the host's own addresses: without privileges, without DPDK, wherever IP goes without address
//! translation.
//!
//! The kernel routes, resolves neighbours and answers ARP; its addresses are the port's GIDs. Of a frame only the datagram in it is
//! sent, and a received datagram is put into a frame whose headers are made anew. The ICRC covers fields that the kernel writes and
//! does not show. What it will write is put into the ICRC of packets to send ([`tx`]); what it has removed is computed for received
//! packets ([`rx`]). A shard judges for each queue pair whether the result makes sense (`shard/identification.rs`).
//!
//! All datagrams arrive on queue 0: with a socket for each queue the packets of a queue pair would get out of order, because the
//! kernel joins datagrams of several queue pairs. Every queue sends by itself.

mod control;
mod host;
mod packet;
mod route;
mod rx;
mod sys;
mod translation;
mod tx;

pub use host::addresses;

#[cfg(all(test, not(miri)))]
mod tests;

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::io::{Error, ErrorKind};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rustix::event::epoll;
use rustix::net::{AddressFamily, SocketFlags, SocketType};

use super::counters::{Counters, sum};
use super::taken::Taken;
use super::{
    Armed, Build, Frame, HeapPool, Port, PortError, PortInfo, PortOptions, PortQueue, PortSpec, PortStats,
    Route, RxBurst, TxBurst,
};
use crate::id::{Mac, Mtu};
use crate::sync::lock::lock;
use crate::sync::unforked::Unforked;
use crate::wire::UDP_PORT;
use control::{Name, Refusal};
use host::Host;
use packet::{IpFields, Outgoing};
use rx::Receiver;
use tx::Sender;

/// Default TTL and hop limit of a socket: the usual one of the stack.
const HOP_LIMIT: u8 = 64;
/// Bytes that a socket's buffers are asked to hold unless the port's options say otherwise; the system's limit may be less.
const BUFFER: u32 = 4 << 20;
/// Most errors that one call reads from a socket.
const ERRORS: usize = 64;
/// At most one complaint in this time.
const QUIET: Duration = Duration::from_secs(1);

pub(super) fn open(
    spec: &PortSpec,
    addrs: &[IpAddr],
    more: &[(String, String)],
    options: &PortOptions,
) -> Result<UdpPort, PortError> {
    let fail = |reason: String| PortError::Open { port: spec.to_string(), reason };
    let option = |name| more.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str());
    let gso = option("gso").map(|value| value == "on");
    let buffer = match option("buffer") {
        Some(bytes) => bytes.parse().map_err(|error| fail(format!("buffer={bytes:?}: {error}")))?,
        None => BUFFER,
    };
    let sockets = sockets(addrs, buffer).map_err(fail)?;
    let host = Arc::new(Host::new(addrs));
    host.refresh().map_err(|error| fail(format!("the host's addresses cannot be read: {error}")))?;
    let mtu = host.mtu().unwrap_or(options.mtu).min(options.mtu);
    let info = PortInfo { mtu, ..PortInfo::of(spec, options) };
    let shared = Arc::new(Shared {
        name: info.name.clone(),
        macs: (info.mac, info.mac.beside()),
        max_frame: info.max_frame(),
        pool: HeapPool::new(options.queues * options.frames, info.max_frame()),
        counters: (0..options.queues).map(|_| Counters::default()).collect(),
        sockets,
        host,
        gso,
        refused: AtomicU64::new(0),
        complaint: Mutex::new(None),
    });
    Ok(UdpPort { info, taken: Taken::none_of(options.queues), shared })
}

/// A socket on port 4791 of one address, or of all.
struct Socket {
    /// Dropped first.
    unforked: Unforked,
    fd: OwnedFd,
    /// Its address; `None`: any.
    addr: Option<IpAddr>,
    /// Whether it is one of IPv6, which may carry IPv4, too.
    v6: bool,
    /// Bytes of memory that the datagrams in its receive buffer may lie in.
    accounted: usize,
    /// Datagrams that its buffer had no room for.
    overflows: AtomicU32,
}

impl Socket {
    fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
    fn v6(&self) -> bool {
        self.v6
    }
    fn is_wildcard(&self) -> bool {
        self.addr.is_none()
    }
    /// Whether packets from this address leave by it.
    fn serves(&self, src: IpAddr) -> bool {
        self.addr.map_or(self.v6 || src.is_ipv4(), |addr| addr == src)
    }

    /// Makes one. It may be of IPv6 and carry IPv4 as well.
    fn open(addr: Option<IpAddr>, v6: bool, buffer: u32) -> Result<Self, Error> {
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
            set(libc::IPPROTO_IPV6, libc::IPV6_RECVPKTINFO, 1)?;
            set(libc::IPPROTO_IPV6, libc::IPV6_RECVTCLASS, 1)?;
            set(libc::IPPROTO_IPV6, libc::IPV6_RECVHOPLIMIT, 1)?;
            set(libc::IPPROTO_IPV6, libc::IPV6_RECVERR, 1)?;
            set(libc::IPPROTO_IPV6, libc::IPV6_UNICAST_HOPS, HOP_LIMIT.into())?;
            // Linux soft-RoCE sends packets without a UDP checksum; they have an ICRC.
            set(libc::SOL_UDP, UDP_NO_CHECK6_RX, 1)?;
        }
        if !v6 || addr.is_none() {
            // As for IPv6. As the socket is not connected and sets DF, the kernel sends the identification 0.
            set(libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, libc::IP_PMTUDISC_PROBE)?;
            set(libc::IPPROTO_IP, libc::IP_PKTINFO, 1)?;
            set(libc::IPPROTO_IP, libc::IP_RECVTOS, 1)?;
            set(libc::IPPROTO_IP, libc::IP_RECVTTL, 1)?;
            set(libc::IPPROTO_IP, libc::IP_RECVERR, 1)?;
            set(libc::IPPROTO_IP, libc::IP_TTL, HOP_LIMIT.into())?;
        }
        let buffer = i32::try_from(buffer).unwrap_or(i32::MAX);
        set(libc::SOL_SOCKET, libc::SO_RCVBUF, buffer)?;
        set(libc::SOL_SOCKET, libc::SO_SNDBUF, buffer)?;
        set(libc::SOL_SOCKET, libc::SO_RXQ_OVFL, 1)?;
        // Kernels before 5.0 do not join datagrams: they arrive one by one.
        let _ = set(libc::SOL_UDP, libc::UDP_GRO, 1);
        let any: IpAddr = if v6 { Ipv6Addr::UNSPECIFIED.into() } else { Ipv4Addr::UNSPECIFIED.into() };
        let scope = match addr {
            Some(addr) if control::is_link_local(addr) => only_interface(addr)?,
            _ => 0,
        };
        sys::bind(fd.as_fd(), &Name::new(v6, addr.unwrap_or(any), UDP_PORT, scope))?;
        // Twice what was asked for, or twice the system's limit (socket(7)).
        let accounted = sys::get(fd.as_fd(), libc::SOL_SOCKET, libc::SO_RCVBUF)?.max(0) as usize;
        let overflows = AtomicU32::new(0);
        Ok(Self { unforked, fd, addr, v6, accounted, overflows })
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        self.unforked.end();
    }
}

/// `UDP_NO_CHECK6_RX` of `<linux/udp.h>`.
const UDP_NO_CHECK6_RX: i32 = 102;

/// The sockets for these addresses, or one for all that the host has.
fn sockets(addrs: &[IpAddr], buffer: u32) -> Result<Vec<Socket>, String> {
    if addrs.is_empty() {
        // A host without IPv6 has no such sockets.
        let both = Socket::open(None, true, buffer).or_else(|error| match error.kind() {
            ErrorKind::AddrInUse => Err(error),
            _ => Socket::open(None, false, buffer),
        });
        return both.map(|socket| vec![socket]).map_err(|error| why(None, &error));
    }
    addrs
        .iter()
        .map(|addr| {
            Socket::open(Some(*addr), addr.is_ipv6(), buffer).map_err(|error| why(Some(*addr), &error))
        })
        .collect()
}

/// The number of the interface that has a link-local address, 0 if none has it.
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

/// What the kernel has found out about an IPv6 address that it does not let us use yet, or at all: it asks on the link whether somebody
/// else has it (RFC 4862 5.4).
fn unusable(addr: IpAddr) -> Option<&'static str> {
    let IpAddr::V6(addr) = addr else { return None };
    unusable_in(addr, &std::fs::read_to_string("/proc/net/if_inet6").ok()?)
}

/// As [`unusable`], by the kernel's list: address, interface, prefix, scope and flags in hexadecimal, name.
fn unusable_in(addr: Ipv6Addr, list: &str) -> Option<&'static str> {
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

/// Why a socket cannot be had, and what to do.
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
                 each program an address of its own (udp:ADDR)"
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

/// The user whose socket has the port, as the kernel lists them.
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

/// What the queues share.
struct Shared {
    name: String,
    /// Our Ethernet address, and one that stands for every peer.
    macs: (Mac, Mac),
    max_frame: usize,
    pool: HeapPool,
    counters: Vec<Counters>,
    sockets: Vec<Socket>,
    host: Arc<Host>,
    /// Whether messages of several datagrams are sent; `None`: where the host allows it.
    gso: Option<bool>,
    /// Errors that came back.
    refused: AtomicU64,
    /// When something was last complained about.
    complaint: Mutex<Option<Instant>>,
}

impl Shared {
    /// The socket by which packets from an address leave.
    fn socket_of(&self, src: IpAddr) -> Option<&Socket> {
        self.sockets.iter().find(|socket| socket.serves(src))
    }

    /// Logs a warning, unless it did so within [`QUIET`].
    #[cold]
    fn complain(&self, what: impl FnOnce() -> String) {
        let mut last = lock(&self.complaint);
        if last.is_none_or(|last| last.elapsed() >= QUIET) {
            *last = Some(Instant::now());
            tracing::warn!("port {}: {}", self.name, what());
        }
    }

    #[cold]
    fn note_translation(&self, fields: &IpFields) {
        self.complain(|| {
            format!(
                "every packet from {} has a wrong ICRC, which covers the addresses: is there address translation (NAT) between \
                 here and there? RoCE cannot pass that; use addresses that reach each other as they are",
                fields.src
            )
        });
    }

    /// Datagrams could not be sent.
    #[cold]
    fn note_unsent(&self, out: &Outgoing, error: &Error) {
        let (dst, len) = (out.ip.dst, out.payload.end - crate::wire::ETH_LEN);
        self.complain(|| match error.raw_os_error() {
            Some(libc::EMSGSIZE) => too_long(len, dst, None),
            _ => format!("a packet from {} to {dst} could not be sent: {error}", out.ip.src),
        });
    }

    /// Reads the errors that came back for datagrams that were sent. They may be forged, so they are only counted and logged.
    /// Returns whether there were any.
    #[cold]
    fn note_errors(&self, socket: &Socket) -> bool {
        let mut any = false;
        for _ in 0..ERRORS {
            let Some((name, control)) = sys::take_error(socket.fd()) else { break };
            let Some(Refusal { error, came_back, mtu }) = control.refusal() else { continue };
            // An error of this host itself is counted by the send that failed.
            self.refused.fetch_add(came_back.into(), Ordering::Relaxed);
            any |= came_back;
            self.complain(|| {
                let peer = name.get().map_or_else(|| "a peer".into(), |(peer, _)| peer.to_string());
                match error {
                    libc::ECONNREFUSED => {
                        format!("{peer} refuses RoCE: no program there has UDP port {UDP_PORT} open, or a firewall rejects it")
                    }
                    libc::EMSGSIZE => too_long(0, peer, Some(mtu)),
                    error => format!("packets to {peer} come back: {}", Error::from_raw_os_error(error)),
                }
            });
        }
        any
    }

    /// A socket says how many datagrams its buffer had no room for so far.
    fn note_overflows(&self, socket: usize, total: u32) {
        let lost = total.wrapping_sub(self.sockets[socket].overflows.swap(total, Ordering::Relaxed));
        self.counters[0].rx_dropped.add(lost.into());
    }
}

/// What to do where packets are too long for a path.
fn too_long(len: usize, dst: impl core::fmt::Display, mtu: Option<u32>) -> String {
    let what = if len > 0 { format!("a packet of {len} bytes is") } else { "packets are".into() };
    let carried = mtu.filter(|mtu| *mtu > 0).map_or_else(String::new, |mtu| {
        let fitting = Mtu::of_link(mtu as usize).map_or(256, |mtu| mtu.bytes());
        format!(", which carries {mtu} bytes: use a path MTU of {fitting}")
    });
    format!("{what} too long for the way to {dst}{carried}; ip route get {dst} says what it carries")
}

pub(super) struct UdpPort {
    info: PortInfo,
    taken: Taken,
    shared: Arc<Shared>,
}

impl Port for UdpPort {
    fn info(&self) -> &PortInfo {
        &self.info
    }

    fn take_queue(&self, index: usize) -> Option<Box<dyn PortQueue>> {
        self.taken.take(index)?;
        Some(Box::new(UdpQueue {
            receiver: (index == 0).then(Receiver::new),
            sender: Sender::new(index),
            arrivals: None,
            shared: Arc::clone(&self.shared),
        }))
    }

    fn start(&self) -> Result<(), PortError> {
        Ok(())
    }

    fn mtu(&self) -> usize {
        self.shared.host.mtu().unwrap_or(self.info.mtu).min(self.info.mtu)
    }

    fn link_up(&self) -> bool {
        self.shared.host.mtu().is_some()
    }

    fn host(&self) -> Option<&dyn super::Host> {
        Some(&*self.shared.host)
    }

    /// The kernel counts the memory of a datagram, up to twice its bytes. Half of a buffer is for what we request, the other half
    /// for what peers request. Peers are assumed to have buffers like ours.
    fn window(&self) -> Option<usize> {
        self.shared.sockets.iter().map(|socket| socket.accounted / 4).min()
    }

    fn maintain(&self) {
        for socket in &self.shared.sockets {
            let _ = self.shared.note_errors(socket); // there may be none
        }
        self.shared.host.follow();
    }

    fn stats(&self) -> PortStats {
        PortStats { refused: self.shared.refused.load(Ordering::Relaxed), ..sum(&self.shared.counters) }
    }
}

struct UdpQueue {
    /// Of queue 0.
    receiver: Option<Receiver>,
    sender: Sender,
    /// Readable when a socket is.
    arrivals: Option<Arc<OwnedFd>>,
    shared: Arc<Shared>,
}

impl UdpQueue {
    /// Each queue has its own descriptor: a sleeping thread waits for those of several queues.
    fn watch(&self) -> rustix::io::Result<OwnedFd> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        for socket in self.receiver.iter().flat_map(|_| &self.shared.sockets) {
            epoll::add(&epoll, &socket.fd, epoll::EventData::new_u64(0), epoll::EventFlags::IN)?;
        }
        Ok(epoll)
    }
}

impl PortQueue for UdpQueue {
    fn rx_burst(&mut self, out: &mut RxBurst) -> usize {
        self.receiver.as_mut().map_or(0, |receiver| receiver.burst(&self.shared, out))
    }

    fn route_to(&mut self, _: IpAddr) -> Route {
        Route::default()
    }

    fn tx_burst(&mut self, _: Route, frames: &mut TxBurst) -> usize {
        self.sender.burst(&self.shared, frames)
    }

    fn alloc(&mut self) -> Option<Frame> {
        self.shared.pool.alloc()
    }

    fn alloc_burst(&mut self, out: &mut TxBurst, n: usize) {
        self.shared.pool.alloc_burst(out, n);
    }

    fn build_burst(&mut self, _: Route, _: usize, _: &mut dyn Build) -> Option<usize> {
        None
    }

    /// Each datagram is an edge of the descriptor, also while others wait.
    fn arm(&mut self) -> Armed {
        if self.receiver.as_ref().is_some_and(Receiver::pending) {
            return Armed::Pending;
        }
        if self.arrivals.is_none() {
            self.arrivals = self.watch().ok().map(Arc::new);
        }
        self.arrivals.clone().map_or(Armed::Unable, Armed::Event)
    }

    fn recycle(&mut self, frames: &mut RxBurst) {
        HeapPool::recycle(frames);
    }
}
