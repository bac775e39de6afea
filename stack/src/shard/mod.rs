//! One poll-mode core: turns frames of a port's queue into work for its queue pairs and back.
//!
//! A shard owns its queue pairs, its timers and its port queue; nothing else writes them. It never blocks,
//! waits or reads a clock. Whoever holds the claim on it (see `device`) calls [`Shard::poll_once`] and, between
//! two turns, the control calls below.

use std::sync::Arc;

use crate::id::{QpState, QpType, Qpn};
use crate::mark::step;
use crate::port::{Armed, PortQueue, RxBurst};
use crate::proto::attr::{AttrMask, QpAttr};
use crate::proto::state::{self, ModifyContext, ModifyError};
use crate::proto::wqe::Cqe;
use crate::sync::huge::Filling;
use crate::sync::lanes::CqLane;
use crate::sync::words::Word;
use crate::time::Instant;

mod agenda;
mod answers;
pub mod blocks;
mod complete;
mod completions;
mod congestion;
mod copy;
mod corrections;
pub mod counters;
mod cq;
mod deferred;
mod drain;
mod env;
mod events;
mod gids;
mod hops;
mod host;
mod keys;
mod local;
mod lookahead;
mod mcast;
mod outbox;
mod paths;
mod peers;
mod poll;
mod qp;
mod qp_table;
mod requests;
mod rq;
mod rx;
#[cfg(test)]
mod scale;
mod shared;
mod slab;
mod tx;
mod unreliable;
pub mod wheel;
mod writer;

pub use cq::{CqState, EventChannel};
pub use drain::{DrainKind, DrainMark};
pub use events::{Event, EventElement, EventQueue};
pub use gids::{GidRefused, Gids, HeldGid};
pub use mcast::{AttachError, McastTable, Member};
pub use qp::QpSpec;
pub use rq::{RecvSource, SrqEnd, XrcSrq, srq_words};
pub use shared::{Shared, SharedConfig};

use counters::QpCounters;
use cq::Lane;
use env::Env;
use lookahead::Lookahead;
use qp::{Cause, Qp};
use qp_table::QpTable;
use slab::Slab;

/// A completion lane of a shard: one for each completion queue that the shard feeds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LaneId(pub u32);

impl LaneId {
    /// No lane: completions go nowhere.
    pub const NONE: Self = Self(u32::MAX);
}

/// What a turn did. It fits a register: a copy in memory would load what was just stored in other pieces, and so wait until
/// every store before it has left the core, those to a port's memory too.
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

/// The queue pairs of a shard, by slot and by number.
#[derive(Debug)]
struct Qps {
    slots: Slab<Qp>,
    table: QpTable,
    /// Number and slot of the one that was found last.
    found: Option<(Qpn, u32)>,
    /// Where their rings and counters lie, and between those what else belongs to them.
    around: Filling,
}

impl Qps {
    /// None, and so many slots for them.
    fn new(slots: usize) -> Self {
        let (table, around) = (QpTable::default(), Filling::default());
        Self { slots: Slab::new(slots), table, found: None, around }
    }
    #[inline]
    fn get(&mut self, slot: u32) -> Option<&mut Qp> {
        step();
        self.slots.get_mut(slot)
    }
    /// A glance, which takes no step.
    #[inline(always)]
    fn peek(&self, slot: u32) -> Option<&Qp> {
        self.slots.get(slot)
    }
    /// The queue pair with this number. Often it is that of the packet before: then nothing of it waits for what the table says.
    #[inline]
    fn find(&mut self, qpn: Qpn) -> Option<&mut Qp> {
        let slot = match self.found {
            Some((found, slot)) if found == qpn => slot,
            _ => {
                let slot = self.table.get(qpn)?;
                self.found = Some((qpn, slot));
                slot
            }
        };
        self.get(slot)
    }
    /// Takes a queue pair out of its slot: its number finds nothing from now on.
    fn remove(&mut self, slot: u32) -> Option<Qp> {
        let qp = self.slots.remove(slot)?;
        self.table.remove(qp.qpn);
        self.found = None;
        Some(qp)
    }
    fn iter_mut(&mut self) -> impl Iterator<Item = &mut Qp> {
        self.slots.iter_mut().inspect(|_| step())
    }
}

