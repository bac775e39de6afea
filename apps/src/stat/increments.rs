//! Increments of counters between two snapshots.

use verbs::stats::Counts;

/// The value of a counter; 0 if it is absent.
pub(super) fn get(counters: &Counts, name: &str) -> u64 {
    counters.get(name).copied().unwrap_or(0)
}

/// The increment of a counter; 0 if it decreased, because it belongs to a new object.
pub(super) fn since(before: &Counts, now: &Counts, name: &str) -> u64 {
    get(now, name).saturating_sub(get(before, name))
}
