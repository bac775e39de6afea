//! Buffers that the library allocates (`struct ibv_buf` of newer releases). They are ordinary memory of the process.

use core::ffi::{c_int, c_void};
use core::ptr::null_mut;

use crate::abi::ibv_pd;
use crate::errno::{EINVAL, ENOMEM, Errno, Result};
use crate::guard::{returning_minus_one, returning_pointer, uncancelled};
use crate::pd;

/// `struct ibv_buf`. It is opaque to programs.
pub(crate) struct Buf {
    addr: *mut c_void,
    len: usize,
    pd: *mut ibv_pd,
}

/// Checks that a range lies in a buffer of this domain.
///
/// # Errors
/// `EINVAL` if it does not.
///
/// # Safety
/// `buf` is NULL or a buffer of this module.
pub(crate) unsafe fn check(buf: *const Buf, pd: *mut ibv_pd, addr: *mut c_void, len: usize) -> Result<()> {
    // SAFETY: as the caller promises.
    let buf = unsafe { buf.as_ref() }.ok_or(EINVAL)?;
    let at = addr.addr().checked_sub(buf.addr.addr()).ok_or(EINVAL)?;
    let fits = at.checked_add(len).is_some_and(|end| end <= buf.len);
    if fits && buf.pd == pd { Ok(()) } else { Err(EINVAL) }
}

/// Allocates page-aligned memory.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_alloc_buf(pd: *mut ibv_pd, size: usize, to: *mut *mut Buf) -> *mut c_void {
    returning_pointer(|| {
        // SAFETY: the caller keeps the contract of the C function.
        let to = unsafe {
            pd::of(pd)?;
            to.as_mut().ok_or(EINVAL)?
        };
        let mut addr = null_mut();
        // SAFETY: numbers, and a place of ours for the result.
        let error =
            unsafe { libc::posix_memalign(&raw mut addr, libc::sysconf(libc::_SC_PAGESIZE) as usize, size) };
        if error != 0 {
            return Err(Errno(error));
        }
        if addr.is_null() {
            return Err(ENOMEM);
        }
        *to = Box::into_raw(Box::new(Buf { addr, len: size, pd }));
        Ok(addr)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_free_buf(buf: *mut Buf) {
    let _ = uncancelled(|| {
        if !buf.is_null() {
            // SAFETY: the caller must pass a buffer of `ibv_alloc_buf`, and must not use it any more.
            unsafe {
                let buf = Box::from_raw(buf);
                libc::free(buf.addr);
            }
        }
        Ok(())
    });
}

/// Fails: no buffer has a DMA-buf descriptor.
#[unsafe(no_mangle)]
extern "C" fn ibv_export_buf_dmabuf_fd(_buf: *mut Buf) -> c_int {
    returning_minus_one(|| Err(Errno(libc::ENODATA)))
}
