#![allow(unsafe_code)]
//! A ring as the memif protocol lays it out in shared memory: two counters, and a descriptor for each slot.
//!
//! The sender advances the head of a ring from client to server, and the tail of a ring from server to client. Counters wrap at 2^16. Each
//! field is loaded once into a local value, which the other process cannot change, and that value is checked.
//!
//! The pointers here are sound because [`Ring::new`] checks that the whole ring is within its region, and a slot number is masked to the
//! ring's size before it becomes an address. References to buffers are lent only in a part of the region that belongs to this ring alone
//! ([`Lent`]), whatever the peer writes to the descriptors later.

use super::shm::{Part, Region};
use crate::config::SHARDS_MAX;
use crate::sync::prefetch;
use core::mem::offset_of;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU16, AtomicU32, AtomicU64, Ordering};
use std::sync::Arc;

/// Base-2 logarithm of the most slots of a ring.
pub const LOG2_MAX: u8 = 14;
/// The magic number in the first word of a ring.
const COOKIE: u32 = 0x03e3_1f20;
/// Flag of a ring: its receiver polls, and needs no events.
const POLLED: u16 = 1;
/// Flag of a ring of the `host` port: its receiver reads the ring after a notification, and needs no events.
const NEWS: u16 = 2;
/// Flag of a descriptor: the frame continues in the next slot.
pub const NEXT: u16 = 1;

/// The header, which precedes the descriptors.
#[repr(C)]
struct Header {
    cookie: u32,
    flags: u16,
    head: u16,
    line: [u8; 56],
    tail: u16,
    line_2: [u8; 62],
}
const _: () = assert!(offset_of!(Header, tail) == 64 && size_of::<Header>() == 128);

/// A descriptor. Its first half is loaded as one word.
#[repr(C)]
struct Descriptor {
    flags: u16,
    region: u16,
    length: u32,
    offset: u32,
    metadata: u32,
}
const _: () = assert!(size_of::<Descriptor>() == 16 && offset_of!(Descriptor, offset) == 8);

/// Bytes of a ring of 2 to the power of `log2` slots.
pub const fn bytes(log2: u8) -> usize {
    size_of::<Header>() + (size_of::<Descriptor>() << log2)
}

/// Checks that a ring of 2 to the power of `log2` slots can be at `offset` in a region of `size` bytes.
///
/// # Errors
/// Why not, as the predicate of a sentence about the ring.
pub fn check(size: u64, offset: u32, log2: u8) -> Result<(), String> {
    if !(1..=LOG2_MAX).contains(&log2) {
        return Err(format!("has 2^{log2} slots, where rings have 2^1 to 2^{LOG2_MAX}"));
    }
    if !offset.is_multiple_of(8) {
        return Err(format!("begins at {offset}, which is no multiple of 8"));
    }
    if u64::from(offset) + bytes(log2) as u64 > size {
        return Err("ends behind its region".into());
    }
    Ok(())
}

/// When a receiver reads its ring.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Attention {
    /// In each burst.
    Polled,
    /// After a notification ([`sync::news`](crate::sync::news)).
    News,
    /// After a wake-up by an event.
    Asleep,
}

/// The fields of a descriptor, as they were read: untrusted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slot {
    /// [`NEXT`], or not.
    pub flags: u16,
    /// Number of the region that contains the buffer.
    pub region: u16,
    /// Bytes that the slot holds, or can hold.
    pub length: u32,
}

/// A part of a region in which one ring lends buffers. No other ring of this process lends any of it.
#[derive(Debug)]
pub struct Lent {
    region: Arc<Region>,
    first: u32,
    bytes: u32,
}

/// Divides a region among rings. Each ring gets the part that it wants, given by its first byte and its length, if that part is within the
/// region and overlaps no other wanted part; otherwise it gets nothing. A region is divided once; later calls give nothing.
///
/// Compares each part with each other one. There is one for each queue, so at most [`SHARDS_MAX`], whatever a peer offers.
pub fn divide(region: &Arc<Region>, wanted: &[(u32, u32)]) -> Vec<Lent> {
    debug_assert!(wanted.len() <= SHARDS_MAX);
    let first_time = region.divide();
    let own = divided(wanted, region.len() as u64);
    let lent = |((first, bytes), own): (&(u32, u32), bool)| Lent {
        region: Arc::clone(region),
        first: *first,
        bytes: if own && first_time { *bytes } else { 0 },
    };
    wanted.iter().zip(own).map(lent).collect()
}

