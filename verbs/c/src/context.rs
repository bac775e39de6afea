//! Contexts. A program may open the device several times and gets a context each time.

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

/// Our part of a `struct ibv_context`, which is inside a `struct verbs_context`.
pub(crate) struct Context {
    /// `cmd_fd`, for programs that pass it to another process. It has no function.
    cmd: File,
    /// Readable while events for this context wait that were taken from the device.
    own: OwnedFd,
    /// `async_fd`: readable while events for this context wait, and, if it is the only context, while the device has events.
    events: OwnedFd,
}

impl Kind for Context {
    type Public = verbs_context;
    type Private = Self;
    const TAG: u64 = u64::from_be_bytes(*b"context\0");
    const SURVIVES: bool = true;
}

/// The object that contains a program's context.
///
/// # Safety
/// As [`Object::of`].
pub(crate) unsafe fn of<'a>(context: *mut ibv_context) -> Result<&'a Object<Context>> {
    // SAFETY: as the caller promises.
    let object = unsafe { Object::<Context>::of(outer(context)) }?;
    object.adopt(|| object.private().renew(context))?;
    Ok(object)
}

/// The device of a program's context.
///
/// # Safety
/// As [`Object::of`].
pub(crate) unsafe fn device_of(context: *mut ibv_context) -> Result<Arc<Verbs>> {
    // SAFETY: as the caller promises.
    unsafe { of(context) }?;
    engine::device()
}

/// The structure that contains a program's context.
fn outer(context: *mut ibv_context) -> *mut verbs_context {
    if context.is_null() {
        return core::ptr::null_mut();
    }
    context.wrapping_byte_sub(offset_of!(verbs_context, context)).cast()
}

impl Context {
    /// The file descriptor for events.
    pub(crate) fn async_fd(&self) -> RawFd {
        self.events.as_raw_fd()
    }

    fn fds(&self) -> Fds {
        Fds { own: self.own.as_raw_fd(), events: self.events.as_raw_fd() }
    }

    /// Replaces the descriptors, keeping their numbers: in a forked child, which shares them with its parent, and after [`rest`], when they
    /// belong to a device that was closed.
    fn renew(&self, context: *mut ibv_context) -> Result<()> {
        let device = engine::device()?;
        fd::renew(&self.own, event_fd()?)?;
        fd::renew(&self.events, epoll()?)?;
        delivery::contexts().open(&device, self.fds(), || (context, ()))
    }
}

/// Creates a context for C, with the functions in `public`.
///
/// # Errors
/// If no descriptor or no thread is left.
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

/// Makes a context release the device until the program uses it again.
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
        // Objects that the program has not destroyed stay, as with every libibverbs. The device is closed with its last object.
        // SAFETY: the caller keeps the contract of the C function.
        unsafe { Object::<Context>::destroy(outer(context), |_| Ok(())) }
    })
}
