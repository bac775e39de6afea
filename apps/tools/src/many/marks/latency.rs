//! Latency of SEND between two processes while others send to one of them; or over a private memif.

use crate::bench::row::Row;
use crate::many::cli::LatencyArgs;
use crate::many::found::Found;
use crate::many::order::{Make, Order, Report};
use crate::many::team::{MemberOptions, Team, out_of_turn};
use apps::error::Result;
use apps::report::time;
use std::time::Duration;

const SIZE: u32 = 64;
const DEPTH: u32 = 128;
/// The addresses of the ends of a memif, which has none of the host's.
const ADDRS: [&str; 2] = ["10.77.0.1/24", "10.77.0.2/24"];

/// Runs the measurement.
///
/// # Errors
/// The failure of a member.
pub fn measure(args: &LatencyArgs) -> Result<Vec<Found>> {
    let others = if args.memif { 0 } else { usize::from(args.others) };
    let mut members = ends(args);
    members.extend((0..others).map(|_| MemberOptions::embedded()));
    let mut team = Team::start(&members)?;
    // The first member measures with the second, and all others send to the first.
    let peers = (0..members.len()).map(|at| if at == 0 { (1..members.len()).collect() } else { vec![0] });
    let peers: Vec<Vec<usize>> = peers.collect();
    team.connect(&peers, Make { count: 0, size: SIZE, depth: DEPTH, memory: 0 })?;
    team.send_order(1, &Order::PingPong { begins: false, duration_ms: 0 })?;
    let every_us = args.every.as_micros() as u64;
    for other in 2..team.size() {
        team.send_order(other, &Order::Beat { every_us })?;
    }
    let duration_ms = args.duration.as_millis() as u64;
    let report = team.run_order(0, &Order::PingPong { begins: true, duration_ms }, args.duration)?;
    let Report::Curve { quantiles, count } = report else { return Err(out_of_turn(0, &report)) };
    // In the order of their dependence: the first member acknowledges what was sent to it.
    let mut sent = 0;
    for at in (1..team.size()).rev() {
        match team.run_order(at, &Order::Stop, Duration::ZERO)? {
            Report::Counts(counts) => sent += counts.iter().sum::<u64>(),
            Report::Done => {}
            other => return Err(out_of_turn(at, &other)),
        }
    }
    team.end()?;
    let at = |wanted: f64| quantiles.iter().find(|(q, _)| *q == wanted).map_or(0, |(_, ns)| *ns);
    let over = if args.memif { "a memif" } else { "a link" };
    let text = format!(
        "SEND {SIZE} B over {over}, {others} others: {} one way (p50), {} (p99), {} (p99.9); {sent} messages of the others",
        time(at(0.5)),
        time(at(0.99)),
        time(at(0.999)),
    );
    let row =
        Row::new("send", "lat").with("size", SIZE).with("port", if args.memif { "memif" } else { "host" });
    let row = row.with("others", others).with("latency", "one_way").with("messages", count);
    let row = row.with("min_ns", at(0.0)).with("p50_ns", at(0.5)).with("p99_ns", at(0.99));
    let row = row.with("p999_ns", at(0.999)).with("max_ns", at(1.0)).with("messages_of_others", sent);
    let curve: Vec<_> =
        quantiles.iter().filter(|(q, _)| *q < 1.0).map(|pair| serde_json::json!(pair)).collect();
    Ok(vec![Found { text, row: row.with("quantiles", curve) }])
}

/// How the two ends are started, each on a core.
fn ends(args: &LatencyArgs) -> Vec<MemberOptions> {
    let socket = std::env::temp_dir().join(format!("roce-many-{}", std::process::id()));
    let end = |n: usize| {
        let options = MemberOptions::embedded().with("--core", args.cores[n % args.cores.len()]);
        if !args.memif {
            return options;
        }
        let role = ["server", "client"][n];
        options.with("--port", format!("memif:{},role={role}", socket.display())).with("--ip", ADDRS[n])
    };
    vec![end(0), end(1)]
}
