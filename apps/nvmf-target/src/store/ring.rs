//! Asynchronous file I/O: the `io_uring` of a core.
//!
//! The kernel reads and writes the core's buffers while the core does other work. If the system allows it, the buffers are registered with
//! the ring, so that the kernel need not map them for each request.
//!
//! Soundness: the kernel may access a buffer from the time when a request is in the ring until its completion. The buffers are in memory
//! regions that are pinned ([`Mr::pin`]) as long as the ring exists, and dropping the ring first waits for every request. The file of a
//! request is kept with it.

#![allow(unsafe_code, reason = "the ring names memory by address")]

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::sync::Arc;

use io_uring::squeue::Entry;
use io_uring::types::Fd;
use io_uring::{IoUring, opcode};
use nvmf::BackendError;
use rustix::io::Errno;
use verbs::{Mr, MrPin, VerbsError};

use super::file::{File, of_errno};
use super::work::{CommandIndex, Done, MrSlice, Work};

/// Entries of the submission queue. Up to 16 times as many requests may be under way.
const ENTRIES: u32 = 256;
/// The flag of a write that completes when its data are on stable storage.
const RWF_DSYNC: i32 = 2;

/// A read or write of a file.
#[derive(Clone, Debug)]
pub enum Request {
    /// Read from this offset of the file into memory.
    Read(u64, MrSlice),
    /// Write from memory to this offset of the file. The flag is FUA: the write completes when the data are on stable storage. It may be
    /// set only for files with direct I/O. For others FUA needs a flush, which must be serialized with other flushes ([`File`]).
    Write(u64, MrSlice, bool),
}

impl From<Request> for Work {
    fn from(request: Request) -> Self {
        match request {
            Request::Read(offset, to) => Self::Read { offset, to, fua: false },
            Request::Write(offset, from, fua) => Self::Write { offset, from, fua },
        }
    }
}

/// A request under way, or what is left of it after a partial completion.
#[derive(Debug)]
struct UnderWay {
    file: Arc<File>,
    request: Request,
}

/// The ring of a core.
pub struct Ring {
    ring: IoUring,
    /// The requests, by [`CommandIndex`].
    requests: Vec<Option<UnderWay>>,
    /// How many requests the kernel has, or gets with the next submission.
    under_way: usize,
    /// How many entries of the submission queue are not submitted yet.
    unsubmitted: usize,
    /// Whether the buffers are registered, in the order of `regions`.
    registered: bool,
    regions: Vec<Arc<Mr>>,
    pins: Vec<MrPin>,
}

impl Ring {
    /// Makes a ring for buffers in `regions`.
    ///
    /// # Errors
    /// If the system does not support io_uring, or forbids it.
    pub fn new(regions: Vec<Arc<Mr>>) -> io::Result<Self> {
        let ring = IoUring::builder().setup_cqsize(32 * ENTRIES).build(ENTRIES)?;
        let pins: Result<Vec<_>, VerbsError> = regions.iter().map(|mr| mr.pin(0..mr.len())).collect();
        let pins = pins.map_err(io::Error::other)?;
        let buffers: Vec<libc::iovec> = pins
            .iter()
            .map(|pin| libc::iovec { iov_base: pin.as_ptr().cast(), iov_len: pin.len() })
            .collect();
        // SAFETY: the buffers keep their addresses as long as the ring exists, because `pins` is kept with it.
        let registered = unsafe { ring.submitter().register_buffers(&buffers) }.is_ok();
        Ok(Self { ring, requests: Vec::new(), under_way: 0, unsubmitted: 0, registered, regions, pins })
    }
    /// Whether the buffers are registered. They are not if the process may not lock so much memory (`ulimit -l`), or if a region has more
    /// than 1 GiB.
    pub fn is_registered(&self) -> bool {
        self.registered
    }
    /// How many requests are under way.
    #[inline]
    pub fn under_way(&self) -> usize {
        self.under_way
    }

    /// Whether all requests are submitted. Only then does the descriptor of the ring become readable for each of them.
    pub fn is_submitted(&self) -> bool {
        self.unsubmitted == 0
    }
    /// Adds a request of a command. [`submit_and_collect`](Self::submit_and_collect) submits it.
    ///
    /// # Errors
    /// Returns the request if there is no room, if the command already has a request, or if its memory is in none of the regions.
    pub fn give(&mut self, file: &Arc<File>, request: Request, command: CommandIndex) -> Result<(), Request> {
        // The completion queue must have room for all requests. A command's request is not replaced while the kernel has it.
        let at = command.0 as usize;
        if self.under_way >= 16 * ENTRIES as usize || self.requests.get(at).is_some_and(Option::is_some) {
            return Err(request);
        }
        let Some(entry) = self.entry(file, &request) else { return Err(request) };
        if !self.push(&entry.user_data(command.0.into())) {
            return Err(request);
        }
        if self.requests.len() <= at {
            self.requests.resize_with(at + 1, || None);
        }
        self.requests[at] = Some(UnderWay { file: Arc::clone(file), request });
        self.under_way += 1;
        Ok(())
    }

