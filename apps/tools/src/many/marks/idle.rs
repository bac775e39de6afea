//! CPU time of processes that have a connected queue pair each, and nothing to do.

use crate::bench::row::Row;
use crate::many::cli::IdleArgs;
use crate::many::found::Found;
use crate::many::marks::pause::rest;
use crate::many::marks::proc;
use crate::many::order::{Make, Order};
use crate::many::team::{MemberOptions, Team, pairs};
use apps::error::Result;
use std::time::{Duration, Instant};

/// Time until all members sleep for as long as they ever do.
const SETTLE: Duration = Duration::from_secs(2);

/// Runs the measurement.
///
/// # Errors
/// The failure of a member.
pub fn measure(args: &IdleArgs) -> Result<Vec<Found>> {
    let processes = usize::from(args.processes);
    let mut team = Team::start(&vec![MemberOptions::usual(); processes])?;
    team.connect(&pairs(processes), Make { count: 0, size: 64, depth: 16, memory: 0 })?;
    team.run_orders(|_| Order::Greet { from: 0, to: 1 }, Duration::ZERO)?;
    rest(SETTLE)?;
    let (began, before) = (Instant::now(), cpu_time(&team)?);
    rest(args.duration)?;
    let used = cpu_time(&team)?.saturating_sub(before);
    let share = used.as_secs_f64() / began.elapsed().as_secs_f64();
    team.end()?;
    let text = format!(
        "{processes} processes with a connected queue pair each, idle: {:.2} % of a core together, over {:?}",
        100.0 * share,
        args.duration
    );
    let row = Row::new("idle", "cpu").with("processes", processes).with("cpu_share", share);
    Ok(vec![Found { text, row }])
}

/// The CPU time of all members together.
fn cpu_time(team: &Team) -> Result<Duration> {
    (0..team.size()).map(|at| proc::cpu_time(team.pid(at))).sum()
}
