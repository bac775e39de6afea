//! The life of a memif's link: peers connect, agree or are refused, and leave.
//!
//! No thread is dedicated to this: threads that call [`Port::maintain`](crate::port::Port::maintain), and queues that have no
//! link, take a few steps. Nothing here blocks; what could block is left to another thread ([`theirs`]). Each call takes a bounded
//! number of messages from a bounded number of peers. A queue in the middle of a burst keeps the connection that it uses
//! ([`Connection`]) until it checks for the next one.

use super::handshake::{self, Along, Client, ClientStep, Offer, RingOffer, Server, ServerStep, Terms};
use super::message::Message;
use super::peer_fd::{self, PeerFd};
use super::region::{self, Layout};
use super::ring::Ring;
use super::shm::Region;
use super::slots::Buffers;
use super::socket::{Came, Listener, Socket};
use super::wake;
use crate::port::peers::Peers;
use crate::port::socket_file::SocketFile;
use crate::sync::eventfd::EventFd;
use crate::sync::process::Process;
use core::sync::atomic::{AtomicU64, Ordering};
use core::time::Duration;
use std::collections::VecDeque;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError, TryLockError};
use std::time::Instant;

/// Time until the next attempt of a client where no server listened, or one refused.
const RETRY: Duration = Duration::from_millis(50);
/// How long the other end of a handshake may be silent before it is given up: perhaps no process serves its socket any more.
const PATIENCE: Duration = Duration::from_secs(10);
/// Most clients in a handshake at the same time; another one replaces the oldest.
const GREETED: usize = 4;
/// Most messages that one call takes from a peer.
const MESSAGES: usize = 64;

/// A connection, as queues use it.
pub struct Connection {
    region: Arc<Region>,
    /// A client's layout; `None` for a server, which reads it from the descriptors.
    layout: Option<Layout>,
    /// Rings on which this end receives (`rx`) and sends (`tx`).
    rx: Vec<Place>,
    tx: Vec<Place>,
    /// This connection's number.
    pub number: u64,
}

/// Where a ring is, and the event that wakes its receiver.
struct Place {
    offset: u32,
    log2: u8,
    event: Arc<OwnedFd>,
}

/// What a queue needs of a connection.
pub struct Rings {
    /// Ring and buffers to receive from.
    pub rx: (Ring, Buffers),
    /// Ring and buffers to send to.
    pub tx: (Ring, Buffers),
    /// Wakes the peer, which receives on `tx`.
    pub event: Arc<OwnedFd>,
    /// The peer wakes us with this.
    pub our_event: Arc<OwnedFd>,
}

impl Connection {
    /// The rings of a queue.
    pub fn rings(&self, queue: usize) -> Result<Rings, String> {
        let ring = |place: &Place| Ring::new(&self.region, place.offset, place.log2);
        let buffers = |to_server| match &self.layout {
            Some(layout) => Buffers::Ours { first: layout.buffers(to_server, queue), size: layout.buffer },
            None => Buffers::Theirs,
        };
        let (rx, tx) = (&self.rx[queue], &self.tx[queue]);
        Ok(Rings {
            rx: (ring(rx)?, buffers(false)),
            tx: (ring(tx)?, buffers(true)),
            event: Arc::clone(&tx.event),
            our_event: Arc::clone(&rx.event),
        })
    }
}

/// The link of a port, shared by the port and its queues.
pub struct State {
    /// Number of the current connection; 0: there is none. Queues read this once a burst.
    pub number: AtomicU64,
    current: Mutex<Option<Arc<Connection>>>,
    /// Number of a connection that a queue found broken.
    broken: AtomicU64,
    /// Links that were lost.
    pub restarts: AtomicU64,
    /// Peers that were refused, and connections that were ended because the peer violated the protocol.
    pub refused: AtomicU64,
    link: Mutex<Link>,
    made_by: Process,
}

