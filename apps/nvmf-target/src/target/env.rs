//! The parts of a core that its connections use, and the steps of a command that need several parts: its response and its end.
//!
//! The caller looks up the connection: in each method, `connection` is the connection of the command.

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

/// The parts of a core other than its connections.
pub struct Env<'c> {
    /// The device. Its clock is used for all times.
    pub context: &'c Context,
    /// The target, with the controllers of all cores.
    pub target: Target,
    /// The resources that hosts share: buffers, receives, places for connections.
    pub shared: Shared,
    /// The commands that wait.
    pub commands: Commands,
    /// The storage of namespaces.
    pub disks: Disks,
    /// Ranges of namespaces in memory that are being zeroed.
    pub zeroing: Zeroing,
    /// The turn's Reads and Writes of namespaces in memory.
    pub batch: Batch,
    /// Counters, meters and limited logs.
    pub statistics: Statistics,
    /// Connections with requests that wait for room in their send queue, in the order in which they are tried again.
    pub stalled: VecDeque<ConnId>,
    /// A copy of the data of a command that the controller itself reads.
    pub scratch: Vec<u8>,
    /// The time when the clock was last read.
    pub now: Instant,
}

impl Env<'_> {
    /// Reads the clock.
    pub fn look_at_clock(&mut self) {
        self.now = Instant::from_nanos(self.context.now());
    }

    /// Adds a command that has to wait; `state` is what it waits for. Returns its index.
    #[inline]
    pub fn keep(&mut self, connection: &mut Connection, ticket: Ticket, state: CommandState) -> CommandIndex {
        connection.commands += 1;
        let connection = connection.id;
        self.commands.insert(Command { connection, ticket, state, buffer: None, capsule: None })
    }
    /// Removes a command that no longer waits, and frees its buffer and its capsule.
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
    /// Frees the in-capsule data of a command: the receive buffer that they are in, if any.
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
    /// Frees the receive buffer of a capsule, if there is one. It must not count toward the host's share.
    #[inline]
    pub fn release_receive(&mut self, capsule: Option<ReceiveId>) {
        if let Some(capsule) = capsule {
            self.shared.receives.give(capsule);
        }
    }

    /// Ends a command that has no data for the host, or has failed: sends its response.
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
    /// Ends a command that succeeded: sends its data, then its response. `command` owns the buffer of the data, if they are in a buffer.
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
    /// Sends a response, and `data` before it. `command` owns the buffer of the data, if they are in a buffer.
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
            // The command and its buffer are freed when the connection is closed.
            Err(NotPosted::Dead(e)) => self.close(connection, &e),
        }
    }
}
