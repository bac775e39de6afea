//! Periodic work of a device for its port: maintenance, and checks of its link, its MTU and the addresses of a host below it.
//!
//! Called by the holder of the first living shard, so that one thread does it at a time.

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use core::time::Duration;

use crate::id::{Gid, Mtu};
use crate::port::Port;
use crate::proto::status::AsyncEvent;
use crate::shard::{EventElement, Shared};
use crate::time::Instant;

/// The period.
const EVERY: Duration = Duration::from_millis(10);

/// When the work is due, and what the last check found.
pub(super) struct Upkeep {
    /// When the work is due, in nanoseconds.
    due: AtomicU64,
    link_up: AtomicBool,
    /// Whether the link is reported as up to the program, whatever its state.
    assume_link: bool,
    /// [`Host::generation`](crate::port::Host::generation) of the addresses that were copied last.
    host_seen: AtomicU64,
}

impl Upkeep {
    pub(super) fn new(port: &dyn Port, assume_link: bool) -> Self {
        // The shared state may have older addresses than the host has now: `u64::MAX` makes the first check read them again.
        let host_seen = port.host().map_or(0, |_| u64::MAX);
        Self {
            due: AtomicU64::new(0),
            link_up: AtomicBool::new(port.link_up()),
            assume_link,
            host_seen: AtomicU64::new(host_seen),
        }
    }

    #[inline]
    pub(super) fn is_due(&self, now: Instant) -> bool {
        now.as_nanos() >= self.due.load(Ordering::Relaxed)
    }

    #[cold]
    pub(super) fn run(&self, now: Instant, port: &dyn Port, shared: &Shared) {
        self.due.store(now.after(EVERY).as_nanos(), Ordering::Relaxed);
        port.maintain();
        note_mtu(port, shared);
        self.note_addresses(port, shared);
        let up = link_up(port);
        if self.link_up.swap(up, Ordering::Relaxed) != up {
            let event = if up { AsyncEvent::PortActive } else { AsyncEvent::PortErr };
            if !self.assume_link {
                shared.events.raise(event, EventElement::Port);
            }
            if up {
                shared.with_net(|net| net.report_groups(now));
            }
        }
    }

    /// Whether the link is reported as up to the program.
    pub(super) fn tells_up(&self, port: &dyn Port) -> bool {
        self.assume_link || link_up(port)
    }

    /// Copies the current addresses of the host below the port, if there is one and they changed.
    fn note_addresses(&self, port: &dyn Port, shared: &Shared) {
        let Some(host) = port.host() else { return };
        let generation = host.generation();
        if self.host_seen.swap(generation, Ordering::Relaxed) == generation {
            return;
        }
        let (addrs, gids) = (host.addresses(), &shared.gids);
        let gone = gids.snapshot().into_iter().filter(|gid| !gid.is_zero() && !addrs.contains(&gid.to_ip()));
        let gone = gone.filter(|gid| gids.remove(gid).is_some()).map(Gid::to_ip).collect::<Vec<_>>();
        let new =
            addrs.into_iter().filter(|addr| gids.insert(Gid::from_ip(*addr)).is_ok()).collect::<Vec<_>>();
        if gone.is_empty() && new.is_empty() {
            return;
        }
        shared.with_net(|net| {
            gone.iter().for_each(|addr| net.remove_address(*addr));
            new.iter().for_each(|addr| net.add_address(*addr, 0));
        });
        shared.events.raise(AsyncEvent::GidChange, EventElement::Port);
    }
}

/// Reads the MTU that the port currently carries, in bytes, and limits queue pairs to it.
pub(super) fn note_mtu(port: &dyn Port, shared: &Shared) -> usize {
    let mtu = port.mtu();
    shared.set_mtu(Mtu::of_link(mtu).unwrap_or(Mtu::Mtu256));
    mtu
}

/// Whether packets pass: the link is up, and its MTU is enough for the smallest path MTU.
pub(super) fn link_up(port: &dyn Port) -> bool {
    port.link_up() && Mtu::of_link(port.mtu()).is_some()
}
