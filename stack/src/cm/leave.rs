//! Ending all connections when our process ends, and the connection of a peer process that has ended, if the caller knows of it
//! ([`Machine::peer_ended`]).
//!
//! A DREQ is answered by the peer's connection manager alone, without its program, and therefore at once. So a process that ends
//! retransmits its DREQs first after a short time, then at growing intervals, up to the largest number of retries of connection management.

use core::time::Duration;

use super::conn::{Conn, State};
use super::event::{ConnId, Disconnect, Send};
use super::machine::{Machine, REJ_OTHER, Timed};
use crate::id::Qpn;
use crate::time::Instant;

/// Interval between the first two transmissions of a DREQ.
const FIRST: Duration = Duration::from_millis(20);
/// Longest interval between two transmissions of a DREQ.
pub(super) const LONGEST: Duration = Duration::from_secs(1);
/// How often a DREQ is retransmitted: the largest number that fits into a REQ.
const RETRIES: u8 = 15;

impl Machine {
    /// To call when the process ends: disconnects every connection that is established, here or possibly only at the peer, and calls
    /// [`hurry`](Self::hurry).
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

    /// Shortens the retransmission intervals of all DREQs that are not answered yet. [`Machine::dreqs`] becomes 0 when every peer has
    /// answered or about eleven seconds have passed.
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

    /// Ends the connection of a queue pair whose peer process has ended without a DREQ. An established connection ends as
    /// [`Disconnect::PeerEnded`]; one that is being established, as [`Event::Unreachable`](super::Event::Unreachable). Does nothing if the
    /// queue pair has no connection.
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

    /// Returns a DREQ for an established connection, without changing its state; `None` if it is not established. For a process that may
    /// have no time for more than sending it.
    pub fn farewell(&mut self, id: ConnId) -> Option<Send> {
        let tid = self.random.next();
        let conn = self.conns.get(&id).filter(|conn| conn.state == State::Established)?;
        Some(Send { mad: conn.dreq(tid, &[]).encode(), path: conn.mad_path })
    }

    /// How many DREQs are not answered yet.
    pub fn dreqs(&self) -> usize {
        self.dreqs.len()
    }
}

/// How long a DREQ of a process that ends waits for its answer, over all retransmissions.
fn longest_wait() -> Duration {
    let intervals = (0..=u32::from(RETRIES)).map(|n| (FIRST * (1 << n)).min(LONGEST));
    intervals.sum()
}
