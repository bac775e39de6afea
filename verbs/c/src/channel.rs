//! Completion channels.

use core::ffi::{c_int, c_uint, c_void};
use core::sync::atomic::{AtomicU32, Ordering};
use std::os::fd::AsRawFd;

use verbs::{CompChannel as Verbs, EventElement};

use crate::abi::{ibv_comp_channel, ibv_context, ibv_cq, ibv_cq_ex};
use crate::context::device_of;
use crate::cq;
use crate::errno::{EINVAL, EIO, Errno, Result};
use crate::event;
use crate::guard::{number, pointer, settled};
use crate::object::{Kind, Object};
use crate::wait::{Found, let_block, until};

/// `struct ibv_comp_channel`.
pub(crate) struct Channel(Verbs);

impl Kind for Channel {
    type Public = ibv_comp_channel;
    type Private = Self;
    const TAG: u64 = u64::from_be_bytes(*b"channel\0");
}

/// The channel that a program names.
///
/// # Safety
/// As [`Object::of`].
pub(crate) unsafe fn of<'a>(channel: *mut ibv_comp_channel) -> Result<&'a Verbs> {
    // SAFETY: as the caller promises.
    Ok(unsafe { &Object::<Channel>::of(channel)?.private().0 })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_create_comp_channel(context: *mut ibv_context) -> *mut ibv_comp_channel {
    pointer(|| {
        // SAFETY: as C promises.
        let channel = unsafe { device_of(context) }?.create_comp_channel()?;
        let fd = channel.as_raw_fd();
        let_block(fd);
        Ok(Object::<Channel>::create(ibv_comp_channel { context, fd, refcnt: 0 }, Channel(channel)))
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_destroy_comp_channel(channel: *mut ibv_comp_channel) -> c_int {
    number(|| {
        let end = |channel: Channel| {
            channel.0.destroy().map_err(|(error, channel)| (Errno::from(error), Channel(channel)))
        };
        // SAFETY: as C promises.
        unsafe { Object::<Channel>::destroy(channel, end) }
    })
}

type Asked = (*mut ibv_comp_channel, *mut *mut ibv_cq, *mut *mut c_void);

/// Takes an event, if there is one.
fn look((channel, to, context): Asked) -> Result<Found> {
    // SAFETY: as C promises.
    let (channel, to, context) =
        unsafe { (of(channel)?, to.as_mut().ok_or(EINVAL)?, context.as_mut().ok_or(EINVAL)?) };
    // Locked before the event is taken: its queue cannot be destroyed before the event is counted.
    let names = event::names();
    let Some(event) = channel.try_get_cq_event() else { return Ok(Found::Nothing(channel.as_raw_fd())) };
    let cq = *names.get(EventElement::Cq(event.cq)).first().ok_or(EIO)? as *mut ibv_cq;
    // SAFETY: a queue with a name lives.
    *context = unsafe { cq::fetched(cq) }?;
    *to = cq;
    Ok(Found::Done)
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn ibv_get_cq_event(
    channel: *mut ibv_comp_channel,
    cq: *mut *mut ibv_cq,
    cq_context: *mut *mut c_void,
) -> c_int {
    until(look, (channel, cq, cq_context))
}

/// A count above the number of fetched events acknowledges all of them: programs do that.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_ack_cq_events(cq: *mut ibv_cq, count: c_uint) {
    let _ = settled(|| {
        let cq = cq.cast::<ibv_cq_ex>();
        // SAFETY: as C promises.
        let acked = unsafe { Object::<cq::Cq>::acked(cq, count) }?;
        // SAFETY: the structure of an object, whose memory is never freed; programs only read the number.
        unsafe { AtomicU32::from_ptr(&raw mut (*cq).comp_events_completed) }
            .fetch_add(acked, Ordering::Relaxed);
        Ok(())
    });
}
