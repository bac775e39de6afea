//! Allocates queue pair numbers and slots.
//!
//! A number's upper bits name the shard, the rest is drawn at random, so that an attacker cannot guess a queue pair. The number
//! of a destroyed queue pair rests before it can be drawn again: packets of its first life may still be on the way.

use std::collections::{HashSet, VecDeque};

use super::error::DeviceError;
use crate::config::SHARD_BITS;
use crate::id::Qpn;
use crate::time::Instant;

/// Bits of a queue pair number below those of the shard.
const LOW_BITS: u32 = 24 - SHARD_BITS;
const LOW_MASK: u32 = (1 << LOW_BITS) - 1;

/// The shard that a queue pair number belongs to.
pub(super) fn shard_of(qpn: Qpn) -> usize {
    (qpn.get() >> LOW_BITS) as usize
}

#[derive(Default)]
struct Slots {
    /// Slots that were used before, longest free first.
    free: VecDeque<u32>,
    /// Slots from here on were never used.
    fresh: u32,
    live: u32,
}

pub(super) struct Numbers {
    slots: Vec<Slots>,
    per_shard: u32,
    /// Numbers of live queue pairs and of those at rest.
    taken: HashSet<u32>,
    /// Numbers at rest, with the end of it, oldest first.
    resting: VecDeque<(Instant, u32)>,
    gsi: bool,
}

impl Numbers {
    pub(super) fn new(shards: usize, per_shard: usize) -> Self {
        Self {
            slots: (0..shards).map(|_| Slots::default()).collect(),
            per_shard: per_shard as u32,
            taken: HashSet::new(),
            resting: VecDeque::new(),
            gsi: false,
        }
    }

    /// The shard with the fewest queue pairs among those that live, the first of several; any where none does.
    pub(super) fn least_loaded(&self, is_dead: impl Fn(usize) -> bool) -> usize {
        (0..self.slots.len()).min_by_key(|i| (is_dead(*i), self.slots[*i].live)).unwrap_or(0)
    }

    /// A slot and a number on `shard`. `random` gives random numbers.
    pub(super) fn take(
        &mut self,
        now: Instant,
        shard: usize,
        mut random: impl FnMut() -> Result<u32, DeviceError>,
    ) -> Result<(u32, Qpn), DeviceError> {
        self.wake(now);
        let limit = self.per_shard as usize;
        if self.slots[shard].live >= self.per_shard {
            return Err(DeviceError::Exhausted { what: "queue pair of this shard", limit });
        }
        // A random start and then upwards: at most one pass over the shard's numbers, and a single step while they are few, which
        // the limit on slots (an eighth of the numbers) and short rests ensure.
        let base = (shard as u32) << LOW_BITS;
        let start = random()?;
        let mut number = None;
        for step in 0..=LOW_MASK {
            let low = start.wrapping_add(step) & LOW_MASK;
            let candidate = base | low;
            if !matches!(candidate, 0 | 1 | 0xff_ffff) && !self.taken.contains(&candidate) {
                number = Some(candidate);
                break;
            }
        }
        let number =
            number.ok_or(DeviceError::Exhausted { what: "queue pair number", limit: LOW_MASK as usize })?;
        self.taken.insert(number);
        Ok((self.take_slot(shard), Qpn::new(number)))
    }

    /// The slot for queue pair 1, which exists once, on shard 0.
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

    /// Gives a slot and a number back; the number rests until `until`.
    pub(super) fn put_back(&mut self, shard: usize, slot: u32, qpn: Qpn, until: Instant) {
        self.slots[shard].live -= 1;
        self.slots[shard].free.push_back(slot);
        if qpn == Qpn::GSI {
            self.gsi = false;
        } else {
            self.resting.push_back((until, qpn.get()));
        }
    }

    /// Ends the rests that are over; one that is longer holds up those behind it.
    fn wake(&mut self, now: Instant) {
        while let Some((until, number)) = self.resting.front() {
            if *until > now {
                return;
            }
            self.taken.remove(number);
            self.resting.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Instant {
        Instant::from_nanos(ms * 1_000_000)
    }

    #[test]
    fn numbers_name_their_shard_and_are_never_reserved() {
        let mut n = Numbers::new(16, 8);
        for shard in 0..16 {
            for wish in [0, 1, 2, u32::MAX, LOW_MASK] {
                let (_, qpn) = n.take(at(0), shard, || Ok(wish)).unwrap();
                assert_eq!(shard_of(qpn), shard);
                assert!(!matches!(qpn.get(), 0 | 1 | 0xff_ffff), "{qpn:?}");
            }
        }
    }

    #[test]
    fn numbers_rest_and_slots_come_back_last() {
        let mut n = Numbers::new(1, 2);
        let (slot, qpn) = n.take(at(0), 0, || Ok(7)).unwrap();
        assert_eq!((slot, qpn.get()), (0, 7));
        n.put_back(0, slot, qpn, at(100));
        let (slot, other) = n.take(at(50), 0, || Ok(7)).unwrap();
        assert_eq!((slot, other.get()), (1, 8), "7 rests until 100 ms, slot 0 was used before");
        let (slot, again) = n.take(at(100), 0, || Ok(7)).unwrap();
        assert_eq!((slot, again), (0, qpn));
        assert!(matches!(n.take(at(100), 0, || Ok(7)), Err(DeviceError::Exhausted { limit: 2, .. })));
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
