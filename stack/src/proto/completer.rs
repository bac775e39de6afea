//! The completer: responses in, completed work requests and retries out (IBA 9.7.5 to 9.7.7).
//!
//! Works on the [`Requester`]'s state. What succeeded shows in [`Requester::head`], which moves on: everything
//! before it is done, in order. READ data and atomic results are placed by the caller between
//! [`Requester::handle_response`] and [`Requester::placed`], so a response is checked before a byte is written
//! and counts only after it was.

use super::congestion::Event;
use super::recovery::RetryCause;
use super::requester::{Acknowledged, Awaited, RequestKind, Requester, SendRing};
use super::status::WcStatus;
use super::tables::{NakCode, RNR_RETRY_FOREVER, Syndrome, credits, rnr_delay};
use super::wqe::SendWqe;
use crate::id::Psn;
use crate::mark::{Mark, hit};
use crate::time::Instant;
use crate::wire::{Aeth, Discard, Kind, Packet, Position};
use core::time::Duration;

/// What the caller does after a response.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Response {
    /// Nothing more than looking at [`Requester::head`].
    Done,
    /// Part of the sent packets will go out again.
    Retry(RetryCause),
    /// Sent packets will go out again after the delay of an RNR NAK, which counts from `now`. A caller that is not sure that
    /// the NAK arrived before `now` corrects that with [`Requester::wait_from`].
    Wait,
    /// READ data: write the payload at `offset` of the message's local buffers, then call `placed`.
    Place {
        /// The READ.
        seq: u32,
        /// First byte of the message that the payload holds.
        offset: u32,
    },
    /// The result of an atomic: write it, in host order, to the local buffer, then call `placed`.
    PlaceAtomic {
        /// The atomic.
        seq: u32,
        /// The value before the operation.
        original: u64,
    },
    /// A response to a READ or ATOMIC before it is missing. What is acknowledged up to there counts. The caller passes the packet again
    /// when that is here, or calls [`Requester::lose_response`]: then what is missing is requested again, unless it was already.
    Early,
    /// The oldest work request failed; the queue pair goes to ERR.
    Failed(WcStatus),
}

impl Requester {
    /// Handles an ACKNOWLEDGE, READ RESPONSE or ATOMIC ACKNOWLEDGE.
    ///
    /// A response that answers nothing outstanding is an `Err`: drop and count it.
    #[inline(always)]
    pub fn handle_response(
        &mut self,
        now: Instant,
        pkt: &Packet<'_>,
        sq: &impl SendRing,
    ) -> Result<Response, Discard> {
        let psn = pkt.psn;
        if !self.in_flight.contains(psn) {
            return Err(self.handle_ghost(psn, (pkt.row.kind == Kind::Ack).then(|| pkt.aeth())));
        }
        match pkt.row.kind {
            Kind::Ack => self.handle_ack(now, psn, pkt.aeth()),
            Kind::ReadResponse => self.handle_read_response(now, pkt, sq),
            Kind::AtomicAck => self.handle_atomic_ack(now, pkt),
            _ => Err(Discard::UnexpectedResponse),
        }
    }

    /// A response that answers nothing outstanding; `ack` is what it says if it is an acknowledgement.
    #[cold]
    fn handle_ghost(&mut self, psn: Psn, ack: Option<Aeth>) -> Discard {
        if !self.in_flight.went_out(psn) {
            return Discard::GhostAck;
        }
        // The newest acknowledgement again may still carry newer credits.
        if let Some(aeth) = ack
            && psn == self.in_flight.una().sub(1)
            && Syndrome::is_ack(aeth.syndrome)
        {
            hit(Mark::CreditsAgain);
            self.credits.grant(Psn::new(aeth.msn), credits(aeth.syndrome));
        }
        hit(Mark::GhostAck);
        Discard::GhostAck
    }

