//! Which context gets an event of the device.
//!
//! The device has one queue of events for the process. If a program has opened the device several times, the events of an object go to the
//! context that the object was created on, and events of the device and its port go to every context. A single context watches the device's
//! queue, and takes events from it when it is asked. As soon as there is a second context, a thread distributes events as they are raised,
//! so that each context's descriptor reports its own events.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};
use std::os::fd::{AsRawFd, RawFd};
use std::sync::{Arc, Mutex, MutexGuard};

use verbs::{AsyncEventGuard, Context, EventElement};

use crate::abi::{ibv_context, ibv_cq, ibv_qp, ibv_srq};
use crate::errno::Result;
use crate::event_thread::EventThread;
use crate::process::OfProcess;
use crate::{engine, fd, object};

/// The objects that events can refer to. While it is locked, none of them is destroyed, and no event is between the device and the program.
pub(crate) fn names() -> MutexGuard<'static, Names> {
    static NAMES: OfProcess<Mutex<Names>> = OfProcess::new();
    NAMES.lock()
}

/// The contexts that the program has open. While it is locked, none of them is closed.
pub(crate) fn contexts() -> MutexGuard<'static, Contexts> {
    static CONTEXTS: OfProcess<Mutex<Contexts>> = OfProcess::new();
    CONTEXTS.lock()
}

/// An event for a context.
pub(crate) struct Given {
    pub number: u32,
    element: EventElement,
    /// The object that the event concerns, or the number of the port.
    pub at: usize,
}

impl Given {
    fn is_of_port(&self) -> bool {
        matches!(self.element, EventElement::Port | EventElement::Device)
    }
}

/// The objects that events can refer to, as addresses. An XRC target has one for each handle.
#[derive(Default)]
pub(crate) struct Names(HashMap<EventElement, Vec<usize>>);

impl Names {
    /// Adds an object.
    pub(crate) fn add(&mut self, element: EventElement, at: usize) {
        self.0.entry(element).or_default().push(at);
    }

    /// The objects for which an event is reported.
    pub(crate) fn get(&self, element: EventElement) -> &[usize] {
        self.0.get(&element).map_or(&[], Vec::as_slice)
    }

    /// Removes a destroyed object. Drops those of its events that the program did not fetch.
    pub(crate) fn remove(&mut self, element: EventElement, at: usize) {
        if let Entry::Occupied(mut all) = self.0.entry(element) {
            all.get_mut().retain(|other| *other != at);
            if all.get().is_empty() {
                all.remove();
            }
        }
        // SAFETY: the memory of an object is never freed.
        let context = unsafe { context_of(element, at) };
        if let Some(context) = contexts().find(context) {
            context.drop_of(at);
        }
    }
}

/// The context of an object.
///
/// # Safety
/// The object at `at` is of the element's kind.
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

/// The open contexts, by address.
#[derive(Default)]
pub(crate) struct Contexts(HashMap<usize, Open>);

/// An open context. Its waiting events are stored here and not in the object, because in a forked child a lock in the object may be held by
/// a thread of the parent.
struct Open {
    fds: Fds,
    /// Events for the context that were taken from the device.
    waiting: VecDeque<Given>,
}

/// The descriptors of a context, which are open while the context is.
#[derive(Clone, Copy)]
pub(crate) struct Fds {
    /// Readable while events wait for the context.
    pub own: RawFd,
    /// Watches `own` and, if the context is the only one, the device's descriptor.
    pub events: RawFd,
}

impl Contexts {
    /// Opens a context. `make` creates it after its descriptors report its events.
    ///
    /// # Errors
    /// If no descriptor or no thread is left; those of `make`.
    pub(crate) fn open<T>(
        &mut self,
        device: &Arc<Context>,
        fds: Fds,
        make: impl FnOnce() -> (*mut ibv_context, T),
    ) -> Result<T> {
        self.watch(device, fds)?;
        let (context, made) = make();
        self.0.insert(context as usize, Open { fds, waiting: VecDeque::new() });
        Ok(made)
    }

    /// Makes the descriptor `events` of a context that is being opened report its events. If it is the first context, `events` watches the
    /// device's descriptor. If it is the second, starts the thread that distributes events.
    fn watch(&self, device: &Arc<Context>, fds: Fds) -> Result<()> {
        fd::watch(fds.events, fds.own)?;
        let events = device.async_fd()?.as_raw_fd();
        let mut thread = engine::event_thread();
        if thread.is_some() {
            return Ok(());
        }
        if self.0.is_empty() {
            return fd::watch(fds.events, events);
        }
        *thread = Some(EventThread::start(device, hand_out)?);
        self.0.values().try_for_each(|other| fd::unwatch(other.fds.events, events))
    }

    /// Closes a context: no more events are distributed to it.
    pub(crate) fn close(&mut self, context: *mut ibv_context) {
        self.0.remove(&(context as usize));
    }

    /// The context, if it is open. Objects may outlive their context.
    fn find(&mut self, context: *mut ibv_context) -> Option<&mut Open> {
        self.0.get_mut(&(context as usize))
    }

    /// Takes the oldest event that waits for a context, for the program.
    pub(crate) fn take(&mut self, context: *mut ibv_context) -> Option<Given> {
        let open = self.find(context)?;
        let event = open.waiting.pop_front()?;
        if !event.is_of_port() {
            // SAFETY: the object is alive, because destroying it first removes its events under this lock.
            unsafe { object::fetched(event.at) };
        }
        open.clear_if_empty();
        Some(event)
    }
}

impl Open {
    /// Queues an event for the context.
    fn give(&mut self, event: Given) {
        self.waiting.push_back(event);
        fd::signal(self.fds.own);
    }

    /// Drops the events of an object.
    fn drop_of(&mut self, at: usize) {
        self.waiting.retain(|event| event.at != at);
        self.clear_if_empty();
    }

    /// Makes the descriptor unreadable if no event waits.
    fn clear_if_empty(&self) {
        if self.waiting.is_empty() {
            fd::clear(self.fds.own);
        }
    }
}

/// Distributes the device's oldest event to its contexts, and acknowledges it to the device; the object counts the program's
/// acknowledgements instead. Returns whether there was an event.
pub(crate) fn hand_out(device: &Context) -> bool {
    let names = names();
    let Some(event) = device.try_get_async_event().map(AsyncEventGuard::ack) else { return false };
    let (number, element) = (event.event.number().into(), event.element);
    let mut contexts = contexts();
    let given = |at| Given { number, element, at };
    match element {
        EventElement::Qp(_) | EventElement::Cq(_) | EventElement::Srq(_) => {
            for at in names.get(element) {
                // SAFETY: an object in `names` is alive.
                if let Some(context) = contexts.find(unsafe { context_of(element, *at) }) {
                    context.give(given(*at));
                }
            }
        }
        _ => {
            let port = usize::from(element == EventElement::Port);
            contexts.0.values_mut().for_each(|context| context.give(given(port)));
        }
    }
    true
}
