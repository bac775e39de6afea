//! The part of the keeper's table that shards read, without a lock: to which link a run leads.
//!
//! One word for each run. The keeper is its only writer, except that the shard which first needs a run marks the run as requested. Links
//! are reclaimed as in read-copy-update: the keeper removes a link from the words and from the list, and reuses its number only when no
//! queue has the link any more ([`shared`](super::shared)).

use crate::registry::Run;
use core::sync::atomic::{AtomicU16, AtomicU64, Ordering};

/// How a run is reached.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Way {
    /// No shard has requested it.
    Unknown,
    /// It was requested; the result is not known yet.
    Asked,
    /// Another process holds it, and no link to that process is made for a while.
    Unlinked,
    /// No process holds it. The number is how often it had been leased when that was found out: the lowest bits of
    /// [`Registry::leases`](crate::registry::Registry::leases).
    Vacant(u8),
    /// This process holds it.
    Ourselves,
    /// The link with this number leads to it.
    Link(u8),
}

const UNKNOWN: u16 = 0;
const ASKED: u16 = 1;
const UNLINKED: u16 = 2;
const OURSELVES: u16 = 3;
const LINK: u16 = 1 << 8;
const VACANT: u16 = 1 << 9;

impl Way {
    fn of(word: u16) -> Self {
        match word {
            UNKNOWN => Self::Unknown,
            ASKED => Self::Asked,
            UNLINKED => Self::Unlinked,
            OURSELVES => Self::Ourselves,
            word if word & VACANT != 0 => Self::Vacant(word as u8),
            link => Self::Link(link as u8),
        }
    }

    fn word(self) -> u16 {
        match self {
            Self::Unknown => UNKNOWN,
            Self::Asked => ASKED,
            Self::Unlinked => UNLINKED,
            Self::Vacant(leases) => VACANT | u16::from(leases),
            Self::Ourselves => OURSELVES,
            Self::Link(link) => LINK | u16::from(link),
        }
    }
}

/// Runs in a word of `Published::wanted`.
const BITS: usize = u64::BITS as usize;
const _: () = assert!(Run::COUNT.is_multiple_of(BITS));

/// How each run is reached, and which runs shards have requested from the keeper.
#[derive(Debug)]
pub struct Published {
    ways: [AtomicU16; Run::COUNT],
    wanted: [AtomicU64; Run::COUNT / BITS],
}

impl Default for Published {
    fn default() -> Self {
        Self { ways: [const { AtomicU16::new(UNKNOWN) }; _], wanted: [const { AtomicU64::new(0) }; _] }
    }
}

impl Published {
    /// How a run is reached.
    #[inline]
    pub fn way(&self, run: Run) -> Way {
        Way::of(self.ways[run.index()].load(Ordering::Acquire))
    }

    /// Publishes how a run is reached. Only the keeper calls this.
    pub fn set(&self, run: Run, way: Way) {
        self.ways[run.index()].store(way.word(), Ordering::Release);
    }

    /// A shard requests a run whose state is unknown. Returns whether the keeper has to be woken.
    pub fn want(&self, run: Run) -> bool {
        let way = &self.ways[run.index()];
        if way.compare_exchange(UNKNOWN, ASKED, Ordering::Relaxed, Ordering::Relaxed).is_err() {
            return false;
        }
        self.wanted[run.index() / BITS].fetch_or(1 << (run.index() % BITS), Ordering::Release);
        true
    }

    /// Takes the runs that were requested.
    pub fn take_wanted(&self) -> Vec<Run> {
        let take = |(at, word): (usize, &AtomicU64)| {
            let bits = word.swap(0, Ordering::Acquire);
            (0..BITS).filter(move |bit| bits >> bit & 1 == 1).filter_map(move |bit| Run::at(at * BITS + bit))
        };
        self.wanted.iter().enumerate().flat_map(take).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_way_is_read_as_it_was_published() {
        let published = Published::default();
        let run = Run::at(77).unwrap();
        let numbered = (0..=u8::MAX).flat_map(|number| [Way::Link(number), Way::Vacant(number)]);
        for way in [Way::Asked, Way::Unlinked, Way::Ourselves, Way::Unknown].into_iter().chain(numbered) {
            published.set(run, way);
            assert_eq!(published.way(run), way);
        }
    }

    #[test]
    fn a_run_is_wanted_once() {
        let published = Published::default();
        let runs = [0, 63, 64, Run::COUNT - 1].map(|run| Run::at(run).unwrap());
        for run in runs {
            assert!(published.want(run) && !published.want(run));
            assert_eq!(published.way(run), Way::Asked);
        }
        assert_eq!(published.take_wanted(), runs);
        assert_eq!(published.take_wanted(), []);
        published.set(runs[0], Way::Link(0));
        assert!(!published.want(runs[0]));
    }
}