    /// The data of the last `Place` or `PlaceAtomic` is written: the response counts.
    pub fn placed(&mut self, now: Instant, psn: Psn) {
        let e = self.log.oldest();
        let is_last = psn == e.last;
        let ends = is_last || psn == e.part_end(psn);
        self.in_flight.receive_response(psn, ends);
        if ends {
            self.rd_atomic.finish();
        }
        if is_last {
            self.log.complete_head();
        }
        self.progress(now);
    }

    /// The ACK timer, the RNR wait or a pause of the congestion controller ended, if `now` is past [`Requester::deadline`].
    pub fn handle_timeout(&mut self, now: Instant) -> Response {
        if now >= self.congestion.resumes_at() {
            self.congestion.handle(now, Event::Resumed);
        }
        match self.timer.expire(now) {
            Awaited::Nothing => Response::Done,
            Awaited::Receive => {
                hit(Mark::RnrOver);
                // Everything may have been acknowledged meanwhile: then nothing is left to send again, or to time.
                if self.in_flight.is_empty() { Response::Done } else { Response::Retry(RetryCause::Rnr) }
            }
            Awaited::Answer | Awaited::Look if self.lacks_ack_request() && self.retries.is_untouched() => {
                self.probe();
                Response::Retry(RetryCause::Probe)
            }
            Awaited::Answer | Awaited::Look if self.retries.prolong() => {
                self.timer.await_answer(now.after_nanos(self.timer.prolongation_ns()));
                Response::Done
            }
            Awaited::Answer | Awaited::Look => {
                hit(Mark::Timeout);
                self.handle_loss(now, RetryCause::Timeout)
            }
        }
    }

    /// Whether the ACK timer has ended: the peer did not answer in time.
    pub fn is_overdue(&self, now: Instant) -> bool {
        self.timer.awaits_answer() && now >= self.timer.deadline()
    }

    /// The peer does not run now, so the ACK timer goes on for so long: no retry is used.
    #[cold]
    pub fn wait_for_peer(&mut self, now: Instant, wait: Duration) {
        self.timer.await_answer(now.after(wait));
    }

    /// Whether the peer runs is known after so long: the ACK timer goes on until then, once. `false`: it did already.
    #[cold]
    pub fn look_at_peer(&mut self, now: Instant, wait: Duration) -> bool {
        self.timer.await_look(now.after(wait))
    }

    /// An RNR NAK handled in the turn that began at `then` may have arrived as late as `now`: its delay counts from `now`.
    #[cold]
    pub fn wait_from(&mut self, then: Instant, now: Instant) {
        self.timer.wait_from(then, now);
    }

    /// What was sent in the turn that began at `then` may have left as late as `now`: its ACK timer counts from `now`.
    #[cold]
    pub fn left_by(&mut self, then: Instant, now: Instant) {
        self.congestion.handle(now, Event::LeftLate(then));
        self.timer.left_by(then, now);
    }

    #[inline(always)]
    fn handle_ack(&mut self, now: Instant, psn: Psn, aeth: Aeth) -> Result<Response, Discard> {
        if Syndrome::is_ack(aeth.syndrome) {
            self.credits.grant(Psn::new(aeth.msn), credits(aeth.syndrome));
            return Ok(self.acknowledge(now, psn));
        }
        self.handle_nak(now, psn, aeth)
    }

