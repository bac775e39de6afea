//! Which shard has each block of queue pair numbers.
//!
//! The device leases blocks for its shards, and never gives one back. A shard looks up the numbers that are not its own, to
//! hand their packets over.

use core::sync::atomic::{AtomicU8, Ordering};

use crate::config::SHARDS_MAX;
use crate::id::{Qpn, QpnBlock};

/// In place of a shard: nobody has the block.
const NOBODY: u8 = u8::MAX;

const _: () = assert!(SHARDS_MAX <= NOBODY as usize);

/// The shard of each block, by its number.
#[derive(Debug)]
pub struct Blocks(Box<[AtomicU8]>);

impl Default for Blocks {
    /// Nobody has any, but for the block of queue pair 1, which lives on shard 0.
    fn default() -> Self {
        let blocks = Self((0..QpnBlock::COUNT).map(|_| AtomicU8::new(NOBODY)).collect());
        assert!(blocks.grant(Qpn::GSI.block(), 0));
        blocks
    }
}

impl Blocks {
    /// The shard that has the block of this number; a number beyond all shards if none has it.
    #[inline]
    pub fn shard_of(&self, qpn: Qpn) -> usize {
        self.0[qpn.block().index()].load(Ordering::Relaxed).into()
    }

    /// Gives a block to a shard, unless another one has it. Returns whether it is the shard's now.
    pub fn grant(&self, block: QpnBlock, shard: usize) -> bool {
        let (entry, shard) = (&self.0[block.index()], shard as u8);
        match entry.compare_exchange(NOBODY, shard, Ordering::Relaxed, Ordering::Relaxed) {
            Ok(_) => true,
            Err(owner) => owner == shard,
        }
    }

    /// Leases a block that nobody has to a shard: the first one from that number on, going round. `None`: all are taken.
    pub fn lease(&self, shard: usize, from: u32) -> Option<QpnBlock> {
        (0..QpnBlock::COUNT as u32)
            .map(|n| QpnBlock::new(from.wrapping_add(n)))
            .filter(|block| !block.is_reserved())
            .find(|block| {
                self.0[block.index()].load(Ordering::Relaxed) == NOBODY && self.grant(*block, shard)
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_block_is_leased_once_and_no_reserved_number_with_it() {
        let blocks = Blocks::default();
        let mut leased: Vec<_> = (0..QpnBlock::COUNT as u32)
            .map_while(|n| {
                let block = blocks.lease(n as usize % SHARDS_MAX, n.wrapping_mul(0x9e37_79b9))?;
                assert_eq!(blocks.shard_of(block.number(n)), n as usize % SHARDS_MAX);
                Some(block)
            })
            .collect();
        leased.sort_unstable();
        leased.dedup();
        assert_eq!(leased.len(), QpnBlock::COUNT - 2);
        let numbers = |block: &QpnBlock| [block.number(0), block.number(1), block.number(u32::MAX)];
        let reserved = [Qpn::new(0), Qpn::GSI, Qpn::MULTICAST];
        assert!(leased.iter().flat_map(numbers).all(|number| !reserved.contains(&number)));
    }

    #[test]
    fn a_block_has_one_shard() {
        let blocks = Blocks::default();
        let block = QpnBlock::new(7);
        assert!(blocks.grant(block, 3) && blocks.grant(block, 3) && !blocks.grant(block, 4));
        assert_eq!(blocks.shard_of(Qpn::new(0x7fff)), 3);
        assert!(blocks.shard_of(Qpn::new(0x8000)) >= SHARDS_MAX);
        assert_eq!(blocks.shard_of(Qpn::GSI), 0);
        assert_eq!(blocks.lease(1, 7), Some(QpnBlock::new(8)));
    }
}
