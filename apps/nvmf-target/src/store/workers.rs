//! Threads that wait for files, so that cores do not.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use nvmf::BackendError;
use nvmf::fair::{Turns, Who};
use verbs::Mr;

use super::{File, Health};
use crate::wake::Sender;

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
        }
    }
}

/// Bytes that a thread makes zeros, verifies or gives back before work of another host has its turn.
const PART: u64 = 8 << 20;

impl Work {
    /// Takes a part off the front of work that is long; this is what is left then, and makes stable all of it where that is wanted.
    fn part(&mut self) -> Option<Self> {
        // Up to a multiple, so that parts end where storage can be given back.
        let end_of = |offset: u64| offset - offset % PART + PART;
        match self {
            Self::Verify { offset, len, .. } | Self::Zero { offset, len, .. } => {
                let (at, part) = (*offset, end_of(*offset) - *offset);
                if *len <= part {
                    return None;
                }
                (*offset, *len) = (at + part, *len - part);
                Some(match *self {
                    Self::Zero { deallocate, .. } => {
                        Self::Zero { offset: at, len: part, fua: false, deallocate }
                    }
                    _ => Self::Verify { offset: at, len: part, fua: false },
                })
            }
            Self::Deallocate(ranges) => {
                let (at, len) = *ranges.first()?;
                let part = (end_of(at) - at).min(len);
                if ranges.len() == 1 && part == len {
                    return None;
                }
                if part == len {
                    ranges.remove(0);
                } else {
                    ranges[0] = (at + part, len - part);
                }
                Some(Self::Deallocate(vec![(at, part)]))
            }
            Self::Read { .. } | Self::Write { .. } | Self::Compare { .. } | Self::Flush => None,
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
    /// Bytes that it gives back together, which read as zeros then; `None` if it gives nothing back.
    fn deallocates(&self) -> Option<u32> {
        None
    }
    /// Does this work, and returns when it is done. Several threads call it.
    ///
    /// # Errors
    /// Why the work failed; the host gets the NVMe status for it. After [`BackendError::Lost`] nothing is run any more until the
    /// storage's health is restored.
    fn run(&self, work: &Work) -> Result<(), BackendError>;
    /// Its health.
    fn health(&self) -> &Health;
}

impl Blocks for File {
    fn size(&self) -> std::io::Result<u64> {
        File::size(self)
    }
    fn deallocates(&self) -> Option<u32> {
        File::deallocates(self)
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
    fn health(&self) -> &Health {
        File::health(self)
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
        let result = self.run_if_healthy(&self.work);
        self.to.send((self.command, result));
    }
    /// Does a part of it; returns what is left.
    fn run_part(mut self) -> Option<Self> {
        let Some(part) = self.work.part() else {
            self.run();
            return None;
        };
        match self.run_if_healthy(&part) {
            Ok(()) => Some(self),
            Err(e) => {
                self.to.send((self.command, Err(e)));
                None
            }
        }
    }
    fn run_if_healthy(&self, work: &Work) -> Result<(), BackendError> {
        let health = self.blocks.health();
        health.check()?;
        self.blocks.run(work).map_err(|e| match e {
            // A file has said why.
            BackendError::Lost => health.fail("the storage of a namespace", "it has lost data"),
            other => other,
        })
    }
}

#[derive(Debug, Default)]
struct Queue {
    state: Mutex<State>,
    wake: Condvar,
}

#[derive(Debug, Default)]
struct State {
    jobs: Turns<Job>,
    ended: bool,
    /// Threads that there are, of which so many wait for work, and that there may be.
    threads: Vec<JoinHandle<()>>,
    free: usize,
    most: usize,
}

impl Queue {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
    fn next(&self) -> Option<(Who, Job)> {
        let mut state = self.lock();
        loop {
            if let Some(next) = state.jobs.pop() {
                return Some(next);
            }
            if state.ended {
                return None;
            }
            state.free += 1;
            state = self.wake.wait(state).unwrap_or_else(PoisonError::into_inner);
            state.free -= 1;
        }
    }
    /// What a thread does.
    fn work(&self) {
        while let Some((who, job)) = self.next() {
            if let Some(rest) = job.run_part() {
                self.lock().jobs.put_back(who, rest);
                // Another thread may be free for it, or for what comes before it.
                self.wake.notify_one();
            }
        }
    }
}

/// Threads of one kind of storage, started as they are needed. Dropping them ends them, after the work that they have.
#[derive(Debug)]
pub struct Workers {
    queue: Arc<Queue>,
}

impl Workers {
    /// Up to this many threads, one of them at once.
    ///
    /// # Errors
    /// If the system has no more.
    pub fn new(most: usize) -> std::io::Result<Self> {
        let workers = Self::by_hand();
        let mut state = workers.queue.lock();
        state.most = most.max(1);
        workers.start(&mut state)?;
        drop(state);
        Ok(workers)
    }
    fn start(&self, state: &mut State) -> std::io::Result<()> {
        let queue = Arc::clone(&self.queue);
        let name = format!("nvmf-io-{}", state.threads.len());
        state.threads.push(std::thread::Builder::new().name(name).spawn(move || queue.work())?);
        Ok(())
    }
    /// No threads: the program [takes](Self::take) what there is to do, and runs it whenever it likes.
    pub fn by_hand() -> Self {
        Self { queue: Arc::default() }
    }
    /// Work that nobody has taken, of the host whose turn it is.
    pub fn take(&self) -> Option<Job> {
        self.queue.lock().jobs.pop().map(|(_, job)| job)
    }
    /// Gives them work of a host; the result goes to `to`.
    pub fn give(&self, who: Who, blocks: Arc<dyn Blocks>, work: Work, command: u32, to: Sender<Done>) {
        let mut state = self.queue.lock();
        state.jobs.push(who, Job { blocks, work, command, to });
        // Those that were woken already still count as free.
        if state.jobs.len() > state.free && state.threads.len() < state.most && !state.threads.is_empty() {
            // Where the system has no more threads, those that there are do the work.
            let _ = self.start(&mut state);
        }
        drop(state);
        self.queue.wake.notify_one();
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        let mut state = self.queue.lock();
        state.ended = true;
        let threads = std::mem::take(&mut state.threads);
        drop(state);
        self.queue.wake.notify_all();
        for thread in threads {
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wake::{Waker, channel};

    fn host(last: u8) -> Who {
        Who::at([10, 77, 0, last].into())
    }

    // Goal: a command is done in parts that other hosts' work can come between, and its parts are together what it was.
    #[test]
    fn long_work_is_done_in_parts_that_are_together_what_it_was() {
        let range = |work: &Work| match *work {
            Work::Zero { offset, len, .. } | Work::Verify { offset, len, .. } => vec![(offset, len)],
            Work::Deallocate(ref ranges) => ranges.clone(),
            _ => Vec::new(),
        };
        for (offset, len) in [(0, 1), (512, PART), (0, PART), (0, 5 * PART), (PART - 512, 3 * PART + 1024)] {
            for mut work in [
                Work::Zero { offset, len, fua: true, deallocate: true },
                Work::Verify { offset, len, fua: true },
                Work::Deallocate(vec![(offset, len), (offset + 2 * len, len), (offset + 4 * len, 512)]),
            ] {
                let whole = range(&work);
                let mut done = Vec::new();
                while let Some(part) = work.part() {
                    assert!(!matches!(part, Work::Zero { fua: true, .. } | Work::Verify { fua: true, .. }));
                    done.extend(range(&part));
                }
                assert!(!matches!(work, Work::Zero { fua: false, .. } | Work::Verify { fua: false, .. }));
                done.extend(range(&work));
                assert!(done.iter().all(|&(_, len)| 0 < len && len <= PART), "{done:?}");
                assert_eq!(crate::store::merged(done.into_iter()), crate::store::merged(whole.into_iter()));
            }
        }
    }

    /// Notes whose work it does, once it may.
    #[derive(Debug, Default)]
    struct Noted(Mutex<(bool, Vec<u64>)>, Condvar, Health);

    impl Blocks for Noted {
        fn size(&self) -> std::io::Result<u64> {
            Ok(0)
        }
        fn run(&self, work: &Work) -> Result<(), BackendError> {
            let mut state = self.1.wait_while(self.0.lock().unwrap(), |state| !state.0).unwrap();
            if let Work::Zero { offset, .. } = work {
                state.1.push(offset / PART);
            }
            Ok(())
        }
        fn health(&self) -> &Health {
            &self.2
        }
    }

    // Goal: a host that orders a lot does not make another one wait until all of it is done.
    #[test]
    fn hosts_take_turns_at_the_threads_that_wait_for_storage() {
        let blocks = Arc::new(Noted::default());
        let workers = Workers::new(1).unwrap();
        let (to, results) = channel(&Waker::new().unwrap());
        let zero = |offset: u64, len: u64| Work::Zero { offset, len, fua: false, deallocate: false };
        for n in 0..4 {
            workers.give(host(1), blocks.clone(), zero(100 * n * PART, 10 * PART), n as u32, to.clone());
        }
        workers.give(host(2), blocks.clone(), zero(1000 * PART, PART), 9, to);
        blocks.0.lock().unwrap().0 = true;
        blocks.1.notify_all();
        let order: Vec<_> =
            results.iter().take(5).map(|(command, result)| (command, result.is_ok())).collect();
        assert_eq!(order, [(9, true), (0, true), (1, true), (2, true), (3, true)]);
        let parts = &blocks.0.lock().unwrap().1;
        assert_eq!(parts.len(), 41);
        assert!(parts.iter().position(|&part| part == 1000).unwrap() <= 2, "{parts:?}");
    }
}
