//! Coverage marks: which branch of the protocol a test went through.
//!
//! A mark stands in a branch that only trouble reaches (a retry, a NAK, a duplicate). In tests, and with the feature `marks`, each
//! thread counts the marks that it passes; otherwise [`hit`] compiles to nothing. The simulator's report names each mark, and a
//! run of many seeds fails if one was never hit.

macro_rules! marks {
    ($($(#[doc = $doc:literal])+ $name:ident $text:literal,)+) => {
        /// A branch of the protocol that tests must reach.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        #[repr(u8)]
        pub enum Mark {
            $($(#[doc = $doc])+ $name,)+
        }

        impl Mark {
            /// Every mark.
            pub const ALL: &'static [Self] = &[$(Self::$name,)+];
            /// Its name in a report.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$name => $text,)+
                }
            }
        }
    };
}

marks! {
    /// The requester waits: its window is full.
    WindowFull "window_full",
    /// The requester waits: its share of what the link may have in flight is used.
    ShareUsed "share_used",
    /// A READ is requested in parts.
    ReadInParts "read_in_parts",
    /// The requester waits: a fence.
    FenceWaits "fence_waits",
    /// The requester waits: as many READs and atomics as it may have are outstanding.
    ReadLimit "read_limit",
    /// The requester waits: no credits.
    NoCredits "no_credits",
    /// The last packet goes out again, only to request an acknowledgement.
    Probe "probe",
    /// A READ is requested again from its middle.
    ReadRestart "read_restart",
    /// A response to nothing that is outstanding.
    GhostAck "ghost_ack",
    /// A duplicate of the newest acknowledgement, with newer credits.
    CreditsAgain "credits_again",
    /// An RNR NAK starts a wait.
    RnrNak "rnr_nak",
    /// A NAK that comes while an RNR NAK is waited out.
    NakInRnrWait "nak_in_rnr_wait",
    /// The RNR retries are used up.
    RnrExhausted "rnr_exhausted",
    /// An RNR wait is over, and the packets go out again.
    RnrOver "rnr_over",
    /// A NAK for a sequence error.
    SequenceNak "sequence_nak",
    /// A NAK that ends the request.
    FatalNak "fatal_nak",
    /// An acknowledgement passed a READ or atomic without its response.
    ImpliedByAck "implied_by_ack",
    /// A response passed another one.
    ImpliedByResponse "implied_by_response",
    /// A second reason to go back before the first had any effect.
    GoBackAgain "go_back_again",
    /// The ACK timer ended.
    Timeout "timeout",
    /// The transport retries are used up.
    RetriesExhausted "retries_exhausted",
    /// An acknowledgement overtook the cursor of a retry.
    RetryOvertaken "retry_overtaken",
    /// The responder sees a gap of which the peer was not told.
    Gap "gap",
    /// The responder sees a gap behind which a NAK is out.
    GapAgain "gap_again",
    /// A duplicate SEND or WRITE.
    DuplicateMessage "duplicate_message",
    /// A duplicate that may not acknowledge a later READ or atomic.
    DuplicateHeldBack "duplicate_held_back",
    /// A duplicate READ.
    DuplicateRead "duplicate_read",
    /// A duplicate atomic: answered from its stored result, not executed.
    DuplicateAtomic "duplicate_atomic",
    /// A duplicate READ or atomic that is not in the replay store any more.
    DuplicateForgotten "duplicate_forgotten",
    /// A NAK is withdrawn, because the packet that it requested came first.
    NakWithdrawn "nak_withdrawn",
    /// No receive request: RNR NAK.
    NotReady "not_ready",
    /// The answer to a repeated READ is cut off by the next request.
    ReplayCutOff "replay_cut_off",
    /// A key was revoked between a READ and its response.
    ReadRevoked "read_revoked",
}

/// Number of marks.
pub const MARKS: usize = Mark::ALL.len();

/// Counts a step of a search, a list or a timer in this crate's own tests; otherwise it compiles to nothing.
#[inline(always)]
pub(crate) fn step() {
    #[cfg(test)]
    STEPS.with(|n| n.set(n.get() + 1));
}

#[cfg(test)]
thread_local! {
    static STEPS: core::cell::Cell<u64> = const { core::cell::Cell::new(0) };
}

/// Steps that the calling thread has counted.
#[cfg(test)]
pub(crate) fn steps() -> u64 {
    STEPS.with(core::cell::Cell::get)
}

#[cfg(any(test, feature = "marks"))]
mod counting {
    use super::{MARKS, Mark};
    use core::cell::Cell;

    thread_local! {
        static HITS: [Cell<u64>; MARKS] = const { [const { Cell::new(0) }; MARKS] };
    }

    /// Counts a mark, for this thread.
    #[inline]
    pub fn hit(mark: Mark) {
        HITS.with(|hits| hits[mark as usize].set(hits[mark as usize].get() + 1));
    }

    /// Marks that this thread hit since the last call, by index.
    pub fn take() -> [u64; MARKS] {
        HITS.with(|hits| core::array::from_fn(|i| hits[i].take()))
    }
}

#[cfg(not(any(test, feature = "marks")))]
mod counting {
    use super::{MARKS, Mark};

    /// Nothing: marks are not counted in this build.
    #[inline(always)]
    pub fn hit(_: Mark) {}

    /// Nothing was counted.
    pub fn take() -> [u64; MARKS] {
        [0; MARKS]
    }
}

pub use counting::{hit, take};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_are_counted_and_taken() {
        take();
        hit(Mark::Gap);
        hit(Mark::Gap);
        assert_eq!(take()[Mark::Gap as usize], 2);
        assert_eq!(take(), [0; MARKS]);
    }
}
