//! Loss recovery: which packets are sent again after a sign that some were lost.
//!
//! The requester and the completer notice signs of loss, count retries and send; a scheme chooses the packets. Each scheme has a variant of
//! [`Scheme`], a variant of `Recovery`, and a file. A scheme with more state than `Repair` keeps it in a box, because a queue pair only has
//! room for a pointer. Go-back-N has no more.

use super::in_flight::InFlight;
use crate::id::Psn;

mod go_back_n;
#[cfg(test)]
mod probe;

#[cfg(test)]
pub(super) use probe::Probe;

/// Why packets are sent again, or why their work request failed without that.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RetryCause {
    /// NAK: PSN sequence error.
    SequenceNak,
    /// A later response or acknowledgement passed a READ or ATOMIC that is not answered.
    ImpliedNak,
    /// An RNR NAK. They are sent after its delay.
    Rnr,
    /// The local ACK timeout expired.
    Timeout,
    /// No packet followed some unsignalled requests, so none requested their acknowledgement: the last packet is sent again to request it.
    /// Does not use a retry.
    Probe,
    /// No packet is sent: the address of the next hop cannot be resolved.
    Unreachable,
    /// No packet is sent: the process of the peer, on this host, has ended or never existed.
    PeerEnded,
}

/// A scheme of loss recovery to choose for a queue pair.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Scheme {
    /// Everything from the oldest packet on is sent again (IBA 9.7.3.2).
    #[default]
    GoBackN,
    /// A scheme for tests.
    #[cfg(test)]
    Probe,
}

/// A scheme of loss recovery with its state.
#[derive(Default, Debug)]
pub(super) enum Recovery {
    /// See [`Scheme::GoBackN`].
    #[default]
    GoBackN,
    /// A scheme that a test configures; it records the events.
    #[cfg(test)]
    Probe(Box<Probe>),
}

/// State that all schemes have.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Repair {
    /// Whether packets are being sent again. Cleared by progress or a timeout.
    pub resending: bool,
    /// Whether the next packet requests the acknowledgement that earlier packets did not request.
    pub probing: bool,
}

impl Recovery {
    /// A scheme in its initial state.
    pub fn new(scheme: Scheme) -> Self {
        match scheme {
            Scheme::GoBackN => Self::GoBackN,
            #[cfg(test)]
            Scheme::Probe => Self::Probe(Box::default()),
        }
    }

    /// Which scheme this is.
    pub fn scheme(&self) -> Scheme {
        match self {
            Self::GoBackN => Scheme::GoBackN,
            #[cfg(test)]
            Self::Probe(_) => Scheme::Probe,
        }
    }

    /// Handles a sign of loss. Returns the PSN of the first packet to send again; `None` if the sign tells nothing new.
    #[inline]
    pub fn handle_loss(
        &mut self,
        repair: &mut Repair,
        in_flight: &InFlight,
        cause: RetryCause,
    ) -> Option<Psn> {
        match self {
            Self::GoBackN => go_back_n::handle_loss(repair, in_flight, cause),
            #[cfg(test)]
            Self::Probe(probe) => probe.handle_loss(repair, in_flight, cause),
        }
    }

    /// The PSN of the packet to send next, after the packet before `behind` was handed out.
    #[inline(always)]
    pub fn next(&self, in_flight: &InFlight, behind: Psn) -> Psn {
        match self {
            Self::GoBackN => go_back_n::next(in_flight, behind),
            #[cfg(test)]
            Self::Probe(probe) => probe.next(in_flight, behind),
        }
    }

    /// Handles progress: the oldest packet in flight is acknowledged.
    #[inline(always)]
    pub fn handle_progress(&mut self, repair: &mut Repair, in_flight: &InFlight) {
        match self {
            Self::GoBackN => go_back_n::handle_progress(repair, in_flight),
            #[cfg(test)]
            Self::Probe(probe) => probe.handle_progress(repair, in_flight),
        }
    }
}
