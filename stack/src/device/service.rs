//! A service of the control plane that runs between turns: connection management.
//!
//! It has no thread of its own, so it works with every drive: the thread that turned a shard then runs the service if it is due,
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
    /// Does the work that is due, in bounded time. May make control calls; must not uninstall the service. Several threads may
    /// call it at once: one that cannot go on must not keep the others from what cannot wait.
    fn step(&self);

    /// Whether it still uses a queue pair number, perhaps of a destroyed queue pair: such a number is not given out. Called while
    /// the service may be running on another thread.
    fn holds(&self, qpn: Qpn) -> bool;

    /// A shard of the device died: a service that has users reports that to them. Called while a panic unwinds, perhaps through the
    /// service itself: must neither panic nor wait for a lock.
    fn device_died(&self) {}
}

/// The place of a device's service.
pub(super) struct ServiceSlot {
    alarm: Arc<Alarm>,
    /// Locked for reading while it runs.
    service: RwLock<Option<Arc<dyn Service>>>,
}

impl ServiceSlot {
    /// For a service that this alarm calls.
    pub(super) fn new(alarm: Arc<Alarm>) -> Self {
        Self { alarm, service: RwLock::default() }
    }

    /// Whether it is due at this time.
    #[inline]
    pub(super) fn is_due(&self, now: impl FnOnce() -> Instant) -> bool {
        self.alarm.due().is_some_and(|due| due <= now())
    }

    /// Its alarm clock.
    pub(super) fn alarm(&self) -> &Arc<Alarm> {
        &self.alarm
    }

    /// # Errors
    /// [`DeviceError::Exists`] while there is another one.
    pub(super) fn install(&self, service: Arc<dyn Service>) -> Result<(), DeviceError> {
        let mut place = self.service.write().unwrap_or_else(PoisonError::into_inner);
        if place.is_some() {
            return Err(DeviceError::Exists { what: "service" });
        }
        *place = Some(service);
        Ok(())
    }

    /// When this returns, no thread runs it any more.
    pub(super) fn uninstall(&self) {
        // Inside a turn it may be this thread that runs it; then it stays, and finds nothing to do.
        let service = if inside_turn() {
            self.service.try_write().ok()
        } else {
            Some(self.service.write().unwrap_or_else(PoisonError::into_inner))
        };
        let service = service.and_then(|mut place| place.take());
        drop(service);
    }

    /// Whether the service, if there is one, holds a queue pair number.
    pub(super) fn holds(&self, qpn: Qpn) -> bool {
        // Called outside of the lock, under which it runs.
        let service = self.service.read().unwrap_or_else(PoisonError::into_inner).clone();
        service.is_some_and(|service| service.holds(qpn))
    }

    /// How long it can wait; `None`: for ever.
    pub(super) fn wait(&self, now: Instant) -> Option<Duration> {
        self.alarm.due().map(|due| Duration::from_nanos(due.nanos_since(now)))
    }

    /// Runs it, even if it panicked before: then it reports that to its users.
    #[cold]
    pub(super) fn run(&self) {
        let service = match self.service.try_read() {
            Ok(service) => service,
            Err(TryLockError::Poisoned(e)) => e.into_inner(),
            // It comes or goes.
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

    /// As [`ServiceSlot::run`], on a thread of the device: catches a panic, which was reported, so that the thread turns shards on.
    #[cold]
    pub(super) fn run_apart(&self) {
        let _ = catch_unwind(AssertUnwindSafe(|| self.run()));
    }

    /// A shard died, on this thread.
    pub(super) fn device_died(&self) {
        // Not while somebody installs or removes one. It may be running, perhaps on this thread: that takes the lock for reading, too. What
        // does not learn of it here finds out when the alarm has it run.
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
