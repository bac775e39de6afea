//! Which queue pairs have work: a list of their slots for each kind of work, and a timer wheel.
//!
//! A queue pair is on each list at most once, and a flag records that. A parked queue pair is on no list: its route in the outbox holds
//! it instead. A destroyed queue pair stays on its lists: code that takes a slot off a list checks whether a queue pair exists there,
//! and whether its flag is set.

use std::collections::VecDeque;

use arrayvec::ArrayVec;

use super::corrections::Corrections;
use super::due::Due;
use super::listed::Listed;
use super::qp::{Qp, SourcePort};
use super::qps::Qps;
use super::wheel::Wheel;
use crate::config::WATCHED_MAX;
use crate::time::Instant;

pub(super) struct Agenda {
    /// Queue pairs with requests to send.
    pub ready: VecDeque<u32>,
    /// Queue pairs with answers to send.
    pub answering: VecDeque<u32>,
    /// Queue pairs whose requests were acknowledged in this turn.
    pub answered: Vec<u32>,
    /// Queue pairs whose send queues are polled each turn: posting to them rings no doorbell.
    pub watched: ArrayVec<u32, WATCHED_MAX>,
    /// The timers of the queue pairs.
    pub wheel: Wheel,
    /// Timers that the next turn may have to move.
    pub corrections: Corrections,
    /// So many queue pairs exist that the state of each is likely to be in no cache: see [`Agenda::arm`].
    pub cancels_timers: bool,
}

impl Agenda {
    pub fn new(now: Instant) -> Self {
        Self {
            ready: VecDeque::new(),
            answering: VecDeque::new(),
            answered: Vec::new(),
            watched: ArrayVec::new(),
            wheel: Wheel::new(now),
            corrections: Corrections::default(),
            cancels_timers: false,
        }
    }

    /// Whether a queue pair has requests or answers to send.
    #[inline]
    pub fn any_to_send(&self) -> bool {
        !self.ready.is_empty() || !self.answering.is_empty()
    }

    /// Whether a turn left work on these lists.
    #[inline(always)]
    pub fn has_more(&self) -> bool {
        !self.corrections.waits.is_empty() || self.any_to_send()
    }

    /// When work on these lists is due.
    pub fn due(&self, qps: &Qps) -> Due {
        Due::now_if(self.has_more() || self.corrections.any() || self.watched_posts(qps))
            .min(Due::at(self.wheel.next_deadline()))
    }

    /// Marks a queue pair as having requests to send.
    #[inline]
    pub fn mark_ready(&mut self, qp: &mut Qp) {
        if qp.in_ready == Listed::No {
            qp.in_ready = Listed::Yes;
            self.ready.push_back(qp.slot);
        }
    }

    /// Marks a queue pair as having answers to send.
    #[inline]
    pub fn mark_answering(&mut self, qp: &mut Qp) {
        if qp.in_answering == Listed::No {
            qp.in_answering = Listed::Yes;
            self.answering.push_back(qp.slot);
        }
    }

    /// Moves a parked queue pair back to the ready list: its route has room.
    pub fn unpark_ready(&mut self, qp: &mut Qp) {
        if qp.in_ready == Listed::Parked {
            qp.in_ready = Listed::No;
            self.mark_ready(qp);
        }
    }

    /// As [`unpark_ready`](Self::unpark_ready), for answers.
    pub fn unpark_answering(&mut self, qp: &mut Qp) {
        if qp.in_answering == Listed::Parked {
            qp.in_answering = Listed::No;
            self.mark_answering(qp);
        }
    }

    /// The queue pair enters another state, or has another path: it no longer waits for room on its route.
    pub fn unpark(&mut self, qp: &mut Qp) {
        self.unpark_ready(qp);
        self.unpark_answering(qp);
    }

    /// The requester's state advanced: the follow-up work runs once for all responses of a burst.
    #[inline(always)]
    pub fn mark_answered(&mut self, qp: &mut Qp) {
        if !qp.in_answered {
            qp.in_answered = true;
            self.answered.push(qp.slot);
        }
    }

