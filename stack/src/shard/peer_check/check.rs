//! A check of a peer: how far it is, and what who asked is told.

use core::sync::atomic::{AtomicU8, Ordering};
use std::sync::Arc;

use crate::proto::requester::CheckProgress;

/// What a check has found out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
#[non_exhaustive]
pub enum PeerState {
    /// The check is under way.
    Asked,
    /// The peer answered: it has its queue pair.
    Alive,
    /// The peer answered nothing, as often as a request would have been sent.
    Silent,
    /// There is nobody to ask: the queue pair is no reliable connection (RC), or is not in RTS or SQD (any more).
    NotConnected,
}

/// What a check has found out, for who asked.
#[derive(Debug)]
pub struct CheckOutcome(AtomicU8);

impl CheckOutcome {
    /// What is known from the start.
    pub(in crate::shard) fn new(state: PeerState) -> Arc<Self> {
        Arc::new(Self(AtomicU8::new(state as u8)))
    }
    /// What is known now. It changes once, from [`PeerState::Asked`].
    pub fn state(&self) -> PeerState {
        use PeerState::{Alive, Asked, NotConnected, Silent};
        let state = self.0.load(Ordering::Acquire);
        [Asked, Alive, Silent].into_iter().find(|known| *known as u8 == state).unwrap_or(NotConnected)
    }
}

/// A check of a queue pair's peer.
#[derive(Debug)]
pub(in crate::shard) struct Check {
    pub check: CheckProgress,
    outcome: Arc<CheckOutcome>,
}

impl Check {
    /// One that begins.
    pub fn new(check: CheckProgress) -> Self {
        Self { check, outcome: CheckOutcome::new(PeerState::Asked) }
    }
    /// For who asks.
    pub fn outcome(&self) -> Arc<CheckOutcome> {
        self.outcome.clone()
    }
    /// It ends.
    pub fn end(self, state: PeerState) {
        self.outcome.0.store(state as u8, Ordering::Release);
    }
}

impl Drop for Check {
    /// It goes with its queue pair, unless it has ended before.
    fn drop(&mut self) {
        if self.outcome.state() == PeerState::Asked {
            self.outcome.0.store(PeerState::NotConnected as u8, Ordering::Release);
        }
    }
}
