//! Connections that somebody says their peer does not have any more: the peer is asked before they end.
//!
//! A new REQ with the ids or the queue pair of an established connection, or a REP with its queue pair, comes from a peer that
//! restarted (IBA 12.9.8.3.1), or from anybody who can send from the peer's address: over UDP, any user of the peer's host. So
//! the message is refused as stale in any case, and the connection ends only if the peer's queue pair does not answer. Who asks is
//! the caller of the machine, as [`Event::CheckPeer`] says; [`Machine::peer_checked`] takes the answer. A connection is asked once at
//! a time; more than [`Limits`](super::Limits) allow at once, for a peer's address or in all, are not asked, and stay.

use std::collections::BTreeMap;

use super::conn::State;
use super::counter::Counter;
use super::event::{ConnId, Event};
use super::machine::Machine;
use crate::id::{Gid, Qpn};
use crate::time::Instant;

/// How many connections are being asked, by the peer's address and in all.
#[derive(Default)]
pub(super) struct Doubts {
    by_peer: BTreeMap<Gid, usize>,
    all: usize,
}

impl Doubts {
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
        let limits = &self.config.limits;
        let peer = conn.mad_path.dgid;
        if conn.doubted || !self.doubts.begin(peer, limits.checks_of_peer, limits.checks) {
            return;
        }
        conn.doubted = true;
        let (path, qpn, remote_qpn) = (conn.params.path, conn.params.qpn, conn.params.dest_qpn);
        self.counters.count(Counter::PeersChecked);
        self.push_event(Event::CheckPeer { id, path, qpn, remote_qpn });
    }

    /// What came of [`Event::CheckPeer`]: the peer's queue pair answered, so that the connection stays, or it did not (or cannot be
    /// asked), so that it ends as [`Disconnect::Stale`](super::Disconnect::Stale). Does nothing for a connection that has ended
    /// meanwhile.
    pub fn peer_checked(&mut self, now: Instant, id: ConnId, answered: bool) {
        let Some(conn) = self.conns.get_mut(&id).filter(|conn| conn.doubted) else { return };
        conn.doubted = false;
        self.doubts.end(&conn.mad_path.dgid);
        if answered {
            self.counters.count(Counter::PeersAnswered);
        } else {
            self.forgotten(now, id);
        }
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