    /// Schedules a wake-up of the queue pair at its deadline. An earlier wake-up finds a later deadline when it fires, so this is seldom
    /// more than a comparison.
    ///
    /// Among many queue pairs, a queue pair without a deadline leaves the wheel at once. Its entry and those of its neighbours in the
    /// list are still cached, because all were scheduled a moment ago; when a timer fires without work, none of them is.
    #[inline]
    pub fn arm(&mut self, qp: &mut Qp) {
        let deadline = qp.requester.deadline();
        self.wake_at(qp, deadline);
        if self.cancels_timers
            && deadline == Instant::FAR
            && qp.wakes_at != Instant::FAR
            && !qp.checks_peer
            && !qp.has_held
            && qp.source_port != SourcePort::Tried
        {
            self.disarm(qp);
        }
    }

    /// Wakes the queue pair at this time, unless it wakes earlier anyway.
    #[inline]
    pub fn wake_at(&mut self, qp: &mut Qp, at: Instant) {
        if at < qp.wakes_at {
            qp.wakes_at = at;
            self.wheel.schedule(qp.slot, at);
        }
    }

    /// Cancels the wake-up of the queue pair.
    #[inline]
    pub fn disarm(&mut self, qp: &mut Qp) {
        qp.wakes_at = Instant::FAR;
        self.wheel.cancel(qp.slot);
    }
}

#[cfg(all(test, not(loom)))]
pub(super) mod tests {
    use super::*;
    use crate::id::{PdId, QpType, Qpn};
    use crate::proto::attr::QpCap;
    use crate::proto::requester::Policies;
    use crate::proto::wqe::{recv_stride, send_stride};
    use crate::shard::cq::LaneId;
    use crate::shard::qp::QpSpec;
    use crate::shard::scale::shared;
    use crate::sync::spsc::ring;

    pub fn qp(slot: u32) -> Qp {
        let spec = QpSpec {
            slot,
            qpn: Qpn::new(0x100 + slot),
            ty: QpType::Rc,
            pd: PdId(1),
            sq: ring(1, send_stride(0, 1, 0)).1,
            rq: ring(1, recv_stride(1)).1.into(),
            send_lane: LaneId::NONE,
            recv_lane: LaneId::NONE,
            cap: QpCap::default(),
            policies: Policies::default(),
        };
        Qp::new(spec, slot, 0, &shared(1, 8))
    }

    #[test]
    fn a_queue_pair_is_in_a_list_once() {
        let (mut agenda, mut a, mut b) = (Agenda::new(Instant::ZERO), qp(1), qp(2));
        assert!(!agenda.any_to_send());
        for qp in [&mut a, &mut b] {
            for _ in 0..2 {
                agenda.mark_ready(qp);
                agenda.mark_answering(qp);
                agenda.mark_answered(qp);
            }
        }
        assert_eq!((agenda.ready.len(), agenda.answering.len()), (2, 2));
        assert_eq!(agenda.answered, [1, 2]);
        assert!(agenda.any_to_send());
    }

    // A parked queue pair is in no list of the shard, and marking it changes nothing until it is unparked.
    #[test]
    fn a_parked_queue_pair_is_given_back_once() {
        let (mut agenda, mut qp) = (Agenda::new(Instant::ZERO), qp(1));
        (qp.in_ready, qp.in_answering) = (Listed::Parked, Listed::Parked);
        agenda.mark_ready(&mut qp);
        agenda.mark_answering(&mut qp);
        assert!(!agenda.any_to_send());
        agenda.unpark_ready(&mut qp);
        assert_eq!((agenda.ready.len(), agenda.answering.len()), (1, 0));
        for _ in 0..2 {
            agenda.unpark(&mut qp);
        }
        assert_eq!((agenda.ready.len(), agenda.answering.len()), (1, 1));
    }

    // A timer without a deadline stays until it fires, without work; among many queue pairs it is cancelled at once.
    #[test]
    fn a_timer_that_is_not_needed_fires_or_is_cancelled() {
        let (mut agenda, mut qp) = (Agenda::new(Instant::ZERO), qp(1));
        agenda.wheel.reserve(8);
        qp.wakes_at = Instant::from_nanos(1_000_000);
        agenda.wheel.schedule(qp.slot, qp.wakes_at);
        agenda.arm(&mut qp);
        assert!(agenda.wheel.is_scheduled(1));
        agenda.cancels_timers = true;
        agenda.arm(&mut qp);
        assert!(!agenda.wheel.is_scheduled(1));
        assert_eq!(qp.wakes_at, Instant::FAR);
    }
}
