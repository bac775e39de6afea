//! Completion queues.

use core::cell::UnsafeCell;
use core::ffi::{c_int, c_void};

use verbs::{Cq as Verbs, CqExPoll, CqInitAttr, CqWcFlags, DeviceError, EventElement, VerbsError};

use crate::abi::{
    self, ibv_comp_channel, ibv_context, ibv_cq, ibv_cq_ex, ibv_cq_init_attr_ex, ibv_pd, ibv_wc,
};
use crate::context::device_of;
use crate::errno::{EINVAL, EOPNOTSUPP, Errno, Result};
use crate::guard::{guarded, number, pointer};
use crate::object::{self, Kind, Object};
use crate::{channel, cq_ex, delivery, pd, wc};

/// `struct ibv_cq`, with what `struct ibv_cq_ex` adds behind it.
pub(crate) struct Cq {
    pub verbs: Verbs,
    /// The poll of one thread between `start_poll` and `end_poll`. It borrows from `verbs`, which does not move, and is dropped
    /// before it.
    pub poll: UnsafeCell<Option<CqExPoll<'static>>>,
}

impl Kind for Cq {
    type Public = ibv_cq_ex;
    type Private = Self;
    const TAG: u64 = u64::from_be_bytes(*b"cq\0\0\0\0\0\0");
}

/// The queue that a program names.
///
/// # Safety
/// As [`Object::of`].
pub(crate) unsafe fn of<'a>(cq: *mut ibv_cq) -> Result<&'a Verbs> {
    // SAFETY: as the caller promises.
    Ok(unsafe { &Object::<Cq>::of(cq.cast())?.private().verbs })
}

/// The program fetches an event of the queue; returns the program's own pointer.
///
/// # Safety
/// As [`Object::of`].
pub(crate) unsafe fn fetched(cq: *mut ibv_cq) -> Result<*mut c_void> {
    // SAFETY: as the caller promises.
    let object = unsafe { Object::<Cq>::of(cq.cast()) }?;
    // To the device it is acknowledged; from here on the object counts it.
    object.private().verbs.ack_events(1)?;
    // SAFETY: it lives.
    unsafe { object::fetched(cq as usize) };
    // SAFETY: the structure of a living object.
    Ok(unsafe { (*object.public()).cq_context })
}

/// What a queue is made with.
struct Wanted {
    cqe: u32,
    cq_context: *mut c_void,
    channel: *mut ibv_comp_channel,
    comp_vector: u32,
    wc_flags: u64,
    parent_domain: *mut ibv_pd,
}

