//! Shards that the program polls itself.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use stack::device::{Device, Turn};

use crate::context::Context;
use crate::error::VerbsError;

impl Context {
    /// The handle with which a program polls a shard in its own loop: meant for [`Drive::Embedded`](crate::Drive::Embedded),
    /// allowed in every drive.
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
    /// One turn: receives frames, works on queue pairs whose doorbells rang or timers expired, sends frames. Never waits.
    /// `None` when another thread drives the shard at this moment or waits to make a control call; and where no turn can be
    /// made here, which [`try_poll_once`](Self::try_poll_once) distinguishes.
    ///
    /// # Panics
    /// If the port or a `tracing` subscriber does: the panic passes through and ends the shard. Its queue pairs do nothing
    /// any more, and calls that need it fail with `EIO`.
    #[inline]
    pub fn poll_once(&mut self) -> Option<Turn> {
        self.device.turn(self.shard)
    }
    /// As [`poll_once`](Self::poll_once), with an error where no turn can be made.
    ///
    /// # Errors
    /// `EDEADLK` from inside a turn, in which a port or a `tracing` subscriber is called; `EIO` where the shard died of a
    /// panic.
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
    /// Time until the shard has something to do even if no frame or request arrives; `None`: nothing is due, or another
    /// thread is driving the shard.
    pub fn next_deadline(&self) -> Option<Duration> {
        self.device.next_deadline(self.shard)
    }
    /// Sleeps until the shard may have something to do: frames arrive, something is posted by another thread, a time is due; or until
    /// one of `fds`, three at most, is readable, a signal handler ran, or `at_most` is over. At the latest after 10 ms, and after 1 ms
    /// where the port cannot signal. Returns at once where there is something to do already.
    ///
    /// What the loop waits for besides has to be looked for after the descriptor for it was armed, and before this call.
    pub fn sleep(&self, fds: &[BorrowedFd<'_>], at_most: Duration) {
        self.device.sleep(self.shard, fds, at_most);
    }
    /// The shard that it polls.
    pub fn shard(&self) -> usize {
        self.shard
    }
}
