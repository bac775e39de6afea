//! The results of a suite, and the selection of those that count.

use super::cores;
use super::machine::Machine;
use super::marks::Line;
use super::row::{Row, medians};
use super::state::{Kind, Sample, Tally};
use apps::report;

/// All contents of a report.
#[derive(Clone, Debug)]
pub struct Suite {
    /// The machine and the time.
    pub machine: Machine,
    /// Titles of the steps of a run.
    pub steps: Vec<String>,
    /// All measurements.
    pub measured: Vec<Measured>,
    /// The machine's state whose measurements count.
    pub kind: Kind,
    /// Number of measurements wanted in that state.
    pub wanted: usize,
    /// The medians.
    pub rows: Vec<Row>,
    /// The table of marks.
    pub lines: Vec<Line>,
    /// Failures, even single ones, and omissions, with their reasons.
    pub notes: Vec<String>,
}

/// A measurement between two checks of the machine's state.
#[derive(Clone, Debug)]
pub struct Measured {
    /// Number of the run, from 1.
    pub run: usize,
    /// The step that was measured, an index of [`Suite::steps`].
    pub step: usize,
    /// The machine's state during the measurement.
    pub kind: Kind,
    /// The checks before and after the measurement.
    pub samples: [Sample; 2],
    /// The measured rows.
    pub rows: Vec<Row>,
}

impl Measured {
    /// The smaller share of a core at the two checks, relative to the best work time of the suite.
    fn core_share(&self, best_work: u64) -> f64 {
        cores::share(self.samples.iter().map(|sample| sample.work_ns).max().unwrap_or(0), best_work)
    }
}

/// How often each step was measured, by state; steps that were never measured are left out.
pub fn tallies(steps: usize, measured: &[Measured]) -> Vec<Tally> {
    let of = |step| Tally::of(measured.iter().filter(|m| m.step == step).map(|m| m.kind));
    (0..steps).map(of).filter(|tally| *tally != Tally::default()).collect()
}

/// The best time of the fixed piece of work, in nanoseconds.
pub fn best_work(measured: &[Measured]) -> u64 {
    measured.iter().flat_map(|m| &m.samples).map(|sample| sample.work_ns).min().unwrap_or(0)
}

/// The medians of measurements in one state of the machine on whole cores; no rows for a step without such measurements.
pub fn medians_of_whole(kind: Kind, measured: &[Measured]) -> Vec<Row> {
    let best = best_work(measured);
    let whole = measured.iter().filter(|m| m.kind == kind && m.core_share(best) >= cores::WHOLE);
    medians(&whole.map(|m| m.rows.as_slice()).collect::<Vec<_>>())
}

/// The medians of measurements in one state. A step without any such measurement gets the medians of all its measurements, marked as
/// mixed.
pub fn medians_of(kind: Kind, steps: usize, measured: &[Measured]) -> Vec<Row> {
    let mut out = Vec::new();
    for step in 0..steps {
        let of_step = || measured.iter().filter(move |m| m.step == step);
        let mut counted: Vec<&[Row]> =
            of_step().filter(|m| m.kind == kind).map(|m| m.rows.as_slice()).collect();
        let kind = if counted.is_empty() { Kind::Mixed } else { kind };
        if counted.is_empty() {
            counted = of_step().map(|m| m.rows.as_slice()).collect();
        }
        out.extend(medians(&counted).into_iter().map(|row| row.with("kind", kind.name())));
    }
    out
}

impl Suite {
    /// A description of the figures, as a sentence without its full stop.
    pub fn headline(&self) -> String {
        let tallies = tallies(self.steps.len(), &self.measured);
        let counts = || tallies.iter().map(|tally| tally.get(self.kind));
        let (low, high) = (counts().filter(|n| *n > 0).min().unwrap_or(0), counts().max().unwrap_or(0));
        let which = match (low, high) {
            (_, 0) => return format!("No measurement was {}: no mark counts", self.kind),
            (1, 1) => format!("One {} measurement of each line", self.kind),
            _ if low == high => format!("Medians of {low} {} measurements", self.kind),
            _ => format!("Medians of {low} to {high} {} measurements", self.kind),
        };
        let counted = self.measured.iter().filter(|m| m.kind == self.kind);
        let samples: Vec<Sample> = counted.flat_map(|m| m.samples).collect();
        let ends = |of: fn(&Sample) -> u64| {
            let all = || samples.iter().map(of);
            [all().min().unwrap_or(0), all().max().unwrap_or(0)]
        };
        let [quickest, slowest] = ends(|sample| sample.bare_ns).map(report::time);
        let [most, least] =
            ends(|sample| sample.work_ns).map(|ns| 100.0 * cores::share(ns, best_work(&self.measured)));
        let mut out = format!(
            "{which} (a bare 128-byte frame took {quickest} to {slowest}, the cores gave {least:.0} to {most:.0} % of \
             what they gave at best)"
        );
        let never = counts().filter(|n| *n == 0).count();
        if never > 0 {
            out.push_str(&format!(
                "; {never} of {} were never {}, no mark counts for them",
                tallies.len(),
                self.kind
            ));
        } else if low < self.wanted {
            out.push_str(&format!("; {} were wanted", self.wanted));
        }
        out
    }

    /// Each step that was measured, and how often in which state.
    pub fn moments(&self) -> impl Iterator<Item = (&str, Tally)> {
        let of = |step| Tally::of(self.measured.iter().filter(|m| m.step == step).map(|m| m.kind));
        self.steps.iter().enumerate().map(move |(step, title)| (title.as_str(), of(step)))
    }

