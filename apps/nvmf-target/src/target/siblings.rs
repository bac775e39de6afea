//! The distribution of connections: those that arrive at one core go to all cores of the target, in turn.

use std::sync::Arc;
use std::sync::mpsc::Receiver;

use nvmf::Accepted;
use verbs::rdma_cm::CmId;

use crate::wake::{Sender, Waker, channel};

/// A connection request that passed its checks, with its new queue.
pub struct Admitted {
    pub cm_id: CmId,
    pub accepted: Accepted,
}

/// The other cores, and the connections that they have given to this one.
pub struct Siblings {
    /// The senders to the inboxes of the other cores.
    others: Vec<Sender<Admitted>>,
    /// The core that gets the next connection: 0 is this core, n is `others[n - 1]`.
    next: usize,
    /// For other cores, to send connections to `inbox`.
    to_inbox: Sender<Admitted>,
    /// Connections that other cores have given to this one.
    inbox: Receiver<Admitted>,
}

impl Siblings {
    /// For a core that has no siblings yet. A connection from a sibling wakes the core by `waker`.
    pub fn new(waker: &Arc<Waker>) -> Self {
        let (to_inbox, inbox) = channel(waker);
        Self { others: Vec::new(), next: 0, to_inbox, inbox }
    }
    /// Adds `other` to the cores that get connections in turn.
    pub fn add(&mut self, other: &Self) {
        self.others.push(other.to_inbox.clone());
    }
    /// Gives a connection to the core whose turn it is. Returns the connection if that is this core.
    pub fn assign(&mut self, admitted: Admitted) -> Option<Admitted> {
        let to = self.next;
        self.next = (self.next + 1) % (self.others.len() + 1);
        let Some(other) = to.checked_sub(1) else { return Some(admitted) };
        // If that core has ended, the request is dropped, which rejects it.
        self.others[other].send(admitted);
        None
    }
    /// The next connection that another core has given to this one.
    pub fn take(&self) -> Option<Admitted> {
        self.inbox.try_recv().ok()
    }
}
