//! The table of marks: the goals of this stack, and a run's figures beside them.

use super::row::Row;
use super::state::Kind;
use apps::report;

/// The unit of a figure, and which direction is better.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Messages a second: more is better.
    PerSecond,
    /// Gigabits of messages a second: more is better.
    Gbit,
    /// Nanoseconds: less is better.
    Ns,
    /// A fraction of 1: more is better.
    Part,
    /// A fraction of 1 that is spent: less is better.
    Cost,
    /// Bytes: less is better.
    Bytes,
    /// Instructions: less is better.
    Instructions,
}

impl Unit {
    /// A figure as a text.
    pub fn show(self, n: f64) -> String {
        match self {
            Self::PerSecond => format!("{}/s", report::per_second(n)),
            Self::Gbit if n < 10.0 => format!("{n:.2} Gb/s"),
            Self::Gbit => format!("{n:.1} Gb/s"),
            // A difference may be negative if the machine's state changed between its two measurements.
            Self::Ns if n < 0.0 => format!("-{}", report::time((-n).round() as u64)),
            Self::Ns => report::time(n.round() as u64),
            Self::Cost if n < 0.095 => format!("{:.1} %", 100.0 * n),
            Self::Part | Self::Cost => format!("{:.0} %", 100.0 * n),
            Self::Bytes => format!("{:.1} MiB", n / f64::from(1 << 20)),
            Self::Instructions => format!("{n:.0}"),
        }
    }
    const fn is_less_better(self) -> bool {
        matches!(self, Self::Ns | Self::Cost | Self::Bytes | Self::Instructions)
    }
    /// Whether `figure` is at least as good as `mark`.
    pub fn reaches(self, figure: f64, mark: f64) -> bool {
        if self.is_less_better() { figure <= mark } else { figure >= mark }
    }
    /// A mark as a text; empty if no mark exists.
    fn bound(self, n: f64) -> String {
        if n == 0.0 {
            return String::new();
        }
        format!("{} {}", if self.is_less_better() { "≤" } else { "≥" }, self.show(n))
    }
}

