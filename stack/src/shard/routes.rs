//! Routes of a port that come and go ([`Routes::route_to`](crate::port::Routes::route_to)): connections that wait for a route, connections
//! whose route has ended with the process at its end, and connections for which no route exists.

use super::counters::Counter;
use super::env::Env;
use super::qp::{Hop, Qp};
use super::segments::{Segments, named};
use super::state::Shard;
use crate::id::QpType;
use crate::proto::recovery::RetryCause;
use crate::proto::status::WcStatus;

impl Shard {
    /// Visits queue pairs that wait for their route: each requests it again.
    #[cold]
    pub(super) fn find_routes(&mut self) {
        for slot in self.env.peers.unrouted.take_some() {
            self.visit(slot);
        }
    }

    /// Takes ended routes from their queue pairs. A link ends seldom, so this may visit every queue pair.
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
    /// Adopts the payload size that the peer chose, from the first packet of a connection: the peer keeps the size that it begins with.
    #[cold]
    pub fn adopt_segment(&mut self, qp: &mut Qp, frame: &[u8]) {
        let Some(segment) = named(frame).filter(|_| qp.ty == QpType::Rc) else { return };
        // The peer has found a link to this process: so a link exists.
        if qp.hop.is_bounded() {
            qp.hop = Hop::Pending;
            self.resolve(qp);
        }
        // The route back may be known only later, but the frame has come by some link.
        let carried = self.outbox.segment_on(qp.hop.route()).or_else(|| self.outbox.longest_segment());
        if qp.segments.adopt(segment, carried) {
            qp.responder.configure(&qp.responder_config());
        }
    }

    /// The process of the peer has ended. Outstanding requests fail at once. A queue pair without outstanding requests keeps its state, as
    /// over a network, and looks up its peer with the next request, which fails as soon as no process has the peer's number. Connection
    /// management notifies the program in either case.
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

    /// The queue pair cannot reach its peer, for this reason: its outstanding requests fail, without retries.
    #[cold]
    pub(super) fn fail_unreachable(&mut self, qp: &mut Qp, cause: RetryCause) {
        qp.retried = Some(cause);
        let counter = if cause == RetryCause::PeerEnded { Counter::PeersEnded } else { Counter::Unreachable };
        self.count_of(qp, counter);
        self.fail_send(qp, WcStatus::RetryExcErr);
    }
}
