//! A hierarchical timing wheel: finds the objects that are due, without visiting the others.
//!
//! Turns deadlines into calls in the order of their ticks. Never reads a clock, never allocates except in [`Wheel::reserve`]. Called by
//! the shard that owns it.
//!
//! # How it works
//!
//! Time is counted in ticks of [`TICK_NANOS`]. A deadline is a number of nine digits to the base 64, and so is the
//! wheel's position. An entry lies on the level of the highest digit in which its deadline differs from the
//! position, in the slot of that digit's value; hence it lies ahead of the position, every entry of a level
//! comes before every entry of a higher one, and the earliest slot is a `trailing_zeros`. When the position
//! reaches a slot above level 0, its entries move down, each at most eight times in its life. Nine digits hold
//! every [`Instant`], so nothing is too far away.
//!
//! An entry never fires early: deadlines are rounded up to a tick, the present is rounded down.

use crate::mark::step;
use crate::sync::prefetch;
use crate::time::Instant;

/// Nanoseconds of a tick: 4.096 us, the unit of IBA timeouts.
pub const TICK_NANOS: u64 = 1 << TICK_LOG2;
const TICK_LOG2: u32 = 12;
const DIGIT: u32 = 6;
const SLOTS: usize = 1 << DIGIT;
const LEVELS: usize = 9;
/// Entries that one call of [`Wheel::expire`] moves to a lower level, besides those that it reports.
const MOVES_MAX: usize = 256;
/// No entry.
const NIL: u32 = u32::MAX;
/// Number of bits of a place.
const PLACE_LOG2: u32 = 10;
/// The place of an entry that is in no list.
const IDLE: u16 = (1 << PLACE_LOG2) - 1;

const _: () = assert!(LEVELS as u32 * DIGIT > u64::BITS - TICK_LOG2, "every instant has a place");

/// One entry for each id, a member of the circular list of its slot. Four entries share a cache line, and none straddles two.
#[derive(Clone, Copy)]
#[repr(align(16))]
struct Entry {
    /// The tick, shifted above the place; the place is `level * SLOTS + slot`, or `IDLE`.
    when: u64,
    next: u32,
    prev: u32,
}

const _: () = assert!(size_of::<Entry>() == 16);
const _: () = assert!(LEVELS * SLOTS < IDLE as usize && TICK_LOG2 > PLACE_LOG2);

impl Entry {
    #[inline]
    fn new(tick: u64, place: u16, next: u32, prev: u32) -> Self {
        Self { when: tick << PLACE_LOG2 | u64::from(place), next, prev }
    }
    #[inline]
    fn tick(&self) -> u64 {
        self.when >> PLACE_LOG2
    }
    #[inline]
    fn place(&self) -> u16 {
        self.when as u16 & IDLE
    }
}

/// A timing wheel for ids `0 .. reserved`, each with at most one deadline.
pub struct Wheel {
    /// The position: every tick before it has been handled.
    tick: u64,
    /// The level whose slot at the position is being moved down, if that was interrupted.
    moving: Option<usize>,
    /// Bit `s` of level `l`: the slot has entries.
    occupied: [u64; LEVELS],
    /// Bit `l`: level `l` has entries.
    levels: u32,
    /// First entry of each slot, or `NIL`; its `prev` is the last.
    heads: Box<[u32; LEVELS * SLOTS]>,
    entries: Vec<Entry>,
    scheduled: usize,
}

impl Wheel {
    /// Bytes of state per id.
    pub const ENTRY: usize = size_of::<Entry>();

    /// An empty wheel at `now`, without ids.
    pub fn new(now: Instant) -> Self {
        Self {
            tick: now.as_nanos() >> TICK_LOG2,
            moving: None,
            occupied: [0; LEVELS],
            levels: 0,
            heads: Box::new([NIL; LEVELS * SLOTS]),
            entries: Vec::new(),
            scheduled: 0,
        }
    }

    /// Makes room for ids below `ids`. Existing ids stay.
    pub fn reserve(&mut self, ids: u32) {
        if self.entries.len() < ids as usize {
            self.entries.resize(ids as usize, Entry::new(0, IDLE, NIL, NIL));
        }
    }

    /// Number of ids that have a deadline.
    #[cfg(test)]
    fn len(&self) -> usize {
        self.scheduled
    }

    /// Whether no id has a deadline.
    pub fn is_empty(&self) -> bool {
        self.scheduled == 0
    }

    /// Whether `id` has a deadline.
    #[inline]
    pub fn is_scheduled(&self, id: u32) -> bool {
        self.entries.get(id as usize).is_some_and(|entry| entry.place() != IDLE)
    }

    /// Prefetches the entry of `id`.
    #[inline]
    pub fn prefetch(&self, id: u32) {
        if let Some(entry) = self.entries.get(id as usize) {
            prefetch::line(entry);
        }
    }

    /// Sets the deadline of `id`, replacing an earlier one. A deadline in the past is due at the next [`Wheel::expire`].
    ///
    /// # Panics
    /// If `id` was not reserved.
    #[inline]
    pub fn schedule(&mut self, id: u32, at: Instant) {
        // If the clock went back, the position is ahead of it, and a deadline before the position is past.
        let tick = round_up(at).max(self.tick);
        let entry = &self.entries[id as usize];
        if entry.place() != IDLE {
            if entry.tick() == tick {
                return;
            }
            self.unlink(id);
        }
        self.link(id, tick);
    }

    /// Removes the deadline of `id`. Returns whether it had one.
    #[inline]
    pub fn cancel(&mut self, id: u32) -> bool {
        let scheduled = self.is_scheduled(id);
        if scheduled {
            self.unlink(id);
        }
        scheduled
    }

