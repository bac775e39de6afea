//! A port on a DPDK device.

use super::queue::DpdkQueue;
use super::shared::Shared;
use crate::port::counters::sum;
use crate::port::error::PortError;
use crate::port::info::{PortInfo, PortStats};
use crate::port::taken::Taken;
use crate::port::traits::{Host, Numbers, Port, PortQueue};
use dpdk_sys as sys;
use std::sync::Arc;

/// A port on a DPDK device.
pub(super) struct DpdkPort {
    info: PortInfo,
    taken: Taken,
    shared: Arc<Shared>,
}

impl DpdkPort {
    pub(super) fn new(info: PortInfo, shared: Arc<Shared>) -> Self {
        Self { taken: Taken::none_of(info.queues), info, shared }
    }
}

impl Port for DpdkPort {
    fn info(&self) -> &PortInfo {
        &self.info
    }

    fn take_queue(&self, index: usize) -> Option<Box<dyn PortQueue>> {
        self.taken.take(index)?;
        Some(Box::new(DpdkQueue::new(Arc::clone(&self.shared), index)))
    }

    fn start(&self) -> Result<(), PortError> {
        Ok(())
    }

    fn mtu(&self) -> usize {
        self.shared.follow().map_or(self.info.mtu, |(_, mtu)| mtu)
    }

    fn link_up(&self) -> bool {
        self.shared.link_up()
    }

    fn host(&self) -> Option<&dyn Host> {
        None
    }

    fn window(&self) -> Option<usize> {
        None
    }
    fn steer(&self, _: &[(core::ops::RangeInclusive<crate::id::Qpn>, usize)]) {}
    fn numbers(&self) -> Option<&dyn Numbers> {
        None
    }

    fn maintain(&self) {
        self.shared.follow();
    }

    fn stats(&self) -> PortStats {
        let mut stats = sum(&self.shared.counters);
        let (mut rx, mut tx) = (0, 0);
        // SAFETY: the port exists as long as `shared`.
        if unsafe { sys::dpdk_sys_port_missed(self.shared.port, &raw mut rx, &raw mut tx) } == 0 {
            stats.rx_dropped += rx;
            stats.tx_dropped += tx;
        }
        stats
    }
}
