//! Namespaces in memory: the Writes of a turn are carried out together, at the end of the turn.
//!
//! Hosts access blocks at random offsets, so a block is usually in no cache and its page not in the TLB. If commands were done one by one,
//! each would wait for these misses: a Write for the stores to its block, before its response can be posted, and a Read for its first cache
//! line, when the data are sent. So the blocks of all commands of a turn are prefetched first, and their cache misses and page walks
//! overlap. Then the Writes are copied, each while the block of the next one is prefetched, and several Writes are answered together.

use std::collections::VecDeque;

use nvmf::config::Backend;
use nvmf::{BackendError, Ticket};

use super::commands::{CommandState, Commands};
use super::disks::{Disks, GONE};
use super::ids::ConnId;
use super::shared::Shared;
use crate::store::{CommandIndex, Store};

/// Bytes of each block that are prefetched at first: more would not arrive in time.
const FIRST: usize = 256;
/// Bytes that are prefetched while the preceding Write is copied. The hardware prefetcher fetches the bytes after them.
const NEXT: usize = 4096;
/// Bytes that are copied before the copied Writes are answered. So no response waits for more than about this many bytes of other hosts.
const TOGETHER: usize = 256 << 10;

/// The Reads and Writes of a turn.
#[derive(Debug, Default)]
pub struct Batch {
    reads: Vec<Read>,
    /// Writes whose data have arrived but are not copied yet.
    writes: VecDeque<CommandIndex>,
    /// Writes that are done but not answered yet.
    written: VecDeque<Written>,
}

/// Where the data of a Read are in the storage.
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
    /// Adds a Read whose data are posted in this turn: its first bytes are prefetched at the end of the turn.
    #[inline]
    pub fn add_read(&mut self, backend: Backend, offset: u64) {
        self.reads.push(Read { backend, offset });
    }
    /// Adds a Write whose data have arrived. They are copied to their [place](CommandState::Place) at the end of the turn.
    #[inline]
    pub fn add_write(&mut self, command: CommandIndex) {
        self.writes.push_back(command);
    }

    /// Prefetches the blocks of all Reads and Writes, at the end of the turn. Returns whether there are Writes.
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
    /// Copies the data of as many Writes as are answered together: posting waits for all earlier stores, and so it waits only once for all
    /// these responses. Returns whether there are Writes to answer.
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
