//! The commands of a queue, from their capsules to their responses.

use zerocopy::FromBytes;

use crate::admin::Verdict;
use crate::association::ErrorOf;
use crate::io::{self, Action, BackendError, Kind, Running};
use crate::limits;
use crate::status::{Fault, Status};
use crate::time::Instant;
use crate::wire::Sqe;
use crate::wire::fabrics::{self, ConnectCommand, fctype};

use super::slots::{SlotState, Ticket};
use super::state::{Queue, Role};
use super::step::{End, Response, Step};

impl Queue {
    /// Handles a command capsule of `len` bytes. `sqe` is its first 64 bytes, or all of it if it is shorter. The program must post a
    /// receive again before it sends the response, because the host may then send its next command at once.
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

    /// Continues a command with the bytes that [`Step::Fetch`] asked for.
    ///
    /// # Errors
    /// If the queue has ended.
    ///
    /// # Panics
    /// If the command does not wait for data.
    pub fn handle_data<'a>(&mut self, now: Instant, ticket: Ticket, data: &'a [u8]) -> Result<Step<'a>, End> {
        self.check_end()?;
        let slot = self.slots.get(ticket);
        let (cid, state) = (slot.cid, slot.state);
        let step = match state {
            SlotState::Connect(command) => self.connect_data(now, ticket, command, data),
            SlotState::Ranges(of) => match &mut self.role {
                Role::Io(io) => io::ranges(io.table(), of, data)
                    .map(|(running, request)| {
                        Step::Run(self.slots.wait(ticket.slot(), SlotState::Backend(running)), request)
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

    /// Ends a command with the result of its [`Step::Run`], and returns the response. The data of a Read must go to the host before the
    /// response.
    ///
    /// A command at another step can be failed this way too, for example with [`BackendError::Internal`] if there is no memory for its
    /// data.
    ///
    /// # Errors
    /// If the queue has ended.
    ///
    /// # Panics
    /// If `done` is `Ok`, but the command was not at [`Step::Run`].
    pub fn handle_done(&mut self, ticket: Ticket, done: Result<(), BackendError>) -> Result<Response, End> {
        self.check_end()?;
        let slot = self.slots.get(ticket);
        let (cid, state) = (slot.cid, slot.state);
        let status = match (done, state) {
            (Ok(()), SlotState::Backend(running)) => {
                self.count(running);
                Status::Success
            }
            (Ok(()), other) => panic!("the command was not given to the backend but is at {other:?}"),
            (Err(error), SlotState::Backend(Running { kind, nsid, backend, lba, .. })) => {
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

    /// Fills `data` with the data of a [`Step::Give`]. Write them to the host, then send the response.
    ///
    /// # Errors
    /// If the queue has ended.
    ///
    /// # Panics
    /// If the command is not at [`Step::Give`], or the length of `data` is not that of the step.
    pub fn poll_data(&mut self, ticket: Ticket, data: &mut [u8]) -> Result<Response, End> {
        self.check_end()?;
        match (self.slots.get(ticket).state, &mut self.role) {
            (SlotState::Page(page, len), Role::Admin(controller)) => {
                assert_eq!(data.len(), len as usize, "the data have the length that the step said");
                controller.fill(page, data);
            }
            (other, _) => panic!("the command gives no data but is at {other:?}"),
        }
        Ok(self.respond(ticket.slot(), Status::Success, 0))
    }

    /// Returns a response that became due by itself: to a Connect that had to wait, or to an Asynchronous Event Request. Call this
    /// regularly, each time until it returns `None`.
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

    /// When to call [`handle_timeout`](Self::handle_timeout) at the latest; `None` if no timeout runs.
    pub fn poll_timeout(&self) -> Option<Instant> {
        match &self.role {
            Role::New { held: Some(_), .. } => None,
            Role::New { since, held: None } => Some(since.after(limits::CONNECT_PATIENCE)),
            Role::Admin(controller) => controller.deadline(),
            Role::Io(_) => None,
        }
    }

    /// Ends the queue if a timeout has expired: the host did not send Connect, or its keep alive timeout expired. May be called at any
    /// time.
    ///
    /// # Errors
    /// If the queue has ended, by this call or before.
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
}

impl Queue {
    /// Checks a command, and returns its first step.
    fn command(&mut self, now: Instant, sqe: &Sqe, len: usize, slot: u16) -> Result<Step<'static>, Fault> {
        // Only commands that are not fused and have one SGL descriptor and no metadata.
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
                        Step::Run(self.slots.wait(slot, SlotState::Backend(running)), request)
                    }
                    Action::Ranges(of, from) => {
                        Step::Fetch(self.slots.wait(slot, SlotState::Ranges(of)), from)
                    }
                })
            }
        }
    }

    fn admin(&mut self, verdict: Verdict, slot: u16) -> Step<'static> {
        match verdict {
            Verdict::Done(result) => Step::Respond(self.respond(slot, Status::Success, result)),
            Verdict::Give(page, to) => Step::Give(self.slots.wait(slot, SlotState::Page(page, to.len)), to),
            Verdict::Wait => {
                self.slots.wait(slot, SlotState::Event);
                Step::Wait
            }
            Verdict::Abort { qid, cid } => {
                let event = (qid == 0).then(|| self.slots.event(cid)).flatten();
                let aborted = match (event, &mut self.role) {
                    (Some(event), Role::Admin(controller)) => controller.events.abort(event),
                    _ => false,
                };
                // Bit 0 of the result: the command was not aborted.
                Step::Respond(self.respond(slot, Status::Success, !aborted as u64))
            }
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

/// The status of a fabrics command on a connected I/O queue.
fn io_fabrics(sqe: &Sqe) -> Status {
    if ConnectCommand::of(sqe).fctype == fctype::CONNECT {
        Status::CommandSequenceError
    } else {
        Status::InvalidOpcode
    }
}
