//! Which buffers a sender uses, where these are not one for each slot. Slots take them in turn, so all that are used are touched before
//! long: a few stay in a cache, and many let a receiver run late. So a ring uses few at first, twice as many each time all are in flight,
//! and few again when it is idle; the memory of the others is never touched, or was given back.
//!
//! A slot has the buffer of the slot `count` before it, which was received: so each buffer is in one slot in flight at most. When the
//! ring grows, the slots that come have the new buffers, as many as there were; the ones behind them again those of `count` before.

/// The buffers that a sender uses.
#[derive(Debug)]
pub(super) struct Growth {
    /// How many: a power of two, not more than the ring has slots.
    count: u16,
    /// Of these, the last ones that no slot has had yet.
    fresh: u16,
    /// Whether all were in flight when the receiver's index was read last.
    pub is_full: bool,
    /// The buffer that the descriptor of each slot names.
    named: Box<[u16]>,
}

/// No buffer.
const NONE: u16 = u16::MAX;

impl Growth {
    /// So many of a ring that has more slots, and was never used.
    pub fn new(slots: u16, count: u16) -> Self {
        Self { count, fresh: count, is_full: false, named: vec![NONE; slots.into()].into() }
    }

    /// How many there are.
    #[inline(always)]
    pub fn count(&self) -> u16 {
        self.count
    }

    #[inline(always)]
    fn place(&self, slot: u16) -> usize {
        usize::from(slot) & (self.named.len() - 1)
    }

    /// The buffer of a slot that is to be filled; `next` is the first of those.
    #[inline(always)]
    pub fn buffer(&self, next: u16, slot: u16) -> u16 {
        match slot.wrapping_sub(next) {
            ahead if ahead < self.fresh => self.count - self.fresh + ahead,
            _ => self.named[self.place(slot.wrapping_sub(self.count))],
        }
    }

    /// The next slot is filled. Returns its buffer, if its descriptor names another one.
    #[inline(always)]
    pub fn assign(&mut self, slot: u16) -> Option<u16> {
        let buffer = self.buffer(slot, slot);
        self.fresh = self.fresh.saturating_sub(1);
        let place = self.place(slot);
        let before = core::mem::replace(&mut self.named[place], buffer);
        (before != buffer).then_some(buffer)
    }

    /// Uses twice as many: all were in flight.
    pub fn grow(&mut self) {
        (self.fresh, self.count, self.is_full) = (self.count, 2 * self.count, false);
    }

    /// Uses so many alone: none is in flight.
    pub fn shrink_to(&mut self, count: u16) {
        (self.count, self.fresh, self.is_full) = (count, count, false);
    }
}
