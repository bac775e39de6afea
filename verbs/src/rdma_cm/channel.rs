//! Event channels, through which a program receives the events of its identifiers.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex, MutexGuard};

use stack::device::{DeviceError, lock};

use super::queue::{Signal, number};
use super::service::Service;
use crate::error::VerbsError;

/// An event channel (`struct rdma_event_channel`). It belongs to no device: identifiers of several devices can use it.
///
/// The events of one device arrive in order. A program waits with [`get_event`](Self::get_event), or with epoll(7) on the channel's file
/// descriptor, which is readable while an event waits. The program must not read from the descriptor.
///
/// Until it is dropped, a channel keeps the devices that it was used with open, and their connection management running.
#[derive(Debug)]
#[doc(alias = "rdma_event_channel")]
pub struct EventChannel {
    pub(super) number: u64,
    pub(super) signal: Arc<Signal>,
    /// Connection management of each device that the channel is used with.
    services: Mutex<Vec<Arc<Service>>>,
    /// The index at which the next search for events begins, so that the events of one device do not delay those of others.
    pub(super) turn: AtomicUsize,
}

impl EventChannel {
    /// Creates a channel. Opens no device and starts nothing.
    ///
    /// # Errors
    /// `EMFILE` if no file descriptor is left.
    #[doc(alias = "rdma_create_event_channel")]
    pub fn new() -> Result<Self, VerbsError> {
        let signal = Signal::new().map_err(|e| DeviceError::Descriptor(e.kind()))?;
        Ok(Self {
            number: number(),
            signal: Arc::new(signal),
            services: Mutex::default(),
            turn: AtomicUsize::new(0),
        })
    }

    /// Adds a device's connection management to those whose events come through the channel.
    pub(super) fn attach(&self, service: &Arc<Service>) {
        let mut services = self.services();
        if !services.iter().any(|known| Arc::ptr_eq(known, service)) {
            service.lock().queues.open(self.number, Some(self.signal.clone()));
            services.push(service.clone());
        }
    }

    /// Connection management of the devices that the channel is used with. Lock order: this list first, then the locks of its entries.
    pub(super) fn services(&self) -> MutexGuard<'_, Vec<Arc<Service>>> {
        lock(&self.services)
    }

    /// The counters of connection management, by name, summed over the devices that the channel was used with: messages and connections.
    /// Each message that was ignored, refused or lost is counted under its reason.
    pub fn counters(&self) -> Vec<(&'static str, u64)> {
        let mut sum: Vec<(&'static str, u64)> = Vec::new();
        for service in self.services().iter() {
            for (name, n) in service.counters() {
                match sum.iter_mut().find(|(known, _)| *known == name) {
                    Some((_, so_far)) => *so_far += n,
                    None => sum.push((name, n)),
                }
            }
        }
        sum
    }

    /// Destroys the channel.
    ///
    /// # Errors
    /// `EBUSY` while identifiers use it. The channel is returned with the error.
    #[doc(alias = "rdma_destroy_event_channel")]
    pub fn destroy(self) -> Result<(), (VerbsError, Self)> {
        let users = self.services().iter().map(|service| service.lock().users_of(self.number)).sum();
        if users > 0 {
            return Err((DeviceError::Busy { object: "event channel", users }.into(), self));
        }
        Ok(())
    }
}

impl Drop for EventChannel {
    /// Discards the events of identifiers that still use the channel. The identifiers continue to exist.
    fn drop(&mut self) {
        for service in core::mem::take(&mut *self.services()) {
            service.close_channel(self.number);
        }
    }
}

impl AsFd for EventChannel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.signal.fd().as_fd()
    }
}
impl AsRawFd for EventChannel {
    fn as_raw_fd(&self) -> RawFd {
        self.as_fd().as_raw_fd()
    }
}
