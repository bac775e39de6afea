//! Asynchronous events: they concern an object, not a work request (IBA 11.6.3).
//!
//! A program acknowledges a fetched event when its handler no longer needs the object; until then the object is not destroyed
//! (ibv_ack_async_event(3)). So the queue counts, for each object, the events that were fetched and not acknowledged.

use core::sync::atomic::{AtomicU64, Ordering};
use std::collections::{HashMap, VecDeque};
use std::io;
use std::sync::{Mutex, MutexGuard, OnceLock};

use crate::id::Qpn;
use crate::proto::status::AsyncEvent;
use crate::sync::eventfd::EventFd;
use crate::sync::lock::lock;

/// The object of an asynchronous event (the union in `struct ibv_async_event`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
#[non_exhaustive]
pub enum EventElement {
    /// The device as a whole.
    Device,
    /// Its port.
    Port,
    /// A queue pair.
    Qp(Qpn),
    /// A completion queue, by its number in the device.
    Cq(u32),
    /// A shared receive queue, by its number in the device.
    Srq(u32),
}

/// An asynchronous event (`struct ibv_async_event`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub struct Event {
    /// What happened.
    pub event: AsyncEvent,
    /// The object concerned.
    pub element: EventElement,
}

#[derive(Debug, Default)]
struct Inner {
    queue: VecDeque<Event>,
    /// Number of events that were fetched and not acknowledged.
    unacked: HashMap<EventElement, u32>,
    /// Objects that are being destroyed: further events about them are ignored.
    retired: Vec<EventElement>,
    /// The file descriptor is readable.
    signalled: bool,
}

/// A bounded queue of asynchronous events.
#[derive(Debug, Default)]
pub struct EventQueue {
    inner: Mutex<Inner>,
    lost: AtomicU64,
    /// Created when first requested.
    fd: OnceLock<EventFd>,
}

/// Whether an event reports that an object is unusable: such events are the last to be lost.
fn is_fatal(event: AsyncEvent) -> bool {
    use AsyncEvent::{CqErr, DeviceFatal, QpFatal, SrqErr, WqFatal};
    matches!(event, CqErr | QpFatal | DeviceFatal | SrqErr | WqFatal)
}

impl EventQueue {
    /// Capacity in events. A full queue drops the new event, unless it reports an unusable object: then it replaces the newest event that
    /// does not.
    pub const CAPACITY: usize = 4096;

