//! The device as connection management shows it to programs. All identifiers share one context and one protection domain, so that
//! `id->verbs` is the same for all.
//!
//! Both live as long as the process, because programs keep them after the last identifier; connections can end without them. If a program
//! has only looked at the list of devices, the context releases the device until it is used.

use core::ffi::c_int;
use core::ptr::null_mut;
use std::sync::{Arc, Mutex};

use verbs::Context;

use crate::abi::{ibv_context, ibv_pd};
use crate::errno::Result;
use crate::guard::{returning_pointer, uncancelled};
use crate::pd::ibv_alloc_pd;
use crate::process::OfProcess;
use crate::{context, engine, ops};

/// The objects that programs get. A forked child creates its own.
static SHOWN: OfProcess<Mutex<Shown>> = OfProcess::new();

struct Shown {
    /// NULL before its first use.
    context: *mut ibv_context,
    /// NULL before the first identifier.
    pd: *mut ibv_pd,
}

impl Default for Shown {
    fn default() -> Self {
        Self { context: null_mut(), pd: null_mut() }
    }
}

// SAFETY: the pointers are only passed to C functions, which any thread may call.
unsafe impl Send for Shown {}

impl Shown {
    fn context(&mut self) -> Result<*mut ibv_context> {
        if self.context.is_null() {
            self.context = ops::open()?;
        }
        Ok(self.context)
    }

    /// Releases the device, unless the program uses it.
    fn rest(&self) -> Result<()> {
        if !self.context.is_null() && self.pd.is_null() && engine::has_one() {
            // SAFETY: a context that was created here and is never closed.
            unsafe { context::rest(self.context) }?;
        }
        Ok(())
    }
}

/// The context and the protection domain that all identifiers share.
///
/// # Errors
/// Those of opening the device.
pub(super) fn shown() -> Result<(*mut ibv_context, *mut ibv_pd)> {
    let mut shown = SHOWN.lock();
    let context = shown.context()?;
    if shown.pd.is_null() {
        // SAFETY: a context that was created here and is never closed.
        shown.pd = unsafe { ibv_alloc_pd(context) };
    }
    if shown.pd.is_null() { Err(std::io::Error::last_os_error().into()) } else { Ok((context, shown.pd)) }
}

/// The device with its port started, for identifiers.
///
/// # Errors
/// Those of opening the device and its port.
pub(super) fn wire() -> Result<Arc<Context>> {
    shown()?;
    engine::wire()
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_get_devices(num_devices: *mut c_int) -> *mut *mut ibv_context {
    returning_pointer(|| {
        let list = [SHOWN.lock().context()?, null_mut()];
        // SAFETY: NULL, or a number that the caller must be able to write.
        if let Some(num) = unsafe { num_devices.as_mut() } {
            *num = 1;
        }
        Ok(Box::into_raw(Box::new(list)).cast())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_free_devices(list: *mut *mut ibv_context) {
    let _ = uncancelled(|| {
        if !list.is_null() {
            // SAFETY: the caller must pass a list of `rdma_get_devices`, which has this type.
            drop(unsafe { Box::from_raw(list.cast::<[*mut ibv_context; 2]>()) });
        }
        SHOWN.lock().rest()
    });
}
