//! Files without waiting: an `io_uring` of a core.
//!
//! The kernel reads and writes the core's buffers while the core goes on. Where the system allows it, the buffers are
//! registered with the ring, so that the kernel need not look them up for each request.
//!
//! Soundness: the kernel accesses a buffer from the moment a request is in the ring until its completion. The buffers are in
//! regions that are pinned ([`Mr::pin`]) as long as the ring exists, and dropping the ring first waits for every request. The
//! file of a request is kept with it.

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

/// Entries of the submission ring. Up to 16 times as many requests may be under way.
const ENTRIES: u32 = 256;
/// The flag of a write that is through to stable storage when it is done.
const RWF_DSYNC: i32 = 2;

/// Bytes of a file to move.
#[derive(Clone, Debug)]
pub enum Request {
    /// Read bytes from an offset on.
    Read(u64, MrSlice),
    /// Write bytes from an offset on; the flag is FUA: they are on stable storage when it is done. The flag is only for files that bypass
    /// the page cache. For others FUA is a flush, and a flush that fails must be seen before anything that follows it ([`File`]).
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

/// A request under way, with what is left of it.
#[derive(Debug)]
struct UnderWay {
    file: Arc<File>,
    request: Request,
}

/// The ring of a core.
pub struct Ring {
    ring: IoUring,
    /// Requests by the numbers of their commands.
    requests: Vec<Option<UnderWay>>,
    /// Requests that the kernel has, or will have with the next submission.
    under_way: usize,
    /// Entries of the submission ring that the kernel does not have yet.
    unsubmitted: usize,
    /// The buffers are registered, in the order of the regions.
    registered: bool,
    regions: Vec<Arc<Mr>>,
    pins: Vec<MrPin>,
}

impl Ring {
    /// A ring for buffers in `regions`.
    ///
    /// # Errors
    /// If the system has none, or forbids it.
    pub fn new(regions: Vec<Arc<Mr>>) -> io::Result<Self> {
        let ring = IoUring::builder().setup_cqsize(32 * ENTRIES).build(ENTRIES)?;
        let pins: Result<Vec<_>, VerbsError> = regions.iter().map(|mr| mr.pin(0..mr.len())).collect();
        let pins = pins.map_err(io::Error::other)?;
        let buffers: Vec<libc::iovec> = pins
            .iter()
            .map(|pin| libc::iovec { iov_base: pin.as_ptr().cast(), iov_len: pin.len() })
            .collect();
        // SAFETY: the buffers stay where they are as long as the ring exists, by the pins beside it.
        let registered = unsafe { ring.submitter().register_buffers(&buffers) }.is_ok();
        Ok(Self { ring, requests: Vec::new(), under_way: 0, unsubmitted: 0, registered, regions, pins })
    }
    /// Whether the buffers are registered. They are not where memory may not be locked (`ulimit -l`), nor where a region has more
    /// than 1 GiB.
    pub fn is_registered(&self) -> bool {
        self.registered
    }
    /// Requests under way.
    #[inline]
    pub fn under_way(&self) -> usize {
        self.under_way
    }

    /// Whether all that was given is submitted: only then does the descriptor tell when something is done.
    pub fn is_submitted(&self) -> bool {
        self.unsubmitted == 0
    }
    /// Gives the ring a request for a command. It is submitted by [`submit_and_collect`](Self::submit_and_collect).
    ///
    /// # Errors
    /// If there is no room, the command has one already, or its bytes are in none of the regions: the request comes back.
    pub fn give(&mut self, file: &Arc<File>, request: Request, command: CommandIndex) -> Result<(), Request> {
        // The completion queue has room for all. What is under way for a command stays until the kernel has done with it.
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

    /// Submits what was given, and passes what is done to `done`.
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
                // There is room: a completion has just made some.
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
            // Tried again in the next turn: the kernel wants completions to be taken first, or a signal came.
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
        // SAFETY: the entry names bytes of a pinned region and a file that is kept, both until its completion.
        let push = |ring: &mut IoUring| unsafe { ring.submission().push(entry) }.is_ok();
        if !push(&mut self.ring) && (self.submit().is_err() || !push(&mut self.ring)) {
            return false;
        }
        self.unsubmitted += 1;
        true
    }
    /// The submission entry of a request; `None` where its bytes are in none of the regions.
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
    /// The region of a place, its address and its length: within the region.
    fn place(&self, place: &MrSlice) -> Option<(u16, *mut u8, u32)> {
        let region = self.regions.iter().position(|mr| Arc::ptr_eq(mr, &place.mr))?;
        let end = place.at.checked_add(place.len)?;
        let len = u32::try_from(place.len).ok().filter(|_| end <= self.pins[region].len())?;
        Some((region as u16, self.pins[region].as_ptr().wrapping_add(place.at), len))
    }
}

impl AsFd for Ring {
    /// Readable while there are completions.
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the ring has the descriptor open as long as it exists, which the result borrows.
        unsafe { BorrowedFd::borrow_raw(self.ring.as_raw_fd()) }
    }
}

/// What is left of a request after `result`, if anything.
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
    /// The memory may go when the kernel has done with it.
    fn drop(&mut self) {
        while self.under_way > 0 {
            let waited = self.ring.submit_and_wait(1);
            let done = self.ring.completion().count();
            self.under_way -= done.min(self.under_way);
            let interrupted = |e: &io::Error| e.kind() == io::ErrorKind::Interrupted;
            if waited.is_err_and(|e| !interrupted(&e)) && done == 0 {
                // Memory that the kernel may still write to is never freed.
                self.pins.drain(..).for_each(core::mem::forget);
                return;
            }
        }
    }
}
