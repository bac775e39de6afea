//! The timer of a send queue.

use core::fmt;

use crate::time::Instant;

/// What a send queue waits for, and until when.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::proto) enum Timer {
    /// Nothing is timed.
    Idle,
    /// An answer to what was sent: the local ACK timeout (IBA 9.7.6.1.3).
    Ack(Deadline),
    /// The delay of an RNR NAK: nothing is sent meanwhile.
    Rnr(Deadline),
}

impl Timer {
    /// The ACK timer, until `end`.
    #[inline(always)]
    pub fn ack(end: Instant) -> Self {
        Self::Ack(Deadline::new(end))
    }

    /// The wait after an RNR NAK, until `end`.
    pub fn rnr(end: Instant) -> Self {
        Self::Rnr(Deadline::new(end))
    }

    /// When it ends; `FAR` where nothing is timed.
    #[inline(always)]
    pub fn deadline(self) -> Instant {
        match self {
            Self::Idle => Instant::FAR,
            Self::Ack(end) | Self::Rnr(end) => end.get(),
        }
    }

    /// Whether an RNR NAK is waited out.
    #[inline(always)]
    pub fn is_rnr(self) -> bool {
        matches!(self, Self::Rnr(_))
    }
}

/// An [`Instant`] without alignment: an enum of the hot state grows by eight bytes with it, by sixteen with an `Instant`.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(in crate::proto) struct Deadline([u8; 8]);

impl Deadline {
    #[inline(always)]
    const fn new(at: Instant) -> Self {
        Self(at.as_nanos().to_ne_bytes())
    }
    #[inline(always)]
    pub const fn get(self) -> Instant {
        Instant::from_nanos(u64::from_ne_bytes(self.0))
    }
}

impl fmt::Debug for Deadline {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.get().fmt(f)
    }
}

const _: () = assert!(size_of::<Timer>() == 9);
