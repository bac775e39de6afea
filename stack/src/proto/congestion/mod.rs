//! Congestion control: how many packets of a queue pair may leave, and when.
//!
//! A controller is told when packets leave and are acknowledged, when some were lost, and what the network says: marks on
//! received packets (CE, RFC 3168) and congestion notification packets (IBA A17.9.3). Each controller is a variant of
//! [`Congestion`] and a file. Its state lies in a box: the state of a queue pair has room for a pointer, and queue pairs
//! with the fixed window pay for nothing else.

use super::completer::RetryCause;
use crate::id::Psn;
use crate::time::Instant;

mod fixed;
#[cfg(test)]
mod probe;
#[cfg(test)]
mod tests;

#[cfg(test)]
pub(super) use probe::Probe;

/// A congestion controller.
#[derive(Default, Debug)]
pub(super) enum Congestion {
    /// A window of constant size, whatever the network says.
    #[default]
    FixedWindow,
    /// A window that a test sets, and a list of everything that it was told.
    #[cfg(test)]
    Probe(Box<Probe>),
}

/// What a controller is told.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Event {
    /// Request packets were built: the sequence numbers from `first` to before `behind`, those of a READ's responses among
    /// them. They leave with the turn's burst.
    Sent {
        /// Number of the first packet.
        first: Psn,
        /// The number behind the last one.
        behind: Psn,
        /// They had gone out before: an acknowledgement does not tell which of them it answers.
        again: bool,
    },
    /// What was built in the turn that began at this instant left later, shortly before now: the turn was a long one.
    LeftLate(Instant),
    /// Everything before this number is acknowledged.
    Acknowledged(Psn),
    /// Packets were lost, or seem so.
    Lost(RetryCause),
    /// It is the time that [`Congestion::resumes_at`] said: it says another one from now on.
    Resumed,
    /// A received packet was marked by a switch whose queue was long (CE). It is the direction to us that is congested.
    Marked,
    /// The peer received marked packets of ours (CNP).
    Notified,
}

impl Congestion {
    /// Request packets that may leave now, where so many are in flight.
    #[inline(always)]
    pub fn allowance(&self, now: Instant, in_flight: u32) -> u32 {
        match self {
            Self::FixedWindow => fixed::allowance(now, in_flight),
            #[cfg(test)]
            Self::Probe(probe) => probe.allowance(now, in_flight),
        }
    }

    /// When more may leave, whatever is acknowledged until then; `FAR` where only acknowledgements make room.
    #[inline(always)]
    pub fn resumes_at(&self) -> Instant {
        match self {
            Self::FixedWindow => Instant::FAR,
            #[cfg(test)]
            Self::Probe(probe) => probe.resumes_at,
        }
    }

    /// Something happened.
    #[inline(always)]
    pub fn handle(&mut self, now: Instant, event: Event) {
        match self {
            Self::FixedWindow => fixed::handle(now, event),
            #[cfg(test)]
            Self::Probe(probe) => probe.handle(now, event),
        }
    }
}
