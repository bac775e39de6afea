//! `roce-interop`: this stack against Linux soft-RoCE in a guest, cell by cell, every byte compared.

mod case;
mod cell;
mod remote;
mod run;

use crate::cli::interop::InteropCli;
use crate::error::{AppError, Result};
use case::CASES;
use cell::{Requester, Service};
use remote::Remote;
use run::Bench;
use std::time::Instant;
use verbs::port::{self, FaultPlan, PortOptions};
use verbs::{Context, DeviceConfig, Drive, Gid, PortSource};

/// How many cells passed, failed and could not be run.
#[derive(Debug, Default)]
struct Tally {
    passed: usize,
    failed: usize,
    skipped: usize,
}

/// Runs the matrix and prints it.
///
/// # Errors
/// A device or guest that cannot be used; [`AppError::Verify`] if any cell failed.
pub fn run(cli: &InteropCli) -> Result<()> {
    // The port first: over vhost the guest boots only when its other end is there.
    let context = open(cli)?;
    let remote = Remote::connect(cli.guest)?;
    let mtu = context.query_port(1)?.active_mtu;
    let mut bench = Bench::new(context, remote, 1, Gid::from_ip(cli.peer_ip))?;
    let services = [Service::Rc, Service::Uc, Service::Ud];
    let mut tally = Tally::default();
    let mut cells = cell::matrix(&services, mtu, cli.full);
    if cli.lossy() {
        // What is lost comes back by retries: reliable connections, messages of a few packets.
        cells.retain(|c| c.service == Service::Rc && c.len <= 16 * c.mtu.bytes() as u32);
        for c in &mut cells {
            c.count = c.count.min(100);
        }
    }
    let only = |name: &str| cli.only.as_ref().is_none_or(|only| name.contains(only.as_str()));
    for cell in cells.iter().filter(|c| only(&c.to_string())) {
        let start = Instant::now();
        let result = bench.run(cell);
        tally.note(&format!("{}{cell} x {}", cli.label(), cell.count), start, result)?;
    }
    if !cli.lossy() {
        for (case, by) in CASES.iter().flat_map(|c| [Requester::Us, Requester::Linux].map(|by| (c, by))) {
            let by_name = if by == Requester::Us { "us" } else { "linux" };
            let name = format!("{by_name:5} rc {}", case.name);
            if only(&name) {
                let start = Instant::now();
                let result = bench.case(case, by, mtu);
                tally.note(&format!("{}{name}", cli.label()), start, result)?;
            }
        }
    }
    let counters = bench.context().counters();
    println!("{} passed, {} failed, {} skipped", tally.passed, tally.failed, tally.skipped);
    println!("retries {}, dropped {}", counters.retries(), counters.drops());
    if tally.failed > 0 {
        return Err(AppError::Verify(format!("{} cells failed", tally.failed)));
    }
    Ok(())
}

impl Tally {
    /// Prints a line; a connection that is gone ends the run.
    fn note(&mut self, name: &str, start: Instant, result: Result<()>) -> Result<()> {
        let took = start.elapsed().as_secs_f64();
        match result {
            Ok(()) => {
                self.passed += 1;
                println!("PASS {name} ({took:.2} s)");
                Ok(())
            }
            Err(AppError::Interrupted) => Err(AppError::Interrupted),
            Err(e) => {
                self.failed += 1;
                println!("FAIL {name} ({took:.2} s): {e}");
                // Both sides are somewhere in the middle of a cell: the next one could not be trusted.
                Err(e)
            }
        }
    }
}

fn open(cli: &InteropCli) -> Result<Context> {
    let options =
        PortOptions { mtu: usize::from(cli.link_mtu), mac: Some(cli.mac), ..PortOptions::default() };
    let mut port = cli.port.open(&options).map_err(|e| AppError::Setup(e.to_string()))?;
    if let Some(path) = &cli.pcap {
        port = port::capture(port, path).map_err(|e| AppError::Setup(format!("--pcap: {e}")))?;
    }
    if cli.lossy() {
        let plan = FaultPlan {
            loss: cli.loss / 100.0,
            duplicate: cli.duplicate / 100.0,
            reorder: cli.reorder / 100.0,
            rx: true,
            tx: true,
            ..FaultPlan::default()
        };
        port = port::fault(port, plan, cli.seed);
    }
    let config = DeviceConfig {
        port: PortSource::Opened(port),
        addrs: vec![cli.ip],
        vlan: cli.vlan,
        drive: Drive::Caller,
        ..DeviceConfig::default()
    };
    let context = Context::open(config)?;
    context.start()?;
    Ok(context)
}
