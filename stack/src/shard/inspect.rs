//! Access to the state of a shard for the simulator, tests and benchmarks. Not part of the API.

use std::sync::Arc;

use super::cq::{CqState, LaneId};
use super::state::Shard;
use crate::proto::wqe::Cqe;
use crate::sync::lanes::CqLane;

#[doc(hidden)]
impl Shard {
    /// Bytes in flight of the shard's reliable queue pairs; 0 unless [`bound`](Self::bound) was called.
    pub fn bytes_in_flight(&self) -> u64 {
        self.env.in_flight.used()
    }

    /// Sets the number of queue pairs from which on the shard prefetches; the default is [`PREFETCH_FROM`](crate::config::PREFETCH_FROM).
    pub fn prefetch_from(&mut self, qps: usize) {
        self.lookahead.set_from(qps);
        self.count_qps();
    }

    /// Number of frames that wait for the port.
    pub fn tx_backlog(&self) -> usize {
        self.env.outbox.backlog()
    }

    /// Number of packets held behind gaps.
    pub fn packets_held(&self) -> u32 {
        self.env.peers.hosts.held()
    }

    /// Adds the lane of a completion queue that this shard alone feeds, and that is polled without events.
    pub fn attach_lane(&mut self, lane: CqLane<Cqe>) -> LaneId {
        self.attach_cq(lane, Arc::new(CqState::new(0, 0, None)))
    }
}
