//! Receive completions that wait for their acknowledgement.
//!
//! A receive completion must not be seen before the acknowledgement that its sender waits for is with the port. As a
//! rule it is not: a turn sends its answers, then publishes. But an answer may be left for a later turn: behind READ
//! responses of the same queue pair, or for lack of a frame or of a next hop. Then that queue pair's receive completions
//! are withdrawn from the lanes, in order, until a response with their number or a later one has been built, or the
//! queue pair ends. Completions of other queue pairs go on.
//!
//! Over a port with several routes the port may take the answers of one route and not those of another. Then the queue pairs of the
//! latter are held back in the same way, until their answers have gone.

pub(super) mod list;

use super::completions::Completions;
use super::env::Env;
use super::qp::Qp;
use super::state::Shard;
use crate::proto::wqe::Cqe;
use list::{Deferred, DeferredReceives};

impl Shard {
    /// Answers were left for a later turn: the completions of this one that wait for them are withdrawn.
    #[cold]
    pub(super) fn defer_receives(&mut self) {
        let completions = &mut self.env.completions;
        for at in 0..completions.finished.len() {
            let Some(qp) = self.qps.get(completions.finished[at]) else { continue };
            if qp.in_answering {
                completions.defer(qp);
            }
        }
    }

    /// Lets go of the completions whose answers have gone, and withdraws those whose answers wait for their route.
    #[cold]
    pub(super) fn hold_back_receives(&mut self) {
        let Self { env, qps, .. } = self;
        while let Some(slot) = env.outbox.next_let_go() {
            if let Some(qp) = qps.get(slot).filter(|qp| qp.deferred.is_some()) {
                env.release_receives(qp);
            }
        }
        for at in 0..env.completions.finished.len() {
            let Some(qp) = qps.get(env.completions.finished[at]) else { continue };
            let route = qp.hop.route();
            if qp.hop.is_outside() && env.outbox.has_answers_for(route) {
                env.completions.hold_back(qp);
                if qp.deferred.is_some() {
                    env.outbox.hold_back(route, qp.slot);
                }
            }
        }
    }
}

impl Completions {
    /// Answers of the queue pair are left for a later turn: its completions that wait for them are withdrawn.
    #[cold]
    pub fn defer(&mut self, qp: &mut Qp) {
        if qp.deferred.is_some() || qp.responder.owes_acknowledgement() {
            self.withdraw(qp);
        }
    }

    /// The port has not taken all answers of the queue pair: whatever it has staged for receive requests is withdrawn.
    fn hold_back(&mut self, qp: &mut Qp) {
        self.withdraw(qp);
        // What was released in this turn comes before what is deferred still.
        self.move_staged(qp, true);
    }

    /// Moves what the queue pair has staged for receive requests from the lanes to those that are deferred.
    fn withdraw(&mut self, qp: &mut Qp) {
        self.move_staged(qp, false);
    }

    /// Moves the completions of receive requests that were `released`, which go before those that are deferred, or the others, which go
    /// behind them.
    fn move_staged(&mut self, qp: &mut Qp, released: bool) {
        let mut list = qp.deferred.take().or_else(|| self.spare_lists.pop()).unwrap_or_default();
        let (until, deferred) = (qp.responder.asked(), list.len());
        for at in 0..self.staged.len() {
            let lane = self.staged[at];
            let Some(to) = self.get(lane) else { continue };
            let mut solicited = false;
            to.writer.withdraw(|cqe| {
                let of_qp = (cqe.qp_index, cqe.epoch) == (qp.index, qp.epoch);
                let take = of_qp && cqe.opcode.is_recv() && cqe.acknowledged == released;
                if take {
                    list.push(Deferred { lane, until, cqe: *cqe });
                } else {
                    solicited |= cqe.solicited;
                }
                take
            });
            if solicited {
                to.writer.mark_solicited();
            }
        }
        if released {
            list.put_behind(deferred);
        }
        self.put_back(qp, list);
    }

    /// An empty list is kept for the next queue pair: deferring allocates only if more queue pairs wait than ever before.
    fn put_back(&mut self, qp: &mut Qp, list: Box<DeferredReceives>) {
        if list.is_empty() {
            self.spare_lists.push(list);
        } else {
            qp.deferred = Some(list);
        }
    }
}

impl Env {
    /// After answers of a queue pair were built: stages the completions that waited for them, in order.
    #[cold]
    pub fn release_receives(&mut self, qp: &mut Qp) {
        if qp.responder.owes_acknowledgement() {
            self.completions.withdraw(qp); // they came later
            self.release_while(qp, |qp, deferred| qp.responder.has_acknowledged(deferred.until));
        } else {
            self.release_all_receives(qp);
        }
    }

    /// Stages every completion that waited: nothing is left to wait for, or the queue pair ends.
    #[cold]
    pub fn release_all_receives(&mut self, qp: &mut Qp) {
        self.completions.withdraw(qp);
        self.release_while(qp, |_, _| true);
    }

    fn release_while(&mut self, qp: &mut Qp, due: impl Fn(&Qp, &Deferred) -> bool) {
        let Some(mut list) = qp.deferred.take() else { return };
        let mut taken = true;
        while let Some(next) = list.pop_if(|next| due(qp, next)) {
            taken &= self.stage(qp, next.lane, Cqe { acknowledged: true, ..next.cqe });
        }
        self.completions.put_back(qp, list);
        self.completions.mark_received(qp);
        if !taken {
            self.end_by_overrun(qp);
        }
    }
}
