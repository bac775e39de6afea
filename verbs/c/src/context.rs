//! Contexts: the device as a program has opened it, as often as it likes.

use core::ffi::c_int;
use core::mem::offset_of;
use std::fs::{File, OpenOptions};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::Arc;

use verbs::Context as Verbs;

use crate::abi::{ibv_context, verbs_context};
use crate::delivery::{self, Fds};
use crate::engine;
use crate::errno::Result;
use crate::fd::{self, epoll, event_fd};
use crate::guard::returning_errno;
use crate::object::{Kind, Object};

/// `struct ibv_context`, inside of `struct verbs_context`.
pub(crate) struct Context {
    /// `cmd_fd`, for programs that pass it to another process: nothing is behind it.
    cmd: File,
    /// Readable while there are events for it that were taken from the device.
    own: OwnedFd,
    /// `async_fd`: readable while there are events for this context, and, as long as it is the only one, while the device has any.
    events: OwnedFd,
}

impl Kind for Context {
    type Public = verbs_context;
    type Private = Self;
    const TAG: u64 = u64::from_be_bytes(*b"context\0");
    const SURVIVES: bool = true;
}

/// The object that a program's pointer is inside of.
///
/// # Safety
/// As [`Object::of`].
pub(crate) unsafe fn of<'a>(context: *mut ibv_context) -> Result<&'a Object<Context>> {
    // SAFETY: as the caller promises.
    let object = unsafe { Object::<Context>::of(outer(context)) }?;
    object.adopt(|| object.private().renew(context))?;
    Ok(object)
}

/// The device behind a program's context.
///
/// # Safety
/// As [`Object::of`].
pub(crate) unsafe fn device_of(context: *mut ibv_context) -> Result<Arc<Verbs>> {
    // SAFETY: as the caller promises.
    unsafe { of(context) }?;
    engine::device()
}

fn outer(context: *mut ibv_context) -> *mut verbs_context {
    if context.is_null() {
        return core::ptr::null_mut();
    }
    context.wrapping_byte_sub(offset_of!(verbs_context, context)).cast()
}

impl Context {
    /// The descriptor for events.
    pub(crate) fn async_fd(&self) -> RawFd {
        self.events.as_raw_fd()
    }

    fn fds(&self) -> Fds {
        Fds { own: self.own.as_raw_fd(), events: self.events.as_raw_fd() }
    }

    /// A forked child shares the descriptors with its parent: new ones take their numbers. After a rest they are those of a device
    /// that was closed.
    fn renew(&self, context: *mut ibv_context) -> Result<()> {
        let device = engine::device()?;
        fd::renew(&self.own, event_fd()?)?;
        fd::renew(&self.events, epoll()?)?;
        delivery::contexts().open(&device, self.fds(), || (context, ()))
    }
}

/// Gives C a context, with the calls that are in the structure.
///
/// # Errors
/// No descriptor or no thread is left.
pub(crate) fn create(device: &Arc<Verbs>, mut public: verbs_context) -> Result<*mut ibv_context> {
    let state = Context {
        cmd: OpenOptions::new().read(true).write(true).open("/dev/null")?,
        own: event_fd()?,
        events: epoll()?,
    };
    public.context.cmd_fd = state.cmd.as_raw_fd();
    public.context.async_fd = state.async_fd();
    public.context.num_comp_vectors = device.num_comp_vectors() as c_int;
    delivery::contexts().open(device, state.fds(), || {
        let object = Object::<Context>::create(public, state);
        let context = object.wrapping_byte_add(offset_of!(verbs_context, context)).cast::<ibv_context>();
        (context, context)
    })
}

/// A context that the program may use again, and need not: it holds nothing of the device until then.
///
/// # Safety
/// As [`Object::of`].
pub(crate) unsafe fn rest(context: *mut ibv_context) -> Result<()> {
    // SAFETY: as the caller promises.
    let object = unsafe { Object::<Context>::of(outer(context)) }?;
    delivery::contexts().close(context);
    object.rest();
    Ok(())
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_close_device(context: *mut ibv_context) -> c_int {
    returning_errno(|| {
        delivery::contexts().close(context);
        // What the program has not destroyed stays, as with every libibverbs: the device is closed with its last object.
        // SAFETY: as C promises.
        unsafe { Object::<Context>::destroy(outer(context), |_| Ok(())) }
    })
}
