//! A snapshot as OpenMetrics text: families of metrics, with one row per shard, per discard reason, or per row of a program's
//! own table.

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, NoLabelSet, text::encode};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Registry;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use verbs::Discard;
use verbs::stats::{Latency, Snapshot, Table};

/// Labels of a row.
type Labels = Vec<(String, String)>;

/// Upper bounds of the buckets of latencies, in nanoseconds.
const BOUNDS_NS: [u64; 22] = [
    1_000,
    2_000,
    5_000,
    10_000,
    20_000,
    50_000,
    100_000,
    200_000,
    500_000,
    1_000_000,
    2_000_000,
    5_000_000,
    10_000_000,
    20_000_000,
    50_000_000,
    100_000_000,
    200_000_000,
    500_000_000,
    1_000_000_000,
    2_000_000_000,
    5_000_000_000,
    10_000_000_000,
];

/// The snapshot as OpenMetrics text.
///
/// # Errors
/// None in practice: writing to memory does not fail.
pub fn text(snapshot: Snapshot) -> Result<String, fmt::Error> {
    let mut registry = Registry::with_prefix("roce");
    registry.register_collector(Box::new(Families(snapshot)));
    let mut text = String::new();
    encode(&mut text, &registry)?;
    Ok(text)
}

#[derive(Debug)]
struct Families(Snapshot);

impl Collector for Families {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let Self(snapshot) = self;
        let info: Labels = labels([
            ("program", snapshot.program.clone()),
            ("port", snapshot.port.clone()),
            ("mac", snapshot.mac.clone()),
        ]);
        encoder
            .encode_descriptor("device", "The program and its port", None, MetricType::Info)?
            .encode_info(&info)?;
        let up = i64::from(snapshot.link_up);
        encoder
            .encode_descriptor("link_up", "Whether the link of the port is up", None, MetricType::Gauge)?
            .encode_gauge(&up)?;
        if let Some(links) = snapshot.links {
            let links = i64::try_from(links).unwrap_or(i64::MAX);
            encoder
                .encode_descriptor("links", "Links to other processes of the host", None, MetricType::Gauge)?
                .encode_gauge(&links)?;
        }
        for (name, value) in &snapshot.port_counters {
            let name = format!("port_{name}");
            encoder
                .encode_descriptor(&name, "Of the port", None, MetricType::Counter)?
                .encode_counter::<NoLabelSet, _, u64>(value, None)?;
        }
        self.shards(&mut encoder)?;
        snapshot.tables.iter().try_for_each(|table| of_table(&mut encoder, table))
    }
}

impl Families {
    fn shards(&self, encoder: &mut DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let shards = &self.0.shards;
        let of = |id: usize| labels([("shard", id.to_string())]);
        let mut qps = encoder.encode_descriptor("queue_pairs", "Queue pairs", None, MetricType::Gauge)?;
        for shard in shards {
            let count = i64::try_from(shard.qps).unwrap_or(i64::MAX);
            qps.encode_family(&of(shard.id))?.encode_gauge(&count)?;
        }
        let reasons: BTreeSet<&str> = Discard::ALL.iter().map(|reason| reason.name()).collect();
        let names: BTreeSet<&str> =
            shards.iter().flat_map(|s| s.counters.keys().map(String::as_str)).collect();
        for name in names.difference(&reasons) {
            let mut family = encoder.encode_descriptor(name, "Of a shard", None, MetricType::Counter)?;
            for shard in shards {
                let value = shard.counters.get(*name).copied().unwrap_or(0);
                family.encode_family(&of(shard.id))?.encode_counter::<NoLabelSet, _, u64>(&value, None)?;
            }
        }
        let help = "Frames and messages that were dropped";
        let mut family = encoder.encode_descriptor("discards", help, None, MetricType::Counter)?;
        for shard in shards {
            for (name, value) in shard.counters.iter().filter(|(name, _)| reasons.contains(name.as_str())) {
                let mut labels = of(shard.id);
                labels.push(("reason".into(), name.clone()));
                family.encode_family(&labels)?.encode_counter::<NoLabelSet, _, u64>(value, None)?;
            }
        }
        Ok(())
    }
}

