//! Which queue pairs send to which neighbour: when a neighbour gets another Ethernet address, only its queue pairs are visited.
//!
//! Each neighbour of this shard's queue pairs has a ring of their slots. When the neighbour changes, the shard walks the ring once, a
//! bounded number of queue pairs in each turn. Strangers cost nothing here, however many queue pairs there are.

use std::collections::VecDeque;

use crate::mark::step;
use crate::net::NeighbourId;

const NONE: u32 = u32::MAX;

/// The ring of a neighbour.
#[derive(Clone, Copy, Debug)]
struct Ring {
    /// The next slot to visit, or `NONE`.
    head: u32,
    len: u32,
    /// Number of visits left.
    due: u32,
}

const EMPTY: Ring = Ring { head: NONE, len: 0, due: 0 };

/// A slot as a node of a ring.
#[derive(Clone, Copy, Debug)]
struct Node {
    /// The neighbour, or `NONE`.
    hop: u32,
    next: u32,
    prev: u32,
}

const UNLINKED: Node = Node { hop: NONE, next: NONE, prev: NONE };

#[derive(Debug, Default)]
pub(super) struct Hops {
    /// By neighbour number.
    rings: Vec<Ring>,
    /// By queue pair slot.
    nodes: Vec<Node>,
    /// Neighbours with visits left.
    due: VecDeque<u32>,
}

impl Hops {
    /// Makes room for slots below `slots`.
    pub fn reserve(&mut self, slots: u32) {
        if self.nodes.len() < slots as usize {
            self.nodes.resize(slots as usize, UNLINKED);
        }
    }

    /// The neighbour of a queue pair.
    pub fn of(&self, slot: u32) -> Option<NeighbourId> {
        let hop = self.nodes[slot as usize].hop;
        (hop != NONE).then_some(NeighbourId(hop))
    }

    /// Sets the neighbour of a queue pair; `None` for none.
    pub fn set(&mut self, slot: u32, hop: Option<NeighbourId>) {
        if self.of(slot) == hop {
            return;
        }
        self.unlink(slot);
        if let Some(NeighbourId(hop)) = hop {
            self.link(slot, hop);
        }
    }

    fn link(&mut self, slot: u32, hop: u32) {
        step();
        if self.rings.len() <= hop as usize {
            self.rings.resize(hop as usize + 1, EMPTY);
        }
        let ring = &mut self.rings[hop as usize];
        ring.len += 1;
        let (next, prev) = if ring.head == NONE {
            ring.head = slot;
            (slot, slot)
        } else {
            // At the end of the ring, behind all slots that are still to be visited.
            (ring.head, self.nodes[ring.head as usize].prev)
        };
        self.nodes[slot as usize] = Node { hop, next, prev };
        self.nodes[prev as usize].next = slot;
        self.nodes[next as usize].prev = slot;
    }

    fn unlink(&mut self, slot: u32) {
        step();
        let Node { hop, next, prev } = core::mem::replace(&mut self.nodes[slot as usize], UNLINKED);
        if hop == NONE {
            return;
        }
        let ring = &mut self.rings[hop as usize];
        ring.len -= 1;
        ring.due = ring.due.min(ring.len);
        if next == slot {
            ring.head = NONE;
            return;
        }
        if ring.head == slot {
            ring.head = next;
        }
        self.nodes[next as usize].prev = prev;
        self.nodes[prev as usize].next = next;
    }

    /// Schedules a visit of each queue pair of a neighbour that changed.
    pub fn changed(&mut self, NeighbourId(hop): NeighbourId) {
        let Some(ring) = self.rings.get_mut(hop as usize).filter(|ring| ring.len > 0) else { return };
        if ring.due == 0 {
            self.due.push_back(hop);
        }
        ring.due = ring.len;
    }

    /// Whether queue pairs are left to visit.
    #[inline]
    pub fn any_due(&self) -> bool {
        !self.due.is_empty()
    }

    /// The next queue pair to visit.
    pub fn next_due(&mut self) -> Option<u32> {
        loop {
            step();
            let ring = &mut self.rings[*self.due.front()? as usize];
            if ring.due == 0 {
                self.due.pop_front(); // its last queue pairs have left meanwhile
                continue;
            }
            let slot = ring.head;
            ring.head = self.nodes[slot as usize].next;
            ring.due -= 1;
            if ring.due == 0 {
                self.due.pop_front();
            }
            return Some(slot);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    const SLOTS: u32 = 12;

    // Goal: each queue pair that uses a neighbour when it changes is visited, whatever happens between two visits, and the work ends.
    proptest! {
        #[test]
        fn each_queue_pair_of_a_changed_neighbour_is_visited(
            ops in proptest::collection::vec((0u8..4, 0..SLOTS, 0u32..4), 1..300),
        ) {
            let mut hops = Hops::default();
            hops.reserve(SLOTS);
            let mut of = [None; SLOTS as usize];
            // Queue pairs still to be visited.
            let mut due = BTreeSet::new();
            for (what, slot, hop) in ops {
                match what {
                    0 => {
                        let hop = (hop < 3).then_some(NeighbourId(hop));
                        if of[slot as usize] != hop {
                            due.remove(&slot);
                        }
                        of[slot as usize] = hop;
                        hops.set(slot, hop);
                    }
                    1 => {
                        let hop = NeighbourId(hop);
                        hops.changed(hop);
                        due.extend((0..SLOTS).filter(|slot| of[*slot as usize] == Some(hop)));
                    }
                    _ => match hops.next_due() {
                        Some(slot) => {
                            prop_assert!(of[slot as usize].is_some());
                            due.remove(&slot);
                        }
                        None => prop_assert!(due.is_empty(), "{due:?} left out"),
                    },
                }
                for slot in 0..SLOTS {
                    prop_assert_eq!(hops.of(slot), of[slot as usize]);
                }
                prop_assert!(due.is_empty() || hops.any_due());
            }
            let mut visits = 0;
            while let Some(slot) = hops.next_due() {
                due.remove(&slot);
                visits += 1;
                prop_assert!(visits <= 4 * SLOTS);
            }
            prop_assert!(due.is_empty() && !hops.any_due());
        }
    }
}
