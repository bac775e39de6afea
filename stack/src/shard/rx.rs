//! Receiving: a frame becomes a packet, the packet finds its queue pair and its machine, its bytes find memory.
//!
//! A packet is verified (lengths, state, addresses, ICRC, sequence, key, bounds) before a byte of it is placed.
//! Whatever is dropped is counted under its name.
//!
//! What every packet goes through is inlined into one function, in which a layout and a packet are a few registers.
//! Functions that are not inlined get copies of them: a reference would make them whole, in memory, for every packet.

use super::Qps;
use super::copy;
use super::counters::Counter;
use super::env::Env;
use super::qp::{Cause, Qp};
use crate::config::{LONG_PACKET, PLACE_AHEAD};
use crate::id::{Psn, QpState, QpType, Qpn};
use crate::port::Frame;
use crate::proto::completer::{Response, RetryCause};
use crate::proto::fault::Fault;
use crate::proto::responder::{ReceivedTail, Verdict};
use crate::proto::state::{Event, Gates};
use crate::proto::status::{AsyncEvent, WcStatus};
use crate::proto::tables::Syndrome;
use crate::proto::wqe::{Granule, RecvWqe, SendWqe};
use crate::sync::prefetch;
use crate::wire::{
    Discard, Ingress, Kind, Layout, Opcode, Packet, Row, Transport, icrc, locate, locate_plain,
};

/// Lets a packet pass whose ICRC is right.
#[inline(always)]
pub(super) fn prove(frame: &mut Frame, layout: &Layout) -> Result<(), Discard> {
    let sum = frame.sum();
    if icrc::check(frame.data_mut(), layout, sum) { Ok(()) } else { Err(Discard::BadIcrc) }
}

impl Env {
    /// Handles a received frame. `Err(shard)`: it belongs to another shard, hand it over.
    #[inline]
    pub(super) fn receive(&mut self, qps: &mut Qps, frame: &mut Frame) -> Result<(), usize> {
        match locate_plain(frame.data()) {
            Some(layout) => self.receive_plain(qps, frame, layout),
            None => self.receive_any(qps, frame),
        }
    }

    /// A frame of any form.
    #[inline(never)]
    fn receive_any(&mut self, qps: &mut Qps, frame: &mut Frame) -> Result<(), usize> {
        match locate(frame.data()) {
            Ok(Ingress::Roce(layout)) => return self.receive_located(qps, frame, layout),
            Ok(Ingress::Other) => self.receive_other(frame),
            Err(reason) => self.discard(reason),
        }
        Ok(())
    }

    /// A packet of any kind, to any queue pair.
    #[inline(never)]
    fn receive_located(&mut self, qps: &mut Qps, frame: &mut Frame, layout: Layout) -> Result<(), usize> {
        let shard = self.shared.shard_of(layout.dqpn);
        if shard != self.id && shard < self.shared.inboxes.len() {
            return Err(shard);
        }
        if let Err(reason) = self.receive_packet(qps, frame, layout) {
            self.drop_packet(qps, layout.dqpn, reason);
        }
        Ok(())
    }

    /// A packet whose layout is constants to the compiler. The operations that come often, to queue pairs of the commonest
    /// type, have a function each.
    #[inline(always)]
    fn receive_plain(&mut self, qps: &mut Qps, frame: &mut Frame, layout: Layout) -> Result<(), usize> {
        let dqpn = layout.dqpn;
        // The numbers in a shard's table are its own.
        let Some(qp) = qps.find(dqpn).filter(|qp| qp.ty == QpType::Rc) else {
            return self.receive_located(qps, frame, layout);
        };
        macro_rules! one_of {
            ($($name:ident)+) => {
                match layout.row.opcode {
                    $(Opcode::$name => self.receive_one::<{ Opcode::$name.0 }>(qp, frame, layout.udp_words()),)+
                    _ => self.receive_at(qp, frame, layout),
                }
            };
        }
        let received = one_of! {
            RC_SEND_ONLY RC_SEND_MIDDLE RC_WRITE_ONLY RC_WRITE_MIDDLE RC_READ_REQUEST RC_FETCH_ADD
            RC_ACKNOWLEDGE RC_READ_RESPONSE_ONLY RC_READ_RESPONSE_MIDDLE RC_ATOMIC_ACKNOWLEDGE
        };
        if let Err(reason) = received {
            self.drop_packet(qps, dqpn, reason);
        }
        Ok(())
    }

    /// A packet of this opcode, which is RC's. What the table says of it and where its parts are is constant here, so the
    /// checks that do not concern it are not there, and those that do are compares.
    #[inline(never)]
    fn receive_one<const CODE: u8>(
        &mut self,
        qp: &mut Qp,
        frame: &mut Frame,
        udp_words: u32,
    ) -> Result<(), Discard> {
        let row = Opcode(CODE).row().ok_or(Discard::UnknownOpcode)?;
        self.receive_rc(qp, frame, Layout::plain(row, qp.qpn, udp_words))
    }

