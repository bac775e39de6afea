//! Namespaces in memory: what a turn writes there, at its end and all together.
//!
//! A block at a random place is in no cache, nor is its page in the TLB. One by one, each command would wait for both: a Write for
//! the last of its cache lines, before its response can be posted, and a Read for its first one, when it is sent. So the places
//! of all commands of a turn are prefetched in a row, and their misses and page walks overlap. Then the blocks are copied, each
//! while the place of the next one is prefetched, and several Writes are answered together.

use std::collections::VecDeque;

use nvmf::config::Backend;
use nvmf::{BackendError, Ticket};

use super::commands::{CommandState, Commands};
use super::disks::{Disks, GONE};
use super::ids::ConnId;
use super::shared::Shared;
use crate::store::{CommandIndex, Store};

/// Bytes of each place that are prefetched at first: no more would arrive in time.
const FIRST: usize = 256;
/// Bytes that are prefetched while the place before is written: the processor's own prefetcher fetches what follows them.
const NEXT: usize = 4096;
/// Bytes that are copied before the Writes so far are answered: no host waits for more than this of other hosts' data.
const TOGETHER: usize = 256 << 10;

/// Commands of the turn.
#[derive(Debug, Default)]
pub struct Batch {
    reads: Vec<Read>,
    /// Writes whose data have come, and are not copied yet.
    writes: VecDeque<CommandIndex>,
    /// Writes that are done but not answered.
    written: VecDeque<Written>,
}

/// Where the data of a Read begin.
#[derive(Debug)]
struct Read {
    backend: Backend,
    offset: u64,
}

/// A Write that is done.
#[derive(Debug)]
pub struct Written {
    pub command: CommandIndex,
    pub connection: ConnId,
    pub ticket: Ticket,
    pub result: Result<(), BackendError>,
}

impl Batch {
    /// A Read from this place is posted: its first bytes are prefetched at the end of the turn.
    #[inline]
    pub fn add_read(&mut self, backend: Backend, offset: u64) {
        self.reads.push(Read { backend, offset });
    }
    /// The data of a command have come, and go to their [place](CommandState::Place) at the end of the turn.
    #[inline]
    pub fn add_write(&mut self, command: CommandIndex) {
        self.writes.push_back(command);
    }

    /// The end of the turn: prefetches the places of all commands. Returns whether there are Writes.
    #[inline]
    pub fn prefetch(&mut self, disks: &Disks, commands: &mut Commands) -> bool {
        for Read { backend, offset } in self.reads.drain(..) {
            if let Some(Store::Memory(memory)) = disks.get(backend) {
                memory.prefetch(offset, FIRST);
            }
        }
        for &command in &self.writes {
            prefetch_place(disks, commands, command, FIRST);
        }
        !self.writes.is_empty()
    }
    /// Copies the data of some Writes to their places: of as many as are answered together, because posting waits for all earlier
    /// stores, but only once for all these responses. Returns whether there are Writes to answer.
    pub fn copy_some(&mut self, disks: &Disks, commands: &mut Commands, shared: &Shared) -> bool {
        let mut bytes = 0;
        while bytes < TOGETHER {
            let Some(id) = self.writes.pop_front() else { break };
            if let Some(&next) = self.writes.front() {
                prefetch_place(disks, commands, next, NEXT);
            }
            let Some(command) = commands.get_mut(id) else { continue };
            let CommandState::Place { backend, offset, at, len } = command.state else { continue };
            let from = if command.capsule.is_some() { shared.receives.mr() } else { shared.pool.mr() };
            let result = match disks.get(backend) {
                Some(Store::Memory(memory)) => memory.write(offset, from, at, len),
                _ => Err(GONE),
            };
            let (connection, ticket) = (command.connection, command.ticket);
            self.written.push_back(Written { command: id, connection, ticket, result });
            bytes += len as usize;
        }
        !self.written.is_empty()
    }
    /// The next Write that is done and has to be answered.
    #[inline]
    pub fn next_written(&mut self) -> Option<Written> {
        self.written.pop_front()
    }
}

#[inline]
fn prefetch_place(disks: &Disks, commands: &mut Commands, command: CommandIndex, most: usize) {
    let Some(CommandState::Place { backend, offset, len, .. }) =
        commands.get_mut(command).map(|command| command.state)
    else {
        return;
    };
    if let Some(Store::Memory(memory)) = disks.get(backend) {
        memory.prefetch(offset, most.min(len as usize));
    }
}
