//! Reads the counters of a device, of its shards and of its port.

use std::path::Path;
use std::sync::Arc;

use super::handle::Device;
use super::inside_turn::inside_turn;
use super::stats::data::{Snapshot, Table};
use super::stats::reader::Reader;
use super::stats::socket::StatsSocket;
use crate::port::PortStats;
use crate::shard::counters::CounterSnapshot;

impl Device {
    /// The sum of the counters of all shards.
    pub fn counters(&self) -> CounterSnapshot {
        let mut sum = CounterSnapshot::default();
        for counters in &self.core().shared.counters {
            sum += counters.snapshot();
        }
        sum
    }
    /// The counters of one shard.
    ///
    /// # Panics
    /// If the device has no such shard.
    pub fn shard_counters(&self, shard: usize) -> CounterSnapshot {
        self.core().shared.counters[shard].snapshot()
    }
    /// Outcomes of the frames of the IP host (ARP, neighbour discovery, ICMP and others), by name. Takes the host's lock for a moment, as
    /// each of those frames does. Inside a turn, which may hold the lock, the list is empty.
    pub fn net_counters(&self) -> Vec<(&'static str, u64)> {
        if inside_turn() {
            return Vec::new();
        }
        self.core().shared.with_net(|net| net.counters().map(|(counter, n)| (counter.name(), n)).collect())
    }
    /// Counters and state of the device, its shards and its queue pairs, as `roce-stat` gets them. Never stops a shard.
    pub fn stats(&self) -> Snapshot {
        Snapshot::of(self.core())
    }
    /// A handle that takes [`stats`](Self::stats) from other threads, for as long as the device exists.
    pub fn stats_reader(&self) -> Reader {
        Reader::new(self.core())
    }
    /// Adds the program's own counters to [`stats`](Self::stats): `source` is called for each snapshot, on the thread that takes it.
    pub fn add_stats(&self, source: impl Fn() -> Table + Send + Sync + 'static) {
        self.core().tables.add(Arc::new(source));
    }
    /// The path of the socket that serves [`stats`](Self::stats), if any.
    pub fn stats_path(&self) -> Option<&Path> {
        self.stats.as_ref().map(StatsSocket::path)
    }
    /// The port's own counters.
    pub fn port_stats(&self) -> PortStats {
        self.core().port.stats()
    }
}
