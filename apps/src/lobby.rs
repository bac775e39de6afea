//! Those who have connected to a server, until they have said who they are.
//!
//! A server serves one client after the other, but whoever connects and says nothing, says it slowly or is somebody else
//! must not keep the others waiting. So all of them wait here at once, each with a limit in time; the first that greets as
//! a client does is served. The others are told why not, and leave. Their number is bounded: who came first goes first.

use crate::error::Result;
use crate::oob;
use crate::out::note;
use std::collections::VecDeque;
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

/// How long somebody may take to greet. Nobody waits for it, so a client on a busy machine may be slow.
pub const GREETING: Duration = Duration::from_secs(10);
/// Guests at a time, and as many that leave.
const GUESTS_MAX: usize = 64;
/// How long somebody who was refused has to take the last words.
const LEAVING: Duration = Duration::from_secs(2);

/// Somebody who has connected.
pub trait Guest {
    /// What a client says first.
    type Greeting;
    /// The greeting, once it is whole. Never waits.
    ///
    /// # Errors
    /// What makes it no client of ours.
    fn greeting(&mut self) -> Result<Option<Self::Greeting>>;
    /// Says why it is not served, and that nothing more will be said.
    fn leave(&mut self, reason: &str);
    /// Whether it has gone after that. Never waits.
    fn is_gone(&mut self) -> bool;
}

/// Where guests wait.
#[derive(Debug)]
pub struct Lobby<G> {
    program: &'static str,
    guests: VecDeque<(G, String, Instant)>,
    leaving: VecDeque<(G, Instant)>,
}

impl<G: Guest> Lobby<G> {
    /// An empty one, of a program with this name.
    pub fn new(program: &'static str) -> Self {
        Self { program, guests: VecDeque::new(), leaving: VecDeque::new() }
    }

    /// Takes in those who have connected over TCP, a limited number at a time.
    ///
    /// # Errors
    /// When the listening socket fails.
    pub fn admit_from<E>(
        &mut self,
        listener: &TcpListener,
        guest: impl Fn(TcpStream) -> std::result::Result<G, E>,
    ) -> Result<()> {
        for _ in 0..GUESTS_MAX {
            let Some((stream, from)) = oob::try_accept(listener)? else { break };
            // A stream that fails already has nobody at its other end.
            if let Ok(guest) = guest(stream) {
                self.admit(guest, from.to_string());
            }
        }
        Ok(())
    }

    /// Takes in a guest, who comes `from` there.
    pub fn admit(&mut self, guest: G, from: String) {
        if self.guests.len() == GUESTS_MAX
            && let Some((guest, from, _)) = self.guests.pop_front()
        {
            self.refuse(guest, &from, "too many others wait here; come again");
        }
        self.guests.push_back((guest, from, Instant::now()));
    }

    /// The first guest that has greeted, its greeting, and where it comes from. To be called every so often.
    pub fn next_greeted(&mut self) -> Option<(G, G::Greeting, String)> {
        let now = self.see_off();
        for _ in 0..self.guests.len() {
            let (mut guest, from, since) = self.guests.pop_front()?;
            match guest.greeting() {
                Ok(Some(greeting)) => return Some((guest, greeting, from)),
                Ok(None) if now < since + GREETING => self.guests.push_back((guest, from, since)),
                Ok(None) => {
                    let reason = format!("no greeting came within {} s", GREETING.as_secs());
                    self.refuse(guest, &from, &reason);
                }
                Err(e) => self.refuse(guest, &from, &e.to_string()),
            }
        }
        None
    }

    /// Forgets those that have gone; the time.
    fn see_off(&mut self) -> Instant {
        let now = Instant::now();
        self.leaving.retain_mut(|(guest, since)| now < *since + LEAVING && !guest.is_gone());
        now
    }

    /// Waits a little for those that leave to take the last words: closing a connection on which they still speak would
    /// take the words back.
    pub fn close(mut self) {
        while !self.leaving.is_empty() {
            self.see_off();
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Sends all guests away.
    pub fn turn_away(&mut self, reason: &str) {
        while let Some((guest, from, _)) = self.guests.pop_front() {
            self.refuse(guest, &from, reason);
        }
    }

    /// Sends a guest away.
    pub fn refuse(&mut self, guest: G, from: &str, reason: &str) {
        note!("{}: refused {from}: {reason}", self.program);
        self.dismiss(guest, reason);
    }

    /// Sends somebody away who was served, and failed.
    pub fn dismiss(&mut self, mut guest: G, reason: &str) {
        guest.leave(reason);
        if self.leaving.len() == GUESTS_MAX {
            self.leaving.pop_front();
        }
        self.leaving.push_back((guest, Instant::now()));
    }
}
