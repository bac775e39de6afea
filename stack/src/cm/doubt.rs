//! Asking peers whether they still have a connection: where somebody says that they have not, before it ends; and where nobody has asked
//! for a while.
//!
//! A new REQ with the ids or the queue pair of an established connection, or a REP with its queue pair, comes from a peer that
//! restarted (IBA 12.9.8.3.1), or from anybody who can send from the peer's address: over UDP, any user of the peer's host. So
//! the message is refused as stale in any case, and the connection ends only if the peer's queue pair does not answer. Who asks is
//! the caller of the machine, as [`Event::CheckPeer`] says; [`Machine::peer_checked`] takes the answer. A connection is asked once at
//! a time; more than [`Limits`](super::Limits) allow at once, for a peer's address or in all, are not asked, and stay.
//!
//! A peer that goes without a word (a crash, a cut cable) is noticed by keep-alive. One that is stopped for a while answers nothing
//! either: so it is asked several times before its connection ends.

use std::collections::BTreeMap;

use super::conn::{Asked, State};
use super::counter::Counter;
use super::event::{ConnId, Disconnect, Event, PeerAnswer};
use super::machine::Machine;
use crate::id::{Gid, Qpn};
use crate::time::Instant;

/// How often a peer may answer nothing to a keep-alive; after the first time it is asked again sooner, by this factor.
const SILENCES: u8 = 3;
const SOONER: u32 = 3;
/// Where too many are being asked, one waits for so much of its time.
const NO_ROOM: u32 = 100;

/// How many connections are being asked, by the peer's address and in all.
#[derive(Default)]
pub(super) struct Questions {
    by_peer: BTreeMap<Gid, usize>,
    all: usize,
}

impl Questions {
    /// One more, unless as many are there already.
    fn begin(&mut self, peer: Gid, most_of_peer: usize, most: usize) -> bool {
        let of_peer = self.by_peer.get(&peer).copied().unwrap_or_default();
        if of_peer >= most_of_peer || self.all >= most {
            return false;
        }
        self.by_peer.insert(peer, of_peer + 1);
        self.all += 1;
        true
    }
    /// One less.
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
    /// A message says that the peer no longer has this connection.
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

    /// Has the peer asked, unless too many are; returns whether it is.
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

    /// The connection is established: its peer is asked after a while.
    pub(super) fn ask_later(&mut self, now: Instant, id: ConnId) {
        let Some(conn) = self.conns.get(&id) else { return };
        let wait = conn.keep_alive.map(|time| if conn.silences == 0 { time } else { time / SOONER });
        self.arm(id, wait.map_or(Instant::FAR, |wait| now.after(wait)));
    }

    /// Nobody has asked the peer for a while.
    pub(super) fn keep_alive(&mut self, now: Instant, id: ConnId) {
        self.ask_later(now, id);
        let Some(conn) = self.conns.get(&id).filter(|conn| conn.asked.is_none()) else { return };
        if let Some(time) = conn.keep_alive
            && !self.ask(id, Asked::ToKeepAlive)
        {
            self.arm(id, now.after(time / NO_ROOM));
        }
    }

    /// What came of [`Event::CheckPeer`]: the peer's queue pair answered, so that the connection stays, or it did not. Then one that
    /// somebody said is gone ends as [`Disconnect::Stale`], also if the peer could not be asked; one whose peer was asked because
    /// nobody had for a while ends as [`Disconnect::TimedOut`] when the peer has answered nothing several times. Does nothing for a
    /// connection that has ended meanwhile.
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
    /// The peer has answered nothing so many times in a row. At last the connection is over; in case only the way here is broken, the peer
    /// is told.
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

    /// Whether our queue pair `qpn` is in an established connection with this queue pair of that peer. For worlds without queue pairs,
    /// as simulations are: what the queue pair itself would answer to [`Event::CheckPeer`].
    pub fn is_connected(&self, qpn: Qpn, peer: &Gid, remote: Qpn) -> bool {
        let conn = self.local_qpns.get(&qpn).and_then(|id| self.conns.get(id));
        conn.is_some_and(|conn| {
            let far_end = (&conn.params.path.dgid, conn.params.dest_qpn);
            conn.state == State::Established && far_end == (peer, remote)
        })
    }
}
