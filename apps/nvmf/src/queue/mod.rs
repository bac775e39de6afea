//! A queue: one connection of a host, from its first capsule to its end.
//!
//! Capsules come in, and for each a [`Step`] says what the program has to do next, until there is a response. Nothing is
//! copied here: the program moves data between the host's memory, its buffers and the storage.

mod connect;
mod slots;

use std::sync::Arc;

use zerocopy::FromBytes;
use zerocopy::little_endian::{U16, U64};

use crate::admin::{Controller, Verdict};
use crate::association::{Association, ErrorOf, Life};
use crate::counters::QueueCounters;
use crate::data::{Remote, Source};
use crate::fair::Who;
use crate::in_flight::{InFlight, Serving};
use crate::io::{self, Action, BackendError, Kind, Request, Running};
use crate::limits;
use crate::live::{Live, Snapshot, Table};
use crate::status::{Fault, Status};
use crate::target::{Arrival, Target};
use crate::time::Instant;
use crate::wire::fabrics::ConnectData;
use crate::wire::fabrics::{self, ConnectCommand, fctype};
use crate::wire::{Cqe, Sqe};

pub use connect::Accepted;
pub use slots::Ticket;
use slots::{Connecting, Slots, Stage};

/// What to do next for a command. Where it cannot be done because the connection failed, drop the queue.
#[derive(Debug)]
#[must_use]
pub enum Step<'a> {
    /// Send the response; the command is done.
    Respond(Response),
    /// Get these bytes of the host, then call [`Queue::handle_data`]. They are at most [`INPUT_MAX`](limits::INPUT_MAX).
    Fetch(Ticket, Source),
    /// Call [`Queue::poll_data`] for as many bytes as `Remote` says, write them there, then send the response.
    Give(Ticket, Remote),
    /// Do what is requested, then call [`Queue::handle_done`].
    Run(Ticket, Request<'a>),
    /// Nothing: the command waits for an event, or Connect for the host's earlier commands; [`Queue::poll_response`] will answer it.
    Wait,
}

/// A response capsule.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use]
pub struct Response {
    /// Its bytes.
    pub cqe: Cqe,
    /// Send it by SEND with Invalidate of this key, else by SEND.
    pub invalidate: Option<u32>,
}

/// Why a queue has ended. The program disconnects, and drops it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum End {
    /// A capsule that is shorter than a command.
    #[error("the host sent a capsule of {0} bytes, which is no command")]
    ShortCapsule(usize),
    /// More commands at a time than the queue has entries.
    #[error("the host sent more commands than its queue has entries")]
    TooManyCommands,
    /// No Connect came in time.
    #[error("the host did not send Connect in time")]
    NoConnect,
    /// No command came in time.
    #[error("the host's keep alive timeout expired")]
    KeepAliveExpired,
    /// The subsystem was removed, or the host may use it no longer.
    #[error("the host may not use the subsystem any more")]
    NotServed,
    /// The admin queue has ended, or the controller was reset or shut down.
    #[error("the controller was reset, shut down or has ended")]
    ControllerGone,
}

/// A queue of a host.
#[derive(Debug)]
pub struct Queue {
    target: Target,
    arrival: Arrival,
    qid: u16,
    /// Entries of the submission queue: what the connection request said, then what Connect said.
    entries: u16,
    /// Commands that were answered, modulo the entries: a host counts an entry as free only when its command is not under way any
    /// more, so it never sends more than there are slots.
    sq_head: u16,
    /// Only a host that a subsystem names may connect.
    named_only: bool,
    /// The host asked for no SQ flow control.
    no_flow_control: bool,
    slots: Slots,
    role: Role,
    end: Option<End>,
}

#[derive(Debug)]
enum Role {
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
struct Held {
    slot: u16,
    command: Connecting,
    data: ConnectData,
}

/// An I/O queue of a controller.
#[derive(Debug)]
struct IoQueue {
    qid: u16,
    association: Arc<Association>,
    life: Life,
    live: Arc<Live>,
    snapshot: Snapshot,
    counters: Arc<QueueCounters>,
    serving: Serving,
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
    /// Only a host that a subsystem names in its list may connect from now on: the program has room left for these alone. Others are
    /// told that the controller is busy.
    pub fn keep_for_named(&mut self) {
        self.named_only = true;
    }
    /// The host, once Connect is done.
    pub fn host(&self) -> Option<crate::Nqn> {
        self.association().map(|a| a.host.clone())
    }
    /// The subsystem, once Connect to one is done.
    pub fn subsystem(&self) -> Option<crate::Nqn> {
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

    /// A capsule of `len` bytes has come; `sqe` are its first 64 bytes, or all if it is shorter. Its receive must be
    /// posted anew before the response is sent: the host may send its next command at once.
    ///
    /// # Errors
    /// If the queue has ended.
    pub fn handle_capsule(&mut self, now: Instant, sqe: &[u8], len: usize) -> Result<Step<'static>, End> {
        self.check_end()?;
        let (Ok((sqe, _)), Sqe::LEN..) = (Sqe::ref_from_prefix(sqe), len) else {
            return Err(self.end_by(End::ShortCapsule(len)));
        };
        let Some(slot) = self.slots.take(sqe.cid.get(), sqe.sgl.invalidate()) else {
            return Err(self.end_by(End::TooManyCommands));
        };
        match self.command(now, sqe, len, slot) {
            Ok(step) => Ok(step),
            Err(fault) => {
                self.note_error(ErrorOf::command(sqe), fault.status);
                Ok(Step::Respond(self.respond(slot, fault.status, fault.result)))
            }
        }
    }

