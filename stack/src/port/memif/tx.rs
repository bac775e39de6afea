//! The sending end of a ring.

use super::growth::Growth;
use super::ring::{NEXT, Ring, Slot};
use super::shm::BLOCK;
use super::slots::{Buffers, Impossible};
use crate::config::TX_BURST;
use crate::port::frame::Frame;
use crate::port::traits::Build;
use arrayvec::ArrayVec;

/// A frame up to this length is copied to a slot in blocks, front to back.
const SHORT: usize = 512;
/// Most slots of one frame, if the peer's slots are small.
const PIECES: usize = 16;

/// The sending end of a ring.
pub struct Tx {
    pub(super) ring: Ring,
    pub(super) buffers: Buffers,
    /// Bytes of the longest frame.
    max_frame: u32,
    /// The next slot to fill: a copy of the ring's index, whose cache line the receiver reads.
    pub(super) next: u16,
    /// The end of the slots that are known to be free.
    pub(super) free_end: u16,
    /// Which buffers are used, if not one for each slot.
    pub(super) growth: Option<Box<Growth>>,
}

/// The result of sending a frame.
enum Sent {
    /// It occupies this many slots.
    In(u16),
    /// There is no room for it now.
    NoRoom,
    /// It can never be sent. This many slots were used up.
    Never(u16),
}

/// The result of a burst.
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
pub struct Burst {
    /// Frames from the front that were sent or dropped.
    pub taken: usize,
    /// Of these, frames that were dropped because they cannot be sent.
    pub dropped: usize,
    /// Bytes of the frames that were sent.
    pub bytes: usize,
}

impl Tx {
    /// The sending end of an unused ring.
    pub fn new(ring: Ring, buffers: Buffers, max_frame: usize) -> Self {
        // A client may fill all slots at once; a server fills those that the client passes to it.
        let free_end = if buffers.are_ours() { ring.slots() } else { 0 };
        Self { ring, buffers, max_frame: max_frame as u32, next: 0, free_end, growth: None }
    }

    /// Slots that may be in flight at the same time.
    #[inline(always)]
    pub fn count(&self) -> u16 {
        self.growth.as_ref().map_or(self.ring.slots(), |growth| growth.count())
    }

    /// Offset of the buffer of a slot, which is the next slot or a later one.
    #[inline(always)]
    fn offset(&self, slot: u16) -> u32 {
        match (&self.growth, self.buffers) {
            (Some(growth), Buffers::Ours { first, size }) => {
                first + size * u32::from(growth.buffer(self.next, slot))
            }
            _ => self.buffers.offset(&self.ring, slot),
        }
    }

    /// Number of free slots. Reads the receiver's index, which costs a cache miss, only if fewer than `wanted` are known to be free.
    #[inline(always)]
    fn free(&mut self, wanted: usize) -> Result<u16, Impossible> {
        let known = self.free_end.wrapping_sub(self.next);
        if usize::from(known) >= wanted {
            return Ok(known);
        }
        self.free_end = match self.buffers.are_ours() {
            true => self.ring.tail().wrapping_add(self.count()),
            false => self.ring.head(),
        };
        match self.free_end.wrapping_sub(self.next) {
            free if free <= self.count() => {
                if let Some(growth) = &mut self.growth {
                    growth.is_full = free == 0;
                }
                Ok(free)
            }
            _ => {
                self.free_end = self.next;
                Err(Impossible)
            }
        }
    }

    /// Publishes the slots before `self.next` to the receiver.
    #[inline(always)]
    fn publish(&mut self) {
        match self.buffers.are_ours() {
            true => self.ring.set_head(self.next),
            false => self.ring.set_tail(self.next),
        }
    }

    /// The slot that the receiver takes next; `None` if it has taken all.
    pub fn reached(&self) -> Option<u16> {
        let taken = match self.buffers.are_ours() {
            true => self.ring.tail(),
            false => self.ring.head().wrapping_sub(self.ring.slots()),
        };
        (taken != self.next).then_some(taken)
    }

    /// Whether the receiver polls the ring in each burst.
    #[inline(always)]
    pub fn is_polled(&self) -> bool {
        self.ring.is_polled()
    }

    /// Whether the receiver needs no event: it polls the ring, or reads it after a notification.
    #[inline]
    pub fn is_awake(&self) -> bool {
        self.ring.is_awake()
    }

    /// Prefetches the cache lines that a send writes: that of the header which the receiver reads, and that of the next descriptor.
    #[inline(always)]
    pub fn prefetch(&self) {
        self.ring.prefetch_header();
        self.ring.prefetch_slot(self.next);
    }

    /// Sends frames until the ring is full.
    ///
    /// # Errors
    /// The receiver's index is impossible: beyond the slots that were sent.
    #[inline]
    pub fn burst(&mut self, frames: &[Frame]) -> Result<Burst, Impossible> {
        let mut free = self.free(frames.len())?;
        let (mut done, first) = (Burst::default(), self.next);
        for frame in frames {
            match self.send(frame, free) {
                Sent::In(slots) => {
                    done.bytes += frame.len();
                    free -= slots;
                }
                Sent::NoRoom => {
                    // More slots may be free than are known: the next burst reads the receiver's index.
                    self.free_end = self.next;
                    break;
                }
                Sent::Never(slots) => {
                    done.dropped += 1;
                    free -= slots;
                }
            }
            done.taken += 1;
        }
        if self.next != first {
            self.publish();
        }
        Ok(done)
    }

