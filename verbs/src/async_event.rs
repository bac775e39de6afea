//! Fetching and acknowledging asynchronous events.

use std::fmt;
use std::ops::Deref;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use stack::device::{Device, Event};

use crate::context::Context;
use crate::error::VerbsError;

/// An asynchronous event (`struct ibv_async_event`) from [`Context::get_async_event`](Context::get_async_event): what happened
/// ([`Event::event`]) and to which object ([`Event::element`]).
///
/// Dropping it acknowledges it. Until then the object that it concerns cannot be destroyed, so a handler may use the object. Events that
/// were not fetched before their object is destroyed are dropped.
#[must_use = "dropping the event acknowledges it"]
#[doc(alias = "ibv_async_event")]
pub struct AsyncEventGuard {
    event: Event,
    device: Arc<Device>,
}

impl Context {
    /// Takes the oldest asynchronous event; `None` if there is none. Never waits. Dropping the event acknowledges it.
    #[doc(alias = "ibv_get_async_event")]
    pub fn try_get_async_event(&self) -> Option<AsyncEventGuard> {
        self.device().try_event().map(|event| AsyncEventGuard::new(event, self.device()))
    }

    /// Waits up to `timeout` for an asynchronous event; `None` if none arrives. Meanwhile the caller drives shards that no other thread
    /// drives, so events arrive in every [`Drive`](crate::Drive). Dropping the event acknowledges it.
    ///
    /// # Errors
    /// `EDEADLK` from inside a turn.
    #[doc(alias = "ibv_get_async_event")]
    pub fn get_async_event(&self, timeout: Duration) -> Result<Option<AsyncEventGuard>, VerbsError> {
        let event = self.device().wait_event(timeout)?;
        Ok(event.map(|event| AsyncEventGuard::new(event, self.device())))
    }

    /// The file descriptor for epoll(7) that is readable while an asynchronous event waits (`async_fd` of `struct ibv_context`). The
    /// program must not read from it. The first call creates it.
    ///
    /// # Errors
    /// `EMFILE` if no file descriptor is left.
    pub fn async_fd(&self) -> Result<BorrowedFd<'_>, VerbsError> {
        Ok(self.device().event_fd()?)
    }

    /// How many asynchronous events were lost because earlier ones were not fetched. Up to 4096 are kept. Beyond that, an event that
    /// reports an unusable object replaces another one.
    pub fn async_events_lost(&self) -> u64 {
        self.device().events_lost()
    }
}

impl AsyncEventGuard {
    fn new(event: Event, device: &Arc<Device>) -> Self {
        Self { event, device: device.clone() }
    }

    /// Acknowledges the event, as dropping does, and returns its content.
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
    /// Whether both report the same event.
    fn eq(&self, other: &Self) -> bool {
        self.event == other.event
    }
}

impl fmt::Debug for AsyncEventGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.event.fmt(f)
    }
}
