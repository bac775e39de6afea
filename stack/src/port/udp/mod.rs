//! RoCEv2 over UDP sockets on the host's own addresses. It needs neither privileges nor DPDK, and works wherever IP packets pass without
//! address translation.
//!
//! The kernel routes, resolves neighbours and answers ARP; the host's addresses are the port's GIDs. Only the UDP payload of a frame is
//! given to a socket, and a received datagram is put into a frame with new headers. The ICRC covers fields that the kernel writes and a
//! socket does not show. For packets to send, the ICRC is computed with what the kernel will write ([`tx`]). For received packets, the
//! values that make the ICRC right are computed ([`rx`]), and a shard judges for each queue pair whether they make sense
//! (`shard/identification.rs`).
//!
//! A datagram arrives at the socket of the queue whose shard has its queue pair ([`steering`]). The kernel coalesces datagrams of one flow
//! (GRO) and chooses the socket by the first one. So what a peer sends from one source port to several shards arrives mixed, and the shard
//! that receives it hands it over. Every queue sends by itself, and connections have source ports of their own ([`sources`]).

mod buffers;
mod control;
mod farewell;
mod group;
mod host;
mod living;
mod memberships;
mod messages;
mod order;
mod packet;
mod passing;
mod port;
mod route;
mod rx;
mod segmentation;
mod shared;
mod socket;
pub mod sorting;
mod sources;
mod steering;
mod sys;
mod translation;
mod tx;

pub(super) use control::is_link_local;
pub use host::addresses;

#[cfg(all(test, not(miri)))]
mod tests;

use core::net::IpAddr;
use core::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex};

use crate::port::counters::Counters;
use crate::port::error::PortError;
use crate::port::for_guests::ForGuests;
use crate::port::frame::HeapPool;
use crate::port::info::{PortInfo, PortOptions};
use crate::port::spec::{PortSpec, SOURCES_MAX};
use crate::port::taken::Taken;
use crate::registry::Registry;
use crate::wire::UDP_PORT;
use group::Group;
use host::Host;
use memberships::Memberships;
use port::UdpPort;
use shared::Shared;
use socket::{chosen_port, sending_sockets, shared_sockets, sockets};
use sources::Sources;

/// Opens a port on these addresses of the host, or on all if there are none. `more` are the options of the specification.
pub(super) fn open(
    spec: &PortSpec,
    addrs: &[IpAddr],
    more: &[(String, String)],
    options: &PortOptions,
) -> Result<UdpPort, PortError> {
    make(spec, addrs, more, options, None)
}

/// What a port has together with the links of its process.
pub(super) struct Sharing {
    /// The registry of the host.
    pub registry: Arc<Registry>,
    /// Where its frames come from: the buffers are long enough for the MTU of its options.
    pub pool: HeapPool,
    /// Where it leaves what it receives for guests.
    pub guests: Arc<ForGuests>,
}

/// Opens a port on the addresses that all processes of a registry share.
pub(super) fn open_shared(
    spec: &PortSpec,
    more: &[(String, String)],
    options: &PortOptions,
    sharing: Sharing,
) -> Result<UdpPort, PortError> {
    let addrs: Vec<IpAddr> = sharing.registry.addresses().named().collect();
    make(spec, &addrs, more, options, Some(sharing))
}

fn make(
    spec: &PortSpec,
    addrs: &[IpAddr],
    more: &[(String, String)],
    options: &PortOptions,
    sharing: Option<Sharing>,
) -> Result<UdpPort, PortError> {
    let fail = |reason: String| PortError::Open { port: spec.to_string(), reason };
    let option = |name| more.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str());
    let gso = option("gso").map(|value| value == "on");
    let buffer = match option("buffer") {
        Some(bytes) => bytes.parse().map_err(|error| fail(format!("buffer={bytes:?}: {error}")))?,
        None => buffers::default_size(options.queues * addrs.len().max(1)),
    };
    let most = match option("flows") {
        Some(flows) => flows.parse().map_err(|error| fail(format!("flows={flows:?}: {error}")))?,
        None => SOURCES_MAX,
    };
    let mut receives = true;
    let (sockets, port, source_port) = match sharing.as_ref().map(|sharing| &sharing.registry) {
        None => (sockets(addrs, buffer, options.queues).map_err(fail)?, UDP_PORT, UDP_PORT),
        Some(registry) if registry.is_guest() => {
            receives = false;
            let (sockets, source_port) = sending_sockets(addrs, buffer).map_err(fail)?;
            (vec![sockets], chosen_port(registry), source_port)
        }
        Some(registry) => {
            let shared = shared_sockets(addrs, buffer, options.queues, registry).map_err(fail)?;
            if let Some(why) = shared.why {
                tracing::warn!(
                    "port {spec}: {why}; programs of this user reach each other on this host, by UDP port {}, and no other host",
                    shared.port
                );
            }
            (shared.sockets, shared.port, shared.port)
        }
    };
    let pool = sharing.as_ref().map(|sharing| sharing.pool.clone());
    let group = sharing
        .map(|Sharing { registry, guests, .. }| Group::new(registry, addrs, port, options.queues, guests));
    if let Some(group) = &group {
        group.enter(&sockets);
    }
    if let Some(memory) = sockets.iter().flatten().map(|socket| socket.memory).min() {
        buffers::warn_if_small(&spec.to_string(), buffer, memory);
    }
    let host = Arc::new(Host::new(addrs));
    host.refresh().map_err(|error| fail(format!("the host's addresses cannot be read: {error}")))?;
    let mtu = host.mtu().unwrap_or(options.mtu).min(options.mtu);
    let message = if gso == Some(false) { 0 } else { tx::MESSAGE };
    let info = PortInfo { mtu, message, ..PortInfo::of(spec, options) };
    let shared = Arc::new(Shared {
        name: info.name.clone(),
        macs: (info.mac, info.mac.beside()),
        max_frame: info.max_frame(),
        pool: pool.unwrap_or_else(|| HeapPool::new(options.queues * options.frames, info.max_frame())),
        counters: (0..options.queues).map(|_| Counters::default()).collect(),
        groups: Memberships::new(buffer),
        sources: Sources::new(most, sockets[0].len(), buffer),
        port,
        sockets,
        source_port,
        receives,
        group,
        host,
        gso,
        refused: AtomicU64::new(0),
        complaint: Mutex::new(None),
    });
    Ok(UdpPort { info, taken: Taken::none_of(options.queues), shared })
}
