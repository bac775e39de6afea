//! The state of the machine during a measurement, quick or slow. Only figures from the same state can be compared.

use std::fmt;

/// Largest time of a bare 128-byte frame, one way, before and after a measurement that counts as quick, in nanoseconds.
pub const QUICK_NS: u64 = 200;

/// A check of the machine's state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sample {
    /// Time of a bare 128-byte frame, one way, in nanoseconds.
    pub bare_ns: u64,
    /// Time of a fixed piece of work on the slower core, in nanoseconds: see [`work_ns`](super::cores::work_ns).
    pub work_ns: u64,
}

/// The machine's state during a measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Frames between the two cores were quick before and after the measurement: absolute marks apply.
    Quick,
    /// Frames were slow before and after: marks relative to the bare port apply.
    Slow,
    /// Quick at one check and slow at the other: the moment of the change is unknown, and no mark applies.
    Mixed,
}

impl Kind {
    /// The state during a measurement, from the one-way times of a bare frame at its checks, in nanoseconds.
    pub fn of(one_way_ns: &[u64]) -> Self {
        match one_way_ns.iter().filter(|ns| **ns <= QUICK_NS).count() {
            n if n == one_way_ns.len() && n > 0 => Self::Quick,
            0 if !one_way_ns.is_empty() => Self::Slow,
            _ => Self::Mixed,
        }
    }
    /// Name of the state.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Quick => "quick",
            Self::Slow => "slow",
            Self::Mixed => "mixed",
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The number of measurements of a step in each state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Measurements in the quick state.
    pub quick: usize,
    /// Measurements in the slow state.
    pub slow: usize,
    /// Measurements during which the state changed.
    pub mixed: usize,
}

impl Tally {
    /// Counts the measurements by their states.
    pub fn of(kinds: impl Iterator<Item = Kind>) -> Self {
        let mut out = Self::default();
        for kind in kinds {
            match kind {
                Kind::Quick => out.quick += 1,
                Kind::Slow => out.slow += 1,
                Kind::Mixed => out.mixed += 1,
            }
        }
        out
    }
    /// The number of measurements in a state.
    pub const fn get(&self, kind: Kind) -> usize {
        match kind {
            Kind::Quick => self.quick,
            Kind::Slow => self.slow,
            Kind::Mixed => self.mixed,
        }
    }
}

/// The state in which each step was measured at least `wanted` times.
pub fn enough(tallies: &[Tally], wanted: usize) -> Option<Kind> {
    [Kind::Quick, Kind::Slow].into_iter().find(|kind| tallies.iter().all(|t| t.get(*kind) >= wanted))
}

/// The state with the most measurements if none is complete; each step counts for at most `wanted`.
pub fn most(tallies: &[Tally], wanted: usize) -> Kind {
    let done = |kind: Kind| tallies.iter().map(|t| t.get(kind).min(wanted)).sum::<usize>();
    if done(Kind::Quick) >= done(Kind::Slow) { Kind::Quick } else { Kind::Slow }
}

#[cfg(test)]
mod tests {
    use super::Kind::{Mixed, Quick, Slow};
    use super::*;

    #[test]
    fn a_measurement_is_of_a_kind_only_if_every_look_was() {
        assert_eq!(Kind::of(&[100, 150, 200]), Quick);
        assert_eq!(Kind::of(&[201, 700]), Slow);
        assert_eq!(Kind::of(&[100, 201]), Mixed);
        assert_eq!(Kind::of(&[]), Mixed);
    }

    fn tally(quick: usize, slow: usize, mixed: usize) -> Tally {
        Tally { quick, slow, mixed }
    }

    #[test]
    fn three_of_a_kind_of_everything_end_it() {
        assert_eq!(enough(&[tally(3, 9, 0), tally(2, 3, 0)], 3), Some(Slow));
        assert_eq!(enough(&[tally(3, 9, 0), tally(3, 3, 0)], 3), Some(Quick));
        assert_eq!(enough(&[tally(3, 2, 0), tally(2, 3, 0)], 3), None);
        assert_eq!(enough(&[tally(0, 0, 9)], 3), None, "what is of no kind never counts");
    }

    #[test]
    fn the_kind_with_the_most_is_what_is_left() {
        assert_eq!(most(&[tally(1, 9, 0), tally(3, 0, 0)], 3), Quick, "nine of one are no more than three");
        assert_eq!(most(&[tally(1, 2, 9)], 3), Slow);
        assert_eq!(most(&[], 3), Quick);
    }

    #[test]
    fn a_tally_counts_each_kind() {
        let all = Tally::of([Slow, Quick, Mixed, Slow].into_iter());
        assert_eq!(all, tally(1, 2, 1));
        assert_eq!([Quick, Slow, Mixed].map(|kind| all.get(kind)), [1, 2, 1]);
    }
}
