//! Takes snapshots of a device.

use std::path::Path;
use std::sync::{Arc, Weak};

use super::data::{Counts, PeerStats, QpStats, ShardStats, Snapshot, VERSION};
use crate::device::claim::Core;
use crate::id::QpState;
use crate::proto::state::{state_name, type_name};
use crate::shard::counters::CounterSnapshot;

/// Takes snapshots of a device from anywhere, as long as it exists.
#[derive(Clone, Debug)]
pub struct Reader(Weak<Core>);

impl Reader {
    pub(in crate::device) fn new(core: &Arc<Core>) -> Self {
        Self(Arc::downgrade(core))
    }
    /// A snapshot, while there is a device.
    pub fn snapshot(&self) -> Option<Snapshot> {
        self.0.upgrade().map(|core| Snapshot::of(&core))
    }
}

impl Snapshot {
    pub(in crate::device) fn of(core: &Core) -> Self {
        let shared = &core.shared;
        let port = core.port.stats();
        let info = core.port.info();
        let (entries, total, per_shard) = core.qps.list(core.cells.len());
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
            qps_total: total,
            qps: entries
                .into_iter()
                .map(|(qpn, entry)| QpStats {
                    qpn,
                    qp_type: type_name(entry.qp_type).to_owned(),
                    state: QpState::from_enum(shared.words.load(entry.index).state())
                        .map_or(String::new(), |state| state_name(state).to_owned()),
                    shard: entry.shard,
                    peer: entry
                        .counters
                        .peer()
                        .map(|(gid, qpn)| PeerStats { gid: gid.to_string(), qpn: qpn.get() }),
                    counters: (&entry.counters.snapshot()).into(),
                })
                .collect(),
            tables: core.tables.list(),
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
