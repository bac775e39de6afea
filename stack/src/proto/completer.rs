//! The completer: handles responses, completes work requests and decides about retries (IBA 9.7.5 to 9.7.7).
//!
//! It works on the state of the [`Requester`]. Work requests succeed in order: every one before [`Requester::head`] is complete. The caller
//! writes READ data and atomic results to memory after [`Requester::handle_response`], which checks the response, and before
//! [`Requester::placed`], which counts it.

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
    /// Nothing, except to look at [`Requester::head`].
    Done,
    /// Some of the sent packets will be sent again.
    Retry(RetryCause),
    /// Sent packets will be sent again after the delay of an RNR NAK, which counts from `now`. If the NAK may have arrived later than
    /// `now`, correct that with [`Requester::wait_from`].
    Wait,
    /// READ data: write the payload at `offset` of the READ's local buffers, then call `placed`.
    Place {
        /// Sequence number of the READ request.
        seq: u32,
        /// Where the payload belongs, in bytes from the start of the READ data.
        offset: u32,
    },
    /// The result of an atomic: write it, in host byte order, to the local buffer, then call `placed`.
    PlaceAtomic {
        /// Sequence number of the atomic request.
        seq: u32,
        /// The value before the operation.
        original: u64,
    },
    /// An earlier response to a READ or ATOMIC is missing. What this packet acknowledges before that has been counted. Pass the packet
    /// again once the missing response has arrived, or call [`Requester::lose_response`] to have the missing response requested again.
    Early,
    /// The oldest work request failed; the queue pair goes to ERR.
    Failed(WcStatus),
}

impl Requester {
    /// Handles an ACKNOWLEDGE, READ RESPONSE or ATOMIC ACKNOWLEDGE packet.
    ///
    /// Returns `Err` for a response that answers nothing outstanding: drop and count it.
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

    /// Handles a response that answers nothing outstanding. `ack` is its AETH if it is an acknowledgement.
    #[cold]
    fn handle_ghost(&mut self, psn: Psn, ack: Option<Aeth>) -> Discard {
        if !self.in_flight.went_out(psn) {
            return Discard::GhostAck;
        }
        // A repetition of the newest acknowledgement may carry newer credits.
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

    /// Counts the response with this PSN as received: the caller has written the data of its `Place` or `PlaceAtomic`.
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

    /// Handles the end of the ACK timer, of the delay of an RNR NAK, or of a pause of the congestion controller. Does nothing before
    /// [`Requester::deadline`].
    pub fn handle_timeout(&mut self, now: Instant) -> Response {
        if now >= self.congestion.resumes_at() {
            self.congestion.handle(now, Event::Resumed);
        }
        match self.timer.expire(now) {
            Awaited::Nothing => Response::Done,
            Awaited::Receive => {
                hit(Mark::RnrOver);
                // If everything was acknowledged meanwhile, there is nothing to send again and no timer to start.
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

    /// Whether the ACK timer has expired: the peer did not answer in time.
    pub fn is_overdue(&self, now: Instant) -> bool {
        self.timer.awaits_answer() && now >= self.timer.deadline()
    }

    /// Lets the ACK timer run for `wait` from now, without using a retry: the peer's process is known not to be running now.
    #[cold]
    pub fn wait_for_peer(&mut self, now: Instant, wait: Duration) {
        self.timer.await_answer(now.after(wait));
    }

    /// Lets the ACK timer run for `wait` from now, to find out whether the peer's process is running. Returns `false`, and does nothing, if
    /// it was extended in this way already.
    #[cold]
    pub fn look_at_peer(&mut self, now: Instant, wait: Duration) -> bool {
        self.timer.await_look(now.after(wait))
    }

    /// Corrects the delay of an RNR NAK that was handled in the turn that began at `then` but may have arrived as late as `now`: the delay
    /// counts from `now`.
    #[cold]
    pub fn wait_from(&mut self, then: Instant, now: Instant) {
        self.timer.wait_from(then, now);
    }

    /// Corrects the ACK timer for packets that were sent in the turn that began at `then` but may have left as late as `now`: it counts
    /// from `now`.
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
                // The NAK is for packets after the one that got the RNR NAK: soft-RoCE sends a sequence NAK for those.
                hit(Mark::NakInRnrWait);
                Err(Discard::GhostAck)
            }
            Syndrome::RnrNak { timer } => {
                hit(Mark::RnrNak);
                // The timer starts first, so that a READ whose responses are missing is also sent again only after the delay.
                self.timer.await_receive(now.after(rnr_delay(timer)));
                self.acknowledge(now, psn.sub(1));
                if self.rnr_retries.count() != RNR_RETRY_FOREVER && !self.rnr_retries.take() {
                    hit(Mark::RnrExhausted);
                    return Ok(Response::Failed(WcStatus::RnrRetryExcErr));
                }
                self.rewind(self.in_flight.una());
                self.repair.resending = false; // packets that are sent then may be lost anew
                Ok(Response::Wait) // the retry is reported at the end of the delay
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
                // The request with this PSN fails, or an older one that is still unanswered.
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
        // The responses to a retried READ may begin with FIRST (as specified) or with MIDDLE (soft-RoCE).
        let closes = matches!(pkt.row.position, Position::Last | Position::Only);
        if closes != part_ends || pkt.payload.len() != expected as usize {
            return Ok(Response::Failed(WcStatus::LocLenErr));
        }
        Ok(Response::Place { seq: self.log.head(), offset })
    }

    /// Handles the empty READ response that answers an ATOMIC WRITE or a FLUSH (IBA A19).
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

    /// Acknowledges every packet before this PSN, which is that of a READ or ATOMIC response. `None` if it is the response expected next.
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

    /// Acknowledges packets up to `acked`, but not beyond a READ or ATOMIC whose response is missing.
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

    /// Takes the oldest missing response as lost, because later ones have arrived (an implied NAK): it is requested again, unless that was
    /// done already.
    #[cold]
    pub fn lose_response(&mut self, now: Instant) -> Response {
        if self.in_flight.is_empty() { Response::Done } else { self.handle_loss(now, RetryCause::ImpliedNak) }
    }

    /// Says how many packets with later responses ([`Response::Early`]) the caller holds.
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
            self.repair.probing = false; // the acknowledgement that it was to request has arrived
        }
        if !self.timer.is_rnr() {
            self.rearm(now);
        }
    }

    /// Handles a sign that packets were lost: sends again from where the recovery scheme says, as long as retries are left.
    fn handle_loss(&mut self, now: Instant, cause: RetryCause) -> Response {
        if self.timer.is_rnr() {
            self.rewind(self.in_flight.una()); // sent when the delay is over
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
        self.timer.stop(); // starts again when the first of them is sent
        Response::Retry(cause)
    }

    /// Handles a received packet, of any kind, that a switch marked as congested (CE).
    #[cold]
    pub(crate) fn handle_mark(&mut self, now: Instant) {
        self.congestion.handle(now, Event::Marked);
    }

    /// Handles a congestion notification packet: packets that we sent were marked.
    #[cold]
    pub(crate) fn handle_notification(&mut self, now: Instant) {
        self.congestion.handle(now, Event::Notified);
    }

    /// Takes the credits from the AETH of a READ or ATOMIC response. There may be no other acknowledgement that carries any.
    #[inline(always)]
    fn grant_by(&mut self, pkt: &Packet<'_>) {
        let aeth = pkt.aeth();
        if Syndrome::is_ack(aeth.syndrome) {
            self.credits.grant(Psn::new(aeth.msn), credits(aeth.syndrome));
        }
    }
}
