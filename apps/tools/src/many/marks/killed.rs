//! Measures how soon a request fails after its peer's process ends: after SIGKILL, when the kernel first has to tear the process down, and
//! after SIGINT, when the process can notify its peers.

use crate::bench::row::Row;
use crate::many::cli::KilledArgs;
use crate::many::found::Found;
use crate::many::order::{End, Make, Order, Report};
use crate::many::team::{MemberOptions, Team, out_of_turn, pairs};
use apps::error::Result;
use apps::measure::{Latency, histogram};
use apps::report::{bytes, time};
use std::time::Duration;

/// Time for which requests are outstanding before the signal.
const WRITE_TIME: Duration = Duration::from_millis(50);
/// Bytes of a request: enough that it is still outstanding at the next poll.
const SIZE: u32 = 1 << 20;

/// Measures both signals.
///
/// # Errors
/// The failure of a member.
pub fn measure(args: &KilledArgs) -> Result<Vec<Found>> {
    let ends = [("SIGKILL", "sigkill", End::Kill), ("SIGINT", "sigint", End::Int)];
    ends.into_iter().map(|end| measure_signal(args, end)).collect()
}

/// Measures one signal, `args.rounds` times. `name` is for people, `op` for the row.
fn measure_signal(args: &KilledArgs, (name, op, signal): (&str, &str, End)) -> Result<Found> {
    let mut hist = histogram();
    for _ in 0..args.rounds {
        hist.saturating_record(measure_once(args, signal)?);
    }
    let all = Latency::from(&hist);
    let text = format!(
        "{name} of a peer with {} of registered memory: its requests fail after {} (p50), {} to {}, {} times",
        bytes(args.memory),
        time(all.p50_ns),
        time(all.min_ns),
        time(all.max_ns),
        all.count,
    );
    let row = Row::new(op, "lat")
        .with("memory", args.memory)
        .with("late", args.late)
        .with("pause_ms", args.pause.map(|pause| pause.as_millis() as u64))
        .with("size", SIZE)
        .with("messages", all.count);
    let row = row.with("min_ns", all.min_ns).with("p50_ns", all.p50_ns).with("max_ns", all.max_ns);
    Ok(Found { text, row })
}

/// Starts two processes, ends one of them by the signal, and returns the nanoseconds from the signal to the failure of a request of the
/// other.
fn measure_once(args: &KilledArgs, signal: End) -> Result<u64> {
    let mut team = Team::start(&[MemberOptions::usual(), MemberOptions::usual()])?;
    // Both have the same memory, although only the memory of the process that ends matters.
    team.connect(&pairs(2), Make { count: 0, size: SIZE, depth: 16, memory: args.memory as usize })?;
    let pid = team.pid(1);
    team.may_end(1);
    let (pause, after_ms) = (args.pause.unwrap_or_default(), WRITE_TIME.as_millis() as u64);
    let order = Order::Kill { pid, signal, after_ms, late_ms: args.late.then_some(pause.as_millis() as u64) };
    let report = team.run_order(0, &order, WRITE_TIME + pause)?;
    let Report::Times(times) = &report else { return Err(out_of_turn(0, &report)) };
    let [ns] = times[..] else { return Err(out_of_turn(0, &report)) };
    team.end()?;
    Ok(ns)
}
