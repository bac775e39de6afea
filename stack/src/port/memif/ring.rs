#![allow(unsafe_code)]
//! A ring as the memif protocol lays it out: two counters and descriptors of slots, in shared memory.
//!
//! The end that fills slots moves the head of a ring from client to server, and the tail of a ring from server to client; counters
//! wrap at 2^16. A field is loaded once into a value that the other process cannot change, and that value is checked.
//!
//! The pointers here are sound because [`Ring::new`] checks that all of the ring is within its region, and the number of a slot
//! is masked to the ring's size where it becomes an address.

use super::shm::{Part, Region};
use crate::sync::prefetch;
use core::mem::offset_of;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU16, AtomicU32, AtomicU64, Ordering};
use std::sync::Arc;

/// Base-2 logarithm of the most slots of a ring.
pub const LOG2_MAX: u8 = 14;
/// The first word of a ring.
const COOKIE: u32 = 0x03e3_1f20;
/// Flag of a ring: its receiver polls, and wants no events.
const POLLED: u16 = 1;
/// Flag of a descriptor: the frame goes on in the next slot.
pub const NEXT: u16 = 1;

/// What comes before the descriptors.
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

/// A descriptor. The first half is loaded as one word.
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

/// Whether such a ring can be at `offset` in a region of `size` bytes.
///
/// # Errors
/// Why not, as the end of a sentence.
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

/// The fields of a descriptor, as they were read: untrusted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slot {
    /// [`NEXT`], or not.
    pub flags: u16,
    /// Number of a region.
    pub region: u16,
    /// Bytes that are in the slot, or fit in.
    pub length: u32,
}

/// A ring. One queue of this process uses it, at one end.
#[derive(Debug)]
pub struct Ring {
    at: NonNull<u8>,
    mask: u16,
    /// Copies of the region's, to save a load.
    base: NonNull<u8>,
    size: usize,
    _region: Arc<Region>,
}

// SAFETY: the pointers are into the region, which may be used on any thread and lives as long as this.
unsafe impl Send for Ring {}

impl Ring {
    /// The ring at `offset`. Its cookie is not checked.
    ///
    /// # Errors
    /// As [`check`].
    pub fn new(region: &Arc<Region>, offset: u32, log2: u8) -> Result<Self, String> {
        check(region.len() as u64, offset, log2)?;
        // SAFETY: the region has the whole ring from there on.
        let at = unsafe { region.base().add(offset as usize) };
        let mask = (1u16 << log2) - 1;
        Ok(Self { at, mask, base: region.base(), size: region.len(), _region: Arc::clone(region) })
    }

    /// Slots that it has.
    #[inline(always)]
    pub fn slots(&self) -> u16 {
        self.mask + 1
    }

    /// The header's word at `at`.
    #[inline(always)]
    fn word(&self, at: usize) -> &AtomicU16 {
        // SAFETY: `at` is that of a field, and even; the ring begins at a multiple of 8. All of this process's accesses to it
        // are atomic.
        unsafe { AtomicU16::from_ptr(self.at.as_ptr().add(at).cast()) }
    }

    /// Whether it is marked as a ring.
    pub fn is_marked(&self) -> bool {
        // SAFETY: as in `word`.
        let cookie = unsafe { AtomicU32::from_ptr(self.at.as_ptr().cast()) };
        cookie.load(Ordering::Relaxed) == COOKIE
    }

    /// Marks it as a ring whose slots are buffers of `length` bytes, one behind the other from `first` on.
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

    /// The head.
    #[inline(always)]
    pub fn head(&self) -> u16 {
        self.word(offset_of!(Header, head)).load(Ordering::Acquire)
    }

    /// Moves the head.
    #[inline(always)]
    pub fn set_head(&self, head: u16) {
        self.word(offset_of!(Header, head)).store(head, Ordering::Release);
    }

    /// The tail.
    #[inline(always)]
    pub fn tail(&self) -> u16 {
        self.word(offset_of!(Header, tail)).load(Ordering::Acquire)
    }

    /// Moves the tail.
    #[inline(always)]
    pub fn set_tail(&self, tail: u16) {
        self.word(offset_of!(Header, tail)).store(tail, Ordering::Release);
    }

    /// Whether the receiver polls.
    #[inline(always)]
    pub fn is_polled(&self) -> bool {
        self.word(offset_of!(Header, flags)).load(Ordering::Relaxed) & POLLED != 0
    }

    /// Sets whether we poll, or wait for an event.
    pub fn set_polled(&self, polled: bool) {
        let flags = if polled { POLLED } else { 0 };
        self.word(offset_of!(Header, flags)).store(flags, Ordering::Relaxed);
    }

    /// Prefetches the line of the header that has the other end's index and the flags.
    #[inline(always)]
    pub fn prefetch_header(&self) {
        prefetch::near(self.at.as_ptr());
    }

    #[inline(always)]
    fn descriptor(&self, slot: u16) -> *mut u8 {
        let slot = usize::from(slot & self.mask);
        // SAFETY: the ring has that many descriptors, all of them in its region.
        unsafe { self.at.as_ptr().add(size_of::<Header>() + slot * size_of::<Descriptor>()) }
    }

    /// The descriptor of a slot, but for its offset.
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

    /// The offset of the buffer, from the descriptor of a slot.
    #[inline(always)]
    pub fn offset(&self, slot: u16) -> u32 {
        // SAFETY: as in `slot`.
        unsafe { AtomicU32::from_ptr(self.descriptor(slot).add(offset_of!(Descriptor, offset)).cast()) }
            .load(Ordering::Relaxed)
    }

    /// Describes the contents of a slot; `was` is what its descriptor held. Fields that are the same are not stored, so that both
    /// ends keep the line in their caches.
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

    /// Prefetches the descriptor of a slot.
    #[inline(always)]
    pub fn prefetch_slot(&self, slot: u16) {
        prefetch::near(self.descriptor(slot));
    }

    /// The bytes `offset..offset + len` of the region, if it has them.
    #[inline(always)]
    pub fn part(&self, offset: u32, len: u32) -> Option<Part<'_>> {
        // SAFETY: those of the region, which lives as long as the ring.
        unsafe { Part::of(self.base, self.size, offset, len) }
    }

    /// The address of `offset`, to be prefetched: perhaps outside of the region.
    #[inline(always)]
    pub fn address(&self, offset: u32) -> *const u8 {
        self.base.as_ptr().wrapping_add(offset as usize)
    }

    /// As [`part`](Self::part), to build a frame in.
    #[inline(always)]
    pub fn buffer(&mut self, offset: u32, len: u32) -> Option<&mut [u8]> {
        // SAFETY: valid for so many bytes, and the ring is borrowed for as long. Where the peer keeps to the protocol each ring has
        // buffers of its own, and no other reference leads there. A peer that describes them otherwise has two shards write to one
        // place, as it may itself at any moment: frames to itself are spoiled, and nothing is decided by what is read there.
        self.part(offset, len).map(|part| unsafe { part.into_buffer() })
    }
}
