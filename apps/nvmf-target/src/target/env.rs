//! The parts of a core that its connections use, and the steps of a command that need several of them: its response, its end.
//!
//! The caller has looked up the connection: in each call it is the connection of the command.

use std::collections::VecDeque;

use nvmf::{BackendError, Instant, Remote, Response, Target, Ticket};
use verbs::{Context, Sge};

use super::batch::Batch;
use super::commands::{Capsule, Command, CommandState, Commands};
use super::connection::Connection;
use super::disks::Disks;
use super::ids::{ConnId, ReceiveId};
use super::outbox::{NotPosted, Outgoing};
use super::shared::Shared;
use super::statistics::Statistics;
use super::zeroing::Zeroing;
use crate::store::CommandIndex;

/// What a core has beside its connections.
pub struct Env<'c> {
    /// The device, whose clock is the core's.
    pub context: &'c Context,
    /// The controllers, of all cores.
    pub target: Target,
    /// What hosts share: buffers, receives, places for connections.
    pub shared: Shared,
    /// Commands that wait for something.
    pub commands: Commands,
    /// The storage of namespaces.
    pub disks: Disks,
    /// Ranges in memory that become zeros.
    pub zeroing: Zeroing,
    /// Writes to memory that the end of the turn carries out.
    pub batch: Batch,
    /// What is counted, measured and logged.
    pub statistics: Statistics,
    /// Connections whose send queue had no room for what they have to post, in turn.
    pub stalled: VecDeque<ConnId>,
    /// Data of a command for the controller itself, taken out of registered memory.
    pub scratch: Vec<u8>,
    /// The time as of the last look at the clock.
    pub now: Instant,
}

impl Env<'_> {
    /// Looks at the clock.
    pub fn look_at_clock(&mut self) {
        self.now = Instant::from_nanos(self.context.now());
    }

    /// Keeps a command that waits for something.
    #[inline]
    pub fn keep(&mut self, connection: &mut Connection, ticket: Ticket, state: CommandState) -> CommandIndex {
        connection.commands += 1;
        let connection = connection.id;
        self.commands.insert(Command { connection, ticket, state, buffer: None, capsule: None })
    }
    /// A command waits for nothing any more: gives back its buffer.
    #[inline]
    pub fn finish(&mut self, connection: &mut Connection, command: CommandIndex) {
        let Some(command) = self.commands.remove(command) else { return };
        debug_assert!(command.connection == connection.id, "the connection is the command's");
        if let Some(buffer) = command.buffer {
            self.shared.give_buffer(&mut connection.share, buffer);
        }
        self.drop_data(connection, command.capsule);
        connection.commands -= 1;
    }
    /// The data of a command that came in its capsule are not needed any more: gives back the receive that they are in.
    #[inline]
    pub fn drop_data(&mut self, connection: &mut Connection, capsule: Option<Capsule>) {
        match capsule {
            None | Some(Capsule::Copied(_)) => {}
            Some(Capsule::Now(capsule)) => self.shared.receives.give(capsule),
            Some(Capsule::Kept(capsule, _)) => {
                self.shared.release_kept_receive(&mut connection.share, capsule)
            }
        }
    }
    /// A capsule is not needed any more, and does not count as the host's: gives back its receive, if it still has it.
    #[inline]
    pub fn release_receive(&mut self, capsule: Option<ReceiveId>) {
        if let Some(capsule) = capsule {
            self.shared.receives.give(capsule);
        }
    }

    /// A command is done, or has failed.
    #[inline]
    pub fn respond(&mut self, connection: &mut Connection, ticket: Ticket, done: Result<(), BackendError>) {
        connection.meter_end(|| self.context.now(), ticket, done.is_ok());
        let Some(queue) = &mut connection.queue else { return };
        if let Err(error) = done
            && error != BackendError::Mismatch
        {
            self.statistics.storage_failed(self.now, queue, error);
        }
        match queue.handle_done(ticket, done) {
            Ok(response) => self.answer(connection, response, None, None),
            Err(end) => self.close(connection, &end),
        }
    }
    /// A command has succeeded: sends its data, then its response. `command` has the buffer that the data are in, if they are in one.
    #[inline]
    pub fn respond_with(
        &mut self,
        connection: &mut Connection,
        ticket: Ticket,
        data: (Sge, Remote),
        command: Option<CommandIndex>,
    ) {
        connection.meter_end(|| self.context.now(), ticket, true);
        let end = match connection.queue.as_mut().map(|queue| queue.handle_done(ticket, Ok(()))) {
            Some(Ok(response)) => return self.answer(connection, response, Some(data), command),
            Some(Err(end)) => Some(end),
            None => None,
        };
        if let Some(command) = command {
            self.finish(connection, command);
        }
        if let Some(end) = end {
            self.close(connection, &end);
        }
    }
    /// Sends a response; before it `data`, which are in the buffer of `command`.
    #[inline]
    pub fn answer(
        &mut self,
        connection: &mut Connection,
        response: Response,
        data: Option<(Sge, Remote)>,
        command: Option<CommandIndex>,
    ) {
        self.statistics.counters.responses.add(1);
        self.post(connection, Outgoing::Answer { response, data, command });
    }
    #[inline]
    pub fn post(&mut self, connection: &mut Connection, outgoing: Outgoing) {
        match connection.outbox.post(outgoing) {
            Ok(()) => {}
            Err(NotPosted::Later) => {
                self.statistics.counters.send_waits.add(1);
                if !self.stalled.contains(&connection.id) {
                    self.stalled.push_back(connection.id);
                }
            }
            // Its command and buffer are freed with the connection.
            Err(NotPosted::Dead(e)) => self.close(connection, &e),
        }
    }
}
