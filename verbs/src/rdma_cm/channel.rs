//! Event channels: how a program receives the events of its identifiers.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::Arc;

use stack::device::{DeviceError, EventFd};

use super::service::Service;
use crate::context::Context;
use crate::error::VerbsError;

/// An event channel (`struct rdma_event_channel`), from [`Context::create_event_channel`].
///
/// Identifiers created with it put their events in here, in order. A program waits with [`get_event`](Self::get_event), or
/// with epoll(7) on the channel's descriptor, which is readable while an event waits. The program must not read from the
/// descriptor.
#[derive(Debug)]
#[doc(alias = "rdma_event_channel")]
pub struct EventChannel {
    pub(super) number: u64,
    pub(super) fd: Arc<EventFd>,
    pub(super) service: Arc<Service>,
}

impl Context {
    /// Creates an event channel for identifiers of this device. The first channel or identifier starts connection management,
    /// which owns queue pair 1 and ends with the last of them.
    ///
    /// # Errors
    /// `EMFILE` if no file descriptor is left; `EINVAL` where the program has created queue pair 1 itself; `ENODEV` where
    /// this starts the port and its device cannot be opened; `EDEADLK` from inside a turn.
    #[doc(alias = "rdma_create_event_channel")]
    pub fn create_event_channel(&self) -> Result<EventChannel, VerbsError> {
        let service = Service::of(self)?;
        let fd = Arc::new(EventFd::new().map_err(|e| DeviceError::Descriptor(e.kind()))?);
        let number = service.lock().open_channel(fd.clone());
        Ok(EventChannel { number, fd, service })
    }
}

impl EventChannel {
    /// The counters, by name, of this device's connection management: its messages and connections. Each message that was
    /// ignored, refused or lost is counted under its reason.
    pub fn counters(&self) -> Vec<(&'static str, u64)> {
        self.service.lock().counters()
    }

    /// Frees the channel.
    ///
    /// # Errors
    /// `EBUSY` while identifiers use it; the channel comes back with the error.
    #[doc(alias = "rdma_destroy_event_channel")]
    pub fn destroy(self) -> Result<(), (VerbsError, Self)> {
        let users = self.service.lock().users_of(self.number);
        if users > 0 {
            return Err((DeviceError::Busy { object: "event channel", users }.into(), self));
        }
        Ok(())
    }
}

impl Drop for EventChannel {
    /// Identifiers that still use the channel live on; their events are discarded.
    fn drop(&mut self) {
        self.service.close_channel(self.number);
    }
}

impl AsFd for EventChannel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
impl AsRawFd for EventChannel {
    fn as_raw_fd(&self) -> RawFd {
        self.as_fd().as_raw_fd()
    }
}
