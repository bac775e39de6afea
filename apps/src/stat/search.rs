//! Runs a search on a thread of its own, so that signals and keys are handled meanwhile.

use crate::error::Result;
use crate::stop;
use std::sync::mpsc::{self, Receiver};
use std::time::{Duration, Instant};

/// Longest wait between two checks for signals.
pub const SLICE: Duration = Duration::from_millis(50);

/// A search that is under way.
#[derive(Debug)]
pub struct Search<T>(Receiver<Result<T>>);

impl<T: Send + 'static> Search<T> {
    /// Starts the search.
    pub fn start(find: impl FnOnce() -> Result<T> + Send + 'static) -> Self {
        let (to, from) = mpsc::channel();
        std::thread::spawn(move || to.send(find()));
        Self(from)
    }

    /// The result, if it arrives within this time.
    pub fn within(&self, time: Duration) -> Option<Result<T>> {
        self.0.recv_timeout(time).ok()
    }

    /// Waits for the result, unless a signal interrupts it.
    ///
    /// # Errors
    /// Those of the search; [`AppError::Interrupted`](crate::error::AppError::Interrupted).
    pub fn wait(&self) -> Result<T> {
        loop {
            stop::check()?;
            if let Some(found) = self.within(SLICE) {
                return found;
            }
        }
    }
}

/// Waits, unless a signal interrupts it.
///
/// # Errors
/// [`AppError::Interrupted`](crate::error::AppError::Interrupted).
pub fn sleep(time: Duration) -> Result<()> {
    let start = Instant::now();
    loop {
        stop::check()?;
        match time.checked_sub(start.elapsed()) {
            Some(left) if !left.is_zero() => std::thread::sleep(left.min(SLICE)),
            _ => return Ok(()),
        }
    }
}
