//! A meeting: the handshake with a peer that was found, on a thread of its own, which ends with the handshake.
//!
//! The peer can block this thread (see [`socket`](super::socket)), and memory takes time to create, map and fill. No other thread waits for
//! it: the link handles the outcome in its next step.

use super::connection::{Connection, Events, RingLocation};
use super::handshake::{
    Along, Client, ClientStep, Offer, RingOffer, Server, ServerStep, TAKEN, Terms, after_handshake,
};
use super::message::Message;
use super::region::{self, Layout};
use super::shm::{Fill, Region};
use super::slots::Buffers;
use super::socket::{Came, Socket, Stranger};
use super::wake;
use crate::port::peers::Peers;
use crate::port::share::{self, Share};
use crate::sync::apart::{self, Apart};
use crate::sync::eventfd::{self, EventFd};
use crate::sync::lock::lock;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use core::time::Duration;
use rustix::event::{PollFd, PollFlags};
use std::collections::VecDeque;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Instant;

/// How long the peer may send nothing during a handshake: the process that serves its socket may have hung.
const PATIENCE: Duration = Duration::from_secs(10);
/// Interval at which a waiting client checks whether the client before it still exists.
const TAKEN_STEP: Duration = Duration::from_millis(2);
/// Most messages that are read before a socket is closed.
const MESSAGES: usize = 64;
const GONE: &str = "the peer is gone";
const TOO_MANY: &str =
    "a message brings more descriptors than this end takes, or than its limit leaves room for (ulimit -n)";
/// Why a link ends with its port.
pub const CLOSED: &str = "the port is closed";

/// State that a link shares with its meetings.
pub struct Common {
    /// The port's name, for messages.
    pub name: String,
    /// The port's number, for shares.
    pub port: u64,
    /// The parameters that this end requires.
    pub terms: Terms,
    /// The users whose processes may be the peer.
    pub peers: Peers,
    /// [`PATIENCE`], except in tests.
    pub patience: Duration,
    /// Peers that were refused, and connections that were ended because the peer violated the protocol.
    pub refused: AtomicU64,
    /// Whether a server has a client, or is about to get one.
    pub taken: AtomicBool,
    /// How often the link has checked that its peer still exists, and found it.
    pub found: AtomicU64,
    /// Readable when a meeting is over.
    pub event: Arc<OwnedFd>,
    over: Mutex<Over>,
    /// The last text that was logged, which is not repeated.
    last_logged: Mutex<Option<String>>,
}

/// Outcomes of meetings that the link has not handled yet.
#[derive(Default)]
struct Over {
    /// The link has ended and handles no further outcomes.
    closed: bool,
    outcomes: Vec<Outcome>,
}

/// How a meeting ended.
pub struct Outcome {
    /// Its number.
    pub number: u64,
    /// The peer and the connection to it; `None` if the handshake failed.
    pub met: Option<(Apart<Socket>, Connection)>,
}

impl Common {
    /// Makes the shared state of a port.
    ///
    /// # Errors
    /// Those of eventfd(2).
    pub fn new(name: String, terms: Terms, peers: Peers) -> std::io::Result<Self> {
        Ok(Self {
            name,
            port: share::port_number(),
            terms,
            peers,
            patience: PATIENCE,
            refused: AtomicU64::new(0),
            taken: AtomicBool::new(false),
            found: AtomicU64::new(0),
            event: Arc::new(EventFd::new()?.into()),
            over: Mutex::default(),
            last_logged: Mutex::default(),
        })
    }

    /// Logs an event of the link, once in a row.
    pub fn log(&self, text: String) {
        let mut last = lock(&self.last_logged);
        if last.as_ref() != Some(&text) {
            tracing::warn!("{}: {text}", self.name);
            *last = Some(text);
        }
    }

