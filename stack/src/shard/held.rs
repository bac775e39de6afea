//! Receive completions that wait for their acknowledgement.
//!
//! A receive completion must not be seen before the acknowledgement that its sender waits for is with the port. As a
//! rule it is: a turn sends its answers, then publishes. Only where an answer is left for a later turn, behind READ
//! responses of the same queue pair or for want of a frame, are that queue pair's receive completions taken out of the
//! lanes again, in order, until a response with their number or a later one has been built. Completions of other queue
//! pairs go on.

use std::collections::VecDeque;

use super::env::Env;
use super::qp::Qp;
use super::{LaneId, Shard};
use crate::id::Psn;
use crate::proto::wqe::Cqe;

/// A receive completion that waits.
#[derive(Clone, Copy, Debug)]
struct Held {
    lane: LaneId,
    /// An answer with this number, or a later one, acknowledges its message.
    until: Psn,
    cqe: Cqe,
}

/// The receive completions of a queue pair that wait, oldest first. As many as it has receive requests at most.
#[derive(Debug, Default)]
pub(super) struct HeldReceives(VecDeque<Held>);

impl HeldReceives {
    /// The completion queue of a lane is being destroyed, with what was meant for it.
    pub fn forget(&mut self, lane: LaneId) {
        self.0.retain(|held| held.lane != lane);
    }
}

impl Shard {
    /// Answers were left for a later turn: the completions of this one that wait for them are taken back.
    #[cold]
    pub(super) fn hold_receives(&mut self) {
        let env = &mut self.env;
        for at in 0..env.finished.len() {
            let Some(qp) = self.qps.get(env.finished[at]) else { continue };
            if qp.in_answers && (qp.held.is_some() || qp.responder.owes_acknowledgement()) {
                env.take_back(qp);
            }
        }
    }
}

impl Env {
    /// Moves what the queue pair has staged for receive requests from the lanes to those that wait.
    fn take_back(&mut self, qp: &mut Qp) {
        let mut held = qp.held.take().or_else(|| self.spare_held.pop()).unwrap_or_default();
        let until = qp.responder.asked();
        for lane in &self.dirty {
            let Some(Some(to)) = self.lanes.get_mut(lane.0 as usize) else { continue };
            let mut solicited = false;
            to.writer.withdraw(|cqe| {
                let take = cqe.opcode.is_recv() && (cqe.qp_index, cqe.epoch) == (qp.index, qp.epoch);
                if take {
                    held.0.push_back(Held { lane: *lane, until, cqe: *cqe });
                } else {
                    solicited |= cqe.solicited;
                }
                take
            });
            if solicited {
                to.writer.mark_solicited();
            }
        }
        self.put_back(qp, held);
    }

    /// An empty list is kept for the next queue pair: waiting allocates only while there are more of them than ever.
    fn put_back(&mut self, qp: &mut Qp, held: Box<HeldReceives>) {
        if held.0.is_empty() {
            self.spare_held.push(held);
        } else {
            qp.held = Some(held);
        }
    }

    /// After answers of a queue pair were built: stages the completions that waited for them, in order.
    #[cold]
    pub fn release_receives(&mut self, qp: &mut Qp) {
        if qp.in_answers && qp.responder.owes_acknowledgement() {
            self.take_back(qp); // they came later
            self.release_while(qp, |qp, held| qp.responder.has_acknowledged(held.until));
        } else {
            self.release_all_receives(qp);
        }
    }

    /// Stages every completion that waited: nothing is left to wait for, or the queue pair ends.
    #[cold]
    pub fn release_all_receives(&mut self, qp: &mut Qp) {
        self.take_back(qp);
        self.release_while(qp, |_, _| true);
    }

    fn release_while(&mut self, qp: &mut Qp, due: impl Fn(&Qp, &Held) -> bool) {
        let Some(mut held) = qp.held.take() else { return };
        let mut taken = true;
        while let Some(next) = held.0.front().copied().filter(|next| due(qp, next)) {
            held.0.pop_front();
            taken &= self.stage(qp, next.lane, next.cqe);
        }
        self.put_back(qp, held);
        self.mark_received(qp);
        if !taken {
            self.end_by_overrun(qp);
        }
    }
}
