//! The counters of a core, which any thread may read, and the resources that it has in use.

use std::sync::atomic::{AtomicU64, Ordering};

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident;)*) => {
        /// The counters of a core since its start.
        #[derive(Debug, Default)]
        pub struct Counters { $($(#[$doc])* pub $name: Counter,)* }

        impl Counters {
            /// The name and the value of each counter.
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
    /// Command capsules that were received.
    capsules;
    /// Responses that were sent.
    responses;
    /// Connect commands that waited until the storage had finished all commands of an earlier connection of the same host.
    connect_waits;
    /// Commands that waited for a buffer.
    buffer_waits;
    /// How many times the core slept because there was nothing to do.
    sleeps;
    /// Work requests that waited for room in a send queue, or until the host had acknowledged earlier responses.
    send_waits;
}

/// A counter with one writing thread.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// The current value.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
    /// Adds `n`. As there is only one writer, no atomic read-modify-write is needed.
    #[inline]
    pub(super) fn add(&self, n: u64) {
        self.0.store(self.0.load(Ordering::Relaxed).wrapping_add(n), Ordering::Relaxed);
    }
}

/// The resources that a core has in use.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Usage {
    /// Connections, including those that are ending.
    pub connections: usize,
    /// Commands that wait: for a buffer, for data of the host, for the storage, or for the completion of their response.
    pub commands: usize,
    /// Data buffers in use.
    pub buffers: usize,
    /// Receive buffers whose capsule a command still needs.
    pub capsules: usize,
    /// Receives that are posted.
    pub receives: usize,
}
