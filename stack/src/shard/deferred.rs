//! Receive completions that wait until their acknowledgement has left.
//!
//! A receive completion must not be visible before the port has the acknowledgement that its sender waits for. Usually that holds
//! without further work: a turn sends its answers, then publishes. But an answer may be left for a later turn: because READ responses of
//! the same queue pair precede it, or no frame or next hop is available; or it is built, and its route takes no frames. Then that queue
//! pair's receive completions are withdrawn from the lanes, in order, before the turn publishes. They return to the lanes when a
//! response with their sequence number or a later one has been built and has left, or when the queue pair ends. Completions that
//! the queue pair stages meanwhile queue behind them. Completions of other queue pairs are not delayed.

pub(super) mod list;

use super::completions::Completions;
use super::cq::LaneId;
use super::env::Env;
use super::listed::Listed;
use super::outbox::Outbox;
use super::qp::Qp;
use super::state::Shard;
use crate::proto::state::Gates;
use crate::proto::wqe::Cqe;
use list::Deferred;

impl Shard {
    /// Whether some completions may have to wait, checked before completions are published.
    #[inline]
    pub(super) fn may_hold_back(&self) -> bool {
        let Env { outbox, completions, agenda, .. } = &self.env;
        outbox.has_routes() && outbox.has_more()
            || outbox.any_waiting()
            || completions.deferring > 0
            || !agenda.answering.is_empty()
    }

    /// Withdraws the completions that must not be visible yet, in one pass over the staged ones.
    #[cold]
    pub(super) fn hold_back_receives(&mut self) {
        let Self { env, qps, .. } = self;
        let mut withdrawing = core::mem::take(&mut env.completions.withdrawing);
        for at in 0..env.completions.finished.len() {
            let slot = env.completions.finished[at];
            if let Some(qp) = qps.get(slot).filter(|qp| qp.receives_finished && waits(&env.outbox, qp)) {
                env.completions.attach_list(qp);
                withdrawing.push(slot);
            }
        }
        if !withdrawing.is_empty() {
            let first = (env.id * env.shared.qps_per_shard) as u32;
            env.completions.take_staged(|lane, cqe| {
                let qp = qps.get(cqe.qp_index - first).filter(|qp| qp.epoch == cqe.epoch);
                qp.is_some_and(|qp| qp.defer(lane, cqe))
            });
            for slot in withdrawing.drain(..) {
                if let Some(qp) = qps.get(slot) {
                    env.completions.recycle_list(qp);
                    env.note_built(qp);
                }
            }
        }
        env.completions.withdrawing = withdrawing;
        self.release_acknowledged(); // completions that waited for nothing but this call
    }

    /// Stages the completions whose answers have left.
    #[cold]
    pub(super) fn release_acknowledged(&mut self) {
        let Self { env, qps, .. } = self;
        while let Some(held) = env.outbox.next_released() {
            if let Some(qp) = qps.get(held.slot).filter(|qp| qp.epoch == held.epoch) {
                env.release_departed(qp);
            }
        }
    }
}

/// Whether the staged receive completions of the queue pair must wait.
fn waits(outbox: &Outbox, qp: &Qp) -> bool {
    let left = || qp.in_answering != Listed::No && qp.responder.owes_acknowledgement();
    let stays = || qp.hop.is_outside() && outbox.has_answers_for(qp.hop.route());
    let acknowledges = !qp.is_unreliable() && !qp.gates.has(Gates::FLUSH_RQ);
    qp.deferred.is_some() || acknowledges && (left() || stays())
}

impl Qp {
    /// Defers a staged completion, if the queue pair has a list for it. Returns whether it has.
    fn defer(&mut self, lane: LaneId, cqe: &Cqe) -> bool {
        let until = self.responder.asked();
        self.deferred.as_mut().map(|list| list.push(lane, until, *cqe)).is_some()
    }
}

impl Completions {
    /// Called when answers of the queue pair are left for a later turn: withdraws the completions that wait for them.
    #[cold]
    pub fn defer(&mut self, qp: &mut Qp) {
        if qp.deferred.is_some() || qp.responder.owes_acknowledgement() {
            self.withdraw(qp);
        }
    }

    /// Moves the staged receive completions of the queue pair from the lanes to the end of its deferred list.
    fn withdraw(&mut self, qp: &mut Qp) {
        if !qp.receives_finished {
            return; // the queue pair has staged nothing
        }
        self.attach_list(qp);
        self.take_staged(|lane, cqe| {
            (cqe.qp_index, cqe.epoch) == (qp.index, qp.epoch) && qp.defer(lane, cqe)
        });
        self.recycle_list(qp);
    }

    /// Withdraws the receive completions for which `take` returns true, except those that have already waited.
    fn take_staged(&mut self, mut take: impl FnMut(LaneId, &Cqe) -> bool) {
        for at in 0..self.staged.len() {
            let lane = self.staged[at];
            let Some(to) = self.get(lane) else { continue };
            let mut solicited = false;
            to.writer.withdraw(|cqe| {
                let taken = cqe.opcode.is_recv() && !cqe.acknowledged && take(lane, cqe);
                solicited |= !taken && cqe.solicited;
                taken
            });
            if solicited {
                to.writer.mark_solicited();
            }
        }
    }

