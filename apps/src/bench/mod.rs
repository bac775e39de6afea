//! The suite behind `scripts/bench`: runs `roce-perf` through the table of marks, as two processes, until enough runs
//! are of one kind, and other programs beside it; shows the medians.
//!
//! Measures nothing itself and links no stack: everything it knows it reads from the rows that programs write.

pub mod child;
pub mod html;
pub mod machine;
pub mod marks;
pub mod mood;
pub mod peers;
pub mod perf;
pub mod plan;
pub mod row;
pub mod svg;
pub mod table;

use crate::cli::bench::BenchCli;
use crate::error::{AppError, Result};
use crate::report;
use crate::stop;
use machine::Machine;
use marks::Line;
use mood::{Chosen, Kind};
use perf::Server;
use plan::{MOOD, Part};
use row::{Row, medians};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Everything a report is made of.
#[derive(Clone, Debug)]
pub struct Suite {
    /// Where and when.
    pub machine: Machine,
    /// Every run.
    pub runs: Vec<Run>,
    /// Those that count.
    pub chosen: Chosen,
    /// How many were wanted.
    pub wanted: usize,
    /// The medians of those that count, and what was measured once.
    pub rows: Vec<Row>,
    /// The table of marks.
    pub lines: Vec<Line>,
    /// What could not be measured, and why.
    pub notes: Vec<String>,
}

/// One run.
#[derive(Clone, Debug)]
pub struct Run {
    /// Its kind.
    pub kind: Kind,
    /// Times of a bare frame, one way, from start to end.
    pub mood_ns: Vec<u64>,
    /// Its rows.
    pub rows: Vec<Row>,
}

impl Suite {
    /// What the figures are, in a sentence without its full stop.
    pub fn headline(&self) -> String {
        let (n, kind) = (self.chosen.runs.len(), self.chosen.kind);
        let which = match n {
            1 => format!("One {kind} run"),
            n => format!("Medians of {n} {kind} runs"),
        };
        let all: Vec<u64> =
            self.chosen.runs.iter().flat_map(|n| self.runs[*n].mood_ns.iter().copied()).collect();
        let (low, high) = (all.iter().min().copied().unwrap_or(0), all.iter().max().copied().unwrap_or(0));
        let mut out =
            format!("{which} (a bare 128-byte frame took {} to {})", report::time(low), report::time(high));
        if kind == Kind::Mixed {
            out.push_str(", in which the machine changed its mood: no mark counts");
        } else if n < self.wanted {
            out.push_str(&format!("; {} of one kind were wanted", self.wanted));
        }
        out
    }
}

/// Runs the suite and shows it.
///
/// # Errors
/// When `roce-perf` cannot be run, a file cannot be written, or a signal came.
pub fn run(cli: &BenchCli) -> Result<()> {
    let json = cli.json.as_deref().map(writable).transpose()?;
    let html = cli.html.as_deref().map(writable).transpose()?;
    let suite = Bench::new(cli)?.run()?;
    if let Some(path) = json {
        write(&path, &rows_json(&suite))?;
    }
    if let Some(path) = html {
        write(&path, &html::page(&suite))?;
    }
    println!("{}", if cli.markdown { table::markdown(&suite) } else { table::terminal(&suite) });
    Ok(())
}

/// Makes sure that a file can be written before a long run.
fn writable(path: &Path) -> Result<PathBuf> {
    write(path, "")?;
    Ok(path.into())
}

fn write(path: &Path, text: &str) -> Result<()> {
    let out = std::fs::write(path, text);
    out.map_err(|e| AppError::Setup(format!("{}: the file cannot be written ({e})", path.display())))
}

/// Every row of every run, then the medians.
fn rows_json(suite: &Suite) -> String {
    let mut all: Vec<Row> = Vec::new();
    for (n, run) in suite.runs.iter().enumerate() {
        let counts = suite.chosen.runs.contains(&n);
        let mark =
            |row: &Row| row.clone().with("run", n + 1).with("kind", run.kind.name()).with("counts", counts);
        all.extend(run.rows.iter().map(mark));
    }
    all.extend(suite.rows.iter().cloned());
    let lines: Vec<_> = all.iter().map(|row| serde_json::Value::Object(row.0.clone()).to_string()).collect();
    format!("[\n  {}\n]\n", lines.join(",\n  "))
}

/// A suite that runs.
struct Bench<'a> {
    cli: &'a BenchCli,
    perf: PathBuf,
    time: Duration,
    started: Instant,
    notes: BTreeSet<String>,
    missing: Vec<&'static str>,
    dir: Scratch,
}

/// A directory that goes with its value.
struct Scratch(PathBuf);

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

