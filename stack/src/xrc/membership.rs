//! A member's connection to the owner of a domain: calls of the program's threads, and a thread that executes the owner's orders.
//!
//! The thread exists because the owner, and with it every other member, waits for the execution of its orders while the program computes.
//! It handles no signals. A call waits for its answer with a time limit; after that its result is unknown, and the connection is
//! abandoned. A forked child has none of this.

use core::sync::atomic::{AtomicBool, Ordering};
use core::time::Duration;
use rustix::event::{PollFd, PollFlags};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Instant;

use super::domain::DomainFile;
use super::error::XrcError;
use super::message::{Answer, Call, FromMember, FromOwner, VERSION};
use super::refusal::Refusal;
use super::shadows::Executor;
use super::socket::{self, Buffer, Came};
use super::start::Owner;
use crate::device::DeviceError;
use crate::registry::{Connected, Connection};
use crate::sync::eventfd::{EventFd, wait_readable};
use crate::sync::lock::lock;
use crate::sync::scheduling::wake_at_once;
use crate::sync::worker::Worker;

/// Time limit for the answer to a call. The owner's own time limit for members that do not respond is shorter.
const CALL: Duration = Duration::from_secs(15);
/// Time limit for an owner to start up.
const UP: Duration = Duration::from_secs(10);
/// Interval between two attempts to connect to a starting owner.
const LOOK: Duration = Duration::from_millis(5);

/// Time limits. Programs use the defaults; tests set their own.
#[derive(Clone, Copy, Debug)]
pub(super) struct Patience {
    /// For the answer to a call.
    pub call: Duration,
    /// For the start-up of an owner.
    pub up: Duration,
}

impl Default for Patience {
    fn default() -> Self {
        Self { call: CALL, up: UP }
    }
}

/// A connection on which the owner has accepted this process as a member.
#[derive(Debug)]
pub(super) struct Welcomed {
    connection: Connection,
    /// Number of other members that have the domain open.
    pub others: u32,
}

/// Becomes a member of a domain, if it has an owner. Otherwise starts the owner `start`, if given, or returns `None`.
///
/// # Errors
/// The errors of connecting to the owner, and of starting it.
pub(super) fn join(
    file: &DomainFile,
    start: Option<&Owner>,
    patience: Patience,
) -> Result<Option<Welcomed>, XrcError> {
    let until = Instant::now() + patience.up;
    let mut is_started = false;
    loop {
        match socket::connect(file)? {
            Connected::Open(connection) => {
                if let Some(uid) = socket::foreign_user(&connection)? {
                    return Err(XrcError::Foreign { uid });
                }
                if let Some(welcomed) = greet(connection, until)? {
                    return Ok(Some(welcomed));
                }
            }
            Connected::Full => {}
            Connected::Nobody => match start {
                None => return Ok(None),
                Some(owner) if !is_started => {
                    owner.start()?;
                    is_started = true;
                }
                Some(_) => {}
            },
        }
        if Instant::now() >= until {
            let command = start.map(Owner::command).unwrap_or_default();
            return Err(XrcError::NotUp { after: patience.up, command });
        }
        std::thread::sleep(LOOK);
    }
}

/// Sends the hello, and waits for the welcome. `None` if the owner ended, or did not answer in time.
fn greet(connection: Connection, until: Instant) -> Result<Option<Welcomed>, XrcError> {
    if !socket::send(&connection, &FromMember::Hello(VERSION).encode()).unwrap_or(false) {
        return Ok(None);
    }
    let mut buffer: Buffer = [0; _];
    loop {
        match socket::receive(&connection, &mut buffer) {
            Came::Message(len) => {
                return match FromOwner::parse(&buffer[..len]) {
                    Some(FromOwner::Welcome(others)) => Ok(Some(Welcomed { connection, others })),
                    Some(FromOwner::VersionMismatch(theirs)) => {
                        Err(XrcError::VersionMismatch { ours: VERSION, theirs })
                    }
                    _ => Ok(None),
                };
            }
            Came::End => return Ok(None),
            Came::Nothing => {}
        }
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(None);
        }
        wait_readable(&mut [PollFd::new(&connection, PollFlags::IN)], left);
    }
}

/// A membership. Dropping it ends the membership.
#[derive(Debug)]
pub(super) struct Membership {
    shared: Arc<Shared>,
    thread: Worker,
    patience: Duration,
}

#[derive(Debug)]
struct Shared {
    connection: Connection,
    /// The number of the last call. Locked during a call, so that calls are made one at a time.
    calling: Mutex<u32>,
    state: Mutex<State>,
    changed: Condvar,
    /// Wakes the thread when the membership should end.
    event: EventFd,
    is_over: AtomicBool,
}

#[derive(Debug, Default)]
struct State {
    /// The number of the call that waits for its answer.
    waits: Option<u32>,
    answer: Option<Result<Answer, Refusal>>,
    /// The owner has ended, or was abandoned.
    has_ended: bool,
}

