//! SIGINT, SIGTERM and SIGHUP set a flag, which every wait checks: so devices are closed and sockets removed before the end.

use crate::error::{AppError, Result};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::flag;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock};

static STOP: LazyLock<Arc<AtomicBool>> = LazyLock::new(Arc::default);

/// Installs handlers that set the flag. A second SIGINT or SIGTERM ends the process at once; SIGHUP does not, since a closed
/// terminal sends several.
///
/// An ignored signal stays ignored: `nohup roce-perf server` survives its terminal.
///
/// # Errors
/// When the system refuses a handler.
pub fn install() -> Result<()> {
    let refused = |e| AppError::Setup(format!("no handler for signals could be installed: {e}"));
    let ignored = ignored();
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        if ignored & 1 << (signal - 1) != 0 {
            continue;
        }
        if signal != SIGHUP {
            // Handlers run in the order of their registration: at the first signal, this handler finds the flag unset.
            flag::register_conditional_shutdown(signal, 130, Arc::clone(&STOP)).map_err(refused)?;
        }
        flag::register(signal, Arc::clone(&STOP)).map_err(refused)?;
    }
    Ok(())
}

/// The signals that this process ignores: bit 0 is signal 1.
fn ignored() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}

/// Whether a signal has requested the end of the program.
#[inline]
pub fn requested() -> bool {
    STOP.load(Ordering::Relaxed)
}

/// Returns [`AppError::Interrupted`] after such a signal.
///
/// # Errors
/// That error only.
#[inline]
pub fn check() -> Result<()> {
    if requested() { Err(AppError::Interrupted) } else { Ok(()) }
}
