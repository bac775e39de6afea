//! Counters and state of a running stack, for observers: its shards and its queue pairs.
//!
//! Taking a [`Snapshot`] reads counters and published words; it never takes a shard's claim, so nothing waits for it. If configured
//! ([`DeviceConfig::stats`](super::DeviceConfig::stats)), a device serves snapshots on a unix socket, and [`Snapshot::fetch`] takes one
//! from there. Where several processes share the addresses of a host, each serves requests through the registry, configured or not:
//! [`HostReader`] shows all of them.
//!
//! # Protocol
//!
//! A client gets one snapshot, a JSON object, and the end of the stream; what it sends is never read. `version` is [`VERSION`].
//! New fields and counters do not change the version, so a reader skips unknown names, and takes missing counters as 0 (counters that are
//! 0 are omitted). `nc -U SOCKET` shows a snapshot.

pub(super) mod data;
mod host;
pub(super) mod list;
pub(super) mod reader;
pub(super) mod registry_stats;
pub(super) mod socket;
pub(super) mod tables;

pub use data::{
    Counts, Latency, PeerStats, QPS_LISTED, QpStats, Row, ShardStats, Snapshot, StatsError, Table, VERSION,
    runtime_dir,
};
pub use host::{HostReader, HostSnapshot, Listener, Process, Reply};
pub use reader::Reader;
