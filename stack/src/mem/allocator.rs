//! Which slot and key a registration gets: the part of the table that only registration needs.
//!
//! The key of a region for fast registration or of a memory window is *variable*: its user changes the low byte. Its slot is a variable
//! slot.

use super::key::{MwType, NO_KEY, TAG_BITS, USER_BITS, USER_MASK};
use crate::config::MR_MAX;
use crate::id::PdId;
use std::collections::VecDeque;

/// The use of a slot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum SlotKind {
    /// A memory region.
    Region,
    /// A region for fast registration: its memory, which a work request registers all or part of.
    Fast { addr: u64, len: u64 },
    /// A memory window.
    Window(MwType),
    /// A variable slot whose key was revoked for good and waits for its reclaim.
    Retired,
}

/// The part of a slot's state that only registration needs.
pub(super) struct SlotRecord {
    /// Key of the permutation from generations to tags.
    secret: u64,
    /// Generation of the next use.
    generation: u16,
    /// The key that was given out and has not been reclaimed yet.
    key: Option<u32>,
    pub kind: SlotKind,
    pub pd: PdId,
    /// For a region: number of windows that are bound to it.
    pub windows: u32,
    /// For a window: slot of the region that it is bound to.
    pub region: Option<u16>,
    /// For a bound window of type 2: its queue pair number.
    pub qpn: u32,
}

/// Slots in the order of their first use, drawn at random: an attacker who guesses keys has to guess the slots, too.
#[derive(Default)]
struct FirstUseOrder {
    /// Every slot once. Those that were ever used come first, in the order of their first use. Empty until one is used.
    slots: Box<[u16]>,
    /// The index in `slots` of each slot.
    places: Box<[u16]>,
}

impl FirstUseOrder {
    /// Draws one of the slots that were never used, which start at the index `used`.
    fn draw(&mut self, used: usize, random: u32) -> u16 {
        if self.slots.is_empty() {
            self.slots = (0..MR_MAX).map(|slot| slot as u16).collect();
            self.places = self.slots.clone();
        }
        let at = used + ((u64::from(random) * (MR_MAX - used) as u64) >> 32) as usize;
        self.slots.swap(used, at);
        for place in [used, at] {
            self.places[usize::from(self.slots[place])] = place as u16;
        }
        self.slots[used]
    }
}

/// Allocates slots and keys.
#[derive(Default)]
pub(super) struct KeyAllocator {
    /// Free slots that were used before, longest free first: those of plain regions, and variable ones.
    queues: [VecDeque<u16>; 2],
    order: FirstUseOrder,
    /// One entry for each slot that was ever used, in this order. The other slots have been free for longer than any in `queues`.
    records: Vec<SlotRecord>,
    /// Number of bound windows.
    pub bound: usize,
}

impl KeyAllocator {
    /// Takes a slot that was never used. If there is none, takes the one that has been free for longest, preferably one that had the same
    /// kind of key, variable or not. Returns the slot and its key; `None` if all slots are in use. Some bits of `random` choose the slot,
    /// its first generation and the user's bits; others are its secret, which no key reveals.
    pub fn allocate(&mut self, random: u128, kind: SlotKind, pd: PdId) -> Option<(usize, u32)> {
        let variable = kind != SlotKind::Region;
        let index = if self.records.len() < MR_MAX {
            let (secret, generation) = (random as u64, (random >> 64) as u16);
            let slot = self.order.draw(self.records.len(), (random >> 96) as u32);
            self.records.push(SlotRecord {
                secret,
                generation,
                key: None,
                kind,
                pd,
                windows: 0,
                region: None,
                qpn: 0,
            });
            usize::from(slot)
        } else {
            let [own, other] = if variable { [1, 0] } else { [0, 1] };
            let index = self.queues[own].pop_front();
            usize::from(index.or_else(|| self.queues[other].pop_front())?)
        };
        let record = self.record_of(index).expect("the slot is in use from here on");
        let mut key = NO_KEY;
        // Twice at most: one tag of slot 0 would make the key zero. A variable key must not be zero for any choice of the
        // user's bits.
        while key & !(if variable { USER_MASK } else { 0 }) == NO_KEY {
            let tag = if variable {
                u16::from(permute_byte(record.generation as u8, record.secret)) << USER_BITS
                    | (random >> 80) as u16 & USER_MASK as u16
            } else {
                permute(record.generation, record.secret)
            };
            key = (index as u32) << TAG_BITS | u32::from(tag);
            record.generation = record.generation.wrapping_add(1);
        }
        record.key = Some(key);
        (record.kind, record.pd) = (kind, pd);
        Some((index, key))
    }

    /// The record of a slot; `None` if it was never used.
    pub fn record_of(&mut self, slot: usize) -> Option<&mut SlotRecord> {
        let place = self.order.places.get(slot)?;
        self.records.get_mut(usize::from(*place))
    }

