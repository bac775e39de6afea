//! The first message between two processes that have never communicated: it waits until a link between them exists. The link is
//! requested as soon as one of the two connects its queue pair, so the time from that moment is measured as well.

use crate::bench::child;
use crate::bench::row::Row;
use crate::many::cli::FirstArgs;
use crate::many::found::Found;
use crate::many::order::Make;
use crate::many::team::{MemberOptions, Team, all_to_all};
use apps::error::Result;
use apps::measure::{Latency, histogram};
use apps::report::time;

const SIZE: u32 = 64;

/// Runs the measurement.
///
/// # Errors
/// The failure of a member.
pub fn measure(args: &FirstArgs) -> Result<Vec<Found>> {
    let processes = usize::from(args.processes);
    let mut team = Team::start(&vec![MemberOptions::usual(); processes])?;
    let make = Make { count: 0, size: SIZE, depth: 16, memory: 0 };
    let remote = team.make(&all_to_all(processes, 1), make)?;
    let loops = child::busy_loops(usize::from(args.beside))?;
    let (mut from_post, mut from_connect) = (histogram(), histogram());
    for first in 0..processes - 1 {
        for second in first + 1..processes {
            // A member has one queue pair for each other member, in their order.
            let end = |at: usize, queue: usize| (at, queue, &remote[at][queue]);
            let [post, connect] = team.meet(end(first, second - 1), end(second, first))?;
            from_post.saturating_record(post);
            from_connect.saturating_record(connect);
        }
    }
    drop(loops);
    team.end()?;
    let (all, connect) = (Latency::from(&from_post), Latency::from(&from_connect));
    let beside = args.beside;
    let text = format!(
        "the first message to a process, beside {beside} busy loops: complete {} (p50), {} (p99), {} at most after its post; {} and {} after \
         the first of the two began to connect; {} pairs of {processes} processes",
        time(all.p50_ns),
        time(all.p99_ns),
        time(all.max_ns),
        time(connect.p50_ns),
        time(connect.p99_ns),
        all.count,
    );
    let row =
        Row::new("send", "first").with("size", SIZE).with("processes", processes).with("beside", beside);
    let row = row.with("min_ns", all.min_ns).with("p50_ns", all.p50_ns).with("p99_ns", all.p99_ns);
    let row = row.with("max_ns", all.max_ns).with("messages", all.count);
    let row = row.with("p50_ns_from_connect", connect.p50_ns).with("p99_ns_from_connect", connect.p99_ns);
    Ok(vec![Found { text, row }])
}
