//! The list of receive completions that a queue pair has deferred.

use std::collections::VecDeque;

use crate::id::Psn;
use crate::proto::wqe::Cqe;
use crate::shard::cq::LaneId;

/// A receive completion that is deferred.
#[derive(Clone, Copy, Debug)]
pub(in crate::shard) struct Deferred {
    pub lane: LaneId,
    /// An answer with this number, or a later one, acknowledges its message.
    pub until: Psn,
    pub cqe: Cqe,
}

/// The receive completions of a queue pair that wait, oldest first. As many as it has receive requests at most.
#[derive(Debug, Default)]
pub(in crate::shard) struct DeferredReceives(VecDeque<Deferred>);

impl DeferredReceives {
    /// Appends the newest.
    pub fn push(&mut self, deferred: Deferred) {
        self.0.push_back(deferred);
    }
    /// The oldest `n` become the newest.
    pub fn put_behind(&mut self, n: u32) {
        self.0.rotate_left(n as usize);
    }
    /// Takes the oldest, if it is due.
    pub fn pop_if(&mut self, due: impl FnOnce(&Deferred) -> bool) -> Option<Deferred> {
        if self.0.front().is_some_and(due) { self.0.pop_front() } else { None }
    }
    /// Whether none waits.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
    /// How many wait. They belong to the receive requests that were taken last, apart from one that is not complete.
    pub fn len(&self) -> u32 {
        self.0.len() as u32
    }
    /// The completion queue of a lane is being destroyed, with what was meant for it.
    pub fn forget(&mut self, lane: LaneId) {
        self.0.retain(|deferred| deferred.lane != lane);
    }
}
