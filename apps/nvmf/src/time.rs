//! Instants. The crate reads no clock: callers pass `now` in.

use core::time::Duration;

/// Nanoseconds since an origin that the owner of the clock chose.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Hash, Debug)]
pub struct Instant(u64);

impl Instant {
    /// From nanoseconds since the origin.
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
