//! Calls: connections by which one member wants a link to another one, or a process wants to see a member's statistics. What is said on them
//! is not the registry's business.
//!
//! Who calls connects to the name of a run, and sends the request. Who is called looks who that is, hands the connection to whoever
//! takes calls in its process, and speaks first: so nothing but the request is in it until then. (In front of statistics the registry
//! says whose they are.)

use super::socket::Connection;
use crate::sync::lock::lock;
use core::fmt;
use std::sync::{Arc, Mutex};

/// A connection to another process of this user.
#[derive(Debug)]
pub struct Call {
    /// The connection.
    pub connection: Connection,
    /// The process at its other end, as the kernel says; 0: it is not visible from here.
    pub pid: u32,
}

/// Takes the calls of others.
pub trait TakeCalls: Send + Sync {
    /// Takes one; gives it back where it takes none from that process now. It is called by the registry's thread, and must not wait.
    fn take(&self, call: Call) -> Option<Call>;
}

/// Who takes calls in this process, if somebody does.
#[derive(Clone, Default)]
pub struct Receiver(Arc<Mutex<Option<Arc<dyn TakeCalls>>>>);

impl Receiver {
    /// Has somebody take them from now on, or nobody.
    pub fn set(&self, by: Option<Arc<dyn TakeCalls>>) {
        *lock(&self.0) = by;
    }

    /// Whether somebody takes them.
    pub fn is_set(&self) -> bool {
        lock(&self.0).is_some()
    }

    /// Hands a call over. Gives it back where nobody takes it.
    pub fn hand_over(&self, call: Call) -> Option<Call> {
        let by = lock(&self.0).clone();
        match by {
            Some(by) => by.take(call),
            None => Some(call),
        }
    }
}

impl fmt::Debug for Receiver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Receiver").field(&self.is_set()).finish()
    }
}
