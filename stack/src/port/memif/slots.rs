//! Where the buffers of a ring's slots are: what a client knows by itself, and what a server is told.

use super::ring::{Ring, Slot};
use super::shm::Part;

/// Short frames that are asked for before the one that is copied: so many lines come from the other core at a time.
pub const SHORT_AHEAD: u16 = 8;

/// The peer moved an index to where it cannot be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Impossible;

/// The buffers of a ring's slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Buffers {
    /// A client's: one behind the other, as it laid them out. What the descriptors say is not looked at.
    Ours {
        /// Where the first one begins.
        first: u32,
        /// Bytes of each.
        size: u32,
    },
    /// A server's: where the descriptors say, each time anew.
    Theirs,
}

impl Buffers {
    /// Whether they are a client's.
    #[inline(always)]
    pub fn are_ours(&self) -> bool {
        matches!(self, Self::Ours { .. })
    }

    /// Where the buffer of a slot is, or is said to be.
    #[inline(always)]
    pub fn offset(&self, ring: &Ring, slot: u16) -> u32 {
        match self {
            Self::Ours { first, size } => first + size * u32::from(slot & (ring.slots() - 1)),
            Self::Theirs => ring.offset(slot),
        }
    }

    /// The first `len` bytes of a slot's buffer, `said` being what its descriptor said; `None` where that is nowhere.
    #[inline(always)]
    pub fn part<'a>(&self, ring: &'a Ring, slot: u16, said: Slot, len: u32) -> Option<Part<'a>> {
        let there = match self {
            Self::Ours { size, .. } => len <= *size,
            Self::Theirs => said.region == 0,
        };
        if there { ring.part(self.offset(ring, slot), len) } else { None }
    }

    /// Bytes that fit in a slot, `said` being what its descriptor said.
    #[inline(always)]
    pub fn room(&self, said: Slot) -> u32 {
        match self {
            Self::Ours { size, .. } => *size,
            Self::Theirs => said.length,
        }
    }
}
