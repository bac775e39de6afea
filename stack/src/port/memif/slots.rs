//! Where the buffers of a ring's slots are: who laid them out knows, the other end reads it from the descriptors. In a memif the
//! client has laid out those of all rings; on a link of a host each end those of the ring on which it sends.

use super::ring::{Ring, Slot};
use super::shm::Part;

/// How many short frames ahead of the one that is copied are prefetched: as many lines come from the other core in parallel.
pub const SHORT_AHEAD: u16 = 8;

/// The peer moved an index to where it cannot be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Impossible;

/// The buffers of a ring's slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Buffers {
    /// One behind the other, as this process laid them out. Their places are not read from the descriptors.
    Ours {
        /// Where the first one begins.
        first: u32,
        /// Bytes of each.
        size: u32,
    },
    /// Where the descriptors say, which are read each time.
    Theirs,
}

impl Buffers {
    /// Whether this process laid them out.
    #[inline(always)]
    pub fn are_ours(&self) -> bool {
        matches!(self, Self::Ours { .. })
    }

    /// Offset of a slot's buffer; one that a descriptor names is not checked.
    #[inline(always)]
    pub fn offset(&self, ring: &Ring, slot: u16) -> u32 {
        match self {
            Self::Ours { first, size } => first + size * u32::from(slot & (ring.slots() - 1)),
            Self::Theirs => ring.offset(slot),
        }
    }

    /// The first `len` bytes of a slot's buffer; `desc` is its descriptor as it was read. `None` where that is outside of the
    /// region.
    #[inline(always)]
    pub fn part<'a>(&self, ring: &'a Ring, slot: u16, desc: Slot, len: u32) -> Option<Part<'a>> {
        if self.has_room(desc, len) { ring.part(self.offset(ring, slot), len) } else { None }
    }

    /// Whether a slot's buffer is in the region and, where its place is not read from the descriptor, has `len` bytes.
    #[inline(always)]
    pub fn has_room(&self, desc: Slot, len: u32) -> bool {
        match self {
            Self::Ours { size, .. } => len <= *size,
            Self::Theirs => desc.region == 0,
        }
    }

    /// Bytes that fit in a slot; `desc` is its descriptor as it was read.
    #[inline(always)]
    pub fn room(&self, desc: Slot) -> u32 {
        match self {
            Self::Ours { size, .. } => *size,
            Self::Theirs => desc.length,
        }
    }
}
