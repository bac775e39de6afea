//! Sending: what a queue pair's machines want to say becomes frames.

use super::Shard;
use super::copy;
use super::counters::Counter;
use super::env::Env;
use super::qp::Qp;
use crate::config::{QP_TX_BUDGET, READY_BUDGET};
use crate::id::QpType;
use crate::mem::Access;
use crate::port::Frame;
use crate::proto::requester::{Idle, Segment};
use crate::proto::responder::Answered;
use crate::proto::status::{SendFlags, WcStatus};
use crate::proto::tables::Syndrome;
use crate::proto::wqe::{self, SendWqe};
use crate::wire::{Discard, Ext, Header, Opcode};

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
        for _ in 0..self.env.answering.len() {
            let waiting = self.env.answering.len();
            let room = self.env.answers.frames.remaining_capacity();
            if room == 0 {
                break;
            }
            let Some(slot) = self.env.answering.pop_front() else { break };
            let Some(qp) = self.qps.get(slot).filter(|qp| qp.in_answers) else { continue };
            qp.in_answers = false;
            let budget = QP_TX_BUDGET.min(room.saturating_sub(waiting - 1).max(1));
            if self.env.answer(qp, budget) == Stop::More {
                self.env.mark_answering(qp);
            }
            if qp.held.is_some() {
                self.env.release_receives(qp);
            }
        }
    }

    /// Builds request packets of queue pairs that have some, in turn.
    pub(super) fn send_requests(&mut self) {
        for _ in 0..self.env.ready.len().min(READY_BUDGET) {
            if self.env.requests.frames.is_full() {
                break;
            }
            let Some(slot) = self.env.ready.pop_front() else { break };
            let Some(qp) = self.qps.get(slot).filter(|qp| qp.in_ready) else { continue };
            qp.in_ready = false;
            if self.env.request(qp) == Stop::More {
                self.env.mark_ready(qp);
            }
            self.env.arm(qp);
        }
    }
}

impl Env {
    fn answer(&mut self, qp: &mut Qp, budget: usize) -> Stop {
        if !Self::reachable(qp) {
            self.resolve(qp);
            if !Self::reachable(qp) {
                return Stop::Done; // the peer will ask again; resolving wakes nobody for an answer
            }
        }
        for _ in 0..budget {
            if !qp.responder.has_answer() {
                return Stop::Done;
            }
            let Some(mut frame) = self.take_frame() else {
                self.discard_of(qp, Discard::NoBuffer);
                return Stop::More;
            };
            let Some(answer) = qp.responder.poll_transmit(qp.credits()) else {
                self.keep_frame(frame);
                return Stop::Done;
            };
            match answer {
                Answered::Ack { psn, aeth, fatal } => {
                    match aeth.syndrome >> 5 {
                        0 => self.count(Counter::AcksSent),
                        _ => self.count_nak_sent(qp, aeth.syndrome),
                    }
                    self.build(qp, &mut frame, Opcode::RC_ACKNOWLEDGE, psn, Ext::Aeth(aeth), 0, |_| ());
                    self.dispatch(qp, frame, true);
                    if let Some(fault) = fatal {
                        self.end_by_fault(qp, fault);
                        return Stop::Done;
                    }
                }
                Answered::Atomic { psn, aeth, original } => {
                    self.count(Counter::ResponsesSent);
                    let ext = Ext::AtomicAck(aeth, original);
                    self.build(qp, &mut frame, Opcode::RC_ATOMIC_ACKNOWLEDGE, psn, ext, 0, |_| ());
                    self.dispatch(qp, frame, true);
                }
                Answered::Read { psn, opcode, aeth, rkey, va, len, pd } => {
                    let addr = match len {
                        0 => Ok(0),
                        _ => self.shared.mrs.check_remote(
                            rkey,
                            pd,
                            qp.qpn,
                            Access::REMOTE_READ,
                            va,
                            u64::from(len),
                        ),
                    };
                    let Ok(addr) = addr else {
                        self.keep_frame(frame);
                        if !qp.responder.refuse_read(psn) {
                            self.discard_of(qp, Discard::Duplicate);
                        }
                        continue;
                    };
                    self.count(Counter::ResponsesSent);
                    let ext =
                        if opcode == Opcode::RC_READ_RESPONSE_MIDDLE { Ext::None } else { Ext::Aeth(aeth) };
                    self.build(qp, &mut frame, opcode, psn, ext, len, |to| copy::read(addr, to));
                    self.dispatch(qp, frame, true);
                }
            }
        }
        if qp.responder.has_answer() { Stop::More } else { Stop::Done }
    }