/// # Safety
/// As [`Object::of`], for each pointer.
unsafe fn create(context: *mut ibv_context, wanted: &Wanted) -> Result<*mut ibv_cq_ex> {
    // SAFETY: as the caller promises.
    let device = unsafe { device_of(context) }?;
    let init = CqInitAttr {
        comp_vector: wanted.comp_vector,
        wc_flags: CqWcFlags::from_bits(wanted.wc_flags).ok_or(EOPNOTSUPP)?,
        channel: match wanted.channel.is_null() {
            true => None,
            // SAFETY: as the caller promises.
            false => Some(unsafe { channel::of(wanted.channel) }?),
        },
        parent_domain: match wanted.parent_domain.is_null() {
            true => None,
            // SAFETY: as the caller promises.
            false => Some(unsafe { pd::of(wanted.parent_domain) }?),
        },
        ..CqInitAttr::new(wanted.cqe)
    };
    let verbs = device.create_cq_ex(&init)?;
    // SAFETY: numbers, pointers, functions that may be NULL, a mutex and a condition whose first state is all zeros.
    let mut public: ibv_cq_ex = unsafe { abi::zeroed() };
    public.context = context;
    public.channel = wanted.channel;
    public.cq_context = wanted.cq_context;
    public.cqe = c_int::try_from(verbs.cqe()).unwrap_or(c_int::MAX);
    public.handle = verbs.number();
    cq_ex::put_calls(&mut public, init.wc_flags);
    let element = EventElement::Cq(verbs.number());
    let state = Cq { verbs, poll: UnsafeCell::new(None) };
    let cq = Object::<Cq>::create(public, state);
    delivery::names().add(element, cq as usize);
    if !wanted.channel.is_null() {
        // SAFETY: it lives, and only these calls change the number.
        unsafe { (*wanted.channel).refcnt += 1 };
    }
    Ok(cq)
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_create_cq(
    context: *mut ibv_context,
    cqe: c_int,
    cq_context: *mut c_void,
    channel: *mut ibv_comp_channel,
    comp_vector: c_int,
) -> *mut ibv_cq {
    pointer(|| {
        let wanted = Wanted {
            cqe: u32::try_from(cqe).map_err(|_| EINVAL)?,
            cq_context,
            channel,
            comp_vector: u32::try_from(comp_vector).map_err(|_| EINVAL)?,
            wc_flags: 0,
            parent_domain: core::ptr::null_mut(),
        };
        // SAFETY: as C promises.
        Ok(unsafe { create(context, &wanted) }?.cast())
    })
}

pub(crate) unsafe extern "C" fn create_cq_ex(
    context: *mut ibv_context,
    attr: *mut ibv_cq_init_attr_ex,
) -> *mut ibv_cq_ex {
    pointer(|| {
        // SAFETY: as C promises.
        let attr = unsafe { attr.as_ref() }.ok_or(EINVAL)?;
        let has = |mask| attr.comp_mask & mask != 0;
        if has(!(abi::IBV_CQ_INIT_ATTR_MASK_FLAGS | abi::IBV_CQ_INIT_ATTR_MASK_PD)) {
            return Err(EINVAL);
        }
        // SINGLE_THREADED permits to leave the lock out, and nothing more; IGNORE_OVERRUN is not supported.
        let flags = if has(abi::IBV_CQ_INIT_ATTR_MASK_FLAGS) { attr.flags } else { 0 };
        if flags & !abi::IBV_CREATE_CQ_ATTR_SINGLE_THREADED != 0 {
            return Err(EOPNOTSUPP);
        }
        let wanted = Wanted {
            cqe: attr.cqe,
            cq_context: attr.cq_context,
            channel: attr.channel,
            comp_vector: attr.comp_vector,
            wc_flags: attr.wc_flags,
            parent_domain: match has(abi::IBV_CQ_INIT_ATTR_MASK_PD) {
                true => attr.parent_domain,
                false => core::ptr::null_mut(),
            },
        };
        // SAFETY: as C promises.
        unsafe { create(context, &wanted) }
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_destroy_cq(cq: *mut ibv_cq) -> c_int {
    number(|| {
        // SAFETY: as C promises.
        let (channel, element) = unsafe {
            let element = EventElement::Cq(of(cq)?.number());
            ((*cq).channel, element)
        };
        let mut names = delivery::names();
        #[allow(clippy::result_large_err, reason = "the object comes back with the error")]
        let end = move |mut state: Cq| {
            *state.poll.get_mut() = None;
            let Cq { verbs, poll } = state;
            // Events that were put on the channel for it, and not fetched, are gone with it.
            let destroyed = verbs.destroy().map(|()| names.remove(element, cq as usize));
            destroyed.map_err(|(error, verbs)| (Errno::from(error), Cq { verbs, poll }))
        };
        // SAFETY: as C promises.
        unsafe { Object::<Cq>::destroy(cq.cast(), end) }?;
        if !channel.is_null() {
            // SAFETY: it outlives the queue.
            unsafe { (*channel).refcnt -= 1 };
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_resize_cq(cq: *mut ibv_cq, cqe: c_int) -> c_int {
    number(|| {
        // SAFETY: as C promises.
        unsafe {
            let verbs = of(cq)?;
            verbs.resize(u32::try_from(cqe).map_err(|_| EINVAL)?)?;
            (*cq).cqe = c_int::try_from(verbs.cqe()).unwrap_or(c_int::MAX);
        }
        Ok(())
    })
}

pub(crate) unsafe extern "C" fn req_notify_cq(cq: *mut ibv_cq, solicited_only: c_int) -> c_int {
    // SAFETY: as C promises.
    number(|| match unsafe { of(cq) }?.req_notify(solicited_only != 0) {
        // Without a channel nobody is notified, as with other devices.
        Err(VerbsError::Device(DeviceError::NoChannel)) => Ok(()),
        armed => Ok(armed?),
    })
}

pub(crate) unsafe extern "C" fn poll_cq(cq: *mut ibv_cq, count: c_int, to: *mut ibv_wc) -> c_int {
    let polled = guarded(|| {
        // SAFETY: as C promises.
        let verbs = unsafe { of(cq) }?;
        let max = usize::try_from(count).map_err(|_| EINVAL)?;
        if to.is_null() && max > 0 {
            return Err(EINVAL);
        }
        let mut next = to;
        let polled = verbs.poll_with(max, |from| {
            // SAFETY: C promises room for `count`, and no more come.
            unsafe {
                next.write(wc::to_c(&from));
                next = next.add(1);
            }
        })?;
        Ok(polled as c_int)
    });
    polled.unwrap_or_else(|error| -error.0)
}
