//! Responses of the peer: matched by the requester, placed in memory; and the work that follows when the requester's state advances.

use crate::proto::completer::Response;
use crate::proto::recovery::RetryCause;
use crate::proto::state::Event;
use crate::proto::status::WcStatus;
use crate::proto::tables::Syndrome;
use crate::proto::wqe::SendWqe;
use crate::shard::counters::{Counter, Counters};
use crate::shard::env::Env;
use crate::shard::peer_check::check::PeerState;
use crate::shard::qp::{Cause, Qp, SourcePort};
use crate::shard::qps::Qps;
use crate::wire::{Discard, Kind, Packet};

impl Env {
    #[inline(always)]
    pub(super) fn handle_response(&mut self, qp: &mut Qp, pkt: Packet<'_>) -> Result<(), Discard> {
        count_response(&self.counters, qp, &pkt);
        self.apply_response(qp, pkt)
    }

    /// Handles a response that is already counted; it may have been held.
    #[inline(always)]
    pub(super) fn apply_response(&mut self, qp: &mut Qp, pkt: Packet<'_>) -> Result<(), Discard> {
        let response = match qp.requester.handle_response(self.now, &pkt, &qp.sq) {
            Ok(Response::Early) => return self.handle_early(qp),
            Ok(response) => response,
            Err(reason) => return self.handle_unmatched(qp, reason),
        };
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
            Response::Failed(_) | Response::Retry(_) | Response::Wait => {
                if qp.checks_peer {
                    qp.end_check(PeerState::Alive);
                }
                self.prove_source_port(qp);
                self.after_requester(qp, response);
            }
            _ => self.agenda.mark_answered(qp),
        }
        Ok(())
    }

    /// Handles a response that shows that an earlier one is missing: the caller holds it.
    #[cold]
    fn handle_early(&mut self, qp: &mut Qp) -> Result<(), Discard> {
        if qp.checks_peer {
            qp.end_check(PeerState::Alive);
        }
        self.stop_timing(qp); // what it acknowledges waits for the missing response
        self.agenda.mark_answered(qp);
        Err(Discard::OutOfSequence)
    }

    /// Handles a response that answers nothing in flight: it is dropped, unless the peer is being checked.
    #[cold]
    fn handle_unmatched(&mut self, qp: &mut Qp, reason: Discard) -> Result<(), Discard> {
        if !qp.checks_peer {
            return Err(reason);
        }
        qp.end_check(PeerState::Alive);
        Ok(())
    }

    /// The follow-up work for queue pairs that received responses in this turn.
    #[inline(never)]
    pub(in crate::shard) fn run_answered(&mut self, qps: &mut Qps) {
        let mut next = 0;
        while let Some(&slot) = self.agenda.answered.get(next) {
            next += 1;
            if let Some(qp) = qps.get(slot) {
                qp.in_answered = false;
                if matches!(qp.source_port, SourcePort::Tried | SourcePort::FellBack) {
                    self.prove_source_port(qp);
                }
                self.after_requester(qp, Response::Done);
            }
        }
        self.agenda.answered.clear();
    }

    /// The follow-up work when the requester's state advanced: completions, retries, failure, and more to send.
    pub(in crate::shard) fn after_requester(&mut self, qp: &mut Qp, response: Response) {
        self.complete_sends(qp);
        self.in_flight.note(qp);
        if self.rtt_probe.times(qp.slot) {
            self.read_rtt_probe(qp, response == Response::Done);
        }
        match response {
            Response::Failed(status) => return self.fail_send(qp, status),
            Response::Retry(cause) => {
                if cause != RetryCause::Probe {
                    qp.retried = Some(cause);
                }
                count_retry(&self.counters, qp, cause);
                // Everything is retransmitted: the current gap says nothing more.
                qp.held_responses.iter_mut().for_each(|held| held.notify());
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

    /// Fails the oldest send request, and the queue pair with it.
    pub(in crate::shard) fn fail_send(&mut self, qp: &mut Qp, status: WcStatus) {
        self.fail(qp, Event::SendError, Cause { send: Some(status), recv: None });
    }
}

#[inline(always)]
fn count_response(counters: &Counters, qp: &Qp, pkt: &Packet<'_>) {
    if pkt.row.kind != Kind::Ack {
        return counters.add(Counter::ResponsesReceived, 1);
    }
    let syndrome = pkt.aeth().syndrome;
    if Syndrome::is_ack(syndrome) {
        return counters.add(Counter::AcksReceived, 1);
    }
    count_nak(counters, qp, Syndrome::decode(syndrome));
}

#[cold]
fn count_nak(counters: &Counters, qp: &Qp, syndrome: Syndrome) {
    if let Syndrome::RnrNak { .. } = syndrome {
        return counters.add_of(&qp.counters, Counter::RnrNaksReceived);
    }
    counters.add_of(&qp.counters, Counter::NaksReceived);
    if let Syndrome::Nak(code) = syndrome
        && let Some(counter) = Counter::nak_received(code)
    {
        counters.add_of(&qp.counters, counter);
    }
}

#[cold]
fn count_retry(counters: &Counters, qp: &Qp, cause: RetryCause) {
    counters.add_of(
        &qp.counters,
        match cause {
            RetryCause::Timeout => Counter::RetriesTimeout,
            RetryCause::SequenceNak => Counter::RetriesSequence,
            RetryCause::ImpliedNak => Counter::RetriesImplied,
            RetryCause::Rnr => Counter::RetriesRnr,
            RetryCause::Probe => Counter::AckProbes,
            RetryCause::Unreachable | RetryCause::PeerEnded => return, // not a retry
        },
    );
}