    /// Logs that the link is down. `said_so`: the peer has sent DISCONNECT.
    fn log_down(&self, why: &str, said_so: bool) {
        // A peer that disconnects has closed its port, as programs do at their end.
        match said_so {
            true => tracing::info!("{}: the link is down: {why}", self.name),
            false => self.log(format!("the link is down: {why}")),
        }
    }

    /// Logs that the link is up. The next log text is not a repetition.
    pub fn log_up(&self) {
        *lock(&self.last_logged) = None;
        tracing::info!("{}: the link is up", self.name);
    }

    /// Takes the outcomes of meetings that are over.
    pub fn outcomes(&self) -> Vec<Outcome> {
        let mut over = lock(&self.over);
        if !over.outcomes.is_empty() {
            let _ = rustix::io::read(&self.event, &mut [0u8; 8]);
        }
        core::mem::take(&mut over.outcomes)
    }

    /// Notes that the link ends. Returns the outcomes that were not handled.
    pub fn close(&self) -> Vec<Outcome> {
        let mut over = lock(&self.over);
        over.closed = true;
        core::mem::take(&mut over.outcomes)
    }

    /// Passes the outcome of a meeting to the link; returns it if the link has ended.
    fn tell(&self, outcome: Outcome) -> Option<Outcome> {
        let mut over = lock(&self.over);
        if over.closed {
            return Some(outcome);
        }
        over.outcomes.push(outcome);
        // Written under the lock, so that the descriptor is readable exactly while outcomes wait. The write fails only if the descriptor is
        // readable already.
        let _ = rustix::io::write(&self.event, &1u64.to_ne_bytes());
        None
    }

    /// Whether this port accepts the peer's user.
    fn admit(&self, socket: &Socket) -> Result<(), String> {
        let uid = socket.share.party().uid;
        match self.peers.has(uid) {
            true => Ok(()),
            false => Err(format!("processes of user {uid} are not welcome: see the option peer-uid")),
        }
    }

    /// Refuses a peer. Counts it first, before the peer can notice.
    fn refuse(&self, socket: &Socket, why: &str) {
        self.refused.fetch_add(1, Ordering::Relaxed);
        part(socket, why);
    }
}

/// Which end of the link this process is.
#[derive(Clone, Copy)]
pub enum Role {
    /// The peer is a client.
    Server,
    /// The peer is a server. This end offers it buffers of this many bytes.
    Client(u32),
}

/// A meeting in progress. Dropping this does not stop it; see [`stop`](Self::stop).
pub struct Meeting {
    /// Its number.
    pub number: u64,
    stop: Arc<Stop>,
}

/// Stops a meeting.
struct Stop {
    event: EventFd,
    why: OnceLock<&'static str>,
}

impl Meeting {
    /// Begins a meeting on a thread of its own.
    ///
    /// # Errors
    /// Those of eventfd(2).
    pub fn begin(
        common: &Arc<Common>,
        number: u64,
        peer: Apart<Stranger>,
        share: Share,
        role: Role,
    ) -> std::io::Result<Self> {
        let event = match EventFd::new() {
            Ok(event) => event,
            Err(error) => {
                turn_away(peer, share);
                return Err(error);
            }
        };
        let stop = Arc::new(Stop { event, why: OnceLock::new() });
        let (common, stops) = (Arc::clone(common), Arc::clone(&stop));
        apart::run(move || hold(&common, number, Socket::new(peer.into_inner(), share), &stops, role));
        Ok(Self { number, stop })
    }

    /// Stops the meeting, with this reason.
    pub fn stop(&self, why: &'static str) {
        if self.stop.why.set(why).is_ok() {
            self.stop.event.signal();
        }
    }

    /// Whether it was stopped.
    pub fn is_stopped(&self) -> bool {
        self.stop.why.get().is_some()
    }
}

/// Reports the end of a meeting to the link, also if the meeting panics.
struct Tells<'a> {
    common: &'a Common,
    number: u64,
}

impl Drop for Tells<'_> {
    fn drop(&mut self) {
        let _ = self.common.tell(Outcome { number: self.number, met: None });
    }
}

