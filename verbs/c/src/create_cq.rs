//! Creation of completion queues.

use core::cell::UnsafeCell;
use core::ffi::{c_int, c_void};

use verbs::{CqInitAttr, CqWcFlags, EventElement};

use crate::abi::{self, ibv_comp_channel, ibv_context, ibv_cq, ibv_cq_ex, ibv_cq_init_attr_ex, ibv_pd};
use crate::context::device_of;
use crate::cq::Cq;
use crate::errno::{EINVAL, EOPNOTSUPP, Result};
use crate::guard::returning_pointer;
use crate::object::Object;
use crate::{channel, cq_ex, delivery, pd};

/// The attributes of a new queue.
struct Wanted {
    cqe: u32,
    cq_context: *mut c_void,
    channel: *mut ibv_comp_channel,
    comp_vector: u32,
    wc_flags: u64,
    parent_domain: *mut ibv_pd,
}

/// Creates a completion queue for C.
///
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
    // SAFETY: it consists of numbers, pointers, functions that may be NULL, and a mutex and a condition whose initial state is all zeros.
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
        // SAFETY: the channel is alive, and only these functions change the number.
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
    returning_pointer(|| {
        let wanted = Wanted {
            cqe: u32::try_from(cqe).map_err(|_| EINVAL)?,
            cq_context,
            channel,
            comp_vector: u32::try_from(comp_vector).map_err(|_| EINVAL)?,
            wc_flags: 0,
            parent_domain: core::ptr::null_mut(),
        };
        // SAFETY: the caller keeps the contract of the C function.
        Ok(unsafe { create(context, &wanted) }?.cast())
    })
}

pub(crate) unsafe extern "C" fn create_cq_ex(
    context: *mut ibv_context,
    attr: *mut ibv_cq_init_attr_ex,
) -> *mut ibv_cq_ex {
    returning_pointer(|| {
        // SAFETY: the caller keeps the contract of the C function.
        let attr = unsafe { attr.as_ref() }.ok_or(EINVAL)?;
        let has = |mask| attr.comp_mask & mask != 0;
        if has(!(abi::IBV_CQ_INIT_ATTR_MASK_FLAGS | abi::IBV_CQ_INIT_ATTR_MASK_PD)) {
            return Err(EINVAL);
        }
        // SINGLE_THREADED permits to omit the lock and has no other effect; IGNORE_OVERRUN is not supported.
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
        // SAFETY: the caller keeps the contract of the C function.
        unsafe { create(context, &wanted) }
    })
}