/// A program's own table: one family for each counter and each latency.
fn of_table(encoder: &mut DescriptorEncoder<'_>, table: &Table) -> Result<(), fmt::Error> {
    let rows: Vec<(Labels, _)> =
        table.rows.iter().map(|row| (row.labels.clone().into_iter().collect(), row)).collect();
    let counters: BTreeSet<&String> = table.rows.iter().flat_map(|row| row.counters.keys()).collect();
    for counter in counters {
        let name = format!("{}_{counter}", table.name);
        let mut family = encoder.encode_descriptor(&name, "Of the program", None, MetricType::Counter)?;
        for (labels, row) in &rows {
            let value = row.counters.get(counter).copied().unwrap_or(0);
            family.encode_family(labels)?.encode_counter::<NoLabelSet, _, u64>(&value, None)?;
        }
    }
    let latencies: BTreeSet<&String> = table.rows.iter().flat_map(|row| row.latencies.keys()).collect();
    for latency in latencies {
        let name = format!("{}_{latency}_latency_seconds", table.name);
        let mut family = encoder.encode_descriptor(&name, "Of the program", None, MetricType::Histogram)?;
        for (labels, row) in &rows {
            let latency = row.latencies.get(latency).cloned().unwrap_or_default();
            let sum = latency.sum_ns as f64 / 1e9;
            let buckets = buckets(&latency);
            family.encode_family(labels)?.encode_histogram::<NoLabelSet>(
                sum,
                latency.count,
                &buckets,
                None,
            )?;
        }
    }
    Ok(())
}

/// The upper bound of each bucket, in seconds, and its count.
fn buckets(latency: &Latency) -> Vec<(f64, u64)> {
    let mut counts: BTreeMap<usize, u64> = BTreeMap::new();
    for (&upper, &count) in &latency.buckets {
        let bucket = BOUNDS_NS.partition_point(|&bound| bound < upper);
        *counts.entry(bucket).or_default() += count;
    }
    let bounds = BOUNDS_NS.iter().map(|&ns| ns as f64 / 1e9).chain([f64::INFINITY]);
    bounds.enumerate().map(|(n, bound)| (bound, counts.get(&n).copied().unwrap_or(0))).collect()
}

fn labels<const N: usize>(pairs: [(&str, String); N]) -> Labels {
    pairs.into_iter().map(|(name, value)| (name.to_string(), value)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use verbs::stats::{Row, ShardStats};

    #[test]
    fn a_snapshot_is_text_of_openmetrics() {
        let shard = |id: usize, frames: u64| ShardStats {
            id,
            qps: id + 1,
            counters: [("rx_frames".to_string(), frames), ("bad_icrc".to_string(), 3)].into(),
            ..ShardStats::default()
        };
        let row = Row {
            labels: [("host".to_string(), "nqn \"x\"\n\\".to_string())].into(),
            counters: [("read_bytes".to_string(), 512)].into(),
            latencies: [(
                "read".to_string(),
                Latency {
                    count: 3,
                    sum_ns: 2_000_003_000,
                    buckets: [(999, 1), (2_000, 1), (1 << 40, 1)].into(),
                },
            )]
            .into(),
        };
        let snapshot = Snapshot {
            program: "p".into(),
            link_up: true,
            port_counters: [("rx_frames".to_string(), 9)].into(),
            links: Some(2),
            shards: vec![shard(0, 7), shard(1, 8)],
            tables: vec![Table { name: "nvmf".into(), rows: vec![row] }],
            ..Snapshot::default()
        };
        let text = text(snapshot).unwrap();
        for line in [
            "roce_link_up 1",
            "roce_links 2",
            "roce_port_rx_frames_total 9",
            "roce_queue_pairs{shard=\"1\"} 2",
            "roce_rx_frames_total{shard=\"0\"} 7",
            "roce_rx_frames_total{shard=\"1\"} 8",
            "roce_discards_total{shard=\"0\",reason=\"bad_icrc\"} 3",
            "roce_nvmf_read_bytes_total{host=\"nqn \\\"x\\\"\\n\\\\\"} 512",
            "roce_nvmf_read_latency_seconds_count{host=\"nqn \\\"x\\\"\\n\\\\\"} 3",
        ] {
            assert!(text.lines().any(|l| l == line), "{line} is not in\n{text}");
        }
        let bucket = |le: &str| {
            let line = text.lines().find(|l| l.contains("_bucket") && l.contains(&format!("le=\"{le}\"")));
            line.unwrap_or_else(|| panic!("{le} is not in\n{text}")).rsplit(' ').next().unwrap().to_string()
        };
        assert_eq!(
            [bucket("0.000001"), bucket("0.000002"), bucket("10.0"), bucket("+Inf")],
            ["1", "2", "2", "3"]
        );
        assert!(text.ends_with("# EOF\n"));
        // Each family is declared once.
        let types: Vec<&str> = text.lines().filter(|l| l.starts_with("# TYPE")).collect();
        assert_eq!(types.len(), types.iter().collect::<BTreeSet<_>>().len(), "{types:?}");
    }
}
