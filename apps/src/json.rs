//! The rows of `--json FILE`: one per measurement, null where a field does not apply.

use crate::error::{AppError, Result};
use serde::Serialize;
use std::path::{Path, PathBuf};

/// One measurement. Field names are the interface for scripts: fields may be added, but are never renamed.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Row {
    /// `send`, `write`, `read`, `fetch_add`, `cmp_swap`, `raw`, or `pingpong`; of `roce-nvmf-perf` `nvme_read`, `nvme_write`, or
    /// `nvme_mixed`.
    pub op: &'static str,
    /// `bw`, `lat` or `rate`; of `roce-nvmf-perf overhead` `cost`: the processor time of a command, of both ends together.
    pub mode: &'static str,
    /// Bytes of a message; of a frame (without FCS) where `op` is `raw`.
    pub size: u64,
    /// Path MTU in bytes.
    pub mtu: Option<u64>,
    /// Queue pairs; of `roce-nvmf-perf` the I/O queues, each of which has one.
    pub qps: Option<u64>,
    /// The port's specification, as given.
    pub port: String,
    /// Messages (or frames) a second; both directions together where `bidirectional`.
    pub msgs_per_s: Option<f64>,
    /// Gigabits of messages (or frames) a second.
    pub gbit_per_s: Option<f64>,
    /// Shortest latency. Latencies are one-way (half a round trip) for send, write and raw, and whole round
    /// trips for read and atomics: see `latency`.
    pub min_ns: Option<u64>,
    /// Median latency; where `mode` is `cost`, the median over the rounds of what a command costs.
    pub p50_ns: Option<u64>,
    /// 99th percentile of the latency.
    pub p99_ns: Option<u64>,
    /// 99.9th percentile of the latency.
    pub p999_ns: Option<u64>,
    /// Longest latency.
    pub max_ns: Option<u64>,
    /// The distribution of the latency: pairs of a quantile and the nanoseconds within which that part stays.
    pub quantiles: Option<Vec<(f64, u64)>>,
    /// `one_way` or `round_trip`.
    pub latency: Option<&'static str>,
    /// Retransmissions at either end.
    pub retries: Option<u64>,
    /// NAKs at either end.
    pub naks: Option<u64>,
    /// RNR NAKs at either end.
    pub rnr: Option<u64>,
    /// Frames discarded at either end.
    pub drops: Option<u64>,
    /// The raw figure of the same kind, frame length and run; where `mode` is `cost`, what the same bytes cost by SEND, RDMA WRITE and
    /// SEND without NVMe. Its unit is in `limit_kind`.
    pub limit: Option<f64>,
    /// The measured figure, divided by `limit`.
    pub ratio: Option<f64>,
    /// `frames_per_s` (a message's packets counted as one), `gbit_per_s`, `one_way_ns`, `round_trip_ns`, or `ns` where `mode` is `cost`.
    pub limit_kind: Option<&'static str>,
    /// Messages that the figures are computed from.
    pub messages: u64,
    /// `all`: every queue pair is kept busy; `random`: a visit at a time to one drawn at random.
    pub pattern: Option<&'static str>,
    /// Messages of a visit, where the pattern is `random`.
    pub visit: Option<u64>,
    /// Outstanding of all queue pairs together: visits, where the pattern is `random`; commands, in a row of `roce-nvmf-perf run`.
    pub in_flight: Option<u64>,
    /// Whether all queue pairs took receive requests from one shared queue.
    pub srq: bool,
    /// Whether both directions carried requests at once.
    pub bidirectional: bool,
    /// Whether the data were checked (and found correct).
    pub verified: bool,
}

/// An output file that is known to be writable before a long run starts.
#[derive(Debug)]
pub struct JsonFile {
    path: PathBuf,
}

impl JsonFile {
    /// Creates the file, holding an empty array until [`write`](Self::write).
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn create(path: &Path) -> Result<Self> {
        let file = Self { path: path.into() };
        file.write(&[])?;
        Ok(file)
    }

    /// Writes the rows, one a line, as one array.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn write(&self, rows: &[Row]) -> Result<()> {
        std::fs::write(&self.path, render(rows)).map_err(|e| {
            AppError::Setup(format!("--json {}: the file cannot be written ({e})", self.path.display()))
        })
    }
}

/// The rows as the text of a JSON array, one row a line.
pub fn render(rows: &[Row]) -> String {
    let mut out = String::from("[");
    for (n, row) in rows.iter().enumerate() {
        out.push_str(if n == 0 { "\n  " } else { ",\n  " });
        out.push_str(&serde_json::to_string(row).expect("a row has no keys that are not strings"));
    }
    out.push_str(if rows.is_empty() { "]\n" } else { "\n]\n" });
    out
}
