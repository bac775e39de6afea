//! Formats the results as tables, for a terminal and as Markdown.

use super::marks::{Line, Unit};
use super::row::Row;
use super::suite::Suite;
use apps::report;
use comfy_table::{CellAlignment, ContentArrangement, Table, presets};

/// An empty cell.
const NONE: &str = "–";

/// Columns of the table of marks. The figure beside the measured one is the bare port's, unless the title names another.
pub const COLUMNS: [&str; 7] = ["", "measured", "whole cores", "beside it", "ratio", "mark", "stretch"];

/// The cells of a line of the table of marks.
pub fn cells(line: &Line) -> [String; 7] {
    let or = |text: Option<String>| text.filter(|t| !t.is_empty()).unwrap_or_else(|| NONE.into());
    let verdict = |text: &str, reached: Option<bool>| match (text.is_empty(), reached) {
        (true, _) => NONE.to_string(),
        (false, Some(true)) => format!("{text} ✓"),
        (false, Some(false)) => format!("{text} ✗"),
        (false, None) => text.to_string(),
    };
    [
        line.title.to_string(),
        or(line
            .figure
            .map(|n| line.unit.show(n))
            .or_else(|| line.lacks.map(|what| format!("skipped: {what}")))),
        or(line.whole.map(|(n, of)| format!("{} ({of})", line.unit.show(n)))),
        or(line.raw.map(|(raw, _)| line.unit.show(raw))),
        or(line.raw.map(|(_, ratio)| ratio_of(line.unit, ratio))),
        verdict(&line.mark, line.reached),
        verdict(&line.stretch, line.stretched),
    ]
}

fn ratio_of(unit: Unit, ratio: f64) -> String {
    if unit == Unit::Ns { format!("{ratio:.2} x") } else { format!("{:.0} %", 100.0 * ratio) }
}

/// Columns of the table of alternatives.
pub const PEER_COLUMNS: [&str; 4] = ["alternative", "64 B one way, p50", "64 B messages", "bandwidth"];

/// The alternatives, one line each, after this stack's figures for comparison.
pub fn peers(rows: &[Row]) -> Vec<[String; 4]> {
    let mut names: Vec<&str> = Vec::new();
    // Alternatives that were measured in a pair appear in the line of that pair.
    let rows = || rows.iter().filter(|r| r.text("part") == "peers" || r.text("op") != "peer");
    for row in rows().filter(|r| r.text("op") == "peer") {
        if !names.contains(&row.text("peer")) {
            names.push(row.text("peer"));
        }
    }
    let show = |n: Option<f64>, unit: Unit| n.map_or(NONE.into(), |n| unit.show(n));
    let ours = |part: &str, key: &str| {
        rows().find(|r| r.text("part") == part && r.text("op") == "send").and_then(|r| r.num(key))
    };
    let mut out = Vec::new();
    if !names.is_empty() {
        out.push([
            "this stack, SEND".to_string(),
            show(ours("lat", "p50_ns"), Unit::Ns),
            show(ours("one", "msgs_per_s"), Unit::PerSecond),
            show(ours("mtu4096", "gbit_per_s"), Unit::Gbit),
        ]);
    }
    for name in names {
        let of = |mode: &str, key: &str| {
            let is = |r: &&Row| r.text("peer") == name && r.text("mode") == mode;
            rows().find(is).and_then(|r| r.num(key))
        };
        out.push([
            name.to_string(),
            show(of("lat", "p50_ns"), Unit::Ns),
            show(of("rate", "msgs_per_s"), Unit::PerSecond),
            show(of("bw", "gbit_per_s"), Unit::Gbit),
        ]);
    }
    out
}

/// The table for a terminal.
pub fn terminal(suite: &Suite) -> String {
    let mut out = format!("{}\n{}\n\n", suite.headline(), suite.machine.line());
    out.push_str(&grid(&COLUMNS, suite.lines.iter().map(cells)));
    let peers = peers(&suite.rows);
    if !peers.is_empty() {
        out.push_str("\n\n");
        out.push_str(&grid(&PEER_COLUMNS, peers));
    }
    for note in &suite.notes {
        out.push_str(&format!("\n! {note}"));
    }
    out
}

fn grid<const N: usize>(head: &[&str; N], lines: impl IntoIterator<Item = [String; N]>) -> String {
    let mut table = Table::new();
    table.load_preset(presets::NOTHING).set_content_arrangement(ContentArrangement::Disabled);
    table.set_header(head);
    for line in lines {
        table.add_row(line);
    }
    for n in 1..N.min(5) {
        if let Some(column) = table.column_mut(n) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table.trim_fmt()
}

/// The table as Markdown.
pub fn markdown(suite: &Suite) -> String {
    let mut out = format!("{}. {}.\n\n", suite.headline(), suite.machine.line());
    grid_md(
        &mut out,
        &COLUMNS,
        suite.lines.iter().filter(|l| l.figure.is_some() || l.lacks.is_some()).map(cells),
    );
    let peers = peers(&suite.rows);
    if !peers.is_empty() {
        out.push('\n');
        grid_md(&mut out, &PEER_COLUMNS, peers);
    }
    for note in &suite.notes {
        out.push_str(&format!("\nFailed or left out: {note}.\n"));
    }
    out
}

fn grid_md<const N: usize>(out: &mut String, head: &[&str; N], lines: impl IntoIterator<Item = [String; N]>) {
    out.push_str(&format!("| {} |\n|---|{}\n", head.join(" | "), "--:|".repeat(N - 1)));
    for line in lines {
        out.push_str(&format!("| {} |\n", line.join(" | ")));
    }
}

/// The cells of a row in the list of all rows.
pub fn details(row: &Row) -> [String; 7] {
    let num = |key: &str| row.num(key);
    let name = if row.text("op") == "peer" { row.text("peer") } else { row.text("op") };
    let time = |key: &str| num(key).map_or(NONE.into(), |n| report::time(n as u64));
    let part = match num("qps") {
        Some(qps) if qps > 1.0 => format!("{name}, {qps} queue pairs"),
        _ => name.to_string(),
    };
    [
        part,
        row.text("mode").to_string(),
        num("size").map_or(NONE.into(), |n| report::bytes(n as u64)),
        num("msgs_per_s").map_or(NONE.into(), |n| Unit::PerSecond.show(n)),
        num("gbit_per_s").map_or(NONE.into(), |n| Unit::Gbit.show(n)),
        time("p50_ns"),
        time("p999_ns"),
    ]
}

#[cfg(test)]
mod tests {
    use super::super::suite::tests::suite;
    use super::*;

    #[test]
    fn the_tables_have_medians_ratios_and_verdicts() {
        let text = terminal(&suite());
        for part in [
            "520 ns",
            "500 ns (1)",
            "11.5 M/s",
            "23 %",
            "≥ 10.0 M/s ✓",
            "≥ 8.00 M/s ✗",
            "200 k/s",
            "not installed",
        ] {
            assert!(text.contains(part), "{part} is missing:\n{text}");
        }
        let markdown = markdown(&suite());
        let bars = |l: &str| l.matches('|').count();
        let lines: Vec<_> = markdown.lines().filter(|l| l.starts_with('|')).collect();
        assert!(lines.iter().all(|l| bars(l) == bars(lines[0]) || bars(l) == 5), "{markdown}");
        assert!(markdown.contains("| added a packet a side | 190 ns |"), "{markdown}");
    }
}
