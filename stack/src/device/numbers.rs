//! Allocates queue pair numbers and slots.
//!
//! Numbers come from blocks that are leased for a shard. They are drawn at random, and at least half of a block stays free, so that an
//! attacker cannot guess a queue pair. The number of a destroyed queue pair is quarantined before it can be drawn again: packets to the
//! destroyed queue pair may still be in flight.

use core::ops::RangeInclusive;
use std::collections::{BTreeSet, VecDeque};

use super::error::DeviceError;
use crate::config::QPN_BLOCK_USE;
use crate::id::{Qpn, QpnBlock};
use crate::registry::Run;
use crate::shard::blocks::Blocks;
use crate::time::Instant;

/// A leased block, and which of its numbers are in use or in quarantine.
struct Lease {
    block: QpnBlock,
    shard: usize,
    taken: Box<[bool]>,
    used: u32,
}

impl Lease {
    fn new(block: QpnBlock, shard: usize) -> Self {
        Self { block, shard, taken: vec![false; QpnBlock::NUMBERS as usize].into(), used: 0 }
    }

    /// Takes the first free number from `from` on, wrapping around. A free one exists: see [`QPN_BLOCK_USE`].
    fn take(&mut self, from: u32) -> Qpn {
        let taken = |low: &u32| self.taken[(low % QpnBlock::NUMBERS) as usize];
        let low = (0..QpnBlock::NUMBERS).map(|n| from.wrapping_add(n)).find(|low| !taken(low));
        let low = low.expect("a block is never full") % QpnBlock::NUMBERS;
        self.taken[low as usize] = true;
        self.used += 1;
        self.block.number(low)
    }

    /// Whether a number is in use or in quarantine.
    fn has(&self, qpn: Qpn) -> bool {
        self.taken[(qpn.get() % QpnBlock::NUMBERS) as usize]
    }

    fn put_back(&mut self, qpn: Qpn) {
        self.taken[(qpn.get() % QpnBlock::NUMBERS) as usize] = false;
        self.used -= 1;
    }
}

/// The source of blocks and random numbers.
pub(super) trait Supply {
    /// The blocks that shards may lease.
    fn blocks(&self) -> &Blocks;

    /// A random number.
    fn random(&self) -> Result<u32, DeviceError>;

    /// Leases more blocks for a shard, if another component allocates the device's blocks; otherwise `None`.
    fn lease(&self, shard: usize) -> Result<Option<Run>, DeviceError>;
}

#[derive(Default)]
struct Slots {
    /// Slots that were used before; the one that has been free longest comes first.
    free: VecDeque<u32>,
    /// The first slot that was never used.
    fresh: u32,
    live: u32,
}

pub(super) struct Numbers {
    slots: Vec<Slots>,
    per_shard: u32,
    leases: Vec<Lease>,
    /// Numbers in quarantine, ordered by its end.
    quarantined: BTreeSet<(Instant, Qpn)>,
    gsi: bool,
}

impl Numbers {
    pub(super) fn new(shards: usize, per_shard: usize) -> Self {
        Self {
            slots: (0..shards).map(|_| Slots::default()).collect(),
            per_shard: per_shard as u32,
            leases: Vec::new(),
            quarantined: BTreeSet::new(),
            gsi: false,
        }
    }

    fn lease_of(&mut self, qpn: Qpn) -> &mut Lease {
        let lease = self.leases.iter_mut().find(|lease| lease.block == qpn.block());
        lease.expect("the number is of a leased block")
    }

    /// The living shard with the fewest queue pairs, the first among equals; any shard if all are dead.
    pub(super) fn least_loaded(&self, is_dead: impl Fn(usize) -> bool) -> usize {
        (0..self.slots.len()).min_by_key(|i| (is_dead(*i), self.slots[*i].live)).unwrap_or(0)
    }

