//! The end of a process that closes nothing.

use std::time::{Duration, Instant};

use super::service::Service;
use crate::context::Context;

impl Context {
    /// For a process that exits without closing the device: disconnects its connections, refuses requests that it has not
    /// decided on, gives up its own, and sends what was posted, as a kernel and a NIC would. Waits for no answer, and no longer
    /// than `at_most`. Everything but the connections can be used as before. Does nothing in a forked process; inside a turn it
    /// drives no shard, so what it posts leaves with later turns.
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
