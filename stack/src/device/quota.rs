//! Limits on the number of objects of each kind in a device.

use core::sync::atomic::{AtomicUsize, Ordering};
use std::sync::Arc;

use super::error::DeviceError;

/// The limit for objects of one kind.
#[derive(Debug)]
pub(super) struct Quota {
    what: &'static str,
    limit: usize,
    live: Arc<AtomicUsize>,
}

/// One use of a quota, until dropped.
#[derive(Debug)]
pub(super) struct Share(Arc<AtomicUsize>);

impl Quota {
    pub(super) fn new(what: &'static str, limit: usize) -> Self {
        Self { what, limit, live: Arc::default() }
    }
    /// # Errors
    /// [`DeviceError::Exhausted`].
    pub(super) fn take(&self) -> Result<Share, DeviceError> {
        let one_more = |live| (live < self.limit).then_some(live + 1);
        match self.live.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more) {
            Ok(_) => Ok(Share(self.live.clone())),
            Err(_) => Err(DeviceError::Exhausted { what: self.what, limit: self.limit }),
        }
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
