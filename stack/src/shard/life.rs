//! The life of a queue pair: the states that it enters, by a control call or after an error, and the actions on entry.

use super::complete::of_xrc_target;
use super::counters::Counter;
use super::cq::LaneId;
use super::env::Env;
use super::events::{EventElement, EventQueue};
use super::peer_check::check::PeerState;
use super::qp::{Cause, Qp};
use super::segments::Segments;
use crate::id::{QpState, QpType};
use crate::proto::attr::QpAttr;
use crate::proto::responder::Responder;
use crate::proto::state::{Event, Gates, internal};
use crate::proto::status::{AsyncEvent, WcOpcode, WcStatus};
use crate::proto::wqe::{RecvWqe, SendWqe};
use crate::sync::asymmetric::heavy;
use crate::sync::words::{Word, Words};

impl Qp {
    /// Publishes epoch, state and gates to posters and pollers.
    pub fn publish_word(&mut self, words: &Words) {
        self.gates = Gates::of(self.state, self.ty);
        let word = Word::new(self.epoch, self.state as u8, self.gates.bits()).watched(self.watched);
        words.store(self.index, word);
    }

    /// Raises an asynchronous event of the queue pair.
    #[cold]
    pub fn raise(&self, events: &EventQueue, event: AsyncEvent) {
        if self.rq.shadows().is_some() {
            // The owner of the target reports events of the target; a shadow is only a part of it.
            tracing::debug!(qpn = self.qpn.get(), ?event, "asynchronous event of a shadow of an XRC target");
        } else if self.ownerless {
            // A receive-only queue pair of an XRC domain has no handle through which the event could be delivered.
            tracing::warn!(qpn = self.qpn.get(), ?event, "asynchronous event of an XRC receive queue pair");
        } else {
            events.raise(event, EventElement::Qp(self.qpn));
        }
    }

    /// Notes the first packet of a connection.
    #[cold]
    pub fn establish(&mut self, events: &EventQueue) {
        self.comm_est = true;
        if self.state == QpState::Rtr {
            self.raise(events, AsyncEvent::CommEst);
        }
    }

    /// Raises SQ_DRAINED once all requests that had started have completed.
    pub fn check_drained(&mut self, events: &EventQueue) {
        if self.draining && self.requester.drained() {
            self.draining = false;
            if self.attr.en_sqd_async_notify {
                self.raise(events, AsyncEvent::SqDrained);
            }
        }
    }
}

impl Env {
    /// A completion queue of the queue pair is unusable, which makes the queue pair unusable.
    #[cold]
    pub fn end_by_overrun(&mut self, qp: &mut Qp) {
        if qp.state == QpState::Reset {
            return; // unused: the queue pair fails with its first completion
        }
        if !core::mem::replace(&mut qp.overran, true) {
            self.shared.events.raise(AsyncEvent::QpFatal, EventElement::Qp(qp.qpn));
        }
        if qp.state != QpState::Err {
            self.fail(qp, Event::Fatal, Cause::default());
        }
    }

    /// Moves the queue pair to another state because of an internal event.
    pub fn fail(&mut self, qp: &mut Qp, event: Event, cause: Cause) {
        if let Some(to) = internal(qp.state, qp.ty, event) {
            self.count_of(qp, Counter::QpErrors);
            self.enter(qp, to, cause);
        }
    }

