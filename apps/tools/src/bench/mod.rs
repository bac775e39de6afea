//! The suite behind `scripts/bench`: repeats the table of marks with `roce-perf`, as two processes, and with other programs
//! beside it, until everything was measured often enough in the same state of the machine; shows the medians.
//!
//! It measures only the speed of the cores itself (`cores.rs`) and runs nothing of the stack: all other figures are read from
//! the rows that programs write.

pub mod child;
pub mod cli;
pub mod cores;
pub mod html;
pub mod machine;
pub mod marks;
pub mod pairs;
pub mod peers;
pub mod perf;
pub mod plan;
pub mod row;
pub mod state;
pub mod svg;
pub mod table;

use apps::error::{AppError, Result};
use apps::out::{note, say};
use apps::report;
use apps::stop;
use cli::BenchCli;
use machine::Machine;
use marks::Line;
use pairs::{By, PAIRS, Pair};
use peers::{Missing, Peer, Place};
use perf::Server;
use plan::Part;
use row::{Row, compare, medians};
use state::{Kind, Look, Tally};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Everything that a report shows.
#[derive(Clone, Debug)]
pub struct Suite {
    /// The machine and the time.
    pub machine: Machine,
    /// Titles of the steps of a run.
    pub steps: Vec<String>,
    /// All measurements.
    pub measured: Vec<Measured>,
    /// The state of the machine whose measurements count.
    pub kind: Kind,
    /// How many measurements in that state were wanted.
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
    /// Its step, an index of [`Suite::steps`].
    pub step: usize,
    /// The machine's state during it.
    pub kind: Kind,
    /// The checks before and after.
    pub looks: [Look; 2],
    /// Its rows.
    pub rows: Vec<Row>,
}

impl Measured {
    /// The smaller share of a core at the two checks, relative to the best of all.
    fn core_share(&self, best_work: u64) -> f64 {
        cores::share(self.looks.iter().map(|look| look.work_ns).max().unwrap_or(0), best_work)
    }
}

/// How often each step was measured; without steps that never were.
fn tallies(steps: usize, measured: &[Measured]) -> Vec<Tally> {
    let of = |step| Tally::of(measured.iter().filter(|m| m.step == step).map(|m| m.kind));
    (0..steps).map(of).filter(|tally| *tally != Tally::default()).collect()
}

/// The best time of the fixed piece of work, in nanoseconds.
fn best_work(measured: &[Measured]) -> u64 {
    measured.iter().flat_map(|m| &m.looks).map(|look| look.work_ns).min().unwrap_or(0)
}

/// The medians of measurements in one state of the machine on whole cores; none for a step without such measurements.
fn medians_of_whole(kind: Kind, measured: &[Measured]) -> Vec<Row> {
    let best = best_work(measured);
    let whole = measured.iter().filter(|m| m.kind == kind && m.core_share(best) >= cores::WHOLE);
    medians(&whole.map(|m| m.rows.as_slice()).collect::<Vec<_>>())
}

/// The medians of measurements in one state; for a step without any, those of all its measurements, marked as mixed.
fn medians_of(kind: Kind, steps: usize, measured: &[Measured]) -> Vec<Row> {
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
        let looks: Vec<Look> = counted.flat_map(|m| m.looks).collect();
        let ends = |of: fn(&Look) -> u64| {
            let all = || looks.iter().map(of);
            [all().min().unwrap_or(0), all().max().unwrap_or(0)]
        };
        let [quickest, slowest] = ends(|look| look.bare_ns).map(report::time);
        let [most, least] =
            ends(|look| look.work_ns).map(|ns| 100.0 * cores::share(ns, best_work(&self.measured)));
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

    /// Each step, and how often it was measured.
    pub fn moments(&self) -> impl Iterator<Item = (&str, Tally)> {
        let of = |step| Tally::of(self.measured.iter().filter(|m| m.step == step).map(|m| m.kind));
        self.steps.iter().enumerate().map(move |(step, title)| (title.as_str(), of(step)))
    }
}

/// Runs the suite and shows it.
///
/// # Errors
/// When `roce-perf` cannot be run, a file cannot be written, or a signal came.
pub fn run(cli: &BenchCli) -> Result<()> {
    check_names(&cli.only)?;
    let json = cli.json.as_deref().map(writable).transpose()?;
    let html = cli.html.as_deref().map(writable).transpose()?;
    let suite = Bench::new(cli)?.run()?;
    if let Some(path) = json {
        write(&path, &rows_json(&suite))?;
    }
    if let Some(path) = html {
        write(&path, &html::page(&suite))?;
    }
    say!("{}", if cli.markdown { table::markdown(&suite) } else { table::terminal(&suite) })?;
    Ok(())
}

