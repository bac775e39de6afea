//! The life of a memif's link: peers are found, connect and disconnect.
//!
//! Threads that call [`Port::maintain`](crate::port::Port::maintain), and queues without a link, take short steps: they accept clients,
//! connect, and check whether the peer has left. They never block. Work that takes long, or that a peer can block, is done on threads of
//! its own, which exist only meanwhile ([`meeting`], [`apart`]); how many of them each peer may occupy is bounded
//! ([`share`](crate::port::share)). A queue in the middle of a burst keeps its connection ([`Connection`]) until it checks for the next
//! one.

use super::connection::Connection;
use super::handshake;
use super::meeting::{self, CLOSED, Common, Meeting, Outcome, Role, exhausted};
use super::socket::{Listener, Socket, Stranger};
use crate::port::share::{Party, Share};
use crate::port::socket_file::SocketFile;
use crate::sync::apart::{self, Apart};
use crate::sync::lock::lock;
use crate::sync::process::Process;
use core::sync::atomic::{AtomicU64, Ordering};
use core::time::Duration;
use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError, TryLockError};
use std::time::Instant;

/// Pause before a client connects again, if no server listened.
const RETRY: Duration = Duration::from_millis(50);
/// Most doublings of [`RETRY`] for a server with which no link lasts, as each attempt creates new memory.
const FAILURES_MAX: u32 = 5;
/// A link that lasted less counts as a failed attempt.
const LASTED: Duration = Duration::from_millis(200);
/// Most clients that are accepted in one step, and most that wait because their share is in use.
const ACCEPTED: usize = 8;

/// The link of a port, shared by the port and its queues.
pub struct State {
    /// Number of the current connection; 0 if none. Queues read this once per burst.
    pub number: AtomicU64,
    current: Mutex<Option<Arc<Connection>>>,
    /// Number of a connection that a queue found broken.
    broken: AtomicU64,
    /// Links that were lost.
    pub restarts: AtomicU64,
    common: Arc<Common>,
    connector: Mutex<Connector>,
    made_by: Process,
}

impl State {
    /// A link that is down.
    pub fn new(common: Common, end: End) -> Self {
        let common = Arc::new(common);
        let connector =
            Connector { common: Arc::clone(&common), end, up: None, last_meeting: 0, last_number: 0 };
        Self {
            number: AtomicU64::new(0),
            current: Mutex::new(None),
            broken: AtomicU64::new(0),
            restarts: AtomicU64::new(0),
            common,
            connector: Mutex::new(connector),
            made_by: Process::this(),
        }
    }

    /// The current connection.
    pub fn current(&self) -> Option<Arc<Connection>> {
        lock(&self.current).clone()
    }

    /// Peers that were refused, and connections that were ended because the peer violated the protocol.
    pub fn refused(&self) -> u64 {
        self.common.refused.load(Ordering::Relaxed)
    }

    /// Notes that a queue found the peer of this connection to violate the protocol.
    pub fn is_broken(&self, number: u64) {
        self.broken.store(number, Ordering::Relaxed);
    }

    /// Takes the steps that are due, unless another thread does so now. Does nothing in a forked child: the link is the parent's.
    pub fn serve(&self) {
        if !self.made_by.is_this() {
            return;
        }
        let mut connector = match self.connector.try_lock() {
            Ok(connector) => connector,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return,
        };
        connector.serve(self, Instant::now());
    }

    /// What the next step waits for while the link is down.
    pub fn wait(&self) -> Wait {
        match self.connector.try_lock() {
            Ok(connector) => connector.wait(),
            Err(_) => Wait::Soon,
        }
    }

    /// Publishes the connection that queues use from their next burst on; `None` if the link is down.
    fn publish(&self, connection: Option<Arc<Connection>>) {
        let mut current = lock(&self.current);
        let number = connection.as_ref().map_or(0, |connection| connection.number);
        *current = connection;
        self.number.store(number, Ordering::Release);
    }
}

