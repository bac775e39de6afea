//! The suite behind `scripts/bench`. It repeats the table of marks with `roce-perf`, as two processes, and with other programs beside
//! it, until each step was measured often enough in the same state of the machine. Then it shows the medians.
//!
//! The suite itself measures only the speed of the cores (`cores.rs`) and runs nothing of the stack: all other figures come from the
//! rows that programs write.

pub mod child;
pub mod cli;
pub mod cores;
pub mod hosts;
pub mod html;
pub mod machine;
pub mod marks;
pub mod pairs;
pub mod peers;
pub mod perf;
pub mod ping_pong;
pub mod plan;
pub mod row;
pub mod state;
pub mod stock;
pub mod suite;
pub mod svg;
pub mod table;

use apps::error::{AppError, Result};
use apps::out::{note, say};
use apps::stop;
use cli::BenchCli;
use hosts::Hosts;
use machine::Machine;
use pairs::{MeasuredBy, PAIRS, Pair};
use peers::{Missing, Peer};
use perf::Server;
use plan::Part;
use row::{Row, compare};
use state::{Kind, Sample, Tally};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use stock::Paths;
use suite::{Measured, Suite, medians_of, medians_of_whole, tallies};

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
        write(&path, &suite.rows_json())?;
    }
    if let Some(path) = html {
        write(&path, &html::page(&suite))?;
    }
    say!("{}", if cli.markdown { table::markdown(&suite) } else { table::terminal(&suite) })?;
    Ok(())
}

/// Refuses names that no part has, because a run without the requested part would show that only at its end.
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

/// The state of a suite that is running.
struct Bench<'a> {
    cli: &'a BenchCli,
    perf: PathBuf,
    time: Duration,
    started: Instant,
    notes: BTreeSet<String>,
    missing: Vec<Missing>,
    paths: Paths,
    dir: Scratch,
    _hosts: Option<Hosts>,
}

/// A directory that is removed when the value is dropped.
struct Scratch(PathBuf);

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// The name that selects all alternatives.
const PEERS: &str = "peers";

/// A measurement between two checks of the machine's state.
enum Step {
    /// Parts with this stack.
    Ours(Vec<Part>),
    /// An alternative.
    Peer(&'static Peer),
    /// This stack, and an alternative beside it for comparison.
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

    /// The names of the step's parts.
    fn names(&self) -> Vec<&'static str> {
        match self {
            Self::Ours(parts) => parts.iter().map(|part| part.name).collect(),
            Self::Peer(_) => vec![PEERS],
            Self::Pair(pair) => vec![pair.name],
        }
    }

    /// Whether the step takes so long that it is measured only on request.
    fn is_long(&self) -> bool {
        match self {
            Self::Ours(parts) => parts.iter().any(|part| part.is_long),
            Self::Peer(_) => false,
            Self::Pair(pair) => pair.is_long,
        }
    }

    /// Whether one of the step's parts has one of these names.
    fn is_named(&self, only: &[String]) -> bool {
        self.names().iter().any(|name| only.iter().any(|only| only == name))
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
        let paths = Paths { run: perf.with_file_name("roce-run"), dir: dir.clone() };
        let mut missing = if cli.no_peers { Vec::new() } else { peers::missing(&paths.run) };
        let hosts = Hosts::new().ok();
        if hosts.is_none() {
            missing.push(Missing::Hosts);
        }
        let notes = missing.iter().map(|missing| missing.note().into()).collect();
        Ok(Self {
            cli,
            perf,
            time,
            started: Instant::now(),
            notes,
            missing,
            paths,
            dir: Scratch(dir),
            _hosts: hosts,
        })
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
        let is_partial = !self.cli.only.is_empty();
        let left_out = self.all_steps().into_iter().filter(|step| !self.is_wanted(step));
        let left_out: Vec<&str> = left_out.flat_map(|step| step.names()).collect();
        lines.retain(|line| {
            let is_wanted = !left_out.contains(&line.part);
            line.figure.is_some() || is_wanted && (!is_partial || line.lacks.is_some())
        });
        let notes = std::mem::take(&mut self.notes).into_iter().collect();
        let steps = steps.iter().map(Step::title).collect();
        Ok(Suite { machine: Machine::here(), steps, measured, kind, wanted, rows, lines, notes })
    }

