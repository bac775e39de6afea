//! Waits that a signal interrupts.

use apps::error::Result;
use apps::stop;
use std::time::{Duration, Instant};

/// Time between two checks for signals.
const LOOK: Duration = Duration::from_millis(100);

/// Waits for `time`.
///
/// # Errors
/// [`AppError::Interrupted`](apps::error::AppError::Interrupted).
pub fn rest(time: Duration) -> Result<()> {
    let end = Instant::now() + time;
    loop {
        stop::check()?;
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(());
        }
        std::thread::sleep(LOOK.min(left));
    }
}
