//! An alarm: when work that is done between turns is due next.

use core::sync::atomic::{AtomicU64, Ordering};

use crate::time::Instant;

/// When work is due. The thread that does it resets the alarm first, so that work that arrives meanwhile sets it again.
#[derive(Debug)]
pub struct Alarm(AtomicU64);

impl Default for Alarm {
    /// Not set.
    fn default() -> Self {
        Self(AtomicU64::new(u64::MAX))
    }
}

impl Alarm {
    /// Sets the alarm: there is work now.
    pub fn ring(&self) {
        self.0.store(0, Ordering::Release);
    }
    /// Sets the alarm: there is work at `at` at the latest.
    pub fn at_the_latest(&self, at: Instant) {
        self.0.fetch_min(at.as_nanos(), Ordering::AcqRel);
    }
    /// Resets the alarm. The caller then does all work that was due before.
    pub fn begin(&self) {
        self.0.swap(u64::MAX, Ordering::AcqRel);
    }
    /// When work is due; `None` if the alarm is not set.
    #[inline]
    pub fn due(&self) -> Option<Instant> {
        match self.0.load(Ordering::Relaxed) {
            u64::MAX => None,
            at => Some(Instant::from_nanos(at)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_earliest_wins_until_the_work_begins() {
        let alarm = Alarm::default();
        assert_eq!(alarm.due(), None);
        alarm.at_the_latest(Instant::from_nanos(7));
        alarm.at_the_latest(Instant::from_nanos(9));
        assert_eq!(alarm.due(), Some(Instant::from_nanos(7)));
        alarm.ring();
        alarm.at_the_latest(Instant::from_nanos(1));
        assert_eq!(alarm.due(), Some(Instant::ZERO));
        alarm.begin();
        assert_eq!(alarm.due(), None);
    }
}
