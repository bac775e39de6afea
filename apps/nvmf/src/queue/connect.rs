//! How a queue is set up: by the connection request, then by the Connect command.

use zerocopy::little_endian::U16;
use zerocopy::{FromBytes, FromZeros};

use crate::admin::Controller;
use crate::data::{Need, from_host};
use crate::limits;
use crate::status::{Fault, Status};
use crate::target::{Arrival, Joined, Target};
use crate::time::Instant;
use crate::wire::Sqe;
use crate::wire::cm::{RejectReason, ReplyData, RequestData};
use crate::wire::fabrics::{self, ConnectCommand, ConnectData, ConnectField, fctype};

use super::slots::{Connecting, SlotState, Slots, Ticket};
use super::state::{Held, IoQueue, Queue, Role};
use super::step::{Response, Step};

/// A connection that the program is to accept.
#[derive(Debug)]
pub struct Accepted {
    /// The queue of the connection.
    pub queue: Queue,
    /// Private data of the reply.
    pub reply: ReplyData,
    /// How many receives to post before the reply is sent, and to keep posted: the host may have this many commands outstanding.
    pub receives: u16,
    /// How many responses may be under way at a time. The host has this many receives posted, and posts one again after each response. If
    /// this is less than `receives`, a response may have to wait until an earlier one is acknowledged.
    pub sends: u16,
    /// Whether this is an I/O queue of a controller whose host has the same address and is listed by the subsystem.
    pub named: bool,
}

impl Queue {
    /// Checks a connection request by its private data, and makes the queue for it. Any host may connect here: the program must limit the
    /// number of connections.
    ///
    /// # Errors
    /// The reason to reject the request with; it goes into the private data of the reject.
    pub fn accept(
        target: &Target,
        now: Instant,
        arrival: Arrival,
        private: &[u8],
    ) -> Result<Accepted, RejectReason> {
        let (request, _) = RequestData::read_from_prefix(private).map_err(|_| RejectReason::Length)?;
        if request.format.get() != 0 {
            return Err(RejectReason::Format);
        }
        let (qid, entries) = (request.qid.get(), request.host_sends.get().saturating_add(1));
        if qid > target.settings().io_queues {
            return Err(RejectReason::QueueId);
        }
        let most = if qid == 0 { limits::ADMIN_ENTRIES } else { target.settings().queue_entries };
        if entries < 2 || entries > most {
            return Err(RejectReason::HostSends);
        }
        let sends = request.host_receives.get();
        if sends == 0 {
            return Err(RejectReason::HostReceives);
        }
        // Older hosts leave the controller identifier 0, which no controller has.
        let cntlid = request.cntlid.get();
        if qid != 0 && cntlid != 0 && !target.has_controller(cntlid) {
            return Err(RejectReason::ControllerId);
        }
        // Asynchronous Event Requests stay outstanding for long. They come in addition to the commands that the host has entries for.
        let receives = if qid == 0 { entries + limits::EVENT_REQUESTS as u16 } else { entries };
        let queue = Self {
            target: target.clone(),
            arrival,
            qid,
            entries,
            sq_head: 0,
            named_only: false,
            no_flow_control: false,
            slots: Slots::new(receives),
            role: Role::New { since: now, held: None },
            end: None,
        };
        let named = qid != 0 && target.is_of_named(cntlid, arrival.peer);
        let reply = ReplyData { receives: U16::new(receives), ..ReplyData::new_zeroed() };
        Ok(Accepted { queue, reply, receives, sends, named })
    }