impl State {
    /// A link that is down.
    pub fn new(name: String, terms: Terms, peers: Peers, end: End) -> Self {
        let link = Link { who: Who { name, terms, peers, last_logged: None }, end, up: None, last_number: 0 };
        Self {
            number: AtomicU64::new(0),
            current: Mutex::new(None),
            broken: AtomicU64::new(0),
            restarts: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            link: Mutex::new(link),
            made_by: Process::this(),
        }
    }

    /// The current connection.
    pub fn current(&self) -> Option<Arc<Connection>> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Notes that a queue found the peer of this connection to violate the protocol.
    pub fn is_broken(&self, number: u64) {
        self.broken.store(number, Ordering::Relaxed);
    }

    /// Takes the steps that are due, unless another thread does so now. Does nothing in a fork: the link is the parent's.
    pub fn serve(&self) {
        if !self.made_by.is_this() {
            return;
        }
        let mut link = match self.link.try_lock() {
            Ok(link) => link,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return,
        };
        link.serve(self, Instant::now());
    }

    /// What the next step waits for, while there is no link.
    pub fn wait(&self) -> Wait {
        match self.link.try_lock() {
            Ok(link) => link.wait(),
            Err(_) => Wait::Soon,
        }
    }

    /// Queues use this from their next burst on; `None`: no link.
    fn publish(&self, connection: Option<Arc<Connection>>) {
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        let number = connection.as_ref().map_or(0, |connection| connection.number);
        *current = connection;
        self.number.store(number, Ordering::Release);
    }
}

impl Drop for State {
    fn drop(&mut self) {
        if self.made_by.is_this() {
            self.link.get_mut().unwrap_or_else(PoisonError::into_inner).close();
        }
    }
}

/// What a link that is down waits for.
pub enum Wait {
    /// A peer, which makes this readable.
    Peer(Arc<OwnedFd>),
    /// The time of the next attempt.
    Until(Instant),
    /// A step that is under way.
    Soon,
}

/// A socket, and the messages to be sent on it, each with a descriptor or without.
struct Channel {
    socket: Socket,
    outbox: VecDeque<(Message, Option<Arc<OwnedFd>>)>,
}

impl Channel {
    fn new(socket: Socket) -> Self {
        Self { socket, outbox: VecDeque::new() }
    }

    /// Sends what there is room for; `false`: the peer is gone.
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

    /// Sends what there is room for, and takes the next message. A peer may say why it leaves and close its end: that is read even
    /// if nothing can be sent any more.
    fn receive(&mut self) -> Came {
        let there = self.flush();
        match self.socket.receive() {
            Came::Nothing if !there => Came::End,
            came => came,
        }
    }

    fn send(&mut self, message: Message) -> bool {
        self.outbox.push_back((message, None));
        self.flush()
    }

    /// Sends the peer the reason and closes the socket. Messages that the peer sent meanwhile are read first: closing a socket
    /// with unread data resets it, and the peer would not receive the reason.
    fn part(self, why: &str) {
        for _ in 0..MESSAGES {
            if matches!(self.socket.receive(), Came::Nothing | Came::End | Came::TooMany) {
                break;
            }
        }
        let goodbye = Message::Disconnect { why: why.into() };
        let _ = self.socket.send(&goodbye.encode(), None);
    }
}

/// Which end of the link a port is.
pub enum End {
    /// Waits for clients.
    Server {
        /// Where they connect.
        listener: Listener,
        /// Removed with the port.
        _file: SocketFile,
        /// Clients that are not connected yet.
        greeted: VecDeque<Greeted>,
    },
    /// Looks for a server.
    Client {
        /// The server's socket.
        path: PathBuf,
        /// Bytes of a buffer.
        buffer: u32,
        /// When to try again.
        try_at: Option<Instant>,
        /// Refusals in a row.
        refusals: u32,
        /// The server that was found.
        found: Option<Box<Found>>,
    },
}

/// A client that is not connected yet.
pub struct Greeted {
    channel: Channel,
    handshake: Server<PeerFd>,
    /// When it last sent something.
    since: Instant,
}

