//! Event channels.

use std::os::fd::AsRawFd;

use verbs::rdma_cm::EventChannel;

use crate::abi::rdma_event_channel;
use crate::errno::Result;
use crate::guard::{returning_pointer, uncancelled};
use crate::object::{Kind, Object};
use crate::wait::let_block;

/// Our part of a `struct rdma_event_channel`.
pub(super) struct Channel(EventChannel);

impl Kind for Channel {
    type Public = rdma_event_channel;
    type Private = Self;
    const TAG: u64 = u64::from_be_bytes(*b"cm chan\0");
}

/// Creates a channel. Needs no device.
///
/// # Errors
/// If no descriptor is left.
pub(super) fn create() -> Result<*mut rdma_event_channel> {
    let channel = EventChannel::new()?;
    let fd = channel.as_raw_fd();
    let_block(fd);
    Ok(Object::<Channel>::create(rdma_event_channel { fd }, Channel(channel)))
}

/// The channel behind a program's pointer.
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

/// Destroys a channel. Identifiers that still use it stay alive; their events are discarded.
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

#[unsafe(no_mangle)]
extern "C" fn rdma_create_event_channel() -> *mut rdma_event_channel {
    returning_pointer(create)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_destroy_event_channel(channel: *mut rdma_event_channel) {
    // SAFETY: the caller keeps the contract of the C function.
    let _ = uncancelled(|| unsafe { destroy(channel) });
}
