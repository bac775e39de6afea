//! Checks whether peers still have their connections: when a message indicates that a peer lost one, and as keep-alive.
//!
//! A new REQ with the IDs or the queue pair of an established connection, or a REP with its queue pair, comes from a peer that restarted
//! (IBA 12.9.8.3.1), or from anybody who can forge the peer's address: over UDP, any user of the peer's host. So the message is always
//! rejected as stale, and the connection ends only if the peer's queue pair does not answer a check. The caller of the machine carries out
//! the check, see [`Event::CheckPeer`], and reports the result to [`Machine::peer_checked`]. Only one check of a connection runs at a time.
//! Above the [`Limits`](super::Limits) for one peer address and for all peers, no further checks are made and the connections stay.
//!
//! Keep-alive notices a peer that disappears without a DREQ (a crash, a cut cable). A peer process that is merely stopped for a while does
//! not answer either, so several checks in a row must fail before the connection ends.

use std::collections::BTreeMap;

use super::conn::{Asked, State};
use super::counter::Counter;
use super::event::{ConnId, Disconnect, Event, PeerAnswer};
use super::machine::Machine;
use crate::id::{Gid, Qpn};
use crate::time::Instant;

/// How many keep-alive checks in a row must fail before a connection ends. After a failed check, the interval is shorter by `SOONER`.
const SILENCES: u8 = 3;
const SOONER: u32 = 3;
/// When too many checks are running, a keep-alive check is tried again after its interval divided by this.
const NO_ROOM: u32 = 100;

/// How many checks are running, by peer address and in all.
#[derive(Default)]
pub(super) struct Questions {
    by_peer: BTreeMap<Gid, usize>,
    all: usize,
}

impl Questions {
    /// Counts one more check, unless a limit is reached. Returns whether it counted.
    fn begin(&mut self, peer: Gid, most_of_peer: usize, most: usize) -> bool {
        let of_peer = self.by_peer.get(&peer).copied().unwrap_or_default();
        if of_peer >= most_of_peer || self.all >= most {
            return false;
        }
        self.by_peer.insert(peer, of_peer + 1);
        self.all += 1;
        true
    }
    /// Counts one check less.
    pub fn end(&mut self, peer: &Gid) {
        self.all -= 1;
        if let Some(n) = self.by_peer.get_mut(peer) {
            *n -= 1;
            if *n == 0 {
                self.by_peer.remove(peer);
            }
        }
    }
}

impl Machine {
    /// Handles a message that indicates that the peer no longer has this connection.
    pub(super) fn doubt(&mut self, now: Instant, id: ConnId) {
        let Some(conn) = self.conns.get_mut(&id) else { return };
        if conn.state != State::Established {
            return self.forgotten(now, id);
        }
        match conn.asked {
            Some(_) => conn.asked = Some(Asked::Doubted),
            None => _ = self.ask(id, Asked::Doubted),
        }
    }

    /// Begins a check of the peer, unless too many are running. Returns whether it began.
    fn ask(&mut self, id: ConnId, why: Asked) -> bool {
        let Some(conn) = self.conns.get_mut(&id) else { return false };
        let (limits, peer) = (&self.config.limits, conn.mad_path.dgid);
        if !self.questions.begin(peer, limits.checks_of_peer, limits.checks) {
            return false;
        }
        conn.asked = Some(why);
        let (path, qpn, remote_qpn) = (conn.params.path, conn.params.qpn, conn.params.dest_qpn);
        self.counters.count(match why {
            Asked::Doubted => Counter::PeersChecked,
            Asked::ToKeepAlive => Counter::KeepAlives,
        });
        self.push_event(Event::CheckPeer { id, path, qpn, remote_qpn });
        true
    }

    /// Sets the timer for the next keep-alive check of an established connection.
    pub(super) fn ask_later(&mut self, now: Instant, id: ConnId) {
        let Some(conn) = self.conns.get(&id) else { return };
        let wait = conn.keep_alive.map(|time| if conn.silences == 0 { time } else { time / SOONER });
        self.arm(id, wait.map_or(Instant::FAR, |wait| now.after(wait)));
    }

    /// Begins a keep-alive check: the timer of [`ask_later`](Self::ask_later) expired.
    pub(super) fn keep_alive(&mut self, now: Instant, id: ConnId) {
        self.ask_later(now, id);
        let Some(conn) = self.conns.get(&id).filter(|conn| conn.asked.is_none()) else { return };
        if let Some(time) = conn.keep_alive
            && !self.ask(id, Asked::ToKeepAlive)
        {
            self.arm(id, now.after(time / NO_ROOM));
        }
    }

    /// Takes the result of an [`Event::CheckPeer`]. If the peer's queue pair answered, the connection stays. If it did not, a connection
    /// that was checked because of a message ends as [`Disconnect::Stale`], also if the peer could not be asked; one that was checked for
    /// keep-alive ends as [`Disconnect::TimedOut`] after several failed checks in a row. Does nothing for a connection that has ended
    /// meanwhile.
    pub fn peer_checked(&mut self, now: Instant, id: ConnId, answer: PeerAnswer) {
        let Some(conn) = self.conns.get_mut(&id) else { return };
        let Some(why) = conn.asked.take() else { return };
        self.questions.end(&conn.mad_path.dgid);
        let silences = core::mem::take(&mut conn.silences);
        match (why, answer) {
            (Asked::Doubted, PeerAnswer::Answered) => self.counters.count(Counter::PeersAnswered),
            (Asked::Doubted, _) => self.forgotten(now, id),
            (Asked::ToKeepAlive, PeerAnswer::Silent) => self.silent(now, id, silences + 1),
            (Asked::ToKeepAlive, _) => self.ask_later(now, id),
        }
    }
    /// Handles a keep-alive check that failed; `silences` have failed in a row. After the last one the connection ends. The peer is sent a
    /// DREQ nevertheless, because possibly only the path from it to us is broken.
    fn silent(&mut self, now: Instant, id: ConnId, silences: u8) {
        if silences >= SILENCES {
            self.counters.count(Counter::PeersSilent);
            let dreq = self.conns[&id].dreq(self.random.next(), &[]);
            self.send_once(id, &dreq);
            return self.disconnected(now, id, Disconnect::TimedOut, Vec::new());
        }
        if let Some(conn) = self.conns.get_mut(&id) {
            conn.silences = silences;
        }
        self.ask_later(now, id);
    }

    /// Whether our queue pair `qpn` has an established connection to queue pair `remote` of `peer`. For simulations without queue pairs:
    /// this is what the queue pair would answer to [`Event::CheckPeer`].
    pub fn is_connected(&self, qpn: Qpn, peer: &Gid, remote: Qpn) -> bool {
        let conn = self.local_qpns.get(&qpn).and_then(|id| self.conns.get(id));
        conn.is_some_and(|conn| {
            let far_end = (&conn.params.path.dgid, conn.params.dest_qpn);
            conn.state == State::Established && far_end == (peer, remote)
        })
    }
}
