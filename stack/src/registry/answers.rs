//! Answers processes that want to join, and hands those over that want a link, or statistics.
//!
//! Turns a listening socket that is readable, and connections that are, into answers. Nothing waits, so any thread can do it
//! between other things. Strangers cost a bounded amount: connections that have said nothing are a few at a time, each for a
//! while, and the oldest one gives way to the next. Only processes of our own user and of those that are admitted are heard; whatever
//! they say, they get an answer or the end of their connection.

use super::admission::Admitted;
use super::call::{Call, Receiver};
use super::memory::Memory;
use super::message::{REQUEST, Reply, Request, Runs};
use super::run::Run;
use super::socket::{Connection, Lies, Listener};
use super::sys::Peer;
use super::table::VERSION;
use crate::config::RUNS_PER_PROCESS;
use core::time::Duration;
use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Instant;

/// Connections that have said nothing yet.
const OPEN_MAX: usize = 16;
/// How long they may take to say something, if nobody else wants their place.
const OPEN_FOR: Duration = Duration::from_secs(5);
/// Connections that are accepted in one go.
const ACCEPTED: usize = 64;
/// Connections that cannot be closed at once, before no more are accepted.
const CLOSING_MAX: usize = 32;
/// Time between two tries of what the system refuses for now.
const RETRY: Duration = Duration::from_millis(10);

/// The end of a listener's round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Round {
    /// Look again when it is readable.
    Done,
    /// Look again after a while, readable or not: the system has no room.
    Later,
}

/// The answers of a member.
#[derive(Debug)]
pub struct Answers {
    memory: Memory,
    birth: u128,
    admitted: Admitted,
    takers: Takers,
    /// Those of the member.
    runs: Runs,
    open: VecDeque<Open>,
    /// They have been heard, and wait until closing them keeps nobody waiting.
    closing: Vec<Connection>,
    counts: Counts,
}

/// Who takes what is handed over.
#[derive(Clone, Debug, Default)]
pub struct Takers {
    /// Calls for a link.
    pub links: Receiver,
    /// Requests for statistics.
    pub stats: Receiver,
}

/// What became of those that connected.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Processes that were let in.
    pub joins: u64,
    /// Calls for a link that were handed over.
    pub calls: u64,
    /// Requests for statistics that were handed over.
    pub asked: u64,
    /// Processes with another version of the layout.
    pub unlike: u64,
    /// Processes of users who are not admitted.
    pub foreign: u64,
    /// Processes that said something else, or nothing in time, or wanted what nobody gives.
    pub refused: u64,
}

#[derive(Debug)]
struct Open {
    connection: Connection,
    /// At whose name.
    at: Run,
    since: Instant,
    /// What it has asked for, and could not be given for lack of room.
    asked: Option<Request>,
}

/// What comes of a look at a connection.
enum Heard {
    /// It is to be looked at again.
    Open(Option<Request>),
    /// It wants a link.
    Call,
    /// It wants statistics, and has their head.
    Stats,
    /// It is over.
    Over,
}

impl Answers {
    /// A member's, who has this memory of this birth.
    pub fn new(memory: Memory, birth: u128, admitted: Admitted, takers: Takers) -> Self {
        let (open, closing) = (VecDeque::new(), Vec::new());
        let runs = [None; RUNS_PER_PROCESS];
        Self { memory, birth, admitted, takers, runs, open, closing, counts: Counts::default() }
    }

    /// The member has these runs now.
    pub fn set_runs(&mut self, runs: impl IntoIterator<Item = Run>) {
        self.runs = [None; RUNS_PER_PROCESS];
        self.runs.iter_mut().zip(runs).for_each(|(to, run)| *to = Some(run));
    }

    /// What became of those that connected.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// Accepts those that have connected at the name of a run, and answers them.
    pub fn handle_listener(&mut self, now: Instant, at: Run, listener: &Listener) -> Round {
        self.close_some();
        for _ in 0..ACCEPTED {
            if self.closing.len() >= CLOSING_MAX {
                return Round::Later;
            }
            match listener.accept() {
                Ok(connection) => self.admit(now, at, connection),
                Err(None) => return Round::Done,
                Err(Some(_)) => return Round::Later,
            }
        }
        Round::Done
    }

    /// Looks at the open connections.
    pub fn handle_open(&mut self, now: Instant) {
        self.close_some();
        for _ in 0..self.open.len() {
            let Some(open) = self.open.pop_front() else { break };
            self.hear(now, open);
        }
    }

