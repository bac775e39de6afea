//! Asynchronous events as the program fetches them.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

use stack::device::{Device, Event};

/// An asynchronous event (`struct ibv_async_event`), from
/// [`Context::get_async_event`](crate::Context::get_async_event): what happened ([`Event::event`]), and to which object
/// ([`Event::element`]).
///
/// Dropping it acknowledges it. Until then the object that it names cannot be destroyed, so a handler may work with it.
/// Events of an object that is destroyed before they are fetched are gone with it.
#[must_use = "dropping the event acknowledges it"]
#[doc(alias = "ibv_async_event")]
pub struct AsyncEventGuard {
    event: Event,
    device: Arc<Device>,
}

impl AsyncEventGuard {
    pub(crate) fn new(event: Event, device: &Arc<Device>) -> Self {
        Self { event, device: device.clone() }
    }

    /// Acknowledges the event, as dropping it does, and returns its content.
    #[doc(alias = "ibv_ack_async_event")]
    pub fn ack(self) -> Event {
        self.event
    }
}

impl Deref for AsyncEventGuard {
    type Target = Event;
    fn deref(&self) -> &Event {
        &self.event
    }
}

impl Drop for AsyncEventGuard {
    fn drop(&mut self) {
        self.device.ack_event(&self.event);
    }
}

impl PartialEq for AsyncEventGuard {
    /// Whether both report the same.
    fn eq(&self, other: &Self) -> bool {
        self.event == other.event
    }
}

impl fmt::Debug for AsyncEventGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.event.fmt(f)
    }
}
