//! The storage of namespaces, as a core sees it: the table of all stores, and the work that threads and the kernel do for this core.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::mpsc::Receiver;

use nvmf::config::Backend;
use nvmf::fair::Who;
use nvmf::{BackendError, Instant};
use tracing::{debug, warn};
use verbs::Mr;

use crate::store::{
    BlockingStorage, CommandIndex, Done, Request as RingRequest, Ring, Store, Stores, Table, Work,
};
use crate::wake::{Sender, Waker, channel};

/// The error of a command whose storage was removed with its namespace. A host that retries then gets a status that the namespace does not
/// exist.
pub const GONE: BackendError = BackendError::NotReady;

/// The stores, and the work that is under way for this core.
pub struct Disks {
    all: Arc<Stores>,
    /// The table of stores that this core uses.
    table: Arc<Table>,
    /// For threads, to send their results.
    to_results: Sender<Done>,
    /// The results of threads.
    results: Receiver<Done>,
    /// How many results are still to come from threads.
    at_threads: usize,
    /// The `io_uring` for files, once there is a file.
    ring: Option<Ring>,
    /// Whether to make a ring when there is the first file. False once that has failed.
    wants_ring: bool,
    /// The memory regions of the receives and of the pool. All data are in them, and the ring registers them.
    regions: [Arc<Mr>; 2],
}

impl Disks {
    /// Makes a core's view of `all`. All data that are read and written must be in `regions`. The result of a thread wakes the core by
    /// `waker`. `io_uring`: use it for files, if the system allows it.
    pub fn new(all: Arc<Stores>, regions: [Arc<Mr>; 2], waker: &Arc<Waker>, io_uring: bool) -> Self {
        let (to_results, results) = channel(waker);
        let table = Arc::default();
        let mut disks = Self {
            all,
            table,
            to_results,
            results,
            at_threads: 0,
            ring: None,
            wants_ring: io_uring,
            regions,
        };
        disks.renew();
        disks
    }
    /// The store with this number; `None` if it was removed.
    #[inline]
    pub fn get(&self, backend: Backend) -> Option<&Store> {
        self.table.get(backend)
    }
    /// Switches to the newest table. Returns whether there was a newer one. The removal of a store waits until all cores have done this.
    pub fn renew(&mut self) -> bool {
        let Some(newer) = self.all.newer(&self.table) else { return false };
        if self.ring.is_none() && self.wants_ring && newer.has_files() {
            self.ring = new_ring(&self.regions);
            self.wants_ring = self.ring.is_some();
        }
        self.table = newer;
        true
    }
    /// Whether the store is a file with direct I/O, so that memory must be aligned.
    pub fn is_direct(&self, backend: Backend) -> bool {
        matches!(self.get(backend), Some(Store::File(file, _)) if file.is_direct())
    }

    /// Gives the work of a command to the ring or to threads. [`submit_and_collect`](Self::submit_and_collect) returns its result later.
    ///
    /// # Errors
    /// If the store was removed or has failed. Then the work is not done.
    pub fn give(
        &mut self,
        now: Instant,
        who: Who,
        backend: Backend,
        work: Work,
        command: CommandIndex,
    ) -> Result<(), BackendError> {
        let (blocks, workers, work) = match self.table.get(backend) {
            Some(Store::Other(blocks, workers)) => (Arc::clone(blocks), workers, work),
            Some(Store::File(file, workers)) => {
                let end = match &work {
                    Work::Write { offset, from, .. } => Some(offset + from.len as u64),
                    _ => None,
                };
                file.look_before(now.as_nanos(), end)?;
                // Threads do the work that the ring cannot do or has no room for.
                let work = match &mut self.ring {
                    None => work,
                    Some(ring) => match ring_request(work, file.is_direct()) {
                        Ok(request) => match ring.give(file, request, command) {
                            Ok(()) => return Ok(()),
                            Err(request) => request.into(),
                        },
                        Err(work) => work,
                    },
                };
                (Arc::clone(file) as Arc<dyn BlockingStorage>, workers, work)
            }
            _ => return Err(GONE),
        };
        workers.give(who, blocks, work, command, self.to_results.clone());
        self.at_threads += 1;
        Ok(())
    }
    /// Submits the requests that the ring was given, and adds all results to `done`.
    #[inline]
    pub fn submit_and_collect(&mut self, done: &mut Vec<Done>) {
        while self.at_threads > 0
            && let Ok(result) = self.results.try_recv()
        {
            self.at_threads -= 1;
            done.push(result);
        }
        if let Some(ring) = &mut self.ring
            && ring.under_way() > 0
            && let Err(e) = ring.submit_and_collect(|result| done.push(result))
        {
            // The requests stay in the ring, and are submitted again in the next turn.
            debug!(error = %e, "the ring was not submitted");
        }
    }
    /// Whether the core may sleep: the ring has submitted all its requests.
    pub fn may_sleep(&self) -> bool {
        self.ring.as_ref().is_none_or(Ring::is_submitted)
    }
    /// The descriptor of the ring, which is readable when a request has completed; `None` if no request is under way.
    pub fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.ring.as_ref().filter(|ring| ring.under_way() > 0).map(AsFd::as_fd)
    }
}

/// Converts work to a request of the ring. `direct`: the file bypasses the page cache. Returns the work if the ring cannot do it.
fn ring_request(work: Work, direct: bool) -> Result<RingRequest, Work> {
    Ok(match work {
        Work::Read { offset, to, fua: false } => RingRequest::Read(offset, to),
        Work::Write { offset, from, fua } if direct || !fua => RingRequest::Write(offset, from, fua),
        other => return Err(other),
    })
}

/// Makes a ring for buffers in `regions`. Logs a warning and returns `None` if io_uring cannot be used.
fn new_ring(regions: &[Arc<Mr>]) -> Option<Ring> {
    match Ring::new(regions.to_vec()) {
        Ok(ring) => {
            if !ring.is_registered() {
                warn!(
                    "the buffers could not be registered with io_uring, which makes files slower: a core may have up to 1 GiB of \
                     them (--buffers), and as much as the limit of locked memory allows (ulimit -l)"
                );
            }
            Some(ring)
        }
        Err(e) => {
            warn!(error = %e, "io_uring cannot be used here; threads read and write the files instead");
            None
        }
    }
}
