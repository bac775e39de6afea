//! The timer of a send queue.

use crate::config::{RETRY_PATIENCE, TURN_SLACK};
use crate::proto::tables::ack_timeout_ns;
use crate::time::Instant;

/// What a send queue waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::proto) enum Awaited {
    /// Nothing is timed.
    Nothing,
    /// An answer to what was sent: the local ACK timeout (IBA 9.7.6.1.3).
    Answer,
    /// Likewise, a little longer: to see whether the peer runs.
    Look,
    /// The end of the delay of an RNR NAK: nothing is sent meanwhile.
    Receive,
}

/// What a send queue waits for, and until when. Packed: it has ten bytes of a queue pair, and not sixteen.
#[derive(Clone, Copy, Debug)]
#[repr(Rust, packed)]
pub(in crate::proto) struct Timer {
    /// When it ends; `FAR` where nothing is timed.
    end: Instant,
    awaited: Awaited,
    /// Exponent of the local ACK timeout, 0 = none.
    timeout: u8,
}

const _: () = assert!(size_of::<Timer>() == 10);

impl Timer {
    /// Nothing is timed, and no ACK timeout is set.
    pub const IDLE: Self = Self { end: Instant::FAR, awaited: Awaited::Nothing, timeout: 0 };

    /// Another ACK timeout, from the next start on.
    pub fn configure(&mut self, timeout: u8) {
        self.timeout = timeout;
    }

    /// Whether an ACK timeout is set.
    #[inline(always)]
    pub const fn has_timeout(&self) -> bool {
        self.timeout != 0
    }

    /// How long the ACK timer runs; `None` without a timeout.
    #[inline(always)]
    pub fn timeout_ns(&self) -> Option<u64> {
        ack_timeout_ns(self.timeout).map(|ns| ns + TURN_SLACK.as_nanos() as u64)
    }

    /// How much longer than the ACK timeout T a retry after a timeout waits for its answer: up to 3T in all. IBA allows anything
    /// up to 4T (9.7.6.1.3): the first timeout is short, for what was lost, and the others leave time to a peer that is a process
    /// and is not running now.
    pub fn prolongation_ns(&self) -> u64 {
        let most = RETRY_PATIENCE.as_nanos() as u64;
        ack_timeout_ns(self.timeout).map_or(0, |ns| (2 * ns - TURN_SLACK.as_nanos() as u64).min(most))
    }

    /// When it ends; `FAR` where nothing is timed.
    #[inline(always)]
    pub const fn deadline(&self) -> Instant {
        self.end
    }

    /// Whether an RNR NAK is waited out.
    #[inline(always)]
    pub const fn is_rnr(&self) -> bool {
        matches!(self.awaited, Awaited::Receive)
    }

    /// Nothing is timed any more.
    #[inline(always)]
    pub fn stop(&mut self) {
        *self = Self { timeout: self.timeout, ..Self::IDLE };
    }

    /// Waits for an answer until `end`.
    #[inline(always)]
    pub fn await_answer(&mut self, end: Instant) {
        (self.awaited, self.end) = (Awaited::Answer, end);
    }

    /// Waits for an answer until `end`, longer than the ACK timeout: once, until there is an answer. Whether it does.
    pub fn await_look(&mut self, end: Instant) -> bool {
        let first = self.awaited == Awaited::Answer;
        if first {
            (self.awaited, self.end) = (Awaited::Look, end);
        }
        first
    }

    /// Sends nothing until `end`.
    pub fn await_receive(&mut self, end: Instant) {
        (self.awaited, self.end) = (Awaited::Receive, end);
    }

    /// Starts the ACK timer, unless something is timed.
    #[inline]
    pub fn arm(&mut self, now: Instant) {
        if self.awaited == Awaited::Nothing
            && let Some(ns) = self.timeout_ns()
        {
            self.await_answer(now.after_nanos(ns));
        }
    }

    /// Starts the ACK timer anew.
    #[inline]
    pub fn rearm(&mut self, now: Instant) {
        match self.timeout_ns() {
            Some(ns) => self.await_answer(now.after_nanos(ns)),
            None => self.stop(),
        }
    }

    /// Whether an answer is waited for.
    pub fn awaits_answer(&self) -> bool {
        matches!(self.awaited, Awaited::Answer | Awaited::Look)
    }

    /// Stops the timer if it has ended. What it timed.
    pub fn expire(&mut self, now: Instant) -> Awaited {
        if now < self.deadline() {
            return Awaited::Nothing;
        }
        let awaited = self.awaited;
        self.stop();
        awaited
    }

    /// An RNR NAK handled in the turn that began at `then` may have arrived as late as `now`: its delay counts from `now`.
    pub fn wait_from(&mut self, then: Instant, now: Instant) {
        if self.is_rnr() {
            self.end = self.deadline().after_nanos(now.nanos_since(then));
        }
    }

    /// What was sent in the turn that began at `then` may have left as late as `now`: an ACK timer that started with it counts from
    /// `now`.
    pub fn left_by(&mut self, then: Instant, now: Instant) {
        if self.awaited == Awaited::Answer
            && let Some(ns) = self.timeout_ns()
            && self.deadline() == then.after_nanos(ns)
        {
            // One nanosecond less than a timer started at `now` has, so that it is not corrected again.
            self.end = now.after_nanos(ns - 1);
        }
    }
}
