//! The keeper's state of each run: not requested, call pending, link up, no link, vacant. Each change is published at once.
//!
//! Decides which run to call, when, and how long to keep trying. Reads no clock: times are passed in.

use super::published::{Published, Way};
use crate::registry::Run;
use core::time::Duration;
use std::sync::Arc;
use std::time::Instant;

/// Pause before a run is called again, initial and longest, when its process lives and the call led to no link.
const AGAIN: Duration = Duration::from_millis(1);
const AGAIN_MAX: Duration = Duration::from_millis(64);
/// How long nobody is asked for a run that nobody has.
pub const VACANT_FOR: Duration = Duration::from_millis(100);
/// The same, for one that another user has.
pub const FOREIGN_FOR: Duration = Duration::from_millis(100);
/// The same, for one whose process does not answer or wants no link.
pub const REFUSED_FOR: Duration = Duration::from_secs(1);

/// The state of a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    /// No shard has requested it.
    None,
    /// A call is to be made at `at`.
    Due { at: Instant, pause: Duration, since: Instant },
    /// A call is in progress.
    Called { pause: Duration, since: Instant },
    /// This link leads to its process.
    Up(u8),
    /// No link is made before this time.
    Unlinked(Instant),
    /// No process holds the run, which had been leased `leases` times (lowest 8 bits). This is assumed until `until`.
    Vacant { until: Instant, leases: u8 },
    /// This process holds it.
    Ours,
}

/// The states of all runs.
#[derive(Debug)]
pub struct Table {
    runs: Vec<State>,
    published: Arc<Published>,
    /// How long calls of a run are repeated before it counts as refused.
    patience: Duration,
    /// Whether a result is new since the last [`Self::take_news`]: sleeping shards may wait for it.
    has_news: bool,
}

impl Table {
    /// A table in which no run was requested.
    pub fn new(published: Arc<Published>, patience: Duration) -> Self {
        Self { runs: vec![State::None; Run::COUNT], published, patience, has_news: false }
    }

    fn set(&mut self, run: Run, state: State) {
        self.has_news |= !matches!(state, State::Due { .. } | State::Called { .. });
        self.runs[run.index()] = state;
        self.published.set(
            run,
            match state {
                State::None => Way::Unknown,
                State::Due { .. } | State::Called { .. } => Way::Asked,
                State::Up(link) => Way::Link(link),
                State::Unlinked(_) => Way::Unlinked,
                State::Vacant { leases, .. } => Way::Vacant(leases),
                State::Ours => Way::Ourselves,
            },
        );
    }

    /// Whether a result is new since the last call. If so, shards that sleep must be woken.
    pub fn take_news(&mut self) -> bool {
        core::mem::take(&mut self.has_news)
    }

    fn get(&self, run: Run) -> State {
        self.runs[run.index()]
    }

    /// A shard requests the route to a run.
    pub fn ask(&mut self, run: Run, now: Instant) {
        if self.get(run) == State::None {
            self.set(run, State::Due { at: now, pause: AGAIN, since: now });
        }
    }

    /// The next run whose call is due. Its state changes to called.
    pub fn next_due(&mut self, now: Instant) -> Option<Run> {
        let run = Run::all().find(|run| matches!(self.get(*run), State::Due { at, .. } if at <= now))?;
        if let State::Due { pause, since, .. } = self.get(run) {
            self.set(run, State::Called { pause, since });
        }
        Some(run)
    }

    /// A link leads to this run.
    pub fn up(&mut self, run: Run, link: u8) {
        self.set(run, State::Up(link));
    }

    /// The link that leads to a run.
    pub fn link_to(&self, run: Run) -> Option<u8> {
        if let State::Up(link) = self.get(run) { Some(link) } else { None }
    }

    /// The call led to no link this time. The run stays requested and is called again after a pause, until the patience ends.
    pub fn again(&mut self, run: Run, now: Instant) {
        let (pause, since) = match self.get(run) {
            State::Called { pause, since } | State::Due { pause, since, .. } => (pause, since),
            State::Up(_) | State::None | State::Unlinked(_) | State::Vacant { .. } | State::Ours => return,
        };
        if now.saturating_duration_since(since) >= self.patience {
            return self.unlinked(run, now, REFUSED_FOR);
        }
        self.set(run, State::Due { at: now + pause, pause: AGAIN_MAX.min(2 * pause), since });
    }

