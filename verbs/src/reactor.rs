//! Polling shards in the program's own loop.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use stack::device::{Device, Turn};

use crate::context::Context;
use crate::error::VerbsError;

impl Context {
    /// Returns a handle that polls a shard in the program's own loop. Meant for [`Drive::Embedded`](crate::Drive::Embedded); allowed with
    /// every [`Drive`](crate::Drive).
    ///
    /// # Errors
    /// [`VerbsError::NoSuchIndex`].
    pub fn reactor(&self, shard: usize) -> Result<Reactor, VerbsError> {
        self.check_shard(shard)?;
        Ok(Reactor { device: self.device().clone(), shard })
    }
}

/// Polls one shard of a device in the program's own loop.
#[derive(Debug)]
pub struct Reactor {
    device: Arc<Device>,
    shard: usize,
}

impl Reactor {
    /// Makes one turn: receives frames, works on queue pairs whose doorbells rang or timers expired, and sends frames. Never waits. Returns
    /// `None` if another thread drives the shard now or waits to make a control call, or if no turn can be made here;
    /// [`try_poll_once`](Self::try_poll_once) distinguishes the two.
    ///
    /// # Panics
    /// If the port or a `tracing` subscriber panics. The panic propagates and ends the shard: its queue pairs stop, and calls that need the
    /// shard fail with `EIO`.
    #[inline]
    pub fn poll_once(&mut self) -> Option<Turn> {
        self.device.turn(self.shard)
    }
    /// As [`poll_once`](Self::poll_once), but returns an error if no turn can be made here.
    ///
    /// # Errors
    /// `EDEADLK` from inside a turn, that is from a port or a `tracing` subscriber; `EIO` if the shard died of a panic.
    ///
    /// # Panics
    /// As `poll_once`.
    #[inline]
    pub fn try_poll_once(&mut self) -> Result<Option<Turn>, VerbsError> {
        match self.device.turn(self.shard) {
            Some(turn) => Ok(Some(turn)),
            None => Ok(self.device.may_turn(self.shard).map(|()| None)?),
        }
    }
    /// The time until the shard has something to do even if no frame or request arrives. `None` if nothing is due or another thread drives
    /// the shard.
    pub fn next_deadline(&self) -> Option<Duration> {
        self.device.next_deadline(self.shard)
    }
    /// Sleeps until the shard may have something to do (frames arrive, another thread posts something, a timer expires), one of `fds` (at
    /// most three) is readable, a signal handler has run, or `at_most` has passed. Returns after 10 ms at the latest, and after 1 ms if the
    /// port cannot signal. Returns at once if there is something to do already.
    ///
    /// To wait for something else as well, arm the descriptor for it, then check whether it has happened already, and then call this.
    pub fn sleep(&self, fds: &[BorrowedFd<'_>], at_most: Duration) {
        self.device.sleep(self.shard, fds, at_most);
    }
    /// The index of the shard that it polls.
    pub fn shard(&self) -> usize {
        self.shard
    }
}
