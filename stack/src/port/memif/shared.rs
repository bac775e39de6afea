//! What a memif port and its queues share.

use super::link::State;
use crate::port::counters::Counters;
use crate::port::frame::HeapPool;
use crate::port::info::PortInfo;
use std::io;
use std::sync::Once;
use std::time::Duration;

/// What a port and its queues share.
pub struct Shared {
    pub(super) state: State,
    pub(super) pool: HeapPool,
    pub(super) counters: Vec<Counters>,
    /// Bytes of the longest frame.
    pub(super) max_frame: usize,
    /// How long the peer may take nothing before it counts as silent.
    pub(super) stall: Duration,
    /// What was warned of: it is not repeated.
    unwakeable: Once,
    too_long: Once,
}

impl Shared {
    pub(super) fn new(state: State, pool: HeapPool, info: &PortInfo, stall: Duration) -> Self {
        let counters = (0..info.queues).map(|_| Counters::default()).collect();
        let max_frame = info.max_frame();
        Self { state, pool, counters, max_frame, stall, unwakeable: Once::new(), too_long: Once::new() }
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