    /// Notes that this process holds the run.
    pub fn ours(&mut self, run: Run) {
        self.set(run, State::Ours);
    }

    /// Notes that no link to the process of this run is made for a time.
    pub fn unlinked(&mut self, run: Run, now: Instant, time: Duration) {
        self.set(run, State::Unlinked(now + time));
    }

    /// Notes that no process holds this run. `leases`: how often it had been leased before that was found out.
    pub fn vacant(&mut self, run: Run, leases: u64, now: Instant) {
        self.set(run, State::Vacant { until: now + VACANT_FOR, leases: leases as u8 });
    }

    /// A link has ended. Returns the runs to which it led: their process is gone, and other processes may lease them.
    pub fn end(&mut self, link: u8) -> Vec<Run> {
        let runs: Vec<Run> = Run::all().filter(|run| self.get(*run) == State::Up(link)).collect();
        runs.iter().for_each(|run| self.set(*run, State::None));
        runs
    }

    /// Drops the results that have expired.
    pub fn expire(&mut self, now: Instant) {
        for run in Run::all() {
            if let State::Unlinked(until) | State::Vacant { until, .. } = self.get(run)
                && until <= now
            {
                self.set(run, State::None);
            }
        }
    }

    /// When the next call is due or the next result expires.
    pub fn due(&self) -> Option<Instant> {
        let due = |state: &State| match state {
            State::Due { at, .. } => Some(*at),
            State::Unlinked(until) | State::Vacant { until, .. } => Some(*until),
            State::None | State::Called { .. } | State::Up(_) | State::Ours => None,
        };
        self.runs.iter().filter_map(due).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn table() -> (Table, Arc<Published>, Run, Instant) {
        let published = Arc::new(Published::default());
        (Table::new(Arc::clone(&published), 300 * MS), published, Run::at(7).unwrap(), Instant::now())
    }

    #[test]
    fn a_run_is_asked_called_up_and_ended() {
        let (mut table, published, run, now) = table();
        assert_eq!((table.next_due(now), table.due()), (None, None));
        table.ask(run, now);
        assert_eq!((published.way(run), table.due()), (Way::Asked, Some(now)));
        assert_eq!((table.next_due(now), table.next_due(now)), (Some(run), None), "it is called once");
        assert_eq!((published.way(run), table.due()), (Way::Asked, None));
        assert!(!table.take_news());
        table.up(run, 3);
        assert!(table.take_news() && !table.take_news());
        table.up(Run::at(8).unwrap(), 3);
        assert_eq!((published.way(run), table.link_to(run)), (Way::Link(3), Some(3)));
        table.again(run, now);
        table.ask(run, now);
        assert_eq!(published.way(run), Way::Link(3), "late words change nothing");
        assert_eq!(table.end(3), [run, Run::at(8).unwrap()]);
        assert_eq!(published.way(run), Way::Unknown);
    }

    // Goal: the result that a run is vacant is not kept for longer than `VACANT_FOR`.
    #[test]
    fn a_run_that_nobody_has_is_asked_for_again_after_a_while() {
        let (mut table, published, run, now) = table();
        table.ask(run, now);
        table.next_due(now);
        table.vacant(run, 0x107, now);
        assert_eq!((published.way(run), table.due()), (Way::Vacant(7), Some(now + VACANT_FOR)));
        table.again(run, now);
        table.ask(run, now);
        table.expire(now + VACANT_FOR - MS);
        assert_eq!(published.way(run), Way::Vacant(7), "late words change nothing");
        assert!(table.take_news());
        table.expire(now + VACANT_FOR);
        assert_eq!((published.way(run), table.due()), (Way::Unknown, None));
        assert!(table.take_news(), "who waits asks again");
    }

    #[test]
    fn pauses_grow_and_patience_ends() {
        let (mut table, published, run, start) = table();
        table.ask(run, start);
        let (mut now, mut pauses) = (start, Vec::new());
        loop {
            assert_eq!(table.next_due(now), Some(run));
            table.again(run, now);
            if published.way(run) == Way::Unlinked {
                break;
            }
            let due = table.due().unwrap();
            pauses.push((due - now).as_millis());
            now = due;
        }
        assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 64, 64, 64, 64]);
        table.ask(run, now);
        assert_eq!(published.way(run), Way::Unlinked, "for a while");
        table.expire(now + REFUSED_FOR);
        assert_eq!(published.way(run), Way::Unknown);
    }
}
