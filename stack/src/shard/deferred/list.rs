//! The list of deferred receive completions of a queue pair.

use std::collections::VecDeque;

use crate::id::Psn;
use crate::port::Route;
use crate::proto::wqe::Cqe;
use crate::shard::cq::LaneId;

/// A point in a route's stream of answers: all answers that waited for the route when the mark was made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::shard) struct Mark {
    pub route: Route,
    /// The number of answers, counted from the start, that have left by this route once those have left.
    pub departed: u64,
}

#[derive(Clone, Copy, Debug)]
pub(in crate::shard) struct Deferred {
    pub lane: LaneId,
    /// An answer with this sequence number, or a later one, acknowledges the message.
    pub until: Psn,
    pub cqe: Cqe,
    /// Set once that answer is built: the answer has left when the route reaches this mark.
    pub built: Option<Mark>,
}

/// The deferred receive completions of a queue pair, oldest first: those whose answers are built, then the others. At most as many as
/// the queue pair has receive requests.
#[derive(Debug, Default)]
pub(in crate::shard) struct DeferredReceives {
    all: VecDeque<Deferred>,
    /// Number of the oldest completions whose answers are built.
    built: usize,
}

impl DeferredReceives {
    /// Appends the newest completion, whose answer is not known to be built.
    pub fn push(&mut self, lane: LaneId, until: Psn, cqe: Cqe) {
        self.all.push_back(Deferred { lane, until, cqe, built: None });
    }
    /// Records that the answers of the `due` completions are built now, and will have left at `mark`. Checks each completion until its
    /// answer is built.
    pub fn note_built(&mut self, due: impl Fn(&Deferred) -> bool, mark: impl FnOnce() -> Mark) {
        let n = self.all.range(self.built..).take_while(|deferred| due(deferred)).count();
        if n > 0 {
            let mark = mark();
            self.all.range_mut(self.built..self.built + n).for_each(|deferred| deferred.built = Some(mark));
            self.built += n;
        }
    }
    /// Takes the oldest completion, if it is due.
    pub fn pop_if(&mut self, due: impl FnOnce(&Deferred) -> bool) -> Option<Deferred> {
        let oldest = if self.all.front().is_some_and(due) { self.all.pop_front() } else { None };
        self.built -= usize::from(oldest.is_some_and(|oldest| oldest.built.is_some()));
        oldest
    }
    /// Whether no completion waits.
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }
    /// Number of deferred completions. They belong to the receive requests taken last, except for a request whose message is incomplete.
    pub fn len(&self) -> u32 {
        self.all.len() as u32
    }
    /// Drops the completions of a lane whose completion queue is being destroyed.
    pub fn forget(&mut self, lane: LaneId) {
        self.all.retain(|deferred| deferred.lane != lane);
        self.built = self.all.iter().take_while(|deferred| deferred.built.is_some()).count();
    }
}
