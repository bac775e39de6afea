//! What other threads leave for the keeper: calls that the registry hands over, and what was heard.

use super::shared::Shared;
use super::talk::{Heard, Talk};
use crate::registry::{Call, TakeCalls};
use crate::sync::lock::lock;
use std::sync::{Arc, Mutex};

/// Calls that wait for the keeper, in all and of one process.
const CALLS_MAX: usize = 64;
const CALLS_OF_ONE: usize = 2;

/// What waits for the keeper.
pub struct Inbox {
    calls: Mutex<Vec<Call>>,
    heard: Mutex<Vec<(u64, Talk, Heard)>>,
    shared: Arc<Shared>,
}

impl Inbox {
    /// Nothing yet.
    pub fn new(shared: Arc<Shared>) -> Self {
        Self { calls: Mutex::default(), heard: Mutex::default(), shared }
    }

    /// Takes the calls of processes that may call now.
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

    /// Tells what was heard in the meeting with this number.
    pub fn tell(&self, number: u64, talk: Talk, heard: Heard) {
        lock(&self.heard).push((number, talk, heard));
        self.shared.keeper.signal();
    }

    /// Takes what was heard.
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
