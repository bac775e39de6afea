//! A budget of time that a process waits for others.
//!
//! Counts the time spent in waits, not the time on a clock: a process that is stopped itself, or does not run for a while, uses up nothing
//! by that.

use core::time::Duration;

/// The time that is left.
#[derive(Debug)]
pub struct Patience(Duration);

impl Patience {
    /// A budget of this time.
    pub fn new(all: Duration) -> Self {
        Self(all)
    }

    /// Takes time for one wait, `at_most` or what is left; `None` if nothing is left.
    pub fn take(&mut self, at_most: Duration) -> Option<Duration> {
        let slice = at_most.min(self.0);
        self.0 -= slice;
        (!slice.is_zero()).then_some(slice)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_use_it_up() {
        let second = Duration::from_secs(1);
        let mut patience = Patience::new(second * 5 / 2);
        let slices: Vec<_> = core::iter::from_fn(|| patience.take(second)).collect();
        assert_eq!(slices, [second, second, second / 2]);
    }
}
