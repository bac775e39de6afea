//! Corrects timers that would fire too early because a turn took long.
//!
//! A turn reads the clock once, when it begins, and its timers count from then. If the thread is interrupted in the turn, a packet
//! leaves later: a retransmission would come before the ACK timeout, a retry before the delay of an RNR NAK has passed. The next turn
//! reads the clock again, and everything that the last turn sent was sent before that. So RNR delays that began in the last turn count
//! from the new time, and so do its ACK timers if the turn was long. No packet costs a clock read. The duration of a turn of usual
//! length is added to ACK timeouts ([`TURN_SLACK`]).

use arrayvec::ArrayVec;

use super::qps::Qps;
use crate::config::{READY_BUDGET, TURN_SLACK};
use crate::time::Instant;

#[derive(Debug, Default)]
pub(super) struct Corrections {
    /// When the last turn began.
    began: Instant,
    /// Queue pairs that began an RNR delay in the last turn.
    pub waits: Vec<u32>,
    /// Queue pairs that were visited to send requests in the last turn.
    pub sent: ArrayVec<u32, READY_BUDGET>,
}

impl Corrections {
    /// Whether the next turn has deadlines to correct: it should come soon.
    #[inline]
    pub fn any(&self) -> bool {
        !self.sent.is_empty() || !self.waits.is_empty()
    }

    /// Begins a turn: corrects deadlines of the last turn where needed.
    #[inline]
    pub fn begin_turn(&mut self, now: Instant, qps: &mut Qps) {
        let began = core::mem::replace(&mut self.began, now);
        let long = now.nanos_since(began) > TURN_SLACK.as_nanos() as u64 && !self.sent.is_empty();
        if long || !self.waits.is_empty() {
            self.correct(began, now, qps);
        }
        self.sent.clear();
    }

    /// What the turn that began at `began` did, it did before `now`.
    #[cold]
    fn correct(&mut self, began: Instant, now: Instant, qps: &mut Qps) {
        // The wheel wakes these queue pairs too early, and then finds the later deadline.
        for slot in self.waits.drain(..) {
            if let Some(qp) = qps.get(slot) {
                qp.requester.wait_from(began, now);
            }
        }
        for &slot in &self.sent {
            if let Some(qp) = qps.get(slot) {
                qp.requester.left_by(began, now);
            }
        }
    }
}
