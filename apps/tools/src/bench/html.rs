//! Renders the results as a web page: tables and charts in one file without references to others.

use super::marks::Unit;
use super::plan::{RAW_SIZES, SIZES};
use super::row::Row;
use super::suite::Suite;
use super::svg::{self, Axis, Bar, Scale, Series, escape};
use super::table::{self, cells};
use apps::report;
use std::fmt::Write as _;

/// The operations in the order of their colours; colour 0 is the bare port.
const OPS: [(&str, &str, usize); 5] = [
    ("raw", "bare frames", 0),
    ("send", "SEND", 1),
    ("write", "WRITE", 2),
    ("read", "READ", 3),
    ("fetch_add", "FETCH&ADD", 4),
];
/// The colour of alternatives.
const PEER: usize = 5;

/// Renders the page.
pub fn page(suite: &Suite) -> String {
    let mut out = String::from(HEAD);
    let _ = writeln!(
        out,
        "<h1>Userspace RoCEv2: speed</h1>\n<p class=\"lead\">{}.</p>",
        escape(&suite.headline())
    );
    out.push_str("<dl>");
    for (name, text) in &suite.machine.facts {
        let _ = write!(out, "<div><dt>{name}</dt><dd>{}</dd></div>", escape(text));
    }
    out.push_str("</dl>\n");

    section(&mut out, "Against the marks", MARKS_TEXT);
    head(&mut out, &table::COLUMNS);
    for line in suite.lines.iter().filter(|l| l.figure.is_some()) {
        let class = match line.reached {
            Some(true) => " class=\"good\"",
            Some(false) => " class=\"bad\"",
            None => "",
        };
        row(&mut out, class, &cells(line));
    }
    out.push_str("</table></div>\n");

    let rates = rate_bars(&suite.rows);
    section(&mut out, "Small messages a second", "64 bytes (FETCH&amp;ADD: 8), one core a side.");
    figure(&mut out, &svg::bars("64-byte messages a second", &rates));

    section(&mut out, "Latency", LATENCY_TEXT);
    figure(&mut out, &latency_chart(&suite.rows));

    let sizes = size_series(&suite.rows);
    if !sizes.is_empty() {
        section(&mut out, "Bandwidth by size", SIZES_TEXT);
        figure(&mut out, &size_chart(&sizes));
    }

    let peers = table::peers(&suite.rows);
    if !peers.is_empty() {
        section(&mut out, "Beside the alternatives", PEERS_TEXT);
        head(&mut out, &table::PEER_COLUMNS);
        for (n, line) in peers.iter().enumerate() {
            row(&mut out, if n == 0 { " class=\"us\"" } else { "" }, line);
        }
        out.push_str("</table></div>\n");
    }
    for note in &suite.notes {
        let _ = writeln!(out, "<p class=\"note\">Failed or left out: {}.</p>", escape(note));
    }

    section(&mut out, "Moments", MOMENTS_TEXT);
    head(&mut out, &["", "quick", "slow", "neither"]);
    for (title, tally) in suite.moments() {
        let counts = [tally.quick, tally.slow, tally.mixed].map(|n| n.to_string());
        let [quick, slow, mixed] = counts;
        row(&mut out, "", &[title.to_string(), quick, slow, mixed]);
    }
    out.push_str("</table></div>\n");

    out.push_str("<details><summary>Every figure</summary><div class=\"scroll\"><table>\n");
    out.push_str("<tr><th></th><th>mode</th><th>size</th><th>messages</th><th>bandwidth</th><th>p50</th><th>p99.9</th></tr>\n");
    for r in &suite.rows {
        row(&mut out, "", &table::details(r));
    }
    out.push_str("</table></div></details>\n</main></body></html>\n");
    out
}

fn section(out: &mut String, title: &str, text: &str) {
    let _ = writeln!(out, "<h2>{title}</h2>\n<p>{text}</p>");
}

fn figure(out: &mut String, svg: &str) {
    let _ = writeln!(out, "<figure>{svg}</figure>");
}

fn head(out: &mut String, columns: &[&str]) {
    out.push_str("<div class=\"scroll\"><table>\n<tr>");
    for column in columns {
        let _ = write!(out, "<th>{}</th>", escape(column));
    }
    out.push_str("</tr>\n");
}

fn row(out: &mut String, class: &str, cells: &[String]) {
    let _ = write!(out, "<tr{class}>");
    for cell in cells {
        let _ = write!(out, "<td>{}</td>", escape(cell));
    }
    out.push_str("</tr>\n");
}

/// Message rates: this stack's by operation, and those of the alternatives.
fn rate_bars(rows: &[Row]) -> Vec<Bar> {
    let mut bars = Vec::new();
    for (part, suffix) in [("many", "16 queue pairs"), ("one", "one queue pair")] {
        for (op, name, colour) in &OPS[1..] {
            let Some(row) = rows.iter().find(|r| r.text("part") == part && r.text("op") == *op) else {
                continue;
            };
            let Some(rate) = row.num("msgs_per_s") else { continue };
            bars.push((format!("{name}, {suffix}"), rate, Unit::PerSecond.show(rate), *colour));
        }
    }
    for row in rows.iter().filter(|r| r.text("op") == "peer" && r.text("mode") == "rate") {
        if let Some(rate) = row.num("msgs_per_s") {
            bars.push((row.text("peer").to_string(), rate, Unit::PerSecond.show(rate), PEER));
        }
    }
    bars
}

