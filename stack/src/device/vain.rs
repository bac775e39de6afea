//! Polls that find nothing, where cores are busy: a thread that polls in vain gives its core to the peer that it waits for, by sleeping
//! until there is work. With a core to spare it never sleeps. Nor does one whose program yields the core itself between its polls (MPI's
//! mpi_yield_when_idle): it gets the core back when the others had their turns, for less than a sleep and a wake-up cost.
//!
//! What is known is of the thread, whatever it polls: one that finds work anywhere goes on.

use core::cell::RefCell;
use core::time::Duration;
use std::time::Instant;

use super::contention::{AWAY, Contention};
use crate::config::HELPER_SLEEP;
use crate::sync::scheduling::times_preempted;

/// How long cores count as busy at most before the thread tries again whether one is to spare: that costs it some slices of the scheduler.
const BUSY_AT_MOST: Duration = Duration::from_millis(1280);
/// One of so many turns is looked at.
pub(super) const EVERY: u32 = 64;
/// A thread that loses its core so often between two looks yields it. One that has to share the core loses it once in a slice of the
/// scheduler, which is many looks.
const YIELDS: u32 = EVERY / 8;
/// A thread polls in vain for so long before it sleeps.
const VAIN: Duration = Duration::from_micros(20);
/// A program may have other work than what it polls for. So its first sleep is short, and each that brings nothing is followed by one of
/// twice the time.
const SHORTEST: Duration = Duration::from_micros(50);
const LONGEST: Duration = HELPER_SLEEP;

thread_local! {
    static POLLS: RefCell<Polls> = RefCell::default();
}

/// What a thread has found by its polls. Times are since [`began`](Self::began).
#[derive(Debug)]
struct Polls {
    began: Instant,
    contention: Contention,
    /// The last look.
    looked_at: Option<Duration>,
    /// Looks since it was asked how often the thread has lost its core.
    looks: u32,
    /// Nothing was found since.
    vain_since: Option<Duration>,
    /// The next sleep, and whether it is due.
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
            vain_since: None,
            sleep: SHORTEST,
            due: false,
        }
    }
}

impl Polls {
    /// `preempted`: how often the thread has lost its core since that was asked last.
    fn note(&mut self, now: Duration, worked: bool, preempted: impl FnOnce() -> u32) {
        let since = self.looked_at.replace(now).map(|at| now.saturating_sub(at));
        if worked {
            (self.vain_since, self.sleep) = (None, SHORTEST);
        }
        self.looks += 1;
        let busy = match since {
            Some(since) if since < AWAY => self.contention.note(now, since),
            _ => {
                let (lost, looks) = (preempted(), core::mem::take(&mut self.looks));
                match since {
                    _ if lost >= looks.saturating_mul(YIELDS) => false,
                    Some(since) if lost > 0 => self.contention.note(now, since),
                    // Not where the program did something else meanwhile.
                    _ => self.contention.is_known(now),
                }
            }
        };
        let vain = !worked && now.saturating_sub(*self.vain_since.get_or_insert(now)) >= VAIN;
        self.due = busy && vain;
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

/// The calling thread made a turn, which had work or not. Whether it is to sleep after its poll.
#[cold]
pub(super) fn note(worked: bool) -> bool {
    POLLS.with_borrow_mut(|polls| {
        polls.note(polls.began.elapsed(), worked, times_preempted);
        polls.due
    })
}

/// Whether the calling thread is to sleep now, and how long at most.
pub(super) fn take_due() -> Option<Duration> {
    POLLS.with_borrow_mut(Polls::take_due)
}

#[cfg(test)]
mod tests {
    use super::*;

    const US: Duration = Duration::from_micros(1);

    /// Polls in vain every microsecond; returns the sleeps that it is told to make, which bring nothing.
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
        // Work makes it poll on for a while, and begin with short sleeps.
        polls.note(now, true, || 0);
        assert_eq!(sleeps(&mut polls, &mut now, 20), []);
        assert_eq!(sleeps(&mut polls, &mut now, 2)[0], SHORTEST);
        // It tries without sleep again after a while.
        now += Duration::from_millis(100);
        assert_eq!(sleeps(&mut polls, &mut now, 10_000), []);
    }

    #[test]
    fn a_thread_that_yields_its_core_between_its_polls_never_sleeps() {
        let (mut polls, mut now) = (Polls::default(), Duration::ZERO);
        // Where cores are known to be busy since it did not yield, too.
        for yields in [0, 1, 32, 32, 32, 32] {
            now += Duration::from_millis(3);
            polls.note(now, true, || yields);
        }
        for _ in 0..1000 {
            now += Duration::from_millis(3);
            polls.note(now, false, || EVERY / 2);
            assert_eq!(polls.take_due(), None);
        }
        // Then it has to share the core, and does not yield.
        now += Duration::from_millis(3);
        polls.note(now, false, || 1);
        assert_eq!(polls.take_due(), Some(SHORTEST));
        assert_eq!(sleeps(&mut polls, &mut now, 3)[0], 2 * SHORTEST);
    }
}
