//! Draining a queue pair: records where its queues end, and checks whether every request before that has its completion.
//!
//! A control call records the ends of the two rings, where a program on other devices posts marker requests. A later turn releases
//! slots and publishes their completions, both in the same turn, and a drain checks between two turns: a released slot has
//! its completion where the program polls. The data path knows nothing of this.

use super::qp::{Cause, Qp};
use super::state::Shard;
use crate::id::QpState;
use crate::proto::attr::{AttrMask, QpAttr};
use crate::proto::state::ModifyError;
use crate::time::Instant;

/// What a drain waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum DrainKind {
    /// Both queues, in ERR.
    Qp,
    /// The send queue, in ERR.
    Sq,
    /// The receive queue, in ERR.
    Rq,
    /// The send requests that had started, in SQD.
    Sqd,
}

/// The ends of the rings that a drain waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DrainMark {
    kind: DrainKind,
    /// The queue pair's epoch. RESET ends it, and discards all requests.
    epoch: u32,
    /// Sequence number behind the last send request posted before the drain.
    sq: u32,
    /// Sequence number behind the last receive request posted before the drain.
    rq: u32,
}

/// Whether a ring position is at or behind a mark.
fn reached(at: u32, mark: u32) -> bool {
    at.wrapping_sub(mark) as i32 >= 0
}

impl Qp {
    /// Whether the completion of every receive request before `mark` is published. This covers a request taken from a shared queue too: no
    /// message holds one, and its staged completion is published.
    fn receives_done(&self, mark: u32) -> bool {
        reached(self.rq.released(), mark)
            && !self.responder.holds_receive()
            && !self.receives_finished
            && self.deferred.is_none()
    }

    /// Whether the completion of every send request before `mark` is published.
    fn sends_done(&self, mark: u32) -> bool {
        reached(self.sq.0.released(), mark)
    }
}

impl Shard {
    /// Starts a drain: moves the queue pair to ERR (for [`DrainKind::Sqd`] to SQD, unless it is in ERR), and marks the ends of its
    /// queues.
    ///
    /// # Errors
    /// [`ModifyError`], for [`DrainKind::Sqd`] in a state from which SQD is not entered.
    pub fn begin_drain(
        &mut self,
        now: Instant,
        slot: u32,
        kind: DrainKind,
    ) -> Result<DrainMark, ModifyError> {
        let state = self.drained_qp(slot).state;
        let to = match (kind, state) {
            (DrainKind::Sqd, QpState::Sqd | QpState::Err) | (_, QpState::Err) => None,
            (DrainKind::Sqd, _) => Some(QpState::Sqd),
            _ => Some(QpState::Err),
        };
        if let Some(qp_state) = to {
            self.modify_qp(now, slot, &QpAttr { qp_state, ..QpAttr::default() }, AttrMask::STATE)?;
        }
        Ok(self.mark_ends(now, slot, kind))
    }

    /// Whether the drain is complete: every request before its marks has its completion where the program polls, or was discarded by a
    /// RESET. A failure that moves an SQD drain to ERR moves the mark: the drain then waits for both queues.
    pub fn drained(&mut self, now: Instant, slot: u32, mark: &mut DrainMark) -> bool {
        let qp = self.drained_qp(slot);
        if qp.epoch != mark.epoch {
            return true;
        }
        match (mark.kind, qp.state) {
            (DrainKind::Qp, _) => qp.sends_done(mark.sq) && qp.receives_done(mark.rq),
            (DrainKind::Sq, _) => qp.sends_done(mark.sq),
            (DrainKind::Rq, _) => qp.receives_done(mark.rq),
            (DrainKind::Sqd, QpState::Sqd) => !qp.draining && qp.sends_done(qp.sq_done),
            (DrainKind::Sqd, QpState::Err) => {
                *mark = self.mark_ends(now, slot, DrainKind::Qp);
                self.drained(now, slot, mark)
            }
            // Another call took the queue pair out of SQD, which it leaves only when drained.
            (DrainKind::Sqd, _) => true,
        }
    }

    fn mark_ends(&mut self, now: Instant, slot: u32, kind: DrainKind) -> DrainMark {
        let env = &mut self.env;
        env.now = now;
        let qp = self.qps.get(slot).expect("the device knows which slots are taken");
        if qp.state == QpState::Err {
            // Requests posted since ERR was entered need not wait for their doorbell.
            env.flush_queues(qp, Cause::default());
        }
        DrainMark { kind, epoch: qp.epoch, sq: qp.sq.0.published(), rq: qp.rq.published() }
    }

    fn drained_qp(&mut self, slot: u32) -> &mut Qp {
        self.qps.get(slot).expect("the device knows which slots are taken")
    }
}