    /// What is readable when there is something to handle.
    pub fn fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.open.iter().filter(|open| open.asked.is_none()).map(|open| open.connection.as_fd())
    }

    /// When to look, readable or not.
    pub fn timeout(&self, now: Instant) -> Option<Duration> {
        let waits = !self.closing.is_empty() || self.open.iter().any(|open| open.asked.is_some());
        let oldest = self.open.front().map(|open| (open.since + OPEN_FOR).saturating_duration_since(now));
        [waits.then_some(RETRY), oldest].into_iter().flatten().min()
    }

    fn admit(&mut self, now: Instant, at: Run, connection: Connection) {
        if !connection.peer().is_ok_and(|peer| self.admitted.admits(peer.uid)) {
            self.counts.foreign += 1;
            return self.end(connection);
        }
        self.hear(now, Open { connection, at, since: now, asked: None });
        if self.open.len() > OPEN_MAX
            && let Some(oldest) = self.open.pop_front()
        {
            self.counts.refused += 1;
            self.end(oldest.connection);
        }
    }

    fn hear(&mut self, now: Instant, open: Open) {
        let heard = match open.asked {
            Some(request) => self.answer(&open.connection, open.at, request),
            None => self.listen(&open.connection, open.at),
        };
        match heard {
            Heard::Open(asked) if now.saturating_duration_since(open.since) < OPEN_FOR => {
                self.open.push_back(Open { asked, ..open });
            }
            Heard::Open(_) => {
                self.counts.refused += 1;
                self.end(open.connection);
            }
            Heard::Call => {
                self.hand_over(open.connection, |takers| &takers.links, |counts| &mut counts.calls)
            }
            Heard::Stats => {
                self.hand_over(open.connection, |takers| &takers.stats, |counts| &mut counts.asked)
            }
            Heard::Over => self.end(open.connection),
        }
    }

    fn hand_over(
        &mut self,
        connection: Connection,
        to: fn(&Takers) -> &Receiver,
        count: fn(&mut Counts) -> &mut u64,
    ) {
        // It was asked before, so this does not fail.
        let Ok(Peer { uid, pid }) = connection.peer() else { return self.end(connection) };
        match to(&self.takers).hand_over(Call { connection, pid, uid }) {
            None => *count(&mut self.counts) += 1,
            Some(call) => {
                self.counts.refused += 1;
                self.end(call.connection);
            }
        }
    }

    fn listen(&mut self, connection: &Connection, at: Run) -> Heard {
        let mut bytes = [0; REQUEST + 1];
        let request = match connection.peek(&mut bytes) {
            Lies::Nothing => return Heard::Open(None),
            Lies::End => return Heard::Over,
            Lies::Descriptors => None,
            Lies::Bytes(len) => Request::parse(&bytes[..len]),
        };
        let Some(request) = request else {
            self.counts.refused += 1;
            return Heard::Over;
        };
        // Something unread would reset the connection, and the answer with it.
        connection.take(&mut bytes);
        self.answer(connection, at, request)
    }

    fn answer(&mut self, connection: &Connection, at: Run, request: Request) -> Heard {
        let mut none = 0;
        let (reply, count) = match request {
            Request::Join(VERSION) => (Reply::Welcome(self.birth), &mut self.counts.joins),
            Request::Link(VERSION) => return Heard::Call,
            Request::Stats(VERSION) if self.takers.stats.is_set() => (Reply::Counted(self.runs), &mut none),
            Request::Join(_) | Request::Link(_) => (Reply::Unlike(VERSION), &mut self.counts.unlike),
            Request::Stats(theirs) if theirs != VERSION => (Reply::Unlike(VERSION), &mut self.counts.unlike),
            Request::Stats(_) | Request::Unknown => (Reply::Unknown, &mut self.counts.refused),
        };
        let memory = matches!(reply, Reply::Welcome(_)).then(|| self.memory.as_fd());
        match connection.send(&reply.encode(), memory.as_slice()) {
            Ok(true) => {
                *count += 1;
                match reply {
                    Reply::Counted([first, ..]) if first == Some(at) => Heard::Stats,
                    _ => Heard::Over,
                }
            }
            Ok(false) => Heard::Open(Some(request)),
            Err(_) => Heard::Over,
        }
    }

    fn end(&mut self, connection: Connection) {
        self.closing.extend(connection.close());
    }

    fn close_some(&mut self) {
        let closing = core::mem::take(&mut self.closing);
        self.closing.extend(closing.into_iter().filter_map(Connection::close));
    }
}