    /// Counts a dropped packet, at its queue pair too, if it has one.
    #[cold]
    fn drop_packet(&self, qps: &mut Qps, dqpn: Qpn, reason: Discard) {
        self.discard(reason);
        if let Some(qp) = qps.find(dqpn) {
            qp.counters.discard(reason);
        }
    }

    fn receive_packet(&mut self, qps: &mut Qps, frame: &mut Frame, layout: Layout) -> Result<(), Discard> {
        let Some(qp) = qps.find(layout.dqpn) else {
            return self.receive_unaddressed(qps, frame, layout);
        };
        self.receive_at(qp, frame, layout)
    }

    /// A packet of any kind, to a queue pair of any type.
    #[inline(never)]
    fn receive_at(&mut self, qp: &mut Qp, frame: &mut Frame, layout: Layout) -> Result<(), Discard> {
        if (qp.ty != QpType::Rc || layout.row.transport != Transport::Rc) && !admits_xrc(qp.ty, layout.row) {
            return self.receive_unreliable(qp, frame, &layout);
        }
        self.receive_rc(qp, frame, layout)
    }

    /// A packet of a reliable connection, to one of its ends.
    #[inline(always)]
    fn receive_rc(&mut self, qp: &mut Qp, frame: &mut Frame, layout: Layout) -> Result<(), Discard> {
        if !qp.gates.has(if layout.row.request { Gates::RX_REQ } else { Gates::RX_RESP }) {
            return Err(Discard::BadState);
        }
        if frame.len() >= LONG_PACKET {
            // While the ICRC is computed there is time to get the memory where the next packets are likely to go.
            prefetch::bytes(self.keys.placed_to.wrapping_add(PLACE_AHEAD) as *const u8, frame.len());
        }
        prove(frame, &layout)?;
        let pkt = layout.packet(frame.data());
        if !qp.template.comes_from_destination_of(&pkt) {
            return Err(Discard::NotOurAddress);
        }
        if !qp.template.goes_to_source_of(&pkt) {
            return Err(Discard::WrongPeer);
        }
        self.check_realm(&layout, &pkt)?;
        qp.counters.received(frame.len());
        if !qp.comm_est {
            self.establish(qp);
        }
        if pkt.is_marked() {
            self.note_mark(qp);
        }
        if layout.row.request && layout.row.transport == Transport::Xrc {
            return self.handle_xrc_request(qp, pkt);
        }
        if layout.row.request { self.handle_request(qp, pkt) } else { self.handle_response(qp, pkt) }
    }

    /// The first packet of a connection.
    #[cold]
    fn establish(&mut self, qp: &mut Qp) {
        qp.comm_est = true;
        if qp.state == QpState::Rtr {
            self.raise(qp, AsyncEvent::CommEst);
        }
    }

    /// VLAN and partition.
    #[inline(always)]
    pub(super) fn check_realm(&self, layout: &Layout, pkt: &Packet<'_>) -> Result<(), Discard> {
        if layout.vid() != self.shared.vlan {
            return Err(Discard::UnknownVlan);
        }
        // One partition, the default one, with full membership: limited peers may talk to us.
        if pkt.pkey() & 0x7fff != 0x7fff {
            return Err(Discard::BadPkey);
        }
        Ok(())
    }

    /// A packet for a number that no queue pair of this shard has: a group's, or nobody's.
    #[cold]
    fn receive_unaddressed(
        &mut self,
        qps: &mut Qps,
        frame: &mut Frame,
        layout: Layout,
    ) -> Result<(), Discard> {
        if layout.dqpn == Qpn::MULTICAST {
            return self.receive_multicast(qps, frame, &layout);
        }
        Err(Discard::UnknownQpn)
    }

    #[inline(always)]
    fn handle_request(&mut self, qp: &mut Qp, pkt: Packet<'_>) -> Result<(), Discard> {
        if !qp.responder.expects(pkt.psn) {
            return self.handle_unexpected(qp, &{ pkt });
        }
        let handled = qp.responder.handle_expected(&pkt, qp.pd, &mut qp.rq, &self.shared.mrs);
        if let Err(fault) = handled.and_then(|verdict| self.place(qp, &pkt, verdict)) {
            self.refuse(qp, pkt.psn, fault);
        }
        if qp.responder.has_answer() {
            self.agenda.mark_answering(qp);
        }
        Ok(())
    }

