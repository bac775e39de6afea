//! The Ethernet addresses from which messages of strangers came, for the replies to them.
//!
//! Separate from the neighbour table, so that a stranger's message neither changes nor fills that. The number of places is fixed. Addresses
//! that hash to the same place replace each other.

use crate::config::{NEIGHBOUR_LIFETIME, REPLY_MACS};
use crate::id::{Gid, Mac};
use crate::time::Instant;

#[derive(Debug)]
pub(super) struct ReplyMacs(Box<[Option<Sender>; REPLY_MACS]>);

#[derive(Clone, Copy, Debug)]
struct Sender {
    gid: Gid,
    mac: Mac,
    at: Instant,
}

impl Default for ReplyMacs {
    fn default() -> Self {
        Self(Box::new([None; REPLY_MACS]))
    }
}

impl ReplyMacs {
    /// Records the Ethernet address from which a message of `gid` came.
    pub(super) fn note(&mut self, now: Instant, gid: &Gid, mac: Mac) {
        self.0[place(gid)] = Some(Sender { gid: *gid, mac, at: now });
    }

    /// The Ethernet address from which the last message of `gid` came. `None` if none came within [`NEIGHBOUR_LIFETIME`].
    pub(super) fn mac(&self, now: Instant, gid: &Gid) -> Option<Mac> {
        let lately = |sender: &&Sender| sender.gid == *gid && now < sender.at.after(NEIGHBOUR_LIFETIME);
        self.0[place(gid)].as_ref().filter(lately).map(|sender| sender.mac)
    }
}

fn place(gid: &Gid) -> usize {
    let bits = u128::from_be_bytes(gid.0);
    let mixed = ((bits >> 64) as u64 ^ bits as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed >> (64 - REPLY_MACS.trailing_zeros())) as usize
}
