//! Fetching and acknowledging events: completion events from a channel, asynchronous events from a context.

use core::ffi::{c_int, c_uint, c_void};
use core::sync::atomic::{AtomicU32, Ordering};
use std::os::fd::AsRawFd;

use verbs::EventElement;

use crate::abi::{self, ibv_async_event, ibv_comp_channel, ibv_context, ibv_cq, ibv_cq_ex};
use crate::context::device_of;
use crate::cq::{self, Cq};
use crate::errno::{EINVAL, EIO, Result};
use crate::guard::uncancelled;
use crate::object::Object;
use crate::qp::Qp;
use crate::srq::Srq;
use crate::wait::{Found, until};
use crate::{channel, context, delivery};

type CqAsked = (*mut ibv_comp_channel, *mut *mut ibv_cq, *mut *mut c_void);

/// Takes a completion event, if there is one.
fn look_cq((channel, to, context): CqAsked) -> Result<Found> {
    // SAFETY: the caller keeps the contract of the C function.
    let (channel, to, context) =
        unsafe { (channel::of(channel)?, to.as_mut().ok_or(EINVAL)?, context.as_mut().ok_or(EINVAL)?) };
    // Locked before the event is taken, so that its queue cannot be destroyed before the event is counted.
    let names = delivery::names();
    let Some(event) = channel.try_get_cq_event() else { return Ok(Found::Nothing(channel.as_raw_fd())) };
    let cq = *names.get(EventElement::Cq(event.cq)).first().ok_or(EIO)? as *mut ibv_cq;
    // SAFETY: a queue in `names` is alive.
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
    until(look_cq, (channel, cq, cq_context))
}

/// As some programs do, a caller may pass a count above the number of fetched events; this acknowledges all of them.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_ack_cq_events(cq: *mut ibv_cq, count: c_uint) {
    let _ = uncancelled(|| {
        let cq = cq.cast::<ibv_cq_ex>();
        // SAFETY: the caller keeps the contract of the C function.
        let acked = unsafe { Object::<Cq>::acked(cq, count) }?;
        // SAFETY: the structure belongs to an object, whose memory is never freed; programs only read the number.
        unsafe { AtomicU32::from_ptr(&raw mut (*cq).comp_events_completed) }
            .fetch_add(acked, Ordering::Relaxed);
        Ok(())
    });
}

type AsyncAsked = (*mut ibv_context, *mut ibv_async_event);

/// Takes an asynchronous event, if there is one.
fn look_async((context, to): AsyncAsked) -> Result<Found> {
    // SAFETY: the caller keeps the contract of the C function.
    let (device, object, to) =
        unsafe { (device_of(context)?, context::of(context)?, to.as_mut().ok_or(EINVAL)?) };
    loop {
        if let Some(event) = delivery::contexts().take(context) {
            to.event_type = event.number;
            // Every event has exactly one element, and all members of the union are at the same place.
            to.element.cq = event.at as *mut ibv_cq;
            if matches!(
                event.number,
                abi::IBV_EVENT_PORT_ACTIVE
                    | abi::IBV_EVENT_PORT_ERR
                    | abi::IBV_EVENT_GID_CHANGE
                    | abi::IBV_EVENT_LID_CHANGE
                    | abi::IBV_EVENT_PKEY_CHANGE
            ) {
                to.element.port_num = event.at as c_int;
            }
            return Ok(Found::Done);
        }
        if !delivery::hand_out(&device) {
            return Ok(Found::Nothing(object.private().async_fd()));
        }
    }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn ibv_get_async_event(
    context: *mut ibv_context,
    event: *mut ibv_async_event,
) -> c_int {
    until(look_async, (context, event))
}

/// Does nothing for an event that the program has not fetched.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_ack_async_event(event: *mut ibv_async_event) {
    let _ = uncancelled(|| {
        // SAFETY: the caller keeps the contract of the C function; a pointer to an object points to its whole structure.
        unsafe {
            let event = event.as_ref().ok_or(EINVAL)?;
            match event.event_type {
                abi::IBV_EVENT_CQ_ERR => Object::<Cq>::acked(event.element.cq.cast(), 1)?,
                abi::IBV_EVENT_SRQ_ERR | abi::IBV_EVENT_SRQ_LIMIT_REACHED => {
                    Object::<Srq>::acked(event.element.srq, 1)?
                }
                abi::IBV_EVENT_QP_FATAL
                | abi::IBV_EVENT_QP_REQ_ERR
                | abi::IBV_EVENT_QP_ACCESS_ERR
                | abi::IBV_EVENT_COMM_EST
                | abi::IBV_EVENT_SQ_DRAINED
                | abi::IBV_EVENT_PATH_MIG
                | abi::IBV_EVENT_PATH_MIG_ERR
                | abi::IBV_EVENT_QP_LAST_WQE_REACHED => Object::<Qp>::acked(event.element.qp.cast(), 1)?,
                _ => 0,
            };
        }
        Ok(())
    });
}
