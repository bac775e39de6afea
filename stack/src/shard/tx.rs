//! Sending: which queue pairs build packets in a turn, and how many.

mod answers;
mod requests;
mod unreliable;
pub(super) mod writer;

use super::lookahead::GROUP;
use super::outbox::Traffic;
use super::state::Shard;
use crate::config::{QP_TX_BUDGET, READY_BUDGET};

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
            if self.env.outbox.is_full(Traffic::Answers) {
                break;
            }
            let Some(slot) = self.env.agenda.answering.pop_front() else { break };
            let Some(qp) = self.qps.get(slot).filter(|qp| qp.in_answering) else { continue };
            qp.in_answering = false;
            let room = self.env.outbox.room(Traffic::Answers, qp.hop.route());
            if room == 0 {
                self.env.agenda.mark_answering(qp);
                continue;
            }
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
        let prefetch = self.lookahead.is_active();
        for n in 0..self.env.agenda.ready.len().min(READY_BUDGET) {
            if self.env.outbox.is_full(Traffic::Requests) {
                break;
            }
            if prefetch && n.is_multiple_of(GROUP) {
                self.qps.prefetch_ready(&self.env.agenda.ready, n == 0);
            }
            let Some(slot) = self.env.agenda.ready.pop_front() else { break };
            let Some(qp) = self.qps.get(slot).filter(|qp| qp.in_ready) else { continue };
            qp.in_ready = false;
            self.env.agenda.corrections.sent.push(slot);
            if self.env.request(qp) == Stop::More {
                self.env.agenda.mark_ready(qp);
            }
            self.env.in_flight.note(qp);
            self.env.agenda.arm(qp);
        }
    }
}
