//! Which buffers a sender uses, if not one for each slot. Slots take buffers in turn, so all buffers in use are touched before long: few of
//! them stay in a cache, and many tolerate a slow receiver. So a ring uses few at first, twice as many each time all are in flight, and few
//! again when it is idle. The memory of the others was never touched, or was returned to the system.
//!
//! A slot takes the buffer of the slot `count` before it, which was received: so each buffer is in at most one slot in flight. When the
//! ring grows, the next slots take the new buffers; the slots after those again take the buffers of the slots `count` before.

/// The buffers that a sender uses.
#[derive(Debug)]
pub(super) struct Growth {
    /// Buffers in use: a power of two, at most the slots of the ring.
    count: u16,
    /// How many of these, the last ones, no slot has had yet.
    fresh: u16,
    /// Whether all were in flight when the receiver's index was read last.
    pub is_full: bool,
    /// The buffer that the descriptor of each slot names.
    named: Box<[u16]>,
}

/// No buffer was assigned to a slot.
const NONE: u16 = u16::MAX;

impl Growth {
    /// `count` buffers of an unused ring of `slots` slots.
    pub fn new(slots: u16, count: u16) -> Self {
        Self { count, fresh: count, is_full: false, named: vec![NONE; slots.into()].into() }
    }

    /// Buffers in use.
    #[inline(always)]
    pub fn count(&self) -> u16 {
        self.count
    }

    #[inline(always)]
    fn place(&self, slot: u16) -> usize {
        usize::from(slot) & (self.named.len() - 1)
    }

    /// The buffer of a slot to be filled. `next` is the first slot to be filled.
    #[inline(always)]
    pub fn buffer(&self, next: u16, slot: u16) -> u16 {
        match slot.wrapping_sub(next) {
            ahead if ahead < self.fresh => self.count - self.fresh + ahead,
            _ => self.named[self.place(slot.wrapping_sub(self.count))],
        }
    }

    /// Notes that the next slot is filled. Returns its buffer if the slot's descriptor names another one.
    #[inline(always)]
    pub fn assign(&mut self, slot: u16) -> Option<u16> {
        let buffer = self.buffer(slot, slot);
        self.fresh = self.fresh.saturating_sub(1);
        let place = self.place(slot);
        let before = core::mem::replace(&mut self.named[place], buffer);
        (before != buffer).then_some(buffer)
    }

    /// Doubles the buffers. All must be in flight.
    pub fn grow(&mut self) {
        (self.fresh, self.count, self.is_full) = (self.count, 2 * self.count, false);
    }

    /// Goes back to `count` buffers. None may be in flight.
    pub fn shrink_to(&mut self, count: u16) {
        (self.count, self.fresh, self.is_full) = (count, count, false);
    }
}
