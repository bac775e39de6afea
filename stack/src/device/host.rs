//! What a device has in common with other processes of its host, which have the same addresses: queue pair 1, and the ports of connection
//! management.

use core::ops::RangeInclusive;
use std::sync::Arc;

use super::handle::Device;
use crate::id::Qpn;
use crate::port::Numbers;
use crate::registry::Registry;

impl Device {
    /// Where the processes of the host say who is bound to which port; `None`: no other process has the device's addresses.
    pub fn registry(&self) -> Option<&Arc<Registry>> {
        self.port().numbers().and_then(Numbers::registry)
    }

    /// The registry says something new of this process: who listens.
    pub fn announce(&self) {
        if let Some(numbers) = self.port().numbers() {
            numbers.announce();
        }
    }

    /// The communication ids by which messages find this process; `None`: all.
    pub fn communication_ids(&self) -> Option<RangeInclusive<u32>> {
        self.registry()?.runs().first().map(|run| run.communication_ids())
    }

    /// Takes the queue pairs whose peer was a process of this host that has ended. The [alarm](Self::alarm) rings for each.
    pub fn take_ended_peers(&self) -> Vec<Qpn> {
        self.core().shared.ended_peers.take()
    }

    /// The device has a queue pair with this number, or has it no longer.
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
