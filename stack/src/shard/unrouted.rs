//! Connections that wait for their route ([`Routes::route_to`](crate::port::Routes::route_to)).

use std::collections::BTreeSet;
use std::ops::Bound;

use arrayvec::ArrayVec;

use crate::config::NEIGHBOUR_VISITS;

/// Slots of queue pairs whose route the port is still setting up. They request it again in rotation, some in each turn of the shard.
#[derive(Debug, Default)]
pub(super) struct Unrouted {
    slots: BTreeSet<u32>,
    /// The slot that requested its route last.
    last: u32,
}

impl Unrouted {
    /// Adds a queue pair that waits.
    pub fn add(&mut self, slot: u32) {
        self.slots.insert(slot);
    }

    /// Whether a queue pair waits.
    #[inline]
    pub fn any(&self) -> bool {
        !self.slots.is_empty()
    }

    /// Removes the queue pairs that request their route in this turn. A queue pair that still has none is [added](Self::add) again.
    pub fn take_some(&mut self) -> ArrayVec<u32, NEIGHBOUR_VISITS> {
        let (behind, before) = ((Bound::Excluded(self.last), Bound::Unbounded), ..=self.last);
        let some = self.slots.range(behind).chain(self.slots.range(before)).take(NEIGHBOUR_VISITS);
        let some: ArrayVec<u32, NEIGHBOUR_VISITS> = some.copied().collect();
        some.iter().for_each(|slot| _ = self.slots.remove(slot));
        self.last = some.last().copied().unwrap_or_default();
        some
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn those_that_wait_ask_in_turn() {
        let mut unrouted = Unrouted::default();
        let slots = 0..3 * NEIGHBOUR_VISITS as u32 + 1;
        slots.clone().for_each(|slot| unrouted.add(slot));
        let mut asked = Vec::new();
        while asked.len() < slots.len() {
            let some = unrouted.take_some();
            assert!(!some.is_empty());
            // None of their routes is known.
            some.iter().for_each(|slot| unrouted.add(*slot));
            asked.extend(some);
        }
        asked.sort_unstable();
        asked.dedup();
        assert!(asked.into_iter().eq(slots.clone()), "everyone asks before anyone does again");
        (0..4).for_each(|_| _ = unrouted.take_some());
        assert!(!unrouted.any());
    }
}
