//! The loop of a measurement of many messages: post, reap, tell the other end how many there were, watch.

use super::link::Link;
use super::watch::{Watch, out_of_turn};
use crate::error::{AppError, Result};
use crate::protocol::{Flow, Message};
use crate::rig::Crank;
use std::time::Instant;
use verbs::Wc;

/// The half that sends requests. What takes long turns the crank in between.
pub(super) trait Sending {
    /// Posts what may be posted now.
    fn post(&mut self, link: &mut Link, crank: &mut Crank) -> Result<()>;
    /// Takes completions.
    fn reap(&mut self, link: &mut Link, crank: &mut Crank) -> Result<()>;
    /// Whether everything that was to be sent has completed.
    fn is_done(&self) -> bool;
    /// Messages posted, as the other end is told.
    fn counts(&self) -> Vec<u64>;
    /// Sets the end of a measurement that time limits, when it is there.
    fn stop_when_due(&mut self, now: Instant);
    /// What it counted.
    fn flow(self) -> Flow;
}

/// The half that receives messages.
pub(super) trait Receiving {
    /// Takes completions and posts receives again.
    fn reap(&mut self, link: &mut Link, crank: &mut Crank) -> Result<()>;
    /// Messages received.
    fn total(&self) -> u64;
    /// What it counted.
    fn flow(self) -> Flow;
}

/// What one end counted.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// Its requests.
    pub sent: Flow,
    /// What it received.
    pub received: Flow,
}

/// Runs the halves that this end has, until both ends are through. Also returns what the other end said it sent:
/// `numbers` of them.
///
/// # Errors
/// What the halves say, the peer's failure, a signal, more messages than were sent.
pub(super) fn run(
    link: &mut Link,
    crank: &mut Crank,
    watch: &mut Watch<'_>,
    mut tx: Option<impl Sending>,
    mut rx: Option<impl Receiving>,
    numbers: usize,
) -> Result<(Outcome, Option<Vec<u64>>)> {
    let mut passive = [Wc::default(); 1];
    // What this end has told, and what it was told: how many messages there were.
    let mut told = tx.is_none();
    let mut peer_sent: Option<Vec<u64>> = None;
    let sum = |sent: &Option<Vec<u64>>| sent.as_ref().map_or(0, |sent| sent.iter().sum());
    loop {
        crank.turn();
        match &mut tx {
            Some(tx) => {
                tx.post(link, crank)?;
                tx.reap(link, crank)?;
                if !told && tx.is_done() {
                    watch.tell(&Message::Finish { sent: tx.counts() })?;
                    told = true;
                }
            }
            // In the caller-driven way, a poll is what turns the shards.
            None if rx.is_none() && !crank.is_mine() => {
                link.send_cq.poll(&mut passive)?;
            }
            None => {}
        }
        if let Some(rx) = &mut rx {
            rx.reap(link, crank)?;
        }
        if told && (!link.role.serves || peer_sent.is_some()) {
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
                Some(Message::Finish { sent }) if link.role.serves && sent.len() == numbers => {
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
