//! Threads that wait for files, so that cores do not.

use std::sync::mpsc::Sender;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use nvmf::BackendError;
use nvmf::fair::{Turns, Who};
use verbs::Mr;

use super::File;

/// Bytes of a region.
#[derive(Clone, Debug)]
pub struct Place {
    /// The region, which lives as long as any work refers to it.
    pub mr: Arc<Mr>,
    /// The first byte.
    pub at: usize,
    /// Bytes.
    pub len: usize,
}

/// What to do with a file.
#[derive(Clone, Debug)]
#[allow(missing_docs, reason = "as in nvmf::Op")]
pub enum Work {
    Read { offset: u64, to: Place, fua: bool },
    Write { offset: u64, from: Place, fua: bool },
    Compare { offset: u64, with: Place, fua: bool },
    Verify { offset: u64, len: u64, fua: bool },
    Zero { offset: u64, len: u64, fua: bool, deallocate: bool },
    Deallocate(Vec<(u64, u64)>),
    Flush,
}

impl From<super::Request> for Work {
    fn from(request: super::Request) -> Self {
        match request {
            super::Request::Read(offset, to) => Self::Read { offset, to, fua: false },
            super::Request::Write(offset, from, fua) => Self::Write { offset, from, fua },
            super::Request::Flush => Self::Flush,
        }
    }
}

/// Storage that takes its time: [`Workers`] wait for it. A program may have kinds of its own.
pub trait Blocks: std::fmt::Debug + Send + Sync {
    /// Bytes that it has now.
    ///
    /// # Errors
    /// If it is gone.
    fn size(&self) -> std::io::Result<u64>;
    /// Does this work, and returns when it is done. Several threads call it.
    ///
    /// # Errors
    /// Why the work failed; the host gets the NVMe status for it.
    fn run(&self, work: &Work) -> Result<(), BackendError>;
}

impl Blocks for File {
    fn size(&self) -> std::io::Result<u64> {
        File::size(self)
    }
    fn run(&self, work: &Work) -> Result<(), BackendError> {
        match work {
            Work::Read { offset, to, fua } => self.read(*offset, &to.mr, to.at, to.len, *fua),
            Work::Write { offset, from, fua } => self.write(*offset, &from.mr, from.at, from.len, *fua),
            Work::Compare { offset, with, fua } => self.compare(*offset, &with.mr, with.at, with.len, *fua),
            Work::Verify { offset, len, fua } => self.verify(*offset, *len, *fua),
            Work::Zero { offset, len, fua, deallocate } => self.zero(*offset, *len, *fua, *deallocate),
            Work::Deallocate(ranges) => ranges.iter().try_for_each(|&(at, len)| self.deallocate(at, len)),
            Work::Flush => self.flush(),
        }
    }
}

/// A command whose work is done, and how it ended.
pub type Done = (u32, Result<(), BackendError>);

/// Work for a command of a core. The command waits until it has been run.
#[derive(Debug)]
pub struct Job {
    blocks: Arc<dyn Blocks>,
    work: Work,
    command: u32,
    to: Sender<Done>,
}

impl Job {
    /// Does it, and says so.
    pub fn run(self) {
        let result = self.blocks.run(&self.work);
        // The core may have ended meanwhile.
        let _ = self.to.send((self.command, result));
    }
}

#[derive(Debug, Default)]
struct Queue {
    jobs: Mutex<(Turns<Job>, bool)>,
    wake: Condvar,
}

impl Queue {
    fn lock(&self) -> MutexGuard<'_, (Turns<Job>, bool)> {
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner)
    }
    fn next(&self) -> Option<Job> {
        let mut jobs = self.lock();
        loop {
            if let Some((_, job)) = jobs.0.pop() {
                return Some(job);
            }
            if jobs.1 {
                return None;
            }
            jobs = self.wake.wait(jobs).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// The threads. Dropping them ends them, after the work that they have.
#[derive(Debug)]
pub struct Workers {
    queue: Arc<Queue>,
    threads: Vec<JoinHandle<()>>,
}

impl Workers {
    /// Starts this many threads.
    ///
    /// # Errors
    /// If the system has no more.
    pub fn new(threads: usize) -> std::io::Result<Self> {
        let queue = Arc::<Queue>::default();
        let mut workers = Self { queue: queue.clone(), threads: Vec::new() };
        for n in 0..threads.max(1) {
            let queue = queue.clone();
            let work = move || {
                while let Some(job) = queue.next() {
                    job.run();
                }
            };
            workers.threads.push(std::thread::Builder::new().name(format!("nvmf-io-{n}")).spawn(work)?);
        }
        Ok(workers)
    }
    /// No threads: the program [takes](Self::take) what there is to do, and runs it whenever it likes.
    pub fn by_hand() -> Self {
        Self { queue: Arc::default(), threads: Vec::new() }
    }
    /// Work that nobody has taken, of the host whose turn it is.
    pub fn take(&self) -> Option<Job> {
        self.queue.lock().0.pop().map(|(_, job)| job)
    }
    /// Gives them work of a host; the result goes to `to`.
    pub fn give(&self, who: Who, blocks: Arc<dyn Blocks>, work: Work, command: u32, to: Sender<Done>) {
        self.queue.lock().0.push(who, Job { blocks, work, command, to });
        self.queue.wake.notify_one();
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        self.queue.lock().1 = true;
        self.queue.wake.notify_all();
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}
