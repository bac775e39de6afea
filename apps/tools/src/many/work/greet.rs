//! Sends a message on each of several queue pairs, one after the other.

use crate::many::objects::{Objects, WCS, Wait};
use crate::many::order::Report;
use apps::error::Result;
use std::ops::Range;
use verbs::Wc;

/// Sends the messages.
///
/// # Errors
/// A message that failed.
pub fn run(objects: &mut Objects, queues: Range<usize>) -> Result<Report> {
    for at in queues {
        objects.send(at, true)?;
        complete(objects)?;
    }
    Ok(Report::Done)
}

/// Waits until a message is complete.
///
/// # Errors
/// A message that failed, or did not complete in time.
pub fn complete(objects: &mut Objects) -> Result<()> {
    let (mut wcs, mut wait) = ([Wc::default(); WCS], Wait::default());
    loop {
        objects.turn();
        if objects.poll_sends("SEND", &mut wcs)? > 0 {
            return Ok(());
        }
        wait.on("the completion of a SEND")?;
    }
}
