//! Sending: which queue pairs build packets in a turn, and how many.

mod answers;
mod requests;
mod unreliable;
pub(super) mod writer;

use super::listed::Listed;
use super::lookahead::GROUP;
use super::outbox::Traffic;
use super::state::Shard;
use crate::config::READY_BUDGET;
use crate::port::Route;

/// Why a queue pair stops sending in this turn.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Stop {
    /// Nothing is left to send until an event occurs.
    Done,
    /// Out of budget or frames: the queue pair continues in the next turn.
    More,
    /// The route has no room: the queue pair continues when it has.
    Full(Route),
}

impl Shard {
    /// Builds the answers that are due: for each queue pair one acknowledgement, or a share of READ responses.
    pub(super) fn send_answers(&mut self) {
        for _ in 0..self.env.agenda.answering.len().min(READY_BUDGET) {
            let waiting = self.env.agenda.answering.len();
            if self.env.outbox.is_full(Traffic::Answers) {
                break;
            }
            let Some(slot) = self.env.agenda.answering.pop_front() else { break };
            let Some(qp) = self.qps.get(slot).filter(|qp| qp.in_answering == Listed::Yes) else { continue };
            qp.in_answering = Listed::No;
            match self.env.answer(qp, waiting) {
                Stop::Done => {}
                Stop::More => self.env.agenda.mark_answering(qp),
                Stop::Full(route) => {
                    qp.in_answering = Listed::Parked;
                    self.env.outbox.park(Traffic::Answers, route, slot);
                }
            }
            if qp.deferred.is_some() {
                self.env.note_built_receives(qp);
            }
        }
    }

    /// Builds request packets of queue pairs that have requests, one queue pair after the other.
    pub(super) fn send_requests(&mut self) {
        let prefetch = self.lookahead.is_active();
        for n in 0..self.env.agenda.ready.len().min(READY_BUDGET) {
            if self.env.outbox.is_full(Traffic::Requests) {
                break;
            }
            if prefetch && n.is_multiple_of(GROUP) {
                self.qps.prefetch_ready(&self.env.agenda.ready, n == 0);
            }
            let Some(slot) = self.env.agenda.ready.pop_front() else { break };
            let Some(qp) = self.qps.get(slot).filter(|qp| qp.in_ready == Listed::Yes) else { continue };
            qp.in_ready = Listed::No;
            self.env.agenda.corrections.sent.push(slot);
            match self.env.request(qp) {
                Stop::Done => {}
                Stop::More => self.env.agenda.mark_ready(qp),
                Stop::Full(route) => {
                    qp.in_ready = Listed::Parked;
                    self.env.outbox.park(Traffic::Requests, route, slot);
                }
            }
            self.env.in_flight.note(qp);
            self.env.agenda.arm(qp);
            if !self.env.relays.is_empty() {
                self.resume_relaying(slot);
            }
        }
    }
}