impl Drop for State {
    fn drop(&mut self) {
        if self.made_by.is_this() {
            self.connector.get_mut().unwrap_or_else(PoisonError::into_inner).close();
        }
    }
}

/// What a link that is down waits for.
pub enum Wait {
    /// A peer. The descriptor is readable when one connects.
    Peer(Arc<OwnedFd>),
    /// A handshake. The descriptor is readable when it is over.
    Meeting(Arc<OwnedFd>),
    /// The time of the next attempt.
    Until(Instant),
    /// A step that is in progress or due.
    Soon,
}

/// Which end of the link a port is.
pub enum End {
    /// Waits for clients.
    Server {
        /// The socket to which they connect. Closing it also closes clients that were not accepted.
        listener: Apart<Listener>,
        /// The socket file, removed with the port.
        _file: SocketFile,
        /// Handshakes with clients in progress, the oldest first.
        meetings: Vec<(Meeting, Party)>,
        /// Clients that wait because their share is in use.
        held: VecDeque<(Apart<Stranger>, Party)>,
    },
    /// Connects to a server.
    Client {
        /// The server's socket.
        path: PathBuf,
        /// Bytes of a buffer.
        buffer: u32,
        /// When to try again.
        try_at: Option<Instant>,
        /// Attempts in a row that led to no link that lasted.
        failures: u32,
        /// The handshake with a server in progress.
        meeting: Option<Meeting>,
        /// A server that waits because its share is in use.
        held: Option<(Apart<Stranger>, Party)>,
    },
}

impl End {
    /// The end of a server.
    pub fn server(listener: Listener, file: SocketFile) -> Self {
        let listener = Apart::new(listener);
        Self::Server { listener, _file: file, meetings: Vec::new(), held: VecDeque::new() }
    }

    /// The end of a client, with buffers of this many bytes.
    pub fn client(path: PathBuf, buffer: u32) -> Self {
        Self::Client { path, buffer, try_at: None, failures: 0, meeting: None, held: None }
    }
}

/// A connected peer.
struct Up {
    socket: Apart<Socket>,
    number: u64,
    since: Instant,
}

/// Finds peers, makes handshakes with them, and ends their connections. One thread at a time takes its steps.
struct Connector {
    common: Arc<Common>,
    end: End,
    up: Option<Up>,
    /// Numbers of the last handshake and of the last connection.
    last_meeting: u64,
    last_number: u64,
}

impl Connector {
    fn wait(&self) -> Wait {
        match &self.end {
            _ if self.up.is_some() => Wait::Soon,
            End::Server { listener, meetings, held, .. } if meetings.is_empty() && held.is_empty() => {
                Wait::Peer(listener.fd())
            }
            End::Client { try_at: Some(at), meeting: None, .. } => Wait::Until(*at),
            End::Client { meeting: None, .. } => Wait::Soon,
            End::Server { .. } | End::Client { .. } => Wait::Meeting(Arc::clone(&self.common.event)),
        }
    }

    fn serve(&mut self, state: &State, now: Instant) {
        let is_short = apart::retry();
        self.look_after_peer(state, now);
        self.take_outcomes(state, now);
        match self.end {
            _ if is_short => self.common.log("peers are not met: this process gets no more threads".into()),
            End::Server { .. } => self.look_for_clients(),
            End::Client { .. } if self.up.is_none() => self.look_for_server(now),
            End::Client { .. } => {}
        }
    }