/// One poll-mode core.
pub struct Shard {
    /// The burst received last.
    rx: Box<RxBurst>,
    /// Those after it, while there are so many queue pairs that what they need is prefetched.
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

    /// When the next turn has something to do if no frame and no doorbell comes; `None` for never.
    pub fn next_deadline(&self) -> Option<Instant> {
        let env = &self.env;
        let busy = env.agenda.any_to_send()
            || !self.lookahead.is_empty()
            || env.keys.settling()
            || env.outbox.backlog() > 0
            || env.shared.doorbells[env.id].any()
            || !env.shared.inboxes[env.id].is_empty()
            || !env.peers.are_current(&env.shared)
            || env.peers.hops.any_due()
            || env.agenda.corrections.any()
            || env.completions.overruns_seen != env.shared.overruns()
            || self.watched_posts();
        if busy {
            return Some(env.now);
        }
        let net = env.shared.net_deadline();
        let net = (net != Instant::FAR).then_some(net);
        [env.agenda.wheel.next_deadline(), net].into_iter().flatten().min()
    }

    /// Gets ready for a sleep of whoever turns this shard: from here on posters ring, and a port that can tells when frames
    /// arrive. What is due at once is in [`next_deadline`](Self::next_deadline) after this.
    pub fn arm(&mut self) -> Armed {
        while let Some(slot) = self.env.agenda.watched.pop() {
            if let Some(qp) = self.qps.get(slot).filter(|qp| qp.watched) {
                self.env.unwatch(qp);
            }
        }
        self.env.outbox.queue.arm()
    }

    /// Frames that wait for the port.
    pub fn tx_backlog(&self) -> usize {
        self.env.outbox.backlog()
    }

