//! Queues from other threads to the keeper: calls that the registry accepted, and messages that were received.

use super::shared::Shared;
use super::talk::{Heard, Talk};
use crate::registry::{Call, TakeCalls};
use crate::sync::lock::lock;
use std::sync::{Arc, Mutex};

/// Most calls that wait for the keeper, in all and from one process.
const CALLS_MAX: usize = 64;
const CALLS_OF_ONE: usize = 2;

/// Calls and messages that wait for the keeper.
pub struct Inbox {
    calls: Mutex<Vec<Call>>,
    heard: Mutex<Vec<(u64, Talk, Heard)>>,
    shared: Arc<Shared>,
}

impl Inbox {
    /// An empty inbox.
    pub fn new(shared: Arc<Shared>) -> Self {
        Self { calls: Mutex::default(), heard: Mutex::default(), shared }
    }

    /// Takes the calls of those processes for which `may` returns true.
    pub fn take_calls(&self, may: impl Fn(u32) -> bool) -> Vec<Call> {
        let mut calls = lock(&self.calls);
        let all = core::mem::take(&mut *calls);
        let (now, later) = all.into_iter().partition(|call| may(call.pid));
        *calls = later;
        now
    }

    /// Whether calls wait.
    pub fn has_calls(&self) -> bool {
        !lock(&self.calls).is_empty()
    }

    /// Queues a message that was received in the handshake with this number.
    pub fn tell(&self, number: u64, talk: Talk, heard: Heard) {
        lock(&self.heard).push((number, talk, heard));
        self.shared.keeper.signal();
    }

    /// Takes the messages that were received.
    pub fn take_heard(&self) -> Vec<(u64, Talk, Heard)> {
        core::mem::take(&mut *lock(&self.heard))
    }
}

impl TakeCalls for Inbox {
    fn take(&self, call: Call) -> Option<Call> {
        let mut calls = lock(&self.calls);
        let same = calls.iter().filter(|other| other.pid == call.pid).count();
        if calls.len() >= CALLS_MAX || same >= CALLS_OF_ONE {
            return Some(call);
        }
        calls.push(call);
        drop(calls);
        self.shared.keeper.signal();
        None
    }
}
