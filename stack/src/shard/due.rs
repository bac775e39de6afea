//! When a part of a shard has work to do.

use crate::time::Instant;

/// When a part has work, if no input arrives.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Due {
    Now,
    At(Instant),
    Never,
}

impl Due {
    /// `Now` if there is work, otherwise `Never`.
    pub fn now_if(work: bool) -> Self {
        if work { Self::Now } else { Self::Never }
    }
    /// At a time; `Never` for `None`.
    pub fn at(time: Option<Instant>) -> Self {
        time.map_or(Self::Never, Self::At)
    }
}
