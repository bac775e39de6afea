//! Routes of a port that come and go ([`Routes::route_to`](crate::port::Routes::route_to)): connections that wait for theirs, those whose
//! route has ended with the process at its end, and those for which there is none.

use super::counters::Counter;
use super::env::Env;
use super::qp::{Hop, Qp};
use super::segments::{Segments, named};
use super::state::Shard;
use crate::id::QpType;
use crate::proto::recovery::RetryCause;
use crate::proto::status::WcStatus;

impl Shard {
    /// Queue pairs that wait for their route ask for it.
    #[cold]
    pub(super) fn find_routes(&mut self) {
        for slot in self.env.peers.unrouted.take_some() {
            self.visit(slot);
        }
    }

    /// Takes routes that have ended from their queue pairs. A link ends seldom, so this may look at every queue pair.
    #[cold]
    pub(super) fn end_routes(&mut self) {
        while let Some(route) = self.env.outbox.next_ended() {
            self.env.flush();
            for qp in self.qps.iter_mut().filter(|qp| qp.hop == Hop::Known(route)) {
                self.env.lose_route(qp);
            }
        }
    }
}

impl Env {
    /// The first packet of a connection has arrived in this frame: its sender goes on with segments as it begins.
    #[cold]
    pub fn adopt_segment(&mut self, qp: &mut Qp, frame: &[u8]) {
        let Some(segment) = named(frame).filter(|_| qp.ty == QpType::Rc) else { return };
        // The peer has found a link: so there is one.
        if qp.hop.is_bounded() {
            qp.hop = Hop::Pending;
            self.resolve(qp);
        }
        // The way back may be known later, and the frame has come by some link.
        let carried = self.outbox.segment_on(qp.hop.route()).or_else(|| self.outbox.longest_segment());
        if qp.segments.adopt(segment, carried) {
            qp.responder.configure(&qp.responder_config());
        }
    }

    /// The process of the peer has ended. What was requested of it fails at once; a queue pair that waits for nothing stays as it is, as
    /// over a network, and looks for its peer with the next request, which fails as soon as nobody is found. Connection management tells the
    /// program of either.
    fn lose_route(&mut self, qp: &mut Qp) {
        if !qp.is_datagram() {
            self.shared.ended_peers.add(qp.qpn);
        }
        qp.hop = Hop::Pending;
        qp.segments = Segments::default();
        self.agenda.unpark(qp);
        if !qp.is_unreliable() && qp.sq_done != qp.sq.0.published() {
            self.fail_unreachable(qp, RetryCause::PeerEnded);
        }
    }

    /// Nothing that a queue pair sends can reach its peer, for this reason: what it has requested fails, without retries.
    #[cold]
    pub(super) fn fail_unreachable(&mut self, qp: &mut Qp, cause: RetryCause) {
        qp.retried = Some(cause);
        let counter = if cause == RetryCause::PeerEnded { Counter::PeersEnded } else { Counter::Unreachable };
        self.count_of(qp, counter);
        self.fail_send(qp, WcStatus::RetryExcErr);
    }
}
