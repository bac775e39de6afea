//! The cores of a target, as one of them sees them: connections that arrive at it go to all of them, in turn.

use std::sync::Arc;
use std::sync::mpsc::Receiver;

use nvmf::Accepted;
use verbs::rdma_cm::CmId;

use crate::wake::{Sender, Waker, channel};

/// A connection request that the target accepts.
pub struct Admitted {
    pub cm_id: CmId,
    pub accepted: Accepted,
}

/// The other cores, and the connections that they give to this one.
pub struct Siblings {
    /// The inboxes of the other cores.
    others: Vec<Sender<Admitted>>,
    /// The core that gets the next connection: 0 is this one, n is `others[n - 1]`.
    next: usize,
    /// For other cores, to send to `inbox`.
    to_inbox: Sender<Admitted>,
    /// Connections that other cores give to this one.
    inbox: Receiver<Admitted>,
}

impl Siblings {
    /// A core without siblings so far. A connection that a sibling gives to it wakes it by `waker`.
    pub fn new(waker: &Arc<Waker>) -> Self {
        let (to_inbox, inbox) = channel(waker);
        Self { others: Vec::new(), next: 0, to_inbox, inbox }
    }
    /// From now on `other` gets its part of the connections.
    pub fn add(&mut self, other: &Self) {
        self.others.push(other.to_inbox.clone());
    }
    /// Gives a connection to the core whose turn it is; returns the connection if it is this core's turn.
    pub fn assign(&mut self, admitted: Admitted) -> Option<Admitted> {
        let to = self.next;
        self.next = (self.next + 1) % (self.others.len() + 1);
        let Some(other) = to.checked_sub(1) else { return Some(admitted) };
        // Where the core has ended, the request is refused as it is dropped.
        self.others[other].send(admitted);
        None
    }
    /// A connection that another core gives to this one.
    pub fn take(&self) -> Option<Admitted> {
        self.inbox.try_recv().ok()
    }
}
