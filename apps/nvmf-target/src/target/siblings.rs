//! The cores of a target, as one of them sees them: connections that arrive at it go to all of them, in turn.

use std::sync::Arc;
use std::sync::mpsc::Receiver;

use nvmf::Accepted;
use verbs::rdma_cm::CmId;

use crate::wake::{Sender, Waker, channel};

/// A request for a connection that was found right.
pub struct Admitted {
    pub cm_id: CmId,
    pub accepted: Accepted,
}

/// The other cores, and what they send to this one.
pub struct Siblings {
    others: Vec<Sender<Admitted>>,
    /// Whose turn it is: 0 is this core.
    next: usize,
    to_inbox: Sender<Admitted>,
    inbox: Receiver<Admitted>,
}

impl Siblings {
    /// None; what comes later wakes the core.
    pub fn new(waker: &Arc<Waker>) -> Self {
        let (to_inbox, inbox) = channel(waker);
        Self { others: Vec::new(), next: 0, to_inbox, inbox }
    }
    /// Some of the connections go to another core.
    pub fn add(&mut self, other: &Self) {
        self.others.push(other.to_inbox.clone());
    }
    /// Gives a connection to the core whose turn it is; returns it if that is this one.
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
