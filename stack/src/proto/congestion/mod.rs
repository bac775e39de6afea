//! Congestion control: how many packets of a queue pair may leave, and when.
//!
//! A controller is told when packets leave and are acknowledged, when some were lost, and what the network says: marks on
//! received packets (CE, RFC 3168) and congestion notification packets (IBA A17.9.3). Each controller is a variant of
//! [`Controller`] and of `Congestion`, and a file. Its state is in a box: a queue pair has room for a pointer, and one with the fixed
//! window needs no more.

use super::recovery::RetryCause;
use crate::id::Psn;
use crate::time::Instant;

mod fixed;
#[cfg(test)]
mod probe;
#[cfg(test)]
mod tests;

#[cfg(test)]
pub(super) use probe::Probe;

/// A congestion controller, as it is chosen for a queue pair.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Controller {
    /// A window of constant size, whatever the network says.
    #[default]
    FixedWindow,
    /// A controller for tests, with a window of so many packets.
    #[cfg(test)]
    Probe(u32),
}

/// A congestion controller at work.
#[derive(Default, Debug)]
pub(super) enum Congestion {
    /// See [`Controller::FixedWindow`].
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
        /// Bytes of their payload: what a rate is measured by. A READ's are the peer's to send.
        bytes: u64,
        /// They went out before: an acknowledgement does not tell which transmission it answers.
        again: bool,
    },
    /// The turn that began at this instant took long, and what was sent in it may have left the port as late as now. A controller
    /// that remembers when packets were sent takes that time for them instead.
    LeftLate(Instant),
    /// Everything before this number is acknowledged.
    Acknowledged(Psn),
    /// Packets were lost, or seem so.
    Lost(RetryCause),
    /// The time that [`Congestion::resumes_at`] returned has come; from now on it returns another one.
    Resumed,
    /// A received packet was marked by a switch whose queue was long (CE). It is the direction to us that is congested.
    Marked,
    /// The peer received marked packets of ours (CNP).
    Notified,
}

impl Congestion {
    /// A controller at the start of a connection.
    pub fn new(controller: Controller) -> Self {
        match controller {
            Controller::FixedWindow => Self::FixedWindow,
            #[cfg(test)]
            Controller::Probe(window) => Self::Probe(Box::new(Probe::new(window))),
        }
    }

    /// Which one it is.
    pub fn controller(&self) -> Controller {
        match self {
            Self::FixedWindow => Controller::FixedWindow,
            #[cfg(test)]
            Self::Probe(probe) => Controller::Probe(probe.window),
        }
    }

    /// Request packets that may leave now, with `in_flight` of them in flight.
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

    /// Tells the controller what happened.
    #[inline(always)]
    pub fn handle(&mut self, now: Instant, event: Event) {
        match self {
            Self::FixedWindow => fixed::handle(now, event),
            #[cfg(test)]
            Self::Probe(probe) => probe.handle(now, event),
        }
    }
}
