//! What a core did. Read by any thread.

use std::sync::atomic::{AtomicU64, Ordering};

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident;)*) => {
        /// What a core did since it started.
        #[derive(Debug, Default)]
        pub struct Counters { $($(#[$doc])* pub $name: Counter,)* }

        impl Counters {
            /// Name and value of each.
            pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
                [$((stringify!($name), self.$name.get())),*].into_iter()
            }
        }
    };
}

counters! {
    /// Connections that were accepted.
    accepted;
    /// Connection requests that were refused.
    refused;
    /// Connections that have ended.
    ended;
    /// Command capsules.
    capsules;
    /// Responses.
    responses;
    /// Connects that waited until the storage had done with what their host sent before.
    connect_waits;
    /// Commands that waited for a buffer.
    buffer_waits;
    /// Times that the core slept, for nothing was to be done.
    sleeps;
    /// Work requests that waited for room in a send queue, or for the host to take responses.
    send_waits;
}

/// A number that one thread adds to.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Its value.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
    /// One writer: no locked addition is needed.
    #[inline]
    pub(super) fn add(&self, n: u64) {
        self.0.store(self.0.load(Ordering::Relaxed).wrapping_add(n), Ordering::Relaxed);
    }
}

/// What a core has in use.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Usage {
    /// Connections, those that end included.
    pub connections: usize,
    /// Commands that wait for something.
    pub commands: usize,
    /// Buffers.
    pub buffers: usize,
    /// Capsules whose data are in use.
    pub capsules: usize,
    /// Receives that are posted.
    pub receives: usize,
}
