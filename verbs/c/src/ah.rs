//! Address handles.

use core::ffi::c_int;
use core::sync::atomic::AtomicBool;

use verbs::{Ah as Verbs, AvError, DeviceError, GRH_LEN, VerbsError};

use crate::abi::{ibv_ah, ibv_ah_attr, ibv_context, ibv_grh, ibv_pd, ibv_wc};
use crate::attr::{ah_attr, ah_attr_to};
use crate::context::device_of;
use crate::errno::{EINVAL, Result};
use crate::guard::{returning_errno, returning_minus_one, returning_pointer};
use crate::log::say_once;
use crate::object::{Kind, Object};
use crate::{pd, wc};

/// Our part of a `struct ibv_ah`.
pub(crate) struct Ah(Verbs);

impl Kind for Ah {
    type Public = ibv_ah;
    type Private = Self;
    const TAG: u64 = u64::from_be_bytes(*b"ah\0\0\0\0\0\0");
}

/// The handle behind a program's pointer.
///
/// # Safety
/// As [`Object::of`].
#[inline]
pub(crate) unsafe fn of<'a>(ah: *mut ibv_ah) -> Result<&'a Verbs> {
    // SAFETY: as the caller promises.
    Ok(unsafe { &Object::<Ah>::of(ah)?.private().0 })
}

/// Creates an address handle.
///
/// # Safety
/// As [`Object::of`].
unsafe fn create(pd: *mut ibv_pd, attr: &ibv_ah_attr) -> Result<*mut ibv_ah> {
    // SAFETY: as the caller promises.
    let (domain, context, device) = unsafe { (pd::of(pd)?, (*pd).context, device_of((*pd).context)?) };
    let ah = domain.create_ah(&device.ah_attr_to_group(ah_attr(attr))).inspect_err(|error| {
        if let VerbsError::Device(DeviceError::Ah(AvError::Family { .. })) = error {
            say_once(&FAMILY, error);
        }
    })?;
    Ok(Object::<Ah>::create(ibv_ah { context, pd, handle: 0 }, Ah(ah)))
}

/// Whether the warning about different IP versions was printed; EINVAL alone does not tell the cause.
static FAMILY: AtomicBool = AtomicBool::new(false);

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_create_ah(pd: *mut ibv_pd, attr: *mut ibv_ah_attr) -> *mut ibv_ah {
    // SAFETY: the caller keeps the contract of the C function.
    returning_pointer(|| unsafe { create(pd, attr.as_ref().ok_or(EINVAL)?) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_destroy_ah(ah: *mut ibv_ah) -> c_int {
    returning_errno(|| {
        let end = |ah: Ah| {
            ah.0.destroy();
            Ok(())
        };
        // SAFETY: the caller keeps the contract of the C function.
        unsafe { Object::<Ah>::destroy(ah, end) }
    })
}

/// The address vector for a reply to the sender of a datagram.
///
/// # Safety
/// As [`Object::of`], for each pointer.
unsafe fn init_from_wc(
    context: *mut ibv_context,
    port_num: u8,
    from: *mut ibv_wc,
    grh: *mut ibv_grh,
) -> Result<ibv_ah_attr> {
    const { assert!(size_of::<ibv_grh>() == GRH_LEN) };
    // SAFETY: as the caller promises.
    let (device, from, grh) = unsafe {
        let grh = grh.cast::<[u8; GRH_LEN]>().as_ref();
        (device_of(context)?, from.as_ref().ok_or(EINVAL)?, grh.ok_or(EINVAL)?)
    };
    device.query_port(port_num)?;
    Ok(ah_attr_to(&device.init_ah_from_wc(&wc::from_c(from), grh)?))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_init_ah_from_wc(
    context: *mut ibv_context,
    port_num: u8,
    wc: *mut ibv_wc,
    grh: *mut ibv_grh,
    attr: *mut ibv_ah_attr,
) -> c_int {
    returning_minus_one(|| {
        // SAFETY: the caller keeps the contract of the C function.
        unsafe { *attr.as_mut().ok_or(EINVAL)? = init_from_wc(context, port_num, wc, grh)? };
        Ok(0)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_create_ah_from_wc(
    pd: *mut ibv_pd,
    wc: *mut ibv_wc,
    grh: *mut ibv_grh,
    port_num: u8,
) -> *mut ibv_ah {
    returning_pointer(|| {
        // SAFETY: the caller keeps the contract of the C function.
        unsafe {
            pd::of(pd)?;
            create(pd, &init_from_wc((*pd).context, port_num, wc, grh)?)
        }
    })
}
