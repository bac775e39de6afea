//! Instants. This module defines the type and reads no clock: callers pass `now` in.

use core::fmt;
use core::time::Duration;

/// Nanoseconds since an origin that the owner of the clock chose.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Hash)]
pub struct Instant(u64);

impl Instant {
    /// The origin.
    pub const ZERO: Self = Self(0);
    /// Later than every deadline.
    pub const FAR: Self = Self(u64::MAX);

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
        self.after_nanos(if ns > u64::MAX as u128 { u64::MAX } else { ns as u64 })
    }
    /// `self + ns`, saturating.
    #[must_use]
    pub const fn after_nanos(self, ns: u64) -> Self {
        Self(self.0.saturating_add(ns))
    }
    /// Nanoseconds from `earlier` to `self`, 0 if it is not earlier.
    pub const fn nanos_since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

impl fmt::Debug for Instant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.3}us", self.0 as f64 / 1e3)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn far_away_is_far_and_not_soon() {
        let start = Instant::from_nanos(5);
        assert_eq!(start.after(Duration::from_nanos(u64::MAX - 5)), Instant::FAR);
        // One second more than 64 bits of nanoseconds hold.
        assert_eq!(start.after(Duration::from_secs(18_446_744_074)), Instant::FAR);
        assert_eq!(start.after(Duration::MAX), Instant::FAR);
    }
}
