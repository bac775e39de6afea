//! Event channels, and the next event of one.

use core::ffi::c_int;
use std::os::fd::AsRawFd;

use verbs::rdma_cm::EventChannel;

use super::{event, zero};
use crate::abi::{rdma_cm_event, rdma_event_channel};
use crate::errno::{EINVAL, Result};
use crate::guard::{pointer, settled};
use crate::object::{Kind, Object};
use crate::wait::{Found, let_block, until};

/// `struct rdma_event_channel`.
pub(super) struct Channel(EventChannel);

impl Kind for Channel {
    type Public = rdma_event_channel;
    type Private = Self;
    const TAG: u64 = u64::from_be_bytes(*b"cm chan\0");
}

/// Makes a channel; no device is needed.
///
/// # Errors
/// No descriptor is left.
pub(super) fn create() -> Result<*mut rdma_event_channel> {
    let channel = EventChannel::new()?;
    let fd = channel.as_raw_fd();
    let_block(fd);
    Ok(Object::<Channel>::create(rdma_event_channel { fd }, Channel(channel)))
}

/// The channel that C names.
///
/// # Errors
/// As [`Object::of`].
///
/// # Safety
/// As [`Object::of`].
pub(super) unsafe fn of<'a>(channel: *mut rdma_event_channel) -> Result<&'a EventChannel> {
    // SAFETY: as the caller promises.
    Ok(&unsafe { Object::<Channel>::of(channel) }?.private().0)
}

/// Ends a channel. Identifiers that still use it live on; their events are lost.
///
/// # Errors
/// As [`Object::of`].
///
/// # Safety
/// As [`Object::of`].
pub(super) unsafe fn destroy(channel: *mut rdma_event_channel) -> Result<()> {
    let end = |channel: Channel| {
        drop(channel);
        Ok(())
    };
    // SAFETY: as the caller promises.
    unsafe { Object::<Channel>::destroy(channel, end) }
}

/// Fetches an event if there is one.
///
/// # Errors
/// As [`of`].
///
/// # Safety
/// As [`of`].
pub(super) unsafe fn try_next(channel: *mut rdma_event_channel) -> Result<Option<*mut rdma_cm_event>> {
    // SAFETY: as the caller promises.
    let events = unsafe { of(channel) }?;
    while let Some(found) = events.try_get_event() {
        // SAFETY: identifiers that events name were made here.
        if let Some(event) = unsafe { event::make(channel, found) }? {
            return Ok(Some(event));
        }
    }
    Ok(None)
}

/// A channel, and where its next event goes.
type Place = (*mut rdma_event_channel, *mut *mut rdma_cm_event);

fn look((channel, to): Place) -> Result<Found> {
    if to.is_null() {
        return Err(EINVAL);
    }
    // SAFETY: as the caller of `next` promises; the channel was seen to live, as far as can be known.
    unsafe {
        Ok(match try_next(channel)? {
            Some(event) => {
                *to = event;
                Found::Done
            }
            None => Found::Nothing((*channel).fd),
        })
    }
}

/// Waits for the next event; 0, or -1 with `errno`. Nothing in the caller needs to be dropped while it waits, and the channel may be
/// destroyed meanwhile.
///
/// # Safety
/// As [`of`], and there is a place for the event.
#[inline(always)]
#[allow(
    improper_ctypes_definitions,
    reason = "the name of the ABI says that it may be unwound; C does not call it"
)]
pub(super) unsafe extern "C-unwind" fn next(
    channel: *mut rdma_event_channel,
    to: *mut *mut rdma_cm_event,
) -> c_int {
    until(look, (channel, to))
}

#[unsafe(no_mangle)]
extern "C" fn rdma_create_event_channel() -> *mut rdma_event_channel {
    pointer(create)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_destroy_event_channel(channel: *mut rdma_event_channel) {
    // SAFETY: as C promises.
    let _ = settled(|| unsafe { destroy(channel) });
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn rdma_get_cm_event(
    channel: *mut rdma_event_channel,
    to: *mut *mut rdma_cm_event,
) -> c_int {
    // SAFETY: as C promises.
    unsafe { next(channel, to) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_ack_cm_event(event: *mut rdma_cm_event) -> c_int {
    // SAFETY: as C promises.
    zero(|| unsafe { event::ack(event) })
}
