//! The list of receive completions that a queue pair has deferred.

use std::collections::VecDeque;

use crate::id::Psn;
use crate::port::Route;
use crate::proto::wqe::Cqe;
use crate::shard::cq::LaneId;

/// When answers have gone: all that waited for this route when it was made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::shard) struct Mark {
    pub route: Route,
    /// Answers that have gone by this route then, ever.
    pub gone: u64,
}

/// A receive completion that is deferred.
#[derive(Clone, Copy, Debug)]
pub(in crate::shard) struct Deferred {
    pub lane: LaneId,
    /// An answer with this number, or a later one, acknowledges its message.
    pub until: Psn,
    pub cqe: Cqe,
    /// That answer is built, and has gone when this says so.
    pub built: Option<Mark>,
}

/// The receive completions of a queue pair that wait, oldest first: some whose answers are built, then the others. As many as it has
/// receive requests at most.
#[derive(Debug, Default)]
pub(in crate::shard) struct DeferredReceives {
    all: VecDeque<Deferred>,
    /// So many of the oldest have answers that are built.
    built: usize,
}

impl DeferredReceives {
    /// Appends the newest, whose answer is not known to be built.
    pub fn push(&mut self, lane: LaneId, until: Psn, cqe: Cqe) {
        self.all.push_back(Deferred { lane, until, cqe, built: None });
    }
    /// The answers of those that are `due` are built now, and have gone when the mark says so. Each is looked at until it is built.
    pub fn note_built(&mut self, due: impl Fn(&Deferred) -> bool, mark: impl FnOnce() -> Mark) {
        let n = self.all.range(self.built..).take_while(|deferred| due(deferred)).count();
        if n > 0 {
            let mark = mark();
            self.all.range_mut(self.built..self.built + n).for_each(|deferred| deferred.built = Some(mark));
            self.built += n;
        }
    }
    /// Takes the oldest, if it is due.
    pub fn pop_if(&mut self, due: impl FnOnce(&Deferred) -> bool) -> Option<Deferred> {
        let oldest = if self.all.front().is_some_and(due) { self.all.pop_front() } else { None };
        self.built -= usize::from(oldest.is_some_and(|oldest| oldest.built.is_some()));
        oldest
    }
    /// Whether none waits.
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }
    /// How many wait. They belong to the receive requests that were taken last, apart from one that is not complete.
    pub fn len(&self) -> u32 {
        self.all.len() as u32
    }
    /// The completion queue of a lane is being destroyed, with what was meant for it.
    pub fn forget(&mut self, lane: LaneId) {
        self.all.retain(|deferred| deferred.lane != lane);
        self.built = self.all.iter().take_while(|deferred| deferred.built.is_some()).count();
    }
}