/// Which parts are within `size` bytes and overlap no other part.
fn divided(wanted: &[(u32, u32)], size: u64) -> Vec<bool> {
    let end = |(first, bytes): (u32, u32)| u64::from(first) + u64::from(bytes);
    let overlap = |a: (u32, u32), b: (u32, u32)| u64::from(a.0) < end(b) && u64::from(b.0) < end(a);
    let own = |(i, part): (usize, &(u32, u32))| {
        let mut others = wanted.iter().enumerate().filter(|(j, _)| *j != i);
        end(*part) <= size && !others.any(|(_, other)| overlap(*part, *other))
    };
    wanted.iter().enumerate().map(own).collect()
}

/// A ring. One queue of this process uses one end of it.
#[derive(Debug)]
pub struct Ring {
    at: NonNull<u8>,
    mask: u16,
    /// Copies of the region's base and length, to save a load.
    base: NonNull<u8>,
    size: usize,
    /// The part in which it lends buffers: first byte and length.
    lent: (u32, u32),
    region: Arc<Region>,
}

// SAFETY: the pointers point into the region, which may be used on any thread and lives as long as the ring.
unsafe impl Send for Ring {}

impl Ring {
    /// The ring at `offset`. Its magic number is not checked.
    ///
    /// # Errors
    /// As [`check`].
    pub fn new(region: &Arc<Region>, offset: u32, log2: u8) -> Result<Self, String> {
        check(region.len() as u64, offset, log2)?;
        // SAFETY: `check` found that the whole ring is within the region.
        let at = unsafe { region.base().add(offset as usize) };
        let mask = (1u16 << log2) - 1;
        Ok(Self {
            at,
            mask,
            base: region.base(),
            size: region.len(),
            lent: (0, 0),
            region: Arc::clone(region),
        })
    }

    /// Sets the part of the region in which the ring lends buffers.
    pub fn lend(&mut self, lent: Lent) {
        if Arc::ptr_eq(&lent.region, &self.region) {
            self.lent = (lent.first, lent.bytes);
        }
    }

    /// The part of the region that the ring's descriptors name now: first byte and length. `None` if one of them names another region or
    /// exceeds 32-bit offsets.
    pub fn described(&self) -> Option<(u32, u32)> {
        let (mut first, mut end) = (u32::MAX, 0);
        for slot in 0..self.slots() {
            let (Slot { region, length, .. }, offset) = (self.slot(slot), self.offset(slot));
            if region != 0 {
                return None;
            }
            (first, end) = (first.min(offset), end.max(offset.checked_add(length)?));
        }
        Some((first, end - first))
    }

    /// Number of slots.
    #[inline(always)]
    pub fn slots(&self) -> u16 {
        self.mask + 1
    }

    /// The header field at offset `at`.
    #[inline(always)]
    fn word(&self, at: usize) -> &AtomicU16 {
        // SAFETY: `at` is the offset of a 16-bit field, and even; the ring begins at a multiple of 8. This process accesses the field only
        // by atomics.
        unsafe { AtomicU16::from_ptr(self.at.as_ptr().add(at).cast()) }
    }

    /// Whether it has the magic number of a ring.
    pub fn is_marked(&self) -> bool {
        // SAFETY: as in `word`.
        let cookie = unsafe { AtomicU32::from_ptr(self.at.as_ptr().cast()) };
        cookie.load(Ordering::Relaxed) == COOKIE
    }

    /// Initialises it as a ring whose slots are contiguous buffers of `length` bytes, from offset `first` on.
    pub fn mark(&self, first: u32, length: u32) {
        for slot in 0..self.slots() {
            let at = self.descriptor(slot).cast::<AtomicU32>();
            // SAFETY: a descriptor is four aligned words of 32 bits.
            let words = unsafe { core::slice::from_raw_parts(at, 4) };
            for (word, value) in words.iter().zip([0, length, first + length * u32::from(slot), 0]) {
                word.store(value, Ordering::Relaxed);
            }
        }
        // SAFETY: as in `word`.
        unsafe { AtomicU32::from_ptr(self.at.as_ptr().cast()) }.store(COOKIE, Ordering::Release);
    }

