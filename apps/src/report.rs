//! Turns the rows of a session into a table for a terminal.

use crate::counters::Counts;
use crate::json::Row;
use comfy_table::{Cell, CellAlignment, ContentArrangement, Table, TableComponent, presets};

/// An empty cell.
const NONE: &str = "-";

/// A column: its title, and its value in a row.
type Column = (&'static str, fn(&Row) -> Option<String>);

/// The rows as a table. Columns in which no row has a value are left out.
pub fn table(rows: &[Row]) -> String {
    let columns: [Column; 16] = [
        ("op", |r| Some(r.op.into())),
        ("mode", |r| Some(if r.bidirectional { format!("{} both ways", r.mode) } else { r.mode.into() })),
        ("size", |r| Some(bytes(r.size))),
        ("mtu", |r| r.mtu.map(|n| n.to_string())),
        ("QPs", |r| r.qps.filter(|&n| n > 1).map(|n| n.to_string())),
        ("visit", |r| r.visit.map(|n| n.to_string())),
        ("receives", |r| r.srq.then(|| "shared".into())),
        ("messages/s", |r| r.msgs_per_s.map(per_second)),
        ("Gb/s", |r| r.gbit_per_s.map(|g| format!("{g:.3}"))),
        ("latency", |r| r.latency.map(|l| l.replace('_', " "))),
        ("min", |r| r.min_ns.map(time)),
        ("p50", |r| r.p50_ns.map(time)),
        ("p99", |r| r.p99_ns.map(time)),
        ("p99.9", |r| r.p999_ns.map(time)),
        ("max", |r| r.max_ns.map(time)),
        ("of raw", of_raw),
    ];
    let used: Vec<_> = columns.iter().filter(|(_, get)| rows.iter().any(|r| get(r).is_some())).collect();
    let mut table = Table::new();
    table.load_preset(presets::NOTHING).set_content_arrangement(ContentArrangement::Disabled);
    table
        .set_style(TableComponent::HeaderLines, '─')
        .set_style(TableComponent::MiddleHeaderIntersections, '─');
    table.set_header(used.iter().map(|(name, _)| *name));
    for row in rows {
        table.add_row(used.iter().enumerate().map(|(n, (_, get))| {
            let align = if n < 2 { CellAlignment::Left } else { CellAlignment::Right };
            Cell::new(get(row).unwrap_or_else(|| NONE.into())).set_alignment(align)
        }));
    }
    table.trim_fmt()
}

/// The counters of both ends as lines.
pub fn counters(client: &Counts, server: &Counts) -> String {
    let line = |who: &str, counts: &Counts| {
        let t = counts.totals();
        let mut line =
            format!("{who}: {} retries, {} NAKs, {} RNR NAKs, {} drops", t.retries, t.naks, t.rnr, t.drops);
        let notable = counts.notable();
        if !notable.is_empty() {
            line.push_str(&format!(" ({notable})"));
        }
        line
    };
    format!("{}\n{}", line("client", client), line("server", server))
}

/// A time with three digits.
pub fn time(ns: u64) -> String {
    match ns {
        0..1_000 => format!("{ns} ns"),
        1_000..1_000_000 => format!("{} us", three(ns as f64 / 1e3)),
        1_000_000..1_000_000_000 => format!("{} ms", three(ns as f64 / 1e6)),
        _ => format!("{} s", three(ns as f64 / 1e9)),
    }
}

/// A number a second, with three digits.
pub fn per_second(n: f64) -> String {
    match n {
        n if n >= 1e6 => format!("{} M", three(n / 1e6)),
        n if n >= 1e3 => format!("{} k", three(n / 1e3)),
        n => three(n),
    }
}

/// A size in bytes, with a binary unit where it is a whole number of such units.
pub fn bytes(n: u64) -> String {
    match n {
        n if n >= 1 << 20 && n % (1 << 20) == 0 => format!("{} MiB", n >> 20),
        n if n >= 1 << 10 && n % (1 << 10) == 0 => format!("{} KiB", n >> 10),
        n => format!("{n} B"),
    }
}

/// The median of the finite numbers: for an even count, the mean of the two in the middle.
pub fn median(mut all: Vec<f64>) -> Option<f64> {
    all.retain(|n| n.is_finite());
    all.sort_by(f64::total_cmp);
    let mid = all.len() / 2;
    match all.len() {
        0 => None,
        n if n % 2 == 1 => Some(all[mid]),
        _ => Some((all[mid - 1] + all[mid]) / 2.0),
    }
}

fn three(n: f64) -> String {
    if n >= 100.0 {
        format!("{n:.0}")
    } else if n >= 10.0 {
        format!("{n:.1}")
    } else {
        format!("{n:.2}")
    }
}

fn of_raw(row: &Row) -> Option<String> {
    Some(format!("{} of {}", ratio(row.ratio?), limit(row)?))
}

fn ratio(ratio: f64) -> String {
    if ratio < 2.0 { format!("{:.0} %", ratio * 100.0) } else { format!("{} x", three(ratio)) }
}

fn limit(row: &Row) -> Option<String> {
    let limit = row.limit?;
    Some(match row.limit_kind? {
        "gbit_per_s" => format!("{} Gb/s", three(limit)),
        "frames_per_s" => format!("{}/s", per_second(limit)),
        _ => time(limit as u64),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_short() {
        for (ns, text) in [(0, "0 ns"), (999, "999 ns"), (1_234, "1.23 us"), (56_780, "56.8 us")] {
            assert_eq!(time(ns), text);
        }
        assert_eq!(time(5_000_000), "5.00 ms");
        assert_eq!(per_second(5_123_456.0), "5.12 M");
        assert_eq!(per_second(12.0), "12.0");
        assert_eq!((bytes(2), bytes(65536), bytes(8 << 20)), ("2 B".into(), "64 KiB".into(), "8 MiB".into()));
    }

    #[test]
    fn columns_without_values_are_left_out() {
        let bw = Row { op: "write", mode: "bw", size: 4096, gbit_per_s: Some(61.5), ..Row::default() };
        let text = table(core::slice::from_ref(&bw));
        assert!(text.contains("61.500") && !text.contains("p50") && !text.contains("of raw"), "{text}");
        let lat = Row { op: "send", mode: "lat", size: 64, p50_ns: Some(890), ..Row::default() };
        let text = table(&[bw, lat]);
        assert!(text.contains("890 ns") && text.contains('-'), "{text}");
    }
}