    /// Gives the queue pair a list, unless it has one.
    fn attach_list(&mut self, qp: &mut Qp) {
        if qp.deferred.is_none() {
            self.deferring += 1;
            qp.deferred = Some(self.spare_lists.pop().unwrap_or_default());
        }
    }

    /// Takes back an empty list for the next queue pair: deferring allocates only if more queue pairs wait than ever before.
    fn recycle_list(&mut self, qp: &mut Qp) {
        if let Some(list) = qp.deferred.take_if(|list| list.is_empty()) {
            self.deferring -= 1;
            self.spare_lists.push(list);
        }
    }

    /// Drops the deferred completions of the queue pair.
    #[cold]
    pub fn forget_deferred(&mut self, qp: &mut Qp) {
        self.deferring -= usize::from(qp.deferred.take().is_some());
    }
}

impl Env {
    /// Called after answers of a queue pair were built: completions that waited for these to be built now wait until they have left.
    #[cold]
    pub fn note_built_receives(&mut self, qp: &mut Qp) {
        self.completions.withdraw(qp); // completions staged since then queue behind the deferred ones
        self.note_built(qp);
    }

    fn note_built(&mut self, qp: &mut Qp) {
        let (all, route) = (!qp.responder.owes_acknowledgement(), qp.hop.route());
        let (responder, outbox) = (&qp.responder, &mut self.outbox);
        if let Some(list) = &mut qp.deferred {
            let built = |deferred: &Deferred| all || responder.has_acknowledged(deferred.until);
            list.note_built(built, || outbox.hold_back(route, qp.slot, qp.epoch));
        }
    }

    /// Stages, in order, the completions whose answers have left.
    fn release_departed(&mut self, qp: &mut Qp) {
        if qp.deferred.is_some() {
            self.note_built_receives(qp);
            self.release_while(qp, |outbox, next| next.built.is_some_and(|mark| outbox.has_departed(mark)));
        }
    }

    /// Stages all deferred completions: no answer is outstanding, or the queue pair ends.
    #[cold]
    pub fn release_all_receives(&mut self, qp: &mut Qp) {
        self.completions.withdraw(qp);
        self.release_while(qp, |_, _| true);
    }

