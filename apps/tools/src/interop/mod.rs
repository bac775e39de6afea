//! `roce-interop`: this stack against Linux soft-RoCE in a guest, cell by cell, every byte compared.

mod case;
pub mod cell;
mod check;
pub mod cli;
mod cm;
mod link;
mod remote;
mod report;
pub mod results;
mod rnr;
mod run;
mod unreliable;

use apps::error::{AppError, Result};
use apps::out::say;
use case::{CASES, Case};
use cell::{Cell, Network, Requester};
use cli::{CheckArgs, InteropCli, InteropCommand, NoteArgs, ReportArgs, RunArgs};
use link::open_port;
use remote::Remote;
use results::{Results, Row, Verdict};
use rnr::{LATE, Late};
use run::Bench;
use std::time::Instant;
use verbs::port::fault::{Fault, Plan};
use verbs::{Context, Gid, Mtu};

/// Titles of the tables.
const MATRIX: &str = "Matrix";
const REMOTE_ERRORS: &str = "Remote errors and exhausted retries";
const RECEIVER_LATE: &str = "A receiver that is late";
const CAPTURES: &str = "Captures";

/// Runs the program.
///
/// # Errors
/// Any error that ends it early; [`AppError::Verify`] if a cell failed.
pub fn main(cli: &InteropCli) -> Result<()> {
    match &cli.command {
        InteropCommand::Run(args) => run(args),
        InteropCommand::Cm(args) => cm::run(args),
        InteropCommand::Check(args) => check(args),
        InteropCommand::Note(NoteArgs { results, row }) => Results::append(Some(results))?.add(row),
        InteropCommand::Report(args) => report(args),
    }
}

/// Failures after which a run ends: further cells would add no information.
const FAILURES_MAX: usize = 5;

/// A cell or a case to be run.
struct Trial {
    part: &'static str,
    /// The line of the table.
    what: String,
    by: Requester,
    /// A line that identifies the trial.
    line: String,
    work: Work,
}

enum Work {
    Cell(Cell),
    Case(&'static Case),
    Late(&'static Late),
}

/// All cells and cases of a network.
fn trials(net: Network, mtu: Mtu, full: bool) -> Vec<Trial> {
    let mut trials = Vec::new();
    for cell in cell::matrix(net, mtu, full) {
        let what = format!("{} {}", cell.service.name(), cell.op.name());
        let line = format!("{cell} x {}", cell.count);
        trials.push(Trial { part: MATRIX, what, by: cell.by, line, work: Work::Cell(cell) });
    }
    if net == Network::Faults {
        return trials;
    }
    for by in Requester::BOTH {
        let mut add = |part, name: &str, work| {
            let line = format!("{:5} rc {name}", by.name());
            trials.push(Trial { part, what: name.to_string(), by, line, work });
        };
        for case in CASES {
            add(REMOTE_ERRORS, case.name, Work::Case(case));
        }
        for late in LATE {
            add(RECEIVER_LATE, late.name, Work::Late(late));
        }
    }
    trials
}

/// A run on one network: the connection to the guest, and the results so far.
struct Session<'a> {
    args: &'a RunArgs,
    context: Context,
    mtu: Mtu,
    bench: Option<Bench>,
    results: Results,
    passed: usize,
    failed: usize,
    skipped: usize,
}

fn run(args: &RunArgs) -> Result<()> {
    // The port first: over vhost the guest boots only after this end of the link exists.
    let context = open(args)?;
    let (net, mtu) = (args.link.net, context.query_port(1)?.active_mtu);
    let mut trials = trials(net, mtu, args.full);
    trials.retain(|t| args.only.as_ref().is_none_or(|only| t.line.contains(only.as_str())));
    if let Some(path) = args.results.as_ref().filter(|path| args.resume && path.exists()) {
        let rows = results::read(path)?;
        let seen = |t: &Trial| {
            let done = |r: &Row| (&*r.net, &*r.part, &*r.cell) == (net.name(), t.part, &*t.line);
            rows.iter().any(|r| done(r) && r.verdict != Verdict::Fail)
        };
        let all = trials.len();
        trials.retain(|t| !seen(t));
        say!("{} of {all} cells are left", trials.len())?;
        if trials.is_empty() {
            // A run without frames must leave no capture file.
            return args.link.pcap.as_ref().map_or(Ok(()), |path| {
                std::fs::remove_file(path).map_err(|e| AppError::Setup(format!("{}: {e}", path.display())))
            });
        }
    }
    let results = Results::append(args.results.as_deref())?;
    let mut session = Session { args, context, mtu, bench: None, results, passed: 0, failed: 0, skipped: 0 };
    let done = session.all(&trials);
    if let Some(mut bench) = session.bench.take() {
        let _ = bench.remote.send("bye");
    }
    let counters = session.context.counters();
    let Session { passed, failed, skipped, .. } = session;
    say!("{passed} passed, {failed} failed, {skipped} skipped")?;
    say!("retries {}, dropped {}", counters.retries(), counters.drops())?;
    done?;
    if failed > 0 {
        return Err(AppError::Verify(format!("{failed} cells failed")));
    }
    Ok(())
}

impl Session<'_> {
    fn all(&mut self, trials: &[Trial]) -> Result<()> {
        let start = Instant::now();
        for (n, trial) in trials.iter().enumerate() {
            if self.args.seconds.is_some_and(|s| start.elapsed().as_secs() >= s) {
                say!(
                    "STOPPED after {:?}: {} cells are left for --resume",
                    start.elapsed(),
                    trials.len() - n
                )?;
                break;
            }
            self.one(trial)?;
            if self.args.full && (n + 1) % 25 == 0 {
                let (took, done) = (start.elapsed(), n as u32 + 1);
                let left = took / done * (trials.len() as u32 - done);
                say!("{done} of {} cells in {} s, {} s to go", trials.len(), took.as_secs(), left.as_secs())?;
            }
        }
        Ok(())
    }

