//! Polls that find nothing, on busy cores: a thread that polls in vain gives its core to the peer that it waits for, by sleeping until
//! there is work. With a core to spare it never sleeps. Nor does a thread whose program yields the core itself between its polls (MPI's
//! mpi_yield_when_idle): it gets the core back when the other threads have run, at less than the cost of a sleep and a wake-up.
//!
//! The state belongs to the thread, whatever it polls: a thread that finds work anywhere goes on polling.

use core::cell::RefCell;
use core::time::Duration;
use std::time::Instant;

use super::contention::{AWAY, Contention};
use crate::config::HELPER_SLEEP;
use crate::sync::scheduling::times_preempted;

/// How long cores count as busy at most before the thread checks again whether one is to spare: that check costs some time slices.
const BUSY_AT_MOST: Duration = Duration::from_millis(1280);
/// One turn in this many is checked.
pub(super) const CHECK_INTERVAL: u32 = 64;
/// A thread that loses its core at least this often per check yields it by itself. A thread that shares the core loses it once per time
/// slice, which covers many checks.
const YIELDS: u32 = CHECK_INTERVAL / 8;
/// How long a thread polls in vain before it sleeps.
const IDLE_BEFORE_SLEEP: Duration = Duration::from_micros(20);
/// A program may have other work besides polling. So its first sleep is short, and each sleep without new work is followed by one of
/// twice the length.
const SHORTEST: Duration = Duration::from_micros(50);
const LONGEST: Duration = HELPER_SLEEP;

thread_local! {
    static POLLS: RefCell<Polls> = RefCell::default();
}

/// The polling history of a thread. Times count from [`began`](Self::began).
#[derive(Debug)]
struct Polls {
    began: Instant,
    contention: Contention,
    /// Time of the last check.
    looked_at: Option<Duration>,
    /// Checks since the number of lost cores was last read.
    looks: u32,
    /// Nothing was found since then.
    idle_since: Option<Duration>,
    /// Length of the next sleep, and whether it is due.
    sleep: Duration,
    due: bool,
}

impl Default for Polls {
    fn default() -> Self {
        Self {
            began: Instant::now(),
            contention: Contention::new(BUSY_AT_MOST),
            looked_at: None,
            looks: 0,
            idle_since: None,
            sleep: SHORTEST,
            due: false,
        }
    }
}

impl Polls {
    /// Checks a turn. `preempted` returns how often the thread lost its core since the last such call.
    fn note(&mut self, now: Duration, worked: bool, preempted: impl FnOnce() -> u32) {
        let since = self.looked_at.replace(now).map(|at| now.saturating_sub(at));
        if worked {
            (self.idle_since, self.sleep) = (None, SHORTEST);
        }
        self.looks += 1;
        let busy = match since {
            Some(since) if since < AWAY => self.contention.note(now, since),
            _ => {
                let (lost, looks) = (preempted(), core::mem::take(&mut self.looks));
                match since {
                    _ if lost >= looks.saturating_mul(YIELDS) => false,
                    Some(since) if lost > 0 => self.contention.note(now, since),
                    // Does not count if the program did something else meanwhile.
                    _ => self.contention.is_busy(now),
                }
            }
        };
        let idle = !worked && now.saturating_sub(*self.idle_since.get_or_insert(now)) >= IDLE_BEFORE_SLEEP;
        self.due = busy && idle;
    }

    fn take_due(&mut self) -> Option<Duration> {
        if !core::mem::take(&mut self.due) {
            return None;
        }
        // The time of the sleep is no sign of a busy core.
        self.looked_at = None;
        let sleep = self.sleep;
        self.sleep = (sleep * 2).min(LONGEST);
        Some(sleep)
    }
}

/// Notes that the calling thread made a turn, with work or without. Returns whether the thread should sleep after its poll.
#[cold]
pub(super) fn note(worked: bool) -> bool {
    POLLS.with_borrow_mut(|polls| {
        polls.note(polls.began.elapsed(), worked, times_preempted);
        polls.due
    })
}

/// Whether the calling thread should sleep now, and for how long at most.
pub(super) fn take_due() -> Option<Duration> {
    POLLS.with_borrow_mut(Polls::take_due)
}

#[cfg(test)]
mod tests {
    use super::*;

    const US: Duration = Duration::from_micros(1);

    /// Polls in vain every microsecond; returns the sleeps that are due, which bring no work.
    fn sleeps(polls: &mut Polls, now: &mut Duration, looks: usize) -> Vec<Duration> {
        let mut sleeps = Vec::new();
        for _ in 0..looks {
            *now += US;
            polls.note(*now, false, || 0);
            if let Some(sleep) = polls.take_due() {
                *now += sleep;
                sleeps.push(sleep);
            }
        }
        sleeps
    }

    #[test]
    fn with_a_core_to_spare_a_thread_never_sleeps() {
        let (mut polls, mut now) = (Polls::default(), Duration::ZERO);
        assert_eq!(sleeps(&mut polls, &mut now, 10_000), []);
        // A program that does something else between its polls.
        for _ in 0..1000 {
            now += Duration::from_millis(5);
            polls.note(now, false, || 0);
            assert_eq!(polls.take_due(), None);
        }
    }

    #[test]
    fn on_busy_cores_it_sleeps_soon_and_longer_while_nothing_comes() {
        let (mut polls, mut now) = (Polls::default(), Duration::ZERO);
        polls.note(now, true, || 0);
        now += Duration::from_millis(3);
        polls.note(now, true, || 1);
        assert_eq!(polls.take_due(), None, "it has found work");
        let slept = sleeps(&mut polls, &mut now, 30);
        assert_eq!(slept[..6], [50, 100, 200, 400, 800, 1000].map(|us| us * US));
        // Work makes the thread poll on for a while, and begin with short sleeps.
        polls.note(now, true, || 0);
        assert_eq!(sleeps(&mut polls, &mut now, 20), []);
        assert_eq!(sleeps(&mut polls, &mut now, 2)[0], SHORTEST);
        // After a while it tries again without sleep.
        now += Duration::from_millis(100);
        assert_eq!(sleeps(&mut polls, &mut now, 10_000), []);
    }

    #[test]
    fn a_thread_that_yields_its_core_between_its_polls_never_sleeps() {
        let (mut polls, mut now) = (Polls::default(), Duration::ZERO);
        // Also if cores count as busy from the time before it yielded.
        for yields in [0, 1, 32, 32, 32, 32] {
            now += Duration::from_millis(3);
            polls.note(now, true, || yields);
        }
        for _ in 0..1000 {
            now += Duration::from_millis(3);
            polls.note(now, false, || CHECK_INTERVAL / 2);
            assert_eq!(polls.take_due(), None);
        }
        // Then it shares the core, and does not yield.
        now += Duration::from_millis(3);
        polls.note(now, false, || 1);
        assert_eq!(polls.take_due(), Some(SHORTEST));
        assert_eq!(sleeps(&mut polls, &mut now, 3)[0], 2 * SHORTEST);
    }
}
