//! The pace of the helper thread between two checks of its shards: spin, yield, or sleep; and how long it leaves a shard to callers.
//!
//! With a core to spare ([`Contention`]) the helper spins after there was work, then yields. Without one it sleeps as soon as there is no
//! work.
//!
//! Reads no clock and starts no threads: times are passed in.

use core::time::Duration;
use std::time::Instant;

use super::contention::Contention;
use crate::config::{HELPER_HOT, HELPER_SLEEP};

/// After its hot phase the helper yields its time slice between checks, for this long.
const YIELD: Duration = Duration::from_micros(200);
/// How long cores count as busy at most before the helper checks again whether one is to spare.
const BUSY_AT_MOST: Duration = Duration::from_millis(160);

/// The helper leaves a shard that callers drive to them for at least this long, and at most [`HELPER_SLEEP`].
const PAUSE: Duration = Duration::from_micros(20);

/// What the helper does before the next check.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Next {
    Spin,
    Yield,
    /// Sleep until there may be work.
    Sleep,
}

/// The observations on which the choice depends.
#[derive(Debug)]
pub struct Pace {
    worked_at: Instant,
    /// The previous check, unless the helper slept after it.
    looked_at: Option<Instant>,
    /// The origin of `contention`'s times.
    began: Instant,
    contention: Contention,
}

impl Pace {
    /// The pace of a new helper: as if there was work just now.
    pub fn new(now: Instant) -> Self {
        Self { worked_at: now, looked_at: None, began: now, contention: Contention::new(BUSY_AT_MOST) }
    }

    /// Chooses the next step after a check: `turned`, the helper turned a shard; `worked`, there was work.
    pub fn next(&mut self, now: Instant, turned: bool, worked: bool) -> Next {
        let busy = self.is_busy(now);
        self.looked_at = Some(now);
        if worked {
            self.worked_at = now;
            // More work may have arrived meanwhile.
            return Next::Spin;
        }
        let idle = now.saturating_duration_since(self.worked_at);
        if !busy && turned && idle < HELPER_HOT {
            return Next::Spin;
        }
        // Also if a caller made the last turn: a caller that the helper's work woke polls once, posts, and waits again.
        if !busy && idle < HELPER_HOT + YIELD {
            return Next::Yield;
        }
        self.looked_at = None;
        Next::Sleep
    }

    /// Whether cores still count as busy from an earlier observation.
    pub fn knows_busy(&self, now: Instant) -> bool {
        self.contention.is_busy(now.saturating_duration_since(self.began))
    }

    /// Whether no core is to spare.
    fn is_busy(&mut self, now: Instant) -> bool {
        let Some(before) = self.looked_at else { return self.knows_busy(now) };
        let (at, since) = (now.saturating_duration_since(self.began), now.saturating_duration_since(before));
        self.contention.note(at, since)
    }
}

/// Whether callers drive a shard, and how long the helper leaves it to them.
///
/// Frames do not wake the helper during a pause: that would interrupt a program that polls all the time, and cost its peer a system call
/// for each frame. But a program may also poll only until its request is complete, and then spin on memory until its peer writes there.
/// So the helper pauses for a quarter of the time for which the program has polled: of two such programs each polls until the other's
/// helper checks its shard, so the pauses shrink from one exchange to the next.
#[derive(Debug)]
pub struct Callers {
    /// Number of turns by callers at the previous check.
    turns: u32,
    /// The last check at which no caller had turned the shard.
    absent_at: Instant,
    /// Callers had turned the shard at a check since then.
    present: bool,
}

impl Callers {
    /// Starts from `turns`, the number of turns by callers so far.
    pub fn new(now: Instant, turns: u32) -> Self {
        Self { turns, absent_at: now, present: false }
    }

    /// Whether callers have made turns since the last check. `turns` is the number of all their turns so far.
    pub fn turned(&mut self, turns: u32) -> bool {
        let turned = core::mem::replace(&mut self.turns, turns) != turns;
        self.present |= turned;
        turned
    }

    /// Whether callers have turned the shard since the helper did.
    pub fn are_present(&self) -> bool {
        self.present
    }

    /// How long to leave the shard to callers, which turned it or are inside a turn.
    pub fn pause(&self, now: Instant) -> Duration {
        (now.saturating_duration_since(self.absent_at) / 4).clamp(PAUSE, HELPER_SLEEP)
    }

    /// Notes that the helper turned the shard.
    pub fn absent(&mut self, now: Instant) {
        (self.absent_at, self.present) = (now, false);
    }
}

#[cfg(test)]
mod tests {
    use super::super::contention::{AWAY, BUSY, PATIENCE};
    use super::*;

