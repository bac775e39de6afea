//! The device as connection management shows it to programs: one context and one protection domain, so that `id->verbs` of two
//! identifiers is the same.
//!
//! They live as long as the process, since programs keep them after the last identifier, and what connections need at their end goes on
//! without one. A program that has only looked at the list of devices holds nothing of the device: the context rests until it is used.

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

/// What programs get: a forked child opens its own.
static SHOWN: OfProcess<Mutex<Shown>> = OfProcess::new();

struct Shown {
    /// NULL before it is first asked for.
    context: *mut ibv_context,
    /// NULL before the first identifier.
    pd: *mut ibv_pd,
}

impl Default for Shown {
    fn default() -> Self {
        Self { context: null_mut(), pd: null_mut() }
    }
}

// SAFETY: pointers that are passed on to C, whose calls any thread may make.
unsafe impl Send for Shown {}

impl Shown {
    fn context(&mut self) -> Result<*mut ibv_context> {
        if self.context.is_null() {
            self.context = ops::open()?;
        }
        Ok(self.context)
    }

    /// Holds nothing of the device, unless the program does.
    fn rest(&self) -> Result<()> {
        if !self.context.is_null() && self.pd.is_null() && engine::has_one() {
            // SAFETY: a context that was made here, and is never closed.
            unsafe { context::rest(self.context) }?;
        }
        Ok(())
    }
}

/// The context and the protection domain of identifiers.
///
/// # Errors
/// Those of opening the device.
pub(super) fn shown() -> Result<(*mut ibv_context, *mut ibv_pd)> {
    let mut shown = SHOWN.lock();
    let context = shown.context()?;
    if shown.pd.is_null() {
        // SAFETY: a context that was made here, and is never closed.
        shown.pd = unsafe { ibv_alloc_pd(context) };
    }
    if shown.pd.is_null() { Err(std::io::Error::last_os_error().into()) } else { Ok((context, shown.pd)) }
}

/// The device with its port started: for identifiers.
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
        // SAFETY: NULL, or a number of the caller's.
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
            // SAFETY: C promises that the list came from `rdma_get_devices`, which made it so.
            drop(unsafe { Box::from_raw(list.cast::<[*mut ibv_context; 2]>()) });
        }
        SHOWN.lock().rest()
    });
}
