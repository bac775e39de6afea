//! What the owner knows of a member: its shared receive queues, the orders that it has to carry out, the call that waits for them.

use core::time::Duration;
use std::collections::{HashSet, VecDeque};
use std::time::Instant;

use super::message::{Answer, Order};
use super::refusal::Refusal;
use crate::device::Qpn;

/// How long a member may take to say hello, and to carry out an order. Who takes longer is dropped: others wait for it.
pub const PATIENCE: Duration = Duration::from_secs(5);
/// Orders that are on their way to a member at a time; the others wait here.
const WINDOW: usize = 32;

/// A member, by the number that the owner gave it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash)]
pub struct MemberId(pub u32);

/// A member.
#[derive(Debug)]
pub(super) struct Member {
    /// Until then it has to say hello; `None`: it has.
    pub hello_until: Option<Instant>,
    /// Numbers of its shared receive queues, and of the one that it is about to have.
    pub srqs: HashSet<u32>,
    /// The call that is not answered yet. A member makes one at a time.
    pub pending: Option<Pending>,
    orders: VecDeque<Ordered>,
    /// So many of the first orders are on their way.
    sent: usize,
}

/// A call that waits until members have carried out orders.
#[derive(Debug)]
pub(super) struct Pending {
    pub number: u32,
    /// Orders that are not carried out yet.
    pub left: u32,
    pub then: Then,
    pub failed: Option<Refusal>,
}

/// What follows when the orders are carried out.
#[derive(Debug)]
pub(super) enum Then {
    /// This answer.
    Answer(Answer),
    /// The target of this number receives.
    Receives(Qpn),
    /// The member gets the number of its new receive-only target.
    Allocated(Qpn),
    /// The member has the shared receive queue of this number.
    Srq(u32),
}

/// An order for a member.
#[derive(Debug)]
pub(super) struct Ordered {
    pub number: u32,
    pub order: Order,
    /// Whose call waits for it.
    pub asker: Option<MemberId>,
    until: Instant,
}

impl Member {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            hello_until: Some(now + PATIENCE),
            srqs: HashSet::new(),
            pending: None,
            orders: VecDeque::new(),
            sent: 0,
        }
    }

    /// Whether it has the domain open.
    pub(super) fn is_in(&self) -> bool {
        self.hello_until.is_none()
    }

    pub(super) fn order(&mut self, now: Instant, number: u32, order: Order, asker: Option<MemberId>) {
        self.orders.push_back(Ordered { number, order, asker, until: now + PATIENCE });
    }

    /// The next order that is to be sent now.
    pub(super) fn next_order(&mut self) -> Option<&Ordered> {
        let next = if self.sent < WINDOW { self.orders.get(self.sent) } else { None };
        self.sent += usize::from(next.is_some());
        next
    }

    /// Takes the order that an outcome is of: the oldest one that was sent; `None`: the outcome is of none.
    pub(super) fn take_order(&mut self, number: u32) -> Option<Ordered> {
        let is_next = self.sent > 0 && self.orders.front().is_some_and(|first| first.number == number);
        if !is_next {
            return None;
        }
        self.sent -= 1;
        self.orders.pop_front()
    }

    /// The orders that it did not carry out.
    pub(super) fn into_orders(self) -> impl Iterator<Item = Ordered> {
        self.orders.into_iter()
    }

    /// When its patience is over.
    pub(super) fn until(&self) -> Option<Instant> {
        let orders = self.orders.front().map(|first| first.until);
        [self.hello_until, orders].into_iter().flatten().min()
    }
}
