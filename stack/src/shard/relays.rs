//! XRC targets whose requests are passed on to other processes: which they are, and how far they are. The packets are moved in
//! `rx/relay.rs`.
//!
//! What joins the owner of a target and a member is a *leg*: an XRC initiator here that nobody posts to, connected with a target in the
//! member's process.

use std::collections::{HashMap, VecDeque};

use crate::port::Frame;
use crate::proto::relay::{Member, Relay};
use crate::wire::Header;

/// The targets of a shard that are relayed, and their legs.
#[derive(Debug, Default)]
pub(super) struct Relays {
    /// By their slots.
    pub targets: HashMap<u32, Target>,
    /// By their slots.
    pub legs: HashMap<u32, Leg>,
    /// Who has a shared receive queue: by the numbers of its domain and its own.
    pub srqs: HashMap<(u32, u32), Member>,
}

/// A target that is relayed.
#[derive(Debug, Default)]
pub(super) struct Target {
    /// Its sequence, from RTR on.
    pub relay: Option<Relay>,
    /// Requests that have come and are not passed on yet, in order.
    pub waiting: VecDeque<Frame>,
    /// Answers for the peer that have no way or no room yet, in order: what they carry is in the frame of the member's.
    pub answers: VecDeque<(Header, Option<Frame>)>,
    /// Slots of the legs.
    pub legs: HashMap<Member, u32>,
}

/// Where a leg leads.
#[derive(Clone, Copy, Debug)]
pub(super) struct Leg {
    /// The slot of its target.
    pub target: u32,
    pub member: Member,
}

impl Relays {
    /// Whether there are none.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.targets.is_empty()
    }

    /// Whether the queue pair in this slot is one of them.
    pub fn has(&self, slot: u32) -> bool {
        self.targets.contains_key(&slot) || self.legs.contains_key(&slot)
    }

    /// Who has the shared receive queue with this number, of this domain.
    pub fn member_of(&self, xrcd: Option<u32>, number: u32) -> Option<Member> {
        self.srqs.get(&(xrcd?, number)).copied()
    }
}
