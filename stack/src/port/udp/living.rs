//! Caches for a moment which runs belong to living processes: to ask the kernel takes a system call, and strangers choose how often.

use core::sync::atomic::{AtomicU64, Ordering};
use core::time::Duration;
use std::time::Instant;

use crate::registry::Run;

/// How long the answer holds that the holder of a run lives.
const BELIEVED: Duration = Duration::from_millis(100);
/// How long the answer holds that it does not: a process that starts is not there yet, but will be soon.
const DOUBTED: Duration = Duration::from_millis(2);

/// The last answer for each run: a time other than 0, and in the lowest bit whether its holder lives. 0: there is none.
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

    /// Whether a living process has a run. `may_be_held` is what the shared memory says of it now, without a system call; `ask` asks the
    /// kernel.
    pub fn has(&self, run: Run, now: Instant, may_be_held: bool, ask: impl FnOnce() -> bool) -> bool {
        if !may_be_held {
            return false;
        }
        let now = (now.saturating_duration_since(self.began).as_nanos() as u64).max(1);
        let said = &self.said[run.index()];
        let before = said.load(Ordering::Relaxed);
        let lived = before & 1 != 0;
        let until = if lived { BELIEVED } else { DOUBTED };
        if before != 0 && now.saturating_sub(before >> 1) < until.as_nanos() as u64 {
            return lived;
        }
        let lives = ask();
        said.store(now << 1 | u64::from(lives), Ordering::Relaxed);
        lives
    }
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
        let has = |ms, held, says: Option<bool>| {
            living.has(run, start + ms * MS, held, || says.expect("it was asked a moment ago"))
        };
        assert!(!has(0, false, None), "nobody has it");
        assert!(has(0, true, Some(true)) && has(99, true, None));
        assert!(!has(50, false, None), "it has ended");
        assert!(!has(101, true, Some(false)) && !has(102, true, None));
        assert!(has(104, true, Some(true)), "now it has begun");
        assert!(!living.has(other, start, true, || false), "each by itself");
    }
}