    /// The head counter.
    #[inline(always)]
    pub fn head(&self) -> u16 {
        self.word(offset_of!(Header, head)).load(Ordering::Acquire)
    }

    /// Sets the head counter.
    #[inline(always)]
    pub fn set_head(&self, head: u16) {
        self.word(offset_of!(Header, head)).store(head, Ordering::Release);
    }

    /// The tail counter.
    #[inline(always)]
    pub fn tail(&self) -> u16 {
        self.word(offset_of!(Header, tail)).load(Ordering::Acquire)
    }

    /// Sets the tail counter.
    #[inline(always)]
    pub fn set_tail(&self, tail: u16) {
        self.word(offset_of!(Header, tail)).store(tail, Ordering::Release);
    }

    /// Whether the receiver reads the ring in each burst.
    #[inline(always)]
    pub fn is_polled(&self) -> bool {
        self.word(offset_of!(Header, flags)).load(Ordering::Relaxed) & POLLED != 0
    }

    /// Whether the receiver needs no event: it polls the ring, or reads it after a notification.
    #[inline]
    pub fn is_awake(&self) -> bool {
        self.word(offset_of!(Header, flags)).load(Ordering::Relaxed) & (POLLED | NEWS) != 0
    }

    /// Publishes when this end, the receiver, reads the ring.
    pub fn set_attention(&self, attention: Attention) {
        let flags = match attention {
            Attention::Polled => POLLED,
            Attention::News => NEWS,
            Attention::Asleep => 0,
        };
        self.word(offset_of!(Header, flags)).store(flags, Ordering::Relaxed);
    }

    /// Prefetches the cache line of the header that holds the flags and the head.
    #[inline(always)]
    pub fn prefetch_header(&self) {
        prefetch::near(self.at.as_ptr());
    }

    #[inline(always)]
    fn descriptor(&self, slot: u16) -> *mut u8 {
        let slot = usize::from(slot & self.mask);
        // SAFETY: the slot number is masked, and the ring has that many descriptors, all of them in its region.
        unsafe { self.at.as_ptr().add(size_of::<Header>() + slot * size_of::<Descriptor>()) }
    }

    /// The descriptor of a slot, without its offset.
    #[inline(always)]
    pub fn slot(&self, slot: u16) -> Slot {
        // SAFETY: descriptors begin at multiples of 8, as the ring does.
        let word = unsafe { AtomicU64::from_ptr(self.descriptor(slot).cast()) }.load(Ordering::Relaxed);
        let [a, b, c, d, length @ ..] = word.to_ne_bytes();
        Slot {
            flags: u16::from_ne_bytes([a, b]),
            region: u16::from_ne_bytes([c, d]),
            length: u32::from_ne_bytes(length),
        }
    }

    /// The buffer offset in the descriptor of a slot.
    #[inline(always)]
    pub fn offset(&self, slot: u16) -> u32 {
        // SAFETY: as in `slot`.
        unsafe { AtomicU32::from_ptr(self.descriptor(slot).add(offset_of!(Descriptor, offset)).cast()) }
            .load(Ordering::Relaxed)
    }

    /// Writes length and flags to the descriptor of a slot. `was` is the descriptor as it was read. Unchanged fields are not stored, so
    /// that both ends keep the line in their caches.
    #[inline(always)]
    pub fn describe(&self, slot: u16, was: Slot, length: u32, flags: u16) {
        let at = self.descriptor(slot);
        if was.length != length {
            // SAFETY: as in `slot`.
            unsafe { AtomicU32::from_ptr(at.add(offset_of!(Descriptor, length)).cast()) }
                .store(length, Ordering::Relaxed);
        }
        if was.flags != flags {
            // SAFETY: as in `slot`.
            unsafe { AtomicU16::from_ptr(at.cast()) }.store(flags, Ordering::Relaxed);
        }
    }

    /// Sets the buffer offset of a slot.
    #[inline]
    pub fn set_offset(&self, slot: u16, offset: u32) {
        // SAFETY: as in `slot`.
        unsafe { AtomicU32::from_ptr(self.descriptor(slot).add(offset_of!(Descriptor, offset)).cast()) }
            .store(offset, Ordering::Relaxed);
    }

    /// Prefetches the descriptor of a slot.
    #[inline(always)]
    pub fn prefetch_slot(&self, slot: u16) {
        prefetch::near(self.descriptor(slot));
    }

