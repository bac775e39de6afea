//! The device as connection management shows it to programs: one context and one protection domain, so that `id->verbs` of two
//! identifiers is the same.
//!
//! They live as long as the process, since programs keep them after the last identifier, and what connections need at their end goes on
//! without one. A program that has only looked at the list of devices holds nothing of the device: the context rests until it is used.

use core::ffi::c_int;
use core::ptr::null_mut;
use core::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use verbs::Context;

use crate::abi::{ibv_context, ibv_pd};
use crate::context;
use crate::engine::{self, Process};
use crate::errno::Result;
use crate::guard::{pointer, settled};
use crate::pd::ibv_alloc_pd;

/// What programs get.
pub(super) struct Shown {
    /// Whose it is: a forked child opens its own.
    process: *const Process,
    pub context: *mut ibv_context,
    /// NULL before the first identifier. Locked, too, while it is decided whether the context rests.
    pd: Mutex<*mut ibv_pd>,
}

static SHOWN: AtomicPtr<Shown> = AtomicPtr::new(null_mut());

/// What this process shows already.
fn known() -> Option<&'static Shown> {
    // SAFETY: NULL, or what `shown` made, which is never freed.
    let known = unsafe { SHOWN.load(Ordering::Acquire).as_ref() };
    known.filter(|shown| core::ptr::eq(shown.process, engine::current()))
}

/// The context of this process; opened when it is first asked for.
///
/// # Errors
/// Those of opening the device.
pub(super) fn shown() -> Result<&'static Shown> {
    let before = SHOWN.load(Ordering::Acquire);
    if let Some(shown) = known() {
        return Ok(shown);
    }
    let process: *const Process = engine::current();
    let context = context::open()?;
    let ours = Box::into_raw(Box::new(Shown { process, context, pd: Mutex::new(null_mut()) }));
    match SHOWN.compare_exchange(before, ours, Ordering::AcqRel, Ordering::Acquire) {
        // SAFETY: it was made here, and is never freed.
        Ok(_) => Ok(unsafe { &*ours }),
        // Another thread was faster; ours stays open, and unused.
        // SAFETY: another thread made it here.
        Err(theirs) => Ok(unsafe { &*theirs }),
    }
}

impl Shown {
    /// The protection domain of identifiers.
    ///
    /// # Errors
    /// Those of opening the device.
    pub(super) fn pd(&self) -> Result<*mut ibv_pd> {
        let mut pd = self.pd.lock().unwrap_or_else(PoisonError::into_inner);
        if pd.is_null() {
            // SAFETY: a context that was made here, and is never closed.
            *pd = unsafe { ibv_alloc_pd(self.context) };
        }
        if pd.is_null() { Err(std::io::Error::last_os_error().into()) } else { Ok(*pd) }
    }

    /// Holds nothing of the device, unless the program does.
    fn rest(&self) -> Result<()> {
        let pd = self.pd.lock().unwrap_or_else(PoisonError::into_inner);
        if pd.is_null() && engine::current().has_one() {
            // SAFETY: as above.
            unsafe { context::rest(self.context) }?;
        }
        Ok(())
    }
}

/// The device with its port started: for identifiers.
///
/// # Errors
/// Those of opening the device and its port.
pub(super) fn wire() -> Result<Arc<Context>> {
    shown()?.pd()?;
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
    let _ = settled(|| {
        if !list.is_null() {
            // SAFETY: C promises that the list came from `rdma_get_devices`, which made it so.
            drop(unsafe { Box::from_raw(list.cast::<[*mut ibv_context; 2]>()) });
        }
        known().map_or(Ok(()), Shown::rest)
    });
}
