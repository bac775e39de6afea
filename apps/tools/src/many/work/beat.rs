//! Sends a short message now and then, as a program with little to send: sends one, sleeps until the next is due, and polls the
//! completion then.

use crate::many::objects::{Objects, WCS};
use crate::many::order::Report;
use crate::many::orders::Orders;
use apps::error::Result;
use std::time::{Duration, Instant};
use verbs::Wc;

/// Sends on the first queue pair until [`Order::Stop`](super::super::order::Order::Stop); reports the number of messages sent. While
/// the send queue is full, messages are skipped.
///
/// # Errors
/// A message that failed.
pub fn run(objects: &mut Objects, orders: &Orders, every: Duration) -> Result<Report> {
    let mut wcs = [Wc::default(); WCS];
    let (mut posted, mut complete) = (0, 0);
    let mut due = Instant::now();
    while !orders.is_stopped()? {
        objects.turn();
        complete += objects.poll_sends("SEND", &mut wcs)? as u64;
        if posted - complete < u64::from(objects.depth()) {
            objects.send(0, true)?;
            posted += 1;
            objects.turn();
        }
        let now = Instant::now();
        // A missed message is not sent later.
        due = (due + every).max(now);
        std::thread::sleep(due - now);
    }
    Ok(Report::Counts(vec![posted]))
}
