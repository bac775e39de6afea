//! Which shard owns each block of queue pair numbers.
//!
//! The device leases blocks for its shards, and never returns one. A shard looks up the owner of a number that is not its own, to hand
//! the packet over. Where several processes share the same addresses, their ports lease the blocks, and this table holds which of
//! them this device has.

use core::sync::atomic::{AtomicU8, Ordering};

use crate::config::SHARDS_MAX;
use crate::id::{Qpn, QpnBlock};

/// In place of a shard: the block has no owner.
const NOBODY: u8 = u8::MAX;
/// In place of a shard: the block is not this device's; another process may have it.
const FOREIGN: u8 = NOBODY - 1;

const _: () = assert!(SHARDS_MAX <= FOREIGN as usize);

/// The owner of each block, by block number.
#[derive(Debug)]
pub struct Blocks {
    owners: Box<[AtomicU8]>,
    /// Other processes have the same addresses, and a queue pair 1 of their own: this table cannot tell which of them a message is for.
    are_shared: bool,
}

impl Default for Blocks {
    /// No block has an owner, except the block of queue pair 1, which lives on shard 0.
    fn default() -> Self {
        Self::all(NOBODY, false)
    }
}

impl Blocks {
    fn all(owner: u8, are_shared: bool) -> Self {
        let owners = (0..QpnBlock::COUNT).map(|_| AtomicU8::new(owner)).collect();
        let blocks = Self { owners, are_shared };
        blocks.owners[Qpn::GSI.block().index()].store(0, Ordering::Relaxed);
        blocks
    }

    /// For a device whose blocks the port leases: the device has none yet.
    pub fn foreign() -> Self {
        Self::all(FOREIGN, true)
    }

    /// Assigns a block that was leased for a shard to that shard.
    pub fn add(&self, block: QpnBlock, shard: usize) {
        self.owners[block.index()].store(shard as u8, Ordering::Relaxed);
    }

    /// The shard that owns the block of this number; a number beyond all shards if none does.
    #[inline]
    pub fn shard_of(&self, qpn: Qpn) -> usize {
        self.owners[qpn.block().index()].load(Ordering::Relaxed).into()
    }

    /// Whether packets to this number leave by the port even if the address is the device's own: the number belongs to another process,
    /// or is that of queue pair 1, which each of those processes has.
    #[inline]
    pub fn is_foreign(&self, qpn: Qpn) -> bool {
        let is_of_others = self.owners[qpn.block().index()].load(Ordering::Relaxed) == FOREIGN;
        is_of_others || self.are_shared && qpn == Qpn::GSI
    }

    /// Assigns a block to a shard, unless another shard owns it. Returns whether the shard owns it now.
    pub fn grant(&self, block: QpnBlock, shard: usize) -> bool {
        let (entry, shard) = (&self.owners[block.index()], shard as u8);
        match entry.compare_exchange(NOBODY, shard, Ordering::Relaxed, Ordering::Relaxed) {
            Ok(_) => true,
            Err(owner) => owner == shard,
        }
    }

    /// Leases a block without an owner to a shard: the first one from block number `from` on, wrapping around. `None` if all are owned
    /// or foreign.
    pub fn lease(&self, shard: usize, from: u32) -> Option<QpnBlock> {
        (0..QpnBlock::COUNT as u32)
            .map(|n| QpnBlock::new(from.wrapping_add(n)))
            .filter(|block| !block.is_reserved())
            .find(|block| {
                self.owners[block.index()].load(Ordering::Relaxed) == NOBODY && self.grant(*block, shard)
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

    #[test]
    fn blocks_of_other_processes_are_not_leased() {
        let blocks = Blocks::foreign();
        assert_eq!(blocks.lease(0, 0), None);
        let [first, second] = [24, 33].map(QpnBlock::new);
        blocks.add(first, 3);
        assert!(!blocks.is_foreign(first.number(5)) && blocks.shard_of(first.number(5)) == 3);
        assert!(blocks.is_foreign(second.number(5)) && blocks.shard_of(second.number(5)) >= SHARDS_MAX);
        assert!(!blocks.grant(second, 0) && blocks.lease(0, 0).is_none());
        assert!(blocks.is_foreign(Qpn::GSI) && !Blocks::default().is_foreign(Qpn::GSI));
        assert_eq!(blocks.shard_of(Qpn::GSI), 0);
    }
}