/// The position of a quantile on an axis on which each further nine (0.9, 0.99, 0.999) takes the same space.
fn nines(quantile: f64) -> f64 {
    -(1.0 - quantile).max(1e-9).log10()
}

fn latency_chart(rows: &[Row]) -> String {
    let mut all: Vec<Series> = Vec::new();
    for (op, name, colour) in OPS {
        let is = |r: &&Row| r.text("op") == op && r.text("part") == "lat" && r.text("mode") == "lat";
        let Some(row) = rows.iter().find(is) else { continue };
        let points: Vec<_> = row.quantiles().into_iter().map(|(q, ns)| (nines(q), ns)).collect();
        let trip = if row.text("latency") == "round_trip" { " ⇄" } else { "" };
        if !points.is_empty() {
            all.push(Series { name: format!("{name}{trip}"), colour, points });
        }
    }
    let last = all.iter().flat_map(|s| s.points.last()).map(|p| p.0).fold(2.0, f64::max);
    let ticks =
        [(0.0, "0 %"), (0.5, "50 %"), (0.9, "90 %"), (0.99, "99 %"), (0.999, "99.9 %"), (0.9999, "99.99 %")];
    let x = Axis {
        label: "part of the messages".into(),
        scale: Scale::Linear,
        range: (0.0, last),
        ticks: ticks.map(|(q, t)| (nines(q), t.into())).into_iter().filter(|t| t.0 <= last + 0.01).collect(),
    };
    let values = all.iter().flat_map(|s| s.points.iter().map(|p| p.1));
    let y = Axis::log("latency", values, short_time);
    let percent = |x: f64| 100.0 * (1.0 - 10f64.powf(-x));
    svg::lines("Latency distributions", &x, &y, &all, |x, ns| {
        format!("{:.3} % within {}", percent(x), report::time(ns as u64))
    })
}

fn short_time(ns: f64) -> String {
    if ns < 1e3 {
        format!("{ns} ns")
    } else if ns < 1e6 {
        format!("{} µs", ns / 1e3)
    } else {
        format!("{} ms", ns / 1e6)
    }
}

/// Bandwidth by size: of bare frames by frame length, of operations by message size.
fn size_series(rows: &[Row]) -> Vec<Series> {
    let mut all = Vec::new();
    for (op, name, colour) in OPS {
        let part = if op == "raw" { RAW_SIZES } else { SIZES };
        let of = rows.iter().filter(|r| r.text("part") == part && r.text("op") == op);
        let mut points: Vec<_> = of.filter_map(|r| Some((r.num("size")?, r.num("gbit_per_s")?))).collect();
        points.sort_by(|a, b| a.0.total_cmp(&b.0));
        if !points.is_empty() {
            all.push(Series { name: name.into(), colour, points });
        }
    }
    all
}

fn size_chart(all: &[Series]) -> String {
    let points = || all.iter().flat_map(|s| s.points.iter());
    let (min, max) = points().fold((f64::INFINITY, 0.0f64), |(a, b), p| (a.min(p.0), b.max(p.0)));
    let powers = (0..24).step_by(2).map(|n| f64::from(1u32 << n)).filter(|v| (min..=max).contains(v));
    let ticks = powers.map(|v| (v, report::bytes(v as u64))).collect();
    let x = Axis { label: "size of a message or frame".into(), scale: Scale::Log, range: (min, max), ticks };
    let y = Axis::from_zero("Gb/s", points().map(|p| p.1).fold(0.0, f64::max), |v| format!("{v}"));
    svg::lines("Bandwidth by size", &x, &y, all, |size, gbit| {
        format!("{} at {}", Unit::Gbit.show(gbit), report::bytes(size as u64))
    })
}

const MARKS_TEXT: &str = "\
One core a side, shared memory (memif), ICRC made and checked, all reliability on. <em>Bare port</em> is the same \
port without RDMA, carrying frames of the same length in the same moment. <em>Whole cores</em>: the same medians of those \
measurements only for which the cores gave at least 90 % of the most they gave in all runs, and how many these were.";
const LATENCY_TEXT: &str = "\
How many messages of 64 bytes arrive within which time: the further right, the rarer the wait. One way; READ and \
FETCH&amp;ADD (⇄) there and back.";
const SIZES_TEXT: &str = "\
One queue pair, the largest path MTU. Bare frames end at the longest frame of the port.";
const MOMENTS_TEXT: &str = "\
How often each was measured while the machine was quick (a bare 128-byte frame took at most 200 ns before and after), \
slow (more, both times), or changed in between. The figures are those of one kind.";
const PEERS_TEXT: &str = "\
What else moves messages between two processes of this machine, in moments of the same kind. UCX over shared memory copies from \
one process to the other without packets: it is the floor, not a network.";

