//! The UDP source port of a connection, by which networks choose its path. It has one of its own where the port can have several
//! ([`take_source_port`](crate::port::PortQueue::take_source_port)).
//!
//! A stateful firewall that lets in only what was asked for from inside takes packets from such a port for something new, and drops
//! them. It lets those between port 4791 and port 4791 through, once one has left. So a connection to which nothing comes back goes
//! on from port 4791, and its peer, which sees that, does the same.

use super::counters::Counter;
use super::env::Env;
use super::qp::{Qp, SourcePort};
use crate::wire::UDP_PORT;

impl Env {
    /// A queue pair has a new path: its packets leave from a source port of their own. Those of an unreliable one do so only if the
    /// program gave a flow label, because nobody notices if they do not arrive.
    pub fn take_source_port(&mut self, qp: &mut Qp) {
        let labelled = qp.attr.ah_attr.grh.is_some_and(|grh| grh.flow_label != 0);
        if qp.hop.is_inside() || qp.is_datagram() || qp.is_unreliable() && !labelled {
            return;
        }
        if !labelled && self.peers.hosts.wants_well_known_port(&qp.peer) {
            return qp.template.set_src_port(UDP_PORT);
        }
        let port = self.outbox.queue.take_source_port(qp.template.src_port(), labelled);
        qp.template.set_src_port(port);
        qp.source_port = SourcePort::Taken;
    }

    /// The queue pair needs its source port no longer.
    pub fn release_source_port(&mut self, qp: &mut Qp) {
        if qp.source_port == SourcePort::Taken {
            self.outbox.queue.release_source_port(qp.template.src_port());
        }
        qp.source_port = SourcePort::Given;
    }

    /// The ACK timer of a queue pair expired. If nothing has come back since it was connected, its packets leave from port 4791 from
    /// now on.
    #[cold]
    pub fn doubt_source_port(&mut self, qp: &mut Qp) {
        if !qp.comm_est && qp.requester.retried_twice() && self.leave_source_port(qp) {
            qp.source_port = SourcePort::Left;
        }
    }

    /// The first packet of the peer is here, and it answers something.
    #[cold]
    pub fn learn_of_source_port(&mut self, qp: &Qp) {
        if self.peers.hosts.note_source_port(&qp.peer, qp.source_port != SourcePort::Left) {
            tracing::warn!(
                "{} answered no packet before packets left from UDP port {UDP_PORT}: a firewall seems to drop those from other ports. \
                 Now connections share one path. Let UDP port {UDP_PORT} in from every port, at both ends, or say that it is to be so \
                 (udp:flows=0)",
                qp.template.dst().to_ip()
            );
        }
    }

    /// Packets of the queue pair leave from port 4791 from now on, as those of its peer do. Whether they left from another one.
    #[cold]
    pub fn leave_source_port(&mut self, qp: &mut Qp) -> bool {
        let leaves = qp.source_port == SourcePort::Taken && qp.template.src_port() != UDP_PORT;
        if leaves {
            self.count_of(qp, Counter::SourcePortsLeft);
            self.release_source_port(qp);
            qp.template.set_src_port(UDP_PORT);
        }
        leaves
    }
}
