//! Round-trip times of peers: the shard times one packet at a time, and the peer's host keeps the result ([`Rtt`](crate::proto::rtt::Rtt)).

use super::env::Env;
use super::qp::Qp;

impl Env {
    /// Starts to time the packet that a queue pair has just sent, if it is of a message and requests an acknowledgement.
    #[cold]
    pub fn time_packet(&mut self, qp: &Qp) {
        if qp.hop.is_outside()
            && let Some(psn) = qp.requester.asked_last()
        {
            self.rtt_probe.start(self.now, qp.slot, psn);
        }
    }

    /// Stops the timing of this queue pair's packet, if the packet is answered. With `good` unset the packet may be retransmitted, so the
    /// measurement is discarded.
    #[cold]
    pub fn read_rtt_probe(&mut self, qp: &Qp, good: bool) {
        if !good {
            return self.rtt_probe.stop(self.now);
        }
        if let Some(nanos) = self.rtt_probe.read(self.now, qp.requester.oldest()) {
            self.peers.hosts.note_rtt(&qp.peer, nanos);
        }
    }

    /// Discards the timing of a queue pair that forgets what it sent.
    pub fn stop_timing(&mut self, qp: &Qp) {
        if self.rtt_probe.times(qp.slot) {
            self.rtt_probe.stop(self.now);
        }
    }
}
