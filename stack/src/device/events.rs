//! Asynchronous events of a device.

use core::time::Duration;
use std::os::fd::{AsFd, BorrowedFd};

use super::error::DeviceError;
use super::handle::Device;
use crate::proto::status::AsyncEvent;
use crate::shard::{Event, EventElement};

impl Device {
    /// The oldest asynchronous event, if any. Acknowledge it with [`ack_event`](Self::ack_event).
    pub fn try_event(&self) -> Option<Event> {
        // A forked child has a copy of the queue, and shares the parent's file descriptor, which may be readable.
        self.core().not_forked().ok()?;
        self.core().shared.events.try_get()
    }

    /// Waits for an asynchronous event; `None` after `timeout`. Meanwhile drives shards that no other thread drives.
    ///
    /// # Errors
    /// As [`wait`](Self::wait).
    pub fn wait_event(&self, timeout: Duration) -> Result<Option<Event>, DeviceError> {
        self.wait(timeout, self.core().shared.events.made_fd(), || self.try_event())
    }

    /// Acknowledges an asynchronous event.
    pub fn ack_event(&self, event: &Event) {
        if self.is_forked() {
            return;
        }
        self.core().shared.events.ack(event.element);
    }

    /// Appends an event of an object in another process, of which this process has a handle.
    pub fn raise(&self, event: AsyncEvent, element: EventElement) {
        self.core().shared.events.raise(event, element);
    }

    /// Number of events of an object that were fetched and not acknowledged.
    pub fn unacked_events(&self, element: EventElement) -> u32 {
        self.core().shared.events.unacked(element)
    }

    /// Drops the unfetched events of an object: this process no longer has a handle of it.
    pub fn drop_events(&self, element: EventElement) {
        self.core().shared.events.purge(element);
    }

    /// Number of asynchronous events that were lost because earlier ones were not fetched.
    pub fn events_lost(&self) -> u64 {
        self.core().shared.events.lost()
    }

    /// A file descriptor that is readable while an asynchronous event waits.
    ///
    /// # Errors
    /// [`DeviceError::Descriptor`].
    pub fn event_fd(&self) -> Result<BorrowedFd<'_>, DeviceError> {
        let fd = self.core().shared.events.fd();
        fd.map(|fd| fd.as_fd()).map_err(|e| DeviceError::Descriptor(e.kind()))
    }
}
