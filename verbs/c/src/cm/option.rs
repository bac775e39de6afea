//! Options of identifiers.

use core::ffi::{c_int, c_void};

use verbs::rdma_cm::CmOption;

use super::id;
use crate::abi::{
    RDMA_OPTION_IB, RDMA_OPTION_IB_PATH, RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT, RDMA_OPTION_ID_AFONLY,
    RDMA_OPTION_ID_REUSEADDR, RDMA_OPTION_ID_TOS, rdma_cm_id,
};
use crate::errno::{EINVAL, EOPNOTSUPP, Errno, Result};
use crate::guard::returning_zero;

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_set_option(
    id: *mut rdma_cm_id,
    level: c_int,
    name: c_int,
    optval: *mut c_void,
    optlen: usize,
) -> c_int {
    returning_zero(|| {
        // SAFETY: the caller keeps the contract of the C function.
        let cm = &unsafe { id::of(id) }?.private().cm;
        let (Ok(level), Ok(name)) = (u32::try_from(level), u32::try_from(name)) else { return Err(EINVAL) };
        // SAFETY: the caller keeps the contract of the C function.
        let option = unsafe {
            match (level, name) {
                (RDMA_OPTION_ID, RDMA_OPTION_ID_TOS) => CmOption::Tos(value(optval, optlen)?),
                (RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR) => {
                    CmOption::ReuseAddr(value::<c_int>(optval, optlen)? != 0)
                }
                (RDMA_OPTION_ID, RDMA_OPTION_ID_AFONLY) => {
                    CmOption::AfOnly(value::<c_int>(optval, optlen)? != 0)
                }
                (RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT) => CmOption::AckTimeout(value(optval, optlen)?),
                // Paths follow from the addresses.
                (RDMA_OPTION_IB, RDMA_OPTION_IB_PATH) => return Err(EOPNOTSUPP),
                _ => return Err(Errno(libc::ENOSYS)),
            }
        };
        Ok(cm.set_option(option)?)
    })
}

/// Reads an option's value, which must have exactly this size.
///
/// # Safety
/// `value` is NULL, or points to `len` bytes.
unsafe fn value<T: Copy>(value: *const c_void, len: usize) -> Result<T> {
    if value.is_null() || len != size_of::<T>() {
        return Err(EINVAL);
    }
    // SAFETY: as the caller promises.
    Ok(unsafe { value.cast::<T>().read_unaligned() })
}
