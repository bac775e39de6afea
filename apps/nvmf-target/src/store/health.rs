//! Whether a namespace's blocks are what its hosts were told.
//!
//! A file that was truncated, or a flush that failed, has lost data that hosts count on. Yet the next command would succeed: the file
//! grows again and reads as zeros, and the kernel takes pages that it could not write for clean. So from then on the storage fails, and
//! every command with it, until an administrator says that its data are as they should be.

use std::fmt::Display;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use nvmf::BackendError;
use nvmf::sync::lock;

/// The health of one storage. It is good at first.
#[derive(Debug, Default)]
pub struct Health {
    failed: AtomicBool,
    why: Mutex<Option<String>>,
}

impl Health {
    /// Fails while the storage has failed.
    ///
    /// # Errors
    /// [`BackendError::Lost`].
    #[inline]
    pub fn check(&self) -> Result<(), BackendError> {
        if self.failed.load(Ordering::Acquire) { Err(BackendError::Lost) } else { Ok(()) }
    }
    /// From now on the storage `name` has failed. Logs that the first time; returns the error for the command that showed it.
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
    /// Why it has failed, if it has.
    pub fn why(&self) -> Option<String> {
        lock(&self.why).clone()
    }
    /// Its data are as they should be: it serves again.
    pub fn restore(&self) {
        let mut why = lock(&self.why);
        *why = None;
        self.failed.store(false, Ordering::Release);
    }
}
