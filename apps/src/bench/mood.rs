//! What a run's figures can be compared with: the kind of moment in which it was measured.

use std::fmt;

/// Longest time of a bare 128-byte frame, one way, of a quick run, in nanoseconds.
pub const QUICK_NS: u64 = 200;

/// The kind of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The two cores were close together all the time: absolute marks count.
    Quick,
    /// They were far apart all the time: marks relative to the bare port count.
    Slow,
    /// Both, one after the other: the run's figures do not belong together.
    Mixed,
}

impl Kind {
    /// The kind of a run in which a bare frame took these times, one way, in nanoseconds.
    pub fn of(one_way_ns: &[u64]) -> Self {
        match one_way_ns.iter().filter(|ns| **ns <= QUICK_NS).count() {
            n if n == one_way_ns.len() && n > 0 => Self::Quick,
            0 if !one_way_ns.is_empty() => Self::Slow,
            _ => Self::Mixed,
        }
    }
    /// Its name.
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

/// The runs that count, by position, and their kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chosen {
    /// Their kind.
    pub kind: Kind,
    /// Which they are.
    pub runs: Vec<usize>,
}

/// The first `wanted` runs of one kind, quick or slow.
pub fn enough(kinds: &[Kind], wanted: usize) -> Option<Chosen> {
    [Kind::Quick, Kind::Slow].into_iter().find_map(|kind| {
        let runs: Vec<usize> = of_kind(kinds, kind).take(wanted).collect();
        (runs.len() == wanted).then_some(Chosen { kind, runs })
    })
}

/// What there is when there are never enough: the kind with the most runs.
pub fn most(kinds: &[Kind]) -> Option<Chosen> {
    let all = [Kind::Mixed, Kind::Slow, Kind::Quick]
        .map(|kind| Chosen { kind, runs: of_kind(kinds, kind).collect() });
    // The last of equal ones wins: quick before slow before mixed.
    all.into_iter().max_by_key(|chosen| chosen.runs.len()).filter(|chosen| !chosen.runs.is_empty())
}

fn of_kind(kinds: &[Kind], kind: Kind) -> impl Iterator<Item = usize> {
    kinds.iter().enumerate().filter(move |(_, k)| **k == kind).map(|(n, _)| n)
}

#[cfg(test)]
mod tests {
    use super::Kind::{Mixed, Quick, Slow};
    use super::*;

    #[test]
    fn a_run_is_of_a_kind_only_if_it_was_all_the_time() {
        assert_eq!(Kind::of(&[100, 150, 200]), Quick);
        assert_eq!(Kind::of(&[201, 700]), Slow);
        assert_eq!(Kind::of(&[100, 201]), Mixed);
        assert_eq!(Kind::of(&[]), Mixed);
    }

    #[test]
    fn three_of_a_kind_end_it() {
        assert_eq!(enough(&[Slow, Quick, Mixed, Slow], 3), None);
        let kinds = [Slow, Quick, Mixed, Slow, Quick, Slow];
        assert_eq!(enough(&kinds, 3), Some(Chosen { kind: Slow, runs: vec![0, 3, 5] }));
        assert_eq!(enough(&[Mixed, Mixed, Mixed], 3), None, "runs of no kind never count");
    }

    #[test]
    fn the_most_frequent_kind_is_what_is_left() {
        assert_eq!(most(&[Slow, Mixed, Mixed]), Some(Chosen { kind: Mixed, runs: vec![1, 2] }));
        assert_eq!(most(&[Slow, Quick]), Some(Chosen { kind: Quick, runs: vec![1] }));
        assert_eq!(most(&[]), None);
    }
}
