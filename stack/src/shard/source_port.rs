//! The UDP source port of a connection, by which networks choose its path. It has one of its own where the port can have several
//! ([`take_source_port`](crate::port::PortQueue::take_source_port)).
//!
//! A stateful firewall that lets in only what was asked for from inside takes packets from such a port for something new, and drops
//! them. It lets those between port 4791 and port 4791 through, once one has left. So a connection of which nothing is answered goes on
//! from port 4791 after [`SOURCE_PORT_TRY`], whatever its own retries are, and its peer, which sees that, does the same.

use super::counters::Counter;
use super::env::Env;
use super::qp::{Qp, SourcePort};
use crate::config::SOURCE_PORT_TRY;
use crate::port::FlowKind;
use crate::wire::UDP_PORT;

impl Env {
    /// A queue pair has a new path: its packets leave from a source port of their own. Those of an unreliable one do so only if the
    /// program gave a flow label, because nobody notices if they do not arrive.
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
            // Only a port that is the host's own choice is doubted: there are others to send from.
            FlowKind::Own if port != hint && port != UDP_PORT => SourcePort::Taken,
            _ => SourcePort::Answered,
        };
    }

    /// The queue pair needs its source port no longer.
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

    /// Packets are about to leave from a source port that was taken, for the first time: it is watched.
    #[cold]
    pub fn try_source_port(&mut self, qp: &mut Qp) {
        qp.source_port = SourcePort::Tried;
        self.tries.insert(qp.slot, self.now.after(SOURCE_PORT_TRY));
        self.watch_source_port(qp);
    }

    /// The queue pair was woken: leaves a source port that was tried for long, and repeats from port 4791 what left from it.
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

    /// Nothing was answered, and no retry is left; or it is so for long: what left is repeated from port 4791.
    #[cold]
    pub fn repeat_from_well_known_port(&mut self, qp: &mut Qp) {
        self.leave_source_port(qp);
        qp.source_port = SourcePort::Left;
        qp.requester.repeat();
        self.agenda.mark_ready(qp);
    }

    /// Something that the queue pair sent was answered.
    #[cold]
    pub fn prove_source_port(&mut self, qp: &mut Qp) {
        let own = match qp.source_port {
            SourcePort::Tried => true,
            SourcePort::Left => false,
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

    /// Packets of the queue pair leave from port 4791 from now on: those of its peer do, because others do not arrive.
    #[cold]
    pub fn leave_source_port(&mut self, qp: &mut Qp) {
        if qp.source_port.is_taken() && qp.template.src_port() != UDP_PORT {
            self.count_of(qp, Counter::SourcePortsLeft);
            self.release_source_port(qp);
            qp.template.set_src_port(UDP_PORT);
        }
    }
}
