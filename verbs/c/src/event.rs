//! Asynchronous events.
//!
//! The device has one queue of events for the process. A program that has it open several times gets the events of an object where
//! the object was made, and those of the device and its port everywhere.

use core::ffi::c_int;
use std::collections::VecDeque;
use std::os::fd::AsRawFd;
use std::sync::{Mutex, MutexGuard, PoisonError};

use verbs::{AsyncEventGuard, EventElement};

use crate::abi::{self, ibv_async_event, ibv_context, ibv_cq, ibv_qp, ibv_srq};
use crate::context::{self, device_of};
use crate::engine;
use crate::errno::{EINVAL, Errno, Result};
use crate::guard::settled;
use crate::wait::{Found, until};

/// An event that a program has and will acknowledge: until then its object cannot be destroyed.
pub(crate) struct Unacked {
    number: u32,
    element: usize,
    /// Dropped, it is acknowledged; `None`: a copy for one more context.
    _guard: Option<AsyncEventGuard>,
}

/// Events that wait for their context, taken from the device on behalf of another one.
#[derive(Default)]
pub(crate) struct Waiting(Mutex<VecDeque<Given>>);

impl Waiting {
    fn lock(&self) -> MutexGuard<'_, VecDeque<Given>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// An event for a context.
struct Given {
    number: u32,
    /// What it happened to: an object, or the number of a port.
    element: usize,
    guard: Option<AsyncEventGuard>,
}

/// The object that an event names, and its context; `None`: it is being destroyed.
fn named(element: EventElement) -> Option<(usize, *mut ibv_context)> {
    let at = *engine::current().named().get(&element)?;
    // SAFETY: objects that are named live, and their context longer.
    let context = unsafe {
        match element {
            EventElement::Qp(_) => (*(at as *mut ibv_qp)).context,
            EventElement::Cq(_) => (*(at as *mut ibv_cq)).context,
            EventElement::Srq(_) => (*(at as *mut ibv_srq)).context,
            _ => return None,
        }
    };
    Some((at, context))
}

/// Hands an event of the device to whom it is for.
fn hand_out(guard: AsyncEventGuard) -> Result<()> {
    let number = guard.event.number().into();
    let element = guard.element;
    let give = |context: *mut ibv_context, element, guard| -> Result<()> {
        // SAFETY: a context of an object that lives, or one that is open.
        let object = unsafe { context::of(context) }?;
        object.private().waiting.lock().push_back(Given { number, element, guard });
        object.private().ring();
        Ok(())
    };
    match element {
        EventElement::Qp(_) | EventElement::Cq(_) | EventElement::Srq(_) => match named(element) {
            Some((at, context)) => give(context, at, Some(guard)),
            // Nobody is there to fetch it.
            None => Ok(()),
        },
        _ => {
            let port = usize::from(element == EventElement::Port);
            let contexts = engine::current().contexts().clone();
            for context in contexts {
                give(context as *mut ibv_context, port, None)?;
            }
            Ok(())
        }
    }
}

type Asked = (*mut ibv_context, *mut ibv_async_event);

fn look((context, to): Asked) -> Result<Found> {
    // SAFETY: as C promises.
    let (device, object, to) =
        unsafe { (device_of(context)?, context::of(context)?, to.as_mut().ok_or(EINVAL)?) };
    let state = object.private();
    state.watch(context, &device)?;
    loop {
        let next = {
            let mut waiting = state.waiting.lock();
            let next = waiting.pop_front();
            if waiting.is_empty() {
                state.hush();
            }
            next
        };
        if let Some(Given { number, element, guard }) = next {
            to.event_type = number;
            // Every event has one element, in one place.
            to.element.cq = element as *mut ibv_cq;
            if matches!(
                number,
                abi::IBV_EVENT_PORT_ACTIVE
                    | abi::IBV_EVENT_PORT_ERR
                    | abi::IBV_EVENT_GID_CHANGE
                    | abi::IBV_EVENT_LID_CHANGE
                    | abi::IBV_EVENT_PKEY_CHANGE
            ) {
                to.element.port_num = element as c_int;
            }
            engine::current().unacked().push(Unacked { number, element, _guard: guard });
            return Ok(Found::Done);
        }
        match device.try_get_async_event() {
            Some(event) => hand_out(event)?,
            None => return Ok(Found::Nothing(state.async_fd().as_raw_fd())),
        }
    }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn ibv_get_async_event(
    context: *mut ibv_context,
    event: *mut ibv_async_event,
) -> c_int {
    until(look, (context, event))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_ack_async_event(event: *mut ibv_async_event) {
    let _ = settled(|| {
        // SAFETY: as C promises; a pointer covers every view of the element but the number of a port.
        let (number, element, port) = unsafe {
            let event = event.as_ref().ok_or(EINVAL)?;
            (event.event_type, event.element.cq as usize, event.element.port_num as usize)
        };
        let mut unacked = engine::current().unacked();
        let same = |one: &Unacked| one.number == number && (one.element == element || one.element == port);
        let at = unacked.iter().position(same).ok_or(Errno(libc::ENOENT))?;
        let acked = unacked.swap_remove(at);
        drop(unacked);
        drop(acked);
        Ok(())
    });
}