/// The source of a figure: a part's row, and a field of it.
#[derive(Clone, Copy, Debug)]
enum Of {
    Rate,
    Gbit,
    P50,
    P999,
    /// (p50 - p50 of raw frames) / 2.
    Added,
    /// p50 - limit.
    Above,
    /// The rate or the latency, relative to that of the measurement's first part.
    Share,
    /// The figure, relative to the figure of the measurement beside it.
    Ratio,
    /// This field.
    Field(&'static str),
}

/// The mark that applies when the machine is slow.
#[derive(Clone, Copy, Debug)]
enum Slow {
    Nothing,
    /// This fraction of the bare port's figure.
    OfRaw(f64),
    /// Nanoseconds above the bare port's p50.
    AboveRaw(f64),
    /// The same mark as when the machine is quick.
    Same,
}

struct Mark {
    title: &'static str,
    part: &'static str,
    op: &'static str,
    of: Of,
    unit: Unit,
    mark: f64,
    stretch: f64,
    slow: Slow,
}

const fn mark(
    title: &'static str,
    (part, op): (&'static str, &'static str),
    (of, unit): (Of, Unit),
    (mark, stretch): (f64, f64),
    slow: Slow,
) -> Mark {
    Mark { title, part, op, of, unit, mark, stretch, slow }
}

const RATE: (Of, Unit) = (Of::Rate, Unit::PerSecond);
const GBIT: (Of, Unit) = (Of::Gbit, Unit::Gbit);
const RATIO: (Of, Unit) = (Of::Ratio, Unit::Part);
const COST: (Of, Unit) = (Of::Ratio, Unit::Cost);
const PSS: (Of, Unit) = (Of::Field("pss_bytes"), Unit::Bytes);
/// Bytes in a MiB, and nanoseconds in a millisecond.
const MIB: f64 = 1_048_576.0;
const MS: f64 = 1e6;

#[rustfmt::skip]
const MARKS: [Mark; 61] = [
    mark("SEND 64 B, 16 queue pairs",      ("many", "send"),          RATE, (10e6, 15e6), Slow::OfRaw(0.2)),
    mark("WRITE 64 B, 16 queue pairs",     ("many", "write"),         RATE, (10e6, 15e6), Slow::OfRaw(0.2)),
    mark("SEND 64 B, one queue pair",      ("one", "send"),           RATE, (8e6, 12e6),  Slow::OfRaw(0.2)),
    mark("WRITE 64 B, one queue pair",     ("one", "write"),          RATE, (8e6, 12e6),  Slow::OfRaw(0.2)),
    mark("READ 64 B, 16 queue pairs, 32 deep",      ("many", "read"),          RATE, (5e6, 8e6),   Slow::Nothing),
    mark("FETCH&ADD 8 B, 16 queue pairs, 32 deep",  ("many", "fetch_add"),     RATE, (4e6, 8e6),   Slow::Nothing),
    mark("WRITE 64 KiB, MTU 4096",         ("mtu4096", "write"),      GBIT, (100.0, 150.0), Slow::OfRaw(0.3)),
    mark("WRITE 64 KiB, MTU 1024",         ("mtu1024", "write"),      GBIT, (50.0, 80.0),   Slow::Nothing),
    mark("READ 64 KiB, MTU 4096",          ("mtu4096", "read"),       GBIT, (90.0, 140.0),  Slow::OfRaw(0.3)),
    mark("SEND 64 KiB, MTU 4096",          ("mtu4096", "send"),       GBIT, (90.0, 140.0),  Slow::OfRaw(0.3)),
    mark("SEND 64 B one way, p50",         ("lat", "send"), (Of::P50, Unit::Ns),  (600.0, 400.0),   Slow::AboveRaw(450.0)),
    mark("SEND 64 B one way, p99.9",       ("lat", "send"), (Of::P999, Unit::Ns), (2000.0, 1000.0), Slow::Nothing),
    mark("added a packet a side",          ("lat", "send"), (Of::Added, Unit::Ns), (250.0, 150.0),  Slow::Nothing),
    mark("SEND 64 B, 16 queue pairs, through ethdev",  ("ethdev", "send"),  RATE, (0.0, 0.0), Slow::Nothing),
    mark("WRITE 64 KiB, MTU 4096, through ethdev",     ("ethdev", "write"), GBIT, (0.0, 0.0), Slow::Nothing),
    mark("WRITE 64 KiB over UDP sockets, beside iperf3's TCP stream",  ("udp-bw", "write"),    GBIT, (0.0, 0.0), Slow::Nothing),
    mark("the same, in parts of that stream",                          ("udp-bw", "write"),    RATIO, (0.9, 1.2), Slow::Same),
    mark("WRITE 64 KiB over UDP between hosts, MTU 1500, in parts of iperf3's stream", ("hosts1500", "write"), RATIO, (0.35, 0.6), Slow::Same),
    mark("WRITE 64 KiB over UDP between hosts, MTU 9000, in parts of iperf3's stream", ("hosts9000", "write"), RATIO, (0.6, 1.0), Slow::Same),
    mark("SEND 64 B over UDP sockets, beside UCX over TCP",            ("udp-rate", "send"),   RATE, (0.0, 0.0), Slow::Nothing),
    mark("SEND 64 B over UDP sockets, p50, beside UCX over TCP",       ("udp-lat", "send"),    (Of::P50, Unit::Ns), (0.0, 0.0), Slow::Nothing),
    mark("UCX 64 KiB on this stack, beside UCX over TCP",              ("ucx-bw", "program"),  GBIT, (0.0, 0.0), Slow::Nothing),
    mark("UCX 8 B on this stack, p50, beside UCX over TCP",            ("ucx-lat", "program"), (Of::P50, Unit::Ns), (0.0, 0.0), Slow::Nothing),
    mark("ib_write_bw 1 MiB over UDP sockets, CPU time of both ends, in parts of iperf3's", ("cpu-udp-write", "program"), COST, (1.2, 0.7), Slow::Same),
    mark("ib_read_bw 1 MiB over UDP sockets, CPU time of both ends, in parts of iperf3's",  ("cpu-udp-read", "program"),  COST, (1.2, 0.7), Slow::Same),
    mark("2 busy loops: ib_write_bw 64 KiB, in parts of iperf3's stream",      ("busy2-memif-write", "program"), RATIO, (0.9, 1.5), Slow::Same),
    mark("2 busy loops: ib_read_bw 1 MiB, in parts of iperf3's stream",        ("busy2-memif-read", "program"),  RATIO, (0.9, 1.5), Slow::Same),
    mark("2 busy loops: ib_write_bw 64 KiB over UDP sockets, in parts of that", ("busy2-udp-write", "program"),  RATIO, (0.5, 1.0), Slow::Same),
    mark("2 busy loops: ib_read_bw 1 MiB over UDP sockets, in parts of that",  ("busy2-udp-read", "program"),    RATIO, (0.5, 1.0), Slow::Same),
    mark("2 busy loops: ib_send_lat 64 B, mean, in parts of a TCP ping-pong that blocks", ("busy2-lat", "program"), COST, (1.0, 0.5), Slow::Same),
    mark("8 busy loops: ib_write_bw 64 KiB, in parts of iperf3's stream",      ("busy8-memif-write", "program"), RATIO, (0.5, 0.8), Slow::Same),
    mark("8 busy loops: ib_read_bw 1 MiB, in parts of iperf3's stream",        ("busy8-memif-read", "program"),  RATIO, (0.5, 0.8), Slow::Same),
    mark("8 busy loops: ib_write_bw 64 KiB over UDP sockets, in parts of that", ("busy8-udp-write", "program"),  RATIO, (0.25, 0.5), Slow::Same),
    mark("8 busy loops: ib_read_bw 1 MiB over UDP sockets, in parts of that",  ("busy8-udp-read", "program"),    RATIO, (0.25, 0.5), Slow::Same),
    mark("8 busy loops: ib_send_lat 64 B, mean, in parts of a TCP ping-pong that blocks", ("busy8-lat", "program"), COST, (0.0, 0.0), Slow::Nothing),
    mark("SEND 64 B, p50, over a link of the port host, in parts of a memif's", ("link-lat", "send"),  (Of::Share, Unit::Cost), (1.05, 1.0), Slow::Same),
    mark("SEND 64 B over a link of the port host, in parts of a memif's",       ("link-rate", "send"), (Of::Share, Unit::Part), (0.95, 1.0), Slow::Same),
    mark("WRITE 64 KiB over a link of the port host, in parts of a memif's",    ("link-bw", "write"),  (Of::Share, Unit::Part), (0.97, 1.0), Slow::Same),
    mark("SEND 64 B, p50, while 63 processes of the host send to one end, in parts of a memif's", ("links63-lat", "send"), (Of::Share, Unit::Cost), (1.05, 1.0), Slow::Same),
    mark("instructions that 63 idle links add to a turn",                       ("links63-turn", "turn"), (Of::Field("added"), Unit::Instructions), (60.0, 20.0), Slow::Same),
    mark("memory of 63 idle links",                                             ("links63-memory", "idle_links"),   PSS, (2.0 * MIB, 0.0),   Slow::Same),
    mark("memory of a process with 63 busy links",                              ("links63-memory", "busy_process"), PSS, (128.0 * MIB, 0.0), Slow::Same),
    mark("the first SEND to a process of the host, p50",                        ("first", "send"),      (Of::P50, Unit::Ns), (MS, 0.0), Slow::Same),
    mark("2 busy loops: the first SEND to a process of the host, p99",          ("first-busy", "send"), (Of::Field("p99_ns"), Unit::Ns), (10.0 * MS, 0.0), Slow::Same),
    mark("16 processes that write to each other: Jain's index of connections",  ("fair", "write"), (Of::Field("jain"), Unit::Part), (0.95, 0.0), Slow::Same),
    mark("16 processes that write to each other, in parts of one pair's rate",  ("fair", "write"), RATIO, (0.8, 0.0), Slow::Same),
    mark("request to a peer that is killed fails after, p50, 64 MiB",           ("killed", "sigkill"), (Of::P50, Unit::Ns), (20.0 * MS, 15.0 * MS), Slow::Same),
    mark("request to a peer that is interrupted fails after, p50, 64 MiB",      ("killed", "sigint"),  (Of::P50, Unit::Ns), (MS, 0.5 * MS), Slow::Same),
    mark("CPU time of ten idle processes together, in parts of a core",         ("idle", "idle"), (Of::Field("cpu_share"), Unit::Cost), (0.01, 0.0), Slow::Same),
    mark("16 queue pairs against one, where the network caps each flow", ("flows16", "write"), (Of::Share, Unit::Part), (15.0, 15.8), Slow::Same),
    mark("NVMe 4 KiB random read, 4 queues, 32 deep",  ("nvme4k", "nvme_read"),   RATE, (1e6, 1.37e6), Slow::Nothing),
    mark("NVMe 4 KiB random write, 4 queues, 32 deep", ("nvme4k", "nvme_write"),  RATE, (0.8e6, 1.2e6), Slow::Nothing),
    mark("NVMe 128 KiB random read",                   ("nvme128k", "nvme_read"), GBIT, (80.0, 110.0),  Slow::Nothing),
    mark("NVMe 4 KiB random read, alone, p50",         ("nvme1", "nvme_read"), (Of::P50, Unit::Ns), (4000.0, 2500.0), Slow::Nothing),
    mark("NVMe adds to SEND, WRITE, SEND of 4 KiB",    ("nvme-overhead", "nvme_read"), (Of::Above, Unit::Ns), (300.0, 150.0), Slow::Same),
    mark("SEND 64 B, 100 queue pairs at random",       ("qps100", "send"),  RATE, (0.0, 0.0), Slow::Nothing),
    mark("100 000 queue pairs against 100",            ("qps100k", "send"), (Of::Share, Unit::Part), (0.6, 0.8), Slow::Same),
    mark("SEND 64 B, 100 queue pairs, 16 a visit",     ("qps100x16", "send"), RATE, (0.0, 0.0), Slow::Nothing),
    mark("100 000 against 100, 16 messages a visit",   ("qps100kx16", "send"), (Of::Share, Unit::Part), (0.85, 0.95), Slow::Same),
    mark("SEND 64 B, 100 queue pairs, 16 a visit, shared receives", ("qps100x16srq", "send"), RATE, (0.0, 0.0), Slow::Nothing),
    mark("100 000 against 100, 16 a visit, shared receives", ("qps100kx16srq", "send"), (Of::Share, Unit::Part), (0.85, 0.95), Slow::Same),
];

/// A line of the table.
#[derive(Clone, Debug, PartialEq)]
pub struct Line {
    /// The title of the measurement.
    pub title: &'static str,
    /// The part that measures the figure.
    pub part: &'static str,
    /// The missing package without which the figure could not be measured.
    pub lacks: Option<&'static str>,
    /// The figure; `None` where nothing was measured.
    pub figure: Option<f64>,
    /// The figure from measurements on whole cores only, and the number of these measurements; no mark applies to it.
    pub whole: Option<(f64, usize)>,
    /// The figure's unit.
    pub unit: Unit,
    /// The figure beside it, and the ratio of both: the median of the measurements' ratios. The figure is the bare port's, of the same
    /// kind and frame length, unless the title names another.
    pub raw: Option<(f64, f64)>,
    /// The mark that applies in this state of the machine, as a text; empty if none applies.
    pub mark: String,
    /// The stretch mark, as a text; empty if none applies.
    pub stretch: String,
    /// Whether the mark was reached; `None` where none applies.
    pub reached: Option<bool>,
    /// Whether the stretch mark was reached.
    pub stretched: Option<bool>,
}

/// The parts that have lines.
pub fn parts() -> impl Iterator<Item = &'static str> {
    MARKS.iter().map(|mark| mark.part)
}

