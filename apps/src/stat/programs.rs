//! Counters of the programs themselves, beside those of their devices: rows of labels, rates and latencies.

use super::increments::since;
use crate::report::{per_second, time};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use verbs::stats::{Counts, Latency, Row, Table};

/// A table in an interval.
#[derive(Clone, Debug, Serialize)]
pub struct TableRates {
    /// The table's name: what its rows count.
    pub name: String,
    /// The rows.
    pub rows: Vec<RowRates>,
}

/// A row in an interval.
#[derive(Clone, Debug, Serialize)]
pub struct RowRates {
    /// Labels that identify the row.
    pub labels: BTreeMap<String, String>,
    /// Increments a second, by name; absent without an earlier snapshot.
    pub per_s: Option<BTreeMap<String, f64>>,
    /// Values since the start, by name.
    pub counters: Counts,
    /// Latencies, by name.
    pub latencies: BTreeMap<String, LatencyRates>,
}

/// Number and quantiles of a latency: the quantiles are of the interval, or since the start without an earlier snapshot.
#[derive(Clone, Debug, Serialize)]
pub struct LatencyRates {
    /// Number of samples since the start.
    pub count: u64,
    /// Samples a second; absent without an earlier snapshot.
    pub per_s: Option<f64>,
    /// The median, as the upper bound of its bucket; absent without samples.
    pub p50_ns: Option<u64>,
    /// The 99th percentile, as the upper bound of its bucket; absent without samples.
    pub p99_ns: Option<u64>,
}

/// The tables of a stack, with what changed since `before`.
pub fn tables(before: Option<&[Table]>, now: &[Table], seconds: Option<f64>) -> Vec<TableRates> {
    let old = |table: &Table, row: &Row| {
        let tables = before?.iter().find(|t| t.name == table.name)?;
        tables.rows.iter().find(|r| r.labels == row.labels)
    };
    let table = |table: &Table| TableRates {
        name: table.name.clone(),
        rows: table.rows.iter().map(|row| RowRates::new(old(table, row), row, seconds)).collect(),
    };
    now.iter().map(table).collect()
}

impl RowRates {
    fn new(before: Option<&Row>, now: &Row, seconds: Option<f64>) -> Self {
        // A row that is new in the interval counts from zero.
        let nothing = Row::default();
        let old = before.unwrap_or(&nothing);
        let latency = |(name, now): (&String, &Latency)| {
            let before = old.latencies.get(name);
            (name.clone(), LatencyRates::new(before, now, seconds))
        };
        Self {
            labels: now.labels.clone(),
            per_s: seconds.map(|seconds| {
                let rate = |name: &String| since(&old.counters, &now.counters, name) as f64 / seconds;
                now.counters.keys().map(|name| (name.clone(), rate(name))).collect()
            }),
            counters: now.counters.clone(),
            latencies: now.latencies.iter().map(latency).collect(),
        }
    }
}

impl LatencyRates {
    fn new(before: Option<&Latency>, now: &Latency, seconds: Option<f64>) -> Self {
        let old = |upper: &u64| before.and_then(|b| b.buckets.get(upper)).copied().unwrap_or(0);
        let recent: BTreeMap<u64, u64> =
            now.buckets.iter().map(|(upper, n)| (*upper, n.saturating_sub(old(upper)))).collect();
        let count: u64 = recent.values().sum();
        Self {
            count: now.count,
            per_s: seconds.map(|seconds| count as f64 / seconds),
            p50_ns: quantile(&recent, count, 50),
            p99_ns: quantile(&recent, count, 99),
        }
    }
}

/// Upper bound of the bucket that contains this percentile.
fn quantile(buckets: &BTreeMap<u64, u64>, count: u64, percent: u64) -> Option<u64> {
    let wanted = (u128::from(count) * u128::from(percent)).div_ceil(100);
    let mut seen = 0u128;
    buckets.iter().find_map(|(upper, n)| {
        seen += u128::from(*n);
        (wanted > 0 && seen >= wanted).then_some(*upper)
    })
}

