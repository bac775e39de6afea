//! Shared receive queues.

use core::ffi::{c_int, c_void};

use verbs::{EventElement, Srq as Verbs, SrqAttr, SrqAttrMask, SrqInitAttr};

use crate::abi::ibv_srq_init_attr_ex;
use crate::abi::{self, ibv_context, ibv_pd, ibv_recv_wr, ibv_srq, ibv_srq_attr, ibv_srq_init_attr};
use crate::context;
use crate::errno::{EINVAL, EOPNOTSUPP, Errno, Result};
use crate::guard::{returning_errno, returning_pointer};
use crate::object::{Kind, Object};
use crate::{cq, delivery, pd, wr, xrcd};

/// Our part of a `struct ibv_srq`.
pub(crate) struct Srq {
    verbs: Verbs,
    /// Whether it belongs to an XRC domain. XRC senders name it by its number.
    xrc: bool,
}

impl Kind for Srq {
    type Public = ibv_srq;
    type Private = Self;
    const TAG: u64 = u64::from_be_bytes(*b"srq\0\0\0\0\0");
}

/// The shared receive queue behind a program's pointer.
///
/// # Safety
/// As [`Object::of`].
pub(crate) unsafe fn of<'a>(srq: *mut ibv_srq) -> Result<&'a Verbs> {
    // SAFETY: as the caller promises.
    Ok(unsafe { &Object::<Srq>::of(srq)?.private().verbs })
}

/// Sizes of a new queue. Ignores the limit, as ibv_create_srq(3) says.
fn init_attr(from: &ibv_srq_attr) -> SrqInitAttr {
    SrqInitAttr { attr: SrqAttr { max_wr: from.max_wr, max_sge: from.max_sge, srq_limit: 0 } }
}

/// Makes the `struct ibv_srq` of a new queue.
///
/// # Safety
/// [`pd::of`] has accepted `pd`.
unsafe fn create(pd: *mut ibv_pd, srq_context: *mut c_void, verbs: Verbs, xrc: bool) -> Result<*mut ibv_srq> {
    // SAFETY: as the caller promises.
    let context = unsafe { (*pd).context };
    // SAFETY: it consists of numbers, pointers, a mutex and a condition variable whose initial states are all zeros.
    let mut public: ibv_srq = unsafe { abi::zeroed() };
    (public.context, public.srq_context, public.pd) = (context, srq_context, pd);
    public.handle = verbs.srq_num();
    let element = EventElement::Srq(verbs.srq_num());
    let srq = Object::<Srq>::create(public, Srq { verbs, xrc });
    delivery::names().add(element, srq as usize);
    Ok(srq)
}

