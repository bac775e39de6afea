//! Pins the calling thread to a core.

use crate::error::{AppError, Result};

/// Pins the calling thread to `core`.
///
/// # Errors
/// When this process may not use that core.
pub fn pin(core: usize) -> Result<()> {
    let cores = core_affinity::get_core_ids().unwrap_or_default();
    match cores.iter().find(|c| c.id == core) {
        Some(&id) if core_affinity::set_for_current(id) => Ok(()),
        Some(_) => Err(AppError::Setup(format!("the system refused to pin a thread to core {core}"))),
        None => {
            let usable: Vec<_> = cores.iter().map(|c| c.id.to_string()).collect();
            Err(AppError::Usage(format!(
                "core {core} is not one this process may use; --cores takes {}",
                if usable.is_empty() { "none here".into() } else { usable.join(", ") }
            )))
        }
    }
}

/// Pins the calling thread to `core` if possible; otherwise it stays unpinned.
pub fn pin_if_possible(core: usize) {
    let _ = pin(core);
}
