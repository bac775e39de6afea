//! Namespaces in memory: what a turn writes there, at its end and all together.
//!
//! A block at a random place is in no cache, nor is its page in the TLB. One by one, each command would wait for that: a Write for
//! the last of its cache lines, before its response can be posted, and a Read for the first one, when it is sent. So the places
//! of all commands of a turn are prefetched in a row, and their misses and page walks overlap. Then the blocks are copied, each
//! while the place of the next one is prefetched, and several Writes are answered together.

use nvmf::config::Backend;
use nvmf::{BackendError, Ticket};

use super::commands::Stage;
use super::core::Core;
use super::storage::GONE;
use crate::store::Store;

/// Bytes of each place that are prefetched at first: no more would arrive in time.
const FIRST: usize = 256;
/// Bytes that are prefetched while the place before is written: the processor's own prefetcher fetches what follows them.
const NEXT: usize = 4096;
/// Bytes that are copied before the Writes so far are answered: no host waits for more than this of other hosts' data.
const TOGETHER: usize = 256 << 10;

/// Commands of the turn.
#[derive(Debug, Default)]
pub struct Batch {
    /// Where Reads begin.
    reads: Vec<(Backend, u64)>,
    /// Writes whose data are here, by number.
    writes: Vec<u32>,
    /// Writes that are done but not answered: command, connection, ticket, result.
    written: Vec<(u32, u32, Ticket, Result<(), BackendError>)>,
}

impl Batch {
    /// A Read from this place is posted: its first bytes are prefetched at the end of the turn.
    #[inline]
    pub fn read(&mut self, backend: Backend, offset: u64) {
        self.reads.push((backend, offset));
    }
    /// The data of a command are here, and go to their [place](Stage::Place) at the end of the turn.
    #[inline]
    pub fn write(&mut self, command: u32) {
        self.writes.push(command);
    }
}

impl Core<'_> {
    /// The end of the turn.
    #[inline]
    pub(super) fn finish_batch(&mut self) {
        for (backend, offset) in self.batch.reads.drain(..) {
            if let Some(Store::Memory(memory)) = self.stores.get(backend) {
                memory.prefetch(offset, FIRST);
            }
        }
        if !self.batch.writes.is_empty() {
            self.write_blocks();
        }
    }

    fn write_blocks(&mut self) {
        let writes = std::mem::take(&mut self.batch.writes);
        let mut bytes = 0;
        for &n in &writes {
            self.prefetch_place(n, FIRST);
        }
        for (i, &n) in writes.iter().enumerate() {
            if let Some(&next) = writes.get(i + 1) {
                self.prefetch_place(next, NEXT);
            }
            let Some(command) = self.commands.get_mut(n) else { continue };
            let Stage::Place { backend, offset, at, len } = command.stage else { continue };
            let from = if command.capsule.is_some() { self.receives.mr() } else { self.pool.mr() };
            let done = match self.stores.get(backend) {
                Some(Store::Memory(memory)) => memory.write(offset, from, at, len),
                _ => Err(GONE),
            };
            self.batch.written.push((n, command.connection, command.ticket, done));
            bytes += len as usize;
            if bytes >= TOGETHER {
                bytes = 0;
                self.answer_written();
            }
        }
        self.answer_written();
        self.batch.writes = writes;
        self.batch.writes.clear();
    }
    /// Answers the Writes that are done, together: posting waits for all earlier stores, once for all the responses.
    fn answer_written(&mut self) {
        let mut written = std::mem::take(&mut self.batch.written);
        for (n, c, ticket, done) in written.drain(..) {
            self.finish(n);
            self.respond(c, ticket, done);
        }
        self.batch.written = written;
    }
    #[inline]
    fn prefetch_place(&mut self, n: u32, most: usize) {
        let Some(Stage::Place { backend, offset, len, .. }) =
            self.commands.get_mut(n).map(|command| command.stage)
        else {
            return;
        };
        if let Some(Store::Memory(memory)) = self.stores.get(backend) {
            memory.prefetch(offset, most.min(len as usize));
        }
    }
}
