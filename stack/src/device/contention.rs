//! Detects that other threads compete for the core on which a thread polls for work.
//!
//! Frequent polling occupies a core. If a core is free, polling answers a peer without a system call. If other threads run on every core,
//! polling takes their time, and the peer's: the scheduler runs first a thread that an event wakes, and last one that yields or was
//! preempted. So a thread that was off its core for longer than on it sleeps when it has no work, and later tries again without sleep.
//!
//! Reads no clock and starts no threads: times are passed in.

use core::time::Duration;

/// If this much time passes between two checks, another thread had the core: it is more than a check takes, and less than a time slice
/// of the scheduler.
pub(super) const AWAY: Duration = Duration::from_micros(150);
/// Cores count as busy once the thread was off its core for this much longer than on it; shorter absences are interruptions.
pub(super) const PATIENCE: Duration = Duration::from_millis(1);
/// How long cores then count as busy: `BUSY` the first time, twice as long each further time, up to a maximum that the thread sets.
pub(super) const BUSY: Duration = Duration::from_millis(10);

/// The contention that a thread has observed. All times count from the same arbitrary moment.
#[derive(Debug)]
pub(super) struct Contention {
    /// How much longer other threads had the core than this one, while this one could run.
    away: Duration,
    /// Until then cores count as busy.
    busy_until: Duration,
    /// How long cores will count as busy the next time, and the maximum of that.
    busy_for: Duration,
    busy_at_most: Duration,
}

impl Contention {
    /// No contention observed yet.
    pub fn new(busy_at_most: Duration) -> Self {
        Self { away: Duration::ZERO, busy_until: Duration::ZERO, busy_for: BUSY, busy_at_most }
    }

    /// Whether cores currently count as busy.
    #[inline]
    pub fn is_busy(&self, now: Duration) -> bool {
        now < self.busy_until
    }

    /// Notes that the thread checks for work, `since` after its last check, and did not sleep in between. Returns whether cores count as
    /// busy.
    pub fn note(&mut self, now: Duration, since: Duration) -> bool {
        if self.is_busy(now) {
            return true;
        }
        if since < AWAY {
            self.away = self.away.saturating_sub(since);
            if self.away.is_zero() {
                self.busy_for = BUSY;
            }
            return false;
        }
        self.away += since;
        if self.away < PATIENCE {
            return false;
        }
        self.away = PATIENCE;
        self.busy_until = now + self.busy_for;
        self.busy_for = (self.busy_for * 2).min(self.busy_at_most);
        true
    }
}
