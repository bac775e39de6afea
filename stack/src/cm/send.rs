//! MADs on their way out: those that wait for a place among the requests under way, and those that wait for the port.
//!
//! What is kept to be repeated (REQ, RTU, REP, DREQ, DREP, SIDR_REQ, SIDR_REP) waits with its connection or exchange, one each, and
//! is never dropped for want of room. What is sent once (REJ, MRA, answers to strangers) waits in bounded queues.

use std::collections::VecDeque;

use super::counter::Counter;
use super::event::{ConnId, Path, Send};
use super::fair::Fair;
use super::machine::{Begun, Machine, Timed};
use super::mad::Mad;
use super::pace::Pace;
use crate::time::Instant;

/// MADs that can be sent now, of each kind; the kinds take turns.
#[derive(Default)]
pub(super) struct Sends {
    /// Whose kept MAD is to be sent. Each is here once.
    kept: VecDeque<Timed>,
    /// Of connections.
    once: Fair<Send>,
    /// Answers to strangers.
    answers: Fair<Send>,
    pub pace: Pace,
    turn: u8,
}

impl Machine {
    /// The next MAD to send. If it cannot be sent it may be dropped: timers send it again.
    pub fn poll_send(&mut self) -> Option<Send> {
        const KINDS: u8 = 3;
        let send = (0..KINDS).find_map(|_| {
            self.sends.turn = (self.sends.turn + 1) % KINDS;
            match self.sends.turn {
                0 => self.sends.once.pop(),
                1 => self.kept_send(),
                _ => self.sends.answers.pop(),
            }
        })?;
        self.counters.count(Counter::Sent);
        Some(send)
    }

    fn kept_send(&mut self) -> Option<Send> {
        while let Some(whose) = self.sends.kept.pop_front() {
            let send = match whose {
                Timed::Conn(id) => self.conns.get_mut(&id).and_then(|conn| {
                    conn.queued = false;
                    let send = Send { mad: *conn.mad.as_deref()?, path: conn.mad_path };
                    Some((send, core::mem::replace(&mut conn.sent, true)))
                }),
                Timed::Sidr(id) => self.sidrs.take_queued(id),
            };
            // Otherwise it was answered, or given up.
            if let Some((send, again)) = send {
                if again {
                    self.counters.count(Counter::Retransmitted);
                }
                return Some(send);
            }
        }
        None
    }

    /// Queues the kept MAD of a connection or exchange, unless it is queued already.
    pub(super) fn send_kept(&mut self, whose: Timed) {
        let queued = match whose {
            Timed::Conn(id) => self.conns.get_mut(&id).map(|conn| &mut conn.queued),
            Timed::Sidr(id) => self.sidrs.queued(id),
        };
        if let Some(queued) = queued.filter(|queued| !**queued) {
            *queued = true;
            self.sends.kept.push_back(whose);
        }
    }

    /// Keeps a MAD of a connection, and queues it.
    pub(super) fn keep_and_send(&mut self, id: ConnId, mad: &Mad) {
        if let Some(conn) = self.conns.get_mut(&id) {
            conn.keep(mad);
            self.send_kept(Timed::Conn(id));
        }
    }

    /// Queues a MAD of a connection, not to be repeated.
    pub(super) fn send_once(&mut self, id: ConnId, mad: &Mad) {
        let path = self.conns[&id].mad_path;
        let send = Send { mad: mad.encode(), path };
        let refused = self.sends.once.push(self.config.limits.sends, path.dgid, send);
        self.no_room(refused.is_some());
    }

    /// Queues an answer to a stranger.
    pub(super) fn answer(&mut self, path: Path, mad: &Mad) {
        let send = Send { mad: mad.encode(), path };
        let refused = self.sends.answers.push(self.config.limits.sends, path.dgid, send);
        self.no_room(refused.is_some());
    }

    fn no_room(&mut self, refused: bool) {
        if refused {
            self.counters.count(Counter::SendQueueFull);
        }
    }

    /// Sends a request of a connection, and repeats it until there is an answer.
    pub(super) fn send_request(&mut self, now: Instant, id: ConnId, mad: &Mad) {
        let Some(conn) = self.conns.get_mut(&id) else { return };
        conn.keep(mad);
        conn.left = conn.retries;
        conn.mra = false;
        let end = now.after(conn.max_wait);
        conn.deadline = if conn.state.half_open() { end.min(conn.deadline) } else { end };
        self.request(now, Timed::Conn(id));
        self.began(Begun::Wait(id));
    }

    /// Sends a kept request as soon as its peer has room for it. Its timer runs from then on.
    pub(super) fn request(&mut self, now: Instant, whose: Timed) {
        let host = match whose {
            Timed::Conn(id) => self.conns.get(&id).map(|conn| conn.mad_path.dgid),
            Timed::Sidr(id) => self.sidrs.host(id),
        };
        let Some(host) = host else { return };
        if self.sends.pace.begin(now, host, whose, &self.config.limits) {
            return self.let_go(now, whose);
        }
        match whose {
            Timed::Conn(id) => self.arm(id, Instant::FAR),
            Timed::Sidr(id) => self.sidr_arm(id, Instant::FAR),
        }
        // A repetition has given its place to others.
        self.admit(now, host);
    }

    fn let_go(&mut self, now: Instant, whose: Timed) {
        self.send_kept(whose);
        match whose {
            Timed::Conn(id) => {
                let Some(conn) = self.conns.get(&id) else { return };
                self.arm(id, now.after(conn.interval));
            }
            Timed::Sidr(id) => {
                let Some(interval) = self.sidrs.interval(id) else { return };
                self.sidr_arm(id, now.after(interval));
            }
        }
    }

    /// A request is answered, or given up: others have its place.
    pub(super) fn answered(&mut self, now: Instant, whose: Timed) {
        if let Some(host) = self.sends.pace.end(whose) {
            self.admit(now, host);
        }
    }

    /// Sends the requests that waited for a host, as many as may be under way.
    pub(super) fn admit(&mut self, now: Instant, host: crate::id::Gid) {
        while let Some(whose) = self.sends.pace.admit(now, host, &self.config.limits) {
            self.let_go(now, whose);
        }
    }
}
