//! Points in time. The crate does not read the clock: callers pass `now`.

use core::time::Duration;

/// A point in time: nanoseconds since an origin that the program chooses.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Hash, Debug)]
pub struct Instant(u64);

impl Instant {
    /// Makes an instant from nanoseconds since the origin.
    pub const fn from_nanos(ns: u64) -> Self {
        Self(ns)
    }
    /// Nanoseconds since the origin.
    pub const fn as_nanos(self) -> u64 {
        self.0
    }
    /// `self + d`, saturating.
    #[must_use]
    pub const fn after(self, d: Duration) -> Self {
        let ns = d.as_nanos();
        let ns = if ns > u64::MAX as u128 { u64::MAX } else { ns as u64 };
        Self(self.0.saturating_add(ns))
    }
}
