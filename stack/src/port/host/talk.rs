//! Greetings over a connection: whole messages out and in, each with its descriptors.
//!
//! What another process sends along may be anything, and to close it can take as long as that process likes; the kernel itself closes
//! what there is no room for. So a message with descriptors is received, looked at and refused on a thread of its own ([`Talk::hear`]), within
//! the share of its process; until then the keeper only looks what lies there. What is [`Heard`] closes without waiting.

use super::farewell::{self, Word};
use super::greeting::{Fault, MESSAGE, Message, Refusal};
use super::id::LinkId;
use super::news::News;
use super::terms::{About, Offer};
use crate::ipc::{renumbered, rights, sealed};
use crate::port::share::{Party, Share};
use crate::registry::{Call, Connection, Lies, Life, Wakeups};
use crate::sync::apart;
use core::time::Duration;
use rustix::fs::SealFlags;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Instant;

/// Descriptors of links have at least this number: those below are for programs that count on low ones, as select(2) does.
pub const LEAST: i32 = 256;
/// Time until what could not be sent is tried again, at first and at most: too many descriptors of the user are under way, and nothing
/// says when that is over.
const AGAIN: Duration = Duration::from_millis(1);
const AGAIN_MAX: Duration = Duration::from_millis(50);

/// A connection to another process. Not to be dropped: see [`Talk::close`].
#[derive(Debug)]
pub struct Talk {
    connection: Connection,
    /// The process, as the kernel says.
    pub party: Party,
    unsent: Option<Unsent>,
}

/// A message that could not be sent yet.
#[derive(Debug)]
struct Unsent {
    bytes: [u8; MESSAGE],
    fds: Vec<Arc<OwnedFd>>,
    at: Instant,
    pause: Duration,
}

/// What lies in a connection.
pub enum Lying {
    /// Nothing, yet.
    Nothing,
    /// Nothing, and nothing comes any more.
    End,
    /// Bytes, so many of a message.
    Bytes([u8; MESSAGE], usize),
    /// Bytes and descriptors.
    Descriptors,
}

/// What another process says.
#[derive(Debug)]
pub enum Heard {
    /// Nothing, after all.
    Nothing,
    /// No more: it has ended, or its link.
    End,
    /// Who it is, and its page of news.
    Hello(About, News),
    /// Who it is, the memory that it offers, its number of the link, and its page of news.
    Offer(About, Offer, OwnedFd, LinkId, News),
    /// It uses the memory, and this is its number of the link.
    Up(LinkId),
    /// It wants no link.
    Refused(Refusal),
    /// Something wrong.
    Wrong(String),
}

impl Talk {
    /// Over the connection of a call, to a process of this party.
    pub fn new(call: Call, party: Party) -> Self {
        Self { connection: call.connection.renumbered(LEAST), party, unsent: None }
    }

    /// The process at the other end; 0: it is not visible from here.
    pub fn pid(&self) -> u32 {
        self.party.pid
    }

    /// Says something, now or as soon as that can be sent. What was said before is sent. Returns whether this is.
    pub fn say(&mut self, now: Instant, message: &Message, fds: Vec<Arc<OwnedFd>>) -> bool {
        self.unsent = Some(Unsent { bytes: message.encode(), fds, at: now, pause: AGAIN });
        self.flush(now);
        self.unsent.is_none()
    }

    /// Tries again to send what could not be sent.
    pub fn flush(&mut self, now: Instant) {
        let Some(unsent) = self.unsent.as_mut().filter(|unsent| unsent.at <= now) else { return };
        let fds: Vec<BorrowedFd<'_>> = unsent.fds.iter().map(|fd| fd.as_fd()).collect();
        match self.connection.send(&unsent.bytes, &fds) {
            Ok(false) => {
                unsent.at = now + unsent.pause;
                unsent.pause = AGAIN_MAX.min(2 * unsent.pause);
            }
            // Where the other one is gone, that is heard.
            Ok(true) | Err(_) => self.unsent = None,
        }
    }

    /// When to [`flush`](Self::flush).
    pub fn unsent_until(&self) -> Option<Instant> {
        self.unsent.as_ref().map(|unsent| unsent.at)
    }

