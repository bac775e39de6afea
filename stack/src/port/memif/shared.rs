//! State that a memif port and its queues share.

use super::link::State;
use crate::port::counters::Counters;
use crate::port::frame::HeapPool;
use crate::port::info::PortInfo;
use std::io;
use std::sync::Once;
use std::time::Duration;

/// State that a port and its queues share.
pub struct Shared {
    pub(super) state: State,
    pub(super) pool: HeapPool,
    pub(super) counters: Vec<Counters>,
    /// Bytes of the longest frame.
    pub(super) max_frame: usize,
    /// Longest time for which a peer that takes no frames counts as stalled.
    pub(super) stall: Duration,
    /// Warnings that were logged; each is logged once.
    unwakeable: Once,
    too_long: Once,
}

impl Shared {
    pub(super) fn new(state: State, pool: HeapPool, info: &PortInfo, stall: Duration) -> Self {
        let counters = (0..info.queues).map(|_| Counters::default()).collect();
        let max_frame = info.max_frame();
        Self { state, pool, counters, max_frame, stall, unwakeable: Once::new(), too_long: Once::new() }
    }

    /// Warns once that frames were dropped: frames that this end sent (`sent`), or frames of the peer.
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

    /// Warns once that the system does not permit this process to wake peers.
    #[cold]
    pub(super) fn cannot_wake(&self, error: &io::Error) {
        self.unwakeable.call_once(|| {
            tracing::warn!(
                "a memif peer waits for events, which cannot be sent without io_setup(2): {error}; let it poll, or permit that"
            );
        });
    }
}
