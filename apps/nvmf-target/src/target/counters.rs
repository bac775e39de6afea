//! What a core did and has in use. Any thread may read its counters.

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
    /// Connect commands that waited until the storage had done all commands of an earlier connection of the same host.
    connect_waits;
    /// Commands that waited for a buffer.
    buffer_waits;
    /// Times that the core slept because there was nothing to do.
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
    /// Adds `n`. With one writer that takes no atomic read-modify-write.
    #[inline]
    pub(super) fn add(&self, n: u64) {
        self.0.store(self.0.load(Ordering::Relaxed).wrapping_add(n), Ordering::Relaxed);
    }
}

/// What a core has in use.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Usage {
    /// Connections, with those that are ending.
    pub connections: usize,
    /// Commands under way that wait for something: a buffer, bytes of the host, the storage, or the end of the response.
    pub commands: usize,
    /// Buffers of the pool.
    pub buffers: usize,
    /// Receives whose capsule a command still needs.
    pub capsules: usize,
    /// Receives that are posted and wait for a capsule.
    pub receives: usize,
}
