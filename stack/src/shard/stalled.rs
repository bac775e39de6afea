//! Stalled peers: a process at the other end of a link that is stopped (SIGSTOP, a debugger, a frozen container) or waits for a core
//! answers nothing, but is not dead.

use super::counters::Counter;
use super::env::Env;
use super::qp::Qp;
use crate::port::Stalled;

impl Env {
    /// Called when the timer of a queue pair fired. Returns whether the ACK timer continues, because the port sees that the peer takes none
    /// of the frames that wait for it ([`PortQueue::stalled`](crate::port::PortQueue::stalled)).
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