/// A server that we are not connected to yet.
pub struct Found {
    channel: Channel,
    handshake: Client,
    /// When it last sent something.
    since: Instant,
    memory: Option<Memory>,
}

/// What a client offers.
struct Memory {
    layout: Layout,
    region: Arc<Region>,
    /// Events of the rings to the server, and back.
    events: [Vec<Arc<OwnedFd>>; 2],
}

impl Memory {
    fn make(layout: Layout) -> std::io::Result<(Self, OwnedFd)> {
        let (fd, region) = layout.make()?;
        let event = || -> std::io::Result<Arc<OwnedFd>> { Ok(Arc::new(EventFd::new()?.into())) };
        let events = || (0..layout.queues).map(|_| event()).collect::<std::io::Result<Vec<_>>>();
        Ok((Self { layout, region, events: [events()?, events()?] }, fd))
    }

    fn connection(self, number: u64) -> Connection {
        let Self { layout, region, events: [to_server, to_client] } = self;
        let places = |to_server: bool, events: Vec<Arc<OwnedFd>>| {
            let place =
                |(index, event)| Place { offset: layout.ring(to_server, index), log2: layout.log2, event };
            events.into_iter().enumerate().map(place).collect()
        };
        let (tx, rx) = (places(true, to_server), places(false, to_client));
        Connection { region, layout: Some(layout), rx, tx, number }
    }
}

/// Turns a client's offer into a connection, or refuses it.
fn accept(offer: Offer<PeerFd>, number: u64) -> Result<Connection, String> {
    let region = region::take(offer.region.as_fd(), offer.size)?;
    let places = |rings: Vec<RingOffer<PeerFd>>| {
        let place = |RingOffer { offset, log2, event }: RingOffer<PeerFd>| {
            if !Ring::new(&region, offset, log2)?.is_marked() {
                return Err(format!("there is no ring at {offset}: its cookie is another one"));
            }
            let event = event.checked(wake::is_event).map(Arc::new).ok_or_else(|| {
                format!("the event of the ring at {offset} is no eventfd, or /proc/self/fd cannot be read")
            })?;
            Ok(Place { offset, log2, event })
        };
        rings.into_iter().map(place).collect::<Result<Vec<_>, String>>()
    };
    let (rx, tx) = (places(offer.to_server)?, places(offer.to_client)?);
    Ok(Connection { region, layout: None, rx, tx, number })
}

/// This end's name, terms and accepted peers.
struct Who {
    /// The port's name, for messages.
    name: String,
    terms: Terms,
    peers: Peers,
    /// The last text that was logged: it is not repeated.
    last_logged: Option<String>,
}

impl Who {
    /// Logs what happened to the link.
    fn log(&mut self, text: String) {
        if self.last_logged.as_ref() != Some(&text) {
            tracing::warn!("{}: {text}", self.name);
            self.last_logged = Some(text);
        }
    }

    /// Whether this port accepts the peer's user.
    fn admit(&self, socket: &Socket) -> Result<(), String> {
        let uid = socket.peer_uid();
        match self.peers.has(uid) {
            true => Ok(()),
            false => Err(format!("processes of user {uid} are not welcome: see the option peer-uid")),
        }
    }
}

/// A connected peer.
struct Up {
    channel: Channel,
    number: u64,
}

struct Link {
    who: Who,
    end: End,
    up: Option<Up>,
    last_number: u64,
}

impl Link {
    fn wait(&self) -> Wait {
        match &self.end {
            _ if self.up.is_some() => Wait::Soon,
            End::Server { listener, greeted, .. } if greeted.is_empty() => Wait::Peer(listener.fd()),
            End::Client { try_at: Some(at), found: None, .. } => Wait::Until(*at),
            End::Server { .. } | End::Client { .. } => Wait::Soon,
        }
    }

    fn serve(&mut self, state: &State, now: Instant) {
        self.look_after_peer(state, now);
        match self.end {
            End::Server { .. } => self.serve_clients(state, now),
            End::Client { .. } if self.up.is_none() => self.look_for_server(state, now),
            End::Client { .. } => {}
        }
    }

