//! What a device shares with other processes of its host that have the same addresses: queue pair 1, and the port numbers of connection
//! management.

use core::ops::RangeInclusive;
use std::sync::Arc;

use super::handle::Device;
use crate::id::Qpn;
use crate::port::Numbers;
use crate::registry::Registry;

impl Device {
    /// The registry in which the processes of the host record who is bound to which port; `None` if no other process has the device's
    /// addresses.
    pub fn registry(&self) -> Option<&Arc<Registry>> {
        self.port().numbers().and_then(Numbers::registry)
    }

    /// Announces a change in this process's registry entries, such as a new listener.
    pub fn announce(&self) {
        if let Some(numbers) = self.port().numbers() {
            numbers.announce();
        }
    }

    /// The range of communication ids by which messages are routed to this process; `None` for all.
    pub fn communication_ids(&self) -> Option<RangeInclusive<u32>> {
        self.registry()?.runs().first().map(|run| run.communication_ids())
    }

    /// Takes the queue pairs whose peer was a process of this host that has ended. The [alarm](Self::alarm) rings for each.
    pub fn take_ended_peers(&self) -> Vec<Qpn> {
        self.core().shared.ended_peers.take()
    }

    /// Called when a queue pair with this number is created or destroyed. If it is queue pair 1, announces whether this process serves it.
    pub(super) fn note_number(&self, qpn: Qpn, is_there: bool) {
        if qpn == Qpn::GSI
            && !self.is_forked()
            && let Some(registry) = self.registry()
        {
            registry.serve_cm(is_there);
            self.announce();
        }
    }
}