impl TableRates {
    /// Titles of the columns, and the number of those that hold text.
    pub fn titles(&self) -> (Vec<String>, usize) {
        let mut titles: Vec<String> = self.labels().into_iter().cloned().collect();
        let words = titles.len();
        for name in self.latencies() {
            titles.extend([format!("{name}/s"), format!("{name} p50"), format!("{name} p99")]);
        }
        titles.extend(self.counters().into_iter().map(|name| match name.strip_suffix("_bytes") {
            Some(name) => format!("{name} Gb/s"),
            None => name.clone(),
        }));
        (titles, words)
    }
    /// The cells of the rows.
    pub fn cells(&self) -> Vec<Vec<String>> {
        let (labels, latencies, counters) = (self.labels(), self.latencies(), self.counters());
        let row = |row: &RowRates| {
            let mut cells: Vec<String> =
                labels.iter().map(|name| row.labels.get(*name).cloned().unwrap_or_default()).collect();
            for name in &latencies {
                let latency = row.latencies.get(*name);
                let rate = latency.and_then(|l| l.per_s).map_or("-".into(), per_second);
                let ns = |ns: Option<u64>| ns.map_or("-".into(), time);
                let (p50, p99) = latency.map_or((None, None), |l| (l.p50_ns, l.p99_ns));
                cells.extend([rate, ns(p50), ns(p99)]);
            }
            cells.extend(counters.iter().map(|name| {
                let rate = row.per_s.as_ref().and_then(|rates| rates.get(*name));
                match (name.ends_with("_bytes"), rate) {
                    (true, Some(rate)) => format!("{:.3}", rate * 8e-9),
                    (true, None) => "-".into(),
                    (false, _) => row.counters.get(*name).copied().unwrap_or(0).to_string(),
                }
            }));
            cells
        };
        self.rows.iter().map(row).collect()
    }

    fn labels(&self) -> BTreeSet<&String> {
        self.rows.iter().flat_map(|row| row.labels.keys()).collect()
    }
    fn latencies(&self) -> BTreeSet<&String> {
        self.rows.iter().flat_map(|row| row.latencies.keys()).collect()
    }
    fn counters(&self) -> BTreeSet<&String> {
        self.rows.iter().flat_map(|row| row.counters.keys()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(reads: u64, buckets: &[(u64, u64)]) -> Table {
        let latency = Latency {
            count: buckets.iter().map(|b| b.1).sum(),
            sum_ns: 0,
            buckets: buckets.iter().copied().collect(),
        };
        let row = Row {
            labels: [("host".to_string(), "h".to_string())].into(),
            counters: [("read_bytes".to_string(), reads), ("failed".to_string(), 2)].into(),
            latencies: [("read".to_string(), latency)].into(),
        };
        Table { name: "nvmf".into(), rows: vec![row] }
    }

    #[test]
    fn rates_and_quantiles_are_those_of_the_interval() {
        let before = [table(1000, &[(1000, 50)])];
        let now = [table(1_250_001_000, &[(1000, 149), (8000, 1)])];
        let rates = tables(Some(&before), &now, Some(2.0));
        let row = &rates[0].rows[0];
        assert_eq!(row.per_s.as_ref().unwrap()["read_bytes"], 625_000_000.0);
        let latency = &row.latencies["read"];
        assert_eq!((latency.count, latency.per_s), (150, Some(50.0)));
        assert_eq!((latency.p50_ns, latency.p99_ns), (Some(1000), Some(1000)));
        let (titles, words) = rates[0].titles();
        assert_eq!((titles.join("|"), words), ("host|read/s|read p50|read p99|failed|read Gb/s".into(), 1));
        assert_eq!(rates[0].cells()[0][4..], ["2", "5.000"]);
        // No counter has changed.
        let rates = tables(Some(&now), &now, Some(2.0));
        assert_eq!(rates[0].cells()[0][2..4], ["-", "-"]);
        // Without an earlier snapshot the rates are absent.
        let first = tables(None, &now, None);
        assert_eq!(first[0].rows[0].per_s, None);
        assert_eq!(first[0].rows[0].latencies["read"].p99_ns, Some(1000));
    }

    #[test]
    fn quantiles_of_nothing_and_of_one() {
        assert_eq!(quantile(&BTreeMap::new(), 0, 99), None);
        assert_eq!(quantile(&[(7, 0)].into(), 0, 50), None);
        assert_eq!(quantile(&[(7, 1)].into(), 1, 50), Some(7));
        assert_eq!(quantile(&[(7, 99), (9, 1)].into(), 100, 99), Some(7));
        assert_eq!(quantile(&[(7, 98), (9, 2)].into(), 100, 99), Some(9));
    }
}
