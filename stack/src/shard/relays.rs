//! The state of relayed XRC targets: those whose requests are forwarded to other processes. `rx/relay.rs` forwards the packets.
//!
//! A *leg* joins the owner of a target and a member: an XRC initiator in the owner that nobody posts to, connected with an XRC target in
//! the member's process.

use std::collections::{HashMap, VecDeque};

use crate::port::Frame;
use crate::proto::relay::{Member, Relay};
use crate::wire::Header;

/// The targets of a shard that are relayed, and their legs.
#[derive(Debug, Default)]
pub(super) struct Relays {
    /// Relayed targets, by slot.
    pub targets: HashMap<u32, Target>,
    /// Legs, by slot.
    pub legs: HashMap<u32, Leg>,
    /// The member that has a shared receive queue, by the number of its domain and its own number.
    pub srqs: HashMap<(u32, u32), Member>,
}

/// A relayed target.
#[derive(Debug, Default)]
pub(super) struct Target {
    /// The packet sequence of the target, from RTR on.
    pub relay: Option<Relay>,
    /// Requests that have arrived and are not forwarded yet, in order.
    pub waiting: VecDeque<Frame>,
    /// Responses for the peer that wait for a route or for room, in order, with the member's frame if that has a payload.
    pub answers: VecDeque<(Header, Option<Frame>)>,
    /// Slots of the legs.
    pub legs: HashMap<Member, u32>,
}

/// The target and the member that a leg connects.
#[derive(Clone, Copy, Debug)]
pub(super) struct Leg {
    /// The slot of the target.
    pub target: u32,
    pub member: Member,
}

impl Relays {
    /// Whether the shard has no relayed targets.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.targets.is_empty()
    }

    /// Whether the queue pair in this slot is a relayed target or a leg.
    pub fn has(&self, slot: u32) -> bool {
        self.targets.contains_key(&slot) || self.legs.contains_key(&slot)
    }

    /// The member that has the shared receive queue with this number of this domain.
    pub fn member_of(&self, xrcd: Option<u32>, number: u32) -> Option<Member> {
        self.srqs.get(&(xrcd?, number)).copied()
    }
}
