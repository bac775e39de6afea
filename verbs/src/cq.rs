//! Completion queues.

use std::sync::Arc;

use stack::device::{CqCore, CqTap};

use crate::error::VerbsError;
use crate::wc::Wc;

/// A completion queue (`struct ibv_cq`).
///
/// With [`Drive::Caller`](crate::Drive::Caller), a poll that finds nothing turns the shards that feed the queue and
/// looks again: a program that polls needs no other thread.
#[derive(Debug)]
#[doc(alias = "ibv_cq")]
pub struct Cq {
    core: Arc<CqCore>,
}

impl Cq {
    pub(crate) fn new(core: Arc<CqCore>) -> Self {
        Self { core }
    }
    pub(crate) fn core(&self) -> &Arc<CqCore> {
        &self.core
    }

    /// Completions that the queue holds.
    pub fn cqe(&self) -> u32 {
        self.core.cqe()
    }

    /// Takes up to `wc.len()` completions and returns how many; 0 when there are none. Completions of a queue pair
    /// that was reset or destroyed since are skipped.
    ///
    /// # Errors
    /// [`VerbsError::Split`] while a [`CqPoller`] exists.
    #[doc(alias = "ibv_poll_cq")]
    pub fn poll(&self, wc: &mut [Wc]) -> Result<usize, VerbsError> {
        let mut tap = self.core.tap();
        let tap = tap.as_mut().ok_or(VerbsError::Split { what: "completion queue" })?;
        Ok(poll(&self.core, tap, wc))
    }

    /// Splits off the lock-free handle. Dropping it gives the queue back to [`poll`](Self::poll).
    ///
    /// # Errors
    /// [`VerbsError::Split`] while another one exists.
    pub fn poller(&self) -> Result<CqPoller, VerbsError> {
        let tap = self.core.tap().take().ok_or(VerbsError::Split { what: "completion queue" })?;
        Ok(CqPoller { tap: Some(tap), core: self.core.clone() })
    }

    /// Frees the completion queue.
    ///
    /// # Errors
    /// `EBUSY` while queue pairs or a [`CqPoller`] use it; it comes back with the error.
    #[doc(alias = "ibv_destroy_cq")]
    pub fn destroy(self) -> Result<(), (VerbsError, Self)> {
        CqCore::destroy(self.core).map_err(|(e, core)| (e.into(), Self { core }))
    }
}

/// The lock-free handle of a completion queue, from [`Cq::poller`].
#[derive(Debug)]
pub struct CqPoller {
    /// Taken only by `drop`.
    tap: Option<CqTap>,
    core: Arc<CqCore>,
}

impl CqPoller {
    /// As [`Cq::poll`], without a lock.
    ///
    /// # Errors
    /// None today.
    #[inline]
    #[doc(alias = "ibv_poll_cq")]
    pub fn poll(&mut self, wc: &mut [Wc]) -> Result<usize, VerbsError> {
        Ok(self.tap.as_mut().map_or(0, |tap| poll(&self.core, tap, wc)))
    }
}

impl Drop for CqPoller {
    fn drop(&mut self) {
        *self.core.tap() = self.tap.take();
    }
}

#[inline]
fn poll(core: &CqCore, tap: &mut CqTap, wc: &mut [Wc]) -> usize {
    let mut n = fill(core, tap, wc);
    if n == 0 && core.turn_feeders() {
        n = fill(core, tap, wc);
    }
    n
}

#[inline]
fn fill(core: &CqCore, tap: &mut CqTap, wc: &mut [Wc]) -> usize {
    let mut n = 0;
    core.poll_with(tap, wc.len(), |cqe| {
        wc[n] = Wc::from_cqe(cqe);
        n += 1;
    });
    n
}