    const US: Duration = Duration::from_micros(1);

    /// Checks without work, one every microsecond, from `now` until the sleep. Returns how often it spun and yielded, and the end time.
    fn until_sleep(pace: &mut Pace, mut now: Instant) -> (u32, u32, Instant) {
        let (mut spun, mut yielded) = (0, 0);
        loop {
            now += US;
            match pace.next(now, true, false) {
                Next::Spin => spun += 1,
                Next::Yield => yielded += 1,
                Next::Sleep => return (spun, yielded, now),
            }
        }
    }

    #[test]
    fn with_a_core_to_spare_it_spins_then_yields_then_sleeps() {
        let start = Instant::now();
        let mut pace = Pace::new(start);
        let (spun, yielded, mut now) = until_sleep(&mut pace, start);
        assert_eq!((spun, yielded), (49, 200));
        for _ in 0..10 {
            now += Duration::from_secs(1); // time of the sleep
            assert_eq!(pace.next(now, true, true), Next::Spin);
            let (spun, yielded, end) = until_sleep(&mut pace, now);
            assert_eq!((spun, yielded), (49, 200), "a sleep is no sign of a busy core");
            now = end;
        }
    }

    #[test]
    fn where_a_caller_turns_it_yields_at_once() {
        let start = Instant::now();
        assert_eq!(Pace::new(start).next(start + US, false, false), Next::Yield);
    }

    /// Another thread takes the core for a time slice in the hot phase.
    fn loses_a_slice(pace: &mut Pace, now: &mut Instant) -> Next {
        pace.next(*now, true, true);
        *now += 3 * PATIENCE;
        pace.next(*now, true, false)
    }

    #[test]
    fn on_busy_cores_it_sleeps_right_after_its_work_and_tries_again_less_and_less_often() {
        let mut now = Instant::now();
        let mut pace = Pace::new(now);
        let mut busy = BUSY;
        for _ in 0..8 {
            assert_eq!(loses_a_slice(&mut pace, &mut now), Next::Sleep);
            let until = now + busy;
            while now + 20 * US < until {
                now += 10 * US;
                assert_eq!(pace.next(now, true, true), Next::Spin, "it looks once more after work");
                now += US;
                assert_eq!(pace.next(now, true, false), Next::Sleep, "{:?} of {busy:?}", until - now);
            }
            now = until;
            busy = (busy * 2).min(BUSY_AT_MOST);
        }
        assert_eq!(busy, BUSY_AT_MOST);
        // A core is free again: the helper spins and yields, and the next sign of contention counts for as long as the first.
        for _ in 0..4 {
            pace.next(now, true, true);
            let (_, yielded, end) = until_sleep(&mut pace, now);
            assert_eq!(yielded, 200);
            now = end + US;
        }
        assert_eq!(loses_a_slice(&mut pace, &mut now), Next::Sleep);
        let at = now.saturating_duration_since(pace.began);
        assert!(pace.contention.is_busy(at + BUSY - US) && !pace.contention.is_busy(at + BUSY));
    }

    #[test]
    fn interruptions_are_no_sign_of_busy_cores() {
        let mut now = Instant::now();
        let mut pace = Pace::new(now);
        for look in 0..10_000 {
            // Every hundredth interval is a long one, but the thread has its core for more than half of the time.
            now += if look % 100 == 0 { AWAY / 2 * 3 } else { 3 * US };
            assert_eq!(pace.next(now, true, look % 10 == 0), Next::Spin);
        }
    }

    #[test]
    fn a_program_that_polls_all_the_time_is_left_alone() {
        let (start, mut paused) = (Instant::now(), Duration::ZERO);
        let mut callers = Callers::new(start, 0);
        let mut looks = 0;
        while paused < 100 * HELPER_SLEEP {
            looks += 1;
            assert!(callers.turned(7 * looks));
            paused += callers.pause(start + paused);
        }
        assert!(looks < 120, "{looks} looks in 100 ms");
        assert!(!callers.turned(7 * looks));
        // The shard is left to callers until the helper turns it.
        assert!(callers.are_present());
        callers.absent(start + paused);
        assert!(!callers.are_present());
    }

    #[test]
    fn programs_that_poll_until_the_other_ones_helper_looks_are_soon_quick_again() {
        let mut now = Instant::now();
        let mut callers = Callers::new(now, 0);
        // The first program did not have its core for a while.
        let mut polls = 10 * HELPER_SLEEP;
        for _ in 0..8 {
            let start = now;
            while now < start + polls {
                now += callers.pause(now);
            }
            // Then it waits for memory.
            callers.absent(now);
            polls = now - start - polls;
        }
        assert!(polls <= PAUSE, "{polls:?}");
    }
}