    fn request(&mut self, qp: &mut Qp) -> Stop {
        use crate::proto::state::Gates;
        if qp.gates.has(Gates::FLUSH_SQ) || qp.gates.has(Gates::FLUSH_RQ) {
            self.flush_queues(qp, super::qp::Cause::default());
            return Stop::Done;
        }
        if qp.is_unreliable() {
            return self.request_unreliable(qp);
        }
        // A packet is due: only then does the ACK timer run while there is no way to send it.
        let posted = qp.requester.head() != qp.sq.0.published();
        let may_go = qp.gates.has(if qp.requester.drained() { Gates::START_WQE } else { Gates::TX_RETRY });
        let due = posted && may_go;
        if !Self::reachable(qp) {
            if self.resolve(qp) && due {
                self.fail_send(qp, WcStatus::RetryExcErr);
                return Stop::Done;
            }
            if !Self::reachable(qp) {
                if due {
                    qp.requester.arm(self.now);
                }
                return Stop::Done; // woken when the neighbour table changes, or by the ACK timer
            }
        }
        for _ in 0..QP_TX_BUDGET.min(self.requests.frames.remaining_capacity()) {
            let Some(mut frame) = self.take_frame() else {
                self.discard_of(qp, Discard::NoBuffer);
                if due {
                    qp.requester.arm(self.now);
                }
                return if due { Stop::More } else { Stop::Done };
            };
            let segment = match qp.requester.poll_transmit(self.now, qp.gates, qp.epoch, &mut qp.sq) {
                Ok(segment) => segment,
                Err(idle) => {
                    self.keep_frame(frame);
                    if let Idle::Local(seq) = idle {
                        self.carry_out(qp, seq);
                        continue;
                    }
                    self.complete_sends(qp); // stale requests and local operations need no packet
                    if idle == Idle::Failed
                        && let Some(status) = qp.requester.local_failure()
                    {
                        self.fail_send(qp, status);
                    }
                    return Stop::Done;
                }
            };
            if self.fill(qp, &segment, &mut frame).is_err() {
                self.keep_frame(frame);
                qp.requester.fail_local(segment.seq, WcStatus::LocProtErr);
                continue; // the next poll says whether older requests have to complete first
            }
            if segment.again {
                self.count_of(qp, Counter::Retransmitted);
            } else {
                self.count(Counter::RequestsSent);
            }
            self.dispatch(qp, frame, false);
        }
        Stop::More
    }

    /// Builds the request packet of a segment in `frame`.
    #[inline(always)]
    pub(super) fn fill(
        &mut self,
        qp: &Qp,
        segment: &Segment,
        frame: &mut Frame,
    ) -> Result<(), copy::LocalProtection> {
        let ip_id = self.next_ip_id();
        let slot = qp.sq.0.slot(segment.seq);
        let header = Header {
            opcode: segment.opcode.in_class(qp.class),
            psn: segment.psn,
            ack_req: segment.ack_req,
            solicited: segment.solicited,
            ip_id,
            srqn: if qp.ty == QpType::XrcIni { wqe::srqn(slot) } else { 0 },
            ext: segment.ext,
            payload_len: segment.len,
        };
        let (len, offset) = (segment.len as usize, segment.offset as usize);
        let buffer = frame.buffer_mut();
        let at = qp.template.begin(buffer, &header);
        let payload = &mut buffer[at..at + len];
        if len > 0 {
            if SendWqe::of(slot).flags().contains(SendFlags::INLINE) {
                payload.copy_from_slice(&SendWqe::inline_data(slot)[offset..offset + len]);
            } else {
                self.memory(qp.pd).gather(SendWqe::sges(slot), offset as u64, payload)?;
            }
        }
        let total = qp.template.seal(buffer, at, len);
        frame.set_len(total);
        Ok(())
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

    /// Builds an answer in `frame`.
    #[inline]
    #[allow(clippy::too_many_arguments)]
    fn build(
        &mut self,
        qp: &Qp,
        frame: &mut Frame,
        opcode: Opcode,
        psn: crate::id::Psn,
        ext: Ext,
        len: u32,
        fill: impl FnOnce(&mut [u8]),
    ) {
        let header = Header {
            opcode: opcode.in_class(qp.class),
            psn,
            ack_req: false,
            solicited: false,
            ip_id: self.next_ip_id(),
            srqn: 0,
            ext,
            payload_len: len,
        };
        let buffer = frame.buffer_mut();
        let at = qp.template.begin(buffer, &header);
        fill(&mut buffer[at..at + len as usize]);
        let total = qp.template.seal(buffer, at, len as usize);
        frame.set_len(total);
    }

    #[inline]
    fn dispatch(&mut self, qp: &Qp, frame: Frame, answer: bool) {
        qp.counters.sent(frame.len());
        self.send(qp.route, qp.peer_shard.into(), frame, answer);
    }
}