    /// Writes a frame to the next slot or slots. The cache lines are in the receiver's core and are fetched one after the other; memcpy,
    /// which stores both ends of short data first, would fetch some of them twice.
    #[inline(always)]
    fn send(&mut self, frame: &Frame, free: u16) -> Sent {
        let len = frame.len();
        if len > self.max_frame as usize {
            return Sent::Never(0);
        }
        if free == 0 {
            return Sent::NoRoom;
        }
        let desc = self.ring.slot(self.next);
        let fits = len <= self.buffers.room(desc) as usize && self.buffers.has_room(desc, len as u32);
        let part = if fits { self.ring.part(self.offset(self.next), len as u32) } else { None };
        match part {
            Some(part) if (BLOCK..=SHORT).contains(&len) => part.write_blocks(frame.data()),
            Some(part) => part.write(frame.data()),
            None => return self.send_in_pieces(frame.data(), free),
        }
        self.describe(self.next, desc, len as u32, 0);
        self.next = self.next.wrapping_add(1);
        Sent::In(1)
    }

    /// Writes the descriptor of the next slot, or of a later one if those before it are written.
    #[inline(always)]
    fn describe(&mut self, slot: u16, was: Slot, len: u32, flags: u16) {
        self.ring.describe(slot, was, len, flags);
        if let (Some(growth), Buffers::Ours { first, size }) = (&mut self.growth, self.buffers)
            && let Some(buffer) = growth.assign(slot)
        {
            self.ring.set_offset(slot, first + size * u32::from(buffer));
        }
    }

    /// Writes a frame to as many slots as it needs.
    #[cold]
    fn send_in_pieces(&mut self, mut frame: &[u8], free: u16) -> Sent {
        // All slots are checked before anything is written: one of them may be invalid, or too few may be free.
        let mut pieces = ArrayVec::<(Slot, u32, u32), PIECES>::new();
        let mut left = frame.len();
        while left > 0 {
            if pieces.len() == usize::from(free) {
                return if free == self.count() { Sent::Never(0) } else { Sent::NoRoom };
            }
            let slot = self.next.wrapping_add(pieces.len() as u16);
            let desc = self.ring.slot(slot);
            let (len, offset) = ((self.buffers.room(desc) as usize).min(left), self.offset(slot));
            let is_there = len > 0 && desc.region == 0 && self.ring.part(offset, len as u32).is_some();
            if !is_there || pieces.is_full() {
                return self.skip(pieces.len() as u16 + u16::from(!is_there));
            }
            pieces.push((desc, offset, len as u32));
            left -= len;
        }
        for (i, (desc, offset, len)) in pieces.iter().enumerate() {
            let (piece, rest) = frame.split_at(*len as usize);
            if let Some(part) = self.ring.part(*offset, *len) {
                part.write(piece);
            }
            frame = rest;
            let slot = self.next.wrapping_add(i as u16);
            self.describe(slot, *desc, *len, if rest.is_empty() { 0 } else { NEXT });
        }
        self.next = self.next.wrapping_add(pieces.len() as u16);
        Sent::In(pieces.len() as u16)
    }

    /// Passes unusable slots to the receiver as empty: the next ones may be usable.
    fn skip(&mut self, slots: u16) -> Sent {
        for i in 0..slots {
            let slot = self.next.wrapping_add(i);
            self.describe(slot, self.ring.slot(slot), 0, 0);
        }
        self.next = self.next.wrapping_add(slots);
        Sent::Never(slots)
    }

    /// Has `builder` build up to `most` frames in the slots themselves, and returns their lengths in order. `None` if the next slot is too
    /// small for the longest frame, or if the ring lends no buffers (see [`Lent`](super::ring::Lent)).
    ///
    /// # Errors
    /// As [`burst`](Self::burst).
    pub fn build(
        &mut self,
        most: usize,
        builder: &mut dyn Build,
    ) -> Result<Option<ArrayVec<u32, TX_BURST>>, Impossible> {
        let most = most.min(TX_BURST);
        let free = usize::from(self.free(most)?).min(most);
        let mut slots = ArrayVec::<(Slot, u32), TX_BURST>::new();
        for i in 0..free as u16 {
            let slot = self.next.wrapping_add(i);
            let desc = self.ring.slot(slot);
            let offset = self.offset(slot);
            let holds = self.buffers.room(desc) >= self.max_frame
                && (desc.region == 0 || self.buffers.are_ours())
                && self.ring.lends(offset, self.max_frame);
            if !holds {
                if i == 0 {
                    return Ok(None);
                }
                break;
            }
            slots.push((desc, offset));
        }
        let mut lens = ArrayVec::<u32, TX_BURST>::new();
        for (_, offset) in &slots {
            let Some(buffer) = self.ring.buffer(*offset, self.max_frame) else { break };
            let Some(len) = builder.build(buffer) else { break };
            lens.push((len as u32).min(self.max_frame));
        }
        for (i, (_, offset)) in slots[..lens.len()].iter().enumerate() {
            if let Some(buffer) = self.ring.buffer(*offset, self.max_frame) {
                builder.finish(i, buffer);
            }
        }
        for (len, (desc, _)) in lens.iter().zip(&slots) {
            self.describe(self.next, *desc, *len, 0);
            self.next = self.next.wrapping_add(1);
        }
        if !lens.is_empty() {
            self.publish();
        }
        Ok(Some(lens))
    }
}