    /// The bytes that [`Step::Fetch`] asked for.
    ///
    /// # Errors
    /// If the queue has ended.
    ///
    /// # Panics
    /// If the command waits for something else.
    pub fn handle_data<'a>(&mut self, now: Instant, ticket: Ticket, data: &'a [u8]) -> Result<Step<'a>, End> {
        self.check_end()?;
        let slot = self.slots.get(ticket);
        let (cid, stage) = (slot.cid, slot.stage);
        let step = match stage {
            Stage::Connect(command) => self.connect_data(now, ticket, command, data),
            Stage::Ranges(of) => match &mut self.role {
                Role::Io(io) => io::ranges(io.table(), of, data)
                    .map(|(running, request)| {
                        Step::Run(self.slots.wait(ticket.slot(), Stage::Backend(running)), request)
                    })
                    .map_err(Fault::from),
                _ => unreachable!("only I/O queues have Dataset Management"),
            },
            other => panic!("the command waits for no data but is at {other:?}"),
        };
        Ok(match step {
            Ok(step) => step,
            Err(Fault { status, result }) => {
                self.note_error(ErrorOf { cid, nsid: 0, lba: 0 }, status);
                Step::Respond(self.respond(ticket.slot(), status, result))
            }
        })
    }

    /// What [`Step::Run`] requested is done, or has failed. For a Read, first write the data to the host.
    ///
    /// A command at another step can be failed this way too, for example with [`BackendError::Internal`] if there is no memory for
    /// its data.
    ///
    /// # Errors
    /// If the queue has ended.
    ///
    /// # Panics
    /// If a command is done that was not given to the backend.
    pub fn handle_done(&mut self, ticket: Ticket, done: Result<(), BackendError>) -> Result<Response, End> {
        self.check_end()?;
        let slot = self.slots.get(ticket);
        let (cid, stage) = (slot.cid, slot.stage);
        let status = match (done, stage) {
            (Ok(()), Stage::Backend(running)) => {
                self.count(running);
                Status::Success
            }
            (Ok(()), other) => panic!("the command was not given to the backend but is at {other:?}"),
            (Err(error), Stage::Backend(Running { kind, nsid, backend, lba, .. })) => {
                let status = error.status(kind);
                if let (BackendError::Io | BackendError::Lost, Role::Io(io)) = (error, &self.role) {
                    io.counters.media_error();
                    if error == BackendError::Lost {
                        io.live.fail(nsid, backend);
                    }
                }
                self.note_error(ErrorOf { cid, nsid, lba }, status);
                status
            }
            (Err(error), _) => error.status(Kind::Other { writes: false }),
        };
        Ok(self.respond(ticket.slot(), status, 0))
    }

    /// Fills `data` with what [`Step::Give`] gives to the host; the response is to be sent after it.
    ///
    /// # Errors
    /// If the queue has ended.
    ///
    /// # Panics
    /// If the command gives nothing, or `data` has another length than the step said.
    pub fn poll_data(&mut self, ticket: Ticket, data: &mut [u8]) -> Result<Response, End> {
        self.check_end()?;
        match (self.slots.get(ticket).stage, &mut self.role) {
            (Stage::Page(page, len), Role::Admin(controller)) => {
                assert_eq!(data.len(), len as usize, "the data have the length that the step said");
                controller.fill(page, data);
            }
            (other, _) => panic!("the command gives no data but is at {other:?}"),
        }
        Ok(self.respond(ticket.slot(), Status::Success, 0))
    }

    /// A response that no call of the program caused: to a Connect that had to wait, or an asynchronous event. Call regularly, each
    /// time until there is none.
    #[inline]
    pub fn poll_response(&mut self, now: Instant) -> Option<Response> {
        if self.poll_end().is_some() {
            return None;
        }
        let controller = match &mut self.role {
            Role::New { .. } => return self.poll_connect(now),
            Role::Admin(controller) => controller,
            Role::Io(_) => return None,
        };
        let (slot, status, result) = controller.poll_event()?;
        Some(self.respond(slot, status, result))
    }

    /// When [`handle_timeout`](Self::handle_timeout) is due at the latest.
    pub fn poll_timeout(&self) -> Option<Instant> {
        match &self.role {
            Role::New { held: Some(_), .. } => None,
            Role::New { since, held: None } => Some(since.after(limits::CONNECT_PATIENCE)),
            Role::Admin(controller) => controller.deadline(),
            Role::Io(_) => None,
        }
    }

    /// Time has passed: ends the queue of a host that was silent for too long.
    ///
    /// # Errors
    /// If the queue has ended.
    pub fn handle_timeout(&mut self, now: Instant) -> Result<(), End> {
        self.check_end()?;
        match &mut self.role {
            Role::New { since, held: None } if now >= since.after(limits::CONNECT_PATIENCE) => {
                Err(self.end_by(End::NoConnect))
            }
            Role::Admin(controller) => {
                let expired = controller.is_expired(now);
                if expired { Err(self.end_by(End::KeepAliveExpired)) } else { Ok(()) }
            }
            _ => Ok(()),
        }
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
}

