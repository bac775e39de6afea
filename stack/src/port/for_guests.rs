//! Packets of the network for guests: processes of other users whom the owner of a host admits. The kernel lets only one user's sockets share
//! a UDP port, so a guest has none there. What comes for it arrives at a process of the owner, which passes it on by its link with the guest.

use super::frame::Frame;
use crate::registry::Run;
use crossbeam_queue::ArrayQueue;

/// The most packets for guests that a queue receives at once.
pub(super) const AT_ONCE: usize = 64;

/// What the sockets of each queue of a port have received for guests, until its links take it.
#[derive(Debug)]
pub(super) struct ForGuests(Vec<ArrayQueue<(Run, Frame)>>);

impl ForGuests {
    /// Nothing yet, for so many queues.
    pub fn new(queues: usize) -> Self {
        Self((0..queues).map(|_| ArrayQueue::new(AT_ONCE)).collect())
    }

    /// Takes a packet that a queue has received for the guest that has a run; gives it back if there are [`AT_ONCE`] already.
    pub fn push(&self, queue: usize, run: Run, frame: Frame) -> Result<(), Frame> {
        self.0[queue].push((run, frame)).map_err(|(_, frame)| frame)
    }

    /// Whether packets of a queue wait.
    pub fn waits(&self, queue: usize) -> bool {
        !self.0[queue].is_empty()
    }

    /// The next packet of a queue.
    pub fn pop(&self, queue: usize) -> Option<(Run, Frame)> {
        self.0[queue].pop()
    }
}
