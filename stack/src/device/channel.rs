//! Completion channels: a program sleeps on one until a completion arrives.

use core::fmt;
use core::time::Duration;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use super::error::DeviceError;
use super::handle::Device;
use crate::shard::{CqState, EventChannel};

/// A completion channel. Its completion queues hold a reference to it.
pub struct ChannelCore {
    device: Arc<Device>,
    queue: Arc<EventChannel>,
}

impl Device {
    /// Creates a completion channel.
    ///
    /// # Errors
    /// [`DeviceError::Descriptor`].
    pub fn create_channel(self: &Arc<Self>) -> Result<Arc<ChannelCore>, DeviceError> {
        let queue = EventChannel::new().map_err(|e| DeviceError::Descriptor(e.kind()))?;
        Ok(Arc::new(ChannelCore { device: self.clone(), queue: Arc::new(queue) }))
    }
}

impl ChannelCore {
    /// A channel for the device's own service: an event rings the device's alarm.
    ///
    /// # Errors
    /// [`DeviceError::Descriptor`].
    pub fn to_alarm(device: &Arc<Device>) -> Result<Arc<Self>, DeviceError> {
        let queue =
            EventChannel::to_alarm(device.alarm().clone()).map_err(|e| DeviceError::Descriptor(e.kind()))?;
        Ok(Arc::new(Self { device: device.clone(), queue: Arc::new(queue) }))
    }

    /// The device.
    pub fn device(&self) -> &Arc<Device> {
        &self.device
    }
    pub(super) fn queue(&self) -> &Arc<EventChannel> {
        &self.queue
    }

    /// The completion queue of the oldest event, if any.
    pub fn try_get(&self) -> Option<Arc<CqState>> {
        // A forked child has a copy of the queue, and shares the parent's file descriptor, which may be readable.
        self.device.core().not_forked().ok()?;
        self.queue.try_get()
    }

    /// Waits for an event; `None` after `timeout`. Meanwhile drives shards that no other thread drives.
    ///
    /// # Errors
    /// As [`Device::wait`].
    pub fn get(&self, timeout: Duration) -> Result<Option<Arc<CqState>>, DeviceError> {
        self.device.wait(timeout, Some(self.queue.fd()), || self.queue.try_get())
    }

    /// Frees the channel.
    ///
    /// # Errors
    /// [`DeviceError::Busy`] while completion queues use the channel, which is returned with the error.
    pub fn destroy(channel: Arc<Self>) -> Result<(), (DeviceError, Arc<Self>)> {
        Arc::try_unwrap(channel).map(drop).map_err(|channel| {
            let users = Arc::strong_count(&channel) - 1;
            (DeviceError::Busy { object: "completion channel", users }, channel)
        })
    }
}

impl AsFd for ChannelCore {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.queue.fd().as_fd()
    }
}

impl fmt::Debug for ChannelCore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ChannelCore").finish_non_exhaustive()
    }
}
