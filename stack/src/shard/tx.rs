//! Sending: who builds packets in a turn, where they wait, and what follows when no more can be built. How one is built is
//! [`build`](super::build)'s.

use super::Shard;
use super::build::{
    Built, End, Requests, Responses, answer_header, build_requests, fill_response, readable, response_ext,
    stamp,
};
use super::copy::Memory;
use super::counters::Counter;
use super::env::Env;
use super::lookahead::GROUP;
use super::qp::{Qp, Route};
use crate::config::{LONG_PACKET, QP_TX_BUDGET, READY_BUDGET};
use crate::id::Psn;
use crate::port::{Frame, TxBurst};
use crate::proto::completer::RetryCause;
use crate::proto::requester::Idle;
use crate::proto::responder::Answered;
use crate::proto::status::WcStatus;
use crate::proto::tables::Syndrome;
use crate::wire::{Discard, Ext, Opcode};

/// Why a queue pair stopped sending for this turn.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Stop {
    /// Nothing left to send until something happens.
    Done,
    /// Out of budget, frames or room: it goes on next turn.
    More,
}

impl Shard {
    /// Builds the answers that are due: each queue pair one acknowledgement, or a share of READ responses.
    pub(super) fn send_answers(&mut self) {
        for _ in 0..self.env.agenda.answering.len() {
            let waiting = self.env.agenda.answering.len();
            let room = self.env.outbox.answers.frames.remaining_capacity();
            if room == 0 {
                break;
            }
            let Some(slot) = self.env.agenda.answering.pop_front() else { break };
            let Some(qp) = self.qps.get(slot).filter(|qp| qp.in_answering) else { continue };
            qp.in_answering = false;
            let budget = QP_TX_BUDGET.min(room.saturating_sub(waiting - 1).max(1));
            if self.env.answer(qp, budget) == Stop::More {
                self.env.agenda.mark_answering(qp);
            }
            if qp.deferred.is_some() {
                self.env.release_receives(qp);
            }
        }
    }

    /// Builds request packets of queue pairs that have some, in turn.
    pub(super) fn send_requests(&mut self) {
        for n in 0..self.env.agenda.ready.len().min(READY_BUDGET) {
            if self.env.outbox.requests.frames.is_full() {
                break;
            }
            if self.lookahead.is_on() && n.is_multiple_of(GROUP) {
                self.prefetch_ready(n == 0);
            }
            let Some(slot) = self.env.agenda.ready.pop_front() else { break };
            let Some(qp) = self.qps.get(slot).filter(|qp| qp.in_ready) else { continue };
            qp.in_ready = false;
            self.env.agenda.corrections.sent.push(slot);
            if self.env.request(qp) == Stop::More {
                self.env.agenda.mark_ready(qp);
            }
            self.env.agenda.arm(qp);
        }
    }
}

impl Env {
    fn answer(&mut self, qp: &mut Qp, budget: usize) -> Stop {
        let mut stamped = self.outbox.answers.frames.len();
        let stop = self.build_answers(qp, budget, &mut stamped);
        stamp(&qp.template, &mut self.outbox.answers.frames[stamped..]);
        stop
    }

    /// Builds answers. Those in the backlog are stamped up to `stamped`.
    #[inline]
    fn build_answers(&mut self, qp: &mut Qp, budget: usize, stamped: &mut usize) -> Stop {
        if !qp.is_reachable() {
            self.resolve(qp);
            if !qp.is_reachable() {
                return Stop::Done; // the peer will ask again; resolving wakes nobody for an answer
            }
        }
        let mut budget = budget - self.respond(qp, budget);
        while budget > 0 {
            if !qp.responder.has_answer() {
                return Stop::Done;
            }
            let Some(mut frame) = self.outbox.take_frame() else {
                self.discard_of(qp, Discard::NoBuffer);
                return Stop::More;
            };
            let mut answer = None;
            if qp.long_answers
                && qp.route == Route::Known
                && self.outbox.backlog() == 0
                && let Some((built, other)) = self.respond_in_place(qp, budget)
            {
                budget -= built;
                if other.is_none() {
                    self.outbox.keep_frame(frame);
                    return if qp.responder.has_answer() { Stop::More } else { Stop::Done };
                }
                answer = other;
            }
            let Some(answer) = answer.or_else(|| qp.responder.poll_transmit(qp.credits())) else {
                self.outbox.keep_frame(frame);
                return Stop::Done;
            };
            budget = budget.saturating_sub(1);
            match answer {
                Answered::Ack { psn, aeth, fatal } => {
                    match aeth.syndrome >> 5 {
                        0 => self.count(Counter::AcksSent),
                        _ => self.count_nak_sent(qp, aeth.syndrome),
                    }
                    self.build(qp, &mut frame, Opcode::RC_ACKNOWLEDGE, psn, Ext::Aeth(aeth));
                    self.dispatch(qp, frame, false, stamped);
                    if let Some(fault) = fatal {
                        self.end_by_fault(qp, fault);
                        return Stop::Done;
                    }
                }
                Answered::Atomic { psn, aeth, original } => {
                    self.count(Counter::ResponsesSent);
                    let ext = Ext::AtomicAck(aeth, original);
                    self.build(qp, &mut frame, Opcode::RC_ATOMIC_ACKNOWLEDGE, psn, ext);
                    self.dispatch(qp, frame, false, stamped);
                }
                Answered::Read { psn, opcode, aeth, rkey, va, len, pd } => {
                    let Ok(place) = readable(&self.shared.mrs, qp.qpn, pd, rkey, va, len) else {
                        self.outbox.keep_frame(frame);
                        if !qp.responder.refuse_read(psn) {
                            self.discard_of(qp, Discard::Duplicate);
                        }
                        continue;
                    };
                    self.count(Counter::ResponsesSent);
                    let ext = response_ext(opcode, aeth);
                    let header = answer_header(qp, opcode, psn, ext, len, self.outbox.next_ip_id());
                    let (len, finished) = fill_response(&qp.template, &header, place, frame.buffer_mut());
                    frame.set_len(len);
                    qp.long_answers = len >= LONG_PACKET;
                    self.dispatch(qp, frame, finished, stamped);
                }
            }
        }
        if qp.responder.has_answer() { Stop::More } else { Stop::Done }
    }

