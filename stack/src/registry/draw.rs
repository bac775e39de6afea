//! Which free run to lease: one that was never used, else one that has rested, else the one that has rested longest.
//!
//! Packets to a process that has ended may still be in flight. So its numbers rest before reuse, and new ones are drawn at random.

use super::run::Run;
use super::table::Mark;
use core::time::Duration;

/// A run and its mark in the memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Candidate {
    /// The run.
    pub run: Run,
    /// Its mark.
    pub mark: Mark,
}

/// Whether it must be checked with the kernel whether the run is free, and noted if so: its mark says that it is held, or that its end lies
/// in the future.
pub fn is_open(mark: Mark, now: u64) -> bool {
    match mark {
        Mark::Never => false,
        Mark::Held(_) => true,
        Mark::Ended(at) => at > now,
    }
}

/// The runs that are not [open](is_open), in the order in which to try them. `random` orders equal candidates.
pub fn order(
    candidates: impl IntoIterator<Item = Candidate>,
    now: u64,
    rest: Duration,
    random: u64,
) -> Vec<Candidate> {
    let key = |candidate: &Candidate| {
        let since = match candidate.mark {
            Mark::Ended(at) if u128::from(now.saturating_sub(at)) < rest.as_nanos() => Some(at),
            _ => None,
        };
        (candidate.mark != Mark::Never, since, mix(random ^ mix(candidate.run.index() as u64)))
    };
    let mut order: Vec<Candidate> =
        candidates.into_iter().filter(|candidate| !is_open(candidate.mark, now)).collect();
    order.sort_by_cached_key(key);
    order
}

/// A hash in which each bit depends on every bit of the number (the finalizer of SplitMix64).
pub fn mix(number: u64) -> u64 {
    let mut z = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    const REST: Duration = Duration::from_nanos(100);

    fn drawn(marks: &[Mark], now: u64, random: u64) -> Vec<usize> {
        let candidates = Run::all().zip(marks).map(|(run, &mark)| Candidate { run, mark });
        order(candidates, now, REST, random).iter().map(|candidate| candidate.run.index()).collect()
    }

    #[test]
    fn unused_runs_come_first_then_rested_ones_then_the_one_that_rests_longest() {
        use Mark::{Ended, Held, Never};
        let marks =
            [Ended(950), Held(1), Ended(900), Never, Ended(901), Ended(5), Never, Ended(1001), Held(2000)];
        let mut firsts = [Vec::new(), Vec::new()];
        for random in 0..64 {
            let drawn = drawn(&marks, 1000, random);
            let (mut unused, mut rested) = (drawn[..2].to_vec(), drawn[2..4].to_vec());
            firsts[0].push(unused[0]);
            firsts[1].push(rested[0]);
            unused.sort_unstable();
            rested.sort_unstable();
            assert_eq!((unused, rested), (vec![3, 6], vec![2, 5]));
            assert_eq!(drawn[4..], [4, 0], "held ones and those of the future have to be looked at");
        }
        for (first, either) in firsts.iter().zip([[3, 6], [2, 5]]) {
            assert!(either.iter().all(|run| first.contains(run)), "drawn at random");
        }
    }

    #[test]
    fn runs_are_drawn_from_all() {
        let marks = vec![Mark::Never; Run::COUNT];
        let mut firsts: Vec<usize> = (0..10_000).map(|random| drawn(&marks, 1, random)[0]).collect();
        firsts.sort_unstable();
        firsts.dedup();
        assert!(firsts.len() > Run::COUNT * 9 / 10, "{}", firsts.len());
    }
}
