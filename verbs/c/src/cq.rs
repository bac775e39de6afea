//! Completion queues.

use core::cell::UnsafeCell;
use core::ffi::{c_int, c_void};

use verbs::{Cq as Verbs, CqExPoll, DeviceError, EventElement, VerbsError};

use crate::abi::{ibv_cq, ibv_cq_ex, ibv_wc};
use crate::errno::{EINVAL, Errno, Result};
use crate::guard::{guarded, returning_errno};
use crate::object::{self, Kind, Object};
use crate::{delivery, wc};

/// Our part of a `struct ibv_cq` or `struct ibv_cq_ex`.
pub(crate) struct Cq {
    pub verbs: Verbs,
    /// The poll of a thread between `start_poll` and `end_poll`. It borrows from `verbs`, which does not move, and is dropped before
    /// `verbs`.
    pub poll: UnsafeCell<Option<CqExPoll<'static>>>,
}

impl Kind for Cq {
    type Public = ibv_cq_ex;
    type Private = Self;
    const TAG: u64 = u64::from_be_bytes(*b"cq\0\0\0\0\0\0");
}

/// The queue behind a program's pointer.
///
/// # Safety
/// As [`Object::of`].
pub(crate) unsafe fn of<'a>(cq: *mut ibv_cq) -> Result<&'a Verbs> {
    // SAFETY: as the caller promises.
    Ok(unsafe { &Object::<Cq>::of(cq.cast())?.private().verbs })
}

/// Counts an event of the queue that the program fetches, and returns the program's own pointer (`cq_context`).
///
/// # Safety
/// As [`Object::of`].
pub(crate) unsafe fn fetched(cq: *mut ibv_cq) -> Result<*mut c_void> {
    // SAFETY: as the caller promises.
    let object = unsafe { Object::<Cq>::of(cq.cast()) }?;
    // Acknowledges the event to the device. From here on the object counts it.
    object.private().verbs.ack_events(1)?;
    // SAFETY: the object is alive.
    unsafe { object::fetched(cq as usize) };
    // SAFETY: the structure belongs to a live object.
    Ok(unsafe { (*object.public()).cq_context })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_destroy_cq(cq: *mut ibv_cq) -> c_int {
    returning_errno(|| {
        // SAFETY: the caller keeps the contract of the C function.
        let (channel, element) = unsafe {
            let element = EventElement::Cq(of(cq)?.number());
            ((*cq).channel, element)
        };
        let mut names = delivery::names();
        #[allow(clippy::result_large_err, reason = "the object comes back with the error")]
        let end = move |mut state: Cq| {
            *state.poll.get_mut() = None;
            let Cq { verbs, poll } = state;
            // Events of the queue that wait on the channel are dropped with it.
            let destroyed = verbs.destroy().map(|()| names.remove(element, cq as usize));
            destroyed.map_err(|(error, verbs)| (Errno::from(error), Cq { verbs, poll }))
        };
        // SAFETY: the caller keeps the contract of the C function.
        unsafe { Object::<Cq>::destroy(cq.cast(), end) }?;
        if !channel.is_null() {
            // SAFETY: the channel outlives the queue.
            unsafe { (*channel).refcnt -= 1 };
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_resize_cq(cq: *mut ibv_cq, cqe: c_int) -> c_int {
    returning_errno(|| {
        // SAFETY: the caller keeps the contract of the C function.
        unsafe {
            let verbs = of(cq)?;
            verbs.resize(u32::try_from(cqe).map_err(|_| EINVAL)?)?;
            (*cq).cqe = c_int::try_from(verbs.cqe()).unwrap_or(c_int::MAX);
        }
        Ok(())
    })
}

pub(crate) unsafe extern "C" fn req_notify_cq(cq: *mut ibv_cq, solicited_only: c_int) -> c_int {
    // SAFETY: the caller keeps the contract of the C function.
    returning_errno(|| match unsafe { of(cq) }?.req_notify(solicited_only != 0) {
        // Without a channel no event is raised, as with other devices.
        Err(VerbsError::Device(DeviceError::NoChannel)) => Ok(()),
        armed => Ok(armed?),
    })
}

pub(crate) unsafe extern "C" fn poll_cq(cq: *mut ibv_cq, count: c_int, to: *mut ibv_wc) -> c_int {
    let polled = guarded(|| {
        // SAFETY: the caller keeps the contract of the C function.
        let verbs = unsafe { of(cq) }?;
        let max = usize::try_from(count).map_err(|_| EINVAL)?;
        if to.is_null() && max > 0 {
            return Err(EINVAL);
        }
        let mut next = to;
        let polled = verbs.poll_with(max, |from| {
            // SAFETY: the caller must provide room for `count` completions, and at most that many are written.
            unsafe {
                next.write(wc::to_c(&from));
                next = next.add(1);
            }
        })?;
        Ok(polled as c_int)
    });
    polled.unwrap_or_else(|error| -error.0)
}
