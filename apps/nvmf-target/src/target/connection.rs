//! A connection: a queue of a controller, and its queue pair.

use std::sync::Arc;

use nvmf::{Accepted, InFlight, Queue, Request, Ticket};
use verbs::rdma_cm::{CmId, IdState};
use verbs::{PeerCheck, PeerState, Qp, SendQueue};

use super::ids::ConnId;
use super::meter::Gauge;
use super::outbox::Outbox;
use super::shared::Share;

/// A connection. Its fields are dropped in order: the send queue (in `outbox`) before the queue pair, and the queue pair before the
/// `cm_id`.
#[derive(Debug)]
pub struct Connection {
    pub outbox: Outbox,
    pub qp: Arc<Qp>,
    pub cm_id: CmId,
    pub id: ConnId,
    /// The queue of the `nvmf` library; `None` once the connection ends.
    pub queue: Option<Queue>,
    /// The queue's token: kept after the queue has ended until no command of it waits any more.
    pub in_flight: Option<InFlight>,
    /// How many commands the host may have outstanding.
    pub receives: u16,
    /// How many commands of the connection wait (see [`Commands`](super::commands::Commands)).
    pub commands: u32,
    /// The connection's part of the shared resources.
    pub share: Share,
    /// How many connections the core had accepted before this one. A lower number means an older connection.
    pub accepted_before: u64,
    pub ending: Ending,
    /// Whether the host's name has been logged.
    pub announced: bool,
    /// The meters of its commands; `None` if commands are not metered.
    pub gauge: Option<Gauge>,
    /// Measures how long the host has acknowledged nothing while requests were outstanding.
    watch: Watch,
    /// Measures how long the host has acknowledged nothing, whether or not requests were outstanding.
    quiet: Watch,
    /// A check whether the host still has its end of the connection, made when it was silent for long.
    check: Option<PeerCheck>,
}

/// Measures for how long a number has not changed.
#[derive(Debug, Default)]
struct Watch {
    /// `None` while the number is not watched.
    seen: Option<Seen>,
}

#[derive(Clone, Copy, Debug)]
struct Seen {
    number: u64,
    since: u64,
}

impl Watch {
    /// For how long the number has been the same, in nanoseconds, while it was `watched`; 0 if it has just changed.
    fn waited(&mut self, now: u64, watched: bool, number: u64) -> u64 {
        match self.seen {
            Some(seen) if watched && seen.number == number => now.saturating_sub(seen.since),
            _ => {
                self.seen = watched.then_some(Seen { number, since: now });
                0
            }
        }
    }
}

/// Whether a connection is ending, and how far it has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ending {
    No,
    /// The queue pair is in the error state, and its work requests are being flushed.
    Flushing,
    /// All completions have been in the completion queue since this turn.
    Flushed(u64),
}

impl Connection {
    pub fn new(
        id: ConnId,
        accepted: Accepted,
        cm_id: CmId,
        qp: Arc<Qp>,
        sq: SendQueue,
        share: Share,
    ) -> Self {
        let Accepted { queue, receives, sends, .. } = accepted;
        Self {
            outbox: Outbox::new(sq, (sends < receives).then_some(sends)),
            qp,
            cm_id,
            id,
            queue: Some(queue),
            in_flight: None,
            receives,
            commands: 0,
            share,
            accepted_before: 0,
            ending: Ending::No,
            announced: false,
            gauge: None,
            watch: Watch::default(),
            quiet: Watch::default(),
            check: None,
        }
    }
    /// Whether the connection is not ending.
    #[inline]
    pub fn is_open(&self) -> bool {
        self.ending == Ending::No
    }

    /// Starts to meter a command of a namespace. `now` is in nanoseconds.
    #[inline]
    pub fn meter_begin(&mut self, now: u64, ticket: Ticket, request: &Request<'_>) {
        if let (Some(gauge), Some(queue)) = (&mut self.gauge, &self.queue) {
            gauge.begin(ticket, request, now, || queue.host().zip(queue.subsystem()));
        }
    }
    /// Meters the end of a command, which is about to be answered. `ok`: it succeeded. `now` is in nanoseconds.
    #[inline]
    pub fn meter_end(&mut self, now: impl FnOnce() -> u64, ticket: Ticket, ok: bool) {
        if let Some(gauge) = &mut self.gauge {
            gauge.end(ticket, now(), ok);
        }
    }

    /// Whether the host has acknowledged nothing for `patience` nanoseconds although requests were outstanding. Call this regularly.
    pub fn is_stuck(&mut self, now: u64, patience: u64) -> bool {
        let waits = self.outbox.under_way() > 0 || self.outbox.has_waiting();
        self.watch.waited(now, waits, self.outbox.taken()) >= patience
    }
    /// Whether the host is gone. Call this regularly: if the host has acknowledged nothing for `silence` nanoseconds, possibly because
    /// nothing was sent to it, this starts a check whether the host still has its end of the connection.
    pub fn is_gone(&mut self, now: u64, silence: u64) -> bool {
        let quiet = self.quiet.waited(now, true, self.outbox.taken());
        match self.check.as_ref().map(PeerCheck::state) {
            // A connection that is not established yet has a timeout of its own.
            None if quiet >= silence && self.cm_id.state() == IdState::Connected => {
                self.check = self.qp.check_peer().ok(); // fails only if the device has failed
                false
            }
            None | Some(PeerState::Asked) => false,
            Some(PeerState::Alive) => {
                (self.check, self.quiet) = (None, Watch::default());
                false
            }
            Some(_) => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Watch;

    // Goal: the time counts from when a request was outstanding and nothing completed, however long the target has been running.
    #[test]
    fn waiting_begins_when_something_is_under_way() {
        let mut watch = Watch::default();
        assert_eq!(watch.waited(1000, false, 0), 0);
        assert_eq!(watch.waited(2000, true, 0), 0, "it has just begun");
        assert_eq!(watch.waited(2500, true, 0), 500);
        assert_eq!(watch.waited(3000, true, 1), 0, "something completed");
        assert_eq!(watch.waited(3700, true, 1), 700);
        assert_eq!(watch.waited(4000, false, 1), 0);
        assert_eq!(watch.waited(9000, true, 1), 0, "it was idle meanwhile");
        assert_eq!(Watch::default().waited(u64::MAX, true, 0), 0);
    }
}
