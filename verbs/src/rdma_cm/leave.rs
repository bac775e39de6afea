//! Ending connections when a process exits without closing them.

use std::time::{Duration, Instant};

use stack::device::Instant as DeviceTime;

use super::service::{Running, State};
use crate::context::Context;

/// How long to wait for a lock, which this thread may hold itself if a signal has interrupted it.
const LOCKED: Duration = Duration::from_millis(100);

impl Context {
    /// For a process that exits without closing the device. Disconnects its connections, refuses the requests that it has not answered,
    /// gives up its own requests, and sends what was posted, as a kernel and a NIC would. Waits until each peer has acknowledged the end,
    /// and repeats the message to those that have not: first after 20 ms, then at growing intervals, 15 times, which takes eleven seconds
    /// if a peer is silent. Does not wait longer than `at_most`, and only while the port has a link. Everything except the connections can
    /// still be used, and the call can be repeated. Does nothing in a forked process or inside a turn.
    ///
    /// Returns how many connections have peers that have not answered and still may.
    pub fn take_leave(&self, at_most: Duration) -> usize {
        self.tell_and_wait(at_most, State::take_leave)
    }

    /// As [`take_leave`](Self::take_leave), for a process that has closed everything and continues: waits for the answers of peers whose
    /// connections it has ended, and leaves other connections alone.
    pub fn await_peers(&self, at_most: Duration) -> usize {
        self.tell_and_wait(at_most, State::hurry)
    }

    /// Calls `tell` until all peers have answered, for at most `at_most`. Returns how many peers have not answered and still may.
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
        // The wait fails inside a turn and if a shard has died. In both cases no answer can arrive.
        let over = !matches!(self.device().wait(at_most, None, look), Ok(None));
        self.device().drain_tx(at_most.saturating_sub(start.elapsed()).min(LOCKED));
        if over { 0 } else { asked.unwrap_or(0) }
    }

    /// How many disconnected connections have peers that have not answered and still may.
    pub fn silent_peers(&self) -> usize {
        if !self.device().link_up() {
            return 0;
        }
        // While a thread starts or ends connection management, the number is unknown: return 1, so that the caller asks again.
        Running::running_of(self).map_or(1, |running| running.map_or(0, |running| running.dreqs()))
    }
}
