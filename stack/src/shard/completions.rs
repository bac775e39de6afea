//! Pending completions: staged in lanes while a turn runs, visible to pollers when the turn publishes them.
//!
//! Holds the shard's lanes, the list of lanes with staged completions, and the queue pairs whose ring slots are freed at publication.
//! The caller decides when a turn may publish.

use super::cq::{Lane, LaneId};
use super::deferred::list::DeferredReceives;
use super::qp::Qp;
use super::shared::Shared;
use crate::proto::wqe::Cqe;
use crate::sync::lanes::CqLane;

#[derive(Default)]
pub(super) struct Completions {
    lanes: Vec<Option<Lane>>,
    /// Lanes with staged completions.
    pub staged: Vec<LaneId>,
    /// Queue pairs whose ring slots are freed when completions are published.
    pub finished: Vec<u32>,
    /// Queue pairs with deferred receive completions.
    pub deferring: usize,
    /// Slots of queue pairs whose staged receive completions are being withdrawn. Empty between two uses.
    pub withdrawing: Vec<u32>,
    /// Unused lists for deferred receive completions.
    #[allow(clippy::vec_box, reason = "the boxes move to queue pairs and back")]
    pub spare_lists: Vec<Box<DeferredReceives>>,
    /// [`Shared::overruns`](super::Shared::overruns) when the lanes were last checked.
    pub overruns_seen: u32,
}

impl Completions {
    /// Adds a lane.
    pub fn attach(&mut self, lane: Lane) -> LaneId {
        let free = self.lanes.iter().position(Option::is_none).unwrap_or(self.lanes.len());
        if free == self.lanes.len() {
            self.lanes.push(None);
        }
        self.lanes[free] = Some(lane);
        LaneId(free as u32)
    }

    /// Replaces a lane by a lane of the resized queue. Staged completions move along.
    pub fn replace(&mut self, lane: LaneId, new: CqLane<Cqe>) {
        if let Some(lane) = self.get(lane)
            && lane.writer.replace_with(new)
        {
            lane.notify();
        }
    }

    /// Removes a lane.
    pub fn detach(&mut self, lane: LaneId) {
        self.lanes[lane.0 as usize] = None;
    }

    /// The lane with this number, if there is one.
    #[inline(always)]
    pub fn get(&mut self, lane: LaneId) -> Option<&mut Lane> {
        self.lanes.get_mut(lane.0 as usize)?.as_mut()
    }

    pub fn iter_mut(&mut self) -> impl Iterator<Item = (LaneId, &mut Lane)> {
        let numbered = self.lanes.iter_mut().enumerate();
        numbered.filter_map(|(id, lane)| Some((LaneId(id as u32), lane.as_mut()?)))
    }

    /// Stages a completion. `false`: the completion queue is full, and the entry is lost.
    #[inline(always)]
    pub fn stage(&mut self, lane: LaneId, cqe: Cqe) -> bool {
        let Some(Some(to)) = self.lanes.get_mut(lane.0 as usize) else { return true };
        if !to.writer.has_staged() {
            self.staged.push(lane);
        }
        if cqe.solicited {
            to.writer.mark_solicited();
        }
        match to.writer.stage() {
            Ok(slot) => {
                *slot = cqe;
                true
            }
            Err(_) => false,
        }
    }

    /// Records that send requests completed: their slots are freed when the completions are published.
    #[inline]
    pub fn mark_sent(&mut self, qp: &mut Qp) {
        self.mark_finished(qp);
        qp.sends_finished = true;
    }

    /// As [`mark_sent`](Self::mark_sent), for receive requests.
    #[inline]
    pub fn mark_received(&mut self, qp: &mut Qp) {
        self.mark_finished(qp);
        qp.receives_finished = true;
    }

    #[inline]
    fn mark_finished(&mut self, qp: &Qp) {
        if !qp.sends_finished && !qp.receives_finished {
            self.finished.push(qp.slot);
        }
    }

    /// Whether publishing would change nothing.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.finished.is_empty() && self.staged.is_empty()
    }

    /// Whether completion queues overran since the lanes were last checked.
    #[inline]
    pub fn missed_overrun(&self, shared: &Shared) -> bool {
        shared.overruns() != self.overruns_seen
    }

    /// Makes staged completions visible. Events are raised in the order in which the lanes got their first completions.
    #[inline]
    pub fn publish(&mut self) {
        for at in 0..self.staged.len() {
            if let Some(lane) = self.get(self.staged[at])
                && lane.writer.publish()
            {
                lane.notify();
            }
        }
        self.staged.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shard::cq::CqState;
    use crate::sync::lanes::cq;
    use std::sync::Arc;

    fn lane(writer: CqLane<Cqe>) -> Lane {
        Lane { writer, cq: Arc::new(CqState::new(0, 0, None)), lost: false }
    }

    // Staged completions are visible once published, and not before; a full queue is reported.
    #[test]
    fn what_is_staged_is_seen_when_it_is_published() {
        let (mut reader, mut lanes) = cq::<Cqe>(2, 1);
        let mut completions = Completions::default();
        let id = completions.attach(lane(lanes.remove(0)));
        let cqe = |wr_id| Cqe { wr_id, ..Cqe::default() };
        assert!(completions.is_empty());
        assert!(completions.stage(id, cqe(1)) && completions.stage(id, cqe(2)));
        assert_eq!((completions.staged.as_slice(), reader.len()), (&[id][..], 0), "a lane is listed once");
        completions.publish();
        let mut seen = Vec::new();
        reader.poll_with(8, |cqe| seen.push(cqe.wr_id));
        assert_eq!(seen, [1, 2]);
        assert!(completions.is_empty());
        assert!((0..3).map(|n| completions.stage(id, cqe(n))).eq([true, true, false]));
        assert!(completions.stage(LaneId::NONE, cqe(3)), "no lane: it goes nowhere");
    }

    #[test]
    fn a_lane_takes_the_place_of_one_that_left() {
        let mut completions = Completions::default();
        let attach = |completions: &mut Completions| completions.attach(lane(cq(2, 1).1.remove(0))).0;
        assert_eq!([0; 3].map(|_| attach(&mut completions)), [0, 1, 2]);
        completions.detach(LaneId(1));
        assert!(completions.iter_mut().map(|(id, _)| id.0).eq([0, 2]));
        assert_eq!([0; 2].map(|_| attach(&mut completions)), [1, 3]);
    }
}
