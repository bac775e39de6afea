//! Detects peers that take nothing from a link. A process that is stopped, frozen or starved is not dead, and the frames that wait for it
//! are not lost.
//!
//! It reads no clock: the caller passes the time.

use super::traits::Stalled;
use crate::time::Instant;
use core::time::Duration;

/// Time until a peer is looked at again: a peer that runs has taken something by then.
const LOOK: Duration = Duration::from_millis(1);
/// Interval at which a stalled peer is looked at.
const AGAIN: Duration = Duration::from_millis(100);

/// What is known of the peer of a link.
#[derive(Debug)]
pub struct Stall {
    /// Longest time for which the peer may take nothing and still counts as stalled.
    most: Duration,
    /// The position in the link that the peer had reached, and since when it has been seen there.
    seen: Option<(u64, Instant)>,
}

impl Stall {
    /// Makes the record of a peer that may take nothing for up to `most`. With zero, no peer counts as stalled.
    pub const fn new(most: Duration) -> Self {
        Self { most, seen: None }
    }

    /// Whether a peer that has reached `position` in the link is stalled. `None`: no frames wait for it.
    pub fn look(&mut self, position: Option<u64>, now: Instant) -> Stalled {
        if self.most.is_zero() {
            return Stalled::No;
        }
        let Some(position) = position else {
            self.seen = None;
            return Stalled::No;
        };
        let since = match self.seen {
            Some((seen, since)) if seen == position => since,
            _ => now,
        };
        self.seen = Some((position, since));
        match Duration::from_nanos(now.nanos_since(since)) {
            past if past < LOOK => Stalled::Perhaps(LOOK),
            past if past < self.most => Stalled::Yes(AGAIN),
            _ => Stalled::No,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn at(ms: u64) -> Instant {
        Instant::ZERO.after(Duration::from_millis(ms))
    }

    #[test]
    fn a_peer_that_takes_nothing_is_stalled_until_the_bound() {
        let mut stall = Stall::new(60 * 1000 * MS);
        assert_eq!(stall.look(Some(7), at(5)), Stalled::Perhaps(LOOK), "it may run");
        assert_eq!(stall.look(Some(7), at(5)), Stalled::Perhaps(LOOK), "another queue pair asks");
        for ms in [6, 106, 30_000, 60_004] {
            assert_eq!(stall.look(Some(7), at(ms)), Stalled::Yes(AGAIN), "{ms}");
        }
        for ms in [60_005, 60_105, 90_000] {
            assert_eq!(stall.look(Some(7), at(ms)), Stalled::No, "{ms}");
        }
        // It takes frames again, and stops again.
        assert_eq!(stall.look(Some(8), at(90_100)), Stalled::Perhaps(LOOK));
        assert_eq!(stall.look(Some(8), at(90_101)), Stalled::Yes(AGAIN));
    }

    #[test]
    fn a_peer_that_takes_frames_is_not() {
        let mut stall = Stall::new(60 * 1000 * MS);
        for ms in 0..100 {
            assert_eq!(stall.look(Some(ms), at(ms)), Stalled::Perhaps(LOOK), "{ms}: others may wait");
        }
        assert_eq!(
            [200, 201].map(|ms| stall.look(None, at(ms))),
            [Stalled::No; 2],
            "it has taken everything"
        );
    }

    #[test]
    fn it_can_be_off() {
        let mut stall = Stall::new(Duration::ZERO);
        assert_eq!([5, 6, 200].map(|ms| stall.look(Some(7), at(ms))), [Stalled::No; 3]);
    }
}
