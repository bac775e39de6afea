//! Peers that take nothing from a link: a process that is stopped, frozen or starved is not dead, and what waits for it is not lost.
//!
//! No clock here: times are passed in.

use crate::time::Instant;
use core::time::Duration;

/// A peer is looked at again so much later: one that runs has taken something by then.
const LOOK: Duration = Duration::from_millis(1);
/// How often one that takes nothing is looked at.
const AGAIN: Duration = Duration::from_millis(100);

/// What is known of the peer of a link.
#[derive(Debug)]
pub(super) struct Stall {
    /// How long the peer may take nothing.
    most: Duration,
    /// The position in the link that the peer had reached, and since when it has been seen there.
    seen: Option<(u64, Instant)>,
}

impl Stall {
    /// A peer may take nothing for `most`.
    pub const fn new(most: Duration) -> Self {
        Self { most, seen: None }
    }

    /// How long to wait for a peer that has reached `position`, behind which frames wait: see
    /// [`PortQueue::stalled`](super::traits::PortQueue::stalled). `None`: no frames wait for it.
    pub fn wait(&mut self, position: Option<u64>, now: Instant) -> Option<Duration> {
        if self.most.is_zero() {
            return None;
        }
        let before = core::mem::replace(&mut self.seen, position.map(|position| (position, now)));
        let position = position?;
        let Some((seen, since)) = before else { return Some(LOOK) };
        let past = Duration::from_nanos(now.nanos_since(since));
        if position == seen {
            self.seen = before;
            let wait = if past < LOOK { LOOK } else { AGAIN };
            return (past < self.most).then_some(wait);
        }
        // It has moved: just now, so it runs, or long ago.
        (past > 2 * LOOK).then_some(LOOK)
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
    fn a_peer_that_takes_nothing_is_waited_for_until_the_bound() {
        let mut stall = Stall::new(60 * 1000 * MS);
        assert_eq!(stall.wait(Some(7), at(5)), Some(LOOK), "it may run");
        assert_eq!(stall.wait(Some(7), at(5)), Some(LOOK), "another queue pair asks");
        for ms in [6, 106, 30_000, 60_004] {
            assert_eq!(stall.wait(Some(7), at(ms)), Some(AGAIN), "{ms}");
        }
        for ms in [60_005, 60_105, 90_000] {
            assert_eq!(stall.wait(Some(7), at(ms)), None, "{ms}");
        }
        // It goes on, and stops again.
        assert_eq!(stall.wait(Some(8), at(90_100)), Some(LOOK));
        assert_eq!(stall.wait(Some(8), at(90_101)), Some(AGAIN));
    }

    #[test]
    fn a_peer_that_runs_is_silent_by_its_own_will() {
        let mut stall = Stall::new(60 * 1000 * MS);
        // Frames always wait for it, and it takes them.
        for ms in 0..100 {
            let wait = stall.wait(Some(ms), at(ms));
            assert_eq!(wait, (ms == 0).then_some(LOOK), "{ms}");
        }
        // Nothing waits: it has taken everything.
        assert_eq!(stall.wait(None, at(200)), None);
        assert_eq!(stall.wait(None, at(201)), None);
        // A time-out now and then: each is looked at once.
        for n in 1..10 {
            assert_eq!(stall.wait(Some(1000 + 2 * n), at(1000 * n)), Some(LOOK));
            assert_eq!(stall.wait(Some(1001 + 2 * n), at(1000 * n + 1)), None);
        }
    }

    #[test]
    fn it_can_be_off() {
        let mut stall = Stall::new(Duration::ZERO);
        assert_eq!([5, 6, 200].map(|ms| stall.wait(Some(7), at(ms))), [None; 3]);
    }
}
