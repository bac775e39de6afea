//! The end of a process that closes nothing.

use std::time::{Duration, Instant};

use super::service::Service;
use crate::context::Context;

impl Context {
    /// Before a process ends that has not closed the device: tells the peers of connections that they end, refuses requests that
    /// were not decided, gives up its own, and sends what was posted, as a kernel and a NIC do after the end of a process. Waits
    /// for no answer, and for `at_most` at all. Everything but the connections can be used as before. Does nothing in a forked
    /// process, and from inside a turn.
    pub fn take_leave(&self, at_most: Duration) {
        if self.device().is_forked() {
            return;
        }
        let start = Instant::now();
        while !Service::there_is(self).is_none_or(|service| service.take_leave()) {
            if start.elapsed() >= at_most {
                break;
            }
            std::thread::yield_now();
        }
        self.device().drain_tx(at_most.saturating_sub(start.elapsed()));
    }
}
