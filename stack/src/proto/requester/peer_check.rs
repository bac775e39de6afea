//! A check whether the peer still has its queue pair, for when nothing in flight will show it.
//!
//! The packet of a check is a duplicate: an empty SEND with the PSN before the oldest that is not acknowledged, which requests an
//! acknowledgement. A responder recognizes a duplicate by its PSN before it checks anything else, and acknowledges a duplicate SEND without
//! carrying it out (IBA 9.7.5.1.4, C9-105). It does so whatever request had that PSN, and even if none had, as at the start of a
//! connection. So a check needs neither access rights nor a receive request at the peer, and neither a PSN nor a slot of the send queue
//! here. The packet is always a SEND, even if the request with that PSN was not: a duplicate READ would be carried out again, and a
//! duplicate atomic must be in the responder's replay store.
//!
//! The answer is not always the acknowledgement that is specified: soft-RoCE acknowledges the last message before its READs, and PSN
//! 0xffffff before the first message. So any response of the peer counts.

use super::{Requester, Retries};
use crate::id::Psn;
use crate::proto::tables::ack_timeout_ns;
use crate::time::Instant;

/// Exponent of the timeout of a check if the queue pair has none: 0.5 s, as in connections from Linux to soft-RoCE.
const TIMEOUT: u8 = 17;

/// The state of a check.
#[derive(Debug)]
pub struct CheckProgress {
    /// As many retries as a request has.
    retries: Retries,
    /// The oldest PSN that was not acknowledged when the check began. If it changes, the peer has answered.
    una: Psn,
    /// Whether a packet of the check was sent.
    asked: bool,
    /// When to continue if the peer does not answer.
    due: Instant,
}

impl CheckProgress {
    /// When to call [`Requester::poll_check`].
    pub fn due(&self) -> Instant {
        self.due
    }
}

/// What to do next in a check.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CheckStep {
    /// Send the packet of the check: RC SEND ONLY without payload, with this PSN, requesting an acknowledgement. Then wait.
    Send(Psn),
    /// Let the requester send: a packet in flight has to be sent again, because none requested an acknowledgement. Then wait.
    Resend,
    /// Wait until [`CheckProgress::due`], unless a response comes before.
    Wait,
    /// The peer answered.
    Answered,
    /// The peer did not answer, after as many packets as a request would be sent.
    Silent,
}

impl Requester {
    /// Begins a check of the peer. If a response arrives that answers nothing in flight, the peer has answered, and the caller must end the
    /// check. Everything else is handled by [`poll_check`](Self::poll_check).
    pub fn begin_check(&self, now: Instant) -> CheckProgress {
        let mut retries = self.retries;
        retries.restore();
        CheckProgress { retries, una: self.in_flight.una(), asked: false, due: now }
    }

    /// Returns the next step of a check.
    pub fn poll_check(&mut self, now: Instant, check: &mut CheckProgress) -> CheckStep {
        if self.in_flight.una() != check.una {
            return CheckStep::Answered;
        }
        if now < check.due {
            return CheckStep::Wait;
        }
        // What is in flight requests an acknowledgement already, or will after an RNR NAK. It is answered, or it fails and ends the queue
        // pair.
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