impl<'a> Bench<'a> {
    fn new(cli: &'a BenchCli) -> Result<Self> {
        let beside = || Some(std::env::current_exe().ok()?.with_file_name("roce-perf"));
        let perf = cli.perf.clone().or_else(beside).unwrap_or_else(|| "roce-perf".into());
        if !perf.exists() {
            return Err(AppError::Usage(format!(
                "{} is not there; build it (cargo build --release -p apps), or name it with --perf",
                perf.display()
            )));
        }
        let dir = std::env::temp_dir().join(format!("roce-bench-{}", std::process::id()));
        std::fs::create_dir_all(&dir).map_err(|e| AppError::Setup(format!("{}: {e}", dir.display())))?;
        let time = cli.duration.unwrap_or(Duration::from_millis(if cli.quick { 60 } else { 700 }));
        let missing = if cli.no_peers { Vec::new() } else { peers::missing() };
        let notes = missing.iter().map(ToString::to_string).collect();
        Ok(Self { cli, perf, time, started: Instant::now(), notes, missing, dir: Scratch(dir) })
    }

    /// Says what goes on, with the time since the start.
    fn say(&self, what: &str) {
        let s = self.started.elapsed().as_secs();
        eprintln!("[{:>2}:{:02}] {what}", s / 60, s % 60);
    }

    fn run(mut self) -> Result<Suite> {
        let wanted = self.cli.runs.unwrap_or(if self.cli.quick { 1 } else { 3 }) as usize;
        let most = self.cli.max_runs.unwrap_or(if self.cli.quick { 1 } else { 9 }).max(wanted as u32);
        for note in self.missing.clone() {
            self.say(&format!("SKIPPED {note}"));
        }
        let mut runs: Vec<Run> = Vec::new();
        let chosen = loop {
            self.say(&format!("run {}", runs.len() + 1));
            let run = self.one_run()?;
            let times: Vec<_> = run.mood_ns.iter().map(|ns| report::time(*ns)).collect();
            self.say(&format!("run {} was {} (bare frame: {})", runs.len() + 1, run.kind, times.join(", ")));
            runs.push(run);
            let kinds: Vec<Kind> = runs.iter().map(|r| r.kind).collect();
            if let Some(chosen) = mood::enough(&kinds, wanted) {
                break chosen;
            }
            if runs.len() >= most as usize {
                break mood::most(&kinds).expect("there was a run");
            }
        };
        let counted: Vec<&[Row]> = chosen.runs.iter().map(|n| runs[*n].rows.as_slice()).collect();
        let mut rows = medians(&counted);
        let lines = marks::lines(&rows, chosen.kind);
        let curves = plan::curves(self.time);
        rows.extend(self.parts(&curves)?.into_iter().filter(|r| r.text("part") != MOOD));
        let notes = std::mem::take(&mut self.notes).into_iter().collect();
        Ok(Suite { machine: Machine::here(), runs, chosen, wanted, rows, lines, notes })
    }

    fn one_run(&mut self) -> Result<Run> {
        let mut rows = self.parts(&plan::run(self.time, !self.cli.no_scale))?;
        let mood = rows.iter().filter(|r| r.text("part") == MOOD);
        let mood_ns: Vec<u64> = mood.filter_map(|r| r.num("p50_ns")).map(|ns| ns as u64).collect();
        rows.extend(self.peers()?);
        Ok(Run { kind: Kind::of(&mood_ns), mood_ns, rows })
    }

    /// Measures parts with one server. A part that fails is told and left out; the bare port must work.
    fn parts(&mut self, parts: &[Part]) -> Result<Vec<Row>> {
        let mut server = Server::start(&self.perf, &self.dir.0)?;
        let mut rows = Vec::new();
        for part in parts {
            stop::check()?;
            self.say(&format!("  {}", part.title));
            match server.measure(part) {
                Ok(more) => rows.extend(more),
                Err(AppError::Interrupted) => return Err(AppError::Interrupted),
                Err(e) if part.name == MOOD => return Err(e),
                Err(e) => {
                    self.note(format!("{}: {e}", part.title));
                    // Whatever state it left the server in: the next part gets a new one.
                    drop(server);
                    server = Server::start(&self.perf, &self.dir.0)?;
                }
            }
        }
        Ok(rows)
    }