    /// Takes a slot and a number on `shard`, from a block of the shard that is less than half used; leases a block if the shard has none.
    /// With `again`, takes this number, which a queue pair of the shard had before.
    pub(super) fn take(
        &mut self,
        now: Instant,
        shard: usize,
        again: Option<Qpn>,
        supply: &impl Supply,
    ) -> Result<(u32, Qpn), DeviceError> {
        self.end_quarantines(now);
        let limit = self.per_shard as usize;
        if self.slots[shard].live >= self.per_shard {
            return Err(DeviceError::Exhausted { what: "queue pair of this shard", limit });
        }
        if let Some(number) = again {
            self.take_again(shard, number)?;
            return Ok((self.take_slot(shard), number));
        }
        let roomy = |lease: &&mut Lease| lease.shard == shard && lease.used < QPN_BLOCK_USE;
        let number = match self.leases.iter_mut().filter(roomy).min_by_key(|lease| lease.used) {
            Some(lease) => lease.take(supply.random()?),
            None => self.lease(shard, supply)?.take(supply.random()?),
        };
        Ok((self.take_slot(shard), number))
    }

    /// Leases one or several blocks for a shard, and returns the first.
    fn lease(&mut self, shard: usize, supply: &impl Supply) -> Result<&mut Lease, DeviceError> {
        let first = self.leases.len();
        if let Some(run) = supply.lease(shard)? {
            for block in run.blocks() {
                supply.blocks().add(block, shard);
                self.leases.push(Lease::new(block, shard));
            }
            return Ok(&mut self.leases[first]);
        }
        // The block behind the shard's last one, if free, so that a shard's numbers form few ranges.
        let from = match self.leases.iter().rfind(|lease| lease.shard == shard) {
            Some(lease) => lease.block.index() as u32 + 1,
            None => supply.random()?,
        };
        let limit = QpnBlock::COUNT * QPN_BLOCK_USE as usize;
        let exhausted = DeviceError::Exhausted { what: "queue pair number", limit };
        let block = supply.blocks().lease(shard, from).ok_or(exhausted)?;
        self.leases.push(Lease::new(block, shard));
        Ok(&mut self.leases[first])
    }

    /// Number of leased blocks: changes when the ranges do.
    pub(super) fn leases(&self) -> usize {
        self.leases.len()
    }

    /// The numbers of each shard: ascending ranges.
    pub(super) fn ranges(&self) -> Vec<(RangeInclusive<Qpn>, usize)> {
        let mut blocks: Vec<_> = self.leases.iter().map(|lease| (lease.block, lease.shard)).collect();
        blocks.sort_unstable();
        let mut ranges: Vec<(RangeInclusive<Qpn>, usize)> = Vec::new();
        for (block, shard) in blocks {
            let (first, last) = (block.number(0), block.number(QpnBlock::NUMBERS - 1));
            match ranges.last_mut() {
                Some((range, of)) if *of == shard && range.end().get() + 1 == first.get() => {
                    *range = *range.start()..=last
                }
                _ => ranges.push((first..=last, shard)),
            }
        }
        ranges
    }

    /// Ends the quarantine of a number of the shard, and takes the number.
    fn take_again(&mut self, shard: usize, number: Qpn) -> Result<(), DeviceError> {
        let lease =
            self.leases.iter_mut().find(|lease| lease.block == number.block() && lease.shard == shard);
        let lease = lease.ok_or(DeviceError::Foreign { what: "queue pair number" })?;
        match self.quarantined.iter().find(|(_, quarantined)| *quarantined == number).copied() {
            Some(entry) => _ = self.quarantined.remove(&entry),
            None if lease.has(number) => {
                return Err(DeviceError::Exists { what: "queue pair with this number" });
            }
            None => _ = lease.take(number.get()),
        }
        Ok(())
    }

    /// Takes a slot for queue pair 1, which exists at most once, on shard 0.
    pub(super) fn take_gsi(&mut self) -> Result<(u32, Qpn), DeviceError> {
        if self.gsi {
            return Err(DeviceError::Exists { what: "queue pair 1 (GSI)" });
        }
        let limit = self.per_shard as usize;
        if self.slots[0].live >= self.per_shard {
            return Err(DeviceError::Exhausted { what: "queue pair of shard 0", limit });
        }
        self.gsi = true;
        Ok((self.take_slot(0), Qpn::GSI))
    }

    fn take_slot(&mut self, shard: usize) -> u32 {
        let slots = &mut self.slots[shard];
        slots.live += 1;
        // Unused slots first: completions of a slot's former queue pair then have the longest time to be polled.
        if slots.fresh < self.per_shard {
            slots.fresh += 1;
            return slots.fresh - 1;
        }
        slots.free.pop_front().expect("a shard with fewer live queue pairs than slots has a free one")
    }