    #[cold]
    fn handle_nak(&mut self, now: Instant, psn: Psn, aeth: Aeth) -> Result<Response, Discard> {
        match Syndrome::decode(aeth.syndrome) {
            Syndrome::Ack { .. } => Ok(self.acknowledge(now, psn)),
            Syndrome::RnrNak { .. } | Syndrome::Nak(NakCode::PsnSequenceError) if self.timer.is_rnr() => {
                // Packets behind the refused one: soft-RoCE answers them with a sequence NAK of its own.
                hit(Mark::NakInRnrWait);
                Err(Discard::GhostAck)
            }
            Syndrome::RnrNak { timer } => {
                hit(Mark::RnrNak);
                // The timer starts first, so that a READ whose responses are missing goes out again after the wait, too.
                self.timer.await_receive(now.after(rnr_delay(timer)));
                self.acknowledge(now, psn.sub(1));
                if self.rnr_retries.count() != RNR_RETRY_FOREVER && !self.rnr_retries.take() {
                    hit(Mark::RnrExhausted);
                    return Ok(Response::Failed(WcStatus::RnrRetryExcErr));
                }
                self.rewind(self.in_flight.una());
                self.repair.resending = false; // what goes out then may be lost anew
                Ok(Response::Wait) // the retry is reported when the delay is over
            }
            Syndrome::Nak(NakCode::PsnSequenceError) => {
                hit(Mark::SequenceNak);
                let acknowledged = self.acknowledge(now, psn.sub(1));
                if acknowledged != Response::Done {
                    return Ok(acknowledged);
                }
                Ok(self.handle_loss(now, RetryCause::SequenceNak))
            }
            Syndrome::Nak(code) => {
                hit(Mark::FatalNak);
                // The request with this PSN fails, or an older one if that is unanswered.
                self.acknowledge(now, psn.sub(1));
                Ok(code.requester_status().map_or(Response::Done, Response::Failed))
            }
            Syndrome::Reserved => Err(Discard::ReservedSyndrome),
        }
    }

    #[inline(always)]
    fn handle_read_response(
        &mut self,
        now: Instant,
        pkt: &Packet<'_>,
        sq: &impl SendRing,
    ) -> Result<Response, Discard> {
        let psn = pkt.psn;
        if pkt.row.position != Position::Middle {
            self.grant_by(pkt);
        }
        if let Some(r) = self.reach(now, psn) {
            return Ok(r);
        }
        let e = self.log.oldest();
        if e.kind != RequestKind::Read {
            return Ok(self.handle_placed(now, *pkt, e.kind));
        }
        if pkt.row.position != Position::Middle && !Syndrome::is_ack(pkt.aeth().syndrome) {
            return Ok(Response::Failed(WcStatus::BadRespErr));
        }
        let length = SendWqe::of(sq.slot(self.log.head())).length;
        let offset = (psn.diff(e.first) as u32 & 0x00ff_ffff) << self.mtu.log2();
        let (last, part_ends) = (psn == e.last, psn == e.part_end(psn));
        let expected = if last { length - offset } else { self.mtu.bytes() as u32 };
        // A restarted READ may be answered from FIRST on (the specification) or go on with MIDDLE (soft-RoCE).
        let closes = matches!(pkt.row.position, Position::Last | Position::Only);
        if closes != part_ends || pkt.payload.len() != expected as usize {
            return Ok(Response::Failed(WcStatus::LocLenErr));
        }
        Ok(Response::Place { seq: self.log.head(), offset })
    }

    /// The empty READ response that answers an ATOMIC WRITE or a FLUSH (IBA A19).
    #[cold]
    fn handle_placed(&mut self, now: Instant, pkt: Packet<'_>, kind: RequestKind) -> Response {
        let good = kind == RequestKind::Placement
            && pkt.row.position == Position::Only
            && Syndrome::is_ack(pkt.aeth().syndrome);
        if !good {
            return Response::Failed(WcStatus::BadRespErr);
        }
        if !pkt.payload.is_empty() {
            return Response::Failed(WcStatus::LocLenErr);
        }
        self.placed(now, pkt.psn);
        Response::Done
    }

    #[inline(always)]
    fn handle_atomic_ack(&mut self, now: Instant, pkt: &Packet<'_>) -> Result<Response, Discard> {
        self.grant_by(pkt);
        if let Some(r) = self.reach(now, pkt.psn) {
            return Ok(r);
        }
        if self.log.oldest().kind != RequestKind::Atomic || !Syndrome::is_ack(pkt.aeth().syndrome) {
            return Ok(Response::Failed(WcStatus::BadRespErr));
        }
        Ok(Response::PlaceAtomic { seq: self.log.head(), original: pkt.atomic_ack() })
    }

