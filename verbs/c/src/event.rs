//! Asynchronous events.
//!
//! The device has one queue of events for the process. A program that has it open several times gets an object's events on the
//! context that the object was made on, and events of the device and its port on every context. A single context watches the
//! device's queue, and takes from it when it is asked. Once there is a second one, a thread hands out events as they are raised, so
//! that each context's descriptor reports its own.

use core::ffi::c_int;
use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::JoinHandle;

use verbs::{AsyncEventGuard, Context as Verbs, EventElement};

use crate::abi::{self, ibv_async_event, ibv_context, ibv_cq, ibv_qp, ibv_srq};
use crate::context::{self, Context, device_of, event_fd, signal};
use crate::cq::Cq;
use crate::errno::{EINVAL, Result};
use crate::guard::settled;
use crate::object::{self, Object};
use crate::process::OfProcess;
use crate::qp::Qp;
use crate::signals::without_signals;
use crate::srq::Srq;
use crate::wait::{Found, until};

/// The objects that events can name. While it is locked, none of them is destroyed and no event is on its way from the device to the
/// program.
pub(crate) fn names() -> MutexGuard<'static, Names> {
    static NAMES: OfProcess<Mutex<Names>> = OfProcess::new();
    NAMES.lock()
}

/// The contexts that the program has open. While this is locked, none is closed.
pub(crate) fn contexts() -> MutexGuard<'static, Contexts> {
    static CONTEXTS: OfProcess<Mutex<Contexts>> = OfProcess::new();
    CONTEXTS.lock()
}

/// Events that wait for their context, taken from the device.
pub(crate) type Waiting = VecDeque<Given>;

/// An event for a context.
pub(crate) struct Given {
    number: u32,
    element: EventElement,
    /// The object that it happened to, or the number of the port.
    at: usize,
}

impl Given {
    fn is_of_port(&self) -> bool {
        matches!(self.element, EventElement::Port | EventElement::Device)
    }
}

/// The objects that events can name, as addresses. An XRC target has one for each handle.
#[derive(Default)]
pub(crate) struct Names(HashMap<EventElement, Vec<usize>>);

impl Names {
    pub(crate) fn add(&mut self, element: EventElement, at: usize) {
        self.0.entry(element).or_default().push(at);
    }

    /// The objects that an event is reported for.
    pub(crate) fn get(&self, element: EventElement) -> &[usize] {
        self.0.get(&element).map_or(&[], Vec::as_slice)
    }

    /// An object was destroyed: its events that the program did not fetch are dropped.
    pub(crate) fn remove(&mut self, element: EventElement, at: usize) {
        if let Entry::Occupied(mut all) = self.0.entry(element) {
            all.get_mut().retain(|other| *other != at);
            if all.get().is_empty() {
                all.remove();
            }
        }
        // SAFETY: the memory of an object is never freed.
        let context = unsafe { context_of(element, at) };
        contexts().drop_of(context, at);
    }
}

/// The context of an object.
///
/// # Safety
/// It is an object of the element's kind.
unsafe fn context_of(element: EventElement, at: usize) -> *mut ibv_context {
    // SAFETY: as the caller promises.
    unsafe {
        match element {
            EventElement::Qp(_) => (*(at as *mut ibv_qp)).context,
            EventElement::Cq(_) => (*(at as *mut ibv_cq)).context,
            EventElement::Srq(_) => (*(at as *mut ibv_srq)).context,
            _ => core::ptr::null_mut(),
        }
    }
}

/// The contexts that are open, as addresses, each with the events that wait for it. They stand here and not in the object: in a forked
/// child a lock of the object may be held by a thread of the parent.
#[derive(Default)]
pub(crate) struct Contexts {
    pub open: HashMap<usize, Waiting>,
    /// Runs from the opening of a second context until the device is closed.
    pub event_thread: Option<EventThread>,
}

/// The thread that hands out events; dropped, it ends.
pub(crate) struct EventThread {
    stop: OwnedFd,
    thread: Option<JoinHandle<()>>,
}

impl EventThread {
    pub(crate) fn start(device: &Arc<Verbs>) -> Result<Self> {
        let stop = event_fd()?;
        let fds = [device.async_fd()?.as_raw_fd(), stop.as_raw_fd()];
        let device = device.clone();
        // As with every thread of the device, what the C library does at the beginning is over when this returns.
        let (beginning, over) = channel::<()>();
        let body = move || {
            drop(beginning);
            let mut wanted = fds.map(|fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 });
            while wanted[1].revents == 0 {
                while hand_out(&device) {}
                // SAFETY: structures of ours; the descriptors are closed after this thread.
                unsafe { libc::poll(wanted.as_mut_ptr(), 2, -1) };
            }
        };
        let named = std::thread::Builder::new().name("roce-events".into());
        let thread = Some(without_signals(|| named.spawn(body))?);
        let _ = over.recv(); // its end: nothing is sent
        Ok(Self { stop, thread })
    }
}

