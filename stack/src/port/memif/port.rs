//! A memif port: what its queues share.

use super::link::State;
use super::queue::MemifQueue;
use crate::port::counters::{Counters, sum};
use crate::port::taken::Taken;
use crate::port::{HeapPool, Host, Port, PortError, PortInfo, PortQueue, PortStats};
use core::sync::atomic::Ordering;
use std::io;
use std::sync::{Arc, Once};

/// What a port and its queues share.
pub struct Shared {
    pub(super) state: State,
    pub(super) pool: HeapPool,
    pub(super) counters: Vec<Counters>,
    /// Bytes of the longest frame.
    pub(super) max_frame: usize,
    /// What was warned of: it is not repeated.
    unwakeable: Once,
    too_long: Once,
}

impl Shared {
    pub(super) fn new(state: State, pool: HeapPool, info: &PortInfo) -> Self {
        let counters = (0..info.queues).map(|_| Counters::default()).collect();
        let max_frame = info.max_frame();
        Self { state, pool, counters, max_frame, unwakeable: Once::new(), too_long: Once::new() }
    }

    /// Frames were dropped, of ours (`sent`) or of the peer.
    #[cold]
    pub(super) fn note_dropped(&self, sent: bool) {
        self.too_long.call_once(|| {
            let which = match sent {
                true => "frames are longer than the peer's buffers".to_owned(),
                false => {
                    format!("frames of the peer are longer than this end takes ({} bytes)", self.max_frame)
                }
            };
            tracing::warn!(
                "memif: {which} and are dropped; give both ends the same MTU (--link-mtu, ROCE_MTU)"
            );
        });
    }

    /// The system does not let us wake peers.
    #[cold]
    pub(super) fn cannot_wake(&self, error: &io::Error) {
        self.unwakeable.call_once(|| {
            tracing::warn!(
                "a memif peer waits for events, which cannot be sent without io_setup(2): {error}; let it poll, or permit that"
            );
        });
    }
}

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
