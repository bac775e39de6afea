//! The health of storage: whether data that hosts have written may be lost.
//!
//! If a file is truncated or a flush fails, data that hosts have written are lost. Yet the next command would succeed: the file grows again
//! and reads as zeros, and the kernel marks pages as clean that it could not write. So the storage is then marked as failed, and every
//! command on it fails, until an administrator confirms that the data are as they should be.

use std::fmt::Display;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use nvmf::BackendError;
use nvmf::sync::lock;

/// The health of one store. At first it has not failed.
#[derive(Debug, Default)]
pub struct Health {
    failed: AtomicBool,
    why: Mutex<Option<String>>,
}

impl Health {
    /// Returns an error if the storage has failed.
    ///
    /// # Errors
    /// [`BackendError::Lost`].
    #[inline]
    pub fn check(&self) -> Result<(), BackendError> {
        if self.failed.load(Ordering::Acquire) { Err(BackendError::Lost) } else { Ok(()) }
    }
    /// Marks the storage `name` as failed, and logs that the first time. Returns the error for the command that found the failure.
    #[cold]
    pub fn fail(&self, name: impl Display, why: impl Display) -> BackendError {
        let mut known = lock(&self.why);
        if known.is_none() {
            tracing::error!(
                "{name}: {why}. Its namespace fails from now on, until roce-nvmf namespace online says that its data are as they should \
                 be"
            );
            *known = Some(why.to_string());
        }
        self.failed.store(true, Ordering::Release);
        BackendError::Lost
    }
    /// Why the storage has failed; `None` if it has not.
    pub fn why(&self) -> Option<String> {
        lock(&self.why).clone()
    }
    /// Clears the failure: the storage serves commands again.
    pub fn restore(&self) {
        let mut why = lock(&self.why);
        *why = None;
        self.failed.store(false, Ordering::Release);
    }
}
