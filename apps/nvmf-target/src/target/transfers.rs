//! The transfers of a command: it gets a buffer, fills it from the host or from the storage, and passes the data on.

use std::sync::Arc;

use nvmf::config::Backend;
use nvmf::{BackendError, Remote, Ticket};

use super::commands::{Capsule, CommandState, Purpose};
use super::connection::Connection;
use super::disks::GONE;
use super::env::Env;
use super::outbox::Outgoing;
use super::pool::Buffer;
use crate::store::{CommandIndex, MrSlice, Store, Work};

impl Env<'_> {
    /// Fetches bytes from the host. The command continues when they have arrived.
    #[inline]
    pub fn fetch(&mut self, connection: &mut Connection, ticket: Ticket, from: Remote, purpose: Purpose) {
        self.with_buffer(connection, ticket, CommandState::Fetch(from, purpose), from.len);
    }
    /// Gets a buffer of `len` bytes for a command, at once or later. Then [`begin`](Self::begin) continues with `state`.
    #[inline]
    pub fn with_buffer(
        &mut self,
        connection: &mut Connection,
        ticket: Ticket,
        state: CommandState,
        len: u32,
    ) {
        let n = self.keep(connection, ticket, state);
        self.get_buffer(connection, n, len);
    }
    /// Gets a buffer of `len` bytes for a command that is in `commands` already, at once or later. Then [`begin`](Self::begin) continues.
    #[inline]
    pub fn get_buffer(&mut self, connection: &mut Connection, n: CommandIndex, len: u32) {
        match self.shared.get_buffer(&mut connection.share, n, len) {
            Some(buffer) => self.begin(connection, n, buffer),
            None => self.statistics.counters.buffer_waits.add(1),
        }
    }
    /// Continues a command that has got the buffer that it waited for.
    pub fn begin(&mut self, connection: &mut Connection, n: CommandIndex, buffer: Buffer) {
        let Some(command) = self.commands.get_mut(n) else {
            return self.shared.give_buffer(&mut connection.share, buffer);
        };
        let (at, ticket) = (buffer.offset(), command.ticket);
        match command.state {
            CommandState::Fetch(from, purpose) => {
                let sge = self.shared.pool.sge(&buffer, from.len);
                command.state = CommandState::Fetched(from.len, purpose);
                command.buffer = Some(buffer);
                self.post(connection, Outgoing::Fetch(n, sge, from));
            }
            CommandState::Give(to) => {
                let sge = self.shared.pool.sge(&buffer, to.len);
                command.state = CommandState::Answered;
                command.buffer = Some(buffer);
                let mut page = vec![0; to.len as usize];
                let Some(queue) = &mut connection.queue else { return };
                match queue.poll_data(ticket, &mut page) {
                    Ok(response) => {
                        let written = self.shared.pool.mr().write(at, &page);
                        debug_assert!(written.is_ok(), "the buffer is inside of the region");
                        self.answer(connection, response, Some((sge, to)), Some(n));
                    }
                    Err(end) => {
                        self.finish(connection, n);
                        self.close(connection, &end);
                    }
                }
            }
            CommandState::Load { backend, offset, to, fua } => {
                command.state = CommandState::Storage(Some(to));
                command.buffer = Some(buffer);
                let place = self.in_pool(at, to.len);
                self.store(connection, n, backend, Work::Read { offset, to: place, fua });
            }
            CommandState::Copy(len, transfer) => {
                let capsule = command.capsule.take();
                command.state = CommandState::Fetched(len, Purpose::Storage(transfer));
                command.buffer = Some(buffer);
                let (pool, receives) = (self.shared.pool.mr(), self.shared.receives.mr());
                let copied = match &capsule {
                    Some(Capsule::Kept(_, from)) => pool.copy_from(at, receives, *from..from + len as usize),
                    Some(Capsule::Copied(data)) => pool.write(at, data),
                    _ => Ok(()),
                };
                debug_assert!(copied.is_ok(), "both are inside of their regions");
                self.drop_data(connection, capsule);
                self.fetched(connection, n);
            }
            CommandState::Fetched(..)
            | CommandState::Place { .. }
            | CommandState::Storage(_)
            | CommandState::Zeroing
            | CommandState::Answered => {
                unreachable!("only commands that wait for a buffer get one")
            }
        }
    }
    /// Continues a command whose data from the host are in its buffer.
    #[inline]
    pub fn fetched(&mut self, connection: &mut Connection, n: CommandIndex) {
        let Some(command) = self.commands.get_mut(n) else { return };
        let (CommandState::Fetched(len, purpose), Some(buffer)) = (command.state, &command.buffer) else {
            return;
        };
        let (ticket, at) = (command.ticket, buffer.offset());
        let transfer = match purpose {
            Purpose::Storage(transfer) => transfer,
            Purpose::Controller => {
                let mut scratch = std::mem::take(&mut self.scratch);
                let read = self.shared.pool.mr().read(at, &mut scratch[..len as usize]);
                debug_assert!(read.is_ok(), "the buffer is inside of the region");
                self.finish(connection, n);
                self.handle_data(connection, ticket, &scratch[..len as usize]);
                self.scratch = scratch;
                return;
            }
        };
        let (backend, offset) = (transfer.backend, transfer.offset);
        let done = match self.disks.get(backend) {
            Some(Store::Memory(memory)) if transfer.compare => {
                memory.compare(offset, self.shared.pool.mr(), at, len)
            }
            Some(Store::Memory(_)) => {
                command.state = CommandState::Place { backend, offset, at, len };
                return self.batch.add_write(n);
            }
            Some(Store::File(..) | Store::Other(..)) => {
                command.state = CommandState::Storage(None);
                let place = self.in_pool(at, len);
                return self.store(connection, n, backend, transfer.work(place));
            }
            None => {
                if self.disks.renew() {
                    return self.fetched(connection, n);
                }
                Err(GONE)
            }
        };
        self.finish(connection, n);
        self.respond(connection, ticket, done);
    }

    /// Gives the storage the work of a command.
    pub fn store(&mut self, connection: &mut Connection, n: CommandIndex, backend: Backend, work: Work) {
        if let Err(e) = self.disks.give(self.now, connection.share.who(), backend, work, n) {
            self.stored(connection, n, Err(e));
        }
    }
    /// Continues a command whose work at the storage is done, or has failed.
    pub fn stored(&mut self, connection: &mut Connection, n: CommandIndex, result: Result<(), BackendError>) {
        let Some(command) = self.commands.get_mut(n) else { return };
        let ticket = command.ticket;
        if let (CommandState::Storage(Some(to)), Some(buffer), true) =
            (command.state, &command.buffer, result.is_ok())
        {
            let sge = self.shared.pool.sge(buffer, to.len);
            command.state = CommandState::Answered;
            return self.respond_with(connection, ticket, (sge, to), Some(n));
        }
        self.finish(connection, n);
        self.respond(connection, ticket, result);
    }
    /// A slice of the pool's memory region.
    fn in_pool(&self, at: usize, len: u32) -> MrSlice {
        MrSlice { mr: Arc::clone(self.shared.pool.mr()), at, len: len as usize }
    }
}
