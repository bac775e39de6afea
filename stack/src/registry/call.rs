//! Calls: connections on which one member requests a link from another one, or a process requests a member's statistics. The registry does
//! not know the protocols on them.
//!
//! The caller connects to the name of a run, and sends the request. The called process checks the caller, passes the connection to its
//! receiver of calls, and sends first: until then the connection carries only the request. (Before statistics, the registry sends the runs
//! of the member.)

use super::socket::Connection;
use crate::sync::lock::lock;
use core::fmt;
use std::sync::{Arc, Mutex};

/// A connection to another process of the host.
#[derive(Debug)]
pub struct Call {
    /// The connection.
    pub connection: Connection,
    /// The peer process, as the kernel reports it; 0 if it is not visible from this PID namespace.
    pub pid: u32,
    /// The user of that process, as the kernel says.
    pub uid: u32,
}

/// Receives the calls of other processes.
pub trait TakeCalls: Send + Sync {
    /// Takes a call, or returns it if it takes none from that process now. The registry's thread calls this, so it must not block.
    fn take(&self, call: Call) -> Option<Call>;
}

/// The receiver of calls in this process, if any.
#[derive(Clone, Default)]
pub struct Receiver(Arc<Mutex<Option<Arc<dyn TakeCalls>>>>);

impl Receiver {
    /// Sets the receiver; `None` for no receiver.
    pub fn set(&self, by: Option<Arc<dyn TakeCalls>>) {
        *lock(&self.0) = by;
    }

    /// Whether a receiver is set.
    pub fn is_set(&self) -> bool {
        lock(&self.0).is_some()
    }

    /// Passes a call to the receiver. Returns it if the receiver does not take it, or none is set.
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