    /// Ends the connection if the peer has left or violated the protocol.
    fn look_after_peer(&mut self, state: &State, now: Instant) {
        let Some(up) = &mut self.up else { return };
        let number = up.number;
        let (why, rules) = if state.broken.load(Ordering::Relaxed) == number {
            ("an index of a ring is where it cannot be".to_owned(), false)
        } else {
            match up.channel.receive() {
                Came::Nothing => return,
                Came::End => (GONE.to_owned(), true),
                Came::TooMany => (TOO_MANY.to_owned(), false),
                Came::Message(bytes, _) => handshake::after_handshake(&bytes),
            }
        };
        let Some(up) = self.up.take() else { return };
        state.publish(None);
        state.restarts.fetch_add(1, Ordering::Relaxed);
        if !rules {
            state.refused.fetch_add(1, Ordering::Relaxed);
        }
        up.channel.part(&why);
        self.who.log(format!("the link is down: {why}"));
        if let End::Client { try_at, .. } = &mut self.end {
            *try_at = Some(now + RETRY);
        }
    }

    /// Connects: `channel` leads to a peer that has the same rings.
    fn connect(&mut self, state: &State, channel: Channel, connection: Connection) {
        let number = connection.number;
        self.up = Some(Up { channel, number });
        self.who.last_logged = None;
        state.publish(Some(Arc::new(connection)));
        tracing::info!("{}: the link is up", self.who.name);
    }

    fn serve_clients(&mut self, state: &State, now: Instant) {
        let End::Server { listener, greeted, .. } = &mut self.end else { return };
        let mut refused = Vec::new();
        for _ in 0..GREETED {
            if peer_fd::is_full() {
                break;
            }
            let socket = match listener.accept() {
                Ok(Some(socket)) => socket,
                Ok(None) => break,
                Err(error) => {
                    self.who.log(format!("a client waits to be accepted: {}", exhausted(&error)));
                    break;
                }
            };
            let mut channel = Channel::new(socket);
            if let Err(why) = self.who.admit(&channel.socket) {
                refused.push((channel, why));
                continue;
            }
            if greeted.len() == GREETED
                && let Some(first) = greeted.pop_front()
            {
                refused.push((first.channel, "others came before this was done".into()));
            }
            let handshake = Server::new(&self.who.terms);
            if channel.send(handshake.hello()) {
                greeted.push_back(Greeted { channel, handshake, since: now });
            }
        }
        let mut waiting = core::mem::take(greeted);
        let mut stay = VecDeque::new();
        for mut client in waiting.drain(..) {
            match client.serve(self.up.is_some(), now) {
                Ok(None) => stay.push_back(client),
                Ok(Some(offer)) => match accept(offer, self.last_number + 1) {
                    Ok(connection) => {
                        if client.channel.send(handshake::connected()) {
                            self.last_number += 1;
                            self.connect(state, client.channel, connection);
                        }
                    }
                    Err(why) => refused.push((client.channel, why)),
                },
                Err(Some(why)) => refused.push((client.channel, why)),
                Err(None) => {}
            }
        }
        if let End::Server { greeted, .. } = &mut self.end {
            *greeted = stay;
        }
        for (channel, why) in refused {
            state.refused.fetch_add(1, Ordering::Relaxed);
            channel.part(&why);
            self.who.log(format!("a client was refused: {why}"));
        }
    }

