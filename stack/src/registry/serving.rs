//! The thread that answers processes which want to join, as long as this process is a member. It sleeps until one connects.

use super::answers::{Answers, Counts, Round};
use super::run::Run;
use super::socket::Listener;
use crate::sync::eventfd::{EventFd, wait_readable};
use crate::sync::lock::lock;
use crate::sync::scheduling::wake_at_once;
use crate::sync::worker::Worker;
use core::sync::atomic::{AtomicBool, Ordering};
use core::time::Duration;
use rustix::event::{PollFd, PollFlags};
use std::io;
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex};
use std::time::Instant;

/// Pause before the thread accepts again, after the system had no descriptor or memory for a connection.
const PAUSE: Duration = Duration::from_millis(20);

/// The runs of a member in the order of their leases, with the sockets that hold their names.
type Names = Vec<(Run, Arc<Listener>)>;

/// The thread, which ends when this is dropped.
#[derive(Debug)]
pub struct Serving {
    shared: Arc<Shared>,
    thread: Worker,
}

#[derive(Debug)]
struct Shared {
    names: Mutex<Names>,
    counts: Mutex<Counts>,
    event: EventFd,
    is_over: AtomicBool,
}

impl Serving {
    /// Starts the thread.
    ///
    /// # Errors
    /// Those of eventfd(2) and pthread_create(3).
    pub fn start(answers: Answers, names: Names) -> io::Result<Self> {
        let shared = Arc::new(Shared {
            names: Mutex::new(names),
            counts: Mutex::default(),
            event: EventFd::new()?,
            is_over: AtomicBool::new(false),
        });
        let theirs = Arc::clone(&shared);
        let thread = Worker::start("roce-registry", move || serve(&theirs, answers))?;
        Ok(Self { shared, thread })
    }

    /// Sets the names at which the thread answers from now on.
    pub fn listen_at(&self, names: Names) {
        *lock(&self.shared.names) = names;
        self.shared.event.signal();
    }

    /// What happened to the connections that were accepted.
    pub fn counts(&self) -> Counts {
        *lock(&self.shared.counts)
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        // The thread never waits for another process, so this returns soon.
        self.thread.end(|| {
            self.shared.is_over.store(true, Ordering::Relaxed);
            self.shared.event.signal();
        });
    }
}

fn serve(shared: &Shared, mut answers: Answers) {
    // Other processes wait for this thread.
    wake_at_once();
    let mut pause = None;
    while !shared.is_over.load(Ordering::Relaxed) {
        let names = lock(&shared.names).clone();
        answers.set_runs(names.iter().map(|(run, _)| *run));
        wait(shared, &answers, &names, pause);
        // Cleared before the work, so that a later signal wakes the thread again.
        shared.event.clear();
        let now = Instant::now();
        answers.handle_open(now);
        let later = names
            .iter()
            .filter(|(run, listener)| answers.handle_listener(now, *run, listener) == Round::Later);
        pause = (later.count() > 0).then_some(PAUSE);
        *lock(&shared.counts) = answers.counts();
    }
}

/// Waits until there is work.
fn wait(shared: &Shared, answers: &Answers, names: &[(Run, Arc<Listener>)], pause: Option<Duration>) {
    let timeout = [answers.timeout(Instant::now()), pause].into_iter().flatten().min();
    let listeners = names.iter().map(|(_, listener)| listener.as_fd()).filter(|_| pause.is_none());
    let all = [shared.event.as_fd()].into_iter().chain(listeners).chain(answers.fds());
    let mut fds: Vec<PollFd<'_>> = all.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect();
    wait_readable(&mut fds, timeout.unwrap_or(Duration::MAX));
}