    fn lock(&self) -> MutexGuard<'_, Inner> {
        lock(&self.inner)
    }

    /// Appends an event about an object of the device.
    pub fn raise(&self, event: AsyncEvent, element: EventElement) {
        let mut inner = self.lock();
        if inner.retired.contains(&element) {
            return;
        }
        if inner.queue.len() >= Self::CAPACITY {
            self.lost.fetch_add(1, Ordering::Relaxed);
            let lesser =
                if is_fatal(event) { inner.queue.iter().rposition(|e| !is_fatal(e.event)) } else { None };
            match lesser {
                Some(at) => drop(inner.queue.remove(at)),
                None => return,
            }
        }
        inner.queue.push_back(Event { event, element });
        if let Some(fd) = self.fd.get() {
            fd.signal();
            inner.signalled = true;
        }
    }

    /// Takes the oldest event, if any. The caller acknowledges it with [`EventQueue::ack`].
    pub fn try_get(&self) -> Option<Event> {
        let mut inner = self.lock();
        let event = inner.queue.pop_front()?;
        *inner.unacked.entry(event.element).or_default() += 1;
        self.clear_if_empty(&mut inner);
        Some(event)
    }

    /// Acknowledges one event about this object.
    pub fn ack(&self, element: EventElement) {
        let mut inner = self.lock();
        if let Some(n) = inner.unacked.get_mut(&element) {
            *n -= 1;
            if *n == 0 {
                inner.unacked.remove(&element);
            }
        }
    }

    /// Number of events about this object that were fetched and not acknowledged.
    pub fn unacked(&self, element: EventElement) -> u32 {
        self.lock().unacked.get(&element).copied().unwrap_or(0)
    }

    /// Prepares to destroy an object: removes its events from the queue, and ignores further ones until [`EventQueue::forget`].
    ///
    /// # Errors
    /// The number of its events that were fetched and not acknowledged; nothing has changed then.
    pub fn retire(&self, element: EventElement) -> Result<(), u32> {
        let mut inner = self.lock();
        if let Some(n) = inner.unacked.get(&element) {
            return Err(*n);
        }
        inner.retired.push(element);
        inner.queue.retain(|e| e.element != element);
        self.clear_if_empty(&mut inner);
        Ok(())
    }

    /// Ends [`EventQueue::retire`], once the object is gone or if it is kept: events about its number are queued again.
    pub fn forget(&self, element: EventElement) {
        self.lock().retired.retain(|e| *e != element);
    }

    /// Removes the events of a destroyed object from the queue.
    pub fn purge(&self, element: EventElement) {
        let mut inner = self.lock();
        inner.queue.retain(|e| e.element != element);
        self.clear_if_empty(&mut inner);
    }

    /// Number of events that were lost because the queue was full, or were replaced.
    pub fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }

    /// A file descriptor that is readable while the queue holds an event; the first call creates it.
    ///
    /// # Errors
    /// Those of eventfd(2).
    pub fn fd(&self) -> io::Result<&EventFd> {
        let mut inner = self.lock();
        if self.fd.get().is_none() {
            let fd = EventFd::new()?;
            if !inner.queue.is_empty() {
                fd.signal();
                inner.signalled = true;
            }
            // The lock is held: no other thread sets it.
            let _ = self.fd.set(fd);
        }
        Ok(self.fd.get().expect("it was set above"))
    }

    /// The file descriptor, if one was created.
    pub fn made_fd(&self) -> Option<&EventFd> {
        self.fd.get()
    }

    /// Makes the file descriptor unreadable if the queue is empty.
    fn clear_if_empty(&self, inner: &mut Inner) {
        if inner.signalled && inner.queue.is_empty() {
            inner.signalled = false;
            if let Some(fd) = self.fd.get() {
                fd.clear();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CQ: EventElement = EventElement::Cq(1);

    // A full queue keeps events about unusable objects, and counts the lost events.
    #[test]
    fn fatal_events_take_the_place_of_others() {
        let events = EventQueue::default();
        events.raise(AsyncEvent::QpFatal, CQ);
        for _ in 1..EventQueue::CAPACITY {
            events.raise(AsyncEvent::CommEst, CQ);
        }
        assert_eq!(events.lost(), 0);
        events.raise(AsyncEvent::CommEst, EventElement::Port);
        assert_eq!(events.lost(), 1);
        events.raise(AsyncEvent::DeviceFatal, EventElement::Device);
        assert_eq!(events.lost(), 2);
        let all: Vec<_> = core::iter::from_fn(|| events.try_get()).collect();
        assert_eq!(all.len(), EventQueue::CAPACITY);
        assert_eq!((all[0].event, all[all.len() - 1].event), (AsyncEvent::QpFatal, AsyncEvent::DeviceFatal));
        assert!(all.iter().all(|e| e.element != EventElement::Port));
        // Only fatal events in the queue: the newest is lost, and counted.
        for _ in 0..=EventQueue::CAPACITY {
            events.raise(AsyncEvent::CqErr, CQ);
        }
        assert_eq!(events.lost(), 3);
    }

    #[test]
    fn an_object_is_retired_when_its_events_are_acknowledged() {
        let events = EventQueue::default();
        for _ in 0..3 {
            events.raise(AsyncEvent::CqErr, CQ);
        }
        events.raise(AsyncEvent::PortErr, EventElement::Port);
        assert_eq!(events.try_get().map(|e| e.element), Some(CQ));
        assert_eq!(events.retire(CQ), Err(1));
        events.ack(CQ);
        assert_eq!((events.unacked(CQ), events.retire(CQ)), (0, Ok(())));
        events.raise(AsyncEvent::CqErr, CQ);
        assert_eq!(
            events.try_get().map(|e| e.element),
            Some(EventElement::Port),
            "no event of a retired object"
        );
        assert_eq!(events.try_get(), None);
        events.forget(CQ);
        events.raise(AsyncEvent::CqErr, CQ);
        assert_eq!(events.try_get().map(|e| e.element), Some(CQ), "the number is used again");
    }
}
