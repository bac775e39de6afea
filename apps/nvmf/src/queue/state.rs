//! A queue: what it is made of, who its host is, how it answers and how it ends.

use std::sync::Arc;

use zerocopy::little_endian::{U16, U64};

use crate::admin::Controller;
use crate::association::{Association, ErrorOf, Life};
use crate::counters::QueueCounters;
use crate::fair::Who;
use crate::in_flight::{InFlight, Serving};
use crate::live::{Live, Snapshot, Table};
use crate::nqn::Nqn;
use crate::status::Status;
use crate::target::{Arrival, Target};
use crate::time::Instant;
use crate::wire::Cqe;
use crate::wire::fabrics::ConnectData;

use super::slots::{Connecting, Slots};
use super::step::{End, Response};

/// A queue of a host.
#[derive(Debug)]
pub struct Queue {
    pub(super) target: Target,
    pub(super) arrival: Arrival,
    pub(super) qid: u16,
    /// Entries of the submission queue: what the connection request said, then what Connect said.
    pub(super) entries: u16,
    /// Commands that were answered, modulo the entries: a host counts an entry as free only when its command is not under way any
    /// more, so it never sends more than there are slots.
    pub(super) sq_head: u16,
    /// Only a host that a subsystem names may connect.
    pub(super) named_only: bool,
    /// The host asked for no SQ flow control.
    pub(super) no_flow_control: bool,
    pub(super) slots: Slots,
    pub(super) role: Role,
    pub(super) end: Option<End>,
}

#[derive(Debug)]
pub(super) enum Role {
    /// Connect has not been done.
    New {
        /// When the connection was made, or the last Connect came.
        since: Instant,
        /// A Connect that waits for the host's earlier commands.
        held: Option<Box<Held>>,
    },
    Admin(Box<Controller>),
    Io(IoQueue),
}

/// A Connect that waits.
#[derive(Debug)]
pub(super) struct Held {
    pub(super) slot: u16,
    pub(super) command: Connecting,
    pub(super) data: ConnectData,
}

/// An I/O queue of a controller.
#[derive(Debug)]
pub(super) struct IoQueue {
    pub(super) qid: u16,
    pub(super) association: Arc<Association>,
    pub(super) life: Life,
    pub(super) live: Arc<Live>,
    pub(super) snapshot: Snapshot,
    pub(super) counters: Arc<QueueCounters>,
    pub(super) serving: Serving,
}

impl Queue {
    /// Its number: 0 is the admin queue.
    pub const fn qid(&self) -> u16 {
        self.qid
    }
    /// The controller that it belongs to, once Connect is done.
    pub fn cntlid(&self) -> Option<u16> {
        self.association().map(|a| a.cntlid)
    }
    /// Who the host is, as far as it has said.
    pub fn who(&self) -> Who {
        let address = self.arrival.peer;
        match self.association() {
            None => Who::at(address),
            Some(association) => association.who.moved_to(address),
        }
    }
    /// Whether Connect is done, and the subsystem names the host in its list.
    pub fn is_named(&self) -> bool {
        self.association().is_some_and(|association| association.named)
    }
    /// The program has room left only for hosts that a subsystem names in its list. So only such a host may connect on this queue; the
    /// Connect of any other host fails with "controller busy".
    pub fn keep_for_named(&mut self) {
        self.named_only = true;
    }
    /// The host, once Connect is done.
    pub fn host(&self) -> Option<Nqn> {
        self.association().map(|a| a.host.clone())
    }
    /// The subsystem, once Connect to one is done.
    pub fn subsystem(&self) -> Option<Nqn> {
        self.association()?.live.as_ref().map(|live| live.nqn.clone())
    }
    /// A token for the queue's requests to the storage; `None` before Connect, and for admin queues. If some are under way when the
    /// queue ends, keep it until they are done: until then a Connect of the same host waits.
    pub fn in_flight(&self) -> Option<InFlight> {
        match &self.role {
            Role::Io(io) => Some(io.serving.in_flight()),
            _ => None,
        }
    }
    /// Commands that have no response yet.
    pub fn commands(&self) -> usize {
        self.slots.len()
    }

    /// Why the queue has ended, if it has. Another queue or a change of the target may end it: call this regularly.
    #[inline]
    pub fn poll_end(&mut self) -> Option<End> {
        if self.end.is_none() {
            self.end = match &self.role {
                Role::New { .. } => None,
                Role::Admin(controller) => controller.association().is_over().then_some(End::NotServed),
                Role::Io(io) => (!io.association.is_in(io.life)).then_some(End::ControllerGone),
            };
        }
        self.end
    }

    #[inline]
    pub(super) fn check_end(&mut self) -> Result<(), End> {
        self.poll_end().map_or(Ok(()), Err)
    }
    #[cold]
    pub(super) fn end_by(&mut self, end: End) -> End {
        self.end = Some(end);
        // The controller ends with its admin queue at once, not only when the program drops the queue.
        if let Role::Admin(controller) = &self.role {
            controller.association().end();
        }
        end
    }
    pub(super) fn association(&self) -> Option<&Association> {
        match &self.role {
            Role::New { .. } => None,
            Role::Admin(controller) => Some(controller.association()),
            Role::Io(io) => Some(&io.association),
        }
    }

    /// Answers a command.
    #[inline]
    pub(super) fn respond(&mut self, slot: u16, status: Status, result: u64) -> Response {
        let (cid, invalidate) = self.slots.free(slot);
        self.sq_head = if self.sq_head + 1 >= self.entries { 0 } else { self.sq_head + 1 };
        let sq_head = if self.no_flow_control { 0xFFFF } else { self.sq_head };
        let cqe = Cqe {
            result: U64::new(result),
            sq_head: U16::new(sq_head),
            sq_id: U16::new(self.qid),
            cid: U16::new(cid),
            status: U16::new(status.field()),
        };
        Response { cqe, invalidate }
    }

    pub(super) fn note_error(&self, of: ErrorOf, status: Status) {
        if let Some(association) = self.association() {
            association.note_error(self.qid, of, status);
        }
    }
}

impl IoQueue {
    /// The namespaces as they are now.
    #[inline]
    pub(super) fn table(&mut self) -> &Table {
        if let Some(newer) = self.snapshot.newer(&self.live) {
            self.snapshot = newer;
        }
        &self.snapshot.table
    }
}

impl Drop for IoQueue {
    fn drop(&mut self) {
        self.serving.end();
        self.association.give_queue(self.qid, self.life);
        self.live.counters.leave(&self.counters);
    }
}
