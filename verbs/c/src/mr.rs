//! Memory regions.

use core::ffi::{c_int, c_uint, c_void};
use std::sync::{PoisonError, RwLock};

use verbs::{Access, Mr as Verbs, NullMr, Rereg};

use crate::abi::{self, ibv_mr, ibv_pd};
use crate::attr;
use crate::buf::{self, Buf};
use crate::config;
use crate::errno::{EINVAL, EOPNOTSUPP, Errno, Result};
use crate::guard::{returning_errno, returning_pointer};
use crate::object::{Kind, Object};
use crate::pd;

/// Our part of a `struct ibv_mr`.
#[allow(clippy::large_enum_variant, reason = "most are regions")]
pub(crate) enum Mr {
    /// A region, in a lock because `ibv_rereg_mr` changes it.
    Region(RwLock<Verbs>),
    /// A null region, which lives until it is deregistered.
    Null(#[expect(dead_code, reason = "ends when it is dropped")] NullMr),
}

impl Mr {
    /// The region; `EINVAL` for a null region.
    fn region(&self) -> Result<&RwLock<Verbs>> {
        match self {
            Self::Region(region) => Ok(region),
            Self::Null(_) => Err(EINVAL),
        }
    }
}

/// Converts access rights. Adds on-demand if the user of the program set that for every region (`ROCE_MEMORY`).
fn access(bits: u32) -> Access {
    let chosen = if config::memory_on_demand() { Access::ON_DEMAND } else { Access::empty() };
    attr::access(bits) | chosen
}

impl Kind for Mr {
    type Public = ibv_mr;
    type Private = Self;
    const TAG: u64 = u64::from_be_bytes(*b"mr\0\0\0\0\0\0");
}

/// Calls `with` with the region behind a program's pointer.
///
/// # Errors
/// As [`Object::of`]; `EINVAL` for a null region.
///
/// # Safety
/// As [`Object::of`].
pub(crate) unsafe fn with<T>(mr: *mut ibv_mr, with: impl FnOnce(&Verbs) -> T) -> Result<T> {
    // SAFETY: as the caller promises.
    let mr = unsafe { Object::<Mr>::of(mr)? };
    Ok(with(&mr.private().region()?.read().unwrap_or_else(PoisonError::into_inner)))
}

/// Registers memory.
///
/// # Errors
/// Those of `verbs`.
///
/// # Safety
/// The caller keeps the contract of the C function for the domain, and guarantees that the memory stays mapped until it is deregistered,
/// unless it is registered on demand.
pub(crate) unsafe fn register(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    iova: Option<u64>,
    bits: u32,
) -> Result<*mut ibv_mr> {
    let access = access(bits);
    // SAFETY: as the caller promises.
    let (mr, context) = unsafe {
        let domain = pd::of(pd)?;
        let mr = match iova {
            None => domain.reg_mr_raw(addr.cast(), length, access),
            Some(iova) => domain.reg_mr_iova_raw(addr.cast(), length, iova, access),
        };
        (mr?, (*pd).context)
    };
    let public = ibv_mr { context, pd, addr, length, handle: 0, lkey: mr.lkey(), rkey: mr.rkey() };
    Ok(Object::<Mr>::create(public, Mr::Region(RwLock::new(mr))))
}

fn create(pd: *mut ibv_pd, addr: *mut c_void, length: usize, iova: Option<u64>, bits: u32) -> *mut ibv_mr {
    // SAFETY: the caller keeps the contract of the C function.
    returning_pointer(|| unsafe { register(pd, addr, length, iova, bits) })
}

pub(crate) unsafe extern "C" fn alloc_null_mr(pd: *mut ibv_pd) -> *mut ibv_mr {
    returning_pointer(|| {
        // SAFETY: the caller keeps the contract of the C function.
        let (mr, context) = unsafe { (pd::of(pd)?.alloc_null_mr()?, (*pd).context) };
        let (addr, length) = (core::ptr::null_mut(), usize::MAX);
        // Its rkey is 0, because peers cannot use it.
        let public = ibv_mr { context, pd, addr, length, handle: 0, lkey: mr.lkey(), rkey: 0 };
        Ok(Object::<Mr>::create(public, Mr::Null(mr)))
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_reg_mr(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    access: c_int,
) -> *mut ibv_mr {
    create(pd, addr, length, None, access as u32)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_reg_mr_iova(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: c_int,
) -> *mut ibv_mr {
    create(pd, addr, length, Some(iova), access as u32)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_reg_mr_iova2(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: c_uint,
) -> *mut ibv_mr {
    create(pd, addr, length, Some(iova), access)
}

/// `struct ibv_mr_init_attr`, which older headers do not have.
#[repr(C)]
struct MrInitAttr {
    length: usize,
    access: c_int,
    comp_mask: u64,
    iova: u64,
    addr: *mut c_void,
    fd: c_int,
    fd_offset: u64,
    dmah: *mut c_void,
    buf: *mut Buf,
}

const IBV_REG_MR_MASK_IOVA: u64 = 1 << 0;
const IBV_REG_MR_MASK_ADDR: u64 = 1 << 1;
const IBV_REG_MR_MASK_BUF: u64 = 1 << 5;

/// Registers memory of the process, by its address or as part of a buffer. Memory of a DMA-buf descriptor or a DMA handle is not supported.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_reg_mr_ex(pd: *mut ibv_pd, attr: *mut MrInitAttr) -> *mut ibv_mr {
    returning_pointer(|| {
        // SAFETY: the caller keeps the contract of the C function.
        let attr = unsafe { attr.as_ref() }.ok_or(EINVAL)?;
        let has = |mask| attr.comp_mask & mask != 0;
        if attr.comp_mask & !(IBV_REG_MR_MASK_IOVA | IBV_REG_MR_MASK_ADDR | IBV_REG_MR_MASK_BUF) != 0 {
            return Err(EOPNOTSUPP);
        }
        if !has(IBV_REG_MR_MASK_ADDR) {
            return Err(EINVAL);
        }
        if has(IBV_REG_MR_MASK_BUF) {
            // SAFETY: the caller keeps the contract of the C function.
            unsafe { buf::check(attr.buf, pd, attr.addr, attr.length) }?;
        }
        let iova = has(IBV_REG_MR_MASK_IOVA).then_some(attr.iova);
        // SAFETY: the caller keeps the contract of the C function.
        unsafe { register(pd, attr.addr, attr.length, iova, attr.access as u32) }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_reg_buf_mr(
    pd: *mut ibv_pd,
    buf: *mut Buf,
    addr: *mut c_void,
    length: usize,
    access: c_int,
) -> *mut ibv_mr {
    // SAFETY: the caller keeps the contract of the C function.
    returning_pointer(|| unsafe {
        buf::check(buf, pd, addr, length)?;
        register(pd, addr, length, None, access as u32)
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_dereg_mr(mr: *mut ibv_mr) -> c_int {
    returning_errno(|| {
        #[allow(clippy::result_large_err, reason = "the object comes back with the error")]
        let end = |mr: Mr| {
            let Mr::Region(region) = mr else { return Ok(()) };
            let dereg = region.into_inner().unwrap_or_else(PoisonError::into_inner).dereg();
            dereg.map_err(|(error, mr)| (Errno::from(error), Mr::Region(RwLock::new(mr))))
        };
        // SAFETY: the caller keeps the contract of the C function.
        unsafe { Object::<Mr>::destroy(mr, end) }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_rereg_mr(
    mr: *mut ibv_mr,
    flags: c_int,
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    bits: c_int,
) -> c_int {
    let changed = returning_errno(|| {
        let flags = flags as u32;
        if flags & !abi::IBV_REREG_MR_FLAGS_SUPPORTED != 0 || flags == 0 {
            return Err(EINVAL);
        }
        let has = |flag| flags & flag != 0;
        let moved = has(abi::IBV_REREG_MR_CHANGE_TRANSLATION);
        if moved && (length == 0 || addr.is_null()) {
            return Err(EINVAL);
        }
        if bits != 0 && !has(abi::IBV_REREG_MR_CHANGE_ACCESS) {
            return Err(EINVAL);
        }
        // SAFETY: the caller keeps the contract of the C function, and that of `register`.
        unsafe {
            let object = Object::<Mr>::of(mr)?;
            let mut region = object.private().region()?.write().unwrap_or_else(PoisonError::into_inner);
            let change = Rereg {
                pd: if has(abi::IBV_REREG_MR_CHANGE_PD) { Some(pd::of(pd)?) } else { None },
                len: None,
                access: has(abi::IBV_REREG_MR_CHANGE_ACCESS).then(|| access(bits as u32)),
            };
            if moved {
                region.rereg_raw(addr.cast(), length, &change)?;
            } else {
                region.rereg_in_place_raw(&change)?;
            }
            let public = &mut *object.public();
            (public.lkey, public.rkey) = (region.lkey(), region.rkey());
            if moved {
                (public.addr, public.length) = (addr, length);
            }
            if has(abi::IBV_REREG_MR_CHANGE_PD) {
                public.pd = pd;
            }
        }
        Ok(())
    });
    if changed == 0 { 0 } else { abi::IBV_REREG_MR_ERR_INPUT }
}