/// Refuses names that no part has: a run without what was asked for is found out late.
fn check_names(only: &[String]) -> Result<()> {
    let ours = plan::run(Duration::ZERO, true).into_iter().flatten().map(|part| part.name);
    let mut names = Vec::new();
    for name in ours.chain([PEERS]).chain(PAIRS.map(|pair| pair.name)) {
        if !names.contains(&name) {
            names.push(name);
        }
    }
    let wrong: Vec<&str> = only.iter().map(String::as_str).filter(|name| !names.contains(name)).collect();
    if wrong.is_empty() {
        return Ok(());
    }
    Err(AppError::Usage(format!(
        "--only: no part is named {}; there are {}",
        wrong.join(", "),
        names.join(", ")
    )))
}

/// Checks before a long run that a file can be written.
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
    let best = best_work(&suite.measured);
    for m in &suite.measured {
        let mark = |row: &Row| {
            let row = row.clone().with("run", m.run).with("kind", m.kind.name());
            let row = row.with("counts", m.kind == suite.kind).with("core_share", m.core_share(best));
            row.with("bare_ns", m.looks.map(|look| look.bare_ns).to_vec())
        };
        all.extend(m.rows.iter().map(mark));
    }
    all.extend(suite.rows.iter().cloned());
    let lines: Vec<_> = all.iter().map(|row| serde_json::Value::Object(row.0.clone()).to_string()).collect();
    format!("[\n  {}\n]\n", lines.join(",\n  "))
}

/// A suite that is running.
struct Bench<'a> {
    cli: &'a BenchCli,
    perf: PathBuf,
    time: Duration,
    started: Instant,
    notes: BTreeSet<String>,
    missing: Vec<Missing>,
    place: Place,
    dir: Scratch,
}

/// A directory that is removed when the value is dropped.
struct Scratch(PathBuf);

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// The name of all alternatives together.
const PEERS: &str = "peers";

/// A measurement between two checks of the machine's state.
enum Step {
    /// Parts with this stack.
    Ours(Vec<Part>),
    /// An alternative.
    Peer(&'static Peer),
    /// This stack, and an alternative beside it.
    Pair(Pair),
}

impl Step {
    fn title(&self) -> String {
        match self {
            Self::Ours(parts) => parts.iter().map(|part| part.title.as_str()).collect::<Vec<_>>().join("; "),
            Self::Peer(peer) => peer.title(),
            Self::Pair(pair) => pair.title(),
        }
    }

    /// Whether it is one of the parts with these names; of all without any.
    fn is_among(&self, only: &[String]) -> bool {
        let name_is = |name: &str| only.iter().any(|only| only == name);
        only.is_empty()
            || match self {
                Self::Ours(parts) => parts.iter().any(|part| name_is(part.name)),
                Self::Peer(_) => name_is(PEERS),
                Self::Pair(pair) => name_is(pair.name),
            }
    }
}

impl<'a> Bench<'a> {
    fn new(cli: &'a BenchCli) -> Result<Self> {
        let beside = || Some(std::env::current_exe().ok()?.with_file_name("roce-perf"));
        let perf = cli.perf.clone().or_else(beside).unwrap_or_else(|| "roce-perf".into());
        if !perf.exists() {
            return Err(AppError::Usage(format!(
                "{} is not there; build it (cargo build --release -p roce-apps), or name it with --perf",
                perf.display()
            )));
        }
        let dir = std::env::temp_dir().join(format!("roce-bench-{}", std::process::id()));
        std::fs::create_dir_all(&dir).map_err(|e| AppError::Setup(format!("{}: {e}", dir.display())))?;
        let time = cli.duration.unwrap_or(Duration::from_millis(if cli.quick { 60 } else { 200 }));
        let place = Place { run: perf.with_file_name("roce-run"), dir: dir.clone() };
        let missing = if cli.no_peers { Vec::new() } else { peers::missing(&place.run) };
        let notes = missing.iter().map(|missing| missing.note().into()).collect();
        Ok(Self { cli, perf, time, started: Instant::now(), notes, missing, place, dir: Scratch(dir) })
    }