    /// A request that is a duplicate, comes after a gap, or to a queue pair that is about to end.
    #[cold]
    fn handle_unexpected(&mut self, qp: &mut Qp, pkt: &Packet<'_>) -> Result<(), Discard> {
        match qp.responder.handle_request(pkt, qp.pd, &mut qp.rq, &self.shared.mrs) {
            Ok(verdict) => {
                if let Err(fault) = self.place(qp, pkt, verdict) {
                    self.refuse(qp, pkt.psn, fault);
                }
            }
            Err(Ok(fault)) => self.refuse(qp, pkt.psn, fault),
            Err(Err(reason)) => return Err(reason),
        }
        if qp.responder.has_answer() {
            self.agenda.mark_answering(qp);
        }
        Ok(())
    }

    /// A request to an XRC target: receive requests, protection domain and completion queue are those of the shared
    /// receive queue that the packet names, which has to be of the target's domain (IBA A14).
    #[inline(never)]
    fn handle_xrc_request(&mut self, qp: &mut Qp, pkt: Packet<'_>) -> Result<(), Discard> {
        // A duplicate, or a packet after a gap, needs none of it.
        if qp.responder.expects(pkt.psn) {
            let (number, attached) = (pkt.xrceth(), qp.rq.srq_number());
            let named = self.xrc_srqs.binary_search_by_key(&number, |srq| srq.end.number);
            let named = named.ok().map(|at| &self.xrc_srqs[at]);
            // All packets of a message name the same queue.
            let stays = !qp.responder.in_message() || attached == Some(number);
            match named.filter(|srq| stays && Some(srq.xrcd) == qp.rq.xrcd()) {
                Some(srq) if attached != Some(number) => {
                    qp.pd = srq.end.pd;
                    qp.recv_pd = srq.end.pd;
                    qp.recv_lane = srq.lane;
                    qp.rq.attach(Some(srq.end.clone()));
                }
                Some(_) => {}
                None => {
                    self.refuse(qp, pkt.psn, Fault::BadXrcSrq);
                    self.agenda.mark_answering(qp);
                    return Ok(());
                }
            }
        }
        self.handle_request(qp, pkt)
    }

    /// Puts the packet's bytes where the verdict says, then lets the responder move on.
    #[inline(always)]
    pub(super) fn place(&mut self, qp: &mut Qp, pkt: &Packet<'_>, verdict: Verdict) -> Result<(), Fault> {
        if verdict == Verdict::Duplicate {
            self.count_of(qp, Counter::DuplicatesAnswered);
            return Ok(());
        }
        // The receive request that the message fills or ends.
        let fills = pkt.row.kind == Kind::Send || pkt.row.takes_recv;
        let receive: &[Granule] = if fills { qp.rq.current() } else { &[] };
        let wr_id = if fills { RecvWqe::of(receive).wr_id } else { 0 };
        match verdict {
            Verdict::Accept => {}
            Verdict::Receive { offset } => {
                let (list, ends) = (RecvWqe::sges(receive), pkt.row.position.ends());
                self.scatter(qp.recv_pd, list, offset, pkt.payload, ends)
                    .map_err(|_| Fault::ReceiveProtection)?;
            }
            Verdict::Write { place, last } => {
                copy::write(place, pkt.payload, last);
                self.keys.placed_to = place.addr().wrapping_add(pkt.payload.len() as u64);
            }
            Verdict::Atomic { place, swap } => {
                let eth = pkt.atomic();
                let original = copy::atomic(place, swap, eth.swap_add, eth.compare);
                self.count(Counter::RequestsReceived);
                qp.responder.accept_atomic(pkt, original);
                return Ok(());
            }
            Verdict::Store { place } => copy::store(place, pkt.payload),
            Verdict::Flush => copy::flush(),
            Verdict::Duplicate => {} // has returned
        }
        if pkt.row.has_inv {
            // The key is dead before the completion that tells of it.
            self.shared.mrs.invalidate(pkt.inv(), qp.pd, Some(qp.qpn)).map_err(|_| Fault::BadInvalidate)?;
            self.keys.note_revoked();
        }
        self.count(Counter::RequestsReceived);
        if let Some(received) = qp.responder.accept(pkt) {
            debug_assert!(received.tail.is_some() == (pkt.row.has_imm || pkt.row.has_inv));
            debug_assert!(!matches!(received.tail, Some(ReceivedTail::Inv(_))) || pkt.row.has_inv);
            let srqn = if pkt.row.transport == Transport::Xrc { qp.rq.srq_number().unwrap_or(0) } else { 0 };
            self.complete_receive(qp, &received, wr_id, srqn);
        }
        Ok(())
    }

    #[cold]
    fn refuse(&mut self, qp: &mut Qp, psn: Psn, fault: Fault) {
        self.count_of(qp, Counter::RequestsRefused);
        let ends = qp.responder.refuse(psn, fault, qp.ty);
        if ends && !qp.responder.has_answer() {
            self.end_by_fault(qp, fault);
        }
    }

