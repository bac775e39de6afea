//! Memory windows.

use core::ffi::c_int;

use verbs::{Access, Mw as Verbs, MwBindInfo, MwType};

use crate::abi::{self, ibv_mw, ibv_mw_bind_info, ibv_mw_type, ibv_pd};
use crate::attr::access;
use crate::errno::{EINVAL, Errno, Result};
use crate::guard::{returning_errno, returning_pointer};
use crate::object::{Kind, Object};
use crate::{mr, pd};

/// Our part of a `struct ibv_mw`.
pub(crate) struct Mw(Verbs);

impl Kind for Mw {
    type Public = ibv_mw;
    type Private = Self;
    const TAG: u64 = u64::from_be_bytes(*b"mw\0\0\0\0\0\0");
}

/// The window behind a program's pointer.
///
/// # Safety
/// As [`Object::of`].
pub(crate) unsafe fn of<'a>(mw: *mut ibv_mw) -> Result<&'a Verbs> {
    // SAFETY: as the caller promises.
    Ok(unsafe { &Object::<Mw>::of(mw)?.private().0 })
}

pub(crate) unsafe extern "C" fn alloc_mw(pd: *mut ibv_pd, mw_type: ibv_mw_type) -> *mut ibv_mw {
    returning_pointer(|| {
        let kind = match mw_type {
            abi::IBV_MW_TYPE_1 => MwType::One,
            abi::IBV_MW_TYPE_2 => MwType::Two,
            _ => return Err(EINVAL),
        };
        // SAFETY: the caller keeps the contract of the C function.
        let (mw, context) = unsafe { (pd::of(pd)?.alloc_mw(kind)?, (*pd).context) };
        let public = ibv_mw { context, pd, rkey: mw.rkey(), handle: 0, type_: mw_type };
        Ok(Object::<Mw>::create(public, Mw(mw)))
    })
}

pub(crate) unsafe extern "C" fn dealloc_mw(mw: *mut ibv_mw) -> c_int {
    returning_errno(|| {
        let end = |mw: Mw| mw.0.dealloc().map_err(|(error, mw)| (Errno::from(error), Mw(mw)));
        // SAFETY: the caller keeps the contract of the C function.
        unsafe { Object::<Mw>::destroy(mw, end) }
    })
}

/// Converts the range and rights of a bind and calls `with` with them.
///
/// # Safety
/// As [`Object::of`].
pub(crate) unsafe fn with_bind<T>(
    from: &ibv_mw_bind_info,
    with: impl FnOnce(&MwBindInfo<'_>) -> T,
) -> Result<T> {
    let (addr, length) = (from.addr, from.length);
    // Drops LOCAL_WRITE, which programs pass and other devices ignore, because a window is for peers. With a length of 0 no right is
    // granted.
    let access = match length {
        0 => Access::empty(),
        _ => access(from.mw_access_flags).difference(Access::LOCAL_WRITE),
    };
    if from.mr.is_null() {
        return Ok(with(&MwBindInfo { mr: None, addr, length, access }));
    }
    // SAFETY: as the caller promises.
    unsafe { mr::with(from.mr, |mr| with(&MwBindInfo { mr: Some(mr), addr, length, access })) }
}
