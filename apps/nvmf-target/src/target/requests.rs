//! The first steps of a command: from its capsule to the request to a namespace, and the start of that request.

use std::sync::Arc;

use nvmf::status::Status;
use nvmf::wire::Sqe;
use nvmf::{Op, Request, Source, Step, Ticket};

use super::commands::{Capsule, CommandState, Purpose, Transfer};
use super::connection::Connection;
use super::disks::GONE;
use super::env::Env;
use super::ids::ReceiveId;
use super::zeroing::Order;
use crate::store::{Memory, MrSlice, Store, Work, merged};

/// A Write Zeroes of at most this many bytes is done at once, not in pieces.
const ZERO_NOW: u64 = 64 << 10;

impl Env<'_> {
    /// Handles a command capsule of `len` bytes, which is in a receive buffer.
    pub fn handle_capsule(&mut self, connection: &mut Connection, capsule: ReceiveId, len: usize) {
        self.statistics.counters.capsules.add(1);
        let mut sqe = [0; Sqe::LEN];
        let first = len.min(Sqe::LEN);
        let receives = &mut self.shared.receives;
        let read = receives.mr().read(receives.offset(capsule), &mut sqe[..first]);
        debug_assert!(read.is_ok(), "the buffer is inside of the region");
        let Some(queue) = &mut connection.queue else { return receives.give(capsule) };
        match queue.handle_capsule(self.now, &sqe[..first], len) {
            Ok(step) => self.advance(connection, step, Some(capsule)),
            Err(end) => {
                receives.give(capsule);
                self.close(connection, &end);
            }
        }
    }

    /// Does the next step of a command. `capsule` is the receive buffer of its capsule, if it still has it.
    fn advance(&mut self, connection: &mut Connection, step: Step<'_>, capsule: Option<ReceiveId>) {
        match step {
            Step::Run(ticket, request) => return self.request(connection, ticket, &request, capsule),
            Step::Fetch(ticket, Source::Capsule { offset, len }) => {
                let Some(capsule) = capsule else { return };
                let receives = &mut self.shared.receives;
                let at = receives.offset(capsule) + offset as usize;
                let mut scratch = std::mem::take(&mut self.scratch);
                let read = receives.mr().read(at, &mut scratch[..len as usize]);
                debug_assert!(read.is_ok(), "the controller has checked the capsule");
                receives.give(capsule);
                self.handle_data(connection, ticket, &scratch[..len as usize]);
                self.scratch = scratch;
                return;
            }
            _ => {}
        }
        self.release_receive(capsule);
        match step {
            Step::Respond(response) => self.answer(connection, response, None, None),
            Step::Fetch(ticket, Source::Remote(from)) => {
                self.fetch(connection, ticket, from, Purpose::Controller);
            }
            Step::Give(ticket, to) => self.with_buffer(connection, ticket, CommandState::Give(to), to.len),
            Step::Wait | Step::Run(..) | Step::Fetch(..) => {}
        }
    }
    /// Passes data to the controller that it has asked for, and does the next step of the command.
    pub fn handle_data(&mut self, connection: &mut Connection, ticket: Ticket, data: &[u8]) {
        let Some(queue) = &mut connection.queue else { return };
        match queue.handle_data(self.now, ticket, data) {
            Ok(Step::Wait) => self.statistics.counters.connect_waits.add(1),
            Ok(step) => {
                self.note_who(connection);
                if matches!(&step, Step::Respond(response) if response.cqe.status.get() == Status::ControllerBusy.field())
                {
                    self.statistics.no_controller(self.now, connection.share.who().address);
                }
                self.advance(connection, step, None);
            }
            Err(end) => self.close(connection, &end),
        }
    }

    /// Starts a request of the controller to a namespace.
    #[inline]
    fn request(
        &mut self,
        connection: &mut Connection,
        ticket: Ticket,
        request: &Request<'_>,
        capsule: Option<ReceiveId>,
    ) {
        connection.meter_begin(self.now.as_nanos(), ticket, request);
        let backend = request.backend;
        // Data in host memory are fetched first, for any kind of storage.
        if let Some((Source::Remote(from), transfer)) = transfer_of(request) {
            self.release_receive(capsule);
            return self.fetch(connection, ticket, from, Purpose::Storage(transfer));
        }
        match self.disks.get(backend) {
            Some(Store::Memory(_)) => self.memory_request(connection, ticket, request, capsule),
            Some(Store::File(..) | Store::Other(..)) => {
                self.file_request(connection, ticket, request, capsule);
            }
            // Either it was added since this core last took the table, or it was removed since the controller last took its own.
            None => {
                if self.disks.renew() {
                    return self.request(connection, ticket, request, capsule);
                }
                self.release_receive(capsule);
                self.respond(connection, ticket, Err(GONE));
            }
        }
    }

    /// Starts a request to a namespace in memory. It is done at once or at the end of the turn, except long zeroing.
    #[inline]
    fn memory_request(
        &mut self,
        connection: &mut Connection,
        ticket: Ticket,
        request: &Request<'_>,
        capsule: Option<ReceiveId>,
    ) {
        let backend = request.backend;
        let Some(Store::Memory(memory)) = self.disks.get(backend) else { return };
        let done = match request.op {
            Op::Read { offset, to, fua: _ } => {
                let sge = memory.sge(offset, to.len);
                self.batch.add_read(backend, offset);
                self.release_receive(capsule);
                // The data are sent from the namespace's memory itself: nothing is copied, and no buffer has to be kept until they are
                // acknowledged.
                return match sge {
                    Ok(sge) => self.respond_with(connection, ticket, (sge, to), None),
                    Err(e) => self.respond(connection, ticket, Err(e)),
                };
            }
            Op::Write { offset, from, fua: _ } => {
                let (at, len) = (self.in_capsule(capsule, from), from.len());
                let n = self.keep(connection, ticket, CommandState::Place { backend, offset, at, len });
                self.commands.set_capsule(n, capsule.map(Capsule::Now));
                return self.batch.add_write(n);
            }
            Op::Compare { offset, from, fua: _ } => {
                let at = self.in_capsule(capsule, from);
                memory.compare(offset, self.shared.receives.mr(), at, from.len())
            }
            // Memory has no cache to flush, and can always be read.
            Op::Flush | Op::Verify { .. } => Ok(()),
            Op::WriteZeroes { offset, len, .. } if len <= ZERO_NOW => memory.zero(offset, len),
            Op::WriteZeroes { offset, len, deallocate, .. } => {
                let memory = Arc::clone(memory);
                self.release_receive(capsule);
                return self.zero(connection, ticket, memory, vec![(offset, len)], deallocate, 1);
            }
            Op::Deallocate(ref ranges) => {
                let memory = Arc::clone(memory);
                self.release_receive(capsule);
                let named = ranges.clone().count() as u64;
                return self.zero(connection, ticket, memory, merged(ranges.clone()), true, named);
            }
        };
        self.release_receive(capsule);
        self.respond(connection, ticket, done);
    }
    /// Orders the zeroing of ranges, a piece of which is done in each turn. `named` is how many ranges the host named.
    fn zero(
        &mut self,
        connection: &mut Connection,
        ticket: Ticket,
        memory: Arc<Memory>,
        ranges: Vec<(u64, u64)>,
        give_back: bool,
        named: u64,
    ) {
        let command = self.keep(connection, ticket, CommandState::Zeroing);
        let order = Order::new(command, memory, ranges, give_back, named);
        self.zeroing.push(connection.share.who(), order);
    }

    /// Starts a request to a namespace in a file or other storage. Threads or the kernel do the work, and the core does not wait.
    fn file_request(
        &mut self,
        connection: &mut Connection,
        ticket: Ticket,
        request: &Request<'_>,
        capsule: Option<ReceiveId>,
    ) {
        let backend = request.backend;
        if let (Some((from, transfer)), Some(capsule)) = (transfer_of(request), capsule) {
            return self.take_capsule_data(connection, ticket, from, transfer, capsule);
        }
        self.release_receive(capsule);
        let work = match request.op {
            Op::Read { offset, to, fua } => {
                let state = CommandState::Load { backend, offset, to, fua };
                return self.with_buffer(connection, ticket, state, to.len);
            }
            Op::Write { .. } | Op::Compare { .. } => unreachable!("data in the capsule come with it"),
            Op::Flush => Work::Flush,
            Op::Verify { offset, len, fua } => Work::Verify { offset, len, fua },
            Op::WriteZeroes { offset, len, fua, deallocate } => Work::Zero { offset, len, fua, deallocate },
            Op::Deallocate(ref ranges) => Work::Deallocate(merged(ranges.clone())),
        };
        let n = self.keep(connection, ticket, CommandState::Storage(None));
        self.store(connection, n, backend, work);
    }
    /// Starts a request whose data came in the capsule. The storage takes them from the receive buffer, or from a pool buffer that they are
    /// copied to.
    fn take_capsule_data(
        &mut self,
        connection: &mut Connection,
        ticket: Ticket,
        from: Source,
        transfer: Transfer,
        capsule: ReceiveId,
    ) {
        let (at, len) = (self.in_capsule(Some(capsule), from), from.len());
        if !self.shared.keep_capsule(&mut connection.share) {
            let mut data = vec![0; len as usize];
            let read = self.shared.receives.mr().read(at, &mut data);
            debug_assert!(read.is_ok(), "the controller has checked the capsule");
            self.shared.receives.give(capsule);
            let n = self.keep(connection, ticket, CommandState::Copy(len, transfer));
            self.commands.set_capsule(n, Some(Capsule::Copied(data.into())));
            return self.get_buffer(connection, n, len);
        }
        // Direct I/O needs aligned memory, so the data are copied to a pool buffer.
        let aligned = !transfer.compare && self.disks.is_direct(transfer.backend);
        let state = if aligned { CommandState::Copy(len, transfer) } else { CommandState::Storage(None) };
        let n = self.keep(connection, ticket, state);
        self.commands.set_capsule(n, Some(Capsule::Kept(capsule, at)));
        if aligned {
            return self.get_buffer(connection, n, len);
        }
        let place = MrSlice { mr: Arc::clone(self.shared.receives.mr()), at, len: len as usize };
        self.store(connection, n, transfer.backend, transfer.work(place));
    }
    /// Offset of the in-capsule data in the memory region of the receives.
    #[inline]
    fn in_capsule(&self, capsule: Option<ReceiveId>, from: Source) -> usize {
        let Source::Capsule { offset, .. } = from else { unreachable!("data of the host are fetched first") };
        self.shared.receives.offset(capsule.expect("data in the capsule come with it")) + offset as usize
    }
}

/// The data of the host that a request needs, and what the storage does with them; `None` if it needs none.
#[inline]
fn transfer_of(request: &Request<'_>) -> Option<(Source, Transfer)> {
    let backend = request.backend;
    match request.op {
        Op::Write { offset, from, fua } => Some((from, Transfer { backend, offset, fua, compare: false })),
        Op::Compare { offset, from, fua } => Some((from, Transfer { backend, offset, fua, compare: true })),
        _ => None,
    }
}
