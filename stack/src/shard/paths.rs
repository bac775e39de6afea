//! Where datagrams go: next hops by address, so that sending one takes no lock.

use super::env::Env;
use crate::id::{Gid, Mac};
use crate::net::{Net, Resolution};
use crate::proto::address::Source;
use crate::time::Instant;

/// Peers remembered; a power of two. Two that share a slot take turns, at the price of a lock each time.
const SLOTS: usize = 64;

/// The way from one of our addresses to another.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Path {
    /// To this station.
    Known(Mac),
    /// To one of our own addresses: turned round inside.
    Inside,
    /// Being asked for.
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

    #[inline]
    fn slot(source: Source, gid: &Gid) -> usize {
        // The host part of an address is what differs between neighbours.
        let host = u32::from_be_bytes([gid.0[12], gid.0[13], gid.0[14], gid.0[15]]);
        ((host ^ source.bits().rotate_right(8)).wrapping_mul(0x9e37_79b9) >> (32 - SLOTS.trailing_zeros()))
            as usize
    }
}

impl Env {
    /// The way from an address of ours to another; asks the link for it if need be.
    #[inline]
    pub fn path_to(&mut self, source: Source, gid: &Gid) -> Path {
        match self.paths.0[Paths::slot(source, gid)] {
            Some((known, from, path)) if known == *gid && from == source => path,
            _ => self.find_path(source, gid),
        }
    }

    #[cold]
    fn find_path(&mut self, source: Source, gid: &Gid) -> Path {
        if self.shared.gids.of(source).is_none() {
            return Path::NoSource;
        }
        let path = if self.shared.gids.contains(gid) {
            Path::Inside
        } else {
            self.look_up(|net, now| net.resolve(now, gid))
        };
        if !matches!(path, Path::Pending | Path::Failed) {
            self.paths.0[Paths::slot(source, gid)] = Some((*gid, source, path));
        }
        path
    }

    /// The way of an answer from an address of ours to another, which may be a stranger's: that is not remembered among those in use.
    #[cold]
    pub fn path_of_answer(&mut self, source: Source, gid: &Gid) -> Path {
        if self.shared.gids.of(source).is_none() {
            return Path::NoSource;
        }
        if self.shared.gids.contains(gid) {
            return Path::Inside;
        }
        self.look_up(|net, now| net.resolve_answer(now, gid))
    }

    fn look_up(&mut self, resolve: impl FnOnce(&mut Net, Instant) -> Resolution) -> Path {
        let shared = self.shared.clone();
        let found = shared.with_net(|net| {
            let found = resolve(net, self.now);
            self.net_transmit(net);
            found
        });
        match found {
            Resolution::Known(mac) => Path::Known(mac),
            Resolution::Pending => Path::Pending,
            Resolution::Failed => Path::Failed,
        }
    }

    /// A message that will be answered came in this frame: the answer finds the station that it came from.
    #[cold]
    pub fn note_asker(&self, frame: &[u8], src: &Gid) {
        if let Some((_, rest)) = frame.split_first_chunk::<6>()
            && let Some((station, _)) = rest.split_first_chunk()
        {
            self.shared.with_net(|net| net.note_asker(self.now, src, Mac(*station)));
        }
    }
}
