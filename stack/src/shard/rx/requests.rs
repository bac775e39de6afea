//! Requests of the peer: checked by the responder, placed in memory, then accepted.

use crate::id::Psn;
use crate::proto::fault::Fault;
use crate::proto::responder::{Effect, ReceivedTail, Unexpected};
use crate::proto::state::Event;
use crate::proto::wqe::{Granule, RecvWqe};
use crate::shard::copy;
use crate::shard::counters::Counter;
use crate::shard::env::Env;
use crate::shard::qp::{Cause, Qp};
use crate::wire::{Discard, Kind, Packet, Transport, UDP_PORT};

impl Env {
    /// Handles the expected request packet.
    #[inline(always)]
    pub(super) fn handle_request(&mut self, qp: &mut Qp, pkt: Packet<'_>) {
        if pkt.row.transport == Transport::Xrc && !self.attach_xrc_srq(qp, pkt.xrceth()) {
            self.refuse(qp, pkt.psn, Fault::BadXrcSrq);
            return self.note_answer(qp);
        }
        let checked = qp.responder.handle_expected(&pkt, qp.pd, &mut qp.rq, &self.shared.mrs);
        if let Err(fault) = checked.and_then(|effect| self.place(qp, &pkt, effect)) {
            self.refuse(qp, pkt.psn, fault);
        }
        self.note_answer(qp);
    }

    /// Handles a request packet that is a duplicate, comes from behind a gap, or is for a queue pair that is about to end.
    #[cold]
    pub(super) fn handle_unexpected(&mut self, qp: &mut Qp, pkt: &Packet<'_>) -> Result<(), Discard> {
        match qp.responder.handle_unexpected(*pkt) {
            Unexpected::Duplicate => {
                self.count_of(qp, Counter::DuplicatesAnswered);
                if pkt.src_port() == UDP_PORT {
                    self.leave_source_port(qp);
                }
            }
            Unexpected::AfterGap => return Err(Discard::OutOfSequence), // the caller keeps the frame
            Unexpected::Drop(reason) => return Err(reason),
        }
        self.note_answer(qp);
        Ok(())
    }

    /// Schedules the responder's answer, if it has one.
    #[inline(always)]
    pub(super) fn note_answer(&mut self, qp: &mut Qp) {
        if qp.responder.has_answer() {
            self.agenda.mark_answering(qp);
        }
    }

    /// Prepares a request to an XRC target: receive requests, protection domain and completion queue are those of the shared receive queue
    /// that the packet names. Returns whether that queue exists in the target's domain (IBA A14).
    #[inline(never)]
    fn attach_xrc_srq(&mut self, qp: &mut Qp, number: u32) -> bool {
        let attached = qp.rq.srq_number();
        let named = self.xrc_srqs.binary_search_by_key(&number, |srq| srq.end.number);
        let named = named.ok().map(|at| &self.xrc_srqs[at]);
        // All packets of a message name the same queue.
        let stays = !qp.responder.in_message() || attached == Some(number);
        let Some(srq) = named.filter(|srq| stays && Some(srq.xrcd) == qp.rq.xrcd()) else { return false };
        if attached != Some(number) {
            qp.pd = srq.end.pd;
            qp.recv_pd = srq.end.pd;
            qp.recv_lane = srq.lane;
            qp.rq.attach(Some(srq.end.clone()));
        }
        true
    }

    /// Applies the packet's effect to local memory, then lets the responder accept the packet.
    #[inline(always)]
    pub(super) fn place(&mut self, qp: &mut Qp, pkt: &Packet<'_>, effect: Effect) -> Result<(), Fault> {
        // The receive request that the message fills or ends.
        let fills = pkt.row.kind == Kind::Send || pkt.row.takes_recv;
        let receive: &[Granule] = if fills { qp.rq.current() } else { &[] };
        let wr_id = if fills { RecvWqe::of(receive).wr_id } else { 0 };
        match effect {
            Effect::Nothing => {}
            Effect::Receive { offset } => {
                let (list, ends) = (RecvWqe::sges(receive), pkt.row.position.ends());
                self.scatter(qp.recv_pd, list, offset, pkt.payload, ends)
                    .map_err(|_| Fault::ReceiveProtection)?;
            }
            Effect::Write { place, last } => {
                copy::write(place, pkt.payload, last).map_err(|_| Fault::RemoteAccess)?;
                self.keys.placed_to = place.addr().wrapping_add(pkt.payload.len() as u64);
            }
            Effect::Atomic { place, swap } => {
                let eth = pkt.atomic();
                let original = copy::atomic(place, swap, eth.swap_add, eth.compare);
                let original = original.map_err(|_| Fault::RemoteAccess)?;
                self.count(Counter::RequestsReceived);
                qp.responder.accept_atomic(pkt, original);
                return Ok(());
            }
            Effect::Store { place } => {
                copy::store(place, pkt.payload).map_err(|_| Fault::RemoteAccess)?;
            }
            Effect::Flush => copy::flush(),
        }
        if pkt.row.has_inv {
            // The key is revoked before the completion that reports it.
            self.shared.mrs.invalidate(pkt.inv(), qp.pd, Some(qp.qpn)).map_err(|_| Fault::BadInvalidate)?;
            self.keys.note_revoked();
        }
        self.count(Counter::RequestsReceived);
        if let Some(received) = qp.responder.accept(pkt) {
            debug_assert!(received.tail.is_some() == (pkt.row.has_imm || pkt.row.has_inv));
            debug_assert!(!matches!(received.tail, Some(ReceivedTail::Inv(_))) || pkt.row.has_inv);
            if pkt.row.transport == Transport::Xrc {
                self.complete_xrc_receive(qp, &received, wr_id);
            } else {
                self.complete_receive(qp, &received, wr_id);
            }
        }
        Ok(())
    }

    #[cold]
    pub(super) fn refuse(&mut self, qp: &mut Qp, psn: Psn, fault: Fault) {
        self.count_of(qp, Counter::RequestsRefused);
        let ends = qp.responder.refuse(psn, fault, qp.ty);
        if ends && !qp.responder.has_answer() {
            self.end_by_fault(qp, fault);
        }
    }

    /// Moves the queue pair to ERR after a fault of the peer. If a NAK is due, it is already among the port's frames.
    pub(in crate::shard) fn end_by_fault(&mut self, qp: &mut Qp, fault: Fault) {
        let outcome = fault.outcome(qp.ty);
        qp.fault = Some(fault);
        if !qp.responder.holds_receive()
            && let Some(event) = outcome.event
        {
            qp.raise(&self.shared.events, event);
        }
        self.fail(qp, Event::Fatal, Cause { send: None, recv: outcome.status });
    }
}
