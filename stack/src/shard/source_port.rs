//! The UDP source port of a connection, from which networks choose its path (ECMP). A connection has a source port of its own where the
//! port can have several ([`take_source_port`](crate::port::PortQueue::take_source_port)).
//!
//! A stateful firewall that admits only replies to traffic from inside takes packets from such a source port for a new flow, and drops
//! them. It admits packets between port 4791 and port 4791, once one has left. So a connection without any answer falls back to port 4791
//! after [`SOURCE_PORT_TRY`], however many retries it has, and its peer, which sees that, does the same.

use super::counters::Counter;
use super::env::Env;
use super::qp::{Qp, SourcePort};
use crate::config::SOURCE_PORT_TRY;
use crate::port::FlowKind;
use crate::wire::UDP_PORT;

impl Env {
    /// Gives a queue pair with a new path a source port of its own. An unreliable queue pair gets one only if the program set a flow
    /// label, because a loss of all its packets would go unnoticed.
    pub fn take_source_port(&mut self, qp: &mut Qp) {
        let labelled = qp.attr.ah_attr.grh.is_some_and(|grh| grh.flow_label != 0);
        let kind = match () {
            () if labelled => FlowKind::Labelled,
            () if qp.is_unreliable() || self.shared.gids.contains(&qp.template.dst()) => FlowKind::Shared,
            () if self.peers.hosts.wants_well_known_port(&qp.peer) => {
                return qp.template.set_src_port(UDP_PORT);
            }
            () => FlowKind::Own,
        };
        let hint = qp.template.src_port();
        let port = self.outbox.queue.take_source_port(hint, kind);
        qp.template.set_src_port(port);
        qp.source_port = match kind {
            FlowKind::Shared => SourcePort::Given,
            // Only a port that the host chose itself is in doubt: the host can send from others.
            FlowKind::Own if port != hint && port != UDP_PORT => SourcePort::Taken,
            _ => SourcePort::Answered,
        };
    }

    /// Releases the source port of a queue pair.
    pub fn release_source_port(&mut self, qp: &mut Qp) {
        if qp.source_port == SourcePort::Given {
            return;
        }
        if qp.source_port.is_taken() {
            self.outbox.queue.release_source_port(qp.template.src_port());
        }
        self.tries.remove(&qp.slot);
        qp.source_port = SourcePort::Given;
    }

    /// Packets are about to leave from a taken source port for the first time: starts to wait for an answer.
    #[cold]
    pub fn try_source_port(&mut self, qp: &mut Qp) {
        qp.source_port = SourcePort::Tried;
        self.tries.insert(qp.slot, self.now.after(SOURCE_PORT_TRY));
        self.watch_source_port(qp);
    }

    /// The timer of the queue pair fired: gives up a source port that was tried for too long, and repeats its packets from port 4791.
    #[cold]
    pub fn watch_source_port(&mut self, qp: &mut Qp) {
        if qp.source_port != SourcePort::Tried {
            return;
        }
        if let Some(at) = self.tries.get(&qp.slot).copied().filter(|at| self.now < *at) {
            return self.agenda.wake_at(qp, at);
        }
        self.repeat_from_well_known_port(qp);
    }

    /// Repeats all packets from port 4791: nothing was answered, and no retry is left or the time limit has passed.
    #[cold]
    pub fn repeat_from_well_known_port(&mut self, qp: &mut Qp) {
        self.leave_source_port(qp);
        qp.source_port = SourcePort::FellBack;
        qp.requester.repeat();
        self.agenda.mark_ready(qp);
    }

    /// Notes that the peer answered something that the queue pair sent.
    #[cold]
    pub fn prove_source_port(&mut self, qp: &mut Qp) {
        let own = match qp.source_port {
            SourcePort::Tried => true,
            SourcePort::FellBack => false,
            _ => return,
        };
        self.tries.remove(&qp.slot);
        qp.source_port = if own { SourcePort::Answered } else { SourcePort::Given };
        if self.peers.hosts.note_source_port(&qp.peer, own) {
            tracing::warn!(
                "{} answered nothing before packets left from UDP port {UDP_PORT}: a firewall seems to drop those from other ports. \
                 Now connections share one path. Let UDP port {UDP_PORT} in from every port, at both ends, or say that it is to be so \
                 (udp:flows=0)",
                qp.template.dst().to_ip()
            );
        }
    }

    /// Falls back to port 4791, because the peer's packets come from there: packets from other ports do not arrive.
    #[cold]
    pub fn leave_source_port(&mut self, qp: &mut Qp) {
        if qp.source_port.is_taken() && qp.template.src_port() != UDP_PORT {
            self.count_of(qp, Counter::SourcePortsLeft);
            self.release_source_port(qp);
            qp.template.set_src_port(UDP_PORT);
        }
    }
}
