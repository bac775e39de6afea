//! How long a process waits for others, in all.
//!
//! What counts is the time that it waited, and not what a clock says: a process that is stopped itself, or does not run for a
//! while, loses no patience by that.

use core::time::Duration;

/// Patience that is left.
#[derive(Debug)]
pub struct Patience(Duration);

impl Patience {
    /// As much as this.
    pub fn new(all: Duration) -> Self {
        Self(all)
    }

    /// Takes some of it, for one wait; `None`: it is used up.
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
