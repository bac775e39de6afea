//! One poll-mode core: turns frames of a port's queue into work for its queue pairs and back.
//!
//! A shard owns its queue pairs, its timers and its port queue; nothing else writes them. It reads no clock, waits for no peer
//! and for no other shard, and takes short locks only: of the IP host, of keys that come and go, of events and their channels,
//! and of the address table. Whoever holds the claim on it (see `device`) calls [`Shard::poll_once`] and, between two turns,
//! the control calls.
//!
//! `env` holds the parts that a turn works with, `poll` is the turn, `rx` and `tx` are what it does with packets.

use std::sync::Arc;

use crate::id::QpType;
use crate::port::{PortQueue, RxBurst};
use crate::proto::wqe::Cqe;
use crate::sync::lanes::CqLane;
use crate::time::Instant;

mod agenda;
pub mod blocks;
mod complete;
mod completions;
mod congestion;
mod control;
mod copy;
mod corrections;
pub mod counters;
mod cq;
mod deferred;
mod drain;
mod due;
mod env;
mod events;
mod gids;
mod hops;
mod host;
mod identification;
mod idle;
mod keys;
mod life;
mod local;
mod lookahead;
mod mcast;
mod outbox;
mod paths;
mod peer_check;
mod peers;
mod poll;
mod posts;
mod qp;
mod qp_table;
mod qps;
mod rq;
mod rx;
#[cfg(test)]
mod scale;
mod shared;
mod slab;
mod tx;
pub mod wheel;
mod window;

pub use cq::{CqState, EventChannel};
pub use drain::{DrainKind, DrainMark};
pub use events::{Event, EventElement, EventQueue};
pub use gids::{GidRefused, Gids, HeldGid};
pub use mcast::{AttachError, McastTable, Member};
pub use peer_check::{CheckOutcome, PeerState};
pub use qp::QpSpec;
pub use rq::{RecvSource, SrqEnd, XrcSrq, srq_words};
pub use shared::{Shared, SharedConfig};

use cq::Lane;
use env::Env;
use lookahead::Lookahead;
use qps::Qps;

/// A completion lane of a shard: one for each completion queue that the shard feeds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LaneId(pub u32);

impl LaneId {
    /// No lane: completions go nowhere.
    pub const NONE: Self = Self(u32::MAX);
}

/// What a turn did. It fits a register. A copy in memory would be loaded with another width than it was stored with: no store
/// forwarding, so the load would wait until every store before it has left the core, those to a port's memory too.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Turn {
    /// Frames received, or 65535 if there were more.
    pub rx: u16,
    /// Frames sent, likewise.
    pub tx: u16,
    /// There is work that did not fit into this turn.
    pub more: bool,
}

const _: () = assert!(size_of::<Option<Turn>>() <= size_of::<usize>());

impl Turn {
    fn new(rx: usize, tx: usize, more: bool) -> Self {
        let count = |n: usize| n.min(u16::MAX.into()) as u16;
        Self { rx: count(rx), tx: count(tx), more }
    }
    /// Whether the turn moved nothing and left nothing.
    pub fn idle(&self) -> bool {
        self.rx == 0 && self.tx == 0 && !self.more
    }
}

/// One poll-mode core.
pub struct Shard {
    /// The burst received last.
    rx: Box<RxBurst>,
    /// Bursts received ahead of it, with so many queue pairs that what they need is prefetched.
    lookahead: Lookahead,
    qps: Qps,
    env: Env,
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

    /// Bounds the bytes that the reliable queue pairs of this shard have in flight together: request packets, and responses to
    /// their READs. Each may have one packet in flight all the same. To be called before there are queue pairs.
    pub fn bound(&mut self, window: usize) {
        assert!(self.qps() == 0, "nothing is in flight");
        self.env.in_flight.bound(window);
    }

    /// Bytes that its reliable queue pairs have in flight, where [`bound`](Self::bound).
    pub fn bytes_in_flight(&self) -> u64 {
        self.env.in_flight.used()
    }

    /// Frames that wait for the port.
    pub fn tx_backlog(&self) -> usize {
        self.env.outbox.backlog()
    }

    /// Queue pairs in RTR or above.
    pub fn connected_qps(&self) -> usize {
        self.env.connected
    }

    /// Queue pairs of this shard.
    pub fn qps(&self) -> usize {
        self.qps.table.len()
    }

    /// Adds the lane by which this shard alone feeds a completion queue that is polled only.
    pub fn attach_lane(&mut self, lane: CqLane<Cqe>) -> LaneId {
        self.attach_cq(lane, Arc::new(CqState::new(0, 0, None)))
    }

    /// Adds the lane by which this shard feeds a completion queue.
    pub fn attach_cq(&mut self, mut writer: CqLane<Cqe>, cq: Arc<CqState>) -> LaneId {
        if cq.overran() {
            writer.poison(); // it overran after the queue pair was allowed
        }
        self.env.completions.attach(Lane { writer, cq, lost: false })
    }

    /// Puts a lane of the resized queue in the place of the old one. What is staged goes along.
    pub fn replace_lane(&mut self, lane: LaneId, new: CqLane<Cqe>) {
        self.env.completions.replace(lane, new);
    }

    /// Removes a lane; no queue pair uses it any more.
    pub fn detach_lane(&mut self, lane: LaneId) {
        self.env.completions.detach(lane);
        for deferred in self.qps.iter_mut().filter_map(|qp| qp.deferred.as_mut()) {
            deferred.forget(lane);
        }
    }

    /// The multicast groups of the device from now on.
    pub fn set_mcast(&mut self, table: Arc<McastTable>) {
        self.env.mcast = table;
    }

    /// Lets go of the old rings of shared receive queues that were resized.
    pub fn refresh_srqs(&mut self) {
        for qp in self.qps.iter_mut() {
            qp.rq.refresh();
        }
        for srq in &mut self.env.xrc_srqs {
            srq.end.taker.refresh();
        }
    }

    /// Makes an XRC shared receive queue known, for the XRC targets of its domain.
    pub fn attach_srq(&mut self, srq: XrcSrq) {
        let srqs = &mut self.env.xrc_srqs;
        let at = srqs.partition_point(|other| other.end.number < srq.end.number);
        srqs.insert(at, srq);
    }

    /// Forgets an XRC shared receive queue. A message that is in progress into one of its entries is refused from
    /// here on, and the entry ends without a completion.
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
