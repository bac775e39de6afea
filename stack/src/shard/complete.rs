//! Makes completions: staged while a turn runs, published at its end, when the port has the answers that they depend on.

use super::counters::Counter;
use super::env::Env;
use super::qp::Qp;
use crate::id::Qpn;
use crate::proto::responder::{Received, ReceivedTail};
use crate::proto::status::{AsyncEvent, WcFlags, WcOpcode, WcStatus};
use crate::proto::vendor::VendorErr;
use crate::proto::wqe::{Cqe, RecvWqe, SendWqe};

use super::cq::LaneId;
use super::events::EventElement;

#[cold]
fn vendor_err(qp: &Qp, status: WcStatus, opcode: WcOpcode) -> u32 {
    if opcode.is_recv() {
        VendorErr::of_recv(status, qp.fault).0
    } else {
        VendorErr::of_send(status, qp.retried).0
    }
}

/// A receive completion of an XRC target names the shared receive queue; that of a shadow names the target that it is the shadow of.
pub(super) fn of_xrc_target(qp: &Qp, cqe: Cqe) -> Cqe {
    Cqe { srqn: qp.rq.srq_number().unwrap_or(0), qpn: qp.rq.shadows().unwrap_or(qp.qpn), ..cqe }
}

impl Env {
    #[inline(always)]
    pub fn entry(&self, qp: &Qp, wr_id: u64, status: WcStatus, opcode: WcOpcode) -> Cqe {
        Cqe {
            wr_id,
            qp_index: qp.index,
            epoch: qp.epoch,
            qpn: qp.qpn,
            status,
            opcode,
            solicited: status != WcStatus::Success,
            vendor_err: if status == WcStatus::Success { 0 } else { vendor_err(qp, status, opcode) },
            timestamp: self.now.as_nanos(),
            ..Cqe::default()
        }
    }

    /// Stages a completion. `false`: the completion queue is full, and the entry is lost.
    #[inline(always)]
    pub fn push(&mut self, qp: &Qp, lane: LaneId, cqe: Cqe) -> bool {
        let taken = self.stage(qp, lane, cqe);
        if taken {
            self.count(Counter::Completions);
        }
        taken
    }

    /// [`Env::push`] for a completion that is already counted.
    #[inline(always)]
    pub fn stage(&mut self, qp: &Qp, lane: LaneId, cqe: Cqe) -> bool {
        let taken = self.completions.stage(lane, cqe);
        if !taken {
            self.overrun(qp, lane);
        }
        taken
    }

    /// A completion was lost: the completion queue is unusable. Raises one event. The other queue pairs that use the queue enter ERR at
    /// the end of the turn; those of other shards do so in those shards' turns.
    #[cold]
    fn overrun(&mut self, qp: &Qp, lane: LaneId) {
        self.count_of(qp, Counter::CqOverflows);
        let Some(lane) = self.completions.get(lane) else { return };
        lane.lost = true;
        lane.writer.poison();
        if lane.cq.overrun() {
            self.shared.events.raise(AsyncEvent::CqErr, EventElement::Cq(lane.cq.number()));
            self.shared.note_overrun();
        }
    }

    /// Completes the send requests that the requester has finished.
    #[inline]
    pub fn complete_sends(&mut self, qp: &mut Qp) {
        if qp.sq_done == qp.requester.head() {
            return;
        }
        if !self.stage_sends(qp) {
            self.end_by_overrun(qp);
        }
        qp.check_drained(&self.shared.events);
    }

    /// As [`stage_successes`](Self::stage_successes), and marks the ring slots to be freed.
    #[inline(always)]
    fn stage_sends(&mut self, qp: &mut Qp) -> bool {
        let taken = self.stage_successes(qp);
        self.completions.mark_sent(qp);
        taken
    }