    /// Ends the connection if the peer has left or violated the protocol.
    fn look_after_peer(&mut self, state: &State, now: Instant) {
        let Some(up) = &self.up else { return };
        let broken = state.broken.load(Ordering::Relaxed) == up.number;
        if !broken && !up.socket.has_news() {
            self.common.found.fetch_add(1, Ordering::Release);
            return;
        }
        let Some(Up { mut socket, since, .. }) = self.up.take() else { return };
        state.publish(None);
        state.restarts.fetch_add(1, Ordering::Relaxed);
        self.common.taken.store(false, Ordering::Release);
        match &mut self.end {
            End::Client { failures, .. } if now.saturating_duration_since(since) >= LASTED => *failures = 0,
            _ => {}
        }
        self.failed(now);
        socket.share.resume();
        let common = Arc::clone(&self.common);
        apart::run(move || meeting::end(&common, &socket.into_inner(), broken));
    }

    /// Schedules the next attempt of a client.
    fn failed(&mut self, now: Instant) {
        if let End::Client { try_at, failures, .. } = &mut self.end {
            *try_at = Some(now + RETRY * (1 << *failures));
            *failures = (*failures + 1).min(FAILURES_MAX);
        }
    }

    /// Handles the outcomes of meetings.
    fn take_outcomes(&mut self, state: &State, now: Instant) {
        for Outcome { number, met } in self.common.outcomes() {
            match &mut self.end {
                End::Server { meetings, .. } => meetings.retain(|(meeting, _)| meeting.number != number),
                End::Client { meeting, .. } => *meeting = None,
            }
            match met {
                Some((socket, connection)) => self.connect(state, socket, connection, now),
                None => self.failed(now),
            }
        }
    }

    /// Puts a connection into service.
    fn connect(
        &mut self,
        state: &State,
        mut socket: Apart<Socket>,
        mut connection: Connection,
        now: Instant,
    ) {
        if matches!(self.end, End::Server { .. })
            && !socket.send(&handshake::connected().encode(), None).unwrap_or(false)
        {
            // The peer has left, or does not read its messages.
            self.common.taken.store(false, Ordering::Release);
            return;
        }
        self.last_number += 1;
        let number = self.last_number;
        connection.number = number;
        socket.share.rest();
        self.up = Some(Up { socket, number, since: now });
        state.publish(Some(Arc::new(connection)));
        self.common.log_up();
    }

    /// Begins a handshake with a peer of this party if its share permits it.
    ///
    /// # Errors
    /// The peer, if its share is in use.
    fn meet(
        &mut self,
        stranger: Apart<Stranger>,
        party: Party,
        role: Role,
    ) -> Result<Option<Meeting>, Apart<Stranger>> {
        let Some(share) = Share::take(party) else { return Err(stranger) };
        self.last_meeting += 1;
        // If no descriptor is left, the peer finds its socket closed.
        Ok(Meeting::begin(&self.common, self.last_meeting, stranger, share, role).ok())
    }

    fn look_for_clients(&mut self) {
        let port = self.common.port;
        for _ in 0..ACCEPTED {
            let End::Server { listener, held, .. } = &mut self.end else { return };
            if held.len() >= ACCEPTED {
                break;
            }
            let stranger = match listener.accept(port) {
                Ok(Some(stranger)) => stranger,
                Ok(None) => break,
                Err(error) => {
                    self.common.log(format!("a client waits to be accepted: {}", exhausted(&error)));
                    break;
                }
            };
            if let Ok(party) = stranger.party() {
                held.push_back((stranger, party));
            }
        }
        for _ in 0..ACCEPTED {
            let End::Server { held, .. } = &mut self.end else { return };
            let Some((stranger, party)) = held.pop_front() else { return };
            let met = self.meet(stranger, party, Role::Server);
            let End::Server { held, meetings, .. } = &mut self.end else { return };
            match met {
                Ok(meeting) => meetings.extend(meeting.map(|meeting| (meeting, party))),
                Err(stranger) => {
                    // Stops the oldest meeting of the same party, to make room.
                    let oldest = meetings.iter().find(|(meeting, of)| *of == party && !meeting.is_stopped());
                    if let Some((meeting, _)) = oldest {
                        meeting.stop("others came before this was done");
                    }
                    held.push_back((stranger, party));
                }
            }
        }
    }

