//! Counters and state of a running stack, for observers: its shards and its queue pairs.
//!
//! Taking a [`Snapshot`] reads counters and published words; it never takes a shard's claim, so nothing waits for it. A device
//! that is configured to ([`DeviceConfig::stats`](super::DeviceConfig::stats)) serves snapshots on a unix socket, and
//! [`Snapshot::fetch`] takes one from there.
//!
//! # Protocol
//!
//! A client gets one snapshot, a JSON object, and the end of the stream; what it sends is never read. `version` is [`VERSION`].
//! New fields and counters do not change the version, so a reader skips names that it does not know, and takes missing counters
//! for 0 (counters that are 0 are left out). `nc -U SOCKET` shows a snapshot.

use core::cell::Cell;
use std::collections::BTreeMap;
use std::io::Read;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::claim::{Core, lock};
use crate::id::{QpState, QpType, Qpn};
use crate::port::socket_file::{self, Look};
use crate::proto::state::{state_name, type_name};
use crate::runtime::{self, Unusable};
use crate::shard::counters::{CounterSnapshot, QpCounters};

/// Version of the protocol.
pub const VERSION: u32 = 1;
/// Queue pairs that a snapshot lists; [`Snapshot::qps_total`] is their number.
pub const QPS_LISTED: usize = 16_384;
/// Bytes that [`Snapshot::fetch`] takes at most.
const FETCH_MAX: u64 = 64 << 20;
/// How long [`Snapshot::fetch`] waits for the next bytes.
const FETCH_PATIENCE: Duration = Duration::from_secs(2);

/// Counters by name; those that are 0 are left out.
pub type Counts = BTreeMap<String, u64>;

/// A running stack at about one moment: shards that run are not read at the same instant.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Snapshot {
    /// Version of the protocol.
    pub version: u32,
    /// Process.
    pub pid: u32,
    /// Name of its program.
    #[serde(default)]
    pub program: String,
    /// The port, as it was opened.
    #[serde(default)]
    pub port: String,
    /// Its Ethernet address.
    #[serde(default)]
    pub mac: String,
    /// Whether its link is up.
    #[serde(default)]
    pub link_up: bool,
    /// Our addresses, in the order of the GID table.
    #[serde(default)]
    pub gids: Vec<String>,
    /// When the snapshot was taken, by the device's clock, in nanoseconds; for rates between two snapshots.
    pub at_ns: u64,
    /// Counters of the port.
    #[serde(default)]
    pub port_counters: Counts,
    /// The shards.
    pub shards: Vec<ShardStats>,
    /// Queue pairs that exist.
    pub qps_total: usize,
    /// The queue pairs, by number; the first [`QPS_LISTED`].
    pub qps: Vec<QpStats>,
    /// What the program itself counts.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tables: Vec<Table>,
}

/// Counters of the program's own, beside those of its device: rows of one kind.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Table {
    /// What is counted: a word, as `nvmf`.
    pub name: String,
    /// The rows.
    #[serde(default)]
    pub rows: Vec<Row>,
}

/// A row of a [`Table`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Row {
    /// Values that identify the row, by name; all rows of a table have the same names.
    pub labels: BTreeMap<String, String>,
    /// Numbers that only grow.
    #[serde(default)]
    pub counters: Counts,
    /// How long things took.
    #[serde(default)]
    pub latencies: BTreeMap<String, Latency>,
}

/// Durations of operations of one kind.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Latency {
    /// Operations.
    pub count: u64,
    /// Sum of their durations.
    pub sum_ns: u64,
    /// Operations by upper bound of their duration, in nanoseconds; each bucket begins above the previous bound. Empty ones are
    /// left out.
    pub buckets: BTreeMap<u64, u64>,
}

/// Fills in a table of a snapshot. It is code of the program, and may call back.
type Source = Arc<dyn Fn() -> Table + Send + Sync>;

thread_local! {
    /// Whether this thread is in a source.
    static IN_SOURCE: Cell<bool> = const { Cell::new(false) };
}

/// The tables of a device's program.
#[derive(Default)]
pub(super) struct Tables(Mutex<Vec<Source>>);

impl core::fmt::Debug for Tables {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("Tables")
    }
}

impl Tables {
    pub(super) fn add(&self, source: Source) {
        lock(&self.0).push(source);
    }
    /// The tables; none inside a source, which would call itself for ever otherwise.
    fn list(&self) -> Vec<Table> {
        struct Leave;
        impl Drop for Leave {
            fn drop(&mut self) {
                IN_SOURCE.set(false);
            }
        }
        if IN_SOURCE.replace(true) {
            return Vec::new();
        }
        let _leave = Leave;
        let sources = lock(&self.0).clone();
        sources.iter().map(|source| source()).collect()
    }
}

