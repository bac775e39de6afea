//! A service of the control plane that runs between turns: connection management.
//!
//! The service has no thread of its own, so it works with every drive: the thread that turned a shard then runs the service if it is due,
//! outside the shard's claim. Without a service this costs a turn one load.

use core::time::Duration;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, PoisonError, RwLock, TryLockError};

use super::error::DeviceError;
use super::inside_turn::inside_turn;
use crate::id::Qpn;
use crate::sync::alarm::Alarm;
use crate::time::Instant;

/// A service that runs between turns.
pub trait Service: Send + Sync {
    /// Performs the work that is due, in bounded time. May make control calls; must not uninstall the service. Several threads may call it
    /// at once: a thread that has to wait must not keep the others from urgent work.
    fn step(&self);

    /// Whether the service still uses a queue pair number, perhaps of a destroyed queue pair: such a number is not allocated. Called while
    /// the service may be running on another thread.
    fn holds(&self, qpn: Qpn) -> bool;

    /// Called when a shard of the device died: a service with users reports that to them. Called while a panic unwinds, perhaps through
    /// the service itself, so it must neither panic nor wait for a lock.
    fn device_died(&self) {}
}

/// The slot for a device's service.
pub(super) struct ServiceSlot {
    alarm: Arc<Alarm>,
    /// Locked for reading while the service runs.
    service: RwLock<Option<Arc<dyn Service>>>,
}

impl ServiceSlot {
    /// A slot for a service that this alarm schedules.
    pub(super) fn new(alarm: Arc<Alarm>) -> Self {
        Self { alarm, service: RwLock::default() }
    }

    /// Whether the service is due at this time.
    #[inline]
    pub(super) fn is_due(&self, now: impl FnOnce() -> Instant) -> bool {
        self.alarm.due().is_some_and(|due| due <= now())
    }

    /// The alarm of the service.
    pub(super) fn alarm(&self) -> &Arc<Alarm> {
        &self.alarm
    }

    /// # Errors
    /// [`DeviceError::Exists`] while another service is installed.
    pub(super) fn install(&self, service: Arc<dyn Service>) -> Result<(), DeviceError> {
        let mut place = self.service.write().unwrap_or_else(PoisonError::into_inner);
        if place.is_some() {
            return Err(DeviceError::Exists { what: "service" });
        }
        *place = Some(service);
        Ok(())
    }

    /// Removes the service. When this returns, no thread runs it any more, unless it was called inside a turn.
    pub(super) fn uninstall(&self) {
        // Inside a turn this thread itself may be running the service; then the service stays, and finds no work.
        let service = if inside_turn() {
            self.service.try_write().ok()
        } else {
            Some(self.service.write().unwrap_or_else(PoisonError::into_inner))
        };
        let service = service.and_then(|mut place| place.take());
        drop(service);
    }

    /// Whether the service, if any, holds a queue pair number.
    pub(super) fn holds(&self, qpn: Qpn) -> bool {
        // The service is called outside the lock, under which it also runs.
        let service = self.service.read().unwrap_or_else(PoisonError::into_inner).clone();
        service.is_some_and(|service| service.holds(qpn))
    }

    /// Time until the service is due; `None` for never.
    pub(super) fn wait(&self, now: Instant) -> Option<Duration> {
        self.alarm.due().map(|due| Duration::from_nanos(due.nanos_since(now)))
    }

    /// Runs the service, even if it panicked before: it then reports that to its users.
    #[cold]
    pub(super) fn run(&self) {
        let service = match self.service.try_read() {
            Ok(service) => service,
            Err(TryLockError::Poisoned(e)) => e.into_inner(),
            // The service is being installed or removed.
            Err(TryLockError::WouldBlock) => return,
        };
        match &*service {
            Some(service) => {
                let again = RingOnPanic(&self.alarm);
                service.step();
                core::mem::forget(again);
            }
            None => self.alarm.begin(),
        }
    }

    /// As [`ServiceSlot::run`], on a thread of the device: catches a panic, which was already reported, so that the thread continues to
    /// turn shards.
    #[cold]
    pub(super) fn run_apart(&self) {
        let _ = catch_unwind(AssertUnwindSafe(|| self.run()));
    }

    /// Handles the death of a shard, on the thread that panicked.
    pub(super) fn device_died(&self) {
        // Skipped while a service is installed or removed. The service may be running, perhaps on this thread; that also takes the lock for
        // reading. A service that is skipped here notices when the alarm runs it.
        if let Ok(service) = self.service.try_read()
            && let Some(service) = &*service
        {
            service.device_died();
        }
        self.alarm.ring();
    }
}

/// Rings the alarm if a step panics, so that the panic is reported.
struct RingOnPanic<'a>(&'a Alarm);

impl Drop for RingOnPanic<'_> {
    fn drop(&mut self) {
        self.0.ring();
    }
}