    fn peers(&mut self) -> Result<Vec<Row>> {
        let mut rows = Vec::new();
        if self.cli.no_peers {
            return Ok(rows);
        }
        let share = (self.time.as_secs_f64() / 0.7).clamp(0.02, 4.0);
        let missing = self.missing.clone();
        for peer in peers::PEERS.iter().filter(|p| !p.is_missing(&missing)) {
            stop::check()?;
            self.say(&format!("  {}", peer.title()));
            match peer.measure(share) {
                Ok(row) => rows.push(row.with("part", "peers")),
                Err(AppError::Interrupted) => return Err(AppError::Interrupted),
                Err(e) => self.note(format!("{}: {e}", peer.title())),
            }
        }
        Ok(rows)
    }

    fn note(&mut self, text: String) {
        self.say(&format!("SKIPPED {text}"));
        self.notes.insert(text);
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A suite of two runs with made-up rows, for the tests of what shows it.
    pub(crate) fn suite() -> Suite {
        let rows = |p50: u64| {
            Row::parse(&format!(
                r#"[{{"part":"lat","op":"raw","mode":"lat","size":122,"p50_ns":140,"latency":"one_way","quantiles":[[0.0,100],[0.5,140],[0.99,300]]}},
                    {{"part":"lat","op":"send","mode":"lat","size":64,"p50_ns":{p50},"p999_ns":1900,"limit":140.0,"latency":"one_way","quantiles":[[0.0,400],[0.5,{p50}],[0.99,900]]}},
                    {{"part":"many","op":"send","mode":"rate","size":64,"qps":16,"msgs_per_s":11500000.0,"limit":50000000.0}},
                    {{"part":"one","op":"send","mode":"rate","size":64,"qps":1,"msgs_per_s":7500000.0,"limit":50000000.0}},
                    {{"part":"mtu4096","op":"send","mode":"bw","size":65536,"mtu":4096,"gbit_per_s":95.5,"limit":300.0}},
                    {{"part":"peers","op":"peer","peer":"UCX over TCP","mode":"rate","size":64,"msgs_per_s":200000.0}}]"#
            ))
            .unwrap()
        };
        let run = |p50| Run { kind: Kind::Quick, mood_ns: vec![130, 150], rows: rows(p50) };
        let runs = vec![run(500), run(540)];
        let chosen = Chosen { kind: Kind::Quick, runs: vec![0, 1] };
        let mut all = medians(&[&runs[0].rows, &runs[1].rows]);
        let lines = marks::lines(&all, Kind::Quick);
        all.extend(
            Row::parse(
                r#"[{"part":"sizes","op":"send","mode":"bw","size":64,"gbit_per_s":4.0},
                    {"part":"sizes","op":"send","mode":"bw","size":65536,"gbit_per_s":95.0},
                    {"part":"raw-sizes","op":"raw","mode":"rate","size":64,"gbit_per_s":24.0}]"#,
            )
            .unwrap(),
        );
        let machine = Machine { facts: vec![("processor", "X & Y".into())] };
        let notes = vec!["iperf3 is not installed".into()];
        Suite { machine, runs, chosen, wanted: 2, rows: all, lines, notes }
    }

    #[test]
    fn the_headline_says_what_counts() {
        let mut suite = suite();
        assert_eq!(suite.headline(), "Medians of 2 quick runs (a bare 128-byte frame took 130 ns to 150 ns)");
        suite.wanted = 3;
        assert!(suite.headline().ends_with("3 of one kind were wanted"));
        suite.chosen = Chosen { kind: Kind::Mixed, runs: vec![0] };
        assert!(suite.headline().contains("no mark counts"));
    }

    #[test]
    fn the_tables_have_medians_ratios_and_verdicts() {
        let text = table::terminal(&suite());
        for part in ["520 ns", "11.5 M/s", "23 %", "≥ 10.0 M/s ✓", "≥ 8.00 M/s ✗", "200 k/s", "not installed"]
        {
            assert!(text.contains(part), "{part} is missing:\n{text}");
        }
        let markdown = table::markdown(&suite());
        let bars = |l: &str| l.matches('|').count();
        let lines: Vec<_> = markdown.lines().filter(|l| l.starts_with('|')).collect();
        assert!(lines.iter().all(|l| bars(l) == bars(lines[0]) || bars(l) == 5), "{markdown}");
        assert!(markdown.contains("| added a packet a side | 190 ns |"), "{markdown}");
    }

    #[test]
    fn the_rows_of_every_run_are_kept() {
        let rows = Row::parse(&rows_json(&suite())).unwrap();
        let of_run = |n: f64| rows.iter().filter(|r| r.num("run") == Some(n)).count();
        assert_eq!((of_run(1.0), of_run(2.0)), (6, 6));
        assert_eq!(rows.iter().filter(|r| r.num("median_of") == Some(2.0)).count(), 6);
        assert!(rows.iter().any(|r| r.text("op") == "peer" && r.text("kind") == "quick"));
    }
}
