//! Where datagrams go: next hops by address, so that sending one takes no lock.

use crate::id::{Gid, Mac};
use crate::proto::address::Source;

/// Peers remembered; a power of two. Two that share a slot take turns, at the price of a lock each time.
const SLOTS: usize = 64;

/// The way from one of our addresses to another.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Path {
    /// To this station.
    Known(Mac),
    /// To one of our own addresses: looped back inside the device.
    Inside,
    /// Being resolved.
    Pending,
    /// Nobody knows it.
    Failed,
    /// The address of ours is gone.
    NoSource,
}

/// Ways that are known, until the neighbour table changes.
#[derive(Debug)]
pub(super) struct Paths([Option<(Gid, Source, Path)>; SLOTS]);

impl Default for Paths {
    fn default() -> Self {
        Self([None; SLOTS])
    }
}

impl Paths {
    /// Forgets everything: the neighbour table or our addresses changed.
    pub fn clear(&mut self) {
        self.0 = [None; SLOTS];
    }

    /// The way from an address of ours to another, if it is remembered.
    #[inline]
    pub fn get(&self, source: Source, gid: &Gid) -> Option<Path> {
        match self.0[Self::slot(source, gid)] {
            Some((known, from, path)) if known == *gid && from == source => Some(path),
            _ => None,
        }
    }

    /// Remembers a way.
    pub fn set(&mut self, source: Source, gid: &Gid, path: Path) {
        self.0[Self::slot(source, gid)] = Some((*gid, source, path));
    }

    #[inline]
    fn slot(source: Source, gid: &Gid) -> usize {
        // The host part of an address is what differs between neighbours.
        let host = u32::from_be_bytes([gid.0[12], gid.0[13], gid.0[14], gid.0[15]]);
        ((host ^ source.bits().rotate_right(8)).wrapping_mul(0x9e37_79b9) >> (32 - SLOTS.trailing_zeros()))
            as usize
    }
}
