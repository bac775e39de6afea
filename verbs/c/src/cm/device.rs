//! The device as connection management shows it to programs: one context and one protection domain, which live as long as the
//! process, so that `id->verbs` of two identifiers is the same.

use core::ffi::c_int;
use core::ptr::null_mut;
use core::sync::atomic::{AtomicPtr, Ordering};
use std::sync::Arc;

use verbs::Context;

use crate::abi::{ibv_context, ibv_pd};
use crate::context;
use crate::engine::{self, Process};
use crate::errno::{EIO, Result};
use crate::guard::pointer;
use crate::pd::ibv_alloc_pd;

/// What programs get.
pub(super) struct Shown {
    /// Whose it is: a forked child opens its own.
    process: *const Process,
    pub context: *mut ibv_context,
    pub pd: *mut ibv_pd,
}

static SHOWN: AtomicPtr<Shown> = AtomicPtr::new(null_mut());

/// The context and the protection domain of this process; opened when they are first asked for.
///
/// # Errors
/// Those of opening the device.
pub(super) fn shown() -> Result<&'static Shown> {
    if engine::is_dead() {
        return Err(EIO);
    }
    let process: *const Process = engine::current();
    let known = SHOWN.load(Ordering::Acquire);
    // SAFETY: NULL, or what this function made, which is never freed.
    if let Some(shown) = unsafe { known.as_ref() }
        && shown.process == process
    {
        return Ok(shown);
    }
    let context = context::open()?;
    // SAFETY: a context that was just opened.
    let pd = unsafe { ibv_alloc_pd(context) };
    if pd.is_null() {
        return Err(std::io::Error::last_os_error().into());
    }
    let ours = Box::into_raw(Box::new(Shown { process, context, pd }));
    match SHOWN.compare_exchange(known, ours, Ordering::AcqRel, Ordering::Acquire) {
        // SAFETY: it was made here, and is never freed.
        Ok(_) => Ok(unsafe { &*ours }),
        // Another thread was faster; ours stays open, and unused.
        // SAFETY: another thread made it here.
        Err(theirs) => Ok(unsafe { &*theirs }),
    }
}

/// The device with its port started: for identifiers.
///
/// # Errors
/// Those of opening the device and its port.
pub(super) fn wire() -> Result<Arc<Context>> {
    shown()?;
    engine::current().wire()
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_get_devices(num_devices: *mut c_int) -> *mut *mut ibv_context {
    pointer(|| {
        let list = [shown()?.context, null_mut()];
        // SAFETY: NULL, or a number of the caller's.
        if let Some(num) = unsafe { num_devices.as_mut() } {
            *num = 1;
        }
        Ok(Box::into_raw(Box::new(list)).cast())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_free_devices(list: *mut *mut ibv_context) {
    if !list.is_null() {
        // SAFETY: C promises that the list came from `rdma_get_devices`, which made it so.
        drop(unsafe { Box::from_raw(list.cast::<[*mut ibv_context; 2]>()) });
    }
}
