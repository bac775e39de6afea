//! `roce-interop`: this stack against Linux soft-RoCE in a guest, cell by cell, every byte compared.

mod case;
mod cell;
mod check;
mod cm;
mod remote;
mod report;
mod results;
mod rnr;
mod run;

pub use cell::Network;
pub use results::{Row, Verdict};

use crate::cli::interop::{CheckArgs, InteropCli, InteropCommand, LinkArgs, NoteArgs, ReportArgs, RunArgs};
use crate::error::{AppError, Result};
use case::CASES;
use cell::Requester;
use remote::Remote;
use results::Results;
use rnr::LATE;
use run::Bench;
use std::time::Instant;
use verbs::port::{self, FaultPlan, PortOptions};
use verbs::{Context, DeviceConfig, Drive, Gid, PortSource};

/// Titles of the tables.
const MATRIX: &str = "Matrix";
const REMOTE_ERRORS: &str = "Remote errors and exhausted retries";
const RECEIVER_LATE: &str = "A receiver that is late";
const CAPTURES: &str = "Captures";

/// Runs the program.
///
/// # Errors
/// Whatever ends it early; [`AppError::Verify`] if something is not as it should be.
pub fn main(cli: &InteropCli) -> Result<()> {
    match &cli.command {
        InteropCommand::Run(args) => run(args),
        InteropCommand::Cm(args) => cm::run(args),
        InteropCommand::Check(args) => check(args),
        InteropCommand::Note(NoteArgs { results, row }) => Results::append(Some(results))?.add(row),
        InteropCommand::Report(args) => report(args),
    }
}

/// Failures after which a run ends: something is wrong that more cells do not tell.
const FAILURES_MAX: usize = 5;

/// One network's run: its connection to the guest, and what came out so far.
struct Session<'a> {
    args: &'a RunArgs,
    context: Context,
    bench: Option<Bench>,
    results: Results,
    passed: usize,
    failed: usize,
    skipped: usize,
}

fn run(args: &RunArgs) -> Result<()> {
    // The port first: over vhost the guest boots only when its other end is there.
    let context = open(args)?;
    let results = Results::append(args.results.as_deref())?;
    let mut session = Session { args, context, bench: None, results, passed: 0, failed: 0, skipped: 0 };
    let done = session.cells();
    if let Some(mut bench) = session.bench.take() {
        let _ = bench.remote.tell("bye");
    }
    let counters = session.context.counters();
    let Session { passed, failed, skipped, .. } = session;
    println!("{passed} passed, {failed} failed, {skipped} skipped");
    println!("retries {}, dropped {}", counters.retries(), counters.drops());
    done?;
    if failed > 0 {
        return Err(AppError::Verify(format!("{failed} cells failed")));
    }
    Ok(())
}

impl Session<'_> {
    fn cells(&mut self) -> Result<()> {
        let net = self.args.link.net;
        let mtu = self.context.query_port(1)?.active_mtu;
        for cell in cell::matrix(net, mtu, self.args.full) {
            let what = format!("{} {}", cell.service.name(), cell.op.name());
            let line = format!("{cell} x {}", cell.count);
            self.one(MATRIX, &what, cell.by, &line, |bench| match bench.lacks(&cell) {
                Some(why) => Ok(Some(why)),
                None => bench.run(&cell).map(|()| None),
            })?;
        }
        if net == Network::Faults {
            return Ok(());
        }
        for by in Requester::BOTH {
            for case in CASES {
                let line = format!("{:5} rc {}", by.name(), case.name);
                self.one(REMOTE_ERRORS, case.name, by, &line, |b| b.case(case, by, mtu).map(|()| None))?;
            }
            for late in LATE {
                let line = format!("{:5} rc {}", by.name(), late.name);
                self.one(RECEIVER_LATE, late.name, by, &line, |b| b.late(late, by, mtu).map(|()| None))?;
            }
        }
        Ok(())
    }

    /// Runs one, prints its line and keeps its result. After a failure both sides are somewhere in the middle of it:
    /// the next one starts on a new connection to the guest.
    fn one(
        &mut self,
        part: &str,
        what: &str,
        by: Requester,
        line: &str,
        work: impl FnOnce(&mut Bench) -> Result<Option<String>>,
    ) -> Result<()> {
        if self.args.only.as_ref().is_some_and(|only| !line.contains(only.as_str())) {
            return Ok(());
        }
        let net = self.args.link.net;
        if self.bench.is_none() {
            let remote = Remote::connect(self.args.guest)?;
            let peer = Gid::from_ip(net.addresses().1);
            let bench = Bench::new(&self.context, remote, 1, peer, net == Network::Faults)?;
            self.bench = Some(bench);
        }
        let Some(bench) = &mut self.bench else { return Ok(()) };
        let start = Instant::now();
        let result = work(bench);
        let took = start.elapsed().as_secs_f64();
        let name = format!("{:6} {line}", net.name());
        let (verdict, detail) = match result {
            Ok(None) => (Verdict::Pass, line.to_string()),
            Ok(Some(why)) => (Verdict::Skip, why),
            Err(AppError::Interrupted) => return Err(AppError::Interrupted),
            Err(e) => (Verdict::Fail, format!("{line}: {e}")),
        };
        match verdict {
            Verdict::Skip => {
                println!("SKIP {name}: {detail}");
                self.skipped += 1;
            }
            Verdict::Fail => {
                println!("FAIL {:6} {detail} ({took:.2} s)", net.name());
                self.failed += 1;
                self.bench = None;
            }
            _ => {
                println!("PASS {name} ({took:.2} s)");
                self.passed += 1;
            }
        }
        self.results.add(&Row {
            part: part.into(),
            net: net.name().into(),
            what: what.into(),
            by: by.name().into(),
            verdict,
            detail,
        })?;
        if self.failed >= FAILURES_MAX {
            return Err(AppError::Verify(format!("{FAILURES_MAX} cells failed; the rest was not tried")));
        }
        Ok(())
    }
}

