//! A check of the peer: whether it still has its queue pair, where nothing in flight tells.
//!
//! The packet of a check is a duplicate: an empty SEND with the number before the oldest that is not acknowledged, which requests
//! an acknowledgement. A responder recognises a duplicate by its number before it looks at anything else of it, and acknowledges
//! a duplicate SEND without carrying it out (IBA 9.7.5.1.4, C9-105), whichever request had that number, or none, as before the
//! first one. So a check needs no right and no receive request at the peer, and here neither a number nor a place in the send
//! queue. It is never a duplicate of what had the number: a READ would be carried out again, an atomic has to be in the replay
//! store.
//!
//! What answers is not always the acknowledgement that the specification names: soft-RoCE acknowledges the last message before
//! its READs, and before the first message number 0xffffff. So any response of the peer counts.

use super::{Requester, Retries};
use crate::id::Psn;
use crate::proto::tables::ack_timeout_ns;
use crate::time::Instant;

/// Exponent of the timeout of a check where the queue pair has none: 0.5 s, as connections of Linux to soft-RoCE have it.
const TIMEOUT: u8 = 17;

/// A check that is under way.
#[derive(Debug)]
pub struct CheckProgress {
    /// As many as a request has.
    retries: Retries,
    /// The oldest number without an acknowledgement when it began: when that moves, the peer has answered.
    una: Psn,
    /// Whether a packet of it left.
    asked: bool,
    /// When to go on if the peer says nothing.
    due: Instant,
}

impl CheckProgress {
    /// When [`Requester::poll_check`] is due.
    pub fn due(&self) -> Instant {
        self.due
    }
}

/// How a check goes on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CheckStep {
    /// Its packet goes out: RC SEND ONLY without payload, with this number, requesting an acknowledgement. Then it waits.
    Send(Psn),
    /// A packet that is in flight goes out again, as it has not requested an acknowledgement: have the requester send. It waits then.
    Resend,
    /// It waits until [`CheckProgress::due`], unless a response comes before.
    Wait,
    /// The peer answered.
    Answered,
    /// The peer answered none of as many packets as a request is tried with.
    Silent,
}

impl Requester {
    /// Begins a check of the peer. A response that answers nothing in flight ends it, which the caller sees; for all else there
    /// is [`poll_check`](Self::poll_check).
    pub fn begin_check(&self, now: Instant) -> CheckProgress {
        let mut retries = self.retries;
        retries.restore();
        CheckProgress { retries, una: self.in_flight.una(), asked: false, due: now }
    }

    /// The next step of a check.
    pub fn poll_check(&mut self, now: Instant, check: &mut CheckProgress) -> CheckStep {
        if self.in_flight.una() != check.una {
            return CheckStep::Answered;
        }
        if now < check.due {
            return CheckStep::Wait;
        }
        // What is in flight asks already, or will after an RNR NAK: it is answered, or fails and ends the queue pair.
        if !self.in_flight.is_empty() && self.timer.has_timeout() {
            check.due = now.after_nanos(self.check_timeout_ns());
            if !self.lacks_ack_request() {
                return CheckStep::Wait;
            }
            self.probe();
            return CheckStep::Resend;
        }
        if check.asked {
            if check.retries.prolong() {
                check.due = now.after_nanos(self.timer.prolongation_ns());
                return CheckStep::Wait;
            }
            if !check.retries.take() {
                return CheckStep::Silent;
            }
            check.retries.be_patient();
        }
        check.asked = true;
        check.due = now.after_nanos(self.check_timeout_ns());
        CheckStep::Send(self.in_flight.una().sub(1))
    }

    fn check_timeout_ns(&self) -> u64 {
        self.timer.timeout_ns().or(ack_timeout_ns(TIMEOUT)).unwrap_or(u64::MAX)
    }
}