    /// Enters a state: publishes its gates and performs the actions on entry. The caller updates the attributes.
    pub fn enter(&mut self, qp: &mut Qp, to: QpState, cause: Cause) {
        let connected = |s: QpState| !matches!(s, QpState::Reset | QpState::Init);
        self.connected -= usize::from(connected(qp.state));
        self.connected += usize::from(connected(to));
        qp.state = to;
        self.agenda.unpark(qp);
        if to == QpState::Reset {
            qp.epoch = qp.epoch.wrapping_add(1);
        }
        qp.publish_word(&self.shared.words);
        if matches!(to, QpState::Reset | QpState::Err) {
            qp.end_check(PeerState::NotConnected);
            self.drop_held(qp);
            self.stop_timing(qp);
        }
        if !self.relays.is_empty() {
            self.follow_target(qp);
        }
        match to {
            QpState::Reset => {
                self.clear(qp);
                self.peers.release(&self.shared, qp.slot);
            }
            QpState::Sqd => {
                qp.draining = true;
                qp.requester.drain();
                self.agenda.mark_ready(qp);
            }
            QpState::Err => {
                qp.draining = false;
                self.peers.release(&self.shared, qp.slot);
                // A poster publishes its request, then reads the word: it sees ERR and rings, or this flush sees the request.
                heavy();
                self.flush_queues(qp, cause);
                if qp.rq.is_shared() && qp.ty != QpType::XrcIni {
                    // The queue pair holds no entry of the shared receive queue now, and takes no more (IBA 10.3.1).
                    qp.raise(&self.shared.events, AsyncEvent::QpLastWqeReached);
                }
            }
            QpState::Sqe => {
                qp.draining = false;
                self.flush_queues(qp, cause);
            }
            QpState::Rtr | QpState::Rts => self.agenda.mark_ready(qp),
            QpState::Init => {}
        }
        self.in_flight.note(qp);
    }

    /// RESET: discards every request without a completion; pollers skip completions of the old epoch.
    fn clear(&mut self, qp: &mut Qp) {
        let sq_end = qp.sq.0.published();
        qp.requester.reset(sq_end);
        qp.responder = Responder::new();
        self.peers.hosts.leave(&mut qp.peer);
        self.release_source_port(qp);
        qp.sq_done = sq_end;
        qp.sq.0.release_to(sq_end);
        qp.rq.reset(qp.epoch);
        if qp.ty == QpType::XrcTgt {
            qp.recv_lane = LaneId::NONE; // it was the lane of the shared receive queue used last
        }
        qp.draining = false;
        (qp.comm_est, qp.slow_path, qp.ip_ids) = (false, true, None);
        qp.segments = Segments::default();
        qp.counters.set_peer(None);
        self.completions.forget_deferred(qp);
        qp.overran = false;
        qp.fault = None;
        qp.retried = None;
        qp.release_gid(&self.shared);
        let cap = qp.attr.cap;
        *qp.attr = QpAttr { cap, port_num: 1, ..Default::default() };
        self.agenda.disarm(qp);
    }

    /// ERR: completes all requests with a flush error, in order; the request that caused the error comes first, with its own status.
    pub fn flush_queues(&mut self, qp: &mut Qp, cause: Cause) {
        let mut taken = true;
        if qp.gates.has(Gates::FLUSH_SQ) {
            taken &= self.stage_successes(qp); // requests that succeeded before the failure come first
            let end = qp.sq.0.published();
            let mut status = cause.send;
            while qp.sq_done != end {
                let wqe = *SendWqe::of(qp.sq.0.slot(qp.sq_done));
                qp.sq_done = qp.sq_done.wrapping_add(1);
                if wqe.epoch == qp.epoch {
                    let status = status.take().unwrap_or(WcStatus::WrFlushErr);
                    let opcode = wqe.opcode().wc_opcode().unwrap_or(WcOpcode::Send);
                    let cqe = self.entry(qp, wqe.wr_id, status, opcode);
                    taken &= self.push(qp, qp.send_lane, cqe);
                }
            }
            if qp.state == QpState::Sqe {
                qp.requester.forget(end);
            } else {
                qp.requester.reset(end);
            }
        }
        if qp.gates.has(Gates::FLUSH_RQ) {
            if qp.deferred.is_some() {
                self.release_all_receives(qp);
            }
            if qp.responder.holds_receive() {
                let status = cause.recv.unwrap_or(WcStatus::WrFlushErr);
                let mut cqe = self.entry(qp, RecvWqe::of(qp.rq.current()).wr_id, status, WcOpcode::Recv);
                if qp.ty == QpType::XrcTgt {
                    cqe = of_xrc_target(qp, cqe);
                }
                taken &= self.push(qp, qp.recv_lane, cqe);
            }
            qp.responder = Responder::new();
            while let Some(wqe) = qp.rq.take_to_flush() {
                let cqe = self.entry(qp, wqe.wr_id, WcStatus::WrFlushErr, WcOpcode::Recv);
                taken &= self.push(qp, qp.recv_lane, cqe);
            }
        }
        if !taken {
            self.end_by_overrun(qp);
        }
        self.completions.mark_sent(qp);
        self.completions.mark_received(qp);
    }
}
