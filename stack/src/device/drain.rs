//! Draining: waits until every request posted to a queue pair has its completion in the completion queue.

use core::time::Duration;

use super::error::DeviceError;
use super::qp::QpCore;
use crate::shard::{DrainKind, DrainMark};

impl QpCore {
    /// Starts a drain: moves the queue pair to ERR (SQD for [`DrainKind::Sqd`]) and marks the ends of its queues.
    ///
    /// # Errors
    /// [`DeviceError::Modify`] if SQD cannot be entered, [`DeviceError::InsideTurn`].
    pub fn begin_drain(&self, kind: DrainKind) -> Result<DrainMark, DeviceError> {
        let core = self.device().core();
        Ok(core.control(self.shard(), |s, now| s.begin_drain(now, self.slot(), kind))??)
    }

    /// Whether the drain is complete. Turns no shard: the caller has to.
    ///
    /// # Errors
    /// [`DeviceError::InsideTurn`].
    pub fn drained(&self, mark: &mut DrainMark) -> Result<bool, DeviceError> {
        self.device().core().control(self.shard(), |s, now| s.drained(now, self.slot(), mark))
    }

    /// Waits for the end of a drain; meanwhile turns shards that no other thread holds.
    ///
    /// # Errors
    /// [`DeviceError::TimedOut`] after `timeout`: the drain can be waited for again. [`DeviceError::InsideTurn`],
    /// [`DeviceError::ShardDied`].
    pub fn wait_drained(&self, mark: &mut DrainMark, timeout: Duration) -> Result<(), DeviceError> {
        let start = std::time::Instant::now();
        let mut idle: u32 = 0;
        loop {
            if self.drained(mark)? {
                return Ok(());
            }
            let waited = start.elapsed();
            if waited >= timeout {
                return Err(DeviceError::TimedOut { what: "drain", after: timeout });
            }
            if self.device().core().turn_all() {
                idle = 0;
                continue;
            }
            // Most drains end with the turn that was just made; others wait for a peer.
            if idle > 0 {
                std::thread::sleep(Duration::from_micros(u64::from(idle) * 50).min(timeout - waited));
            }
            idle = (idle + 1).min(20);
        }
    }
}
