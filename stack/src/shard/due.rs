//! When a part of a shard has something to do.

use crate::time::Instant;

/// When a part has something to do if nothing comes from outside.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Due {
    Now,
    At(Instant),
    Never,
}

impl Due {
    /// Now, or never.
    pub fn now_if(work: bool) -> Self {
        if work { Self::Now } else { Self::Never }
    }
    /// At a time, if there is one.
    pub fn at(time: Option<Instant>) -> Self {
        time.map_or(Self::Never, Self::At)
    }
}