impl Queue {
    #[inline]
    fn check_end(&mut self) -> Result<(), End> {
        self.poll_end().map_or(Ok(()), Err)
    }
    #[cold]
    fn end_by(&mut self, end: End) -> End {
        self.end = Some(end);
        // The controller ends with its admin queue at once, not only when the program drops the queue.
        if let Role::Admin(controller) = &self.role {
            controller.association().end();
        }
        end
    }
    fn association(&self) -> Option<&Association> {
        match &self.role {
            Role::New { .. } => None,
            Role::Admin(controller) => Some(controller.association()),
            Role::Io(io) => Some(&io.association),
        }
    }

    /// What to do for a command.
    fn command(&mut self, now: Instant, sqe: &Sqe, len: usize, slot: u16) -> Result<Step<'static>, Fault> {
        // No fused operations, and one descriptor without metadata.
        if sqe.flags & (Sqe::FLAGS_FUSE | Sqe::FLAGS_PSDT) != Sqe::FLAGS_SGL {
            return Err(Status::InvalidField.into());
        }
        match &mut self.role {
            Role::New { .. } => self.connect_command(sqe, len, slot),
            Role::Admin(controller) => {
                let verdict = controller.handle(now, sqe, slot)?;
                Ok(self.admin(verdict, slot))
            }
            Role::Io(io) => {
                io.association.note_traffic();
                if sqe.opcode == fabrics::OPCODE {
                    return Err(io_fabrics(sqe).into());
                }
                let action = io::check(self.target.settings(), io.table(), sqe, len)?;
                Ok(match action {
                    Action::Done => Step::Respond(self.respond(slot, Status::Success, 0)),
                    Action::Run(running, request) => {
                        Step::Run(self.slots.wait(slot, Stage::Backend(running)), request)
                    }
                    Action::Ranges(of, from) => Step::Fetch(self.slots.wait(slot, Stage::Ranges(of)), from),
                })
            }
        }
    }

    fn admin(&mut self, verdict: Verdict, slot: u16) -> Step<'static> {
        match verdict {
            Verdict::Done(result) => Step::Respond(self.respond(slot, Status::Success, result)),
            Verdict::Give(page, to) => Step::Give(self.slots.wait(slot, Stage::Page(page, to.len)), to),
            Verdict::Wait => {
                self.slots.wait(slot, Stage::Event);
                Step::Wait
            }
            Verdict::Abort { qid, cid } => {
                let event = (qid == 0).then(|| self.slots.event(cid)).flatten();
                let aborted = match (event, &mut self.role) {
                    (Some(event), Role::Admin(controller)) => controller.events.abort(event),
                    _ => false,
                };
                // Bit 0: the command was not aborted, and continues.
                Step::Respond(self.respond(slot, Status::Success, !aborted as u64))
            }
        }
    }

    /// Answers a command.
    #[inline]
    fn respond(&mut self, slot: u16, status: Status, result: u64) -> Response {
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

    fn note_error(&self, of: ErrorOf, status: Status) {
        if let Some(association) = self.association() {
            association.note_error(self.qid, of, status);
        }
    }
    #[inline]
    fn count(&self, Running { kind, len, .. }: Running) {
        let Role::Io(io) = &self.role else { return };
        match kind {
            Kind::Read | Kind::Compare => io.counters.read(len),
            Kind::Write => io.counters.written(len),
            Kind::Other { .. } => {}
        }
    }
}

impl IoQueue {
    /// The namespaces as they are now.
    #[inline]
    fn table(&mut self) -> &Table {
        if let Some(newer) = self.snapshot.newer(&self.live) {
            self.snapshot = newer;
        }
        &self.snapshot.table
    }
}

/// A fabrics command on an I/O queue that is connected.
fn io_fabrics(sqe: &Sqe) -> Status {
    if ConnectCommand::of(sqe).fctype == fctype::CONNECT {
        Status::CommandSequenceError
    } else {
        Status::InvalidOpcode
    }
}

impl Drop for IoQueue {
    fn drop(&mut self) {
        self.serving.end();
        self.association.give_queue(self.qid, self.life);
        self.live.counters.leave(&self.counters);
    }
}