    fn look_for_server(&mut self, state: &State, now: Instant) {
        let End::Client { path, buffer, try_at, refusals, found } = &mut self.end else { return };
        if found.is_none() {
            if try_at.is_some_and(|at| now < at) {
                return;
            }
            *try_at = Some(now + RETRY);
            if peer_fd::is_full() {
                return;
            }
            let socket = match Socket::connect(path) {
                Ok(socket) => socket,
                Err(error) => {
                    if !is_absent(&error) {
                        self.who.log(format!("no link to {}: {}", path.display(), exhausted(&error)));
                    }
                    return;
                }
            };
            let handshake = Client::new(&self.who.terms);
            *found =
                Some(Box::new(Found { channel: Channel::new(socket), handshake, since: now, memory: None }));
        }
        let Some(mut server) = found.take() else { return };
        let admitted = self.who.admit(&server.channel.socket);
        match admitted.map_err(Some).and_then(|()| server.serve(*buffer, &self.who.terms, now)) {
            Ok(false) => *found = Some(server),
            Ok(true) => {
                *refusals = 0;
                self.last_number += 1;
                let Found { channel, memory, .. } = *server;
                if let Some(memory) = memory {
                    self.connect(state, channel, memory.connection(self.last_number));
                }
            }
            Err(why) => {
                // Backs off from a server that refuses: each attempt makes new memory.
                *try_at = Some(now + RETRY * (1 << *refusals));
                *refusals = (*refusals + u32::from(why.is_some())).min(REFUSALS_MAX);
                if let Some(why) = why {
                    state.refused.fetch_add(1, Ordering::Relaxed);
                    server.channel.part(&why);
                    self.who.log(format!("no link: {why}"));
                }
            }
        }
    }

    /// Sends a disconnect to every peer.
    fn close(&mut self) {
        const CLOSED: &str = "the port is closed";
        if let Some(up) = self.up.take() {
            up.channel.part(CLOSED);
        }
        match &mut self.end {
            End::Server { greeted, .. } => greeted.drain(..).for_each(|client| client.channel.part(CLOSED)),
            End::Client { found, .. } => {
                if let Some(found) = found.take() {
                    found.channel.part(CLOSED);
                }
            }
        }
    }
}

const GONE: &str = "the peer is gone";
const TOO_MANY: &str =
    "a message brings more descriptors than this end takes, or than its limit leaves room for (ulimit -n)";
/// Doublings of [`RETRY`] for a server that refuses.
const REFUSALS_MAX: u32 = 5;

/// Whether a client has only to wait: no server listens yet, or many clients came at once.
fn is_absent(error: &std::io::Error) -> bool {
    use std::io::ErrorKind::{ConnectionRefused, Interrupted, NotFound, WouldBlock};
    matches!(error.kind(), NotFound | ConnectionRefused | WouldBlock | Interrupted)
}

/// The error, and what to do about it.
fn exhausted(error: &std::io::Error) -> String {
    match error.raw_os_error() {
        Some(libc::EMFILE) => format!("{error}; raise the limit of this process (ulimit -n)"),
        _ => error.to_string(),
    }
}

impl Greeted {
    /// Takes the client's messages; returns its offer, once that is complete.
    ///
    /// # Errors
    /// Why the client is refused; `None` where it has left.
    fn serve(&mut self, taken: bool, now: Instant) -> Result<Option<Offer<PeerFd>>, Option<String>> {
        for _ in 0..MESSAGES {
            match self.channel.receive() {
                Came::Nothing => break,
                Came::End => return Err(None),
                Came::TooMany => return Err(Some(TOO_MANY.into())),
                Came::Message(bytes, fds) => {
                    self.since = now;
                    match self.handshake.handle(&bytes, fds, taken).map_err(Some)? {
                        ServerStep::Answer(answer) => self.channel.outbox.push_back((answer, None)),
                        ServerStep::Connect(offer) => return Ok(Some(offer)),
                    }
                }
            }
        }
        match now.saturating_duration_since(self.since) {
            silence if silence > PATIENCE => Err(Some("the client does not go on".into())),
            _ if self.channel.flush() => Ok(None),
            _ => Err(None),
        }
    }
}