    /// A READ or ATOMIC response with this PSN acknowledges all before it. `None`: it is the one expected next.
    #[inline(always)]
    fn reach(&mut self, now: Instant, psn: Psn) -> Option<Response> {
        if psn != self.in_flight.una() {
            let r = self.acknowledge(now, psn.sub(1));
            if r != Response::Done {
                return Some(r);
            }
            if psn != self.in_flight.una() {
                hit(Mark::ImpliedByResponse);
                return Some(Response::Early);
            }
        }
        None
    }

    /// Everything up to `acked` arrived at the peer. Stops at a READ or ATOMIC without its response.
    #[inline]
    fn acknowledge(&mut self, now: Instant, acked: Psn) -> Response {
        let before = self.in_flight.una();
        let Acknowledged { una, passed_request } = self.log.acknowledge(before, acked);
        self.in_flight.acknowledge(una);
        if una != before {
            self.progress(now);
        }
        if passed_request {
            hit(Mark::ImpliedByAck);
            return Response::Early;
        }
        Response::Done
    }

    /// The oldest response that is missing is lost, later ones imply that (an implied NAK): it is requested again.
    #[cold]
    pub fn lose_response(&mut self, now: Instant) -> Response {
        if self.in_flight.is_empty() { Response::Done } else { self.handle_loss(now, RetryCause::ImpliedNak) }
    }

    /// So many packets wait for a response that is missing: they were [`Response::Early`].
    #[cold]
    pub fn hold_early(&mut self, packets: u32) {
        self.in_flight.answered_early(packets);
    }

    #[inline]
    fn progress(&mut self, now: Instant) {
        self.recovery.handle_progress(&mut self.repair, &self.in_flight);
        self.congestion.handle(now, Event::Acknowledged(self.in_flight.una()));
        self.retries.restore();
        self.rnr_retries.restore();
        if self.in_flight.is_overtaken() {
            hit(Mark::RetryOvertaken);
            self.rewind(self.in_flight.una());
            self.repair.probing = false; // what it was to ask for is here
        }
        if !self.timer.is_rnr() {
            self.rearm(now);
        }
    }

    /// A sign that packets were lost: they go out again from where recovery says, as long as retries are left.
    fn handle_loss(&mut self, now: Instant, cause: RetryCause) -> Response {
        if self.timer.is_rnr() {
            self.rewind(self.in_flight.una()); // once the wait is over
            return Response::Done;
        }
        let Some(first) = self.recovery.handle_loss(&mut self.repair, &self.in_flight, cause) else {
            hit(Mark::GoBackAgain);
            return Response::Done;
        };
        if !self.retries.take() {
            hit(Mark::RetriesExhausted);
            return Response::Failed(WcStatus::RetryExcErr);
        }
        if cause == RetryCause::Timeout {
            self.retries.be_patient();
        }
        self.congestion.handle(now, Event::Lost(cause));
        self.rewind(first);
        self.timer.stop(); // until the first of them leaves again
        Response::Retry(cause)
    }

    /// A received packet, of whichever kind, was marked by a switch (CE).
    #[cold]
    pub(crate) fn handle_mark(&mut self, now: Instant) {
        self.congestion.handle(now, Event::Marked);
    }

    /// A congestion notification packet arrived: packets of ours were marked.
    #[cold]
    pub(crate) fn handle_notification(&mut self, now: Instant) {
        self.congestion.handle(now, Event::Notified);
    }

    /// Credits in the AETH of a READ or ATOMIC response, which may be the only acknowledgement there is.
    #[inline(always)]
    fn grant_by(&mut self, pkt: &Packet<'_>) {
        let aeth = pkt.aeth();
        if Syndrome::is_ack(aeth.syndrome) {
            self.credits.grant(Psn::new(aeth.msn), credits(aeth.syndrome));
        }
    }
}
