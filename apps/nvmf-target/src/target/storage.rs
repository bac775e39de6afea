//! Commands and storage: what a core does with a request of the controller, and with a command's buffer.

use std::sync::Arc;

use nvmf::config::Backend;
use nvmf::{BackendError, Op, Remote, Request, Source, Ticket};
use verbs::Sge;

use super::commands::{Capsule, Command, Stage, Then};
use super::connection::Outgoing;
use super::core::Core;
use super::pool::Buffer;
use crate::store::{Blocks, Memory, Place, Request as RingRequest, Store, Work, Zeroed, merged};

/// Bytes that are made zeros in a turn where nothing else is to be done.
const ZERO_PIECE: u64 = 1 << 20;
/// The same where hosts have other commands: these wait about as long as one of them takes.
const ZERO_PIECE_BUSY: u64 = 64 << 10;
/// What a range costs to be merged with others and looked at, as bytes that are made zeros: so a host that orders what is zeros already
/// has its turn no more often than one that orders others.
const RANGE: u64 = 4096;
/// Turns without completions after which nothing else is to be done.
const QUIET: u64 = 1024;
/// Up to this many bytes are made zeros at once.
const ZERO_NOW: u64 = 64 << 10;

/// The namespace was removed. A host that tries again learns that it has none.
pub(super) const GONE: BackendError = BackendError::NotReady;

/// Ranges that become zeros, a piece a turn.
pub struct Zeroing {
    command: u32,
    memory: Arc<Memory>,
    /// Offset and length of what is left, without overlaps; the last one comes first.
    ranges: Vec<(u64, u64)>,
    /// Memory goes back to the system.
    give_back: bool,
    /// What the order, or its last piece, cost beyond its turn, in bytes.
    debt: u64,
}