    /// Prints the progress, with the time since the start.
    fn say(&self, what: &str) {
        let s = self.started.elapsed().as_secs();
        note!("[{:>2}:{:02}] {what}", s / 60, s % 60);
    }

    fn run(mut self) -> Result<Suite> {
        let wanted = self.cli.runs.unwrap_or(if self.cli.quick { 1 } else { 5 }) as usize;
        let most =
            self.cli.max_runs.unwrap_or(if self.cli.quick { 1 } else { 16 }).max(wanted as u32) as usize;
        for missing in self.missing.clone() {
            self.say(&format!("SKIPPED {}", missing.note()));
        }
        let steps = self.steps();
        if steps.is_empty() {
            return Err(AppError::Usage(
                "nothing is left to measure: what --only names is left out by another option, or needs a program that is missing".into(),
            ));
        }
        let mut measured: Vec<Measured> = Vec::new();
        let mut run = 0;
        let kind = loop {
            run += 1;
            self.say(&format!("run {run}"));
            self.one_run(run, &steps, wanted, &mut measured)?;
            let tallies = tallies(steps.len(), &measured);
            let done = |kind| tallies.iter().filter(|t| t.get(kind) >= wanted).count();
            let (quick, slow, all) = (done(Kind::Quick), done(Kind::Slow), tallies.len());
            self.say(&format!(
                "of {all}, {quick} were measured {wanted} times while quick, {slow} while slow"
            ));
            if let Some(kind) = state::enough(&tallies, wanted) {
                break kind;
            }
            if run == most {
                break state::most(&tallies, wanted);
            }
        };
        let rows = medians_of(kind, steps.len(), &measured);
        let mut lines = marks::lines(&rows, &medians_of_whole(kind, &measured), kind);
        for line in &mut lines {
            let pair = PAIRS.iter().find(|pair| pair.name == line.part);
            line.lacks = pair.and_then(|pair| pair.lacks(&self.missing));
        }
        if !self.cli.only.is_empty() {
            lines.retain(|line| line.figure.is_some() || line.lacks.is_some());
        }
        let notes = std::mem::take(&mut self.notes).into_iter().collect();
        let steps = steps.iter().map(Step::title).collect();
        Ok(Suite { machine: Machine::here(), steps, measured, kind, wanted, rows, lines, notes })
    }

    /// The steps of a run.
    fn steps(&self) -> Vec<Step> {
        let ours = plan::run(self.time, !self.cli.no_scale).into_iter().map(Step::Ours);
        let peers = peers::PEERS.iter().filter(|p| p.lacks(&self.missing).is_none()).map(Step::Peer);
        let pairs = PAIRS.into_iter().filter(|p| p.lacks(&self.missing).is_none()).map(Step::Pair);
        let others = peers.chain(pairs).filter(|_| !self.cli.no_peers);
        ours.chain(others).filter(|step| step.is_among(&self.cli.only)).collect()
    }

    /// Measures each step between two checks of the machine's state, except for those that were measured often enough in
    /// both.
    fn one_run(&mut self, run: usize, steps: &[Step], wanted: usize, all: &mut Vec<Measured>) -> Result<()> {
        let mut server = self.server()?;
        let look = plan::look(self.time);
        let mut before = self.look(&mut server, &look)?;
        for (step, what) in steps.iter().enumerate() {
            let tally = Tally::of(all.iter().filter(|m| m.step == step).map(|m| m.kind));
            if tally.quick.min(tally.slow) >= wanted {
                continue;
            }
            let Some(rows) = self.step(&mut server, what)? else { continue };
            let after = self.look(&mut server, &look)?;
            let looks = [before, after];
            all.push(Measured { run, step, kind: Kind::of(&looks.map(|look| look.bare_ns)), looks, rows });
            before = after;
        }
        Ok(())
    }

    fn server(&self) -> Result<Server> {
        Server::start(&self.perf, &self.dir.0)
    }

    /// Checks the machine's state.
    fn look(&self, server: &mut Server, look: &Part) -> Result<Look> {
        let rows = server.measure(look)?;
        let bare_ns = rows.first().and_then(|row| row.num("p50_ns")).map(|ns| ns as u64);
        let bare_ns = bare_ns.ok_or_else(|| AppError::Setup("roce-perf raw measured no latency".into()))?;
        Ok(Look { bare_ns, work_ns: cores::work_ns() })
    }