/// Takes snapshots of a device from anywhere, as long as it exists.
#[derive(Clone, Debug)]
pub struct Reader(Weak<Core>);

impl Reader {
    pub(super) fn new(core: &Arc<Core>) -> Self {
        Self(Arc::downgrade(core))
    }
    /// A snapshot, while there is a device.
    pub fn snapshot(&self) -> Option<Snapshot> {
        self.0.upgrade().map(|core| Snapshot::of(&core))
    }
}

/// A shard at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShardStats {
    /// Its number.
    pub id: usize,
    /// Its queue pairs.
    #[serde(default)]
    pub qps: usize,
    /// Whether it died of a panic: no thread turns it any more.
    #[serde(default, skip_serializing_if = "core::ops::Not::not")]
    pub dead: bool,
    /// Its counters.
    #[serde(default)]
    pub counters: Counts,
}

/// A queue pair at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct QpStats {
    /// Its number.
    pub qpn: u32,
    /// Service type: `RC`, `UD`, ...
    #[serde(default)]
    pub qp_type: String,
    /// State: `RESET`, `INIT`, ...
    #[serde(default)]
    pub state: String,
    /// Its shard.
    #[serde(default)]
    pub shard: usize,
    /// The other end, once it is connected.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peer: Option<PeerStats>,
    /// Its counters.
    #[serde(default)]
    pub counters: Counts,
}

/// The other end of a connection.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PeerStats {
    /// Its address.
    pub gid: String,
    /// Its queue pair.
    pub qpn: u32,
}

/// Why there is no snapshot.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StatsError {
    /// No process listens any more: it ended without removing its socket.
    #[error("{}: no process serves this socket any more; remove it", path.display())]
    Stale {
        /// The socket.
        path: PathBuf,
    },
    /// The socket cannot be used.
    #[error("{}: {source}", path.display())]
    Io {
        /// The socket.
        path: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// The data is no snapshot.
    #[error("{}: this is no statistics socket ({reason})", path.display())]
    Format {
        /// The socket.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// The stack is of another version.
    #[error(
        "{}: the stack speaks version {theirs} of the statistics, this program {VERSION}; use programs of one build",
        path.display()
    )]
    Version {
        /// The socket.
        path: PathBuf,
        /// The version there.
        theirs: u32,
    },
    /// The default directory cannot be used.
    #[error("{}: {reason}", path.display())]
    Dir {
        /// The directory.
        path: PathBuf,
        /// Why, and what to do.
        reason: String,
    },
}

fn counts<'a>(values: impl Iterator<Item = (&'a str, u64)>) -> Counts {
    values.filter(|(_, value)| *value != 0).map(|(name, value)| (name.to_owned(), value)).collect()
}

impl From<&CounterSnapshot> for Counts {
    fn from(values: &CounterSnapshot) -> Self {
        counts(values.iter())
    }
}

