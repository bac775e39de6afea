//! The end of a process that closes nothing.

use std::time::{Duration, Instant};

use stack::device::Instant as DeviceTime;

use super::service::{Running, State};
use crate::context::Context;

/// How long it waits for a lock: the thread that has it may be this one, interrupted by a signal.
const LOCKED: Duration = Duration::from_millis(100);

impl Context {
    /// For a process that exits without closing the device: disconnects its connections, refuses requests that it has not
    /// decided on, gives up its own, and sends what was posted, as a kernel and a NIC would. Waits until each peer has answered
    /// that it knows of the end, and asks those again that have not: after 20 ms first, then less and less often, 15 times,
    /// which takes eleven seconds where a peer is silent; no longer than `at_most`, and no longer than the port has a link.
    /// Everything but the connections can be used as before, and the call can be repeated. Does nothing in a forked process,
    /// nor inside a turn.
    ///
    /// Returns how many connections there are whose peers have not answered, and may still do so.
    pub fn take_leave(&self, at_most: Duration) -> usize {
        self.tell_and_wait(at_most, State::take_leave)
    }

    /// As [`take_leave`](Self::take_leave), for a process that has closed everything and lives on: waits for the answers of peers whose
    /// connections it has ended, and leaves others alone.
    pub fn await_peers(&self, at_most: Duration) -> usize {
        self.tell_and_wait(at_most, State::hurry)
    }

    fn tell_and_wait(&self, at_most: Duration, tell: fn(&mut State, DeviceTime)) -> usize {
        if self.device().is_forked() {
            return 0;
        }
        let start = Instant::now();
        let mut asked = None;
        let look = || {
            let left = Running::running_of(self)
                .and_then(|running| running.map_or(Some(0), |running| running.tell_peers(tell)));
            asked = left.or(asked);
            let locked_out = asked.is_none() && start.elapsed() >= LOCKED.min(at_most);
            (left == Some(0) || locked_out || !self.device().link_up()).then_some(())
        };
        // Fails inside a turn, and where a shard has died: then nobody answers.
        let over = !matches!(self.device().wait(at_most, None, look), Ok(None));
        self.device().drain_tx(at_most.saturating_sub(start.elapsed()).min(LOCKED));
        if over { 0 } else { asked.unwrap_or(0) }
    }

    /// How many connections have been disconnected whose peers have not answered, and may still do so.
    pub fn silent_peers(&self) -> usize {
        if !self.device().link_up() {
            return 0;
        }
        // While a thread begins or ends connection management, that cannot be said: it is to be asked again.
        Running::running_of(self).map_or(1, |running| running.map_or(0, |running| running.dreqs()))
    }
}
