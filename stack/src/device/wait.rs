//! Turns, sleeps and waits of a program's threads.

use core::time::Duration;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use super::error::DeviceError;
use super::handle::Device;
use super::inside_turn::not_inside_turn;
use super::sleep::SLEEP;
use crate::config::HELPER_SLEEP;
use crate::shard::Turn;
use crate::sync::eventfd::EventFd;

/// The longest time until a waiting call notices that a shard died.
const DEATH_NOTICE: Duration = Duration::from_millis(100);

impl Device {
    /// Makes one turn of a shard. `None` if another thread has the shard, or waits to make a control call, or if the shard cannot be turned
    /// at all: see [`may_turn`](Self::may_turn).
    ///
    /// # Panics
    /// If the device has no such shard; or if the port or a `tracing` subscriber panics, which ends the shard.
    #[inline]
    pub fn turn(&self, shard: usize) -> Option<Turn> {
        self.core().turn(shard)
    }
    /// Sleeps, on the thread that alone drives this shard, until the shard may have work, one of `fds`
    /// ([`OTHERS`](crate::sync::sleeper::OTHERS) at most) is readable, a signal handler ran, or `at_most` has passed; 10 ms at most.
    /// Returns at once if there is work already.
    pub fn sleep(&self, shard: usize, fds: &[BorrowedFd<'_>], at_most: Duration) {
        self.core().sleep_for(shard, fds, at_most.min(SLEEP), HELPER_SLEEP);
    }
    /// Whether this thread may turn a shard at all.
    ///
    /// # Errors
    /// [`DeviceError::InsideTurn`], [`DeviceError::ShardDied`].
    ///
    /// # Panics
    /// If the device has no such shard.
    pub fn may_turn(&self, shard: usize) -> Result<(), DeviceError> {
        not_inside_turn()?;
        if self.core().cells[shard].is_dead() { Err(DeviceError::ShardDied { shard }) } else { Ok(()) }
    }
    /// Time until the shard has work without new input; `None` if nothing is due, or a thread is turning it.
    pub fn next_deadline(&self, shard: usize) -> Option<Duration> {
        let due = self.core().service.wait(self.now());
        let deadline = self.core().peek(shard, |s| s.next_deadline())?;
        let deadline = deadline.map(|at| Duration::from_nanos(at.nanos_since(self.now())));
        deadline.into_iter().chain(due).min()
    }

    /// Calls `look` until it returns a result, for at most `timeout`. Meanwhile turns shards that no other thread holds, so that the result
    /// arrives whichever thread waits. `fd` becomes readable when there is a result.
    ///
    /// # Errors
    /// [`DeviceError::InsideTurn`], [`DeviceError::Forked`]; [`DeviceError::ShardDied`] if there is no result, and one may never come.
    pub fn wait<R>(
        &self,
        timeout: Duration,
        fd: Option<&EventFd>,
        mut look: impl FnMut() -> Option<R>,
    ) -> Result<Option<R>, DeviceError> {
        not_inside_turn()?;
        self.core().not_forked()?;
        let start = std::time::Instant::now();
        let mut idle: u32 = 0;
        loop {
            // Checked before the call, so that results from before the death are found.
            let alive = self.check_alive();
            if let Some(found) = look() {
                return Ok(Some(found));
            }
            alive?;
            let left = timeout.saturating_sub(start.elapsed());
            if left.is_zero() {
                return Ok(None);
            }
            if !self.core().dedicated && self.core().turn_all() {
                idle = 0;
                continue;
            }
            // Short sleeps first, for results that follow at once.
            idle = (idle + 1).min(20);
            let nap = Duration::from_micros(u64::from(idle) * 50).min(left);
            match fd {
                // This thread cannot make the result arrive sooner, but it has to notice the death of a shard.
                Some(fd) if self.core().dedicated => fd.wait(left.min(DEATH_NOTICE)),
                None if self.core().dedicated => std::thread::sleep(nap),
                Some(_) => self.core().sleep(u32::MAX, 0, fd, left.min(SLEEP), nap),
                // Another thread may produce the result without waking this one.
                None => self.core().sleep(u32::MAX, 0, None, nap, nap),
            }
        }
    }

    /// Destroys an object. If its events are not acknowledged, retries when `unacked` returns 0, for at most `timeout`.
    pub(super) fn destroy_wait<T>(
        &self,
        timeout: Duration,
        object: Arc<T>,
        destroy: impl Fn(Arc<T>) -> Result<(), (DeviceError, Arc<T>)>,
        unacked: impl Fn() -> u32,
    ) -> Result<(), (DeviceError, Arc<T>)> {
        let start = std::time::Instant::now();
        let mut object = object;
        loop {
            match destroy(object) {
                Err((e @ DeviceError::Unacked { .. }, back)) => {
                    object = back;
                    let left = timeout.saturating_sub(start.elapsed());
                    match self.wait(left, None, || (unacked() == 0).then_some(())) {
                        Ok(Some(())) => {}
                        Ok(None) => return Err((e, object)),
                        Err(e) => return Err((e, object)),
                    }
                }
                other => return other,
            }
        }
    }
}
