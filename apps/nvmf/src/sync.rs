//! What threads share is behind mutexes that are held for moments.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks `mutex`. Nothing that controllers and their programs guard is ever left half changed, so a holder that panicked does no harm.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