    /// Whether [`Wheel::expire`] has nothing to do by `now`. If so, moves the position there, and `expire` need not be called.
    #[inline]
    pub fn pass(&mut self, now: Instant) -> bool {
        let target = (now.as_nanos() >> TICK_LOG2).max(self.tick);
        let idle = self.moving.is_none() && self.earliest().is_none_or(|(_, tick)| tick > target);
        if idle {
            self.tick = target;
        }
        idle
    }

    /// Calls `due` for ids whose deadline is not after `now`, up to `max` of them, in the order of their ticks, and removes their
    /// deadlines. Returns whether work is left: call again.
    ///
    /// The work is bounded by `max`, however far `now` jumped: besides the calls, a fixed number of entries is moved between levels.
    /// A `now` before that of an earlier call counts as that one.
    pub fn expire(&mut self, now: Instant, max: usize, mut due: impl FnMut(u32)) -> bool {
        let target = (now.as_nanos() >> TICK_LOG2).max(self.tick);
        let (mut fired, mut moves) = (0, 0);
        loop {
            if let Some(level) = self.moving {
                if !self.move_down(level, &mut moves) {
                    return true;
                }
                self.moving = None;
            }
            let Some((level, slot_tick)) = self.earliest() else { break };
            if slot_tick > target {
                break;
            }
            if level > 0 {
                self.tick = slot_tick;
                self.moving = Some(level);
                continue;
            }
            self.tick = slot_tick;
            let head = slot_of(slot_tick, 0);
            while self.heads[head] != NIL {
                if fired == max {
                    return true;
                }
                let id = self.heads[head];
                self.unlink(id);
                fired += 1;
                due(id);
            }
        }
        self.tick = target;
        false
    }

    /// An instant before which [`Wheel::expire`] has nothing to do, or `None` if there is no deadline at all.
    ///
    /// On the first level it is the instant at which the next deadline fires; on higher levels, the beginning of the span of ticks that
    /// contains the deadline: a caller that wakes up then finds nothing due, at most eight times.
    #[inline]
    pub fn next_deadline(&self) -> Option<Instant> {
        if self.moving.is_some() {
            return (!self.is_empty()).then(|| instant(self.tick));
        }
        self.earliest().map(|(_, tick)| instant(tick))
    }

    /// Level and first tick of the earliest slot with entries.
    #[inline]
    fn earliest(&self) -> Option<(usize, u64)> {
        let level = self.levels.trailing_zeros() as usize;
        let slot = u64::from(self.occupied.get(level)?.trailing_zeros());
        let shift = level as u32 * DIGIT;
        let above = self.tick >> (shift + DIGIT) << (shift + DIGIT);
        Some((level, above | slot << shift))
    }

    /// Moves the entries of the slot at the position down from `level`. Returns whether the slot is empty now.
    fn move_down(&mut self, level: usize, moves: &mut usize) -> bool {
        let head = slot_of(self.tick, level);
        while self.heads[head] != NIL {
            if *moves == MOVES_MAX {
                return false;
            }
            *moves += 1;
            let id = self.heads[head];
            let tick = self.entries[id as usize].tick();
            self.unlink(id);
            self.link(id, tick);
        }
        true
    }

    /// Appends an idle entry to the list that `tick` belongs to.
    #[inline]
    fn link(&mut self, id: u32, tick: u64) {
        step();
        debug_assert!(tick >= self.tick);
        // The highest digit that differs; level 0 if none does.
        let level = ((u64::BITS - 1 - (tick ^ self.tick | 1).leading_zeros()) / DIGIT) as usize;
        let place = slot_of(tick, level);
        let head = self.heads[place];
        let (next, prev) = if head == NIL {
            self.heads[place] = id;
            self.occupied[level] |= 1 << (place % SLOTS);
            self.levels |= 1 << level;
            (id, id)
        } else {
            let last = core::mem::replace(&mut self.entries[head as usize].prev, id);
            self.entries[last as usize].next = id;
            (head, last)
        };
        self.entries[id as usize] = Entry::new(tick, place as u16, next, prev);
        self.scheduled += 1;
    }

    /// Removes an entry from its list.
    #[inline]
    fn unlink(&mut self, id: u32) {
        step();
        let entry = &mut self.entries[id as usize];
        let Entry { next, prev, .. } = *entry;
        let place = usize::from(entry.place());
        *entry = Entry::new(0, IDLE, NIL, NIL);
        self.scheduled -= 1;
        if next == id {
            self.heads[place] = NIL;
            let level = &mut self.occupied[place / SLOTS];
            *level &= !(1 << (place % SLOTS));
            self.levels &= !(u32::from(*level == 0) << (place / SLOTS));
            return;
        }
        self.entries[next as usize].prev = prev;
        self.entries[prev as usize].next = next;
        if self.heads[place] == id {
            self.heads[place] = next;
        }
    }
}

/// Index of the slot of `tick` on `level`.
#[inline]
fn slot_of(tick: u64, level: usize) -> usize {
    level * SLOTS + (tick >> (level as u32 * DIGIT)) as usize % SLOTS
}

/// The first tick that begins at or after `at`.
#[inline]
fn round_up(at: Instant) -> u64 {
    at.as_nanos().div_ceil(TICK_NANOS)
}

#[inline]
fn instant(tick: u64) -> Instant {
    Instant::from_nanos(tick.saturating_mul(TICK_NANOS))
}

#[cfg(test)]
mod tests;
