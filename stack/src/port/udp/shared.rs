//! What the queues of a port share, and the warnings of a port.

use core::net::IpAddr;
use core::sync::atomic::{AtomicU64, Ordering};
use std::io::Error;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use super::control::Refusal;
use super::farewell::Ready;
use super::group::Group;
use super::host::{Host, Table};
use super::memberships::Memberships;
use super::packet::{IpFields, Outgoing};
use super::socket::Socket;
use super::sources::Sources;
use super::sys;
use crate::id::{Mac, Mtu};
use crate::port::counters::Counters;
use crate::port::error::PortError;
use crate::port::frame::{Frame, HeapPool};
use crate::port::traits::Farewell;
use crate::sync::lock::lock;
use crate::wire::UDP_PORT;

/// Most errors that one call reads from a socket.
pub(super) const ERRORS: usize = 64;
/// Least time between two warnings.
const QUIET: Duration = Duration::from_secs(1);

/// What the queues share.
pub(super) struct Shared {
    pub(super) name: String,
    /// Our Ethernet address, and one that stands for every peer.
    pub(super) macs: (Mac, Mac),
    pub(super) max_frame: usize,
    pub(super) pool: HeapPool,
    pub(super) counters: Vec<Counters>,
    /// The UDP port on which the port receives: 4791, or another one if that was taken.
    pub(super) port: u16,
    /// The sockets on that UDP port, for each queue that receives: the first queue alone, or all. Those of a guest, for all queues, are on
    /// another port, and receive nothing.
    pub(super) sockets: Vec<Vec<Socket>>,
    /// The UDP port of these sockets.
    pub(super) source_port: u16,
    /// Whether they receive.
    pub(super) receives: bool,
    /// The group of these sockets, if other processes have sockets on the same UDP port; dropped after `sockets`.
    pub(super) group: Option<Group>,
    /// The multicast groups that the port has joined.
    pub(super) groups: Memberships,
    pub(super) sources: Sources,
    pub(super) host: Arc<Host>,
    /// Whether several datagrams are sent as one message (UDP_SEGMENT). `None`: where the host allows it.
    pub(super) gso: Option<bool>,
    /// Errors that came back for datagrams that were sent.
    pub(super) refused: AtomicU64,
    /// When the last warning was logged.
    pub(super) complaint: Mutex<Option<Instant>>,
}

impl Shared {
    /// The UDP port of a destination. If this port does not receive on 4791, neither do the processes that share this host's addresses, nor
    /// do their multicast groups; every other destination has 4791.
    #[inline]
    pub(super) fn port_of(&self, dst: IpAddr, table: &Table) -> u16 {
        if self.port == UDP_PORT || !(dst.is_multicast() || table.interface(dst) != 0) {
            UDP_PORT
        } else {
            self.port
        }
    }

    /// Logs a warning, unless it did so within [`QUIET`].
    #[cold]
    pub(super) fn complain(&self, what: impl FnOnce() -> String) {
        let mut last = lock(&self.complaint);
        if last.is_none_or(|last| last.elapsed() >= QUIET) {
            *last = Some(Instant::now());
            tracing::warn!("port {}: {}", self.name, what());
        }
    }

    #[cold]
    pub(super) fn note_translation(&self, fields: &IpFields) {
        self.complain(|| {
            format!(
                "every packet from {} has a wrong ICRC, which covers the addresses: is there address translation (NAT) between \
                 here and there? RoCE cannot pass that; use addresses that reach each other as they are",
                fields.src
            )
        });
    }

    /// Warns that datagrams could not be sent.
    #[cold]
    pub(super) fn note_unsent(&self, out: &Outgoing, error: &Error) {
        let (dst, len) = (out.ip.dst, out.payload.end - crate::wire::ETH_LEN);
        self.complain(|| match error.raw_os_error() {
            Some(libc::EMSGSIZE) => too_long(len, dst, None),
            _ => format!("a packet from {} to {dst} could not be sent: {error}", out.ip.src),
        });
    }

    /// Reads the errors that came back for datagrams that were sent. They may be forged, so they are only counted and logged.
    /// Returns whether there were any.
    #[cold]
    pub(super) fn note_errors(&self, socket: &Socket) -> bool {
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

    /// Counts datagrams that a socket dropped because its buffer was full. `total` is their number since the socket was made.
    pub(super) fn note_overflows(&self, queue: usize, socket: &Socket, total: u32) {
        let lost = total.wrapping_sub(socket.overflows.swap(total, Ordering::Relaxed));
        self.counters[queue].rx_dropped.add(lost.into());
    }
}

impl crate::port::Host for Shared {
    fn addresses(&self) -> Vec<IpAddr> {
        self.host.addresses()
    }
    fn generation(&self) -> u64 {
        self.host.generation()
    }
    fn source_to(&self, peer: IpAddr, scope: u32) -> Option<IpAddr> {
        self.host.source_to(peer, scope)
    }
    fn mtu_to(&self, peer: IpAddr) -> Option<usize> {
        self.host.mtu_to(peer)
    }
    fn join(&self, group: IpAddr) -> Result<(), PortError> {
        let interfaces = self.host.interfaces(group.is_ipv6());
        let refused = |reason: String| PortError::Group { group, reason };
        if !self.receives {
            let why = "this process is part of another user's host (ROCE_HOST_USER), and the kernel gives groups on its UDP port to that user alone";
            return Err(refused(why.into()));
        }
        if interfaces.is_empty() {
            return Err(refused("the port has no address of its IP version".into()));
        }
        self.groups
            .join(group, &interfaces, self.port, &self.sockets)
            .map_err(|error| refused(error.to_string()))
    }
    fn leave(&self, group: IpAddr) {
        self.groups.leave(group);
    }
    fn farewell(&self, mut packet: Frame) -> Option<Box<dyn Farewell>> {
        let out = Outgoing::of(packet.data())?;
        let socket = self.sockets[0].iter().find(|socket| socket.serves(out.ip.src))?;
        let table = self.host.table();
        out.fit(&mut packet, 0, self.source_port);
        let message = socket.message(&table, self.port_of(out.ip.dst, &table), &out, 0..1);
        let datagram = packet.data()[out.payload].to_vec();
        Some(Box::new(Ready::new(socket.shared_fd(), message, datagram)))
    }
}

/// A sentence for packets that are too long for a path, with what to do about it.
pub(super) fn too_long(len: usize, dst: impl core::fmt::Display, mtu: Option<u32>) -> String {
    let what = if len > 0 { format!("a packet of {len} bytes is") } else { "packets are".into() };
    let carried = mtu.filter(|mtu| *mtu > 0).map_or_else(String::new, |mtu| {
        let fitting = Mtu::of_link(mtu as usize).map_or(256, |mtu| mtu.bytes());
        format!(", which carries {mtu} bytes: use a path MTU of {fitting}")
    });
    format!("{what} too long for the way to {dst}{carried}; ip route get {dst} says what it carries")
}
