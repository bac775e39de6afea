//! Loss recovery: which packets go out again after a sign that some were lost.
//!
//! The requester and the completer notice signs of loss, count retries and send; a scheme chooses the packets. Each scheme
//! is a variant of [`Scheme`] and of `Recovery`, and a file. A scheme that remembers more than `Repair` keeps it in a box: a
//! queue pair has room for a pointer, and one with go-back-N needs no more.

use super::in_flight::InFlight;
use crate::id::Psn;

mod go_back_n;
#[cfg(test)]
mod probe;

#[cfg(test)]
pub(super) use probe::Probe;

/// Why packets go out again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RetryCause {
    /// NAK: PSN sequence error.
    SequenceNak,
    /// A later response or acknowledgement passed a READ or ATOMIC that is not answered.
    ImpliedNak,
    /// RNR NAK: after its delay.
    Rnr,
    /// The local ACK timeout.
    Timeout,
    /// Nothing followed unsignalled requests, so nothing requested their acknowledgement: the last packet goes
    /// out again to request it. Not charged to the retry count.
    Probe,
    /// No packet goes out: nobody answers for the address of the next hop.
    Unreachable,
    /// No packet goes out: the process of the peer, on this host, has ended, or there was none.
    PeerEnded,
}

/// A scheme of loss recovery, as it is chosen for a queue pair.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Scheme {
    /// Everything from the oldest packet on goes out again (IBA 9.7.3.2).
    #[default]
    GoBackN,
    /// A scheme for tests.
    #[cfg(test)]
    Probe,
}

/// A scheme of loss recovery at work.
#[derive(Default, Debug)]
pub(super) enum Recovery {
    /// See [`Scheme::GoBackN`].
    #[default]
    GoBackN,
    /// As a test configures it; it records what it is told.
    #[cfg(test)]
    Probe(Box<Probe>),
}

/// The state of a repair that all schemes have.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Repair {
    /// Packets go out again: until there is progress, or a timeout.
    pub resending: bool,
    /// The next packet requests the acknowledgement that earlier packets did not request.
    pub probing: bool,
}

impl Recovery {
    /// A scheme at the start of a connection.
    pub fn new(scheme: Scheme) -> Self {
        match scheme {
            Scheme::GoBackN => Self::GoBackN,
            #[cfg(test)]
            Scheme::Probe => Self::Probe(Box::default()),
        }
    }

    /// Which one it is.
    pub fn scheme(&self) -> Scheme {
        match self {
            Self::GoBackN => Scheme::GoBackN,
            #[cfg(test)]
            Self::Probe(_) => Scheme::Probe,
        }
    }

    /// A sign of loss. Returns the first packet that is to go out again; `None` where the sign tells nothing new.
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

    /// Which packet follows the one before `behind`, which has just been handed out.
    #[inline(always)]
    pub fn next(&self, in_flight: &InFlight, behind: Psn) -> Psn {
        match self {
            Self::GoBackN => go_back_n::next(in_flight, behind),
            #[cfg(test)]
            Self::Probe(probe) => probe.next(in_flight, behind),
        }
    }

    /// The oldest packet in flight is another one now.
    #[inline(always)]
    pub fn handle_progress(&mut self, repair: &mut Repair, in_flight: &InFlight) {
        match self {
            Self::GoBackN => go_back_n::handle_progress(repair, in_flight),
            #[cfg(test)]
            Self::Probe(probe) => probe.handle_progress(repair, in_flight),
        }
    }
}
