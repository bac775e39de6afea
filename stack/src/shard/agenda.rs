//! Which queue pairs have something to do: lists of them by what it is, and their timers.
//!
//! A queue pair is in each list once at most, and knows whether it is. What is on a list may have gone meanwhile: whoever
//! takes a slot off a list looks the queue pair up.

use std::collections::VecDeque;

use arrayvec::ArrayVec;

use super::corrections::Corrections;
use super::qp::Qp;
use super::wheel::Wheel;
use crate::config::WATCHED_MAX;
use crate::time::Instant;

pub(super) struct Agenda {
    /// Queue pairs with requests to send.
    pub ready: VecDeque<u32>,
    /// Queue pairs with answers to send.
    pub answering: VecDeque<u32>,
    /// Queue pairs whose requests were answered in this turn.
    pub answered: Vec<u32>,
    /// Queue pairs whose send queues are looked at every turn: posting to them costs no doorbell.
    pub watched: ArrayVec<u32, WATCHED_MAX>,
    /// Their timers.
    pub wheel: Wheel,
    /// Timers that the next turn may have to correct.
    pub corrections: Corrections,
    /// There are so many queue pairs that each is likely to be in no cache: see [`Agenda::arm`].
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

    /// Whether a queue pair has something to send.
    #[inline]
    pub fn any_to_send(&self) -> bool {
        !self.ready.is_empty() || !self.answering.is_empty()
    }

    /// Marks a queue pair as having requests to send.
    #[inline]
    pub fn mark_ready(&mut self, qp: &mut Qp) {
        if !qp.in_ready {
            qp.in_ready = true;
            self.ready.push_back(qp.slot);
        }
    }

    /// Marks a queue pair as having answers to send.
    #[inline]
    pub fn mark_answering(&mut self, qp: &mut Qp) {
        if !qp.in_answering {
            qp.in_answering = true;
            self.answering.push_back(qp.slot);
        }
    }

    /// The requester's state moved: what follows from it is done once for all responses of a burst.
    #[inline(always)]
    pub fn mark_answered(&mut self, qp: &mut Qp) {
        if !qp.in_answered {
            qp.in_answered = true;
            self.answered.push(qp.slot);
        }
    }

    /// Has the queue pair woken at its deadline. Later deadlines are found when an earlier one fires, so this is seldom more
    /// than a comparison.
    ///
    /// Among many queue pairs, one that has no deadline any more leaves the wheel at once: both its neighbours there were
    /// scheduled a moment ago, like itself, while a timer that fires for nothing finds none of them in a cache.
    #[inline]
    pub fn arm(&mut self, qp: &mut Qp) {
        let deadline = qp.requester.deadline();
        if deadline < qp.wakes_at {
            qp.wakes_at = deadline;
            self.wheel.schedule(qp.slot, deadline);
        } else if self.cancels_timers && deadline == Instant::FAR && qp.wakes_at != Instant::FAR {
            self.disarm(qp);
        }
    }

    /// The queue pair is woken at no deadline.
    #[inline]
    pub fn disarm(&mut self, qp: &mut Qp) {
        qp.wakes_at = Instant::FAR;
        self.wheel.cancel(qp.slot);
    }
}