    /// Checks the first command, which must be Connect, and asks for its data.
    pub(super) fn connect_command(
        &mut self,
        sqe: &Sqe,
        len: usize,
        slot: u16,
    ) -> Result<Step<'static>, Fault> {
        let command = ConnectCommand::of(sqe);
        if sqe.opcode != fabrics::OPCODE || command.fctype != fctype::CONNECT {
            return Err(Status::CommandSequenceError.into());
        }
        if command.format.get() != 0 {
            return Err(Status::ConnectFormat.into());
        }
        // The connection request has set the queue's number and the maximum of its entries.
        if command.qid.get() != self.qid {
            return Err(ConnectField::QueueId.into());
        }
        let size = command.sqsize.get();
        if size == 0 || size >= self.entries {
            return Err(ConnectField::QueueSize.into());
        }
        let in_capsule = if self.qid == 0 { 0 } else { self.target.settings().in_capsule };
        let from = from_host(&sqe.sgl, Need::Exactly(ConnectData::LEN as u32), len, in_capsule)?;
        let connecting = Connecting {
            entries: size + 1,
            no_flow_control: command.attributes & ConnectCommand::NO_FLOW_CONTROL != 0,
            kato_ms: command.kato_ms.get(),
        };
        Ok(Step::Fetch(self.slots.wait(slot, SlotState::Connect(connecting)), from))
    }

    /// Executes Connect, given its data. The command waits if commands of the host's earlier queues are still at the storage.
    pub(super) fn connect_data(
        &mut self,
        now: Instant,
        ticket: Ticket,
        command: Connecting,
        data: &[u8],
    ) -> Result<Step<'static>, Fault> {
        let (data, _) = ConnectData::ref_from_prefix(data).map_err(|_| Status::InternalError)?;
        // Another Connect may have been executed while this one's data were fetched.
        if !matches!(self.role, Role::New { held: None, .. }) {
            return Err(Status::CommandSequenceError.into());
        }
        if let Some(cntlid) = self.connect(now, command, data)? {
            return Ok(Step::Respond(self.respond(ticket.slot(), Status::Success, cntlid)));
        }
        self.slots.wait(ticket.slot(), SlotState::Quiesce);
        let held = Box::new(Held { slot: ticket.slot(), command, data: *data });
        self.role = Role::New { since: now, held: Some(held) };
        Ok(Step::Wait)
    }
    /// Retries a Connect that waits. Returns its response once it succeeds, fails, or has waited for too long.
    pub(super) fn poll_connect(&mut self, now: Instant) -> Option<Response> {
        let Role::New { since, held } = &mut self.role else { return None };
        let (since, held) = (*since, held.take()?);
        let (status, result) = match self.connect(now, held.command, &held.data) {
            Ok(Some(cntlid)) => (Status::Success, cntlid),
            Ok(None) if now < since.after(limits::QUIESCE_PATIENCE) => {
                self.role = Role::New { since, held: Some(held) };
                return None;
            }
            Ok(None) => (Status::ControllerBusy, 0),
            Err(Fault { status, result }) => (status, result),
        };
        if let Role::New { since, .. } = &mut self.role {
            // The host may try again.
            *since = now;
        }
        Some(self.respond(held.slot, status, result))
    }
    /// Tries Connect. Returns the controller identifier, which is the result of the command; `None` if commands of the host's earlier
    /// queues are still at the storage.
    fn connect(
        &mut self,
        now: Instant,
        command: Connecting,
        data: &ConnectData,
    ) -> Result<Option<u64>, Fault> {
        let (role, cntlid) = if self.qid == 0 {
            let Some(association) = self.target.connect_admin(self.arrival, self.named_only, data)? else {
                return Ok(None);
            };
            let cntlid = association.cntlid;
            let target = self.target.clone();
            let controller = Controller::new(now, target, association, self.arrival, command.kato_ms);
            (Role::Admin(Box::new(controller)), cntlid)
        } else {
            let Some(joined) = self.target.connect_io(self.qid, self.named_only, data)? else {
                return Ok(None);
            };
            let Joined { association, live, life, serving } = joined;
            let cntlid = association.cntlid;
            let (snapshot, counters) = (live.snapshot(), live.counters.join());
            association.note_traffic();
            let qid = self.qid;
            (Role::Io(IoQueue { qid, association, life, live, snapshot, counters, serving }), cntlid)
        };
        self.role = role;
        // Connect may set fewer entries than the connection request.
        self.entries = command.entries;
        self.sq_head %= self.entries;
        self.no_flow_control = command.no_flow_control;
        Ok(Some(cntlid as u64))
    }
}