    /// The slots of the bound windows for which `which` is true.
    pub fn bound_slots(&self, which: impl Fn(&SlotRecord) -> bool) -> Vec<usize> {
        let bound =
            self.records.iter().enumerate().filter(|(_, record)| record.region.is_some() && which(record));
        bound.map(|(place, _)| usize::from(self.order.slots[place])).collect()
    }

    /// The record of the slot that has this key. The user's bits of a variable key are ignored.
    pub fn record_of_key(&mut self, key: u32) -> Option<&mut SlotRecord> {
        let record = self.record_of((key >> TAG_BITS) as usize)?;
        let ignored = match record.kind {
            SlotKind::Retired => return None,
            SlotKind::Region => 0,
            _ => USER_MASK,
        };
        (record.key? | ignored == key | ignored).then_some(record)
    }

    /// Records that a window is bound to a region, for a queue pair (0: for all of them).
    pub fn bind(&mut self, window: usize, region: u16, qpn: u32) {
        self.unbind(window);
        if let Some(record) = self.record_of(window) {
            (record.region, record.qpn) = (Some(region), qpn);
            self.bound += 1;
        }
        if let Some(region) = self.record_of(region.into()) {
            region.windows += 1;
        }
    }

    /// Records that a window is not bound any more.
    pub fn unbind(&mut self, window: usize) {
        if let Some(region) = self.record_of(window).and_then(|record| record.region.take()) {
            self.bound -= 1;
            if let Some(region) = self.record_of(region.into()) {
                region.windows -= 1;
            }
        }
    }

    /// Frees the slot of a key, for another use. Returns whether the key was in use.
    pub fn put_back(&mut self, key: u32) -> bool {
        let index = key >> TAG_BITS;
        match self.record_of(index as usize) {
            Some(record) if record.key == Some(key) => {
                record.key = None;
                let queue = usize::from(record.kind != SlotKind::Region);
                self.queues[queue].push_back(index as u16);
                true
            }
            _ => false,
        }
    }
}

/// A permutation of the 16-bit numbers chosen by `secret`: a Feistel network over two bytes.
pub(super) fn permute(x: u16, secret: u64) -> u16 {
    let [mut left, mut right] = x.to_be_bytes();
    for round in 0..6u32 {
        let of_round = secret.rotate_left(round * 11) as u32;
        let mixed = (of_round ^ right as u32 ^ round << 8).wrapping_mul(0x85eb_ca6b);
        let mixed = (mixed ^ mixed >> 15).wrapping_mul(0xc2b2_ae35);
        (left, right) = (right, left ^ (mixed >> 24) as u8);
    }
    u16::from_be_bytes([left, right])
}

/// A permutation of the 8-bit numbers chosen by `secret`. Each of its steps is a permutation itself: an addition, an exclusive or with
/// a constant or with the upper bits, a multiplication by an odd number.
fn permute_byte(x: u8, secret: u64) -> u8 {
    let [a, b, c, d, ..] = secret.to_be_bytes();
    let x = x.wrapping_mul(a | 1) ^ b;
    let x = (x ^ x >> 4).wrapping_mul(c | 1).wrapping_add(d);
    x ^ x >> 3
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    /// The bits that choose a slot and its first generation say nothing of its secret: a later key of the slot follows from no
    /// earlier one.
    #[test]
    #[cfg_attr(miri, ignore = "arithmetic alone, and too long for Miri")]
    fn no_key_reveals_the_secret() {
        let tags = |secret: u64| {
            let mut allocator = KeyAllocator::default();
            let random = 0xabcd_ef01_2345_6789 << 64 | u128::from(secret);
            let (slot, first) = allocator.allocate(random, SlotKind::Region, PdId(1)).unwrap();
            let record = allocator.record_of(slot).unwrap();
            (first, permute(record.generation, record.secret))
        };
        let all: HashSet<(u32, u16)> = (0..2000).map(tags).collect();
        let slots: HashSet<u32> = all.iter().map(|(first, _)| first >> TAG_BITS).collect();
        assert_eq!(slots.len(), 1);
        assert!(all.len() > 1900, "{} different pairs", all.len());
    }

    /// The upper byte of a variable tag repeats only after 256 uses.
    #[test]
    #[cfg_attr(miri, ignore = "arithmetic alone, and too long for Miri")]
    fn bytes_are_permuted() {
        for secret in [0, 1, 0xdead_beef, 0x1234_5678 << 32, u64::MAX] {
            let bytes: HashSet<u8> = (0..=u8::MAX).map(|x| permute_byte(x, secret)).collect();
            assert_eq!(bytes.len(), 256, "{secret:#x}");
        }
    }
}
