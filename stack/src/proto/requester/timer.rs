//! The timer of a send queue: ACK timeout and RNR delay.

use crate::config::{RETRY_PATIENCE, TURN_SLACK};
use crate::proto::tables::ack_timeout_ns;
use crate::time::Instant;

/// What a send queue waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::proto) enum Awaited {
    /// The timer does not run.
    Nothing,
    /// An answer to what was sent, within the local ACK timeout (IBA 9.7.6.1.3).
    Answer,
    /// The same, for a little longer, to find out whether the peer's process is running.
    Look,
    /// The end of the delay of an RNR NAK. Nothing is sent until then.
    Receive,
}

/// What a send queue waits for, and until when. Packed, to take ten bytes in a queue pair instead of sixteen.
#[derive(Clone, Copy, Debug)]
#[repr(Rust, packed)]
pub(in crate::proto) struct Timer {
    /// When it expires; `FAR` if it does not run.
    end: Instant,
    awaited: Awaited,
    /// Exponent of the local ACK timeout, 0 = no timeout.
    timeout: u8,
}

const _: () = assert!(size_of::<Timer>() == 10);

impl Timer {
    /// The timer does not run, and no ACK timeout is set.
    pub const IDLE: Self = Self { end: Instant::FAR, awaited: Awaited::Nothing, timeout: 0 };

    /// Sets the exponent of the ACK timeout, which applies from the next start on.
    pub fn configure(&mut self, timeout: u8) {
        self.timeout = timeout;
    }

    /// Whether an ACK timeout is set.
    #[inline(always)]
    pub const fn has_timeout(&self) -> bool {
        self.timeout != 0
    }

    /// How long the ACK timer runs, in nanoseconds; `None` if no ACK timeout is set.
    #[inline(always)]
    pub fn timeout_ns(&self) -> Option<u64> {
        ack_timeout_ns(self.timeout).map(|ns| ns + TURN_SLACK.as_nanos() as u64)
    }

    /// How much longer than the ACK timeout T a retry after a timeout waits for its answer, in nanoseconds: up to 3T in all. IBA allows up
    /// to 4T (9.7.6.1.3). The first timeout is short, to detect loss; the later ones give a peer time that is a process and may not be
    /// running now.
    pub fn prolongation_ns(&self) -> u64 {
        let most = RETRY_PATIENCE.as_nanos() as u64;
        ack_timeout_ns(self.timeout).map_or(0, |ns| (2 * ns - TURN_SLACK.as_nanos() as u64).min(most))
    }

    /// When it expires; `FAR` if it does not run.
    #[inline(always)]
    pub const fn deadline(&self) -> Instant {
        self.end
    }

    /// Whether the delay of an RNR NAK runs.
    #[inline(always)]
    pub const fn is_rnr(&self) -> bool {
        matches!(self.awaited, Awaited::Receive)
    }

    /// Stops the timer.
    #[inline(always)]
    pub fn stop(&mut self) {
        *self = Self { timeout: self.timeout, ..Self::IDLE };
    }

    /// Waits for an answer until `end`.
    #[inline(always)]
    pub fn await_answer(&mut self, end: Instant) {
        (self.awaited, self.end) = (Awaited::Answer, end);
    }

    /// Waits for an answer until `end`, which is after the ACK timeout. Does so only once until there is an answer. Returns whether it
    /// waits.
    pub fn await_look(&mut self, end: Instant) -> bool {
        let first = self.awaited == Awaited::Answer;
        if first {
            (self.awaited, self.end) = (Awaited::Look, end);
        }
        first
    }

    /// Waits for the end of an RNR delay, at `end`.
    pub fn await_receive(&mut self, end: Instant) {
        (self.awaited, self.end) = (Awaited::Receive, end);
    }

    /// Starts the ACK timer, unless the timer runs.
    #[inline]
    pub fn arm(&mut self, now: Instant) {
        if self.awaited == Awaited::Nothing
            && let Some(ns) = self.timeout_ns()
        {
            self.await_answer(now.after_nanos(ns));
        }
    }

    /// Restarts the ACK timer.
    #[inline]
    pub fn rearm(&mut self, now: Instant) {
        match self.timeout_ns() {
            Some(ns) => self.await_answer(now.after_nanos(ns)),
            None => self.stop(),
        }
    }

    /// Whether the ACK timer runs.
    pub fn awaits_answer(&self) -> bool {
        matches!(self.awaited, Awaited::Answer | Awaited::Look)
    }

    /// Stops the timer if it has expired. Returns what it waited for; `Nothing` if it has not expired.
    pub fn expire(&mut self, now: Instant) -> Awaited {
        if now < self.deadline() {
            return Awaited::Nothing;
        }
        let awaited = self.awaited;
        self.stop();
        awaited
    }

    /// Corrects the delay of an RNR NAK that was handled in the turn that began at `then` but may have arrived as late as `now`: the delay
    /// counts from `now`.
    pub fn wait_from(&mut self, then: Instant, now: Instant) {
        if self.is_rnr() {
            self.end = self.deadline().after_nanos(now.nanos_since(then));
        }
    }

    /// Corrects the ACK timer for packets that were sent in the turn that began at `then` but may have left as late as `now`: if it started
    /// in that turn, it counts from `now`.
    pub fn left_by(&mut self, then: Instant, now: Instant) {
        if self.awaited == Awaited::Answer
            && let Some(ns) = self.timeout_ns()
            && self.deadline() == then.after_nanos(ns)
        {
            // One nanosecond less than a timer that starts at `now`, so that this one is not corrected again.
            self.end = now.after_nanos(ns - 1);
        }
    }
}