const HEAD: &str = "<!doctype html>
<html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">
<title>Userspace RoCEv2: speed</title>
<style>
:root{color-scheme:light dark;--bg:#fbfbf9;--fg:#1d2126;--dim:#626a74;--line:#dddfe2;--card:#fff;--good:#157a4b;--bad:#b3402e;
--s0:#8b929b;--s1:#2563c9;--s2:#c2620b;--s3:#11866b;--s4:#a23b86;--s5:#6f7780}
@media(prefers-color-scheme:dark){:root{--bg:#14171b;--fg:#e6e8ea;--dim:#98a1ab;--line:#2d333a;--card:#1a1e23;--good:#57c48e;
--bad:#f0836f;--s0:#7d8590;--s1:#6ea8ff;--s2:#f2a154;--s3:#48c9a4;--s4:#e08ac8;--s5:#9aa3ad}}
*{box-sizing:border-box}body{margin:0;background:var(--bg);color:var(--fg);font:16px/1.55 system-ui,-apple-system,\"Segoe UI\",sans-serif}
main{max-width:860px;margin:0 auto;padding:40px 20px 80px}h1{font-size:2rem;line-height:1.2;margin:0 0 .3em}
h2{font-size:1.25rem;margin:2.2em 0 .2em}p{margin:.2em 0 .9em;color:var(--dim)}.lead{font-size:1.1rem;color:var(--fg)}
.note{color:var(--bad)}dl{display:flex;flex-wrap:wrap;gap:.3em 2em;margin:1em 0 0;font-size:.9rem}dl div{display:flex;gap:.5em}
dt{color:var(--dim)}dd{margin:0}.scroll{overflow-x:auto}
table{border-collapse:collapse;width:100%;font-size:.92rem;font-variant-numeric:tabular-nums}
th,td{padding:.4em .7em;text-align:right;border-bottom:1px solid var(--line);white-space:nowrap}
th{font-weight:600;color:var(--dim)}th:first-child,td:first-child{text-align:left;padding-left:0}
.good td:nth-child(5){color:var(--good)}.bad td:nth-child(5){color:var(--bad)}.us td{font-weight:600}
figure{margin:0;padding:14px 10px;background:var(--card);border:1px solid var(--line);border-radius:10px}svg{display:block;width:100%;height:auto}
svg text{font:12px system-ui,-apple-system,\"Segoe UI\",sans-serif;fill:var(--fg)}svg .tick,svg .label{fill:var(--dim)}svg .name{font-weight:600}
.grid{stroke:var(--line)}.line{fill:none;stroke-width:2;stroke-linejoin:round}.dot{stroke:none}
.line.s0{stroke:var(--s0)}.line.s1{stroke:var(--s1)}.line.s2{stroke:var(--s2)}.line.s3{stroke:var(--s3)}.line.s4{stroke:var(--s4)}.line.s5{stroke:var(--s5)}
.dot.s0,.bar.s0{fill:var(--s0)}.dot.s1,.bar.s1{fill:var(--s1)}.dot.s2,.bar.s2{fill:var(--s2)}.dot.s3,.bar.s3{fill:var(--s3)}.dot.s4,.bar.s4{fill:var(--s4)}.dot.s5,.bar.s5{fill:var(--s5)}
svg .t0{fill:var(--s0)}svg .t1{fill:var(--s1)}svg .t2{fill:var(--s2)}svg .t3{fill:var(--s3)}svg .t4{fill:var(--s4)}svg .t5{fill:var(--s5)}
details{margin-top:2.5em}summary{cursor:pointer;font-weight:600;margin-bottom:.6em}
</style></head><body><main>
";

#[cfg(test)]
mod tests {
    use super::super::suite::tests::suite;
    use super::*;

    #[test]
    fn the_page_stands_alone_and_is_whole() {
        let page = page(&suite());
        for outside in ["http://", "https://", "<script", "<link", "url("] {
            assert!(!page.contains(outside), "{outside}");
        }
        for tag in
            ["main", "table", "figure", "svg", "tr", "td", "dl", "details", "text", "style", "body", "html"]
        {
            let (open, close) = (
                page.matches(&format!("<{tag}>")).count() + page.matches(&format!("<{tag} ")).count(),
                page.matches(&format!("</{tag}>")).count(),
            );
            assert!(open == close && open > 0, "{tag}: {open} opened, {close} closed");
        }
        assert_eq!(page.matches("<svg").count(), 3, "rates, latency, sizes");
        assert!(!page.contains("NaN") && !page.contains("inf\""), "no point without a place");
    }

    #[test]
    fn what_was_not_measured_leaves_its_chart_out() {
        let mut suite = suite();
        suite.rows.retain(|r| r.text("part") != "sizes" && r.text("part") != "raw-sizes");
        assert_eq!(page(&suite).matches("<svg").count(), 2);
        suite.rows.clear();
        assert!(!page(&suite).contains("NaN"));
    }

    #[test]
    fn each_nine_takes_as_much_room() {
        assert_eq!((nines(0.0), nines(0.9).round(), nines(0.999).round()), (0.0, 1.0, 3.0));
        assert!(nines(1.0).is_finite());
    }
}