    /// The bytes `offset..offset + len` of the region; `None` if they are outside of it.
    #[inline(always)]
    pub fn part(&self, offset: u32, len: u32) -> Option<Part<'_>> {
        // SAFETY: `base` and `size` are those of the region, which lives as long as the ring.
        unsafe { Part::of(self.base, self.size, offset, len) }
    }

    /// The address of `offset`, for a prefetch only: it may be outside of the region.
    #[inline(always)]
    pub fn address(&self, offset: u32) -> *const u8 {
        self.base.as_ptr().wrapping_add(offset as usize)
    }

    /// Whether the bytes `offset..offset + len` are in the part in which the ring lends buffers.
    #[inline(always)]
    pub fn lends(&self, offset: u32, len: u32) -> bool {
        let (first, bytes) = self.lent;
        // For an offset before the part, this wraps to a number larger than any part.
        offset.wrapping_sub(first) as usize + len as usize <= bytes as usize
    }

    /// The bytes `offset..offset + len` of the region as a buffer for a frame; `None` if the ring does not lend them.
    #[inline(always)]
    pub fn buffer(&mut self, offset: u32, len: u32) -> Option<&mut [u8]> {
        // SAFETY: `divide` gave these bytes, which are in the region, to this ring alone, and the ring is borrowed as long as the buffer.
        // The other process may write there at any moment, and another ring may copy from or to these bytes if the peer's descriptors name
        // them: the builder only writes, and what is read back means nothing.
        self.lends(offset, len).then(|| unsafe { Part::lent(self.base, offset, len).into_buffer() })
    }
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;
    use crate::port::memif::region::Layout;
    use crate::port::memif::shm::Fill;

    // Goal: no byte is lent by two rings, whatever parts are wanted: checks each byte in all small cases.
    #[test]
    fn no_byte_is_lent_twice() {
        let parts: Vec<(u32, u32)> =
            (0..5).flat_map(|first| (0..4).map(move |bytes| (first, bytes))).collect();
        let covers = |part: (u32, u32), byte| (part.0..part.0 + part.1).contains(&byte);
        for a in &parts {
            for b in &parts {
                for c in &parts {
                    let wanted = [*a, *b, *c];
                    let own = divided(&wanted, 7);
                    for (i, part) in wanted.into_iter().enumerate() {
                        let shares =
                            |j: usize| (0..8).any(|byte| covers(part, byte) && covers(wanted[j], byte));
                        let alone = (0..3).all(|j| j == i || !shares(j)) && part.0 + part.1 <= 7;
                        // An empty part inside another part counts as overlapping it.
                        let empty = wanted.iter().any(|part| part.1 == 0);
                        assert!(own[i] == alone || !own[i] && empty, "{wanted:?}: {own:?}");
                    }
                }
            }
        }
        assert_eq!(divided(&[(0, u32::MAX), (u32::MAX, u32::MAX)], u64::from(u32::MAX)), [true, false]);
    }

    // Goal: a ring lends exactly the part that it was given, and nothing that a peer's descriptors name elsewhere; and a region is divided
    // once.
    #[test]
    fn a_ring_lends_its_own_part_alone() {
        let layout = Layout { queues: 2, log2: 4, buffer: 64 };
        let (_fd, region) = layout.make("test", Fill::Now).unwrap();
        let rings = [0, 1].map(|queue| Ring::new(&region, layout.ring(true, queue), 4).unwrap());
        let wanted: Vec<_> = rings.iter().map(|ring| ring.described().unwrap()).collect();
        assert_eq!(wanted, [0, 1].map(|queue| layout.room(true, queue)));
        for (mut ring, lent) in rings.into_iter().zip(divide(&region, &wanted)) {
            let (first, bytes) = (lent.first, lent.bytes);
            assert!(ring.buffer(first, 1).is_none(), "nothing yet");
            ring.lend(lent);
            assert_eq!(ring.buffer(first, bytes).unwrap().len(), bytes as usize);
            let outside = [(first - 1, 2), (first + bytes, 1), (first + 1, bytes), (0, 64), (u32::MAX, 1)];
            for (offset, len) in outside.into_iter().chain([(first, u32::MAX)]) {
                assert!(ring.buffer(offset, len).is_none(), "{offset} {len}");
            }
        }
        assert_eq!(divide(&region, &wanted)[0].bytes, 0);
    }
}