impl Membership {
    /// Starts to execute the owner's orders.
    ///
    /// # Errors
    /// No file descriptor or thread is left.
    pub(super) fn new(
        welcomed: Welcomed,
        executor: impl Executor + 'static,
        patience: Patience,
    ) -> Result<Self, XrcError> {
        let shared = Arc::new(Shared {
            connection: welcomed.connection,
            calling: Mutex::new(0),
            state: Mutex::default(),
            changed: Condvar::new(),
            event: EventFd::new().map_err(XrcError::system("eventfd(2)"))?,
            is_over: AtomicBool::new(false),
        });
        let theirs = shared.clone();
        let thread = Worker::start("roce-xrcd", move || theirs.serve(executor))
            .map_err(XrcError::system("starting the thread of a shared XRC domain"))?;
        Ok(Self { shared, thread, patience: patience.call })
    }

    /// Whether the owner lives, as far as is known.
    pub(super) fn lives(&self) -> bool {
        self.thread.is_here() && !lock(&self.shared.state).has_ended
    }

    /// Sends a call to the owner, and waits for the answer.
    ///
    /// # Errors
    /// [`XrcError::Refused`]; [`XrcError::Ended`], [`XrcError::Silent`], after which all calls fail; [`DeviceError::Forked`].
    pub(super) fn call(&self, call: Call) -> Result<Answer, XrcError> {
        if !self.thread.is_here() {
            return Err(DeviceError::Forked.into());
        }
        let mut number = lock(&self.shared.calling);
        *number = number.wrapping_add(1);
        let until = Instant::now() + self.patience;
        {
            let mut state = lock(&self.shared.state);
            if state.has_ended {
                return Err(XrcError::Ended);
            }
            (state.waits, state.answer) = (Some(*number), None);
        }
        let answer = if self.shared.send(&FromMember::Call(*number, call), until) {
            self.shared.wait_for_answer(until)
        } else {
            None
        };
        match answer {
            Some(answer) => answer.map_err(XrcError::Refused),
            None => {
                self.shared.give_up();
                let is_late = Instant::now() >= until;
                Err(if is_late { XrcError::Silent { after: self.patience } } else { XrcError::Ended })
            }
        }
    }
}

impl Drop for Membership {
    fn drop(&mut self) {
        // The thread waits only for its own device, so this ends soon.
        self.thread.end(|| {
            self.shared.is_over.store(true, Ordering::Relaxed);
            self.shared.event.signal();
        });
    }
}

impl Shared {
    /// Sends a message before `until`. `false` if it was not sent, because the owner ended or the time is over.
    fn send(&self, message: &FromMember, until: Instant) -> bool {
        let bytes = message.encode();
        loop {
            match socket::send(&self.connection, &bytes) {
                Ok(true) => return true,
                Err(_) => return false,
                Ok(false) => {}
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            self.connection.wait_for_room(left);
        }
    }

    fn wait_for_answer(&self, until: Instant) -> Option<Result<Answer, Refusal>> {
        let mut state = lock(&self.state);
        loop {
            if let Some(answer) = state.answer.take() {
                return Some(answer);
            }
            let left = until.saturating_duration_since(Instant::now());
            if state.has_ended || left.is_zero() {
                return None;
            }
            state = self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Abandons the owner.
    fn give_up(&self) {
        lock(&self.state).has_ended = true;
        self.is_over.store(true, Ordering::Relaxed);
        self.event.signal();
    }

    /// The thread's main loop: executes orders and distributes answers until owner or membership ends.
    fn serve(&self, mut executor: impl Executor) {
        // Other processes wait for this thread.
        wake_at_once();
        while !self.is_over.load(Ordering::Relaxed) {
            if !self.take(&mut executor) {
                break;
            }
        }
        // Ends the shadows, before any waiting call returns.
        drop(executor);
        self.connection.is_empty(); // shuts the connection down: the owner notices now, not only when the last reference is dropped
        lock(&self.state).has_ended = true;
        self.changed.notify_all();
    }

    /// Handles the next message, or waits for it. `false` if the owner has ended, or sent an invalid message.
    fn take(&self, executor: &mut impl Executor) -> bool {
        let mut buffer: Buffer = [0; _];
        let message = match socket::receive(&self.connection, &mut buffer) {
            Came::Message(len) => FromOwner::parse(&buffer[..len]),
            Came::End => return false,
            Came::Nothing => {
                let (connection, event) = (&self.connection, &self.event);
                let fds = &mut [PollFd::new(connection, PollFlags::IN), PollFd::new(event, PollFlags::IN)];
                wait_readable(fds, Duration::MAX);
                return true;
            }
        };
        match message {
            Some(FromOwner::Order(number, order)) => {
                let outcome = executor.execute(&order);
                self.send(&FromMember::Outcome(number, outcome), Instant::now() + CALL)
            }
            Some(FromOwner::Answer(number, answer)) => {
                let mut state = lock(&self.state);
                if state.waits.take_if(|waits| *waits == number).is_none() {
                    return false;
                }
                state.answer = Some(answer);
                self.changed.notify_all();
                true
            }
            Some(FromOwner::Event(target, event)) => {
                executor.handle_event(target, event);
                true
            }
            Some(FromOwner::Welcome(_) | FromOwner::VersionMismatch(_)) | None => false,
        }
    }
}
