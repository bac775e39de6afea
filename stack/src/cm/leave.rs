//! The end of a process: its connections end with it, and their peers are told. And that of a peer's, where the caller knows of it
//! ([`Machine::peer_ended`]).
//!
//! Nothing but the peer's connection management has to answer a DREQ, and it does so at once: so a process that ends repeats its
//! DREQs after a short time, then less and less often, as often as connection management repeats anything.

use core::time::Duration;

use super::conn::{Conn, State};
use super::event::{ConnId, Disconnect, Send};
use super::machine::{Machine, REJ_OTHER, Timed};
use crate::id::Qpn;
use crate::time::Instant;

/// Between the first two DREQs.
const FIRST: Duration = Duration::from_millis(20);
/// Between two DREQs, at most.
pub(super) const LONGEST: Duration = Duration::from_secs(1);
/// How often a DREQ is repeated: the most that a REQ can name.
const RETRIES: u8 = 15;

impl Machine {
    /// For a process that ends: disconnects what is established or may be so at the peer, and [hurries](Self::hurry).
    pub fn leave(&mut self, now: Instant) {
        let ends = |conn: &Conn| matches!(conn.state, State::Established | State::RepSent);
        let ending: Vec<ConnId> =
            self.conns.iter().filter(|(_, conn)| ends(conn)).map(|(id, _)| *id).collect();
        for id in ending {
            if let Some(conn) = self.conns.get_mut(&id) {
                conn.hurries = true;
                (conn.interval, conn.retries, conn.max_wait) = (FIRST, RETRIES, longest_wait());
            }
            self.send_dreq(now, id, Disconnect::Agreed, &[]);
        }
        self.hurry(now);
    }

    /// Sends DREQs that are not answered again, more often than their programs chose: [`Machine::dreqs`] is 0 when every peer has
    /// answered, or was silent for about eleven seconds.
    pub fn hurry(&mut self, now: Instant) {
        let slow = |id: &&ConnId| self.conns.get(id).is_some_and(|conn| !conn.hurries);
        let slow: Vec<ConnId> = self.dreqs.iter().filter(slow).copied().collect();
        for id in slow {
            let Some(conn) = self.conns.get_mut(&id) else { continue };
            conn.hurries = true;
            (conn.interval, conn.left) = (FIRST, RETRIES);
            conn.deadline = now.after(longest_wait());
            self.request(now, Timed::Conn(id));
        }
    }

    /// The process at the other end of a queue pair's connection has ended, and tells nobody: the connection is over as if it had, and
    /// one that was about to be established comes to nothing. Does nothing where the queue pair has no connection.
    pub fn peer_ended(&mut self, now: Instant, qpn: Qpn) {
        let Some(id) = self.local_qpns.get(&qpn).copied() else { return };
        match self.conns[&id].state {
            State::Established => self.disconnected(now, id, Disconnect::PeerEnded, Vec::new()),
            State::DreqSent => {
                let how = self.conns[&id].ending;
                self.disconnected(now, id, how, Vec::new());
            }
            State::RepSent | State::RepRcvd => self.unreachable(now, id, REJ_OTHER, true),
            State::ReqSent | State::ReqRcvd | State::TimeWait => {}
        }
    }

    /// The DREQ of an established connection, for a process that may get to send one and nothing more. Nothing changes here.
    pub fn farewell(&mut self, id: ConnId) -> Option<Send> {
        let tid = self.random.next();
        let conn = self.conns.get(&id).filter(|conn| conn.state == State::Established)?;
        Some(Send { mad: conn.dreq(tid, &[]).encode(), path: conn.mad_path })
    }

    /// DREQs that were sent and are not answered.
    pub fn dreqs(&self) -> usize {
        self.dreqs.len()
    }
}

/// How long a DREQ of a process that ends waits for its answer, with all its repetitions.
fn longest_wait() -> Duration {
    let intervals = (0..=u32::from(RETRIES)).map(|n| (FIRST * (1 << n)).min(LONGEST));
    intervals.sum()
}