    /// Every row of every run, then the medians.
    pub fn rows_json(&self) -> String {
        let mut all: Vec<Row> = Vec::new();
        let best = best_work(&self.measured);
        for m in &self.measured {
            let mark = |row: &Row| {
                let row = row.clone().with("run", m.run).with("kind", m.kind.name());
                let row = row.with("counts", m.kind == self.kind).with("core_share", m.core_share(best));
                row.with("bare_ns", m.samples.map(|sample| sample.bare_ns).to_vec())
            };
            all.extend(m.rows.iter().map(mark));
        }
        all.extend(self.rows.iter().cloned());
        let lines: Vec<_> =
            all.iter().map(|row| serde_json::Value::Object(row.0.clone()).to_string()).collect();
        format!("[\n  {}\n]\n", lines.join(",\n  "))
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::marks;
    use super::super::row::compare;
    use super::*;

    /// A suite of two runs with made-up rows, for tests of the output.
    pub(crate) fn suite() -> Suite {
        let rows = |p50: u64| {
            let rows = Row::parse(&format!(
                r#"[{{"part":"lat","op":"raw","mode":"lat","size":122,"p50_ns":140,"latency":"one_way","quantiles":[[0.0,100],[0.5,140],[0.99,300]]}},
                    {{"part":"lat","op":"send","mode":"lat","size":64,"p50_ns":{p50},"p999_ns":1900,"limit":140.0,"latency":"one_way","quantiles":[[0.0,400],[0.5,{p50}],[0.99,900]]}},
                    {{"part":"many","op":"send","mode":"rate","size":64,"qps":16,"msgs_per_s":11500000.0,"limit":50000000.0,"ratio":0.23}},
                    {{"part":"one","op":"send","mode":"rate","size":64,"qps":1,"msgs_per_s":7500000.0,"limit":50000000.0}},
                    {{"part":"mtu4096","op":"send","mode":"bw","size":65536,"mtu":4096,"gbit_per_s":95.5,"limit":300.0}},
                    {{"part":"peers","op":"peer","peer":"UCX over TCP","mode":"rate","size":64,"msgs_per_s":200000.0}},
                    {{"part":"sizes","op":"send","mode":"bw","size":64,"gbit_per_s":4.0}},
                    {{"part":"sizes","op":"send","mode":"bw","size":65536,"gbit_per_s":95.0}},
                    {{"part":"raw-sizes","op":"raw","mode":"rate","size":64,"gbit_per_s":24.0}}]"#
            ));
            let mut rows = rows.unwrap();
            compare(&mut rows);
            rows
        };
        let steps = vec!["all of it".to_string()];
        let of = |run, p50, work_ns| {
            let samples = [130, 150].map(|bare_ns| Sample { bare_ns, work_ns });
            Measured { run, step: 0, kind: Kind::Quick, samples, rows: rows(p50) }
        };
        let measured = vec![of(1, 500, 100), of(2, 540, 125)];
        let all = medians_of(Kind::Quick, 1, &measured);
        let lines = marks::lines(&all, &medians_of_whole(Kind::Quick, &measured), Kind::Quick);
        let machine = Machine { facts: vec![("processor", "X & Y".into())] };
        let notes = vec!["iperf3 is not installed".into()];
        Suite { machine, steps, measured, kind: Kind::Quick, wanted: 2, rows: all, lines, notes }
    }

    #[test]
    fn the_headline_says_what_counts() {
        let mut suite = suite();
        assert_eq!(
            suite.headline(),
            "Medians of 2 quick measurements (a bare 128-byte frame took 130 ns to 150 ns, the cores gave 80 to 100 % of \
             what they gave at best)"
        );
        suite.wanted = 3;
        assert!(suite.headline().ends_with("; 3 were wanted"));
        suite.steps.push("another".into());
        let mut other = suite.measured[0].clone();
        (other.step, other.kind) = (1, Kind::Mixed);
        suite.measured.push(other);
        assert!(suite.headline().ends_with("; 1 of 2 were never quick, no mark counts for them"));
        suite.kind = Kind::Slow;
        assert_eq!(suite.headline(), "No measurement was slow: no mark counts");
    }

    #[test]
    fn medians_are_of_one_kind_where_there_is_any_of_it() {
        let mut measured = suite().measured;
        let p50 = |measured: &[Measured]| {
            let rows = medians_of(Kind::Quick, 1, measured);
            let row =
                rows.iter().find(|r| r.text("op") == "send" && r.text("part") == "lat").unwrap().clone();
            (row.num("p50_ns").unwrap(), row.text("kind").to_string())
        };
        measured[1].kind = Kind::Slow;
        assert_eq!(p50(&measured), (500.0, "quick".into()));
        measured[0].kind = Kind::Mixed;
        assert_eq!(p50(&measured), (520.0, "mixed".into()));
    }

    #[test]
    fn the_rows_of_every_run_are_kept() {
        let rows = Row::parse(&suite().rows_json()).unwrap();
        let of_run = |n: f64| rows.iter().filter(|r| r.num("run") == Some(n)).count();
        assert_eq!((of_run(1.0), of_run(2.0)), (9, 9));
        assert_eq!(rows.iter().filter(|r| r.num("median_of") == Some(2.0)).count(), 9);
        assert!(rows.iter().any(|r| r.text("op") == "peer" && r.text("kind") == "quick"));
    }
}