impl Drop for EventThread {
    fn drop(&mut self) {
        signal(&self.stop);
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

impl Contexts {
    /// A context and what waits for it, if it is open: objects may outlive theirs.
    fn find(&mut self, context: *mut ibv_context) -> Option<(&Context, &mut Waiting)> {
        let waiting = self.open.get_mut(&(context as usize))?;
        // SAFETY: it is taken off this list, which is locked, before it is closed.
        let context = unsafe { context::opened(context) }.ok()?;
        Some((context.private(), waiting))
    }

    fn give(&mut self, context: *mut ibv_context, event: Given) {
        if let Some((context, waiting)) = self.find(context) {
            waiting.push_back(event);
            context.ring();
        }
    }

    /// The oldest event that waits for a context; the program has it from here on.
    fn take(&mut self, context: *mut ibv_context) -> Option<Given> {
        let (context, waiting) = self.find(context)?;
        let event = waiting.pop_front()?;
        if !event.is_of_port() {
            // SAFETY: who ends the object takes its events away first, under this lock.
            unsafe { object::fetched(event.at) };
        }
        if waiting.is_empty() {
            context.hush();
        }
        Some(event)
    }

    fn drop_of(&mut self, context: *mut ibv_context, at: usize) {
        let Some((context, waiting)) = self.find(context) else { return };
        waiting.retain(|event| event.at != at);
        if waiting.is_empty() {
            context.hush();
        }
    }
}

/// Hands the device's oldest event to the contexts that it is for, and acknowledges it to the device: it is the object that waits
/// for the program's acknowledgement. Returns whether there was one.
fn hand_out(device: &Verbs) -> bool {
    let names = names();
    let Some(event) = device.try_get_async_event().map(AsyncEventGuard::ack) else { return false };
    let (number, element) = (event.event.number().into(), event.element);
    let mut contexts = contexts();
    let given = |at| Given { number, element, at };
    match element {
        EventElement::Qp(_) | EventElement::Cq(_) | EventElement::Srq(_) => {
            for at in names.get(element) {
                // SAFETY: an object with a name.
                contexts.give(unsafe { context_of(element, *at) }, given(*at));
            }
        }
        _ => {
            let port = usize::from(element == EventElement::Port);
            let all: Vec<usize> = contexts.open.keys().copied().collect();
            for context in all {
                contexts.give(context as *mut ibv_context, given(port));
            }
        }
    }
    true
}

type Asked = (*mut ibv_context, *mut ibv_async_event);

fn look((context, to): Asked) -> Result<Found> {
    // SAFETY: as C promises.
    let (device, object, to) =
        unsafe { (device_of(context)?, context::of(context)?, to.as_mut().ok_or(EINVAL)?) };
    let state = object.private();
    loop {
        if let Some(Given { number, at, .. }) = contexts().take(context) {
            to.event_type = number;
            // Every event has one element, in one place.
            to.element.cq = at as *mut ibv_cq;
            if matches!(
                number,
                abi::IBV_EVENT_PORT_ACTIVE
                    | abi::IBV_EVENT_PORT_ERR
                    | abi::IBV_EVENT_GID_CHANGE
                    | abi::IBV_EVENT_LID_CHANGE
                    | abi::IBV_EVENT_PKEY_CHANGE
            ) {
                to.element.port_num = at as c_int;
            }
            return Ok(Found::Done);
        }
        if !hand_out(&device) {
            return Ok(Found::Nothing(state.async_fd().as_raw_fd()));
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

/// Does nothing for an event that the program does not have.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_ack_async_event(event: *mut ibv_async_event) {
    let _ = settled(|| {
        // SAFETY: as C promises; an object's pointer is that of its whole structure.
        unsafe {
            let event = event.as_ref().ok_or(EINVAL)?;
            match event.event_type {
                abi::IBV_EVENT_CQ_ERR => Object::<Cq>::acked(event.element.cq.cast(), 1)?,
                abi::IBV_EVENT_SRQ_ERR | abi::IBV_EVENT_SRQ_LIMIT_REACHED => {
                    Object::<Srq>::acked(event.element.srq, 1)?
                }
                abi::IBV_EVENT_QP_FATAL
                | abi::IBV_EVENT_QP_REQ_ERR
                | abi::IBV_EVENT_QP_ACCESS_ERR
                | abi::IBV_EVENT_COMM_EST
                | abi::IBV_EVENT_SQ_DRAINED
                | abi::IBV_EVENT_PATH_MIG
                | abi::IBV_EVENT_PATH_MIG_ERR
                | abi::IBV_EVENT_QP_LAST_WQE_REACHED => Object::<Qp>::acked(event.element.qp.cast(), 1)?,
                _ => 0,
            };
        }
        Ok(())
    });
}
