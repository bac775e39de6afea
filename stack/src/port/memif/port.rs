//! A memif port.

use super::queue::MemifQueue;
use super::shared::Shared;
use crate::port::counters::sum;
use crate::port::error::PortError;
use crate::port::info::{PortInfo, PortStats};
use crate::port::taken::Taken;
use crate::port::traits::{Host, Numbers, Port, PortQueue};
use core::sync::atomic::Ordering;
use std::sync::Arc;

/// A memif port.
pub struct MemifPort {
    info: PortInfo,
    taken: Taken,
    shared: Arc<Shared>,
}

impl MemifPort {
    pub(super) fn new(info: PortInfo, shared: Shared) -> Self {
        let taken = Taken::none_of(info.queues);
        Self { info, taken, shared: Arc::new(shared) }
    }
}

impl Port for MemifPort {
    fn info(&self) -> &PortInfo {
        &self.info
    }

    fn take_queue(&self, index: usize) -> Option<Box<dyn PortQueue>> {
        self.taken.take(index)?;
        Some(Box::new(MemifQueue::new(Arc::clone(&self.shared), index)))
    }

    fn start(&self) -> Result<(), PortError> {
        Ok(())
    }

    fn mtu(&self) -> usize {
        self.info.mtu
    }

    fn link_up(&self) -> bool {
        self.shared.state.serve();
        self.shared.state.number.load(Ordering::Acquire) != 0
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
        self.shared.state.serve();
    }

    fn stats(&self) -> PortStats {
        let state = &self.shared.state;
        PortStats {
            restarts: state.restarts.load(Ordering::Relaxed),
            refused: state.refused(),
            ..sum(&self.shared.counters)
        }
    }
}
