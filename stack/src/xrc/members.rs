//! The owner's state of a member: its shared receive queues, its outstanding orders, and the call that waits for orders.

use core::time::Duration;
use std::collections::{HashSet, VecDeque};
use std::time::Instant;

use super::message::{Answer, Order};
use super::refusal::Refusal;
use crate::device::Qpn;

/// Time limit for a member's hello, and for each order. A member that exceeds it is dropped, because others wait for it.
pub const PATIENCE: Duration = Duration::from_secs(5);
/// Most orders in flight to a member; further ones are queued here.
const WINDOW: usize = 32;

/// The number that the owner assigned to a member.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash)]
pub struct MemberId(pub u32);

/// A member.
#[derive(Debug)]
pub(super) struct Member {
    /// Deadline for its hello; `None` once it has sent one.
    pub hello_deadline: Option<Instant>,
    /// Numbers of its shared receive queues, and of one that is being created.
    pub srqs: HashSet<u32>,
    /// The call that is not answered yet. A member has at most one at a time.
    pub pending: Option<Pending>,
    orders: VecDeque<Ordered>,
    /// Number of orders at the front that are in flight.
    sent: usize,
}

/// A call that waits until members have executed orders.
#[derive(Debug)]
pub(super) struct Pending {
    pub number: u32,
    /// Number of orders not executed yet.
    pub left: u32,
    pub then: Then,
    pub failed: Option<Refusal>,
}

/// What to do once the orders are executed.
#[derive(Debug)]
pub(super) enum Then {
    /// Send this answer.
    Answer(Answer),
    /// The target with this number receives from now on.
    Receives(Qpn),
    /// Send the member the number of its new receive-only target.
    ReceiverCreated(Qpn),
    /// The member has the shared receive queue with this number from now on.
    Srq(u32),
}

/// An order for a member.
#[derive(Debug)]
pub(super) struct Ordered {
    pub number: u32,
    pub order: Order,
    /// The member whose call waits for the order.
    pub caller: Option<MemberId>,
    deadline: Instant,
}

impl Member {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            hello_deadline: Some(now + PATIENCE),
            srqs: HashSet::new(),
            pending: None,
            orders: VecDeque::new(),
            sent: 0,
        }
    }

    /// Whether it has the domain open.
    pub(super) fn is_member(&self) -> bool {
        self.hello_deadline.is_none()
    }

    pub(super) fn order(&mut self, now: Instant, number: u32, order: Order, caller: Option<MemberId>) {
        self.orders.push_back(Ordered { number, order, caller, deadline: now + PATIENCE });
    }

    /// Takes the next order to send, if the window permits it.
    pub(super) fn next_order(&mut self) -> Option<&Ordered> {
        let next = if self.sent < WINDOW { self.orders.get(self.sent) } else { None };
        self.sent += usize::from(next.is_some());
        next
    }

    /// Takes the order that an outcome belongs to, which must be the oldest one in flight; otherwise `None`.
    pub(super) fn take_order(&mut self, number: u32) -> Option<Ordered> {
        let is_next = self.sent > 0 && self.orders.front().is_some_and(|first| first.number == number);
        if !is_next {
            return None;
        }
        self.sent -= 1;
        self.orders.pop_front()
    }

    /// The orders that it did not execute.
    pub(super) fn into_orders(self) -> impl Iterator<Item = Ordered> {
        self.orders.into_iter()
    }

    /// Its next deadline.
    pub(super) fn deadline(&self) -> Option<Instant> {
        let orders = self.orders.front().map(|first| first.deadline);
        [self.hello_deadline, orders].into_iter().flatten().min()
    }
}
