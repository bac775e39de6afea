//! Caches for a moment whose processes have which runs: to ask the kernel takes a system call, and strangers choose how often.

use core::sync::atomic::{AtomicU64, Ordering};
use core::time::Duration;
use std::time::Instant;

use crate::registry::{Resident, Run};

/// How long the answer holds that the holder of a run lives.
const BELIEVED: Duration = Duration::from_millis(100);
/// How long the answer holds that it does not: a process that starts is not there yet, but will be soon.
const DOUBTED: Duration = Duration::from_millis(2);

/// The last answer for each run: a time other than 0, and in the lowest bits whose process has it. 0: there is none.
#[derive(Debug)]
pub struct Living {
    said: Box<[AtomicU64]>,
    began: Instant,
}

impl Living {
    /// A cache without answers. No time is earlier than `began`.
    pub fn new(began: Instant) -> Self {
        Self { said: (0..Run::COUNT).map(|_| AtomicU64::new(0)).collect(), began }
    }

    /// Whose process has a run. `may_be_held` is what the shared memory says of it now, without a system call; `ask` asks the
    /// kernel.
    pub fn has(&self, run: Run, now: Instant, may_be_held: bool, ask: impl FnOnce() -> Resident) -> Resident {
        if !may_be_held {
            return Resident::Nobody;
        }
        let now = (now.saturating_duration_since(self.began).as_nanos() as u64).max(1);
        let said = &self.said[run.index()];
        let before = said.load(Ordering::Relaxed);
        let was = resident(before);
        let until = if was == Resident::Nobody { DOUBTED } else { BELIEVED };
        if before != 0 && now.saturating_sub(before >> BITS) < until.as_nanos() as u64 {
            return was;
        }
        let is = ask();
        said.store(now << BITS | bits(is), Ordering::Relaxed);
        is
    }
}

const BITS: u32 = 2;

fn bits(resident: Resident) -> u64 {
    match resident {
        Resident::Nobody => 0,
        Resident::Owner => 1,
        Resident::Guest => 2,
    }
}

fn resident(said: u64) -> Resident {
    [Resident::Owner, Resident::Guest]
        .into_iter()
        .find(|resident| bits(*resident) == said & ((1 << BITS) - 1))
        .unwrap_or(Resident::Nobody)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    // Goal: a process that has just started does not count as dead because it was not there before.
    #[test]
    fn what_the_memory_says_counts_at_once_and_the_kernels_word_for_a_while() {
        let start = Instant::now();
        let living = Living::new(start);
        let [run, other] = [3, 4].map(|index| Run::at(index).unwrap());
        use Resident::{Guest, Nobody, Owner};
        let has = |ms, held, says: Option<Resident>| {
            living.has(run, start + ms * MS, held, || says.expect("it was asked a moment ago"))
        };
        assert_eq!(has(0, false, None), Nobody);
        assert_eq!([has(0, true, Some(Owner)), has(99, true, None)], [Owner; 2]);
        assert_eq!(has(50, false, None), Nobody, "it has ended");
        assert_eq!([has(101, true, Some(Nobody)), has(102, true, None)], [Nobody; 2]);
        assert_eq!([has(104, true, Some(Guest)), has(200, true, None)], [Guest; 2], "now it has begun");
        assert_eq!(living.has(other, start, true, || Nobody), Nobody, "each by itself");
    }
}
