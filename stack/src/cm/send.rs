//! MADs to send: those that wait because too many requests to their host are outstanding, and those that [`Machine::poll_send`] can return
//! now.
//!
//! A MAD that may be retransmitted (REQ, RTU, REP, DREQ, DREP, SIDR_REQ, SIDR_REP) is stored in its connection or exchange, one in each,
//! and is never dropped for lack of room. MADs that are sent once (REJ, MRA, answers that belong to no connection) wait in bounded queues.

use std::collections::VecDeque;

use super::counter::Counter;
use super::event::{ConnId, Path, Send};
use super::fair::Fair;
use super::machine::{Begun, Machine, Timed};
use super::mad::Mad;
use super::pace::Pace;
use crate::time::Instant;

/// MADs that can be sent now, of three kinds. The kinds take turns.
#[derive(Default)]
pub(super) struct Sends {
    /// Connections and exchanges whose stored MAD is to be sent. Each is listed at most once.
    kept: VecDeque<Timed>,
    /// MADs of connections that are not retransmitted.
    once: Fair<Send>,
    /// Answers that belong to no connection.
    answers: Fair<Send>,
    pub pace: Pace,
    turn: u8,
}

impl Machine {
    /// Returns the next MAD to send; `None` if there is none. The caller may drop it if it cannot be sent: where an answer is needed, a
    /// timer retransmits it.
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
            // `None`: it was answered or given up meanwhile.
            if let Some((send, again)) = send {
                if again {
                    self.counters.count(Counter::Retransmitted);
                }
                return Some(send);
            }
        }
        None
    }

    /// Queues the stored MAD of a connection or exchange, unless it is queued already.
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

    /// Stores a MAD in its connection and queues it.
    pub(super) fn keep_and_send(&mut self, id: ConnId, mad: &Mad) {
        if let Some(conn) = self.conns.get_mut(&id) {
            conn.keep(mad);
            self.send_kept(Timed::Conn(id));
        }
    }

    /// Queues a MAD of a connection that will not be retransmitted.
    pub(super) fn send_once(&mut self, id: ConnId, mad: &Mad) {
        let path = self.conns[&id].mad_path;
        let send = Send { mad: mad.encode(), path };
        let refused = self.sends.once.push(self.config.limits.sends, path.dgid, send);
        self.no_room(refused.is_some());
    }

    /// Queues an answer that belongs to no connection.
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

    /// Sends a request of a connection, and retransmits it until it is answered.
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

    /// Sends a stored request as soon as few enough requests to its host are outstanding. Its timer starts then.
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
        // If this is a retransmission that has to wait now, another request may take its place.
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

    /// Removes a request that was answered or given up from the outstanding ones, and sends others that waited for it.
    pub(super) fn answered(&mut self, now: Instant, whose: Timed) {
        if let Some(host) = self.sends.pace.end(whose) {
            self.admit(now, host);
        }
    }

    /// Sends the requests that wait for a host, as many as may be outstanding.
    pub(super) fn admit(&mut self, now: Instant, host: crate::id::Gid) {
        while let Some(whose) = self.sends.pace.admit(now, host, &self.config.limits) {
            self.let_go(now, whose);
        }
    }
}
