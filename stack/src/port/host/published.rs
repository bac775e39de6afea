//! What shards read of the keeper's table, without a lock: to which link a run leads.
//!
//! A word for each run, stored by the keeper alone, but for one step: the shard that first needs a run marks it as asked. Links are
//! reclaimed as memory is in read-copy-update: the keeper takes a link out of the words and of the list, and uses its number again only
//! when no queue has the link any more ([`shared`](super::shared)).

use crate::registry::Run;
use core::sync::atomic::{AtomicU16, AtomicU64, Ordering};

/// The way to a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Way {
    /// Nobody has asked.
    Unknown,
    /// It is asked.
    Asked,
    /// A process has it to which there is no link, for now.
    Unlinked,
    /// Nobody has it, which was leased so often by then: the lowest bits of [`Registry::leases`](crate::registry::Registry::leases).
    Vacant(u8),
    /// This process.
    Ourselves,
    /// The link with this number.
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

/// Bits of a word of what is wanted.
const BITS: usize = u64::BITS as usize;
const _: () = assert!(Run::COUNT.is_multiple_of(BITS));

/// The ways to all runs, and which runs the keeper shall ask.
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
    /// The way to a run.
    #[inline]
    pub fn way(&self, run: Run) -> Way {
        Way::of(self.ways[run.index()].load(Ordering::Acquire))
    }

    /// Publishes a way. Only the keeper does.
    pub fn set(&self, run: Run, way: Way) {
        self.ways[run.index()].store(way.word(), Ordering::Release);
    }

    /// A shard wants a run of which nothing is known. Returns whether the keeper has to be told.
    pub fn want(&self, run: Run) -> bool {
        let way = &self.ways[run.index()];
        if way.compare_exchange(UNKNOWN, ASKED, Ordering::Relaxed, Ordering::Relaxed).is_err() {
            return false;
        }
        self.wanted[run.index() / BITS].fetch_or(1 << (run.index() % BITS), Ordering::Release);
        true
    }

    /// Takes the runs that are wanted.
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
