//! A snapshot of counters and state, and the client that fetches it.

use std::collections::BTreeMap;
use std::io::Read;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::port::socket_file::{self, Found};
use crate::runtime::{self, Unusable};

/// Version of the data on the socket: the JSON of a [`Snapshot`].
pub const VERSION: u32 = 1;
/// Number of queue pairs that a snapshot lists at most; [`Snapshot::qps_total`] is the number that exist.
pub const QPS_LISTED: usize = 16_384;
/// Number of bytes that [`Snapshot::fetch`] accepts at most.
const FETCH_MAX: u64 = 64 << 20;
/// How long [`Snapshot::fetch`] waits for the next bytes.
const FETCH_PATIENCE: Duration = Duration::from_secs(2);

/// Counters by name; counters that are 0 are omitted.
pub type Counts = BTreeMap<String, u64>;

/// The state of a running stack at about one moment: running shards are not read at the same instant.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Snapshot {
    /// [`VERSION`] of the stack that took it.
    pub version: u32,
    /// Process id.
    pub pid: u32,
    /// Name of the process's program.
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
    /// The device's addresses, in the order of the GID table.
    #[serde(default)]
    pub gids: Vec<String>,
    /// When the snapshot was taken, by the device's clock, in nanoseconds; for rates between two snapshots.
    pub at_ns: u64,
    /// Counters of the port.
    #[serde(default)]
    pub port_counters: Counts,
    /// Number of links to other processes of the host that are up; absent if the port has no links.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub links: Option<u64>,
    /// The shards.
    pub shards: Vec<ShardStats>,
    /// Number of existing queue pairs.
    pub qps_total: usize,
    /// The first [`QPS_LISTED`] queue pairs, ordered by number.
    pub qps: Vec<QpStats>,
    /// Counters that the program itself provides.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tables: Vec<Table>,
}

/// Counters that the program provides besides those of its device: rows of one kind.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Table {
    /// What the rows count: one word, such as `nvmf`.
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
    /// Counters: numbers that only grow.
    #[serde(default)]
    pub counters: Counts,
    /// Latencies of operations.
    #[serde(default)]
    pub latencies: BTreeMap<String, Latency>,
}

/// The distribution of the durations of operations of one kind.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Latency {
    /// Number of operations.
    pub count: u64,
    /// Sum of their durations.
    pub sum_ns: u64,
    /// Number of operations by upper bound of their duration, in nanoseconds; each bucket begins above the previous bound. Empty buckets
    /// are omitted.
    pub buckets: BTreeMap<u64, u64>,
}

/// A shard at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShardStats {
    /// Its number.
    pub id: usize,
    /// Number of its queue pairs.
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
    /// The peer, once the queue pair is connected.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peer: Option<PeerStats>,
    /// Its counters.
    #[serde(default)]
    pub counters: Counts,
}

/// The peer of a connection.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PeerStats {
    /// Its address.
    pub gid: String,
    /// Its queue pair number.
    pub qpn: u32,
}

/// Why no snapshot could be taken.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StatsError {
    /// No process listens any more: the owner ended without removing its socket.
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
    /// The data is not a snapshot.
    #[error("{}: this is no statistics socket ({reason})", path.display())]
    Format {
        /// The socket.
        path: PathBuf,
        /// The reason.
        reason: String,
    },
    /// The stack has another version of the statistics.
    #[error(
        "{}: the stack speaks version {theirs} of the statistics, this program {VERSION}; use programs of one build",
        path.display()
    )]
    Version {
        /// The socket.
        path: PathBuf,
        /// The stack's version.
        theirs: u32,
    },
    /// The processes of the host cannot be examined.
    #[error("{reason}")]
    Host {
        /// The reason, and what to do.
        reason: String,
    },
    /// The default directory cannot be used.
    #[error("{}: {reason}", path.display())]
    Dir {
        /// The directory.
        path: PathBuf,
        /// The reason, and what to do.
        reason: String,
    },
}

impl Snapshot {
    /// The snapshot as sent over the socket.
    pub fn to_json(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("names of counters are strings, and nothing else can fail")
    }

    /// Fetches a snapshot from the device that listens at `path`.
    ///
    /// # Errors
    /// [`StatsError`]. The data is checked; more than 64 MiB of data, or a pause of more than 2 seconds, is an error.
    pub fn fetch(path: &Path) -> Result<Self, StatsError> {
        let io = |source: std::io::Error| {
            // A file that is not a socket refuses a connection, too. Connecting follows symbolic links, so `probe` is given the target.
            let refused = source.kind() == std::io::ErrorKind::ConnectionRefused;
            let file = std::fs::canonicalize(path).ok().filter(|_| refused);
            match file.map(|file| socket_file::probe(&file)) {
                Some(Ok(Found::Stale)) => StatsError::Stale { path: path.into() },
                Some(Ok(Found::Other)) => {
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

    /// Parses a snapshot. `Err(Ok(version))`: it has another version; `Err(Err(reason))`: it is not a snapshot.
    pub(super) fn parse(text: &[u8]) -> Result<Self, Result<u32, String>> {
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

/// The directory where stacks create their sockets by default and where `roce-stat` searches for them: `$XDG_RUNTIME_DIR/roce`, or
/// `/tmp/roce-UID` if that is not set. Created on demand, accessible to this user only.
///
/// # Errors
/// [`StatsError::Dir`]: it cannot be created, or another user could put a socket into it.
pub fn runtime_dir() -> Result<PathBuf, StatsError> {
    runtime::dir().map_err(|Unusable { path, reason }| StatsError::Dir { path, reason })
}

#[cfg(test)]
mod tests {
    use super::*;

    // Goal: a socket that is bound but does not listen yet also refuses connections. While its process lives it is not reported as stale.
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
    fn a_snapshot_is_read_as_it_was_written() {
        let sent = Snapshot {
            version: VERSION,
            pid: 7,
            port: "unix:/a \"b\"\n,peer=/c".into(),
            at_ns: u64::MAX,
            links: Some(2),
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
