//! A service of the control plane that runs between turns: connection management.
//!
//! It has no thread of its own, so it works with every drive: the thread that turned a shard then runs the service if it is due,
//! outside the shard's claim. Without a service this costs a turn one load.

use core::time::Duration;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, PoisonError, RwLock, TryLockError};

use super::Device;
use super::claim::{inside_turn, not_inside_turn};
use super::error::DeviceError;
use crate::id::{Gid, Mtu, Qpn};
use crate::net::{Net, Resolution};
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
#[derive(Default)]
pub(super) struct ServiceSlot {
    alarm: Arc<Alarm>,
    /// Locked for reading while it runs.
    service: RwLock<Option<Arc<dyn Service>>>,
}

impl ServiceSlot {
    /// Whether it is due at this time.
    #[inline]
    pub(super) fn is_due(&self, now: impl FnOnce() -> Instant) -> bool {
        self.alarm.due().is_some_and(|due| due <= now())
    }

    /// Whether the service, if there is one, holds a queue pair number.
    fn holds(&self, qpn: Qpn) -> bool {
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

/// The path to a peer, for a connection to it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PeerPath {
    /// Its Ethernet address is known, or it is one of our own addresses.
    Known,
    /// It is being resolved.
    Pending,
    /// There is no answer.
    Unreachable,
}

impl Device {
    /// Installs the service; there is one at a time. It stays until [`uninstall`](Self::uninstall).
    ///
    /// # Errors
    /// [`DeviceError::Exists`] while there is another one.
    pub fn install(&self, service: Arc<dyn Service>) -> Result<(), DeviceError> {
        let mut place = self.core().service.service.write().unwrap_or_else(PoisonError::into_inner);
        if place.is_some() {
            return Err(DeviceError::Exists { what: "service" });
        }
        *place = Some(service);
        Ok(())
    }

    /// Removes the service: when this returns, no thread runs it any more.
    pub fn uninstall(&self) {
        let place = &self.core().service.service;
        // Inside a turn it may be this thread that runs it; then it stays, and finds nothing to do.
        let service = if inside_turn() {
            place.try_write().ok()
        } else {
            Some(place.write().unwrap_or_else(PoisonError::into_inner))
        };
        let service = service.and_then(|mut place| place.take());
        drop(service);
    }

    /// Fails if a shard has died. The device goes on with the others, but should be closed.
    ///
    /// # Errors
    /// [`DeviceError::ShardDied`].
    pub fn check_alive(&self) -> Result<(), DeviceError> {
        self.core().alive(u32::MAX)
    }

    /// Fails if the calling thread may not wait for shards and turn them.
    ///
    /// # Errors
    /// [`DeviceError::InsideTurn`], [`DeviceError::Forked`].
    pub fn check_outside_turn(&self) -> Result<(), DeviceError> {
        not_inside_turn()?;
        self.core().not_forked()
    }

    /// Whether the service holds a queue pair number.
    pub(super) fn service_holds(&self, qpn: Qpn) -> bool {
        self.core().service.holds(qpn)
    }

    /// The service's alarm clock.
    pub fn alarm(&self) -> &Arc<Alarm> {
        &self.core().service.alarm
    }

    /// Makes a thread check the alarm soon.
    pub fn wake(&self) {
        self.core().wake_helper();
    }

    /// Whether a peer can be reached. If its Ethernet address is not known, sends requests on the link; call again for the answer.
    pub fn path_to(&self, peer: &Gid) -> PeerPath {
        if self.core().shared.gids.contains(peer) {
            return PeerPath::Known;
        }
        self.path_by(|net, now| net.resolve(now, peer))
    }

    /// Whether an answer can go to a peer, which may be a stranger. A stranger evicts no neighbour that the program resolved: if
    /// the table does not have the stranger, the answer goes to the Ethernet address from which its message came.
    pub fn path_of_answer(&self, peer: &Gid) -> PeerPath {
        if self.core().shared.gids.contains(peer) {
            return PeerPath::Known;
        }
        self.path_by(|net, now| net.resolve_answer(now, peer))
    }

    fn path_by(&self, resolve: impl FnOnce(&mut Net, Instant) -> Resolution) -> PeerPath {
        let now = self.now();
        match self.core().shared.with_net(|net| resolve(net, now)) {
            Resolution::Known(_) => PeerPath::Known,
            Resolution::Pending => {
                self.wake();
                PeerPath::Pending
            }
            Resolution::Failed => PeerPath::Unreachable,
        }
    }

    /// Our address from which a peer is reached: that address itself where it is ours, else one on its subnet, else
    /// any of its family; or the one that the host below the port chooses. `None`: there is no route to it. `scope` is the number
    /// of the host's interface behind which a link-local peer is, or 0.
    pub fn source_to(&self, peer: &Gid, scope: u32) -> Option<Gid> {
        if self.core().shared.gids.contains(peer) {
            return Some(*peer);
        }
        if let Some(host) = self.port().host() {
            return host.source_to(peer.to_ip(), scope).map(Gid::from_ip);
        }
        self.core().shared.with_net(|net| net.source_to(peer))
    }

    /// Largest path MTU to a peer: the active one, or less where the host below the port knows of a smaller MTU on the path.
    pub fn path_mtu_to(&self, peer: &Gid) -> Mtu {
        let active = self.core().shared.mtu();
        let known = self.port().host().and_then(|host| host.mtu_to(peer.to_ip()));
        // Where the path carries less than the smallest path MTU, that is used all the same: its packets may pass in fragments.
        known.map_or(active, |mtu| Mtu::of_link(mtu).unwrap_or(Mtu::Mtu256).min(active))
    }

    /// A random number, from the source of keys.
    ///
    /// # Errors
    /// [`DeviceError::Random`].
    pub fn random(&self) -> Result<u32, DeviceError> {
        self.random.next()
    }
}
