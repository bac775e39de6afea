//! How long peers take to answer: one packet of the shard is timed after the other, and the host at the other end remembers what it
//! took ([`Rtt`](crate::proto::rtt::Rtt)).

use super::env::Env;
use super::qp::Qp;

impl Env {
    /// Times the packet that a queue pair has just sent, if it is of a message and requests an acknowledgement.
    #[cold]
    pub fn time_packet(&mut self, qp: &Qp) {
        if qp.hop.is_outside()
            && let Some(psn) = qp.requester.asked_last()
        {
            self.stopwatch.start(self.now, qp.slot, psn);
        }
    }

    /// The packet that is timed, of this queue pair, may be answered. Unless all is well (`good`) it may go out again.
    #[cold]
    pub fn read_stopwatch(&mut self, qp: &Qp, good: bool) {
        if !good {
            return self.stopwatch.stop(self.now);
        }
        if let Some(nanos) = self.stopwatch.read(self.now, qp.requester.oldest()) {
            self.peers.hosts.note_rtt(&qp.peer, nanos);
        }
    }

    /// A queue pair forgets what it sent.
    pub fn stop_timing(&mut self, qp: &Qp) {
        if self.stopwatch.times(qp.slot) {
            self.stopwatch.stop(self.now);
        }
    }
}
