//! Whether a thread is inside a turn or a control call of a shard, of any device. Such a thread must not wait for a shard, which may be
//! the one that it holds.

use core::cell::Cell;

use super::error::DeviceError;

thread_local! {
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

/// Records that this thread has taken a shard (`true`) or released it (`false`).
#[inline]
pub(super) fn set_inside_turn(inside: bool) {
    INSIDE.set(inside);
}

/// Whether this thread is inside a turn or a control call.
#[inline]
pub(super) fn inside_turn() -> bool {
    INSIDE.get()
}

/// Refuses a call that would wait for a shard that this thread itself holds, or turn a shard inside of a turn.
///
/// # Errors
/// [`DeviceError::InsideTurn`].
#[inline]
pub fn not_inside_turn() -> Result<(), DeviceError> {
    if inside_turn() { Err(DeviceError::InsideTurn) } else { Ok(()) }
}