    fn look_for_server(&mut self, now: Instant) {
        let End::Client { path, buffer, try_at, meeting: None, held, .. } = &mut self.end else { return };
        if try_at.is_some_and(|at| now < at) {
            return;
        }
        *try_at = Some(now + RETRY);
        let role = Role::Client(*buffer);
        let found = held.take().or_else(|| {
            let connected = Stranger::connect(path, self.common.port).inspect_err(|error| {
                if !is_absent(error) {
                    self.common.log(format!("no link to {}: {}", path.display(), exhausted(error)));
                }
            });
            let stranger = connected.ok()?;
            let party = stranger.party().ok()?;
            Some((stranger, party))
        });
        let Some((stranger, party)) = found else { return };
        let met = self.meet(stranger, party, role);
        if let End::Client { meeting, held, .. } = &mut self.end {
            match met {
                Ok(met) => *meeting = met,
                Err(stranger) => *held = Some((stranger, party)),
            }
        }
    }

    /// Ends all connections and handshakes. Connected peers get a DISCONNECT.
    fn close(&mut self) {
        for Outcome { met, .. } in self.common.close() {
            if let Some((socket, _)) = met {
                meeting::goodbye(&socket, CLOSED);
            }
        }
        if let Some(mut up) = self.up.take() {
            meeting::goodbye(&up.socket, CLOSED);
            up.socket.share.resume();
        }
        let turn_away = |(stranger, party)| meeting::turn_away(stranger, Share::beyond(party));
        match &mut self.end {
            End::Server { meetings, held, .. } => {
                meetings.iter().for_each(|(meeting, _)| meeting.stop(CLOSED));
                held.drain(..).for_each(turn_away);
            }
            End::Client { meeting, held, .. } => {
                meeting.iter().for_each(|meeting| meeting.stop(CLOSED));
                held.take().into_iter().for_each(turn_away);
            }
        }
    }
}