/// Writes the actual sizes and the limit of a queue into the program's structure.
fn granted(verbs: &Verbs, to: &mut ibv_srq_attr) -> Result<()> {
    let SrqAttr { max_wr, max_sge, srq_limit } = verbs.query()?;
    *to = ibv_srq_attr { max_wr, max_sge, srq_limit };
    Ok(())
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_create_srq(
    pd: *mut ibv_pd,
    init: *mut ibv_srq_init_attr,
) -> *mut ibv_srq {
    returning_pointer(|| {
        // SAFETY: the caller keeps the contract of the C function.
        unsafe {
            let (domain, init) = (pd::of(pd)?, init.as_mut().ok_or(EINVAL)?);
            let verbs = domain.create_srq(&init_attr(&init.attr))?;
            granted(&verbs, &mut init.attr)?;
            create(pd, init.srq_context, verbs, false)
        }
    })
}

pub(crate) unsafe extern "C" fn create_srq_ex(
    context: *mut ibv_context,
    init: *mut ibv_srq_init_attr_ex,
) -> *mut ibv_srq {
    returning_pointer(|| {
        // SAFETY: the caller keeps the contract of the C function.
        let init = unsafe {
            context::of(context)?;
            init.as_mut().ok_or(EINVAL)?
        };
        let has = |mask| init.comp_mask & mask == mask;
        let known = abi::IBV_SRQ_INIT_ATTR_TYPE
            | abi::IBV_SRQ_INIT_ATTR_PD
            | abi::IBV_SRQ_INIT_ATTR_XRCD
            | abi::IBV_SRQ_INIT_ATTR_CQ;
        if init.comp_mask & abi::IBV_SRQ_INIT_ATTR_TM != 0 {
            return Err(EOPNOTSUPP);
        }
        if init.comp_mask & !known != 0 || !has(abi::IBV_SRQ_INIT_ATTR_PD) {
            return Err(EINVAL);
        }
        let kind = if has(abi::IBV_SRQ_INIT_ATTR_TYPE) { init.srq_type } else { abi::IBV_SRQT_BASIC };
        // SAFETY: the caller keeps the contract of the C function.
        unsafe {
            let domain = pd::of(init.pd)?;
            let (verbs, xrc) = match kind {
                abi::IBV_SRQT_BASIC => (domain.create_srq(&init_attr(&init.attr))?, false),
                abi::IBV_SRQT_XRC if has(abi::IBV_SRQ_INIT_ATTR_XRCD | abi::IBV_SRQ_INIT_ATTR_CQ) => {
                    let (xrcd, cq) = (xrcd::of(init.xrcd)?, cq::of(init.cq)?);
                    let made = domain.create_xrc_srq(&init_attr(&init.attr), xrcd, cq);
                    (made.map_err(xrcd::explained)?, true)
                }
                abi::IBV_SRQT_XRC => return Err(EINVAL),
                abi::IBV_SRQT_TM => return Err(EOPNOTSUPP),
                _ => return Err(EINVAL),
            };
            granted(&verbs, &mut init.attr)?;
            create(init.pd, init.srq_context, verbs, xrc)
        }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_modify_srq(srq: *mut ibv_srq, attr: *mut ibv_srq_attr, mask: c_int) -> c_int {
    returning_errno(|| {
        // SAFETY: the caller keeps the contract of the C function.
        let (srq, attr) = unsafe { (of(srq)?, attr.as_ref().ok_or(EINVAL)?) };
        let ibv_srq_attr { max_wr, max_sge, srq_limit } = *attr;
        let mask = SrqAttrMask::from_bits_retain(mask as u32);
        Ok(srq.modify(&SrqAttr { max_wr, max_sge, srq_limit }, mask)?)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_srq(srq: *mut ibv_srq, attr: *mut ibv_srq_attr) -> c_int {
    returning_errno(|| {
        // SAFETY: the caller keeps the contract of the C function.
        let (srq, attr) = unsafe { (of(srq)?, attr.as_mut().ok_or(EINVAL)?) };
        granted(srq, attr)
    })
}

pub(crate) unsafe extern "C" fn get_srq_num(srq: *mut ibv_srq, number_to: *mut u32) -> c_int {
    returning_errno(|| {
        // SAFETY: the caller keeps the contract of the C function.
        let (object, to) = unsafe { (Object::<Srq>::of(srq)?, number_to.as_mut().ok_or(EINVAL)?) };
        let state = object.private();
        if !state.xrc {
            return Err(EINVAL);
        }
        *to = state.verbs.srq_num();
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_destroy_srq(srq: *mut ibv_srq) -> c_int {
    returning_errno(|| {
        // SAFETY: the caller keeps the contract of the C function.
        let element = EventElement::Srq(unsafe { of(srq) }?.srq_num());
        let mut names = delivery::names();
        let end = move |Srq { verbs, xrc }| {
            let destroyed = verbs.destroy().map(|()| names.remove(element, srq as usize));
            destroyed.map_err(|(error, verbs)| (Errno::from(error), Srq { verbs, xrc }))
        };
        // SAFETY: the caller keeps the contract of the C function.
        unsafe { Object::<Srq>::destroy(srq, end) }
    })
}

pub(crate) unsafe extern "C" fn post_srq_recv(
    srq: *mut ibv_srq,
    list: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: the caller keeps the contract of the C function.
    unsafe { wr::post_srq_recv(list, bad, || of(srq)) }
}
