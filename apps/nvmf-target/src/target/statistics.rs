//! What a core counts and logs about its hosts.

use std::net::IpAddr;
use std::sync::Arc;

use nvmf::{BackendError, Instant, Queue};
use tracing::warn;

use super::counters::Counters;
use super::log_limit::LogLimit;
use super::meter::{Gauge, Meters};
use super::shared::Places;

/// The counters of a core, and what it has logged recently.
#[derive(Debug)]
pub struct Statistics {
    pub counters: Arc<Counters>,
    meters: Option<Arc<Meters>>,
    /// Index of the core in the meters.
    core: usize,
    /// Storage errors that were logged recently.
    failed: LogLimit<BackendError>,
    /// Addresses of hosts whose refused connection or controller was logged recently.
    refused: LogLimit<IpAddr>,
}

impl Statistics {
    /// The statistics of a core. With `meters` it also counts by namespace and host.
    pub fn new(core: usize, meters: Option<Arc<Meters>>) -> Self {
        let counters = Arc::default();
        Self { counters, meters, core, failed: LogLimit::default(), refused: LogLimit::default() }
    }
    /// Whether commands are timed, for the meters.
    #[inline]
    pub const fn is_metered(&self) -> bool {
        self.meters.is_some()
    }
    /// The counters of a connection whose queue has `entries` entries; `None` without meters.
    pub fn gauge(&self, entries: u16) -> Option<Gauge> {
        self.meters.as_ref().map(|meters| Gauge::new(meters, self.core, entries))
    }
    /// Logs a failure of the storage, because the operator of the disks does not see the status that the host gets. Logs the same error at
    /// most once a minute.
    #[cold]
    pub fn storage_failed(&mut self, now: Instant, queue: &Queue, error: BackendError) {
        let Some((host, subsystem)) = queue.host().zip(queue.subsystem()) else { return };
        // The storage has logged lost data itself.
        if error != BackendError::Lost && self.failed.is_news(error, now) {
            warn!(%error, %host, %subsystem, "a command failed; more failures with this error are not logged for a minute");
        }
    }
    /// Logs that a host at this address gets no controller, at most once a minute for each address.
    #[cold]
    pub fn no_controller(&mut self, now: Instant, peer: IpAddr) {
        if self.refused.is_news(peer, now) {
            warn!(
                %peer,
                "a host gets no controller: one host may have at most as many as are still free, and some are reserved for hosts that a \
                 subsystem names"
            );
        }
    }
    /// Logs that a connection of a host at this address is refused because none is left for it, at most once a minute for each address.
    #[cold]
    pub fn no_place(&mut self, now: Instant, peer: IpAddr, Places { has, left, most }: Places) {
        if self.refused.is_news(peer, now) {
            warn!(
                %peer, has, left, most,
                "a connection is refused: one host may have at most as many as are still free, and some are reserved for hosts that a \
                 subsystem names; --connections sets how many a core has"
            );
        }
    }
}