/// Runs a meeting. If it fails, closes the descriptors that the peer sent.
fn hold(common: &Common, number: u64, socket: Socket, stop: &Stop, role: Role) {
    let tells = Tells { common, number };
    let (outbox, received) = (VecDeque::new(), Vec::new());
    let (patience, since) = (common.patience, Instant::now());
    let mut talk = Talk { socket: &socket, stop, outbox, received, patience, since };
    let result = common.admit(&socket).map_err(Some).and_then(|()| match role {
        Role::Server => talk.with_client(common),
        Role::Client(buffer) => talk.with_server(common, buffer),
    });
    match result {
        Ok(connection) => {
            core::mem::forget(tells);
            let met = Some((Apart::new(socket), connection));
            if let Some(Outcome { met: Some((socket, _)), .. }) = common.tell(Outcome { number, met }) {
                part(&socket, CLOSED);
            }
        }
        Err(why) => {
            if lock(&common.over).closed {
                part(&socket, CLOSED);
            } else if let Some(why) = why {
                common.refuse(&socket, &why);
                common.log(match role {
                    Role::Server => format!("a client was refused: {why}"),
                    Role::Client(_) => format!("no link: {why}"),
                });
            }
            // Before the received descriptors and the socket are closed, which may take long.
            drop(tells);
        }
    }
}

/// Ends a connection because the peer has disconnected or violated the protocol, or a queue found the latter (`broken`).
pub fn end(common: &Common, socket: &Socket, broken: bool) {
    // Received descriptors are closed at the end of this function.
    let came = if broken { Came::Nothing } else { socket.receive() };
    let (why, rules) = match &came {
        _ if broken => ("an index of a ring is where it cannot be".to_owned(), false),
        Came::Nothing | Came::End => (GONE.to_owned(), true),
        Came::TooMany => (TOO_MANY.to_owned(), false),
        Came::Message(bytes, _) => after_handshake(bytes),
    };
    common.log_down(&why, rules && matches!(came, Came::Message(..)));
    if rules {
        part(socket, &why);
    } else {
        common.refuse(socket, &why);
    }
}

/// The text of an error, with advice.
pub fn exhausted(error: &std::io::Error) -> String {
    match error.raw_os_error() {
        Some(libc::EMFILE) => format!("{error}; raise the limit of this process (ulimit -n)"),
        _ => error.to_string(),
    }
}

/// Closes the socket of a peer with which no handshake begins.
pub fn turn_away(peer: Apart<Stranger>, share: Share) {
    apart::run(move || drop(Socket::new(peer.into_inner(), share)));
}

/// Sends the peer the reason why its socket is closed next. Reads messages that the peer sent meanwhile first: closing a socket with unread
/// data resets it, and the reason would not arrive.
fn part(socket: &Socket, why: &str) {
    for _ in 0..MESSAGES {
        if matches!(socket.receive(), Came::Nothing | Came::End | Came::TooMany) {
            break;
        }
    }
    goodbye(socket, why);
}

/// Sends the peer the reason for a disconnect. Reads nothing.
pub fn goodbye(socket: &Socket, why: &str) {
    let _ = socket.send(&Message::Disconnect { why: why.into() }.encode(), None);
}

/// A message and its descriptors.
type Received = (Vec<u8>, Vec<Arc<OwnedFd>>);

/// A handshake, as the thread of a meeting makes it. Errors are reasons to refuse the peer; `None` if the peer has disconnected.
struct Talk<'a> {
    socket: &'a Socket,
    stop: &'a Stop,
    /// Messages to be sent, each with a descriptor or without.
    outbox: VecDeque<(Message, Option<Arc<OwnedFd>>)>,
    /// All descriptors that were received, kept open here so that no other code closes one.
    received: Vec<Arc<OwnedFd>>,
    /// How long the peer may send nothing.
    patience: Duration,
    /// When the peer last sent something.
    since: Instant,
}