/// Whether a client simply has to wait: no server listens yet, or many clients connect at once.
fn is_absent(error: &std::io::Error) -> bool {
    use std::io::ErrorKind::{ConnectionRefused, Interrupted, NotFound, WouldBlock};
    matches!(error.kind(), NotFound | ConnectionRefused | WouldBlock | Interrupted)
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;
    use crate::port::memif::handshake::{Server, Terms};
    use crate::port::memif::message::{Message, SECRET};
    use crate::port::memif::socket::Came;
    use crate::port::peers::Peers;
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

    fn state(end: End) -> State {
        State::new(Common::new("test".into(), TERMS, Peers::default()).unwrap(), end)
    }

    fn serve(state: &State, now: Instant) {
        state.connector.lock().unwrap().serve(state, now);
    }

    fn known(stranger: Apart<Stranger>) -> Socket {
        let share = Share::take(stranger.party().unwrap()).unwrap();
        Socket::new(stranger.into_inner(), share)
    }

    /// The next message.
    fn message(socket: &Socket) -> Message {
        loop {
            match socket.receive() {
                Came::Nothing => std::thread::yield_now(),
                Came::Message(bytes, _) => return Message::decode(&bytes).unwrap(),
                came => panic!("{came:?}"),
            }
        }
    }

    // Goal: a server that reads one message of the offer, sends the reason why it refuses, and closes is counted as refused, and not as one
    // that left.
    #[test]
    fn the_reason_of_a_server_that_does_not_read_on_arrives() {
        let (listener, path, _file) = listen("refuses");
        let state = state(End::client(path, 4288));
        serve(&state, Instant::now());
        let server = known(listener.accept(1 << 33).unwrap().unwrap());
        assert!(server.send(&Server::<OwnedFd>::new(&TERMS).hello().encode(), None).unwrap());
        assert!(matches!(message(&server), Message::Init(_)));
        assert!(server.send(&Message::Disconnect { why: "no".into() }.encode(), None).unwrap());
        drop(server);
        while state.refused() == 0 {
            serve(&state, Instant::now());
        }
    }

    // Goal: after each link with a server that does not last, the client waits longer before it connects again, up to a bound: each attempt
    // creates memory.
    #[test]
    fn a_client_backs_off_from_a_server_with_which_no_link_lasts() {
        let (listener, path, _file) = listen("drops");
        let state = state(End::client(path, 4288));
        let start = Instant::now();
        let (mut now, mut attempts) = (start, Vec::new());
        while attempts.len() < 10 {
            serve(&state, now);
            if let Some(server) = listener.accept(1 << 33).unwrap() {
                attempts.push(now);
                // Of every second attempt it accepts the offer, then disconnects.
                let server = known(server);
                if attempts.len() % 2 == 0 {
                    server.send(&Server::<OwnedFd>::new(&TERMS).hello().encode(), None).unwrap();
                    while !matches!(message(&server), Message::Connect { .. }) {
                        server.send(&Message::Ack.encode(), None).unwrap();
                    }
                    server.send(&handshake::connected().encode(), None).unwrap();
                    while state.current().is_none() {
                        serve(&state, now);
                    }
                }
                drop(server);
                // Until the link has noticed.
                while !matches!(state.wait(), Wait::Until(at) if at > now) {
                    serve(&state, now);
                }
            }
            now += Duration::from_millis(10);
        }
        let pauses: Vec<_> = attempts.windows(2).map(|pair| (pair[1] - pair[0]).as_millis()).collect();
        assert_eq!(pauses, [50, 100, 200, 400, 800, 1600, 1600, 1600, 1600]);
    }

    // Goal: memory is created, mapped, filled and unmapped by another thread than the one that maintains the port, whatever its size.
    #[test]
    fn the_memory_of_a_link_costs_the_caller_nothing() {
        let faults = || {
            let stat = std::fs::read_to_string("/proc/thread-self/stat").unwrap();
            let after_name = stat.rsplit_once(") ").unwrap().1;
            after_name.split(' ').nth(7).unwrap().parse::<u64>().unwrap()
        };
        let (listener, path, file) = listen("large");
        let terms = Terms { log2: 13, ..TERMS };
        let new =
            |end| State::new(Common::new("large".into(), terms.clone(), Peers::default()).unwrap(), end);
        let (server, client) = (new(End::server(listener, file)), new(End::client(path, 4288)));
        let before = faults();
        while server.current().is_none() || client.current().is_none() {
            serve(&server, Instant::now());
            serve(&client, Instant::now());
        }
        assert!(client.current().unwrap().region.len() > 64 << 20);
        // Some page faults for other allocations and waits; a quarter of the region would be too many.
        assert!(faults() - before < 4096, "{} page faults for a region of 16384 pages", faults() - before);
        // Goal: when both ports are gone, nothing keeps their shared state, which includes a descriptor.
        let ends = [&server, &client].map(|state| Arc::downgrade(&state.common));
        drop((server, client));
        while ends.iter().any(|common| common.strong_count() > 0) {
            std::thread::yield_now();
        }
    }

    // Goal: a client that sends nothing gets a reason and is given up, and the server waits for the next one.
    #[test]
    fn a_client_that_says_nothing_is_given_up() {
        let (listener, path, file) = listen("silent");
        let mut common = Common::new("test".into(), TERMS, Peers::default()).unwrap();
        common.patience = Duration::from_millis(1);
        let state = State::new(common, End::server(listener, file));
        let silent = known(Stranger::connect(&path, 1 << 33).unwrap());
        serve(&state, Instant::now());
        assert!(matches!(message(&silent), Message::Hello(_)));
        let Message::Disconnect { why } = message(&silent) else { panic!("no reason") };
        assert_eq!((&*why, state.refused()), ("the client does not go on", 1));
        while !matches!(state.wait(), Wait::Peer(_)) {
            serve(&state, Instant::now());
        }
    }
}