    /// Whether nothing is left to send: no frame, no answer, no request that could go now.
    pub fn quiet(&self) -> bool {
        self.env.outbox.backlog() == 0 && !self.env.agenda.any_to_send()
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
            writer.poison(); // since its queue pair was found to be allowed
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

    /// Adds a queue pair, in RESET. What it counts can be read at any time from what is returned.
    ///
    /// # Panics
    /// If the slot is taken or the number is in use: the device gives both out.
    pub fn create_qp(&mut self, spec: QpSpec) -> Arc<QpCounters> {
        let slot = spec.slot;
        self.env.agenda.wheel.reserve(slot + 1);
        self.env.peers.hops.reserve(slot + 1);
        let index = (self.env.id * self.env.shared.qps_per_shard) as u32 + slot;
        let epoch = self.env.shared.words.load(index).epoch();
        self.qps.table.insert(spec.qpn, spec.slot);
        self.count_qps();
        let rings = [Some(spec.sq.memory()), spec.rq.memory()];
        let qp = self.qps.slots.insert(slot, Qp::new(spec, index, epoch, &self.env.shared));
        self.env.publish_word(qp);
        let counters = qp.counters.clone();
        self.qps.around.add((&raw const *counters).addr(), size_of::<QpCounters>());
        for ring in rings.into_iter().flatten() {
            self.qps.around.add(ring.start, ring.len());
        }
        counters
    }

    /// `ibv_modify_qp(3)`: all of it, or an error and nothing.
    pub fn modify_qp(
        &mut self,
        now: Instant,
        slot: u32,
        attr: &QpAttr,
        mask: AttrMask,
    ) -> Result<(), ModifyError> {
        let env = &mut self.env;
        env.now = now;
        let qp = self.qps.get(slot).expect("the device knows which slots are taken");
        // The source address is held before it is judged: what is judged is what is used. An index that the queue pair holds
        // keeps its address, also where the port does not have it any more.
        let index = attr.ah_attr.grh.filter(|_| mask.contains(AttrMask::AV)).map(|grh| grh.sgid_index);
        let new = index.filter(|index| qp.held_gid != Some(*index));
        let shared = env.shared.clone();
        let new = new.and_then(|index| shared.hold_gid(index));
        let kept = index.filter(|index| qp.held_gid == Some(*index));
        let kept = kept.and_then(|index| shared.gids.get(index.into()));
        let context = ModifyContext {
            ty: qp.ty,
            state: qp.state,
            draining: qp.draining,
            port_mtu: shared.mtu(),
            gids: shared.gids.len(),
            source: new.as_ref().map(HeldGid::gid).or(kept),
            pkeys: 1,
            // Whoever has queue pair 1 has the privilege: its Q_Key is of the privileged half.
            privileged: qp.ty == QpType::Gsi,
        };
        let to = state::modify(&context, attr, mask)?;
        if let Some(source) = new {
            qp.take_gid(&shared, source);
        }
        qp.attr.take(attr, mask);
        if qp.is_datagram() {
            qp.attr.path_mtu = env.shared.mtu() as u8; // no attribute of theirs: a datagram is as long as the port allows
        }
        let from = qp.state;
        if mask.contains(AttrMask::AV) || mask.contains(AttrMask::DEST_QPN) {
            qp.set_path(&env.shared);
        }
        match (from, to) {
            (_, QpState::Reset | QpState::Err) => {}
            (_, QpState::Rtr) => {
                let config = qp.responder_config();
                let psn = crate::id::Psn::new(qp.attr.rq_psn);
                qp.responder.start(&config, psn, qp.attr.max_dest_rd_atomic);
            }
            (QpState::Rtr, QpState::Rts) => {
                let config = qp.requester_config();
                qp.requester.start(&config);
                let config = qp.responder_config();
                qp.responder.configure(&config);
            }
            _ => {
                let (requester, responder) = (qp.requester_config(), qp.responder_config());
                qp.requester.configure(&requester);
                qp.responder.configure(&responder);
                if mask.contains(AttrMask::MAX_DEST_RD_ATOMIC) {
                    qp.responder.resize_resources(qp.attr.max_dest_rd_atomic);
                }
            }
        }
        if mask.contains(AttrMask::AV) {
            env.resolve(qp);
        }
        if to == QpState::Sqd && from == QpState::Rts && !mask.contains(AttrMask::EN_SQD_ASYNC_NOTIFY) {
            qp.attr.en_sqd_async_notify = false;
        }
        if (from, to) == (QpState::Sqe, QpState::Rts) {
            env.flush_queues(qp, Cause::default()); // what was posted in SQE ends there
        }
        if to != from || to == QpState::Reset {
            env.enter(qp, to, Cause::default());
            if to == QpState::Sqd {
                env.check_drained(qp);
            }
            if to == QpState::Rts {
                env.agenda.mark_ready(qp);
            }
        }
        if to == QpState::Err {
            // Not left to the next turn: who goes on to RESET, again and again, may leave no time for one.
            self.publish_if_due();
        }
        Ok(())
    }

    /// The attributes as set, with the state and sequence numbers as they are.
    pub fn query_qp(&mut self, slot: u32) -> QpAttr {
        let qp = self.qps.get(slot).expect("the device knows which slots are taken");
        let mut attr = *qp.attr;
        attr.qp_state = qp.state;
        attr.cur_qp_state = qp.state;
        attr.sq_draining = qp.draining;
        if matches!(qp.state, QpState::Rts | QpState::Sqd | QpState::Sqe) && qp.ty != QpType::XrcTgt {
            attr.sq_psn = qp.requester.sq_psn().get();
        }
        let receives = matches!(qp.state, QpState::Rtr | QpState::Rts | QpState::Sqd | QpState::Sqe);
        if receives && matches!(qp.ty, QpType::Rc | QpType::Uc | QpType::XrcTgt) {
            attr.rq_psn = qp.responder.rq_psn().get();
        }
        attr
    }

    /// Removes a queue pair. Poll skips its completions from now on; the slot and its number are free.
    pub fn destroy_qp(&mut self, slot: u32) {
        let Some(mut qp) = self.qps.remove(slot) else { return };
        self.env.connected -= usize::from(!matches!(qp.state, QpState::Reset | QpState::Init));
        self.env.agenda.wheel.cancel(slot);
        self.env.release_next_hop(slot);
        self.count_qps();
        self.env.shared.mrs.forget_qp(qp.qpn);
        qp.release_gid(&self.env.shared);
        self.env.shared.words.store(qp.index, Word::new(qp.epoch.wrapping_add(1), 0, 0));
    }
}
