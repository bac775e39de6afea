//! Processes that all write to each other at once: how evenly their connections share the throughput, and how much it is in total,
//! compared with one pair of processes alone.

use crate::bench::row::Row;
use crate::many::cli::FairArgs;
use crate::many::found::Found;
use crate::many::order::{Make, Order, Report};
use crate::many::team::{MemberOptions, Team, all_to_all, out_of_turn};
use apps::error::Result;
use apps::report::per_second;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Time until all members write, and the first links have the memory that they need.
const WARM_UP: Duration = Duration::from_millis(500);
/// Additional warm-up time for each connection of a process.
const WARM_UP_EACH: Duration = Duration::from_millis(2);

/// Measures one pair of processes, then all of them.
///
/// # Errors
/// The failure of a member: a failed request, for example.
pub fn measure(args: &FairArgs) -> Result<Vec<Found>> {
    let processes = usize::from(args.processes);
    let pair: u64 = counts(args, 2)?.iter().sum();
    let all = counts(args, processes)?;
    let sum = all.iter().sum::<u64>();
    let of_processes: Vec<u64> = all.chunks(all.len() / processes).map(|of| of.iter().sum()).collect();
    let (jain, of_processes) = (jain(&all), jain(&of_processes));
    let rate = |messages: u64| messages as f64 / args.duration.as_secs_f64();
    let (least, most) = (all.iter().min().copied().unwrap_or(0), all.iter().max().copied().unwrap_or(0));
    let ratio = if pair == 0 { 0.0 } else { sum as f64 / pair as f64 };
    let gbit = rate(sum) * args.size as f64 * 8.0 / 1e9;
    let text = format!(
        "WRITE {} B, {processes} processes, {} connections between two, {:?}: {}/s ({gbit:.1} Gb/s), {:.0} % of one pair's {}/s; \
         Jain's index {jain:.3} ({of_processes:.3} of processes), {least} to {most} messages a connection; no errors",
        args.size,
        args.connections,
        args.duration,
        per_second(rate(sum)),
        100.0 * ratio,
        per_second(rate(pair)),
    );
    let row = Row::new("write", "fair").with("size", args.size).with("processes", processes);
    let row = row
        .with("qps", all.len())
        .with("jain", jain)
        .with("jain_of_processes", of_processes)
        .with("msgs_per_s", rate(sum))
        .with("gbit_per_s", gbit);
    let row = row.with("limit", rate(pair)).with("ratio", ratio).with("messages", sum);
    Ok(vec![Found { text, row: row.with("least", least).with("most", most) }])
}

/// The messages of each connection within the time, in each direction, with this many processes.
fn counts(args: &FairArgs, processes: usize) -> Result<Vec<u64>> {
    let connections = usize::from(args.connections);
    let peers = all_to_all(processes, connections);
    let mut team = Team::start(&vec![MemberOptions::usual(); processes])?;
    team.connect(&peers, Make { count: 0, size: args.size as u32, depth: args.depth, memory: 0 })?;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let begin = now + WARM_UP + WARM_UP_EACH * peers[0].len() as u32;
    let window_ns = [begin, begin + args.duration].map(|at| at.as_nanos() as u64);
    let lasts = begin + args.duration - now;
    let mut all = Vec::new();
    let reports = team.run_orders(|_| Order::Flood { depth: args.depth, window_ns }, lasts)?;
    for (at, report) in reports.into_iter().enumerate() {
        let Report::Counts(counts) = report else { return Err(out_of_turn(at, &report)) };
        all.extend(counts);
    }
    team.end()?;
    Ok(all)
}

/// Jain's fairness index: 1 if all shares are equal, 1/n if one share is everything. (R. Jain, D. Chiu, W. Hawe, 1984.)
pub fn jain(shares: &[u64]) -> f64 {
    let sum: f64 = shares.iter().map(|share| *share as f64).sum();
    let squares: f64 = shares.iter().map(|share| (*share as f64).powi(2)).sum();
    if squares == 0.0 { 0.0 } else { sum * sum / (shares.len() as f64 * squares) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_index_is_one_for_equals_and_the_part_of_those_that_have_something() {
        assert!((jain(&[7, 7, 7]) - 1.0).abs() < 1e-12);
        assert!((jain(&[5, 0, 0, 0]) - 0.25).abs() < 1e-12);
        assert!((jain(&[1, 1, 0, 0]) - 0.5).abs() < 1e-12);
        // (1 + 2 + 3)^2 / (3 * (1 + 4 + 9))
        assert!((jain(&[1, 2, 3]) - 36.0 / 42.0).abs() < 1e-12);
        assert_eq!((jain(&[]), jain(&[0, 0])), (0.0, 0.0));
    }
}