    /// The rows of a step; `None` where it could not be measured.
    fn step(&mut self, server: &mut Server, step: &Step) -> Result<Option<Vec<Row>>> {
        match step {
            Step::Ours(parts) => {
                let mut rows = Vec::new();
                for part in parts {
                    let Some(more) = self.part(server, part)? else { return Ok(None) };
                    rows.extend(more);
                }
                compare(&mut rows);
                Ok(Some(rows))
            }
            Step::Peer(peer) => {
                let row = self.peer(peer)?;
                Ok(row.map(|row| vec![row.with("part", PEERS)]))
            }
            Step::Pair(pair) => {
                let ours = match pair.ours(self.time) {
                    By::Perf(part) => self.part(server, &part)?.and_then(|rows| rows.into_iter().next()),
                    By::Peer(peer) => self.peer(&peer)?,
                };
                let Some((ours, theirs)) = ours.zip(self.peer(&pair.theirs)?) else { return Ok(None) };
                Ok(Some(pair.compare(ours, theirs).into()))
            }
        }
    }

    /// Measures a part. A failure is reported, and the part left out.
    fn part(&mut self, server: &mut Server, part: &Part) -> Result<Option<Vec<Row>>> {
        stop::check()?;
        self.say(&format!("  {}", part.title));
        match server.measure(part) {
            Ok(rows) => Ok(Some(rows)),
            Err(AppError::Interrupted) => Err(AppError::Interrupted),
            Err(e) => {
                self.note(format!("{}: {e}", part.title));
                // The failed part may have left the server in any state: the next one gets a new server.
                server.restart(part.link)?;
                Ok(None)
            }
        }
    }

    fn peer(&mut self, peer: &Peer) -> Result<Option<Row>> {
        stop::check()?;
        let share = (self.time.as_secs_f64() / 0.7).clamp(0.02, 4.0);
        self.say(&format!("  {}", peer.title()));
        match peer.measure(share, &self.place) {
            Ok(row) => Ok(Some(row)),
            Err(AppError::Interrupted) => Err(AppError::Interrupted),
            Err(e) => {
                self.note(format!("{}: {e}", peer.title()));
                Ok(None)
            }
        }
    }

    fn note(&mut self, text: String) {
        self.say(&format!("SKIPPED {text}"));
        self.notes.insert(text);
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use clap::Parser as _;

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
            let looks = [130, 150].map(|bare_ns| Look { bare_ns, work_ns });
            Measured { run, step: 0, kind: Kind::Quick, looks, rows: rows(p50) }
        };
        let measured = vec![of(1, 500, 100), of(2, 540, 125)];
        let all = medians_of(Kind::Quick, 1, &measured);
        let lines = marks::lines(&all, &medians_of_whole(Kind::Quick, &measured), Kind::Quick);
        let machine = Machine { facts: vec![("processor", "X & Y".into())] };
        let notes = vec!["iperf3 is not installed".into()];
        Suite { machine, steps, measured, kind: Kind::Quick, wanted: 2, rows: all, lines, notes }
    }

    #[test]
    fn a_wrong_name_is_refused_before_anything_is_emptied_or_run() {
        let json = std::env::temp_dir().join(format!("roce-bench-names-{}", std::process::id()));
        std::fs::write(&json, "an earlier run").unwrap();
        let line = ["roce-bench", "--only", "lat,mtu4069,pears", "--json", json.to_str().unwrap()];
        let error = run(&BenchCli::try_parse_from(line).unwrap()).unwrap_err().to_string();
        let kept = std::fs::read_to_string(&json).unwrap();
        std::fs::remove_file(&json).unwrap();
        assert_eq!(kept, "an earlier run");
        for part in ["named mtu4069, pears;", " lat,", " mtu4096,", " qps100kx16srq,", " peers,", " udp-bw,"]
        {
            assert!(error.contains(part), "{part} is not in {error}");
        }
        assert_eq!(error.matches(" lat,").count(), 1, "{error}");
        let all = ["many", "peers", "ucx-lat", "sizes", "raw-sizes", "qps100"].map(String::from);
        check_names(&all).unwrap();
        check_names(&[]).unwrap();
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
    fn the_tables_have_medians_ratios_and_verdicts() {
        let text = table::terminal(&suite());
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
        assert_eq!((of_run(1.0), of_run(2.0)), (9, 9));
        assert_eq!(rows.iter().filter(|r| r.num("median_of") == Some(2.0)).count(), 9);
        assert!(rows.iter().any(|r| r.text("op") == "peer" && r.text("kind") == "quick"));
    }
}