    /// Builds up to `most` READ responses in the port's own memory, as many as there is room for. Returns how many, and the
    /// answer that came up and is none, or is one whose key is not good any more; `None` where the port has no such memory.
    #[inline(never)]
    fn respond_in_place(&mut self, qp: &mut Qp, most: usize) -> Option<(usize, Option<Answered>)> {
        let mut builder = Responses::new(&self.shared.mrs, &mut self.outbox.ip_id, &mut *qp);
        let sent = self.outbox.queue.build_burst(most, &mut builder)?;
        let Responses { built, other, .. } = builder;
        debug_assert_eq!(sent, built.frames, "what was built is on its way");
        if built.frames > 0 {
            qp.long_answers = built.long;
            qp.counters.sent(built.frames as u64, built.bytes);
            self.counters.add(Counter::ResponsesSent, built.frames as u64);
            self.outbox.count_in_place(built.frames, built.bytes, &self.counters);
        }
        Some((built.frames, other))
    }

    /// Builds request packets of a queue pair.
    fn request(&mut self, qp: &mut Qp) -> Stop {
        use crate::proto::state::Gates;
        if qp.gates.has(Gates::FLUSH_SQ) || qp.gates.has(Gates::FLUSH_RQ) {
            self.flush_queues(qp, super::qp::Cause::default());
            return Stop::Done;
        }
        if qp.is_unreliable() {
            return self.request_unreliable(qp);
        }
        // A packet is due: only then does the ACK timer run while the port takes none.
        let posted = qp.requester.head() != qp.sq.0.published();
        let may_go = qp.gates.has(if qp.requester.drained() { Gates::START_WQE } else { Gates::TX_RETRY });
        let due = posted && may_go;
        if !qp.is_reachable() {
            if self.resolve(qp) && due {
                qp.retried = Some(RetryCause::Unreachable);
                self.count_of(qp, Counter::Unreachable);
                self.fail_send(qp, WcStatus::RetryExcErr);
                return Stop::Done;
            }
            if !qp.is_reachable() {
                // Nothing can leave, so nothing is timed: woken when the neighbour answers, or is found not to.
                qp.requester.rest();
                return Stop::Done;
            }
        }
        let mut budget = QP_TX_BUDGET.min(self.outbox.requests.frames.remaining_capacity());
        while budget > 0 {
            if qp.long
                && qp.route == Route::Known
                && self.outbox.backlog() == 0
                && let Some((built, end)) = self.build_in_place(qp, budget)
            {
                let full = built.frames < budget && end.is_ok();
                budget -= built.frames;
                if let Some(stop) = self.end_of(qp, end, &mut budget) {
                    return stop;
                }
                if full {
                    return self.wait_to_send(qp, due);
                }
                continue;
            }
            // Packets are built where they wait for the port.
            let waiting = (qp.requester.waiting(&qp.sq) as usize).clamp(1, budget);
            let (base, got) = self.outbox.append_empty(waiting);
            if got == 0 {
                self.discard_of(qp, Discard::NoBuffer);
                return self.wait_to_send(qp, due);
            }
            let memory = Memory { keys: &self.shared.mrs, pd: qp.pd };
            let empty = &mut self.outbox.requests.frames[base..];
            let (built, end) = build_requests(qp, memory, self.now, &mut self.outbox.ip_id, empty);
            self.count_built(qp, &built);
            self.outbox.take_empty(base + built.frames);
            if qp.route == Route::Inside {
                self.send_inside(qp, base);
            }
            budget -= built.frames;
            if let Some(stop) = self.end_of(qp, end, &mut budget) {
                return stop;
            }
        }
        Stop::More
    }