    /// Returns a slot and a number; the number is in quarantine until `until`.
    pub(super) fn put_back(&mut self, shard: usize, slot: u32, qpn: Qpn, until: Instant) {
        self.slots[shard].live -= 1;
        self.slots[shard].free.push_back(slot);
        if qpn == Qpn::GSI {
            self.gsi = false;
        } else {
            self.quarantined.insert((until, qpn));
        }
    }

    /// Frees the numbers whose quarantine has ended.
    fn end_quarantines(&mut self, now: Instant) {
        while let Some((until, number)) = self.quarantined.first().copied() {
            if until > now {
                return;
            }
            self.quarantined.pop_first();
            self.lease_of(number).put_back(number);
        }
    }
}

#[cfg(test)]
mod tests {
    use core::cell::Cell;
    use std::collections::HashSet;

    use super::*;

    fn at(ms: u64) -> Instant {
        Instant::from_nanos(ms * 1_000_000)
    }

    /// Blocks, and a function that returns numbers in place of random ones.
    struct Given<'a, F>(&'a Blocks, F);

    impl<F: Fn() -> u32> Supply for Given<'_, F> {
        fn blocks(&self) -> &Blocks {
            self.0
        }
        fn random(&self) -> Result<u32, DeviceError> {
            Ok(self.1())
        }
        fn lease(&self, _: usize) -> Result<Option<Run>, DeviceError> {
            Ok(None)
        }
    }

    // Any well spread numbers will do.
    fn spread() -> impl Fn() -> u32 {
        let x = Cell::new(1u32);
        move || {
            x.set(x.get().wrapping_mul(1_664_525).wrapping_add(1_013_904_223));
            x.get() >> 8
        }
    }

    /// A supply that leases these runs, one after the other.
    struct Runs(Blocks, Cell<&'static [usize]>);

    impl Supply for Runs {
        fn blocks(&self) -> &Blocks {
            &self.0
        }
        fn random(&self) -> Result<u32, DeviceError> {
            Ok(3)
        }
        fn lease(&self, _: usize) -> Result<Option<Run>, DeviceError> {
            let exhausted = DeviceError::Exhausted { what: "run", limit: 3 };
            let (next, rest) = self.1.get().split_first().ok_or(exhausted)?;
            self.1.set(rest);
            Ok(Run::at(*next))
        }
    }

    // Goal: if numbers are leased, no other number is drawn, each shard has its own, and more are leased when none is left.
    #[test]
    fn numbers_are_of_the_runs_that_were_leased() {
        let runs = Runs(Blocks::foreign(), Cell::new(&[7, 0, 9]));
        let of_run = 8 * QPN_BLOCK_USE as usize;
        let mut n = Numbers::new(2, 3 * of_run);
        let mut take = |shard| n.take(at(0), shard, None, &runs).map(|(_, qpn)| qpn);
        let run_of = |qpn: Qpn| Run::of(qpn.block()).index();
        assert_eq!([take(1), take(0)].map(|qpn| run_of(qpn.unwrap())), [7, 0]);
        let mut of_1: Vec<Qpn> = (0..of_run).map(|_| take(1).unwrap()).collect();
        assert_eq!(of_1.pop().map(run_of), Some(9), "the first run is used to half");
        assert!(of_1.iter().all(|qpn| run_of(*qpn) == 7 && runs.0.shard_of(*qpn) == 1));
        let left = of_run - 1;
        (0..left).for_each(|_| assert_eq!(run_of(take(1).unwrap()), 9));
        let error = take(1).unwrap_err();
        assert!(matches!(error, DeviceError::Exhausted { what: "run", .. }), "{error}");
        assert_eq!(take(0).map(run_of).unwrap(), 0);
    }

    #[test]
    fn numbers_are_of_blocks_of_their_shard_and_are_never_reserved() {
        let (mut n, blocks) = (Numbers::new(16, 8), Blocks::default());
        for shard in 0..16 {
            for wish in [0, 1, 2, u32::MAX, 0xfff] {
                let (_, qpn) = n.take(at(0), shard, None, &Given(&blocks, || wish)).unwrap();
                assert_eq!(blocks.shard_of(qpn), shard);
                assert!(!matches!(qpn.get(), 0 | 1 | 0xff_ffff), "{qpn:?}");
            }
        }
    }

    #[test]
    fn blocks_are_used_to_half_at_most() {
        let count = 5 * QPN_BLOCK_USE as usize / 2;
        let (mut n, blocks, random) = (Numbers::new(2, count), Blocks::default(), spread());
        let mut numbers = HashSet::new();
        for _ in 0..count {
            let (_, qpn) = n.take(at(0), 1, None, &Given(&blocks, &random)).unwrap();
            assert!(numbers.insert(qpn) && blocks.shard_of(qpn) == 1);
        }
        let used: Vec<u32> = n.leases.iter().map(|lease| lease.used).collect();
        assert_eq!(
            used,
            [QPN_BLOCK_USE, QPN_BLOCK_USE, QPN_BLOCK_USE / 2],
            "one is leased when it is needed"
        );
        for (slot, qpn) in (0..).zip(numbers) {
            n.put_back(1, slot, qpn, at(100));
        }
        n.take(at(100), 1, None, &Given(&blocks, &random)).unwrap();
        assert_eq!((n.leases.len(), n.leases.iter().map(|lease| lease.used).sum()), (3, 1));
    }

    #[test]
    fn numbers_rest_and_slots_come_back_last() {
        let (mut n, blocks) = (Numbers::new(1, 2), Blocks::default());
        let (slot, qpn) = n.take(at(0), 0, None, &Given(&blocks, || 7)).unwrap();
        assert_eq!((slot, qpn.get()), (0, 0x7007));
        n.put_back(0, slot, qpn, at(100));
        let (slot, other) = n.take(at(50), 0, None, &Given(&blocks, || 7)).unwrap();
        assert_eq!((slot, other.get()), (1, 0x7008), "7 rests until 100 ms, slot 0 was used before");
        let (slot, again) = n.take(at(100), 0, None, &Given(&blocks, || 7)).unwrap();
        assert_eq!((slot, again), (0, qpn));
        let full = n.take(at(100), 0, None, &Given(&blocks, || 7));
        assert!(matches!(full, Err(DeviceError::Exhausted { limit: 2, .. })));
    }

    // A peer influences how long a number is in quarantine: by the timeout and retries in its REQ.
    #[test]
    fn a_number_that_rests_long_holds_up_no_other() {
        let (mut n, blocks) = (Numbers::new(1, 2), Blocks::default());
        let taken = [7, 8].map(|wish| n.take(at(0), 0, None, &Given(&blocks, || wish)).unwrap());
        for ((slot, qpn), until) in taken.into_iter().zip([1000, 100]) {
            n.put_back(0, slot, qpn, at(until));
        }
        let next = n.take(at(100), 0, None, &Given(&blocks, || 7)).unwrap().1;
        assert_eq!(next, taken[1].1, "7 rests, 8 does not");
    }

    #[test]
    fn a_number_is_taken_again_if_it_is_the_shards_and_nobody_has_it() {
        let (mut n, blocks) = (Numbers::new(2, 2), Blocks::default());
        let (slot, qpn) = n.take(at(0), 0, None, &Given(&blocks, || 7)).unwrap();
        let again = |n: &mut Numbers, now, shard| n.take(now, shard, Some(qpn), &Given(&blocks, || 9));
        assert!(matches!(again(&mut n, at(50), 0), Err(DeviceError::Exists { .. })), "it lives");
        n.put_back(0, slot, qpn, at(100));
        assert!(matches!(again(&mut n, at(50), 1), Err(DeviceError::Foreign { .. })));
        let (slot, taken) = again(&mut n, at(50), 0).unwrap();
        assert_eq!(taken, qpn, "it rests no longer");
        assert_eq!(n.take(at(100), 0, None, &Given(&blocks, || 7)).unwrap().1.get(), 0x7008);
        n.put_back(0, slot, qpn, at(200));
        assert_eq!(again(&mut n, at(300), 0).unwrap().1, qpn, "it had rested");
    }

    #[test]
    fn there_is_one_gsi() {
        let mut n = Numbers::new(2, 4);
        let (slot, qpn) = n.take_gsi().unwrap();
        assert_eq!(qpn, Qpn::GSI);
        assert!(matches!(n.take_gsi(), Err(DeviceError::Exists { .. })));
        assert_eq!(n.least_loaded(|_| false), 1);
        assert_eq!(n.least_loaded(|shard| shard == 1), 0);
        assert_eq!(n.least_loaded(|_| true), 1);
        n.put_back(0, slot, qpn, at(0));
        assert!(n.take_gsi().is_ok());
    }
}