    /// All steps that exist.
    fn all_steps(&self) -> Vec<Step> {
        let ours = plan::run(self.time, !self.cli.no_scale).into_iter().map(Step::Ours);
        ours.chain(peers::PEERS.iter().map(Step::Peer)).chain(PAIRS.into_iter().map(Step::Pair)).collect()
    }

    /// The steps of a run.
    fn steps(&self) -> Vec<Step> {
        let no_hosts = self.missing.contains(&Missing::Hosts);
        let is_possible = |step: &Step| match step {
            Step::Ours(parts) => !(no_hosts && parts.iter().any(Part::is_between_hosts)),
            Step::Peer(peer) => !self.cli.no_peers && peer.lacks(&self.missing).is_none(),
            Step::Pair(pair) => !self.cli.no_peers && pair.lacks(&self.missing).is_none(),
        };
        let only = &self.cli.only;
        let is_among = |step: &Step| only.is_empty() || step.is_named(only);
        let all = self.all_steps().into_iter();
        all.filter(|step| is_possible(step) && self.is_wanted(step) && is_among(step)).collect()
    }

    /// Whether a step is measured in these runs, as far as its length decides.
    fn is_wanted(&self, step: &Step) -> bool {
        !step.is_long() || self.cli.busy || step.is_named(&self.cli.only)
    }

    /// Measures each step between two checks of the machine's state. Skips steps that were measured often enough in the quick and in the
    /// slow state.
    fn one_run(&mut self, run: usize, steps: &[Step], wanted: usize, all: &mut Vec<Measured>) -> Result<()> {
        let mut server = self.server()?;
        let probe = plan::probe(self.time);
        let mut before = self.sample(&mut server, &probe)?;
        for (step, what) in steps.iter().enumerate() {
            let tally = Tally::of(all.iter().filter(|m| m.step == step).map(|m| m.kind));
            if tally.quick.min(tally.slow) >= wanted {
                continue;
            }
            let Some(rows) = self.step(&mut server, what)? else { continue };
            let after = self.sample(&mut server, &probe)?;
            let samples = [before, after];
            // During a long step the state changes back and forth. Such a step measures only ratios, and counts for the state it began in.
            let of = if what.is_long() { &samples[..1] } else { &samples };
            let kind = Kind::of(&of.iter().map(|sample| sample.bare_ns).collect::<Vec<_>>());
            all.push(Measured { run, step, kind, samples, rows });
            before = after;
        }
        Ok(())
    }

    fn server(&self) -> Result<Server> {
        Server::start(&self.perf, &self.dir.0)
    }

    /// Checks the machine's state.
    fn sample(&self, server: &mut Server, probe: &Part) -> Result<Sample> {
        let rows = server.measure(probe)?;
        let bare_ns = rows.first().and_then(|row| row.num("p50_ns")).map(|ns| ns as u64);
        let bare_ns = bare_ns.ok_or_else(|| AppError::Setup("roce-perf raw measured no latency".into()))?;
        Ok(Sample { bare_ns, work_ns: cores::work_ns() })
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
                let _loops = child::busy_loops(pair.loops)?;
                let ours = match pair.ours(self.time) {
                    MeasuredBy::Perf(part) => {
                        self.part(server, &part)?.and_then(|rows| rows.into_iter().next())
                    }
                    MeasuredBy::Peer(peer) => self.peer(&peer)?,
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
        match peer.measure(share, &self.paths) {
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
mod tests {
    use super::*;
    use clap::Parser as _;

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
}