    /// There is no memory to build a packet in. If one is due the ACK timer runs meanwhile.
    fn wait_to_send(&mut self, qp: &mut Qp, due: bool) -> Stop {
        if !due {
            return Stop::Done;
        }
        qp.requester.arm(self.now);
        Stop::More
    }

    /// What is to be done when no more request packets are built; `None`: going on.
    #[inline(always)]
    fn end_of(&mut self, qp: &mut Qp, end: Result<(), End>, budget: &mut usize) -> Option<Stop> {
        match end {
            Ok(()) if qp.requester.sent_all(&qp.sq) => {
                self.complete_sends(qp); // stale requests need no packet
                return Some(Stop::Done);
            }
            Ok(()) => {}
            Err(End::Idle(Idle::Local(seq))) => {
                self.carry_out(qp, seq);
                *budget -= 1;
            }
            Err(End::Idle(idle)) => {
                self.complete_sends(qp); // stale requests and local operations need no packet
                if idle == Idle::Failed
                    && let Some(status) = qp.requester.local_failure()
                {
                    self.fail_send(qp, status);
                }
                return Some(Stop::Done);
            }
            // The next poll says whether older requests have to complete first.
            Err(End::Protection(seq)) => {
                qp.requester.fail_local(seq, WcStatus::LocProtErr);
                *budget -= 1;
            }
        }
        None
    }

    /// Builds up to `most` request packets in the port's own memory, each finished while it is in the nearest cache: as many
    /// as there is room for. `None` where the port has no such memory.
    #[inline(never)]
    fn build_in_place(&mut self, qp: &mut Qp, most: usize) -> Option<(Built, Result<(), End>)> {
        let memory = Memory { keys: &self.shared.mrs, pd: qp.pd };
        let mut builder = Requests::new(memory, self.now, &mut self.outbox.ip_id, &mut *qp);
        let sent = self.outbox.queue.build_burst(most, &mut builder)?;
        let Requests { built, end, .. } = builder;
        debug_assert_eq!(sent, built.frames, "what was built is on its way");
        if built.frames > 0 {
            self.count_built(qp, &built);
            self.outbox.count_in_place(built.frames, built.bytes, &self.counters);
        }
        Some((built, end))
    }

    #[inline]
    fn count_built(&self, qp: &mut Qp, built: &Built) {
        qp.long = built.long;
        qp.counters.sent(built.frames as u64, built.bytes);
        self.counters.add(Counter::RequestsSent, built.frames as u64 - built.again);
        for _ in 0..built.again {
            self.count_of(qp, Counter::Retransmitted);
        }
    }

    /// The frames from `base` on go to a queue pair of this device.
    #[cold]
    fn send_inside(&mut self, qp: &Qp, base: usize) {
        let frames: TxBurst = self.outbox.requests.frames.drain(base..).collect();
        for frame in frames {
            self.send(qp.route, qp.peer_shard.into(), frame, false);
        }
    }

    #[cold]
    fn count_nak_sent(&self, qp: &Qp, syndrome: u8) {
        if let Syndrome::RnrNak { .. } = Syndrome::decode(syndrome) {
            return self.count_of(qp, Counter::RnrNaksSent);
        }
        self.count_of(qp, Counter::NaksSent);
        if let Syndrome::Nak(code) = Syndrome::decode(syndrome)
            && let Some(counter) = Counter::nak_sent(code)
        {
            self.count_of(qp, counter);
        }
    }

    /// Builds an answer without payload in `frame`.
    #[inline]
    fn build(&mut self, qp: &Qp, frame: &mut Frame, opcode: Opcode, psn: Psn, ext: Ext) {
        let header = answer_header(qp, opcode, psn, ext, 0, self.outbox.next_ip_id());
        let buffer = frame.buffer_mut();
        let at = qp.template.begin(buffer, &header);
        let len = qp.template.close(buffer, at, 0);
        frame.set_len(len);
    }

    /// Sends an answer on its way that was built, and stamped if it is `finished`. In the backlog it is left to be stamped,
    /// unless it is long.
    #[inline]
    fn dispatch(&mut self, qp: &Qp, mut frame: Frame, finished: bool, stamped: &mut usize) {
        let len = frame.len();
        qp.counters.sent(1, len as u64);
        let now = finished || len >= LONG_PACKET || qp.route == Route::Inside;
        if now {
            stamp(&qp.template, &mut self.outbox.answers.frames[*stamped..]);
            if !finished {
                qp.template.stamp(frame.data_mut());
            }
        }
        self.send(qp.route, qp.peer_shard.into(), frame, true);
        if now {
            *stamped = self.outbox.answers.frames.len();
        }
    }
}
