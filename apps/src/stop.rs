//! SIGINT and SIGTERM as a flag: every wait looks at it, so that devices are closed and sockets removed.

use crate::error::{AppError, Result};
use std::sync::atomic::{AtomicBool, Ordering};

static STOP: AtomicBool = AtomicBool::new(false);

/// Turns SIGINT and SIGTERM into the flag. The second signal ends the process at once.
///
/// # Errors
/// When the system refuses a handler.
pub fn install() -> Result<()> {
    ctrlc::set_handler(|| {
        if STOP.swap(true, Ordering::Relaxed) {
            std::process::exit(130);
        }
    })
    .map_err(|e| AppError::Setup(format!("no handler for SIGINT could be installed: {e}")))
}

/// Whether the program was asked to end.
#[inline]
pub fn requested() -> bool {
    STOP.load(Ordering::Relaxed)
}

/// [`AppError::Interrupted`] when the program was asked to end.
///
/// # Errors
/// That one alone.
#[inline]
pub fn check() -> Result<()> {
    if requested() { Err(AppError::Interrupted) } else { Ok(()) }
}
