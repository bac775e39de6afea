//! The loop of a measurement of many messages: post, poll completions, exchange message counts, watch.

use super::queues::QueueSet;
use super::watch::{Watch, out_of_turn};
use crate::error::{AppError, Result};
use crate::protocol::{Flow, Message};
use crate::rig::Driver;
use std::time::Instant;
use verbs::Wc;

/// The half that sends requests. Slow work drives the shards in between.
pub(super) trait Sending {
    /// Posts what may be posted now.
    fn post(&mut self, queues: &mut QueueSet, driver: &mut Driver) -> Result<()>;
    /// Polls completions.
    fn reap(&mut self, queues: &mut QueueSet, driver: &mut Driver) -> Result<()>;
    /// Whether everything that was to be sent has completed.
    fn is_done(&self) -> bool;
    /// Messages posted, as sent to the other end.
    fn counts(&self) -> Vec<u64>;
    /// Sets the end of a measurement limited by time, once that is reached.
    fn stop_when_due(&mut self, now: Instant);
    /// The counts of this half.
    fn flow(self) -> Flow;
}

/// The half that receives messages.
pub(super) trait Receiving {
    /// Polls completions and posts receives again.
    fn reap(&mut self, queues: &mut QueueSet, driver: &mut Driver) -> Result<()>;
    /// Messages received.
    fn total(&self) -> u64;
    /// The counts of this half.
    fn flow(self) -> Flow;
}

/// The counts of one end.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// The requests that this end sent.
    pub sent: Flow,
    /// The messages that this end received.
    pub received: Flow,
}

/// Runs this end's halves until both ends are done. Also returns the `numbers` counts that the other end sent.
///
/// # Errors
/// Errors of the halves, the peer's failure, a signal, more messages than were sent.
pub(super) fn run(
    queues: &mut QueueSet,
    driver: &mut Driver,
    watch: &mut Watch<'_>,
    mut tx: Option<impl Sending>,
    mut rx: Option<impl Receiving>,
    numbers: usize,
) -> Result<(Outcome, Option<Vec<u64>>)> {
    let mut passive = [Wc::default(); 1];
    // Whether this end has sent its counts, and the counts of the peer.
    let mut reported = tx.is_none();
    let mut peer_sent: Option<Vec<u64>> = None;
    let sum = |sent: &Option<Vec<u64>>| sent.as_ref().map_or(0, |sent| sent.iter().sum());
    loop {
        driver.turn();
        match &mut tx {
            Some(tx) => {
                tx.post(queues, driver)?;
                tx.reap(queues, driver)?;
                if !reported && tx.is_done() {
                    watch.send(&Message::Finish { sent: tx.counts() })?;
                    reported = true;
                }
            }
            // In the caller drive, a poll drives the shards.
            None if rx.is_none() && !driver.is_mine() => {
                queues.send_cq.poll(&mut passive)?;
            }
            None => {}
        }
        if let Some(rx) = &mut rx {
            rx.reap(queues, driver)?;
        }
        if reported && (!queues.role.serves || peer_sent.is_some()) {
            let expected: u64 = sum(&peer_sent);
            if rx.as_ref().is_none_or(|rx| rx.total() >= expected) {
                break;
            }
        }
        if watch.due() {
            let now = Instant::now();
            let mut outstanding = false;
            if let Some(tx) = &mut tx {
                tx.stop_when_due(now);
                outstanding = !tx.is_done();
            }
            match watch.look(now, outstanding)? {
                Some(Message::Finish { sent }) if queues.role.serves && sent.len() == numbers => {
                    peer_sent = Some(sent);
                }
                Some(message) => return Err(out_of_turn(&message)),
                None => {}
            }
        }
    }
    if peer_sent.is_some() && rx.as_ref().is_some_and(|rx| rx.total() > sum(&peer_sent)) {
        return Err(AppError::Verify("more messages arrived than were sent".into()));
    }
    let sent = tx.map(Sending::flow).unwrap_or_default();
    let received = rx.map(Receiving::flow).unwrap_or_default();
    Ok((Outcome { sent, received }, peer_sent))
}
