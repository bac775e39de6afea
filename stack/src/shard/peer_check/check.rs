//! The progress of a check of a peer, and its outcome for the callers.

use core::sync::atomic::{AtomicU8, Ordering};
use std::sync::Arc;

use crate::proto::requester::CheckProgress;

/// The outcome of a check.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
#[non_exhaustive]
pub enum PeerState {
    /// The check is in progress.
    Asked,
    /// The peer answered: its queue pair exists.
    Alive,
    /// The peer answered none of the packets; as many were sent as transmissions of a request.
    Silent,
    /// There is no peer to check: the queue pair is no reliable connection (RC), or is not, or no longer, in RTS or SQD.
    NotConnected,
}

/// The outcome of a check, for its callers.
#[derive(Debug)]
pub struct CheckOutcome(AtomicU8);

impl CheckOutcome {
    /// An outcome with its initial state.
    pub(in crate::shard) fn new(state: PeerState) -> Arc<Self> {
        Arc::new(Self(AtomicU8::new(state as u8)))
    }
    /// The current state. It changes once, from [`PeerState::Asked`].
    pub fn state(&self) -> PeerState {
        use PeerState::{Alive, Asked, NotConnected, Silent};
        let state = self.0.load(Ordering::Acquire);
        [Asked, Alive, Silent].into_iter().find(|known| *known as u8 == state).unwrap_or(NotConnected)
    }
}

/// A check of a queue pair's peer, in progress.
#[derive(Debug)]
pub(in crate::shard) struct Check {
    pub check: CheckProgress,
    outcome: Arc<CheckOutcome>,
}

impl Check {
    /// Begins a check.
    pub fn new(check: CheckProgress) -> Self {
        Self { check, outcome: CheckOutcome::new(PeerState::Asked) }
    }
    /// The outcome, for a caller.
    pub fn outcome(&self) -> Arc<CheckOutcome> {
        self.outcome.clone()
    }
    /// Ends the check with this outcome.
    pub fn end(self, state: PeerState) {
        self.outcome.0.store(state as u8, Ordering::Release);
    }
}

impl Drop for Check {
    /// Ends the check with its queue pair, unless it has already ended.
    fn drop(&mut self) {
        if self.outcome.state() == PeerState::Asked {
            self.outcome.0.store(PeerState::NotConnected as u8, Ordering::Release);
        }
    }
}