impl Core<'_> {
    /// The controller wants something of a namespace.
    #[inline]
    pub(super) fn request(&mut self, c: u32, ticket: Ticket, request: &Request<'_>, capsule: Option<u32>) {
        self.meter(c, ticket, request);
        let backend = request.backend;
        // Data that the host has come first, wherever the blocks are.
        match request.op {
            Op::Write { offset, from: Source::Remote(from), fua } => {
                self.drop_capsule(capsule);
                self.fetch(c, ticket, from, Then::Write { backend, offset, fua });
            }
            Op::Compare { offset, from: Source::Remote(from), fua } => {
                self.drop_capsule(capsule);
                self.fetch(c, ticket, from, Then::Compare { backend, offset, fua });
            }
            _ => match self.stores.get(backend) {
                Some(Store::Memory(_)) => self.memory_request(c, ticket, request, capsule),
                Some(Store::File(..) | Store::Other(..)) => self.file_request(c, ticket, request, capsule),
                // It was added after this core has looked, or was removed after the controller has.
                None => {
                    if self.renew_stores() {
                        return self.request(c, ticket, request, capsule);
                    }
                    self.drop_capsule(capsule);
                    self.respond(c, ticket, Err(GONE));
                }
            },
        }
    }

    /// As [`request`](Self::request), of a namespace in memory: done at once, but for many zeros.
    #[inline]
    fn memory_request(&mut self, c: u32, ticket: Ticket, request: &Request<'_>, capsule: Option<u32>) {
        let Some(Store::Memory(memory)) = self.stores.get(request.backend) else { return };
        let done = match request.op {
            Op::Read { offset, to, fua: _ } => {
                let sge = memory.sge(offset, to.len);
                self.batch.read(request.backend, offset);
                self.drop_capsule(capsule);
                return self.read(c, ticket, sge, to);
            }
            Op::Write { offset, from, fua: _ } => {
                let (backend, at, len) = (request.backend, self.in_capsule(capsule, from), from.len());
                let n = self.keep(c, ticket, Stage::Place { backend, offset, at, len });
                if let Some(buffer) = capsule {
                    self.set_capsule(n, Capsule::Now(buffer));
                }
                return self.batch.write(n);
            }
            Op::Compare { offset, from, fua: _ } => {
                memory.compare(offset, self.receives.mr(), self.in_capsule(capsule, from), from.len())
            }
            // Memory is as stable as it gets, and can always be read.
            Op::Flush | Op::Verify { .. } => Ok(()),
            Op::WriteZeroes { offset, len, .. } if len <= ZERO_NOW => memory.zero(offset, len),
            Op::WriteZeroes { offset, len, deallocate, .. } => {
                let memory = Arc::clone(memory);
                self.drop_capsule(capsule);
                return self.zero(c, ticket, memory, vec![(offset, len)], deallocate, RANGE);
            }
            Op::Deallocate(ref ranges) => {
                let memory = Arc::clone(memory);
                self.drop_capsule(capsule);
                let cost = ranges.clone().count() as u64 * RANGE;
                return self.zero(c, ticket, memory, merged(ranges.clone()), true, cost);
            }
        };
        self.drop_capsule(capsule);
        self.respond(c, ticket, done);
    }

    /// As [`request`](Self::request), of a namespace elsewhere: others work, and the core goes on.
    fn file_request(&mut self, c: u32, ticket: Ticket, request: &Request<'_>, capsule: Option<u32>) {
        let backend = request.backend;
        let work = match request.op {
            Op::Read { offset, to, fua } => {
                self.drop_capsule(capsule);
                return self.with_buffer(c, ticket, Stage::Load { backend, offset, to, fua }, to.len);
            }
            Op::Write { offset, from, fua } => {
                return self.take_capsule_data(
                    c,
                    ticket,
                    from,
                    Then::Write { backend, offset, fua },
                    capsule,
                );
            }
            Op::Compare { offset, from, fua } => {
                return self.take_capsule_data(
                    c,
                    ticket,
                    from,
                    Then::Compare { backend, offset, fua },
                    capsule,
                );
            }
            Op::Flush => Work::Flush,
            Op::Verify { offset, len, fua } => Work::Verify { offset, len, fua },
            Op::WriteZeroes { offset, len, fua, deallocate } => Work::Zero { offset, len, fua, deallocate },
            Op::Deallocate(ref ranges) => Work::Deallocate(merged(ranges.clone())),
        };
        self.drop_capsule(capsule);
        let n = self.keep(c, ticket, Stage::Storage(None));
        self.store(n, backend, work);
    }
    /// The data of a command came in its capsule: the storage takes them from there, or from a buffer.
    fn take_capsule_data(&mut self, c: u32, ticket: Ticket, from: Source, then: Then, capsule: Option<u32>) {
        let (at, len) = (self.in_capsule(capsule, from), from.len());
        let Some(buffer) = capsule else { return };
        let n = self.keep(c, ticket, Stage::Copy(len, then));
        if !self.may_keep_capsule(c) {
            let mut data = vec![0; len as usize];
            let read = self.receives.mr().read(at, &mut data);
            debug_assert!(read.is_ok(), "the controller has checked the capsule");
            self.receives.give(buffer);
            self.set_capsule(n, Capsule::Copied(data.into()));
            return self.get_buffer(c, n, len);
        }
        self.keep_capsule(c);
        self.set_capsule(n, Capsule::Kept(buffer, at));
        let place = Place { mr: Arc::clone(self.receives.mr()), at, len: len as usize };
        let (backend, work) = match then {
            // Past the page cache only memory that is aligned can go.
            Then::Write { backend, offset, fua } if !self.is_direct(backend) => {
                (backend, Work::Write { offset, from: place, fua })
            }
            Then::Compare { backend, offset, fua } => (backend, Work::Compare { offset, with: place, fua }),
            _ => return self.get_buffer(c, n, len),
        };
        if let Some(command) = self.commands.get_mut(n) {
            command.stage = Stage::Storage(None);
        }
        self.store(n, backend, work);
    }
    fn set_capsule(&mut self, n: u32, capsule: Capsule) {
        if let Some(command) = self.commands.get_mut(n) {
            command.capsule = Some(capsule);
        }
    }
    fn is_direct(&self, backend: Backend) -> bool {
        matches!(self.stores.get(backend), Some(Store::File(file, _)) if file.is_direct())
    }
    /// Gives threads work for a command.
    fn store(&mut self, n: u32, backend: Backend, work: Work) {
        let Some(who) = self.commands.get_mut(n).map(|command| command.connection).map(|c| self.who(c))
        else {
            return;
        };
        let (file, workers) = match self.stores.get(backend) {
            Some(Store::File(file, workers)) => (file, workers),
            Some(Store::Other(blocks, workers)) => {
                workers.give(who, Arc::clone(blocks), work, n, self.results.0.clone());
                self.at_work += 1;
                return;
            }
            _ => return self.stored(n, Err(GONE)),
        };
        let end = match &work {
            Work::Write { offset, from, .. } => Some(offset + from.len as u64),
            _ => None,
        };
        if let Err(lost) = file.look_before(self.now.as_nanos(), end) {
            return self.stored(n, Err(lost));
        }
        // Threads do what the ring cannot, and what finds no room in it.
        let work = match &mut self.ring {
            None => work,
            Some(ring) => match ring_request(work, file.is_direct()) {
                Ok(request) => match ring.give(file, request, n) {
                    Ok(()) => return,
                    Err(request) => request.into(),
                },
                Err(work) => work,
            },
        };
        workers.give(who, Arc::clone(file) as Arc<dyn Blocks>, work, n, self.results.0.clone());
        self.at_work += 1;
    }
    /// The work for a command is done.
    pub(super) fn stored(&mut self, n: u32, result: Result<(), BackendError>) {
        let Some(command) = self.commands.get_mut(n) else { return };
        let (c, ticket, stage) = (command.connection, command.ticket, command.stage);
        if let (Stage::Storage(Some(to)), Some(buffer), true) = (stage, &command.buffer, result.is_ok()) {
            let sge = self.pool.sge(buffer, to.len);
            command.stage = Stage::Answered;
            self.metered(c, ticket, true);
            if self.is_open(c)
                && let Some(queue) = self.queue(c)
            {
                return match queue.handle_done(ticket, Ok(())) {
                    Ok(response) => self.answer(c, response, Some((sge, to)), Some(n)),
                    Err(end) => {
                        self.finish(n);
                        self.close(c, &end);
                    }
                };
            }
        }
        self.finish(n);
        self.respond(c, ticket, result);
    }

    /// The data are where they will be sent from: nothing is copied, and nothing waits for the host to have them.
    #[inline]
    fn read(&mut self, c: u32, ticket: Ticket, from: Result<Sge, BackendError>, to: Remote) {
        let sge = match from {
            Ok(sge) => sge,
            Err(e) => return self.respond(c, ticket, Err(e)),
        };
        self.metered(c, ticket, true);
        let Some(queue) = self.queue(c) else { return };
        match queue.handle_done(ticket, Ok(())) {
            Ok(response) => self.answer(c, response, Some((sge, to)), None),
            Err(end) => self.close(c, &end),
        }
    }

    fn zero(
        &mut self,
        c: u32,
        ticket: Ticket,
        memory: Arc<Memory>,
        ranges: Vec<(u64, u64)>,
        give_back: bool,
        debt: u64,
    ) {
        let command = self.keep(c, ticket, Stage::Zeroing);
        self.zeroing.push(self.who(c), Zeroing { command, memory, ranges, give_back, debt });
    }
    /// Goes on with ranges that become zeros, of the host whose turn it is.
    #[cold]
    pub(super) fn zero_a_piece(&mut self) {
        let Some((who, mut job)) = self.zeroing.pop() else { return };
        let Some(&mut Command { connection: c, ticket, .. }) = self.commands.get_mut(job.command) else {
            return;
        };
        let most = if self.turns - self.completed < QUIET { ZERO_PIECE_BUSY } else { ZERO_PIECE };
        if job.debt > most && self.is_open(c) {
            job.debt -= most;
            return self.zeroing.put_back(who, job);
        }
        let mut done = Ok(());
        if self.is_open(c)
            && let Some((offset, len)) = job.ranges.pop()
        {
            done = job.memory.zero_some(offset, len, most, job.give_back).map(|Zeroed { bytes, cost }| {
                job.debt = cost.saturating_sub(most);
                if bytes < len {
                    job.ranges.push((offset + bytes, len - bytes));
                }
            });
            if done.is_ok() && !job.ranges.is_empty() {
                return self.zeroing.put_back(who, job);
            }
        }
        self.finish(job.command);
        self.respond(c, ticket, done);
    }

    /// Gets bytes of the host.
    #[inline]
    pub(super) fn fetch(&mut self, c: u32, ticket: Ticket, from: Remote, then: Then) {
        self.with_buffer(c, ticket, Stage::Fetch(from, then), from.len);
    }
    /// Goes on with a command when it has a buffer.
    #[inline]
    pub(super) fn with_buffer(&mut self, c: u32, ticket: Ticket, stage: Stage, len: u32) {
        let n = self.keep(c, ticket, stage);
        self.get_buffer(c, n, len);
    }
    /// A command has its buffer.
    pub(super) fn begin(&mut self, c: u32, n: u32, buffer: Buffer) {
        let Some(command) = self.commands.get_mut(n) else { return self.give_buffer(c, buffer) };
        let ticket = command.ticket;
        match command.stage {
            Stage::Fetch(from, then) => {
                let sge = self.pool.sge(&buffer, from.len);
                command.stage = Stage::Fetched(from.len, then);
                command.buffer = Some(buffer);
                self.post(c, Outgoing::Fetch(n, sge, from));
            }
            Stage::Give(to) => {
                let (at, sge) = (buffer.offset(), self.pool.sge(&buffer, to.len));
                command.stage = Stage::Answered;
                command.buffer = Some(buffer);
                let mut page = vec![0; to.len as usize];
                let Some(queue) = self.queue(c) else { return };
                match queue.poll_data(ticket, &mut page) {
                    Ok(response) => {
                        let written = self.pool.mr().write(at, &page);
                        debug_assert!(written.is_ok(), "the buffer is inside of the region");
                        self.answer(c, response, Some((sge, to)), Some(n));
                    }
                    Err(end) => {
                        self.finish(n);
                        self.close(c, &end);
                    }
                }
            }
            Stage::Load { backend, offset, to, fua } => {
                let mr = Arc::clone(self.pool.mr());
                let place = Place { mr, at: buffer.offset(), len: to.len as usize };
                command.stage = Stage::Storage(Some(to));
                command.buffer = Some(buffer);
                self.store(n, backend, Work::Read { offset, to: place, fua });
            }
            Stage::Copy(len, then) => {
                let to = buffer.offset();
                let capsule = command.capsule.take();
                command.stage = Stage::Fetched(len, then);
                command.buffer = Some(buffer);
                let copied = match &capsule {
                    Some(Capsule::Kept(_, at)) => {
                        self.pool.mr().copy_from(to, self.receives.mr(), *at..at + len as usize)
                    }
                    Some(Capsule::Copied(data)) => self.pool.mr().write(to, data),
                    _ => Ok(()),
                };
                debug_assert!(copied.is_ok(), "both are inside of their regions");
                self.drop_data(c, capsule);
                self.fetched(c, n);
            }
            Stage::Fetched(..)
            | Stage::Place { .. }
            | Stage::Storage(_)
            | Stage::Zeroing
            | Stage::Answered => {
                unreachable!("only commands that wait for a buffer get one")
            }
        }
    }
    /// The bytes of the host are in the command's buffer.
    #[inline]
    pub(super) fn fetched(&mut self, c: u32, n: u32) {
        let Some(command) = self.commands.get_mut(n) else { return };
        let (Stage::Fetched(len, then), Some(buffer)) = (command.stage, &command.buffer) else { return };
        let (ticket, at) = (command.ticket, buffer.offset());
        let done = match then {
            Then::Data => {
                let mut scratch = std::mem::take(&mut self.scratch);
                let read = self.pool.mr().read(at, &mut scratch[..len as usize]);
                debug_assert!(read.is_ok(), "the buffer is inside of the region");
                self.finish(n);
                self.data(c, ticket, &scratch[..len as usize]);
                self.scratch = scratch;
                return;
            }
            Then::Write { backend, offset, fua } => match self.stores.get(backend) {
                Some(Store::Memory(_)) => {
                    command.stage = Stage::Place { backend, offset, at, len };
                    return self.batch.write(n);
                }
                Some(Store::File(..) | Store::Other(..)) => {
                    command.stage = Stage::Storage(None);
                    let from = Place { mr: Arc::clone(self.pool.mr()), at, len: len as usize };
                    return self.store(n, backend, Work::Write { offset, from, fua });
                }
                None => {
                    if self.renew_stores() {
                        return self.fetched(c, n);
                    }
                    Err(GONE)
                }
            },
            Then::Compare { backend, offset, fua } => match self.stores.get(backend) {
                Some(Store::Memory(memory)) => memory.compare(offset, self.pool.mr(), at, len),
                Some(Store::File(..) | Store::Other(..)) => {
                    command.stage = Stage::Storage(None);
                    let with = Place { mr: Arc::clone(self.pool.mr()), at, len: len as usize };
                    return self.store(n, backend, Work::Compare { offset, with, fua });
                }
                None => {
                    if self.renew_stores() {
                        return self.fetched(c, n);
                    }
                    Err(GONE)
                }
            },
        };
        self.finish(n);
        self.respond(c, ticket, done);
    }

    /// Keeps a command that waits for something.
    #[inline]
    fn keep(&mut self, c: u32, ticket: Ticket, stage: Stage) -> u32 {
        self.connection(c).commands += 1;
        self.commands.insert(Command { connection: c, ticket, stage, buffer: None, capsule: None })
    }
    /// A command waits for nothing any more: gives back its buffer, and returns its connection.
    #[inline]
    pub(super) fn finish(&mut self, n: u32) -> Option<u32> {
        let command = self.commands.remove(n)?;
        if let Some(buffer) = command.buffer {
            self.give_buffer(command.connection, buffer);
        }
        self.drop_data(command.connection, command.capsule);
        self.connection(command.connection).commands -= 1;
        Some(command.connection)
    }
    #[inline]
    fn drop_capsule(&mut self, capsule: Option<u32>) {
        if let Some(buffer) = capsule {
            self.receives.give(buffer);
        }
    }
    /// Gives back what data came in.
    #[inline]
    fn drop_data(&mut self, c: u32, capsule: Option<Capsule>) {
        match capsule {
            None | Some(Capsule::Copied(_)) => {}
            Some(Capsule::Now(buffer)) => self.receives.give(buffer),
            Some(Capsule::Kept(buffer, _)) => self.give_capsule(c, buffer),
        }
    }
    /// Where a capsule's data are in the region of receives.
    #[inline]
    fn in_capsule(&self, capsule: Option<u32>, from: Source) -> usize {
        let Source::Capsule { offset, .. } = from else { unreachable!("data of the host are fetched first") };
        self.receives.offset(capsule.expect("data in the capsule come with it")) + offset as usize
    }
}

/// Work that a ring can do, on a file past the page cache or not.
fn ring_request(work: Work, direct: bool) -> Result<RingRequest, Work> {
    Ok(match work {
        Work::Read { offset, to, fua: false } => RingRequest::Read(offset, to),
        Work::Write { offset, from, fua } if direct || !fua => RingRequest::Write(offset, from, fua),
        other => return Err(other),
    })
}
