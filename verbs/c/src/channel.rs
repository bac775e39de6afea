//! Completion channels.

use core::ffi::c_int;
use std::os::fd::AsRawFd;

use verbs::CompChannel as Verbs;

use crate::abi::{ibv_comp_channel, ibv_context};
use crate::context::device_of;
use crate::errno::{Errno, Result};
use crate::guard::{returning_errno, returning_pointer};
use crate::object::{Kind, Object};
use crate::wait::let_block;

/// Our part of a `struct ibv_comp_channel`.
pub(crate) struct Channel(Verbs);

impl Kind for Channel {
    type Public = ibv_comp_channel;
    type Private = Self;
    const TAG: u64 = u64::from_be_bytes(*b"channel\0");
}

/// The channel behind a program's pointer.
///
/// # Safety
/// As [`Object::of`].
pub(crate) unsafe fn of<'a>(channel: *mut ibv_comp_channel) -> Result<&'a Verbs> {
    // SAFETY: as the caller promises.
    Ok(unsafe { &Object::<Channel>::of(channel)?.private().0 })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_create_comp_channel(context: *mut ibv_context) -> *mut ibv_comp_channel {
    returning_pointer(|| {
        // SAFETY: the caller keeps the contract of the C function.
        let channel = unsafe { device_of(context) }?.create_comp_channel()?;
        let fd = channel.as_raw_fd();
        let_block(fd);
        Ok(Object::<Channel>::create(ibv_comp_channel { context, fd, refcnt: 0 }, Channel(channel)))
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_destroy_comp_channel(channel: *mut ibv_comp_channel) -> c_int {
    returning_errno(|| {
        let end = |channel: Channel| {
            channel.0.destroy().map_err(|(error, channel)| (Errno::from(error), Channel(channel)))
        };
        // SAFETY: the caller keeps the contract of the C function.
        unsafe { Object::<Channel>::destroy(channel, end) }
    })
}
