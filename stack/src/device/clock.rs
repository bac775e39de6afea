//! The device's clock: monotonic time, or time that a simulation sets.

use core::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;

use crate::time::Instant;

/// The clock that the device reads.
#[derive(Clone, Debug, Default)]
pub enum Clock {
    /// Monotonic time since the device was opened.
    #[default]
    Monotonic,
    /// Nanoseconds that the program sets, for a simulation.
    Manual(Arc<AtomicU64>),
}

/// The clock of an open device.
pub(super) enum ClockSource {
    /// The CPU's time stamp counter if its rate is constant, otherwise the system's monotonic clock; and its raw reading when the device
    /// was opened.
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
