//! Bounces a message between two members, which poll all the time, to measure the latency while others send to one of the two.

use crate::many::objects::{Objects, WCS, Wait};
use crate::many::order::Report;
use crate::many::orders::Orders;
use apps::error::Result;
use apps::measure::{Latency, QUANTILES, histogram};
use std::hint::spin_loop;
use std::time::{Duration, Instant};
use verbs::Wc;

/// The queue pair between the two.
const PARTNER: usize = 0;
/// Round trips before the measured ones.
const WARM_UP: u64 = 200;
/// One request in this many is signalled.
const SIGNAL_EVERY: u64 = 32;

/// Begins the bounces, and measures them for `duration`.
///
/// # Errors
/// A message that failed, or did not arrive in time.
pub fn measure(objects: &mut Objects, duration: Duration) -> Result<Report> {
    let mut sent = Sent::default();
    let mut hist = histogram();
    let mut end = None;
    let mut before = Instant::now();
    loop {
        sent.send(objects)?;
        let mut wait = Wait::default();
        loop {
            objects.turn();
            if objects.receive(PARTNER)? > 0 {
                break;
            }
            wait.on("the answer to a message")?;
            spin_loop();
        }
        let after = Instant::now();
        if sent.posted > WARM_UP {
            hist.saturating_record((after - before).as_nanos() as u64 / 2);
            if after >= *end.get_or_insert(after + duration) {
                break;
            }
        }
        before = if sent.make_room(objects)? { Instant::now() } else { after };
    }
    let figures = Latency::from(&hist);
    let mut quantiles: Vec<(f64, u64)> = QUANTILES.into_iter().zip(figures.curve).collect();
    quantiles.push((1.0, figures.max_ns));
    Ok(Report::Curve { quantiles, count: figures.count })
}

/// Sends each message back, until [`Order::Stop`](super::super::order::Order::Stop).
///
/// # Errors
/// As [`measure`].
pub fn answer(objects: &mut Objects, orders: &Orders) -> Result<Report> {
    let mut sent = Sent::default();
    // Only messages of members other than the partner may arrive, so no wait here has a time limit.
    let mut polls = 0u32;
    loop {
        objects.turn();
        if objects.receive(PARTNER)? > 0 {
            sent.send(objects)?;
            sent.make_room(objects)?;
        }
        polls = polls.wrapping_add(1);
        if polls.is_multiple_of(4096) && orders.is_stopped()? {
            return Ok(Report::Done);
        }
        spin_loop();
    }
}

/// The messages that were sent.
#[derive(Default)]
struct Sent {
    posted: u64,
    complete: u64,
}

impl Sent {
    #[inline]
    fn send(&mut self, objects: &mut Objects) -> Result<()> {
        self.posted += 1;
        objects.send(PARTNER, self.posted.is_multiple_of(SIGNAL_EVERY))
    }

    /// Makes room in the send queue between two messages, once half of it is in use. Returns whether that took time.
    #[inline]
    fn make_room(&mut self, objects: &mut Objects) -> Result<bool> {
        if self.posted - self.complete < u64::from(objects.depth()) / 2 {
            return Ok(false);
        }
        let (mut wcs, mut wait) = ([Wc::default(); WCS], Wait::default());
        loop {
            self.complete += SIGNAL_EVERY * objects.poll_sends("SEND", &mut wcs)? as u64;
            if self.posted - self.complete < u64::from(objects.depth()) - SIGNAL_EVERY {
                return Ok(true);
            }
            wait.on("the completion of a message")?;
            objects.turn();
        }
    }
}
