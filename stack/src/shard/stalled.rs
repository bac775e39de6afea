//! Peers that do not run: a process at the other end of a link that is stopped (SIGSTOP, a debugger, a frozen container) or waits for a
//! core answers nothing, and is not dead.

use super::counters::Counter;
use super::env::Env;
use super::qp::Qp;
use crate::port::Stalled;

impl Env {
    /// The time of a queue pair has come. Whether that is its ACK timer, which goes on: the port sees that the peer takes nothing of
    /// what waits for it ([`PortQueue::stalled`](crate::port::PortQueue::stalled)).
    pub fn wait_for_stalled_peer(&mut self, qp: &mut Qp) -> bool {
        if !qp.requester.is_overdue(self.now) || !qp.hop.is_outside() {
            return false;
        }
        match self.outbox.queue.stalled(qp.hop.route(), self.now) {
            Stalled::Yes(wait) => {
                qp.requester.wait_for_peer(self.now, wait);
                self.count_of(qp, Counter::PeerStalls);
                true
            }
            Stalled::Perhaps(wait) => qp.requester.look_at_peer(self.now, wait),
            Stalled::No => false,
        }
    }
}
