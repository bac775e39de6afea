//! Protection domains, thread domains and parent domains.

use core::ffi::c_int;

use verbs::{ParentDomainInitAttr, Pd as Verbs, Td as VerbsTd};

use crate::abi::{self, ibv_context, ibv_parent_domain_init_attr, ibv_pd, ibv_td, ibv_td_init_attr};
use crate::context::device_of;
use crate::errno::{EINVAL, Errno, Result};
use crate::guard::{returning_errno, returning_pointer};
use crate::object::{Kind, Object};

/// Our part of a `struct ibv_pd`, also that of a parent domain.
pub(crate) struct Pd(Verbs);

impl Kind for Pd {
    type Public = ibv_pd;
    type Private = Self;
    const TAG: u64 = u64::from_be_bytes(*b"pd\0\0\0\0\0\0");
}

/// The domain behind a program's pointer.
///
/// # Safety
/// As [`Object::of`].
pub(crate) unsafe fn of<'a>(pd: *mut ibv_pd) -> Result<&'a Verbs> {
    // SAFETY: as the caller promises.
    Ok(unsafe { &Object::<Pd>::of(pd)?.private().0 })
}

/// Creates the C object of a domain.
fn create(context: *mut ibv_context, pd: Verbs) -> *mut ibv_pd {
    Object::<Pd>::create(ibv_pd { context, handle: 0 }, Pd(pd))
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_alloc_pd(context: *mut ibv_context) -> *mut ibv_pd {
    // SAFETY: the caller keeps the contract of the C function.
    returning_pointer(|| Ok(create(context, unsafe { device_of(context) }?.alloc_pd()?)))
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_dealloc_pd(pd: *mut ibv_pd) -> c_int {
    returning_errno(|| {
        let end = |pd: Pd| pd.0.dealloc().map_err(|(error, pd)| (Errno::from(error), Pd(pd)));
        // SAFETY: the caller keeps the contract of the C function.
        unsafe { Object::<Pd>::destroy(pd, end) }
    })
}

/// Our part of a `struct ibv_td`.
struct Td(VerbsTd);

impl Kind for Td {
    type Public = ibv_td;
    type Private = Self;
    const TAG: u64 = u64::from_be_bytes(*b"td\0\0\0\0\0\0");
}

pub(crate) unsafe extern "C" fn alloc_td(
    context: *mut ibv_context,
    init: *mut ibv_td_init_attr,
) -> *mut ibv_td {
    returning_pointer(|| {
        // SAFETY: the caller keeps the contract of the C function.
        let (device, init) = unsafe { (device_of(context)?, init.as_ref().ok_or(EINVAL)?) };
        if init.comp_mask != 0 {
            return Err(EINVAL);
        }
        Ok(Object::<Td>::create(ibv_td { context }, Td(device.alloc_td())))
    })
}

pub(crate) unsafe extern "C" fn dealloc_td(td: *mut ibv_td) -> c_int {
    returning_errno(|| {
        let end = |td: Td| td.0.dealloc().map_err(|(error, td)| (Errno::from(error), Td(td)));
        // SAFETY: the caller keeps the contract of the C function.
        unsafe { Object::<Td>::destroy(td, end) }
    })
}

/// `IBV_PARENT_DOMAIN_INIT_ATTR_ALLOW_CC_UNPROTECTED_ALLOC`, which older headers do not have.
const ALLOW_CC_UNPROTECTED_ALLOC: u32 = 1 << 2;

pub(crate) unsafe extern "C" fn alloc_parent_domain(
    context: *mut ibv_context,
    attr: *mut ibv_parent_domain_init_attr,
) -> *mut ibv_pd {
    returning_pointer(|| {
        // SAFETY: the caller keeps the contract of the C function.
        let (device, attr) = unsafe { (device_of(context)?, attr.as_ref().ok_or(EINVAL)?) };
        // The program's allocators may be ignored (ibv_alloc_parent_domain(3)). So may its permission to use memory that a guest shares
        // with its host, because nothing here needs such memory.
        let known = abi::IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS
            | abi::IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT
            | ALLOW_CC_UNPROTECTED_ALLOC;
        if attr.comp_mask & !known != 0 {
            return Err(EINVAL);
        }
        // SAFETY: the caller keeps the contract of the C function.
        let (pd, td) = unsafe {
            let td = if attr.td.is_null() { None } else { Some(&Object::<Td>::of(attr.td)?.private().0) };
            (of(attr.pd)?, td)
        };
        Ok(create(context, device.alloc_parent_domain(&ParentDomainInitAttr { pd, td })?))
    })
}