impl Found {
    /// Takes the server's messages; whether we are connected.
    ///
    /// # Errors
    /// Why the server is refused; `None` where it has left.
    fn serve(&mut self, buffer: u32, terms: &Terms, now: Instant) -> Result<bool, Option<String>> {
        for _ in 0..MESSAGES {
            let (bytes, fds) = match self.channel.receive() {
                Came::Nothing => break,
                Came::End => return Err(None),
                Came::TooMany => return Err(Some(TOO_MANY.into())),
                Came::Message(bytes, fds) => (bytes, fds.len()),
            };
            self.since = now;
            match self.handshake.handle(&bytes, fds).map_err(Some)? {
                ClientStep::Wait => {}
                ClientStep::Connected => return Ok(true),
                ClientStep::Offer(log2) => {
                    self.offer(Layout { queues: terms.queues, log2, buffer }).map_err(Some)?;
                }
            }
        }
        match now.saturating_duration_since(self.since) {
            silence if silence > PATIENCE => Err(Some("the server does not answer".into())),
            _ => Ok(false),
        }
    }

    /// Offers memory; the messages go out with the next [`Channel::receive`].
    ///
    /// # Errors
    /// The memory could not be made.
    fn offer(&mut self, layout: Layout) -> Result<(), String> {
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
        for (message, along) in self.handshake.offer(layout.size(), layout.log2, offset) {
            let fd = match along {
                Along::Nothing => None,
                Along::Region => Some(Arc::clone(&fd)),
                Along::Event(to_server, index) => {
                    Some(Arc::clone(&memory.events[usize::from(!to_server)][index]))
                }
            };
            self.channel.outbox.push_back((message, fd));
        }
        self.memory = Some(memory);
        Ok(())
    }
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;
    use crate::port::memif::message::SECRET;
    use crate::port::socket_file;

    const TERMS: Terms = Terms { queues: 1, log2: 4, id: 0, secret: [0; SECRET] };

    fn listen(name: &str) -> (Listener, PathBuf, SocketFile) {
        let path = std::env::temp_dir().join(format!("roce-memif-{name}-{}.sock", std::process::id()));
        let _lock = socket_file::lock_and_clear(&path).unwrap();
        let listener = Listener::new(&path).unwrap();
        listener.listen().unwrap();
        let file = SocketFile::new(&path).unwrap();
        (listener, path, file)
    }

    #[test]
    fn a_client_that_says_nothing_is_given_up() {
        let (listener, path, file) = listen("silent");
        let end = End::Server { listener, _file: file, greeted: VecDeque::new() };
        let state = State::new("test".into(), TERMS, Peers::default(), end);
        let silent = Socket::connect(&path).unwrap();
        let serve = |now| {
            state.link.lock().unwrap().serve(&state, now);
            (matches!(state.wait(), Wait::Peer(_)), state.refused.load(Ordering::Relaxed))
        };
        let start = Instant::now();
        assert_eq!(serve(start), (false, 0));
        assert_eq!(serve(start + PATIENCE), (false, 0), "the handshake is under way");
        assert_eq!(
            serve(start + PATIENCE + RETRY),
            (true, 1),
            "it is over, and the next client is waited for"
        );
        assert!(matches!(silent.receive(), Came::Message(..)), "the greeting");
        assert!(matches!(silent.receive(), Came::Message(..)), "the reason");
        assert!(matches!(silent.receive(), Came::End));
    }

    // Goal: a server that reads one message of the offer, says why it refuses, and closes is counted, and not taken for one that left.
    #[test]
    fn the_reason_of_a_server_that_does_not_read_on_arrives() {
        let (listener, path, _file) = listen("refuses");
        let end = End::Client { path, buffer: 4288, try_at: None, refusals: 0, found: None };
        let state = State::new("test".into(), TERMS, Peers::default(), end);
        let serve = || state.link.lock().unwrap().serve(&state, Instant::now());
        serve();
        let server = listener.accept().unwrap().unwrap();
        assert!(server.send(&Server::<OwnedFd>::new(&TERMS).hello().encode(), None).unwrap());
        serve();
        assert!(matches!(server.receive(), Came::Message(..)));
        assert!(server.send(&Message::Disconnect { why: "no".into() }.encode(), None).unwrap());
        drop(server);
        serve();
        assert_eq!(state.refused.load(Ordering::Relaxed), 1);
    }
}
