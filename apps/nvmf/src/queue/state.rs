//! The state of a queue: its host, its controller, its responses and its end.

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

/// An admin or I/O queue of a host, from the connection request to its end.
#[derive(Debug)]
pub struct Queue {
    pub(super) target: Target,
    pub(super) arrival: Arrival,
    pub(super) qid: u16,
    /// Entries of the submission queue: the number of the connection request, and after Connect that of Connect.
    pub(super) entries: u16,
    /// The number of answered commands, modulo the entries. It advances when a command is answered, not when it is fetched, so the host
    /// never has more commands outstanding than there are slots.
    pub(super) sq_head: u16,
    /// Only hosts that the subsystem lists may connect.
    pub(super) named_only: bool,
    /// The host asked to disable SQ flow control.
    pub(super) no_flow_control: bool,
    pub(super) slots: Slots,
    pub(super) role: Role,
    pub(super) end: Option<End>,
}

#[derive(Debug)]
pub(super) enum Role {
    /// Connect has not succeeded yet.
    New {
        /// When the connection was made, or when a Connect last began to wait or failed after it had waited.
        since: Instant,
        /// A Connect that waits until the host's earlier commands have left the storage.
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
    /// The queue identifier; 0 is the admin queue.
    pub const fn qid(&self) -> u16 {
        self.qid
    }
    /// The identifier of the queue's controller; `None` before Connect.
    pub fn cntlid(&self) -> Option<u16> {
        self.association().map(|a| a.cntlid)
    }
    /// The host, for fair shares: only its address before Connect, then also its name.
    pub fn who(&self) -> Who {
        let address = self.arrival.peer;
        match self.association() {
            None => Who::at(address),
            Some(association) => association.who.moved_to(address),
        }
    }
    /// Whether Connect is done and the subsystem lists the host.
    pub fn is_named(&self) -> bool {
        self.association().is_some_and(|association| association.named)
    }
    /// Allows only hosts that the subsystem lists to connect on this queue; the Connect of any other host fails with
    /// [`Status::ControllerBusy`]. For programs that have room left only for listed hosts.
    pub fn keep_for_named(&mut self) {
        self.named_only = true;
    }
    /// The NQN of the host; `None` before Connect.
    pub fn host(&self) -> Option<Nqn> {
        self.association().map(|a| a.host.clone())
    }
    /// The NQN of the subsystem; `None` before Connect, and for a discovery controller.
    pub fn subsystem(&self) -> Option<Nqn> {
        self.association()?.live.as_ref().map(|live| live.nqn.clone())
    }
    /// A token for the queue's requests to the storage; `None` before Connect, and for admin queues. If requests are under way when the
    /// queue ends, keep the token until they are done: a new Connect of the same host waits until then.
    pub fn in_flight(&self) -> Option<InFlight> {
        match &self.role {
            Role::Io(io) => Some(io.serving.in_flight()),
            _ => None,
        }
    }
    /// How many commands have no response yet.
    pub fn commands(&self) -> usize {
        self.slots.len()
    }

    /// Why the queue has ended; `None` if it has not. Another queue or a change of the target may end it, so call this regularly.
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

    /// Frees the slot of a command, and makes its response.
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
    /// The current namespaces.
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
