//! Times in which nothing is to be done, and which a signal ends.

use apps::error::Result;
use apps::stop;
use std::time::{Duration, Instant};

/// Time between two looks whether a signal has come.
const LOOK: Duration = Duration::from_millis(100);

/// Waits for so long.
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
