//! A connection: a queue of a controller on a queue pair of its own.

use std::sync::Arc;

use nvmf::{Accepted, InFlight, Queue, Request, Ticket};
use verbs::rdma_cm::{CmId, IdState};
use verbs::{PeerCheck, PeerState, Qp, SendQueue};

use super::ids::ConnId;
use super::meter::Gauge;
use super::outbox::Outbox;
use super::shared::Share;

/// A connection. Its parts are dropped in order: the handle before the queue pair, that before the identifier.
#[derive(Debug)]
pub struct Connection {
    pub outbox: Outbox,
    pub qp: Arc<Qp>,
    pub cm_id: CmId,
    pub id: ConnId,
    /// The controller's side; none once the connection ends.
    pub queue: Option<Queue>,
    /// Kept until no command waits for anything any more.
    pub in_flight: Option<InFlight>,
    /// Commands that the host may send at a time.
    pub receives: u16,
    /// Commands under way that wait for something.
    pub commands: u32,
    /// Its part of what hosts share.
    pub share: Share,
    /// How many connections the core had accepted before this one: the lower, the older.
    pub accepted_before: u64,
    pub ending: Ending,
    /// It has been logged who the host is.
    pub announced: bool,
    /// What its commands are counted by, where they are.
    pub gauge: Option<Gauge>,
    /// How long the host has taken nothing while something was on its way to it.
    watch: Watch,
    /// How long the host has taken nothing at all, also because there was nothing.
    quiet: Watch,
    /// The host was silent for a while, and is being asked.
    check: Option<PeerCheck>,
}

/// Notices that a number stays the same.
#[derive(Debug, Default)]
struct Watch {
    /// None while nobody watches.
    seen: Option<Seen>,
}

#[derive(Clone, Copy, Debug)]
struct Seen {
    number: u64,
    since: u64,
}

impl Watch {
    /// How long the number has been this, while somebody watches.
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

/// How far the end of a connection has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ending {
    No,
    /// The queue pair is in ERR; what was posted is being flushed.
    Flushing,
    /// All completions are in the queue, since this turn.
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
    /// Whether it has not begun to end.
    #[inline]
    pub fn is_open(&self) -> bool {
        self.ending == Ending::No
    }

    /// A command of a namespace begins, at `now`.
    #[inline]
    pub fn meter_begin(&mut self, now: u64, ticket: Ticket, request: &Request<'_>) {
        if let (Some(gauge), Some(queue)) = (&mut self.gauge, &self.queue) {
            gauge.begin(ticket, request, now, || queue.host().zip(queue.subsystem()));
        }
    }
    /// It has its response; `ok` if it succeeded.
    #[inline]
    pub fn meter_end(&mut self, now: impl FnOnce() -> u64, ticket: Ticket, ok: bool) {
        if let Some(gauge) = &mut self.gauge {
            gauge.end(ticket, now(), ok);
        }
    }

    /// Whether the host has taken nothing of what is to be sent to it for `patience` nanoseconds: call it now and then.
    pub fn is_stuck(&mut self, now: u64, patience: u64) -> bool {
        let waits = self.outbox.under_way() > 0 || self.outbox.has_waiting();
        self.watch.waited(now, waits, self.outbox.taken()) >= patience
    }
    /// Whether the host is gone: call it now and then. A host that has taken nothing for `silence` nanoseconds, which may be because
    /// there was nothing, is asked whether it still has its end of the connection.
    pub fn is_gone(&mut self, now: u64, silence: u64) -> bool {
        let quiet = self.quiet.waited(now, true, self.outbox.taken());
        match self.check.as_ref().map(PeerCheck::state) {
            // Before it is established the connection has a limit of its own.
            None if quiet >= silence && self.cm_id.state() == IdState::Connected => {
                self.check = self.qp.check_peer().ok(); // it fails where the device does
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

    // Goal: the time counts from when something was under way and nothing completed, however long the target runs already.
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
