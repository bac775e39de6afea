//! Measures how soon a process learns that its peer has ended: by the failure of a request that is outstanding at that moment.

use crate::many::objects::{Objects, WCS, Wait};
use crate::many::order::{End, Report};
use apps::error::{AppError, Result};
use rustix::process::{Pid, Signal, kill_process};
use std::time::{Duration, Instant};
use verbs::Wc;

/// Requests outstanding: enough that some are at any moment, however late they are polled.
const DEPTH: usize = 8;

/// Writes to the peer for a while, sends its process the signal, and goes on writing until a request fails. With `late` no request is
/// outstanding when the signal is sent, and one request is posted that much later. Reports the time from just before the signal, or from
/// that post, to the failed completion.
///
/// # Errors
/// A request that fails before the signal; no failure after it.
pub fn run(
    objects: &mut Objects,
    pid: u32,
    signal: End,
    after: Duration,
    late: Option<Duration>,
) -> Result<Report> {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
    let pid = pid.ok_or_else(|| AppError::ProtocolViolation("0 is no process to send a signal".into()))?;
    let signal = match signal {
        End::Kill => Signal::KILL,
        End::Int => Signal::INT,
    };
    let mut wcs = [Wc::default(); WCS];
    let (begin, mut outstanding, mut wait) = (Instant::now(), 0, Wait::default());
    loop {
        let is_over = begin.elapsed() >= after;
        while outstanding < DEPTH && !is_over {
            objects.write(0)?;
            outstanding += 1;
        }
        if is_over && (late.is_none() || outstanding == 0) {
            break;
        }
        outstanding -= objects.poll_sends("RDMA WRITE", &mut wcs)?;
        wait.on("the completion of an RDMA WRITE")?;
    }
    // If this process had no core for a while, one poll may have taken all completions.
    if late.is_none() && outstanding == 0 {
        objects.write(0)?;
    }
    let mut since = Instant::now();
    kill_process(pid, signal).map_err(|e| AppError::Setup(format!("kill({pid:?}, {signal:?}): {e}")))?;
    if let Some(late) = late {
        // Polls meanwhile, like a program that waits for something else.
        while since.elapsed() < late {
            objects.poll_any(&mut wcs)?;
        }
        since += late;
        objects.write(0)?;
    }
    let mut wait = Wait::default();
    loop {
        let n = objects.poll_any(&mut wcs)?;
        for wc in &wcs[..n] {
            if !wc.is_ok() {
                return Ok(Report::Times(vec![since.elapsed().as_nanos() as u64]));
            }
            objects.write(0)?;
        }
        if n == 0 {
            wait.on("the failure of a request to a process that has ended")?;
        }
    }
}
