//! Congestion control: how many packets of a queue pair may be sent, and when.
//!
//! A controller is told when packets are sent, acknowledged or lost, and what the network reports: marks on received packets (CE, RFC 3168)
//! and congestion notification packets (IBA A17.9.3). Each controller has a variant of [`Controller`], a variant of `Congestion`, and a
//! file. A controller with state keeps it in a box, because a queue pair only has room for a pointer. The fixed window has no state.

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

/// A congestion controller to choose for a queue pair.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Controller {
    /// A window of constant size, whatever the network reports.
    #[default]
    FixedWindow,
    /// A controller for tests, with a window of this many packets.
    #[cfg(test)]
    Probe(u32),
}

/// A congestion controller with its state.
#[derive(Default, Debug)]
pub(super) enum Congestion {
    /// See [`Controller::FixedWindow`].
    #[default]
    FixedWindow,
    /// A window that a test sets, and a list of the events.
    #[cfg(test)]
    Probe(Box<Probe>),
}

/// An event for a controller.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Event {
    /// Request packets were built, with the PSNs from `first` to before `behind`, including those of READ responses. They are sent with the
    /// burst of the turn.
    Sent {
        /// PSN of the first packet.
        first: Psn,
        /// The PSN after the last one.
        behind: Psn,
        /// Bytes of their payload, to measure a rate by. READ responses do not count: the peer sends them.
        bytes: u64,
        /// Whether they were sent before. If so, an acknowledgement does not tell which transmission it answers.
        again: bool,
    },
    /// The turn that began at this time took long, and the packets sent in it may have left the port as late as now. A controller that
    /// remembers when packets were sent corrects those times to now.
    LeftLate(Instant),
    /// All packets before this PSN are acknowledged.
    Acknowledged(Psn),
    /// Packets were lost, or seem to be.
    Lost(RetryCause),
    /// The time that [`Congestion::resumes_at`] returned has come. From now on it returns another one.
    Resumed,
    /// A received packet was marked by a switch with a long queue (CE): the direction towards us is congested.
    Marked,
    /// The peer received marked packets of ours, as a CNP says.
    Notified,
}

impl Congestion {
    /// A controller in its initial state.
    pub fn new(controller: Controller) -> Self {
        match controller {
            Controller::FixedWindow => Self::FixedWindow,
            #[cfg(test)]
            Controller::Probe(window) => Self::Probe(Box::new(Probe::new(window))),
        }
    }

    /// Which controller this is.
    pub fn controller(&self) -> Controller {
        match self {
            Self::FixedWindow => Controller::FixedWindow,
            #[cfg(test)]
            Self::Probe(probe) => Controller::Probe(probe.window),
        }
    }

    /// How many more request packets may be sent now, with `in_flight` of them in flight.
    #[inline(always)]
    pub fn allowance(&self, now: Instant, in_flight: u32) -> u32 {
        match self {
            Self::FixedWindow => fixed::allowance(now, in_flight),
            #[cfg(test)]
            Self::Probe(probe) => probe.allowance(now, in_flight),
        }
    }

    /// When more packets may be sent even if nothing is acknowledged until then; [`Instant::FAR`] if that takes an acknowledgement.
    #[inline(always)]
    pub fn resumes_at(&self) -> Instant {
        match self {
            Self::FixedWindow => Instant::FAR,
            #[cfg(test)]
            Self::Probe(probe) => probe.resumes_at,
        }
    }

    /// Tells the controller of an event.
    #[inline(always)]
    pub fn handle(&mut self, now: Instant, event: Event) {
        match self {
            Self::FixedWindow => fixed::handle(now, event),
            #[cfg(test)]
            Self::Probe(probe) => probe.handle(now, event),
        }
    }
}