    fn release_while(&mut self, qp: &mut Qp, due: impl Fn(&Outbox, &Deferred) -> bool) {
        let Some(mut list) = qp.deferred.take() else { return };
        let mut taken = true;
        while let Some(next) = list.pop_if(|next| due(&self.outbox, next)) {
            taken &= self.stage(qp, next.lane, Cqe { acknowledged: true, ..next.cqe });
        }
        qp.deferred = Some(list);
        self.completions.recycle_list(qp);
        self.completions.mark_received(qp);
        if !taken {
            self.end_by_overrun(qp);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::id::Psn;
    use crate::port::limited::Limited;
    use crate::port::{Frame, Route};
    use crate::proto::status::WcOpcode;
    use crate::shard::agenda::tests::qp;
    use crate::shard::cq::{CqState, Lane};
    use crate::shard::outbox::Traffic;
    use crate::shard::qp::Hop;
    use crate::shard::scale::shared;
    use crate::sync::lanes::{CqReader, cq};
    use crate::time::Instant;
    use std::sync::Arc;

    const A: Route = Route(1);
    const B: Route = Route(2);

    /// A shard with queue pairs in these slots, which have acknowledged all requests, and their completion queue. The port takes `takes`
    /// frames.
    fn shard(takes: usize, slots: u32) -> (Shard, CqReader<Cqe>) {
        let queue = Box::new(Limited { takes, buffers: usize::MAX });
        let mut shard = Shard::new(0, shared(1, 8), queue, Instant::ZERO);
        let (reader, mut lanes) = cq::<Cqe>(4096, 1);
        let lane = Lane { writer: lanes.remove(0), cq: Arc::new(CqState::new(0, 0, None)), lost: false };
        let lane = shard.env.completions.attach(lane);
        for slot in 0..slots {
            let mut qp = qp(slot);
            (qp.recv_lane, qp.hop) = (lane, Hop::Known(A));
            shard.qps.slots.insert(slot, qp);
        }
        (shard, reader)
    }

    /// Receives a message. If it requests an acknowledgement, that waits for the route `answered_by`.
    fn receive(shard: &mut Shard, slot: u32, wr_id: u64, answered_by: Option<Route>) {
        let Shard { env, qps, .. } = shard;
        let qp = qps.get(slot).expect("it is there");
        let cqe = env.entry(qp, wr_id, crate::proto::status::WcStatus::Success, WcOpcode::Recv);
        assert!(env.push(qp, qp.recv_lane, cqe));
        env.completions.mark_received(qp);
        if let Some(route) = answered_by {
            env.outbox.push(Traffic::Answers, route, Frame::from_vec(vec![0; 64]));
        }
    }

    /// Ends a turn; returns the completions that are visible.
    fn publish(shard: &mut Shard, reader: &mut CqReader<Cqe>) -> Vec<u64> {
        let _ = shard.env.flush();
        if shard.env.outbox.any_waiting() {
            shard.release_acknowledged();
            shard.env.outbox.recompute_waiting();
        }
        if shard.may_hold_back() {
            shard.hold_back_receives();
        }
        shard.env.completions.finished.clear();
        for qp in shard.qps.iter_mut() {
            qp.receives_finished = false;
        }
        shard.env.completions.publish();
        let mut seen = Vec::new();
        reader.poll_with(64, |cqe| seen.push(cqe.wr_id));
        seen
    }

    fn set_port_takes(shard: &mut Shard, frames: usize) {
        shard.env.outbox.queue = Box::new(Limited { takes: frames, buffers: usize::MAX });
    }

    // Goal: a completion behind a deferred one becomes visible behind it, even if its message requested no acknowledgement, and even if the
    // queue pair has another path meanwhile.
    #[test]
    fn completions_stay_in_order_when_the_way_changes() {
        for hop in [Hop::Known(B), Hop::Inside(0), Hop::Pending] {
            let (mut shard, mut reader) = shard(0, 1);
            receive(&mut shard, 0, 1, Some(A));
            assert_eq!(publish(&mut shard, &mut reader), [0; 0]);
            shard.qps.get(0).expect("it is there").hop = hop;
            receive(&mut shard, 0, 2, None);
            assert_eq!(publish(&mut shard, &mut reader), [0; 0], "{hop:?}");
            set_port_takes(&mut shard, 1);
            assert_eq!(publish(&mut shard, &mut reader), [1, 2], "{hop:?}");
            assert_eq!(shard.env.completions.deferring, 0);
        }
    }

    // Goal: a completion waits for the answers that existed before it, and for no later ones.
    #[test]
    fn a_completion_does_not_wait_for_later_answers() {
        let (mut shard, mut reader) = shard(0, 1);
        receive(&mut shard, 0, 0, Some(A));
        assert_eq!(publish(&mut shard, &mut reader), [0; 0]);
        for turn in 1..200 {
            receive(&mut shard, 0, turn, Some(A));
            set_port_takes(&mut shard, 1);
            assert_eq!(
                publish(&mut shard, &mut reader),
                [turn - 1],
                "one answer leaves, and another one comes"
            );
        }
    }

    // Goal: a waiting completion is recorded once, however many turns pass before it is released; only waiting queue pairs are touched.
    #[test]
    fn what_waits_is_noted_once() {
        let (mut shard, mut reader) = shard(0, 2);
        receive(&mut shard, 0, 1, Some(A));
        shard.qps.get(1).expect("it is there").hop = Hop::Known(B);
        receive(&mut shard, 1, 2, None);
        for _ in 0..1000 {
            shard.hold_back_receives(); // a grace period: nothing is published
        }
        assert_eq!(publish(&mut shard, &mut reader), [2]);
        set_port_takes(&mut shard, 1);
        let _ = shard.env.flush();
        assert!(shard.env.outbox.next_released().is_some_and(|held| held.slot == 0));
        assert!(shard.env.outbox.next_released().is_none());
    }

    // UC acknowledges nothing: its completions wait for no answers of other queue pairs.
    #[test]
    fn unreliable_receives_wait_for_no_answers() {
        let (mut shard, mut reader) = shard(0, 2);
        receive(&mut shard, 0, 1, Some(A));
        shard.qps.get(1).expect("it is there").ty = crate::id::QpType::Uc;
        receive(&mut shard, 1, 2, None);
        assert_eq!(publish(&mut shard, &mut reader), [2]);
    }

    #[test]
    fn a_list_keeps_those_whose_answers_are_built_in_front() {
        let mut list = list::DeferredReceives::default();
        let mark = |departed| list::Mark { route: A, departed };
        (1..=4).for_each(|wr_id| {
            list.push(LaneId(wr_id), Psn::new(wr_id), Cqe { wr_id: wr_id.into(), ..Cqe::default() })
        });
        list.note_built(|next| next.until.get() <= 1, || mark(1));
        list.note_built(|next| next.until.get() <= 3, || mark(2));
        list.note_built(|next| next.until.get() <= 3, || panic!("they are noted"));
        list.forget(LaneId(2));
        let mut marks =
            core::iter::from_fn(|| list.pop_if(|_| true)).map(|next| next.built.map(|mark| mark.departed));
        assert!(marks.by_ref().eq([Some(1), Some(2), None]));
        drop(marks);
        list.push(LaneId(5), Psn::new(5), Cqe::default());
        list.note_built(|_| true, || mark(3));
        assert!(list.pop_if(|next| next.built == Some(mark(3))).is_some() && list.is_empty());
    }
}
