//! Where the buffers of a ring's slots are: the end that laid them out knows, and the other end reads it from the descriptors. In a memif
//! the client has laid out the buffers of all rings; on a link of the `host` port each end has laid out those of the ring on which it
//! sends.

use super::ring::{Ring, Slot};
use super::shm::Part;

/// How far ahead of the copy short frames are prefetched: this many cache lines are fetched from the other core in parallel.
pub const SHORT_AHEAD: u16 = 8;

/// The peer set an index to an impossible value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Impossible;

/// The buffers of a ring's slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Buffers {
    /// Contiguous, as this process laid them out. Their offsets are not read from the descriptors.
    Ours {
        /// Offset of the first buffer.
        first: u32,
        /// Bytes of each buffer.
        size: u32,
    },
    /// At the offsets in the descriptors, which are read each time.
    Theirs,
}

impl Buffers {
    /// Whether this process laid them out.
    #[inline(always)]
    pub fn are_ours(&self) -> bool {
        matches!(self, Self::Ours { .. })
    }

    /// Offset of a slot's buffer. An offset that a descriptor names is not checked.
    #[inline(always)]
    pub fn offset(&self, ring: &Ring, slot: u16) -> u32 {
        match self {
            Self::Ours { first, size } => first + size * u32::from(slot & (ring.slots() - 1)),
            Self::Theirs => ring.offset(slot),
        }
    }

    /// The first `len` bytes of a slot's buffer. `desc` is its descriptor as it was read. `None` if they are outside of the region.
    #[inline(always)]
    pub fn part<'a>(&self, ring: &'a Ring, slot: u16, desc: Slot, len: u32) -> Option<Part<'a>> {
        if self.has_room(desc, len) { ring.part(self.offset(ring, slot), len) } else { None }
    }

    /// Whether a slot's buffer may hold `len` bytes, as far as can be said without its offset: a buffer that this process laid out is long
    /// enough; one that a descriptor names is in region 0.
    #[inline(always)]
    pub fn has_room(&self, desc: Slot, len: u32) -> bool {
        match self {
            Self::Ours { size, .. } => len <= *size,
            Self::Theirs => desc.region == 0,
        }
    }

    /// Bytes that fit in a slot. `desc` is its descriptor as it was read.
    #[inline(always)]
    pub fn room(&self, desc: Slot) -> u32 {
        match self {
            Self::Ours { size, .. } => *size,
            Self::Theirs => desc.length,
        }
    }
}
