//! Keeps WRITEs outstanding on all queue pairs, to measure the throughput and how evenly it is shared.

use crate::many::objects::{Objects, WCS, Wait};
use crate::many::order::Report;
use apps::error::Result;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use verbs::Wc;

/// Keeps `depth` requests outstanding on each queue pair until the window ends, and polls all completions. Reports how many of each queue
/// pair completed within the window. The window is in nanoseconds of the system's clock, which all members share.
///
/// # Errors
/// A request that failed.
pub fn run(objects: &mut Objects, depth: u32, window_ns: [u64; 2]) -> Result<Report> {
    let [begin, end] = window_ns.map(at);
    let mut counts = vec![0u64; objects.count()];
    let mut outstanding = 0usize;
    for at in 0..objects.count() {
        for _ in 0..depth.min(objects.depth()) {
            objects.write(at)?;
            outstanding += 1;
        }
    }
    let (mut wcs, mut wait) = ([Wc::default(); WCS], Wait::default());
    while outstanding > 0 {
        objects.turn();
        let n = objects.poll_sends("RDMA WRITE", &mut wcs)?;
        if n == 0 {
            wait.on("the completion of an RDMA WRITE")?;
            std::thread::yield_now();
            continue;
        }
        wait = Wait::default();
        outstanding -= n;
        let now = Instant::now();
        let counts_now = now >= begin && now < end;
        for wc in &wcs[..n] {
            let at = wc.wr_id as usize;
            counts[at] += u64::from(counts_now);
            if now < end {
                objects.write(at)?;
                outstanding += 1;
            }
        }
    }
    Ok(Report::Counts(counts))
}

/// A time of the system's clock, on this process's monotonic clock.
fn at(unix_ns: u64) -> Instant {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Instant::now() + Duration::from_nanos(unix_ns).saturating_sub(now)
}
