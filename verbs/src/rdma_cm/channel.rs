//! Event channels: how a program hears what happened to its identifiers.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::Arc;
use std::time::Duration;

use stack::device::{DeviceError, EventFd};

use super::event::CmEvent;
use super::service::Service;
use crate::context::Context;
use crate::error::VerbsError;

/// An event channel (`struct rdma_event_channel`), from [`Context::create_event_channel`].
///
/// Identifiers made with it put their events in here, in order. A program waits by [`get_event`](Self::get_event), or
/// with epoll(7) on the channel's descriptor, which is readable while an event waits. It must not read the descriptor.
#[derive(Debug)]
#[doc(alias = "rdma_event_channel")]
pub struct EventChannel {
    pub(super) number: u64,
    fd: Arc<EventFd>,
    pub(super) service: Arc<Service>,
}

impl Context {
    /// Makes an event channel for identifiers of this device. The first channel or identifier starts connection
    /// management, which has queue pair 1 and ends with the last of them.
    ///
    /// # Errors
    /// `EMFILE` without a file descriptor; `EINVAL` where the program has made queue pair 1 itself; `ENODEV` where this
    /// starts the port and its device cannot be opened; `EDEADLK` from inside a turn.
    #[doc(alias = "rdma_create_event_channel")]
    pub fn create_event_channel(&self) -> Result<EventChannel, VerbsError> {
        let service = self.cm()?;
        let fd = Arc::new(EventFd::new().map_err(|e| DeviceError::Descriptor(e.kind()))?);
        let number = service.lock().open_channel(fd.clone());
        Ok(EventChannel { number, fd, service })
    }
}

impl EventChannel {
    /// What became of the messages of connection management of this device and of its connections, by name: each
    /// message that was ignored, refused or lost is under its reason.
    pub fn counters(&self) -> Vec<(&'static str, u64)> {
        self.service.lock().counters()
    }

    /// The oldest event, or `None`: never waits.
    #[doc(alias = "rdma_get_cm_event")]
    pub fn try_get_event(&self) -> Option<CmEvent> {
        Service::fetch(&self.service, self.number)
    }

    /// Waits for an event, `None` after `timeout`. While it waits the caller turns shards that nobody else turns, so
    /// events come in every [`Drive`](crate::Drive), also to the only thread there is.
    ///
    /// # Errors
    /// `EDEADLK` from inside a turn.
    #[doc(alias = "rdma_get_cm_event")]
    pub fn get_event(&self, timeout: Duration) -> Result<Option<CmEvent>, VerbsError> {
        Ok(self.service.device().wait(timeout, Some(&self.fd), || self.try_get_event())?)
    }

    /// Frees the channel.
    ///
    /// # Errors
    /// `EBUSY` while identifiers use it; it comes back with the error.
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
    /// Identifiers that still use the channel live on, and nobody hears of them.
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
