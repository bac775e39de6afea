//! When a burst also polls the sockets, if links deliver frames, too: a poll is a system call for each socket, and takes as long as many
//! bursts of links.
//!
//! After the sockets received or sent frames they are polled in each burst for a while, then at short intervals, then at long ones. The
//! clock is not read in each burst either.
//!
//! Reads no clock: times are passed in.

use core::ops::RangeInclusive;
use core::time::Duration;
use std::time::Instant;

/// Polling interval while the sockets are idle.
const SELDOM: Duration = Duration::from_micros(200);
/// Polling interval after recent traffic.
const LIVELY: Duration = Duration::from_micros(20);
/// Number of polls at [`LIVELY`] intervals after traffic: 10 ms.
const LIVELY_ASKS: u32 = 500;
/// Number of bursts that poll the sockets, each of them, before that.
const EACH_BURST: u32 = 1024;
/// The clock is read after this many bursts and frames of links: after few if they take long, because other programs may run for
/// milliseconds between two bursts of a program that yields its core.
const CLOCK_EVERY: RangeInclusive<u32> = 8..=128;

/// When the sockets are polled.
#[derive(Debug, Default)]
pub(super) struct Look {
    /// Bursts and frames of links since the last poll.
    since: u32,
    /// The count at which the clock is read next, and the distance from one read to the next.
    clock_at: u32,
    clock_every: u32,
    clock: Option<Instant>,
    /// When the sockets were polled last; `None`: they are polled in the next burst.
    asked_at: Option<Instant>,
    /// Polls left until the interval becomes [`SELDOM`].
    soon: u32,
}

impl Look {
    /// The sockets received or sent frames: more may follow soon.
    pub fn wait_for_more(&mut self) {
        self.soon = EACH_BURST + LIVELY_ASKS;
    }

    /// Whether the sockets were polled in the last burst. If not, the next burst polls them. Asked before a sleep: for frames that wait
    /// already, the edge-triggered descriptor does not signal again.
    pub fn is_up_to_date(&mut self) -> bool {
        if self.since > 0 {
            (self.asked_at, self.clock_at) = (None, 0);
        }
        self.since == 0
    }

    /// Whether this burst polls the sockets. `frames`: frames that links delivered in it.
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

    /// How often `bursts` bursts poll the sockets, each with `frames` frames of links and `apart` after the one before.
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

    // A program that yields its core after each empty poll gets it back only when all others had their turns.
    #[test]
    fn sockets_do_not_wait_for_many_bursts_where_each_takes_long() {
        let (mut look, mut now) = (Look::default(), Instant::now());
        const MS: Duration = Duration::from_millis(1);
        let (few, many) = (*CLOCK_EVERY.start(), *CLOCK_EVERY.end());
        assert_eq!(asked(&mut look, &mut now, 10 * few, 0, MS), 10);
        assert_eq!(asked(&mut look, &mut now, 80, few as usize, MS), 80);
        // As after a time of fast polls.
        asked(&mut look, &mut now, 100_000, 0, Duration::from_nanos(10));
        assert_eq!(look.clock_every, many);
        assert!(asked(&mut look, &mut now, many + 10 * few, 0, MS) > 10);
    }

    // A poll is a system call for each address, and a thread that polls in vain on a busy core goes to sleep thousands of times a second.
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
