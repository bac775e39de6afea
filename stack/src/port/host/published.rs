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
    /// There is none, for now.
    Nobody,
    /// This process.
    Ourselves,
    /// The link with this number.
    Link(u8),
}

const UNKNOWN: u16 = 0;
const ASKED: u16 = 1;
const NOBODY: u16 = 2;
const OURSELVES: u16 = 3;
const LINK: u16 = 1 << 8;

impl Way {
    fn of(word: u16) -> Self {
        match word {
            UNKNOWN => Self::Unknown,
            ASKED => Self::Asked,
            NOBODY => Self::Nobody,
            OURSELVES => Self::Ourselves,
            link => Self::Link(link as u8),
        }
    }

    fn word(self) -> u16 {
        match self {
            Self::Unknown => UNKNOWN,
            Self::Asked => ASKED,
            Self::Nobody => NOBODY,
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
        let links = (0..=u8::MAX).map(Way::Link);
        for way in [Way::Asked, Way::Nobody, Way::Ourselves, Way::Unknown].into_iter().chain(links) {
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
