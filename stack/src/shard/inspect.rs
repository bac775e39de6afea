//! What the simulator, tests and benchmarks ask of a shard. Not part of the API.

use std::sync::Arc;

use super::cq::{CqState, LaneId};
use super::state::Shard;
use crate::proto::wqe::Cqe;
use crate::sync::lanes::CqLane;

#[doc(hidden)]
impl Shard {
    /// Bytes that its reliable queue pairs have in flight, where [`bound`](Self::bound).
    pub fn bytes_in_flight(&self) -> u64 {
        self.env.in_flight.used()
    }

    /// The shard prefetches while it has at least so many queue pairs; [`PREFETCH_FROM`](crate::config::PREFETCH_FROM) unless told
    /// otherwise.
    pub fn prefetch_from(&mut self, qps: usize) {
        self.lookahead.set_from(qps);
        self.count_qps();
    }

    /// Frames that wait for the port.
    pub fn tx_backlog(&self) -> usize {
        self.env.outbox.backlog()
    }

    /// Packets that are held behind gaps.
    pub fn packets_held(&self) -> u32 {
        self.env.peers.hosts.held()
    }

    /// Adds the lane by which this shard alone feeds a completion queue that is polled only.
    pub fn attach_lane(&mut self, lane: CqLane<Cqe>) -> LaneId {
        self.attach_cq(lane, Arc::new(CqState::new(0, 0, None)))
    }
}
