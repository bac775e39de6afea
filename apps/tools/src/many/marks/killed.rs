//! How soon a request fails whose peer's process ends: one that the system takes apart first, and one that can say so itself.

use crate::bench::row::Row;
use crate::many::cli::KilledArgs;
use crate::many::found::Found;
use crate::many::order::{End, Make, Order, Report};
use crate::many::team::{Seat, Team, out_of_turn, pairs};
use apps::error::Result;
use apps::measure::{Latency, histogram};
use apps::report::{bytes, time};
use std::time::Duration;

/// Time for which the two write before it.
const AFTER: Duration = Duration::from_millis(50);
/// Bytes of a request: so many that it takes longer than until the next poll.
const SIZE: u32 = 1 << 20;

/// Measures both ends.
///
/// # Errors
/// What a member could not do.
pub fn measure(args: &KilledArgs) -> Result<Vec<Found>> {
    let ends = [("SIGKILL", "sigkill", End::Kill), ("SIGINT", "sigint", End::Int)];
    ends.into_iter().map(|end| ended(args, end)).collect()
}

fn ended(args: &KilledArgs, (name, op, signal): (&str, &str, End)) -> Result<Found> {
    let mut hist = histogram();
    for _ in 0..args.rounds {
        hist.saturating_record(once(args, signal)?);
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

/// The nanoseconds of one, with processes of its own.
fn once(args: &KilledArgs, signal: End) -> Result<u64> {
    let mut team = Team::start(&[Seat::usual(), Seat::usual()])?;
    // Both have as much, though only that of the one that ends counts.
    team.connect(&pairs(2), Make { count: 0, size: SIZE, depth: 16, memory: args.memory as usize })?;
    let pid = team.pid(1);
    team.may_end(1);
    let (pause, after_ms) = (args.pause.unwrap_or_default(), AFTER.as_millis() as u64);
    let order = Order::Kill { pid, signal, after_ms, late_ms: args.late.then_some(pause.as_millis() as u64) };
    let report = team.ask(0, &order, AFTER + pause)?;
    let Report::Times(times) = &report else { return Err(out_of_turn(0, &report)) };
    let [ns] = times[..] else { return Err(out_of_turn(0, &report)) };
    team.end()?;
    Ok(ns)
}