impl Snapshot {
    pub(super) fn of(core: &Core) -> Self {
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

    /// The snapshot as it goes over the socket.
    pub fn to_json(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("names of counters are strings, and nothing else can fail")
    }

    /// Takes a snapshot from the device that listens at `path`.
    ///
    /// # Errors
    /// [`StatsError`]; the data is checked, at most 64 MiB of it are taken, and no pause of more than 2 seconds.
    pub fn fetch(path: &Path) -> Result<Self, StatsError> {
        let io = |source: std::io::Error| {
            // A file that is no socket refuses a connection, too. Connecting follows links, so `look` is given the target.
            let refused = source.kind() == std::io::ErrorKind::ConnectionRefused;
            let file = std::fs::canonicalize(path).ok().filter(|_| refused);
            match file.map(|file| socket_file::look(&file)) {
                Some(Ok(Look::Stale)) => StatsError::Stale { path: path.into() },
                Some(Ok(Look::Other)) => {
                    StatsError::Format { path: path.into(), reason: "it is no socket".into() }
                }
                _ => StatsError::Io { path: path.into(), source },
            }
        };
        let stream = UnixStream::connect(path).map_err(io)?;
        stream.set_read_timeout(Some(FETCH_PATIENCE)).map_err(io)?;
        let mut text = Vec::new();
        stream.take(FETCH_MAX).read_to_end(&mut text).map_err(io)?;
        Self::parse(&text).map_err(|reason| match reason {
            Ok(theirs) => StatsError::Version { path: path.into(), theirs },
            Err(reason) => StatsError::Format { path: path.into(), reason },
        })
    }

    /// `Err(Ok(version))`: of another version; `Err(Err(reason))`: no snapshot.
    fn parse(text: &[u8]) -> Result<Self, Result<u32, String>> {
        #[derive(Deserialize)]
        struct Versioned {
            version: u32,
        }
        let bad = |e: serde_json::Error| Err(e.to_string());
        let Versioned { version } = serde_json::from_slice(text).map_err(bad)?;
        if version != VERSION {
            return Err(Ok(version));
        }
        serde_json::from_slice(text).map_err(bad)
    }
}

fn program() -> String {
    let exe = std::env::current_exe().ok();
    let name = exe.as_deref().and_then(Path::file_name);
    name.map_or(String::new(), |name| name.to_string_lossy().into_owned())
}

/// The directory where stacks put their sockets by default and `roce-stat` searches for them: `$XDG_RUNTIME_DIR/roce`, or
/// `/tmp/roce-UID` where that is not set. It is made if it does not exist, for this user alone.
///
/// # Errors
/// [`StatsError::Dir`]: it cannot be made, or another user could put a socket into it.
pub fn runtime_dir() -> Result<PathBuf, StatsError> {
    runtime::dir().map_err(|Unusable { path, reason }| StatsError::Dir { path, reason })
}

/// What a snapshot needs of a queue pair.
#[derive(Clone, Debug)]
pub(super) struct QpEntry {
    pub qp_type: QpType,
    pub shard: usize,
    /// Index of its word.
    pub index: u32,
    pub counters: Arc<QpCounters>,
}

/// The queue pairs that exist, by number. Creating and destroying them takes the lock for a moment; shards never do.
#[derive(Debug, Default)]
pub(super) struct QpList(Mutex<BTreeMap<u32, QpEntry>>);

impl QpList {
    pub(super) fn insert(&self, qpn: Qpn, entry: QpEntry) {
        lock(&self.0).insert(qpn.get(), entry);
    }
    pub(super) fn remove(&self, qpn: Qpn) {
        lock(&self.0).remove(&qpn.get());
    }
    /// The first of them, how many there are, and how many on each shard.
    fn list(&self, shards: usize) -> (Vec<(u32, QpEntry)>, usize, Vec<usize>) {
        let qps = lock(&self.0);
        let mut per_shard = vec![0; shards];
        qps.values().for_each(|entry| per_shard[entry.shard] += 1);
        let listed = qps.iter().take(QPS_LISTED).map(|(qpn, entry)| (*qpn, entry.clone())).collect();
        (listed, qps.len(), per_shard)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // Goal: a socket that refuses while its process is there, as one does that is about to listen, is not called stale.
    #[test]
    fn only_what_a_process_left_behind_is_stale() {
        use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, socket_with};
        let path = std::env::temp_dir().join(format!("roce-fetch-{}", std::process::id()));
        let alive = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None).unwrap();
        bind(&alive, &SocketAddrUnix::new(&path).unwrap()).unwrap();
        let before = Snapshot::fetch(&path);
        drop(alive);
        let after = Snapshot::fetch(&path);
        std::fs::remove_file(&path).unwrap();
        assert!(matches!(before, Err(StatsError::Io { .. })), "{before:?}");
        assert!(matches!(after, Err(StatsError::Stale { .. })), "{after:?}");
    }

    #[test]
    fn a_snapshot_survives_the_way() {
        let sent = Snapshot {
            version: VERSION,
            pid: 7,
            port: "unix:/a \"b\"\n,peer=/c".into(),
            at_ns: u64::MAX,
            shards: vec![ShardStats {
                id: 1,
                qps: 2,
                dead: true,
                counters: [("rx_frames".into(), u64::MAX)].into(),
            }],
            qps_total: 1,
            tables: vec![Table {
                name: "disks".into(),
                rows: vec![Row {
                    labels: [("host".into(), "\"a\"".into())].into(),
                    counters: [("reads".into(), 3)].into(),
                    latencies: [(
                        "read".into(),
                        Latency { count: 3, sum_ns: 9, buckets: [(3, 2), (u64::MAX, 1)].into() },
                    )]
                    .into(),
                }],
            }],
            qps: vec![QpStats {
                qpn: 0x12_3456,
                peer: Some(PeerStats { gid: "::1".into(), qpn: 3 }),
                ..QpStats::default()
            }],
            ..Snapshot::default()
        };
        assert_eq!(Snapshot::parse(&sent.to_json()), Ok(sent));
    }

    #[test]
    fn what_is_no_snapshot_is_refused() {
        for text in
            ["", "{", "[]", "{\"version\":1}", "hello", "{\"version\":-1}", "{\"version\":1,\"qps\":3}"]
        {
            assert!(matches!(Snapshot::parse(text.as_bytes()), Err(Err(_))), "{text}");
        }
        assert_eq!(Snapshot::parse(b"{\"version\":2,\"new\":[]}"), Err(Ok(2)));
    }

    #[test]
    fn names_that_are_not_known_are_skipped() {
        let text = br#"{"version":1,"pid":1,"at_ns":0,"shards":[],"qps_total":0,"qps":[],"later":{"a":[1]}}"#;
        assert_eq!(Snapshot::parse(text).unwrap().pid, 1);
    }
}
