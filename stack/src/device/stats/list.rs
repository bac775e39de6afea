//! The queue pairs of a device, for its snapshots.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use crate::id::{QpType, Qpn};
use crate::shard::counters::QpCounters;
use crate::sync::lock::lock;

/// The data of a queue pair that a snapshot needs.
#[derive(Clone, Debug)]
pub(in crate::device) struct QpEntry {
    pub qp_type: QpType,
    pub shard: usize,
    /// Index of its published word.
    pub index: u32,
    pub counters: Arc<QpCounters>,
}

/// The existing queue pairs, by number. Creating and destroying them takes the lock for a moment; shards never do.
#[derive(Debug, Default)]
pub(in crate::device) struct QpList(Mutex<BTreeMap<u32, QpEntry>>);

impl QpList {
    pub(in crate::device) fn insert(&self, qpn: Qpn, entry: QpEntry) {
        lock(&self.0).insert(qpn.get(), entry);
    }
    pub(in crate::device) fn remove(&self, qpn: Qpn) {
        lock(&self.0).remove(&qpn.get());
    }
    /// The first `most` queue pairs; the number of all, and the number on each shard.
    pub(super) fn list(&self, shards: usize, most: usize) -> (Vec<(u32, QpEntry)>, usize, Vec<usize>) {
        let qps = lock(&self.0);
        let mut per_shard = vec![0; shards];
        qps.values().for_each(|entry| per_shard[entry.shard] += 1);
        let listed = qps.iter().take(most).map(|(qpn, entry)| (*qpn, entry.clone())).collect();
        (listed, qps.len(), per_shard)
    }
}
