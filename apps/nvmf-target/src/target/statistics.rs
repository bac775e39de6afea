//! What a core counts and logs of what its hosts do.

use std::net::IpAddr;
use std::sync::Arc;

use nvmf::{BackendError, Instant, Queue};
use tracing::warn;

use super::counters::Counters;
use super::log_limit::LogLimit;
use super::meter::{Gauge, Meters};
use super::shared::Places;

/// What it counts, and what it has logged.
#[derive(Debug)]
pub struct Statistics {
    pub counters: Arc<Counters>,
    meters: Option<Arc<Meters>>,
    /// The number of the core in the meters.
    core: usize,
    failed: LogLimit<BackendError>,
    /// Addresses of which a connection or a controller was refused.
    refused: LogLimit<IpAddr>,
}

impl Statistics {
    /// Of a core that counts by namespace and host where there are `meters`.
    pub fn new(core: usize, meters: Option<Arc<Meters>>) -> Self {
        let counters = Arc::default();
        Self { counters, meters, core, failed: LogLimit::default(), refused: LogLimit::default() }
    }
    /// Whether commands are timed, for the meters.
    #[inline]
    pub const fn is_metered(&self) -> bool {
        self.meters.is_some()
    }
    /// The counters of a connection whose queue has so many entries; `None` without meters.
    pub fn gauge(&self, entries: u16) -> Option<Gauge> {
        self.meters.as_ref().map(|meters| Gauge::new(meters, self.core, entries))
    }
    /// Logs a failure of the storage: the host gets a status, but the operator of the disks would not see it.
    #[cold]
    pub fn storage_failed(&mut self, now: Instant, queue: &Queue, error: BackendError) {
        let Some((host, subsystem)) = queue.host().zip(queue.subsystem()) else { return };
        // Lost data were logged by the storage itself.
        if error != BackendError::Lost && self.failed.is_news(error, now) {
            warn!(%error, %host, %subsystem, "a command failed; others that fail so are not logged for a minute");
        }
    }
    /// A host of this address gets no controller: says so, once a minute for each address.
    #[cold]
    pub fn no_controller(&mut self, now: Instant, peer: IpAddr) {
        if self.refused.is_news(peer, now) {
            warn!(
                %peer,
                "a host gets no controller: a host has no more than are left, and some are kept for hosts that a subsystem names"
            );
        }
    }
    /// A connection of a host of this address is refused, for want of places: says so, once a minute for each address.
    #[cold]
    pub fn no_place(&mut self, now: Instant, peer: IpAddr, Places { has, left, most }: Places) {
        if self.refused.is_news(peer, now) {
            warn!(
                %peer, has, left, most,
                "a connection is refused: a host has no more than are left, and some are kept for hosts that a subsystem names; \
                 --connections says how many a core has"
            );
        }
    }
}