fn find<'a>(rows: &'a [Row], part: &str, op: &str) -> Option<&'a Row> {
    rows.iter().find(|r| r.text("part") == part && r.text("op") == op)
}

/// The lines for the medians in one state of the machine, with the medians on whole cores beside them. No mark applies to a median of
/// measurements in other states, but it is shown.
pub fn lines(rows: &[Row], whole: &[Row], kind: Kind) -> Vec<Line> {
    MARKS.iter().map(|m| line(m, rows, whole, kind)).collect()
}

impl Mark {
    /// The figure of this mark in these rows.
    fn figure(&self, rows: &[Row]) -> Option<f64> {
        let row = find(rows, self.part, self.op)?;
        match self.of {
            Of::Rate => row.num("msgs_per_s"),
            Of::Gbit => row.num("gbit_per_s"),
            Of::P50 => row.num("p50_ns"),
            Of::P999 => row.num("p999_ns"),
            Of::Added => row.num("added_ns"),
            Of::Above => Some(row.num("p50_ns")? - row.num("limit")?),
            Of::Share => row.num("of_first"),
            Of::Ratio => row.num("ratio"),
            Of::Field(key) => row.num(key),
        }
    }
}

fn line(m: &Mark, rows: &[Row], whole: &[Row], kind: Kind) -> Line {
    let row = find(rows, m.part, m.op);
    let kind = if row.is_none_or(|row| row.text("kind") == kind.name()) { kind } else { Kind::Mixed };
    let limit = row.and_then(|r| r.num("limit"));
    let figure = m.figure(rows);
    let of = find(whole, m.part, m.op).and_then(|r| r.num("median_of"));
    let whole = m.figure(whole).zip(of.map(|n| n as usize));
    let comparable = matches!(m.of, Of::Rate | Of::Gbit | Of::P50);
    let raw = limit.zip(row.and_then(|r| r.num("ratio"))).filter(|_| comparable);
    let mut out = Line {
        title: m.title,
        part: m.part,
        lacks: None,
        figure,
        whole,
        unit: m.unit,
        raw,
        mark: String::new(),
        stretch: String::new(),
        reached: None,
        stretched: None,
    };
    let absolute = kind == Kind::Quick || matches!(m.slow, Slow::Same);
    if m.mark == 0.0 || kind == Kind::Mixed {
        return out;
    }
    if absolute {
        (out.mark, out.stretch) = (m.unit.bound(m.mark), m.unit.bound(m.stretch));
        out.reached = figure.map(|f| m.unit.reaches(f, m.mark));
        out.stretched = figure.filter(|_| m.stretch != 0.0).map(|f| m.unit.reaches(f, m.stretch));
        return out;
    }
    match m.slow {
        Slow::OfRaw(part) => {
            out.mark = format!("≥ {:.0} % of raw", 100.0 * part);
            out.reached = raw.map(|(_, ratio)| ratio >= part);
        }
        Slow::AboveRaw(ns) => {
            out.mark = format!("≤ raw + {ns} ns");
            out.reached = row.and_then(|r| r.num("added_ns")).map(|added| 2.0 * added <= ns);
        }
        Slow::Nothing | Slow::Same => {}
    }
    out
}

