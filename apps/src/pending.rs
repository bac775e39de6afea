//! Pending connections of a server: those that have connected, but not yet identified themselves as clients.
//!
//! A server serves one client after the other, but a peer that connects and sends nothing, sends slowly or is another program
//! must not delay the others. So every connection waits here, with a timeout; the first with a valid greeting is served. The
//! others receive the reason, and are closed. Their number is bounded: when it is reached, the oldest is closed.

use crate::error::Result;
use crate::oob;
use crate::out::note;
use std::collections::VecDeque;
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

/// How long a greeting may take. No other connection waits for it, so a client on a busy machine may be slow.
pub const GREETING: Duration = Duration::from_secs(10);
/// Pending connections at a time; also the limit of refused connections that are being closed.
const PENDING_MAX: usize = 64;
/// How long a refused peer has to read the reason.
const LEAVING: Duration = Duration::from_secs(2);

/// A connection to a server.
pub trait PendingConn {
    /// The first message of a client.
    type Greeting;
    /// The greeting, once it is complete. Never waits.
    ///
    /// # Errors
    /// Why the peer is no client.
    fn greeting(&mut self) -> Result<Option<Self::Greeting>>;
    /// Sends the reason why the peer is not served, and ends the stream in this direction.
    fn leave(&mut self, reason: &str);
    /// Whether the peer has closed its end after that. Never waits.
    fn is_gone(&mut self) -> bool;
}

/// The pending connections.
#[derive(Debug)]
pub struct Pending<G> {
    program: &'static str,
    conns: VecDeque<(G, String, Instant)>,
    leaving: VecDeque<(G, Instant)>,
}

impl<G: PendingConn> Pending<G> {
    /// An empty set, for a program with this name.
    pub fn new(program: &'static str) -> Self {
        Self { program, conns: VecDeque::new(), leaving: VecDeque::new() }
    }

    /// Accepts TCP connections, a limited number at a time.
    ///
    /// # Errors
    /// When the listening socket fails.
    pub fn accept_from<E>(
        &mut self,
        listener: &TcpListener,
        conn: impl Fn(TcpStream) -> std::result::Result<G, E>,
    ) -> Result<()> {
        for _ in 0..PENDING_MAX {
            let Some((stream, from)) = oob::try_accept(listener)? else { break };
            // A stream on which this fails has been closed by its peer.
            if let Ok(conn) = conn(stream) {
                self.add(conn, from.to_string());
            }
        }
        Ok(())
    }

    /// Adds a connection from `from`.
    pub fn add(&mut self, conn: G, from: String) {
        if self.conns.len() == PENDING_MAX
            && let Some((conn, from, _)) = self.conns.pop_front()
        {
            self.refuse(conn, &from, "too many others wait here; come again");
        }
        self.conns.push_back((conn, from, Instant::now()));
    }

    /// The first connection with a complete greeting, that greeting, and its origin. To be called regularly.
    pub fn next_greeted(&mut self) -> Option<(G, G::Greeting, String)> {
        let now = self.reap();
        for _ in 0..self.conns.len() {
            let (mut conn, from, since) = self.conns.pop_front()?;
            match conn.greeting() {
                Ok(Some(greeting)) => return Some((conn, greeting, from)),
                Ok(None) if now < since + GREETING => self.conns.push_back((conn, from, since)),
                Ok(None) => {
                    let reason = format!("no greeting came within {} s", GREETING.as_secs());
                    self.refuse(conn, &from, &reason);
                }
                Err(e) => self.refuse(conn, &from, &e.to_string()),
            }
        }
        None
    }

    /// Drops refused connections that their peers have closed; returns the time.
    fn reap(&mut self) -> Instant {
        let now = Instant::now();
        self.leaving.retain_mut(|(conn, since)| now < *since + LEAVING && !conn.is_gone());
        now
    }

    /// Waits until refused peers have read the reason, or their time is over: closing a connection with unread data would
    /// discard the reason.
    pub fn close(mut self) {
        while !self.leaving.is_empty() {
            self.reap();
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Refuses all pending connections.
    pub fn refuse_all(&mut self, reason: &str) {
        while let Some((conn, from, _)) = self.conns.pop_front() {
            self.refuse(conn, &from, reason);
        }
    }

    /// Refuses a connection.
    pub fn refuse(&mut self, conn: G, from: &str, reason: &str) {
        note!("{}: refused {from}: {reason}", self.program);
        self.dismiss(conn, reason);
    }

    /// Closes the connection of a client that was served, and failed.
    pub fn dismiss(&mut self, mut conn: G, reason: &str) {
        conn.leave(reason);
        if self.leaving.len() == PENDING_MAX {
            self.leaving.pop_front();
        }
        self.leaving.push_back((conn, Instant::now()));
    }
}