    /// Submits all requests that were added, and passes the results of completed requests to `done`.
    ///
    /// # Errors
    /// If the system refuses the submission.
    pub fn submit_and_collect(&mut self, mut done: impl FnMut(Done)) -> io::Result<()> {
        self.submit()?;
        loop {
            let Some(completion) = self.ring.completion().next() else { return Ok(()) };
            let (command, result) = (CommandIndex(completion.user_data() as u32), completion.result());
            let Some(UnderWay { file, request }) = self.requests[command.0 as usize].take() else { continue };
            self.under_way -= 1;
            let result = match rest_after(request, result) {
                // There is room, because a completion has just freed an entry.
                Ok(Some(rest)) => match self.give(&file, rest, command) {
                    Ok(()) => continue,
                    Err(_) => Err(BackendError::Internal),
                },
                Ok(None) => Ok(()),
                Err(BackendError::OutOfRange) => Err(file.ended()),
                Err(e) => Err(e),
            };
            done(Done { command, result });
        }
    }
    fn submit(&mut self) -> io::Result<()> {
        if self.unsubmitted == 0 {
            return Ok(());
        }
        match self.ring.submit() {
            Ok(n) => {
                self.unsubmitted = self.unsubmitted.saturating_sub(n);
                Ok(())
            }
            // Tried again in the next turn: completions have to be taken first, or a signal interrupted the call.
            Err(e)
                if matches!(
                    e.kind(),
                    io::ErrorKind::Interrupted | io::ErrorKind::WouldBlock | io::ErrorKind::ResourceBusy
                ) =>
            {
                Ok(())
            }
            Err(e) => Err(e),
        }
    }

    fn push(&mut self, entry: &Entry) -> bool {
        // SAFETY: the entry refers to bytes of a pinned region and to a file that is kept with the request, both until its completion.
        let push = |ring: &mut IoUring| unsafe { ring.submission().push(entry) }.is_ok();
        if !push(&mut self.ring) && (self.submit().is_err() || !push(&mut self.ring)) {
            return false;
        }
        self.unsubmitted += 1;
        true
    }
    /// The submission queue entry of a request; `None` if its memory is in none of the regions.
    fn entry(&self, file: &Arc<File>, request: &Request) -> Option<Entry> {
        let fd = Fd(file.handle().as_raw_fd());
        Some(match request {
            Request::Read(offset, place) => {
                let (region, ptr, len) = self.place(place)?;
                match self.registered {
                    true => opcode::ReadFixed::new(fd, ptr, len, region).offset(*offset).build(),
                    false => opcode::Read::new(fd, ptr, len).offset(*offset).build(),
                }
            }
            Request::Write(offset, place, fua) => {
                let (region, ptr, len) = self.place(place)?;
                let flags = if *fua { RWF_DSYNC } else { 0 };
                match self.registered {
                    true => {
                        opcode::WriteFixed::new(fd, ptr, len, region).offset(*offset).rw_flags(flags).build()
                    }
                    false => opcode::Write::new(fd, ptr, len).offset(*offset).rw_flags(flags).build(),
                }
            }
        })
    }
    /// The index of the region of a slice, its address and its length; `None` if it is not within one of the regions.
    fn place(&self, place: &MrSlice) -> Option<(u16, *mut u8, u32)> {
        let region = self.regions.iter().position(|mr| Arc::ptr_eq(mr, &place.mr))?;
        let end = place.at.checked_add(place.len)?;
        let len = u32::try_from(place.len).ok().filter(|_| end <= self.pins[region].len())?;
        Some((region as u16, self.pins[region].as_ptr().wrapping_add(place.at), len))
    }
}

impl AsFd for Ring {
    /// The descriptor of the ring: readable while there are completions.
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the ring keeps the descriptor open as long as it exists, and the result borrows the ring.
        unsafe { BorrowedFd::borrow_raw(self.ring.as_raw_fd()) }
    }
}

/// What is left of a request after a completion with `result`; `None` if it is done.
fn rest_after(request: Request, result: i32) -> Result<Option<Request>, BackendError> {
    let Ok(n) = usize::try_from(result) else {
        let again = [Errno::INTR, Errno::AGAIN].map(|errno| -errno.raw_os_error());
        return if again.contains(&result) { Ok(Some(request)) } else { Err(of_errno(-result)) };
    };
    let rest = |place: MrSlice| MrSlice { at: place.at + n, len: place.len - n, ..place };
    match request {
        Request::Read(_, place) | Request::Write(_, place, _) if n >= place.len => Ok(None),
        Request::Read(..) if n == 0 => Err(BackendError::OutOfRange),
        Request::Write(..) if n == 0 => Err(BackendError::Io),
        Request::Read(offset, place) => Ok(Some(Request::Read(offset + n as u64, rest(place)))),
        Request::Write(offset, place, fua) => Ok(Some(Request::Write(offset + n as u64, rest(place), fua))),
    }
}

impl Drop for Ring {
    /// Waits for all requests: the memory must not be freed while the kernel uses it.
    fn drop(&mut self) {
        while self.under_way > 0 {
            let waited = self.ring.submit_and_wait(1);
            let done = self.ring.completion().count();
            self.under_way -= done.min(self.under_way);
            let interrupted = |e: &io::Error| e.kind() == io::ErrorKind::Interrupted;
            if waited.is_err_and(|e| !interrupted(&e)) && done == 0 {
                // The kernel may still write to this memory, so it must never be freed.
                self.pins.drain(..).for_each(core::mem::forget);
                return;
            }
        }
    }
}