    /// Runs one trial, prints its line and stores its result. A failure leaves both sides in an unknown state, so the next trial starts on a
    /// new connection to the guest.
    fn one(&mut self, trial: &Trial) -> Result<()> {
        let Trial { part, what, by, line, work } = trial;
        let net = self.args.link.net;
        if self.bench.is_none() {
            let remote = Remote::connect(self.args.guest)?;
            let peer = Gid::from_ip(net.addresses().1);
            let bench = Bench::new(&self.context, remote, 1, peer, net == Network::Faults)?;
            self.bench = Some(bench);
        }
        let Some(bench) = &mut self.bench else { return Ok(()) };
        let start = Instant::now();
        let result = match work {
            Work::Cell(cell) => match bench.lacks(cell) {
                Some(why) => Ok(Some(why)),
                None => bench.run(cell).map(|()| None),
            },
            Work::Case(case) => bench.case(case, *by, self.mtu),
            Work::Late(late) => bench.late(late, *by, self.mtu).map(|()| None),
        };
        let took = start.elapsed().as_secs_f64();
        let name = format!("{:6} {line}", net.name());
        let (verdict, detail) = match result {
            Ok(None) => (Verdict::Pass, line.clone()),
            Ok(Some(why)) => (Verdict::Skip, why),
            Err(AppError::Interrupted) => return Err(AppError::Interrupted),
            Err(e) => (Verdict::Fail, format!("{line}: {e}")),
        };
        match verdict {
            Verdict::Skip => {
                say!("SKIP {name}: {detail}")?;
                self.skipped += 1;
            }
            Verdict::Fail => {
                say!("FAIL {:6} {detail} ({took:.2} s)", net.name())?;
                self.failed += 1;
                self.bench = None;
            }
            _ => {
                say!("PASS {name} ({took:.2} s)")?;
                self.passed += 1;
            }
        }
        self.results.add(&Row {
            part: (*part).into(),
            net: net.name().into(),
            what: what.clone(),
            by: by.name().into(),
            verdict,
            detail,
            cell: line.clone(),
        })?;
        if self.failed >= FAILURES_MAX {
            return Err(AppError::Verify(format!("{FAILURES_MAX} cells failed; the rest was not tried")));
        }
        Ok(())
    }
}

/// Opens the port, and on it a device that has the address of this network.
fn open(args: &RunArgs) -> Result<Context> {
    let faults = (args.link.net == Network::Faults).then(|| {
        let ppm = |percent: f64| (percent * 10_000.0) as u32;
        let plan = Plan::CLEAN
            .with(Fault::Loss, ppm(args.loss))
            .with(Fault::Duplicate, ppm(args.duplicate))
            .with(Fault::Reorder, ppm(args.reorder));
        (plan, args.seed)
    });
    open_port(&args.link, faults, None)
}

fn check(args: &CheckArgs) -> Result<()> {
    let found = check::file(&args.pcap, args.mac.0)?;
    let [ours, theirs] = found.right;
    let detail = format!("{ours} of ours, {theirs} of Linux");
    say!("{}: {} frames, ICRC right: {detail}", args.pcap.display(), found.frames)?;
    let codes = found.opcodes.iter().map(|(opcode, n)| format!("{opcode:#04x}: {n}"));
    say!("  opcodes {}", codes.collect::<Vec<_>>().join(", "))?;
    let mut results = Results::append(args.results.as_deref())?;
    let mut note = |what: &str, verdict: Verdict, detail: String| {
        let row = |part: &str| Row {
            part: part.into(),
            net: args.net.clone(),
            what: what.into(),
            by: String::new(),
            verdict,
            detail,
            cell: String::new(),
        };
        results.add(&row(CAPTURES))
    };
    note("packets", Verdict::Note, detail)?;
    // A part of a run may consist of unreliable messages in one direction only.
    let wrong = match (found.wrong_frames, ours + theirs) {
        (0, 1..) => None,
        (0, 0) => Some("no packets".to_string()),
        (n, _) => Some(format!("{n} frames are wrong; {}", found.wrong.join("; "))),
    };
    match wrong {
        None => note("lengths, checksums and ICRCs", Verdict::Pass, String::new()),
        Some(why) => {
            note("lengths, checksums and ICRCs", Verdict::Fail, why.clone())?;
            Err(AppError::Verify(format!("{}: {why}", args.pcap.display())))
        }
    }
}

fn report(args: &ReportArgs) -> Result<()> {
    let tables = report::markdown(&results::read(&args.results)?);
    let Some(path) = &args.page else {
        return say!("{}", tables.trim_end());
    };
    let fail = |e: String| AppError::Setup(format!("{}: {e}", path.display()));
    let page = std::fs::read_to_string(path).map_err(|e| fail(e.to_string()))?;
    let page = report::into_page(&page, &args.section, &tables)
        .ok_or_else(|| fail(format!("it has no place for the tables of {}", args.section)))?;
    std::fs::write(path, page).map_err(|e| fail(e.to_string()))
}
