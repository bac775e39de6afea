//! The structure of a shard: its queue pairs, and the parts that a turn works with; and the objects attached to it between two turns.

use std::sync::Arc;

use super::cq::{CqState, Lane, LaneId};
use super::env::Env;
use super::lookahead::Lookahead;
use super::mcast::McastTable;
use super::qps::Qps;
use super::rq::XrcSrq;
use super::shared::Shared;
use crate::id::QpType;
use crate::port::{PortQueue, RxBurst};
use crate::proto::wqe::Cqe;
use crate::sync::lanes::CqLane;
use crate::time::Instant;

/// One poll-mode core.
pub struct Shard {
    /// The last burst received.
    pub(super) rx: Box<RxBurst>,
    /// With very many queue pairs: bursts received ahead, for prefetching.
    pub(super) lookahead: Lookahead,
    pub(super) qps: Qps,
    pub(super) env: Env,
}

impl core::fmt::Debug for Shard {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Shard").field("id", &self.env.id).field("qps", &self.qps.table.len()).finish()
    }
}

impl Shard {
    /// Shard `id` of a device, with its queue of the device's port.
    pub fn new(id: usize, shared: Arc<Shared>, queue: Box<dyn PortQueue>, now: Instant) -> Self {
        let qps = Qps::new(shared.qps_per_shard);
        let env = Env::new(id, shared, queue, now);
        Self { rx: Box::default(), lookahead: Lookahead::default(), qps, env }
    }

    /// Limits the bytes in flight of all reliable queue pairs of this shard: request packets, and responses to their READs. Each queue
    /// pair may have one packet in flight regardless. Call it before queue pairs are created.
    pub fn bound(&mut self, window: usize) {
        assert!(self.qps() == 0, "nothing is in flight");
        self.env.in_flight.bound(window);
    }

    /// Sets that the port sends consecutive frames to one peer in messages of `bytes` bytes.
    pub fn send_in_messages(&mut self, bytes: usize) {
        self.env.outbox.send_in_messages(bytes);
    }

    /// Updates what depends on the number of queue pairs.
    pub(super) fn count_qps(&mut self) {
        self.lookahead.count(self.qps.table.len());
        self.env.agenda.cancels_timers = self.lookahead.is_on();
    }

    /// Number of queue pairs in neither RESET nor INIT.
    pub fn connected_qps(&self) -> usize {
        self.env.connected
    }

    /// Number of queue pairs of this shard.
    pub fn qps(&self) -> usize {
        self.qps.table.len()
    }

    /// Adds the lane by which this shard feeds a completion queue.
    pub fn attach_cq(&mut self, mut writer: CqLane<Cqe>, cq: Arc<CqState>) -> LaneId {
        if cq.overran() {
            writer.poison(); // the queue overran after the creation of the queue pair was permitted
        }
        self.env.completions.attach(Lane { writer, cq, lost: false })
    }

    /// Replaces a lane by a lane of the resized queue. Staged completions move along.
    pub fn replace_lane(&mut self, lane: LaneId, new: CqLane<Cqe>) {
        self.env.completions.replace(lane, new);
    }

    /// Removes a lane that no queue pair uses any more.
    pub fn detach_lane(&mut self, lane: LaneId) {
        self.env.completions.detach(lane);
        for deferred in self.qps.iter_mut().filter_map(|qp| qp.deferred.as_mut()) {
            deferred.forget(lane);
        }
    }

    /// Sets the multicast groups of the device.
    pub fn set_mcast(&mut self, table: Arc<McastTable>) {
        self.env.mcast = table;
    }

    /// Releases the old rings of shared receive queues that were resized.
    pub fn refresh_srqs(&mut self) {
        for qp in self.qps.iter_mut() {
            qp.rq.refresh();
        }
        for srq in &mut self.env.xrc_srqs {
            srq.end.taker.refresh();
        }
    }

    /// Adds an XRC shared receive queue, for the XRC targets of its domain.
    pub fn attach_srq(&mut self, srq: XrcSrq) {
        let srqs = &mut self.env.xrc_srqs;
        let at = srqs.partition_point(|other| other.end.number < srq.end.number);
        srqs.insert(at, srq);
    }

    /// Removes an XRC shared receive queue. A message in progress into one of its entries is refused from here on, and the entry ends
    /// without a completion.
    pub fn detach_srq(&mut self, number: u32) {
        self.env.xrc_srqs.retain(|srq| srq.end.number != number);
        for qp in self.qps.iter_mut() {
            if qp.ty == QpType::XrcTgt && qp.rq.srq_number() == Some(number) {
                qp.rq.attach(None);
                qp.recv_lane = LaneId::NONE;
            }
        }
    }
}
