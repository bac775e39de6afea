//! Threads that do blocking work on storage, so that cores never wait for it.

use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;

use nvmf::BackendError;
use nvmf::fair::{Turns, Who};
use nvmf::sync::lock;

use super::work::{BlockingStorage, CommandIndex, Done, Work};
use crate::wake::Sender;

/// Work for a command of a core. The command waits until the job is done.
#[derive(Debug)]
pub struct Job {
    blocks: Arc<dyn BlockingStorage>,
    work: Work,
    command: CommandIndex,
    to: Sender<Done>,
}

impl Job {
    /// Does the work, and sends the result to the core.
    pub fn run(self) {
        let result = self.run_if_healthy(&self.work);
        self.to.send(Done { command: self.command, result });
    }
    /// Does the first part of the work. Returns the rest, so that the jobs of other hosts can come before it; `None` if the job is done.
    fn run_part(mut self) -> Option<Self> {
        let Some(part) = self.work.take_front() else {
            self.run();
            return None;
        };
        match self.run_if_healthy(&part) {
            Ok(()) => Some(self),
            Err(e) => {
                self.to.send(Done { command: self.command, result: Err(e) });
                None
            }
        }
    }
    fn run_if_healthy(&self, work: &Work) -> Result<(), BackendError> {
        let health = self.blocks.health();
        health.check()?;
        self.blocks.run(work).map_err(|e| match e {
            // A `File` has marked its health as failed already, and that reason is kept.
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
    /// The threads that were started.
    threads: Vec<JoinHandle<()>>,
    /// How many threads wait for work.
    idle: usize,
    /// The maximum number of threads; 0 if the program takes the jobs itself.
    most: usize,
}

impl Queue {
    fn next(&self) -> Option<(Who, Job)> {
        let mut state = lock(&self.state);
        loop {
            if let Some(next) = state.jobs.pop() {
                return Some(next);
            }
            if state.ended {
                return None;
            }
            state.idle += 1;
            state = self.wake.wait(state).unwrap_or_else(PoisonError::into_inner);
            state.idle -= 1;
        }
    }
    /// The main loop of a thread.
    fn work(&self) {
        while let Some((who, job)) = self.next() {
            if let Some(rest) = job.run_part() {
                lock(&self.state).jobs.put_back(who, rest);
                // Another thread may take the rest, or a job that comes before it.
                self.wake.notify_one();
            }
        }
    }
}

/// The threads for the storage of one namespace, started when they are needed. Dropping this waits until all jobs are done.
#[derive(Debug)]
pub struct Workers {
    queue: Arc<Queue>,
}

impl Workers {
    /// Up to `most` threads, but at least one. The first is started here, the others when jobs wait.
    ///
    /// # Errors
    /// If the thread cannot be started.
    pub fn new(most: usize) -> std::io::Result<Self> {
        let workers = Self::by_hand();
        let mut state = lock(&workers.queue.state);
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
    /// Without threads: the program [takes](Self::take) the jobs and runs them itself.
    pub fn by_hand() -> Self {
        Self { queue: Arc::default() }
    }
    /// Takes the next job, of the host whose turn it is; `None` if there is none.
    pub fn take(&self) -> Option<Job> {
        lock(&self.queue.state).jobs.pop().map(|(_, job)| job)
    }
    /// Adds a job of a host. Its result is sent to `to`.
    pub fn give(
        &self,
        who: Who,
        blocks: Arc<dyn BlockingStorage>,
        work: Work,
        command: CommandIndex,
        to: Sender<Done>,
    ) {
        let mut state = lock(&self.queue.state);
        state.jobs.push(who, Job { blocks, work, command, to });
        // A thread that was woken but does not run yet still counts as idle, and the job that it will take still counts as waiting.
        if state.jobs.len() > state.idle && state.threads.len() < state.most {
            // If no more threads can be started, the existing ones do the work.
            let _ = self.start(&mut state);
        }
        drop(state);
        self.queue.wake.notify_one();
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        let mut state = lock(&self.queue.state);
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
    use super::super::health::Health;
    use super::super::work::PART;
    use super::*;
    use crate::wake::{Waker, channel};

    fn host(last: u8) -> Who {
        Who::at([10, 77, 0, last].into())
    }

    /// Records the order of its work, once it is allowed to begin.
    #[derive(Debug, Default)]
    struct Noted(Mutex<(bool, Vec<u64>)>, Condvar, Health);

    impl BlockingStorage for Noted {
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

    // Goal: a host with a lot of work does not make another host wait until all of it is done.
    #[test]
    fn hosts_take_turns_at_the_threads_that_wait_for_storage() {
        let blocks = Arc::new(Noted::default());
        let workers = Workers::new(1).unwrap();
        let (to, results) = channel(&Waker::new().unwrap());
        let zero = |offset: u64, len: u64| Work::Zero { offset, len, fua: false, deallocate: false };
        for n in 0..4 {
            workers.give(
                host(1),
                blocks.clone(),
                zero(100 * n * PART, 10 * PART),
                CommandIndex(n as u32),
                to.clone(),
            );
        }
        workers.give(host(2), blocks.clone(), zero(1000 * PART, PART), CommandIndex(9), to);
        blocks.0.lock().unwrap().0 = true;
        blocks.1.notify_all();
        let order: Vec<_> =
            results.iter().take(5).map(|done| (done.command.0, done.result.is_ok())).collect();
        assert_eq!(order, [(9, true), (0, true), (1, true), (2, true), (3, true)]);
        let parts = &blocks.0.lock().unwrap().1;
        assert_eq!(parts.len(), 41);
        assert!(parts.iter().position(|&part| part == 1000).unwrap() <= 2, "{parts:?}");
    }
}