impl Talk<'_> {
    /// Makes the handshake of a server.
    fn with_client(&mut self, common: &Common) -> Result<Connection, Option<String>> {
        let mut handshake = Server::new(&common.terms);
        self.outbox.push_back((handshake.hello(), None));
        loop {
            let (bytes, fds) = self.receive("the client does not go on")?;
            let taken = self.is_taken(common)?;
            match handshake.handle(&bytes, fds, taken).map_err(Some)? {
                ServerStep::Answer(answer) => self.outbox.push_back((answer, None)),
                ServerStep::Connect(offer) => {
                    while common.taken.swap(true, Ordering::AcqRel) {
                        if self.is_taken(common)? {
                            return Err(Some(TAKEN.into()));
                        }
                    }
                    // Only one meeting at a time maps memory.
                    return accept(offer).map_err(|why| {
                        common.taken.store(false, Ordering::Release);
                        Some(why)
                    });
                }
            }
        }
    }

    /// Whether another client has the link. That client may have left, or may leave during this handshake. So this waits until the link has
    /// twice checked that it exists; the second check began after this call.
    fn is_taken(&self, common: &Common) -> Result<bool, Option<String>> {
        let (begun, before) = (Instant::now(), common.found.load(Ordering::Acquire));
        while common.taken.load(Ordering::Acquire) {
            let looks = common.found.load(Ordering::Acquire).wrapping_sub(before);
            if looks >= 2 || begun.elapsed() > self.patience {
                return Ok(true);
            }
            self.rest(TAKEN_STEP, &[])?;
        }
        Ok(false)
    }

    /// Makes the handshake of a client.
    fn with_server(&mut self, common: &Common, buffer: u32) -> Result<Connection, Option<String>> {
        let (terms, mut memory) = (&common.terms, None);
        let mut handshake = Client::new(terms);
        loop {
            let (bytes, fds) = self.receive("the server does not answer")?;
            match handshake.handle(&bytes, fds.len()).map_err(Some)? {
                ClientStep::Wait => {}
                ClientStep::Connected => {
                    return memory.map(Memory::connection).ok_or_else(|| Some("nothing was offered".into()));
                }
                ClientStep::Offer(log2) => {
                    let layout = Layout { queues: terms.queues, log2, buffer };
                    memory = Some(self.offer(&mut handshake, layout).map_err(Some)?);
                }
            }
        }
    }

    /// Creates memory, and queues the messages that offer it.
    ///
    /// # Errors
    /// The memory could not be created.
    fn offer(&mut self, handshake: &mut Client, layout: Layout) -> Result<Memory, String> {
        let no_memory = |error: std::io::Error| match error.raw_os_error() {
            Some(libc::EMFILE) => format!("no memory for rings: {}", exhausted(&error)),
            Some(libc::EPERM | libc::EACCES | libc::ENOSYS) => format!(
                "no memory for rings ({error}): something forbids this process memfd_create(2), as a seccomp profile does; \
                 permit it, or use a port that needs no shared memory, as unix or udp"
            ),
            _ => format!(
                "no memory for rings, {} MiB ({error}): use a smaller rsize or bsize",
                layout.size() >> 20
            ),
        };
        let (memory, fd) = Memory::make(layout).map_err(no_memory)?;
        let fd = Arc::new(fd);
        let offset = |to_server, index| layout.ring(to_server, index);
        for (message, along) in handshake.offer(layout.size(), layout.log2, offset) {
            let fd = match along {
                Along::Nothing => None,
                Along::Region => Some(Arc::clone(&fd)),
                Along::Event(to_server, index) => {
                    Some(Arc::clone(&memory.events[usize::from(!to_server)][index]))
                }
            };
            self.outbox.push_back((message, fd));
        }
        Ok(memory)
    }

    /// Sends queued messages while the socket has room. Returns `false` if the peer is gone.
    fn flush(&mut self) -> bool {
        while let Some((message, fd)) = self.outbox.front() {
            match self.socket.send(&message.encode(), fd.as_ref().map(|fd| fd.as_fd())) {
                Ok(true) => drop(self.outbox.pop_front()),
                Ok(false) => return true,
                Err(_) => return false,
            }
        }
        true
    }

    /// Sends queued messages, and waits for the next message. A peer may send a reason and close its end: the reason is read even if
    /// nothing can be sent any more. `silence`: the error if the peer sends nothing.
    fn receive(&mut self, silence: &str) -> Result<Received, Option<String>> {
        loop {
            let there = self.flush();
            match self.socket.receive() {
                Came::Nothing if !there => return Err(None),
                Came::Nothing => self.wait(silence)?,
                Came::End => return Err(None),
                Came::TooMany => return Err(Some(TOO_MANY.into())),
                Came::Message(bytes, fds) => {
                    self.since = Instant::now();
                    let fds: Vec<_> = fds.into_iter().map(Arc::new).collect();
                    self.received.extend(fds.iter().cloned());
                    return Ok((bytes, fds));
                }
            }
        }
    }

    /// Waits until the socket is readable, or writable if messages are queued.
    fn wait(&self, silence: &str) -> Result<(), Option<String>> {
        let left = self.patience.checked_sub(self.since.elapsed()).ok_or_else(|| Some(silence.to_owned()))?;
        let wanted = if self.outbox.is_empty() { PollFlags::IN } else { PollFlags::IN | PollFlags::OUT };
        self.rest(left, &[PollFd::new(self.socket, wanted)])
    }

    /// Waits for one of these descriptors, at most for this time, unless the meeting is stopped.
    fn rest(&self, at_most: Duration, wanted: &[PollFd<'_>]) -> Result<(), Option<String>> {
        if let Some(why) = self.stop.why.get() {
            return Err(Some((*why).into()));
        }
        let mut fds = vec![PollFd::new(&self.stop.event, PollFlags::IN)];
        fds.extend_from_slice(wanted);
        // The caller checks again, whatever the result.
        eventfd::wait_readable(&mut fds, at_most);
        Ok(())
    }
}

