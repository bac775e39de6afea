//! Where the answers to strangers go: the stations from which their messages came.
//!
//! Apart from the neighbour table, which a stranger's message neither changes nor fills. A fixed number of places, each for
//! the addresses that share it.

use crate::config::{NEIGHBOUR_ASKERS, NEIGHBOUR_LIFETIME};
use crate::id::{Gid, Mac};
use crate::time::Instant;

#[derive(Debug)]
pub(super) struct Askers(Box<[Option<Asked>; NEIGHBOUR_ASKERS]>);

#[derive(Clone, Copy, Debug)]
struct Asked {
    gid: Gid,
    station: Mac,
    at: Instant,
}

impl Default for Askers {
    fn default() -> Self {
        Self(Box::new([None; NEIGHBOUR_ASKERS]))
    }
}

impl Askers {
    /// A message of `gid` came from this station.
    pub(super) fn note(&mut self, now: Instant, gid: &Gid, station: Mac) {
        self.0[place(gid)] = Some(Asked { gid: *gid, station, at: now });
    }

    /// The station from which the last message of `gid` came, if that was lately.
    pub(super) fn station(&self, now: Instant, gid: &Gid) -> Option<Mac> {
        let lately = |asked: &&Asked| asked.gid == *gid && now < asked.at.after(NEIGHBOUR_LIFETIME);
        self.0[place(gid)].as_ref().filter(lately).map(|asked| asked.station)
    }
}

fn place(gid: &Gid) -> usize {
    let bits = u128::from_be_bytes(gid.0);
    let mixed = ((bits >> 64) as u64 ^ bits as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed >> (64 - NEIGHBOUR_ASKERS.trailing_zeros())) as usize
}
