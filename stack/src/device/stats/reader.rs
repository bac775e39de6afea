//! Takes snapshots of a device.

use std::path::Path;
use std::sync::{Arc, Weak};

use super::data::{Counts, PeerStats, QPS_LISTED, QpStats, ShardStats, Snapshot, VERSION};
use super::list::QpEntry;
use crate::device::claim::Core;
use crate::id::QpState;
use crate::port::Numbers;
use crate::proto::state::{state_name, type_name};
use crate::shard::counters::CounterSnapshot;

/// Takes snapshots of a device from any thread, for as long as the device exists.
#[derive(Clone, Debug)]
pub struct Reader(Weak<Core>);

impl Reader {
    pub(in crate::device) fn new(core: &Arc<Core>) -> Self {
        Self(Arc::downgrade(core))
    }
    /// A snapshot, if the device still exists.
    pub fn snapshot(&self) -> Option<Snapshot> {
        self.0.upgrade().map(|core| Snapshot::of(&core))
    }
}

impl Snapshot {
    pub(in crate::device) fn of(core: &Core) -> Self {
        let (entries, total, per_shard) = core.qps.list(core.cells.len(), QPS_LISTED);
        let words = &core.shared.words;
        let qp = |(qpn, entry): (u32, QpEntry)| QpStats {
            qpn,
            qp_type: type_name(entry.qp_type).to_owned(),
            state: QpState::from_enum(words.load(entry.index).state())
                .map_or(String::new(), |state| state_name(state).to_owned()),
            shard: entry.shard,
            peer: entry.counters.peer().map(|(gid, qpn)| PeerStats { gid: gid.to_string(), qpn: qpn.get() }),
            counters: (&entry.counters.snapshot()).into(),
        };
        let qps = entries.into_iter().map(qp).collect();
        Self { qps, tables: core.tables.list(), ..Self::without_qps(core, total, &per_shard) }
    }

    /// Without the list of queue pairs and without the program's own counters: short, and runs no code of the program for it.
    pub(in crate::device) fn summary(core: &Core) -> Self {
        let (_, total, per_shard) = core.qps.list(core.cells.len(), 0);
        Self::without_qps(core, total, &per_shard)
    }

    fn without_qps(core: &Core, qps_total: usize, per_shard: &[usize]) -> Self {
        let shared = &core.shared;
        let port = core.port.stats();
        let info = core.port.info();
        Self {
            version: VERSION,
            pid: std::process::id(),
            program: program(),
            port: info.name.clone(),
            mac: info.mac.to_string(),
            link_up: core.port.link_up(),
            gids: shared
                .gids
                .snapshot()
                .iter()
                .filter(|gid| !gid.is_zero())
                .map(ToString::to_string)
                .collect(),
            at_ns: core.now().as_nanos(),
            port_counters: counts(
                [
                    ("rx_frames", port.rx_frames),
                    ("rx_bytes", port.rx_bytes),
                    ("tx_frames", port.tx_frames),
                    ("tx_bytes", port.tx_bytes),
                    ("rx_dropped", port.rx_dropped),
                    ("tx_dropped", port.tx_dropped),
                    ("rx_strayed", port.rx_strayed),
                    ("passed_on", port.passed_on),
                    ("restarts", port.restarts),
                    ("refused", port.refused),
                ]
                .into_iter(),
            ),
            links: core.port.numbers().map(Numbers::links),
            shards: shared
                .counters
                .iter()
                .enumerate()
                .map(|(id, counters)| ShardStats {
                    id,
                    qps: per_shard[id],
                    dead: core.cells[id].is_dead(),
                    counters: (&counters.snapshot()).into(),
                })
                .collect(),
            qps_total,
            qps: Vec::new(),
            tables: Vec::new(),
        }
    }
}

fn counts<'a>(values: impl Iterator<Item = (&'a str, u64)>) -> Counts {
    values.filter(|(_, value)| *value != 0).map(|(name, value)| (name.to_owned(), value)).collect()
}

impl From<&CounterSnapshot> for Counts {
    fn from(values: &CounterSnapshot) -> Self {
        counts(values.iter())
    }
}

fn program() -> String {
    let exe = std::env::current_exe().ok();
    let name = exe.as_deref().and_then(Path::file_name);
    name.map_or(String::new(), |name| name.to_string_lossy().into_owned())
}