/// Opens the port and a device on it that has the address of this network.
fn open(args: &RunArgs) -> Result<Context> {
    let faults = (args.link.net == Network::Faults).then(|| {
        let plan = FaultPlan {
            loss: args.loss / 100.0,
            duplicate: args.duplicate / 100.0,
            reorder: args.reorder / 100.0,
            rx: true,
            tx: true,
            ..FaultPlan::default()
        };
        (plan, args.seed)
    });
    open_port(&args.link, faults)
}

fn open_port(link: &LinkArgs, faults: Option<(FaultPlan, u64)>) -> Result<Context> {
    let options =
        PortOptions { mtu: usize::from(link.link_mtu), mac: Some(link.mac), ..PortOptions::default() };
    let mut port = link.port.open(&options).map_err(|e| AppError::Setup(e.to_string()))?;
    if let Some(path) = &link.pcap {
        port = port::capture(port, path).map_err(|e| AppError::Setup(format!("--pcap: {e}")))?;
    }
    if let Some((plan, seed)) = faults {
        port = port::fault(port, plan, seed);
    }
    let (ours, _, vlan) = link.net.addresses();
    let config = DeviceConfig {
        port: PortSource::Opened(port),
        addrs: vec![ours],
        vlan,
        drive: Drive::Caller,
        ..DeviceConfig::default()
    };
    let context = Context::open(config)?;
    context.start()?;
    Ok(context)
}

fn check(args: &CheckArgs) -> Result<()> {
    let found = check::file(&args.pcap, args.mac.0)?;
    let [ours, theirs] = found.right;
    let detail = format!("{ours} of ours, {theirs} of Linux");
    println!("{}: {} frames, ICRC right: {detail}", args.pcap.display(), found.frames);
    let codes = found.opcodes.iter().map(|(opcode, n)| format!("{opcode:#04x}: {n}"));
    println!("  opcodes {}", codes.collect::<Vec<_>>().join(", "));
    let mut results = Results::append(args.results.as_deref())?;
    let mut note = |what: &str, verdict: Verdict, detail: String| {
        let row = |part: &str| Row {
            part: part.into(),
            net: args.net.clone(),
            what: what.into(),
            by: String::new(),
            verdict,
            detail,
        };
        results.add(&row(CAPTURES))
    };
    note("packets", Verdict::Note, detail)?;
    let wrong = match (found.wrong_frames, ours.min(theirs)) {
        (0, 1..) => None,
        (0, 0) => Some("no packets both ways".to_string()),
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
        print!("{tables}");
        return Ok(());
    };
    let fail = |e: String| AppError::Setup(format!("{}: {e}", path.display()));
    let page = std::fs::read_to_string(path).map_err(|e| fail(e.to_string()))?;
    let page =
        report::into_page(&page, &tables).ok_or_else(|| fail("it has no place for the tables".into()))?;
    std::fs::write(path, page).map_err(|e| fail(e.to_string()))
}
