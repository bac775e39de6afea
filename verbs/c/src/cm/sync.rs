//! Waiting in the calls of synchronous identifiers.

use core::ffi::c_int;
use core::ptr::null_mut;

use verbs::rdma_cm::IdState;

use super::{event, id};
use crate::abi::{RDMA_CM_EVENT_REJECTED, rdma_cm_event, rdma_cm_id, rdma_event_channel};
use crate::errno::{Errno, Result, fail};
use crate::guard::uncancelled;

/// Completes a call. If the identifier is synchronous, waits for the call's event and leaves it in `id->event`. Nothing in the caller may
/// need to be dropped during the wait.
///
/// # Safety
/// As [`id::of`].
#[inline(always)]
#[allow(
    improper_ctypes_definitions,
    reason = "the name of the ABI says that it may be unwound; C does not call it"
)]
pub(super) unsafe extern "C-unwind" fn complete(id: *mut rdma_cm_id, call: Result<()>) -> c_int {
    // SAFETY: as the caller promises.
    unsafe {
        let mut event = null_mut();
        let channel = match uncancelled(|| call.and_then(|()| before_event(id, &mut event))) {
            Ok(channel) => channel,
            Err(error) => return fail(error),
        };
        // A null channel means that there is nothing to wait for; but there may be an event.
        if !channel.is_null() && event::next(channel, &raw mut event) != 0 {
            return -1;
        }
        if event.is_null() {
            return 0;
        }
        (*id).event = event;
        match ((*event).event, (*event).status) {
            (_, 0) => 0,
            (RDMA_CM_EVENT_REJECTED, _) | (_, 1..) => fail(Errno(libc::ECONNREFUSED)),
            (_, negative) => fail(Errno(-negative)),
        }
    }
}

/// The channel on which a call's event will come. Null for an identifier that is not synchronous. Null also if the connection has already
/// ended: then its event is waiting already, or was fetched before.
///
/// # Safety
/// As [`id::of`].
unsafe fn before_event(
    id: *mut rdma_cm_id,
    event: &mut *mut rdma_cm_event,
) -> Result<*mut rdma_event_channel> {
    // SAFETY: as the caller promises.
    unsafe {
        let private = id::of(id)?.private();
        if !private.is_synchronous() {
            return Ok(null_mut());
        }
        forget_event(id);
        if private.cm.state() == IdState::Disconnected {
            *event = event::try_next(private.channel())?.unwrap_or(null_mut());
            return Ok(null_mut());
        }
        Ok(private.channel())
    }
}

/// Acknowledges the event that the last call of a synchronous identifier left in `id->event`.
///
/// # Safety
/// The identifier is alive.
pub(super) unsafe fn forget_event(id: *mut rdma_cm_id) {
    // SAFETY: as the caller promises; the event is one of ours, or NULL, or one that the program has acknowledged itself.
    unsafe {
        let last = core::mem::replace(&mut (*id).event, null_mut());
        if !last.is_null() {
            let _ = event::ack(last);
        }
    }
}