    /// Wake-ups over it, once nothing is said any more. To be dropped before it is closed.
    pub fn wakeups(&self) -> Option<Wakeups> {
        self.connection.wakeups()
    }

    /// Whether the process at the other end lives: the connection does not end with it where descriptors of its sockets lie in ours.
    pub fn life(&self) -> Life {
        let life = self.connection.peer().and_then(|peer| self.connection.life(peer));
        match life.unwrap_or(Life::Unknown) {
            Life::Watched(fd) => Life::Watched(renumbered(fd, LEAST)),
            life => life,
        }
    }

    /// Has it ready to end with the process.
    pub fn keep_last_word(&self) -> Option<Word> {
        farewell::keep(&self.connection)
    }

    /// Looks what lies there, and takes nothing.
    pub fn look(&self) -> Lying {
        let mut bytes = [0; MESSAGE];
        match self.connection.peek(&mut bytes) {
            Lies::Nothing => Lying::Nothing,
            Lies::End => Lying::End,
            Lies::Bytes(len) => Lying::Bytes(bytes, len),
            Lies::Descriptors => Lying::Descriptors,
        }
    }

    /// Receives a message that was looked at, with which no descriptor comes. Waits for nobody.
    pub fn hear_bytes(&self, mut bytes: [u8; MESSAGE], len: usize) -> Heard {
        self.connection.take(&mut bytes[..len]);
        understand(&bytes, len, Vec::new())
    }

    /// Receives what lies there on another thread, within this share, and tells it with the connection.
    pub fn hear(self, share: Share, tell: impl FnOnce(Self, Heard) + Send + 'static) {
        apart::run(move || {
            let heard = receive(&self.connection);
            tell(self, heard);
            drop(share);
        });
    }

    /// Ends it. Gives it back where something lies there, and nobody can close that now.
    pub fn close(self) -> Option<Self> {
        if !self.connection.is_empty() {
            let Some(share) = Share::take(self.party) else { return Some(self) };
            apart::run(move || {
                self.connection.close_here();
                drop(share);
            });
        }
        None
    }
}

impl AsFd for Talk {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.connection.as_fd()
    }
}

/// Receives a message, which comes in one piece, and closes what is wrong of it.
fn receive(connection: &Connection) -> Heard {
    let mut bytes = [0; MESSAGE];
    let (len, fds) = match rights::receive(connection, &mut bytes) {
        rights::Came::Nothing => return Heard::Nothing,
        rights::Came::End => return Heard::End,
        rights::Came::Message { is_cut: true, .. } => return wrong(&Fault::NoRoom),
        rights::Came::Message { len, fds, .. } => (len, fds),
    };
    understand(&bytes, len, fds)
}

/// What so many bytes of a message say, and the descriptors that came with them.
fn understand(bytes: &[u8; MESSAGE], len: usize, fds: Vec<OwnedFd>) -> Heard {
    if len != MESSAGE {
        return wrong(&Fault::NoMessage);
    }
    match Message::parse(bytes, fds.len()) {
        Ok(message) => check(message, fds).unwrap_or_else(Heard::Wrong),
        Err(fault) => wrong(&fault),
    }
}

fn wrong(fault: &Fault) -> Heard {
    Heard::Wrong(fault.to_string())
}

/// Looks at the descriptors of a message, of which there are as many as belong to it.
fn check(message: Message, fds: Vec<OwnedFd>) -> Result<Heard, String> {
    let mut fds = fds.into_iter();
    let mut next = || fds.next().ok_or("it sends too few descriptors");
    Ok(match message {
        Message::Hello(about) => Heard::Hello(about, News::of(next()?.as_fd())?),
        Message::Offer(about, offer, link) => {
            let memory = next()?;
            // It is looked at once more when it is mapped: from here on its close waits for nobody.
            sealed::len(&memory, SealFlags::SHRINK).ok_or("its memory is no sealed memfd of small pages")?;
            Heard::Offer(about, offer, memory, link, News::of(next()?.as_fd())?)
        }
        Message::Up(link) => Heard::Up(link),
        Message::Refused(why) => Heard::Refused(why),
    })
}
