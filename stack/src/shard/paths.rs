//! A cache of next hops by address, so that sending a datagram takes no lock.

use crate::id::{Gid, Mac};
use crate::port::Route;
use crate::proto::address::Source;

/// Number of entries; a power of two. Peers that share an entry evict each other, at the cost of a lock each time.
const SLOTS: usize = 64;

/// The path from a local address to another address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Path {
    /// To this Ethernet address, by this route.
    Known(Mac, Route),
    /// To one of the local addresses, and a queue pair of this device: looped back inside.
    Inside,
    /// Being resolved.
    Pending,
    /// The address could not be resolved.
    Failed,
    /// The local address is gone.
    NoSource,
}

/// Known paths, valid until the neighbour table changes.
#[derive(Debug)]
pub(super) struct Paths([Option<(Gid, Source, Path)>; SLOTS]);

impl Default for Paths {
    fn default() -> Self {
        Self([None; SLOTS])
    }
}

impl Paths {
    /// Clears the cache: the neighbour table or the local addresses changed.
    pub fn clear(&mut self) {
        self.0 = [None; SLOTS];
    }

    /// The path from a local address to another address, if it is cached.
    #[inline]
    pub fn get(&self, source: Source, gid: &Gid) -> Option<Path> {
        match self.0[Self::slot(source, gid)] {
            Some((known, from, path)) if known == *gid && from == source => Some(path),
            _ => None,
        }
    }

    /// Caches a path.
    pub fn set(&mut self, source: Source, gid: &Gid, path: Path) {
        self.0[Self::slot(source, gid)] = Some((*gid, source, path));
    }

    #[inline]
    fn slot(source: Source, gid: &Gid) -> usize {
        // Neighbours differ in the host part of their addresses.
        let host = u32::from_be_bytes([gid.0[12], gid.0[13], gid.0[14], gid.0[15]]);
        ((host ^ source.bits().rotate_right(8)).wrapping_mul(0x9e37_79b9) >> (32 - SLOTS.trailing_zeros()))
            as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STATION: Path = Path::Known(Mac([2, 0, 0, 0, 0, 1]), Route(0));

    // An entry is for one local address and one peer address; another pair that maps to its slot evicts it.
    #[test]
    fn a_way_is_remembered_until_its_place_is_taken_or_something_changed() {
        let (mut paths, ours) = (Paths::default(), Source::new(1, 0));
        let peer = |n: u32| Gid::v4((0x0a00_0000 + n).to_be_bytes());
        assert_eq!(paths.get(ours, &peer(1)), None);
        paths.set(ours, &peer(1), STATION);
        assert_eq!(paths.get(ours, &peer(1)), Some(STATION));
        assert_eq!(paths.get(Source::new(1, 1), &peer(1)), None, "another address at the same index");
        let place = Paths::slot(ours, &peer(1));
        let rival = (2..).map(peer).find(|gid| Paths::slot(ours, gid) == place).unwrap();
        assert_eq!(paths.get(ours, &rival), None);
        paths.set(ours, &rival, Path::Inside);
        assert_eq!((paths.get(ours, &rival), paths.get(ours, &peer(1))), (Some(Path::Inside), None));
        paths.clear();
        assert_eq!(paths.get(ours, &rival), None);
    }
}
