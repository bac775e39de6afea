//! The end of a process that closes nothing.

use std::time::{Duration, Instant};

use super::service::Running;
use crate::context::Context;

/// How long it waits for a lock: the thread that has it may be this one, interrupted by a signal.
const LOCKED: Duration = Duration::from_millis(100);
/// Between two looks whether peers have answered.
const LOOK: Duration = Duration::from_millis(5);

impl Context {
    /// For a process that exits without closing the device: disconnects its connections, refuses requests that it has not
    /// decided on, gives up its own, and sends what was posted, as a kernel and a NIC would. Waits until each peer has answered
    /// that it knows of the end, and asks those again that have not: after 20 ms first, then less and less often, 15 times,
    /// which takes eleven seconds where a peer is silent; no longer than `at_most`, and no longer than the port has a link.
    /// Everything but the connections can be used as before, and the call can be repeated. Does nothing in a forked process;
    /// inside a turn it drives no shard, so what it posts leaves with later turns.
    ///
    /// Returns how many connections there are whose peers have not answered, and may still do so.
    pub fn take_leave(&self, at_most: Duration) -> usize {
        self.ask(at_most, Running::take_leave)
    }

    /// As [`take_leave`](Self::take_leave), for a process that has closed everything and lives on: waits for the answers of peers whose
    /// connections it has ended, and leaves others alone.
    pub fn await_peers(&self, at_most: Duration) -> usize {
        self.ask(at_most, Running::hurry)
    }

    fn ask(&self, at_most: Duration, ask: impl Fn(&Running) -> Option<usize>) -> usize {
        if self.device().is_forked() {
            return 0;
        }
        let start = Instant::now();
        let mut asked = None;
        let mut look = || {
            let left =
                Running::there_is(self).and_then(|running| running.map_or(Some(0), |running| ask(&running)));
            asked = left.or(asked);
            let locked_out = asked.is_none() && start.elapsed() >= LOCKED.min(at_most);
            (left == Some(0) || locked_out || !self.device().link_up()).then_some(())
        };
        let mut over = look().is_some();
        while !over && start.elapsed() < at_most {
            let slice = LOOK.min(at_most.saturating_sub(start.elapsed()));
            // Fails inside a turn, and where a shard has died: then nobody answers.
            over = !matches!(self.device().wait(slice, None, &mut look), Ok(None));
        }
        self.device().drain_tx(at_most.saturating_sub(start.elapsed()).min(LOCKED));
        if over { 0 } else { asked.unwrap_or(0) }
    }

    /// How many connections have been disconnected whose peers have not answered, and may still do so.
    pub fn silent_peers(&self) -> usize {
        if !self.device().link_up() {
            return 0;
        }
        // Where that cannot be said now, it is to be asked again.
        Running::there_is(self).map_or(1, |running| running.map_or(0, |running| running.dreqs()))
    }
}
