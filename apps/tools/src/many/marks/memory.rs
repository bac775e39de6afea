//! Memory of a process with many links: of the links when all are idle, and of the whole process when all are busy.

use crate::bench::row::Row;
use crate::many::cli::MemoryArgs;
use crate::many::found::Found;
use crate::many::marks::pause::rest;
use crate::many::marks::proc;
use crate::many::order::{Make, Order};
use crate::many::team::{MemberOptions, Team, star};
use apps::error::{AppError, Result};
use apps::report::bytes;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Time between two samples of a busy process.
const LOOK: Duration = Duration::from_millis(100);

/// Runs both measurements.
///
/// # Errors
/// The failure of a member.
pub fn measure(args: &MemoryArgs) -> Result<Vec<Found>> {
    let links = usize::from(args.links);
    let members = vec![MemberOptions::usual(); links + 1];
    let mut team = Team::start(&members)?;
    let make = Make { count: 0, size: args.size as u32, depth: args.depth, memory: 0 };
    team.connect(&star(members.len()), make)?;
    let hub = team.pid(0);
    team.run_order(0, &Order::Greet { from: 0, to: links }, Duration::ZERO)?;
    // Wait until the memory that only a busy link uses has been released, too.
    rest(args.duration)?;
    let (idle, found) = (proc::pss_of_links(hub)?, proc::links(hub)?);
    if found != links {
        return Err(AppError::Setup(format!("{found} of {links} links were made")));
    }

    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let end = now + args.duration;
    let flood = Order::Flood { depth: args.depth, window_ns: [now, end].map(|at| at.as_nanos() as u64) };
    for at in 0..team.size() {
        team.send_order(at, &flood)?;
    }
    let (mut busy, mut busy_links) = (0, 0);
    let until = Instant::now() + args.duration;
    while Instant::now() < until {
        rest(LOOK)?;
        busy = proc::pss(hub)?.max(busy);
        busy_links = proc::pss_of_links(hub)?.max(busy_links);
    }
    for at in 0..team.size() {
        team.receive_report(at, args.duration + Duration::from_secs(60))?;
    }
    team.end()?;
    let of_idle = Found {
        text: format!("{links} idle links of a process: {}", mib(idle)),
        row: Row::new("idle_links", "memory").with("links", links).with("pss_bytes", idle),
    };
    let of_busy = Found {
        text: format!(
            "a process with {links} busy links, {} of {} outstanding on each: {}, of it links {}",
            args.depth,
            bytes(args.size),
            mib(busy),
            mib(busy_links)
        ),
        row: Row::new("busy_process", "memory")
            .with("links", links)
            .with("size", args.size)
            .with("pss_bytes", busy)
            .with("pss_bytes_of_links", busy_links),
    };
    Ok(vec![of_idle, of_busy])
}

fn mib(bytes: u64) -> String {
    format!("{:.2} MiB", bytes as f64 / f64::from(1 << 20))
}