    /// Stages the completions of requests that succeeded. `false`: some were lost.
    #[inline]
    pub fn stage_successes(&mut self, qp: &mut Qp) -> bool {
        let head = qp.requester.head();
        let mut taken = true;
        let (mut messages, mut bytes) = (0, 0);
        while qp.sq_done != head {
            let wqe = SendWqe::of(qp.sq.0.slot(qp.sq_done));
            qp.sq_done = qp.sq_done.wrapping_add(1);
            if wqe.epoch == qp.epoch {
                messages += 1;
                bytes += u64::from(wqe.length);
            }
            if wqe.signaled() && wqe.epoch == qp.epoch {
                let (wr_id, byte_len) = (wqe.wr_id, wqe.length);
                let opcode = wqe.opcode().wc_opcode().unwrap_or(WcOpcode::Send);
                let cqe = Cqe { byte_len, ..self.entry(qp, wr_id, WcStatus::Success, opcode) };
                taken &= self.push(qp, qp.send_lane, cqe);
            }
        }
        if messages > 0 {
            self.counters.add(Counter::SendMessages, messages);
            self.counters.add(Counter::SendBytes, bytes);
            qp.counters.send_done(messages, bytes);
        }
        taken
    }

    /// Completes the current receive request, whose identifier is `wr_id`.
    #[inline(always)]
    pub fn complete_receive(&mut self, qp: &mut Qp, done: &Received, wr_id: u64) {
        let cqe = self.received(qp, done, wr_id);
        self.finish_receive(qp, cqe);
    }

    /// As [`complete_receive`](Self::complete_receive), for an XRC target.
    #[inline(never)]
    pub fn complete_xrc_receive(&mut self, qp: &mut Qp, done: &Received, wr_id: u64) {
        let cqe = of_xrc_target(qp, self.received(qp, done, wr_id));
        self.finish_receive(qp, cqe);
    }

    /// Completes the current receive request with a datagram from queue pair `src_qp`.
    pub fn complete_datagram(&mut self, qp: &mut Qp, done: &Received, src_qp: Qpn, sl: u8) {
        let cqe = self.received(qp, done, RecvWqe::of(qp.rq.current()).wr_id);
        let flags = cqe.flags | WcFlags::GRH;
        self.finish_receive(qp, Cqe { flags, src_qp, sl, ..cqe });
    }

    #[inline(always)]
    fn received(&self, qp: &Qp, done: &Received, wr_id: u64) -> Cqe {
        let opcode = if done.write { WcOpcode::RecvRdmaWithImm } else { WcOpcode::Recv };
        let (flags, imm) = match done.tail {
            None => (WcFlags::empty(), 0),
            Some(ReceivedTail::Imm(imm)) => (WcFlags::WITH_IMM, u32::from_ne_bytes(imm)),
            Some(ReceivedTail::Inv(key)) => (WcFlags::WITH_INV, key),
        };
        Cqe {
            byte_len: done.byte_len,
            flags,
            imm,
            solicited: done.solicited,
            ..self.entry(qp, wr_id, WcStatus::Success, opcode)
        }
    }

    #[inline(always)]
    fn finish_receive(&mut self, qp: &mut Qp, cqe: Cqe) {
        if qp.in_answered {
            self.complete_acknowledged(qp);
        }
        let bytes = u64::from(cqe.byte_len);
        self.count(Counter::RecvMessages);
        self.counters.add(Counter::RecvBytes, bytes);
        qp.counters.recv_done(bytes);
        let taken = self.push(qp, qp.recv_lane, cqe);
        self.completions.mark_received(qp);
        if !taken {
            self.end_by_overrun(qp);
        }
    }

    /// Completes the send requests that were acknowledged in this burst before this message arrived: programs answer requests, and take the
    /// peer's next message for the response. A completion queue that overruns ends its queue pairs at the end of the turn.
    #[inline(never)]
    fn complete_acknowledged(&mut self, qp: &mut Qp) {
        if qp.sq_done != qp.requester.head() {
            self.stage_sends(qp);
            qp.check_drained(&self.shared.events);
        }
    }

    /// An unreliable queue pair abandons the message in progress, and keeps its state. A request of its own ring is used again for the
    /// next message; an entry of a shared receive queue completes in error (IBA 9.9.3, class E).
    #[cold]
    pub fn give_up_receive(&mut self, qp: &mut Qp) {
        if !qp.rq.is_shared() || !qp.responder.holds_receive() {
            return;
        }
        qp.responder.let_go();
        let wr_id = RecvWqe::of(qp.rq.current()).wr_id;
        let cqe = self.entry(qp, wr_id, WcStatus::RemInvReqErr, WcOpcode::Recv);
        if !self.push(qp, qp.recv_lane, cqe) {
            self.end_by_overrun(qp);
        }
    }
}
