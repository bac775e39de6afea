//! The device's clock: the system's, or one that a simulation sets.

use core::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;

use crate::time::Instant;

/// The source of the device's time.
#[derive(Clone, Debug, Default)]
pub enum Clock {
    /// The system's monotonic clock, from the opening of the device on.
    #[default]
    Monotonic,
    /// Nanoseconds that the program sets: a simulation.
    Manual(Arc<AtomicU64>),
}

/// A clock that runs.
pub(super) enum ClockSource {
    /// The CPU's counter if its rate is constant, else the system's clock; and its reading at the origin.
    Monotonic(quanta::Clock, u64),
    Manual(Arc<AtomicU64>),
}

impl ClockSource {
    pub(super) fn new(clock: &Clock) -> Self {
        match clock {
            Clock::Monotonic => {
                let clock = quanta::Clock::new();
                let origin = clock.raw();
                Self::Monotonic(clock, origin)
            }
            Clock::Manual(ns) => Self::Manual(ns.clone()),
        }
    }
    #[inline]
    pub(super) fn now(&self) -> Instant {
        Instant::from_nanos(match self {
            Self::Monotonic(clock, origin) => clock.delta_as_nanos(*origin, clock.raw()),
            Self::Manual(ns) => ns.load(Ordering::Acquire),
        })
    }
}
