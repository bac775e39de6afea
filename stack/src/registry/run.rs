//! A run: eight adjacent blocks of queue pair numbers, the unit of a lease.
//!
//! The blocks of a process are adjacent, so that one comparison with a range tells its numbers from those of others.

use crate::config::RUN_BLOCKS;
use crate::id::{Qpn, QpnBlock};
use core::fmt;
use core::ops::RangeInclusive;

/// Eight adjacent blocks, by the number of the run.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash)]
pub struct Run(u16);

impl Run {
    /// Number of runs.
    pub const COUNT: usize = QpnBlock::COUNT / RUN_BLOCKS;

    /// Every run, in the order of the numbers.
    pub fn all() -> impl Iterator<Item = Self> {
        (0..Self::COUNT as u16).map(Self)
    }

    /// The run with this number; `None` if the number is too large.
    pub const fn at(index: usize) -> Option<Self> {
        if index < Self::COUNT { Some(Self(index as u16)) } else { None }
    }

    /// A communication ID of connection management names a run by one of the run's queue pair numbers; this many bits are below that
    /// number.
    pub const ID_SHIFT: u32 = 8;

    /// The communication IDs that name this run.
    pub fn communication_ids(self) -> RangeInclusive<u32> {
        let (first, last) = (self.numbers().start().get(), self.numbers().end().get());
        first << Self::ID_SHIFT..=last << Self::ID_SHIFT | ((1 << Self::ID_SHIFT) - 1)
    }

    /// The run that a communication ID names.
    pub const fn of_communication_id(id: u32) -> Self {
        Self::of(Qpn::new(id >> Self::ID_SHIFT).block())
    }

    /// The run that contains a block.
    pub const fn of(block: QpnBlock) -> Self {
        Self((block.index() / RUN_BLOCKS) as u16)
    }

    /// The run's number, below [`Run::COUNT`].
    pub const fn index(self) -> usize {
        self.0 as usize
    }

    /// Its blocks, except those with well-known numbers: seven or eight.
    pub fn blocks(self) -> impl Iterator<Item = QpnBlock> {
        let first = self.index() * RUN_BLOCKS;
        (first..first + RUN_BLOCKS)
            .map(|index| QpnBlock::new(index as u32))
            .filter(|block| !block.is_reserved())
    }

    /// The queue pair numbers of these blocks. The range has no gap, as the reserved blocks are at either end of all numbers.
    pub fn numbers(self) -> RangeInclusive<Qpn> {
        let (mut low, mut high) = (Qpn::MULTICAST, Qpn::new(0));
        for block in self.blocks() {
            low = low.min(block.number(0));
            high = high.max(block.number(QpnBlock::NUMBERS - 1));
        }
        low..=high
    }
}

impl fmt::Display for Run {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_divide_all_blocks_but_the_reserved_ones() {
        let blocks: Vec<QpnBlock> = Run::all().flat_map(Run::blocks).collect();
        assert_eq!(blocks.len(), QpnBlock::COUNT - 2);
        assert!(blocks.is_sorted() && blocks.iter().all(|block| !block.is_reserved()));
        for run in Run::all() {
            assert!(run.blocks().all(|block| Run::of(block) == run));
            let numbers = run.numbers();
            let count = numbers.end().get() - numbers.start().get() + 1;
            assert_eq!(count as usize, run.blocks().count() * QpnBlock::NUMBERS as usize);
            let ids = run.communication_ids();
            assert_eq!([*ids.start(), *ids.end()].map(Run::of_communication_id), [run; 2]);
        }
        let (first, last) = (Run::of(QpnBlock::new(0)), Run::of(QpnBlock::new(0xfff)));
        assert_eq!(first.numbers(), Qpn::new(0x1000)..=Qpn::new(0x7fff));
        assert_eq!(last.numbers(), Qpn::new(0xff_8000)..=Qpn::new(0xff_efff));
    }
}