    /// ERR after a fault of the peer's; its NAK, where there is one, is with the port's frames already.
    pub(super) fn end_by_fault(&mut self, qp: &mut Qp, fault: Fault) {
        let outcome = fault.outcome(qp.ty);
        qp.fault = Some(fault);
        if !qp.responder.holds_receive()
            && let Some(event) = outcome.event
        {
            self.raise(qp, event);
        }
        self.fail(qp, Event::Fatal, Cause { send: None, recv: outcome.status });
    }

    #[inline(always)]
    fn handle_response(&mut self, qp: &mut Qp, pkt: Packet<'_>) -> Result<(), Discard> {
        self.count_response(qp, &pkt);
        let response = qp.requester.handle_response(self.now, &pkt, &qp.sq)?;
        let placed = match response {
            Response::Place { seq, offset } => {
                let slot = qp.sq.0.slot(seq);
                Some(self.scatter(qp.pd, SendWqe::sges(slot), u64::from(offset), pkt.payload, true))
            }
            Response::PlaceAtomic { seq, original } => {
                let slot = qp.sq.0.slot(seq);
                Some(self.scatter(qp.pd, SendWqe::sges(slot), 0, &original.to_ne_bytes(), true))
            }
            _ => None,
        };
        match placed {
            Some(Ok(())) => qp.requester.placed(self.now, pkt.psn),
            Some(Err(_)) => {
                self.complete_sends(qp);
                self.fail_send(qp, WcStatus::LocProtErr);
                return Ok(());
            }
            None => {}
        }
        match response {
            Response::Failed(_) | Response::Retry(_) | Response::Wait => self.after_requester(qp, response),
            _ => self.agenda.mark_answered(qp),
        }
        Ok(())
    }

    /// After responses were received.
    #[inline(never)]
    pub(super) fn run_answered(&mut self, qps: &mut Qps) {
        while let Some(slot) = self.agenda.answered.pop() {
            if let Some(qp) = qps.get(slot) {
                qp.in_answered = false;
                self.after_requester(qp, Response::Done);
            }
        }
    }

    /// After the requester's state moved: completions, retries, failure, and more to send.
    pub(super) fn after_requester(&mut self, qp: &mut Qp, response: Response) {
        self.complete_sends(qp);
        match response {
            Response::Failed(status) => return self.fail_send(qp, status),
            Response::Retry(cause) => {
                if cause != RetryCause::Probe {
                    qp.retried = Some(cause);
                }
                self.count_retry(qp, cause);
            }
            Response::Wait => self.agenda.corrections.waits.push(qp.slot),
            _ => {}
        }
        if let Some(status) = qp.requester.local_failure() {
            return self.fail_send(qp, status);
        }
        if !qp.requester.sent_all(&qp.sq) {
            self.agenda.mark_ready(qp);
        }
        self.agenda.arm(qp);
    }

    #[cold]
    fn count_retry(&self, qp: &Qp, cause: RetryCause) {
        self.count_of(
            qp,
            match cause {
                RetryCause::Timeout => Counter::RetriesTimeout,
                RetryCause::SequenceNak => Counter::RetriesSequence,
                RetryCause::ImpliedNak => Counter::RetriesImplied,
                RetryCause::Rnr => Counter::RetriesRnr,
                RetryCause::Probe => Counter::AckProbes,
                RetryCause::Unreachable => return, // is no retry
            },
        );
    }

    /// The oldest send request fails, and the queue pair with it.
    pub(super) fn fail_send(&mut self, qp: &mut Qp, status: WcStatus) {
        self.fail(qp, Event::SendError, Cause { send: Some(status), recv: None });
    }

    #[inline(always)]
    fn count_response(&self, qp: &Qp, pkt: &Packet<'_>) {
        if pkt.row.kind != Kind::Ack {
            return self.count(Counter::ResponsesReceived);
        }
        let syndrome = pkt.aeth().syndrome;
        if Syndrome::is_ack(syndrome) {
            return self.count(Counter::AcksReceived);
        }
        self.count_nak(qp, Syndrome::decode(syndrome));
    }

    #[cold]
    fn count_nak(&self, qp: &Qp, syndrome: Syndrome) {
        if let Syndrome::RnrNak { .. } = syndrome {
            return self.count_of(qp, Counter::RnrNaksReceived);
        }
        self.count_of(qp, Counter::NaksReceived);
        if let Syndrome::Nak(code) = syndrome
            && let Some(counter) = Counter::nak_received(code)
        {
            self.count_of(qp, counter);
        }
    }
}

/// Whether a packet of XRC is for the half of a connection that this queue pair is.
#[cold]
fn admits_xrc(ty: QpType, row: &Row) -> bool {
    match ty {
        QpType::XrcTgt => row.transport == Transport::Xrc && row.request,
        QpType::XrcIni => row.transport == Transport::Xrc && !row.request,
        _ => false,
    }
}
