//! Whether other threads want the core that a thread looks for work on, again and again.
//!
//! Frequent looks cost a core. Where a core is free they answer a peer without a system call. Where other threads run on every core, they
//! take their time, and the peer's: the scheduler runs a thread that an event wakes first, and one that yields or was preempted last. So a
//! thread that was off its core for longer than on it sleeps when there is no work, and tries to go without sleep again later.
//!
//! No clock here, no threads: times are passed in.

use core::time::Duration;

/// If so much time passes between two looks, another thread had the core: it is more than a look takes, and less than a slice of
/// the scheduler.
pub(super) const AWAY: Duration = Duration::from_micros(150);
/// Cores count as busy once the thread was off its core for this much longer than on it; less is an interruption.
pub(super) const PATIENCE: Duration = Duration::from_millis(1);
/// How long cores then count as busy: `BUSY` the first time, twice as long each further time, up to what the thread says.
pub(super) const BUSY: Duration = Duration::from_millis(10);

/// What a thread knows of its core. Times are since any moment, the same one for all.
#[derive(Debug)]
pub(super) struct Contention {
    /// How much longer other threads had the core than this one, while it could run.
    away: Duration,
    /// No core is to spare before this.
    busy_until: Duration,
    /// How long cores are taken to be busy the next time, and at most.
    busy_for: Duration,
    busy_at_most: Duration,
}

impl Contention {
    /// Nothing is known yet.
    pub fn new(busy_at_most: Duration) -> Self {
        Self { away: Duration::ZERO, busy_until: Duration::ZERO, busy_for: BUSY, busy_at_most }
    }

    /// Whether cores are known to be busy.
    #[inline]
    pub fn is_known(&self, now: Duration) -> bool {
        now < self.busy_until
    }

    /// The thread looks for work, so long after it did so before, and was awake meanwhile. Whether no core is to spare.
    pub fn note(&mut self, now: Duration, since: Duration) -> bool {
        if self.is_known(now) {
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