/// The memory and eventfds that a client offers.
struct Memory {
    layout: Layout,
    region: Arc<Region>,
    /// Of the rings to the server, and of the rings to the client.
    events: Events,
}

impl Memory {
    fn make(layout: Layout) -> std::io::Result<(Self, OwnedFd)> {
        let (fd, region) = layout.make("memif_region_0", Fill::Now)?;
        let event = || -> std::io::Result<Arc<OwnedFd>> { Ok(Arc::new(EventFd::new()?.into())) };
        let events = || (0..layout.queues).map(|_| event()).collect::<std::io::Result<Vec<_>>>();
        Ok((Self { layout, region, events: [events()?, events()?] }, fd))
    }

    fn connection(self) -> Connection {
        Connection::of_client(self.layout, self.region, self.events)
    }
}

/// Makes a connection of a client's offer, or refuses it.
fn accept(offer: Offer<Arc<OwnedFd>>) -> Result<Connection, String> {
    let region = region::take(offer.region.as_fd(), offer.size, Fill::Now)?;
    let locations = |rings: Vec<RingOffer<Arc<OwnedFd>>>| {
        let location = |RingOffer { offset, log2, event }: RingOffer<Arc<OwnedFd>>| {
            // Once this is checked, closing the descriptor cannot block.
            if !wake::is_event(&event) {
                return Err(format!(
                    "the event of the ring at {offset} is no eventfd, or /proc/self/fd cannot be read"
                ));
            }
            Ok((RingLocation { offset, log2, buffers: Buffers::Theirs }, event))
        };
        rings.into_iter().map(location).collect::<Result<(Vec<_>, Vec<_>), String>>()
    };
    let (rx, rx_events) = locations(offer.to_server)?;
    let (tx, tx_events) = locations(offer.to_client)?;
    Connection::of_server(region, rx, tx, [tx_events, rx_events])
}