#[cfg(test)]
mod tests {
    use super::super::row::compare;
    use super::*;

    fn rows(kind: Kind) -> Vec<Row> {
        let measured = [
            r#"[{"part":"lat","op":"send","p50_ns":550,"p999_ns":2100,"limit":150.0,"ratio":3.7},
                {"part":"many","op":"send","msgs_per_s":11e6,"limit":50e6,"ratio":0.22},
                {"part":"mtu4096","op":"write","gbit_per_s":90.0,"limit":310.0,"ratio":0.29}]"#,
            r#"[{"part":"qps100","op":"send","msgs_per_s":2e6},
                {"part":"qps100k","op":"send","msgs_per_s":1.3e6}]"#,
        ];
        let rows = measured.into_iter().flat_map(|rows| {
            let mut rows = Row::parse(rows).unwrap();
            compare(&mut rows);
            rows
        });
        rows.map(|row| row.with("kind", kind.name())).collect()
    }

    fn of(kind: Kind, title: &str) -> Line {
        lines(&rows(kind), &[], kind).into_iter().find(|l| l.title == title).unwrap()
    }

    #[test]
    fn absolute_marks_count_in_a_quick_run() {
        let rate = of(Kind::Quick, "SEND 64 B, 16 queue pairs");
        assert_eq!((rate.figure, rate.reached, rate.stretched), (Some(11e6), Some(true), Some(false)));
        assert_eq!((rate.mark.as_str(), rate.raw), ("≥ 10.0 M/s", Some((50e6, 0.22))));
        assert_eq!(of(Kind::Quick, "WRITE 64 KiB, MTU 4096").reached, Some(false));
        let added = of(Kind::Quick, "added a packet a side");
        assert_eq!((added.figure, added.reached), (Some(200.0), Some(true)));
        assert_eq!(of(Kind::Quick, "SEND 64 B one way, p99.9").reached, Some(false));
    }

    #[test]
    fn relative_marks_count_in_a_slow_run() {
        let p50 = of(Kind::Slow, "SEND 64 B one way, p50");
        assert_eq!((p50.mark.as_str(), p50.reached), ("≤ raw + 450 ns", Some(true)));
        let write = of(Kind::Slow, "WRITE 64 KiB, MTU 4096");
        assert_eq!((write.mark.as_str(), write.reached), ("≥ 30 % of raw", Some(false)));
        assert_eq!(of(Kind::Slow, "SEND 64 B one way, p99.9").reached, None);
    }

    #[test]
    fn ratios_of_two_parts_count_in_both() {
        for kind in [Kind::Quick, Kind::Slow] {
            let line = of(kind, "100 000 queue pairs against 100");
            assert_eq!((line.figure, line.reached), (Some(0.65), Some(true)));
        }
    }

    #[test]
    fn what_was_not_measured_reaches_nothing() {
        let line = of(Kind::Quick, "READ 64 B, 16 queue pairs, 32 deep");
        assert_eq!((line.figure, line.reached, line.raw), (None, None, None));
    }

    #[test]
    fn no_mark_counts_for_measurements_of_another_kind() {
        for other in [Kind::Slow, Kind::Mixed] {
            let lines = lines(&rows(other), &[], Kind::Quick);
            assert!(lines.iter().all(|l| l.reached.is_none()), "{other}");
            assert!(lines.iter().any(|l| l.figure == Some(11e6) && l.mark.is_empty()), "{other}");
        }
    }
}
