//! When the sockets are asked, where links bring frames as well: asking is a system call for each socket, and takes as long as many bursts
//! of links.
//!
//! After they brought or sent something they are asked in each burst for a while, then at short intervals, then at long ones. The clock is
//! not looked at in each burst either.
//!
//! No clock here: times are passed in.

use core::ops::RangeInclusive;
use core::time::Duration;
use std::time::Instant;

/// They are asked after this time while nothing comes.
const SELDOM: Duration = Duration::from_micros(200);
/// And after this one while something came lately.
const LIVELY: Duration = Duration::from_micros(20);
/// After something came they are asked so many times at [`LIVELY`] intervals: for 10 ms.
const LIVELY_ASKS: u32 = 500;
/// Before that they are asked in so many bursts, each time.
const EACH_BURST: u32 = 1024;
/// The clock is looked at when bursts and the frames of links are so many: few where they take long, as between two bursts of a program
/// that yields its core others may run for milliseconds.
const CLOCK_EVERY: RangeInclusive<u32> = 8..=128;

/// When the sockets are asked.
#[derive(Debug, Default)]
pub(super) struct Look {
    /// Bursts and frames of links since they were asked.
    since: u32,
    /// How many there are when the clock is looked at next, and from one look to the next one.
    clock_at: u32,
    clock_every: u32,
    clock: Option<Instant>,
    /// When they were asked last; `None`: they are to be asked now.
    asked_at: Option<Instant>,
    /// How many times they are asked still until they are asked seldom.
    soon: u32,
}

impl Look {
    /// They brought or sent something: an answer may come.
    pub fn wait_for_more(&mut self) {
        self.soon = EACH_BURST + LIVELY_ASKS;
    }

    /// Before a sleep: what waits at them was an edge already, so they are asked once. Whether they were, since the last burst.
    pub fn is_up_to_date(&mut self) -> bool {
        if self.since > 0 {
            (self.asked_at, self.clock_at) = (None, 0);
        }
        self.since == 0
    }

    /// Whether a burst asks them, in which links brought so many frames.
    #[inline]
    pub fn now(&mut self, has_links: bool, frames: usize, clock: impl FnOnce() -> Instant) -> bool {
        self.since += 1 + frames as u32;
        let now =
            !has_links || self.soon > LIVELY_ASKS || self.since >= self.clock_at && self.is_time(clock());
        if now {
            self.soon = self.soon.saturating_sub(1);
            (self.since, self.clock_at) = (0, self.clock_every);
        }
        now
    }

    fn is_time(&mut self, now: Instant) -> bool {
        let since = self.clock.replace(now).map(|at| now.saturating_duration_since(at));
        let (few, many) = (*CLOCK_EVERY.start(), *CLOCK_EVERY.end());
        self.clock_every = match since {
            Some(since) if since < LIVELY / 4 => (2 * self.clock_every).clamp(few, many),
            Some(since) if since < LIVELY => self.clock_every,
            _ => few,
        };
        self.clock_at = self.since + self.clock_every;
        let pause = if self.soon > 0 { LIVELY } else { SELDOM };
        let is_time = self.asked_at.is_none_or(|at| now.saturating_duration_since(at) >= pause);
        if is_time {
            self.asked_at = Some(now);
        }
        is_time
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How often sockets are asked in so many bursts, each with so many frames of links and this long after the one before.
    fn asked(look: &mut Look, now: &mut Instant, bursts: u32, frames: usize, apart: Duration) -> u32 {
        let burst = |_: &u32| {
            *now += apart;
            look.now(true, frames, || *now)
        };
        (0..bursts).filter(burst).count() as u32
    }

    #[test]
    fn sockets_are_asked_often_while_they_have_something() {
        let (mut look, mut now) = (Look::default(), Instant::now());
        const US: Duration = Duration::from_micros(1);
        asked(&mut look, &mut now, 1, 0, US);
        assert_eq!(asked(&mut look, &mut now, 2000, 0, US), 10);
        look.wait_for_more();
        assert_eq!(asked(&mut look, &mut now, EACH_BURST, 0, US), EACH_BURST);
        assert_eq!(asked(&mut look, &mut now, 2400, 0, US), 100, "each 24 us");
        asked(&mut look, &mut now, 24 * (LIVELY_ASKS - 100), 0, US);
        assert_eq!(asked(&mut look, &mut now, 2000, 0, US), 10);
        assert_eq!((0..100).filter(|_| look.now(false, 9, || now)).count(), 100, "nothing else to ask");
    }

    // A program that yields its core after each poll that finds nothing gets it back when all others had their turns.
    #[test]
    fn sockets_do_not_wait_for_many_bursts_where_each_takes_long() {
        let (mut look, mut now) = (Look::default(), Instant::now());
        const MS: Duration = Duration::from_millis(1);
        let (few, many) = (*CLOCK_EVERY.start(), *CLOCK_EVERY.end());
        assert_eq!(asked(&mut look, &mut now, 10 * few, 0, MS), 10);
        assert_eq!(asked(&mut look, &mut now, 80, few as usize, MS), 80);
        // It has polled quickly before.
        asked(&mut look, &mut now, 100_000, 0, Duration::from_nanos(10));
        assert_eq!(look.clock_every, many);
        assert!(asked(&mut look, &mut now, many + 10 * few, 0, MS) > 10);
    }

    // Asking is a system call for each address, and who polls in vain on busy cores goes to sleep thousands of times a second.
    #[test]
    fn sockets_are_asked_once_before_a_sleep_and_seldom_after_it() {
        let (mut look, now) = (Look::default(), Instant::now());
        assert!(look.is_up_to_date(), "nothing was received yet");
        for _ in 0..100 {
            look.now(true, 0, || now);
            look.now(true, 0, || now);
            assert!(!look.is_up_to_date());
            assert!(look.now(true, 0, || now) && look.is_up_to_date(), "asked in the next burst");
        }
        assert_eq!((0..1000).filter(|_| look.now(true, 0, || now)).count(), 0);
    }
}
