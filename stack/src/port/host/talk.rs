//! Handshake messages over a connection: sends and receives whole messages with their descriptors.
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

/// Lowest number of a link's descriptor: programs that need low numbers, for select(2) for example, keep those below.
pub const LEAST: i32 = 256;
/// Pause before a message that could not be sent is retried, initial and longest: too many descriptors of the user are in flight, and the
/// kernel does not signal when that ends.
const AGAIN: Duration = Duration::from_millis(1);
const AGAIN_MAX: Duration = Duration::from_millis(50);

/// A connection to a peer process. Not to be dropped: see [`Talk::close`].
#[derive(Debug)]
pub struct Talk {
    connection: Connection,
    /// The peer, as the kernel reports it.
    pub party: Party,
    unsent: Option<Unsent>,
}

/// A message that could not be sent yet, when it is retried, and the pause after that.
#[derive(Debug)]
struct Unsent {
    bytes: [u8; MESSAGE],
    fds: Vec<Arc<OwnedFd>>,
    at: Instant,
    pause: Duration,
}

/// What another process says.
#[derive(Debug)]
pub enum Heard {
    /// Nothing was there to receive.
    Nothing,
    /// End of file: the peer has ended, or has closed the connection.
    End,
    /// HELLO: the peer's parameters, and its notification page.
    Hello(About, News),
    /// OFFER: the peer's parameters, its offer, the memory, its number of the link, and its notification page.
    Offer(About, Offer, OwnedFd, LinkId, News),
    /// UP: the peer has mapped the memory; its number of the link.
    Up(LinkId),
    /// REFUSED: the peer makes no link, for this reason.
    Refused(Refusal),
    /// An invalid message, and what is wrong with it.
    Wrong(String),
}

impl Talk {
    /// Takes the connection of a call, to a process that counts as `party`.
    pub fn new(call: Call, party: Party) -> Self {
        Self { connection: call.connection.renumbered(LEAST), party, unsent: None }
    }

    /// The peer process; 0 if it is not visible from this PID namespace.
    pub fn pid(&self) -> u32 {
        self.party.pid
    }

    /// Sends a message, now or as soon as possible. The message before must have been sent. Returns whether this one was sent at once.
    pub fn say(&mut self, now: Instant, message: &Message, fds: Vec<Arc<OwnedFd>>) -> bool {
        self.unsent = Some(Unsent { bytes: message.encode(), fds, at: now, pause: AGAIN });
        self.flush(now);
        self.unsent.is_none()
    }

    /// Retries a message that could not be sent, if its pause is over.
    pub fn flush(&mut self, now: Instant) {
        let Some(unsent) = self.unsent.as_mut().filter(|unsent| unsent.at <= now) else { return };
        let fds: Vec<BorrowedFd<'_>> = unsent.fds.iter().map(|fd| fd.as_fd()).collect();
        match self.connection.send(&unsent.bytes, &fds) {
            Ok(false) => {
                unsent.at = now + unsent.pause;
                unsent.pause = AGAIN_MAX.min(2 * unsent.pause);
            }
            // If the peer is gone, the next receive reports that.
            Ok(true) | Err(_) => self.unsent = None,
        }
    }

    /// When to call [`flush`](Self::flush) next; `None` if no message waits.
    pub fn unsent_until(&self) -> Option<Instant> {
        self.unsent.as_ref().map(|unsent| unsent.at)
    }

    /// Wake-ups over this connection, for use after the handshake. Drop them before the connection is closed.
    pub fn wakeups(&self) -> Option<Wakeups> {
        self.connection.wakeups()
    }

    /// Whether the peer process lives. The end of the connection alone does not say so: it does not end with the peer while descriptors of
    /// the peer's sockets lie in our receive queue.
    pub fn life(&self) -> Life {
        let life = self.connection.peer().and_then(|peer| self.connection.life(peer));
        match life.unwrap_or(Life::Unknown) {
            Life::Watched(fd) => Life::Watched(renumbered(fd, LEAST)),
            life => life,
        }
    }

    /// Prepares the connection to be ended at the end of this process.
    pub fn keep_last_word(&self) -> Option<Word> {
        farewell::keep(&self.connection)
    }

    /// Peeks at the next message, and takes nothing.
    pub fn look(&self) -> Lies {
        self.connection.peek(&mut [0; MESSAGE])
    }

    /// Receives a message of as many bytes as [`look`](Self::look) has found, without descriptors. Never waits.
    pub fn hear_bytes(&self, len: usize) -> Heard {
        let mut bytes = [0; MESSAGE];
        self.connection.take(&mut bytes[..len]);
        understand(&bytes, len, Vec::new())
    }

    /// Receives a message on another thread, within this share, and passes it to `tell` with the connection.
    pub fn hear(self, share: Share, tell: impl FnOnce(Self, Heard) + Send + 'static) {
        apart::run(move || {
            let heard = receive(&self.connection);
            tell(self, heard);
            drop(share);
        });
    }

    /// Closes the connection. Returns it if unread data wait in it and the peer's share is in use: try again later.
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

/// Receives a message, which arrives in one piece, and closes what is invalid.
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

/// Checks the descriptors of a message, whose number is right already.
fn check(message: Message, fds: Vec<OwnedFd>) -> Result<Heard, String> {
    let mut fds = fds.into_iter();
    let mut next = || fds.next().ok_or("it sends too few descriptors");
    Ok(match message {
        Message::Hello(about) => Heard::Hello(about, News::of(next()?.as_fd())?),
        Message::Offer(about, offer, link) => {
            let memory = next()?;
            // The mapping checks it once more. From here on, its close does not block.
            sealed::len(&memory, SealFlags::SHRINK).ok_or("its memory is no sealed memfd of small pages")?;
            Heard::Offer(about, offer, memory, link, News::of(next()?.as_fd())?)
        }
        Message::Up(link) => Heard::Up(link),
        Message::Refused(why) => Heard::Refused(why),
    })
}
