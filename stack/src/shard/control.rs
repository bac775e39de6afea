//! Control calls on the queue pairs of a shard, between two of its turns.

use std::sync::Arc;

use super::counters::QpCounters;
use super::held_gid::HeldGid;
use super::listed::Listed;
use super::qp::QpSpec;
use super::qp::{Cause, Qp};
use super::state::Shard;
use crate::config::{LAST_TURNS, READY_BUDGET};
use crate::id::{Psn, QpState, QpType};
use crate::proto::attr::{AttrMask, QpAttr};
use crate::proto::state::{self, ModifyContext, ModifyError};
use crate::sync::words::Word;
use crate::time::Instant;

impl Shard {
    /// Adds a queue pair, in RESET. The returned counters can be read at any time.
    ///
    /// # Panics
    /// If the slot is taken or the number is in use: the device allocates both.
    pub fn create_qp(&mut self, spec: QpSpec) -> Arc<QpCounters> {
        let slot = spec.slot;
        self.env.agenda.wheel.reserve(slot + 1);
        self.env.peers.hops.reserve(slot + 1);
        self.env.in_flight.reserve(slot);
        let index = (self.env.id * self.env.shared.qps_per_shard) as u32 + slot;
        let epoch = self.env.shared.words.load(index).epoch();
        self.qps.table.insert(spec.qpn, spec.slot);
        self.count_qps();
        let rings = [Some(spec.sq.memory()), spec.rq.memory()];
        let qp = self.qps.slots.insert(slot, Qp::new(spec, index, epoch, &self.env.shared));
        qp.publish_word(&self.env.shared.words);
        let counters = qp.counters.clone();
        self.qps.around.add((&raw const *counters).addr(), size_of::<QpCounters>());
        for ring in rings.into_iter().flatten() {
            self.qps.around.add(ring.start, ring.len());
        }
        counters
    }

    /// `ibv_modify_qp(3)`: applies all of it, or returns an error and changes nothing.
    pub fn modify_qp(
        &mut self,
        now: Instant,
        slot: u32,
        attr: &QpAttr,
        mask: AttrMask,
    ) -> Result<(), ModifyError> {
        if mask.contains(AttrMask::AV) && self.env.outbox.has_routes() {
            self.hold_back_receives(); // by the route over which their acknowledgements left
        }
        let env = &mut self.env;
        env.now = now;
        let qp = self.qps.get(slot).expect("the device knows which slots are taken");
        // The source address is held before it is checked, so that the checked address is the one used. An index that the queue pair
        // already holds keeps its address, even if the port has lost the address.
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
            // Queue pair 1 is privileged: its Q_Key is in the privileged half.
            privileged: qp.ty == QpType::Gsi,
        };
        let to = state::modify(&context, attr, mask)?;
        if let Some(source) = new {
            qp.hold_gid(&shared, source);
        }
        qp.attr.take(attr, mask);
        if qp.is_datagram() {
            qp.attr.path_mtu = env.shared.mtu() as u8; // not an attribute of datagram queue pairs: a datagram is as long as the port allows
        }
        let from = qp.state;
        if mask.contains(AttrMask::AV) || mask.contains(AttrMask::DEST_QPN) {
            env.release_source_port(qp);
            qp.set_path(&env.shared);
            if let Some(grh) = qp.attr.ah_attr.grh.filter(|_| !qp.is_datagram()) {
                env.drop_held(qp);
                env.stop_timing(qp);
                env.peers.hosts.join(&mut qp.peer, grh.dgid);
                env.take_source_port(qp);
            }
        }
        match (from, to) {
            (_, QpState::Reset | QpState::Err) => {}
            (_, QpState::Rtr) => {
                let config = qp.responder_config();
                let psn = Psn::new(qp.attr.rq_psn);
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
            env.agenda.unpark(qp);
        }
        if to == QpState::Sqd && from == QpState::Rts && !mask.contains(AttrMask::EN_SQD_ASYNC_NOTIFY) {
            qp.attr.en_sqd_async_notify = false;
        }
        if (from, to) == (QpState::Sqe, QpState::Rts) {
            env.flush_queues(qp, Cause::default()); // requests posted in SQE are flushed there
            if qp.state != from {
                return Ok(()); // in ERR: its completion queue overran
            }
        }
        if to != from || to == QpState::Reset {
            env.enter(qp, to, Cause::default());
            if to == QpState::Sqd {
                qp.check_drained(&env.shared.events);
            }
        }
        if to == QpState::Err {
            // Not left to the next turn: a caller that moves to RESET again and again may leave no time for one.
            self.publish_if_due();
        }
        Ok(())
    }

    /// The attributes as set, with the current state and sequence numbers.
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

    /// Sends what was posted to a queue pair that is about to be destroyed, except what waits for the peer, for a next hop, or for a full
    /// port. A program that destroys a queue pair right after a post gets no completion, but the message leaves, as with a NIC, which
    /// begins at the post.
    pub fn send_posted(&mut self, now: Instant, slot: u32) {
        for _ in 0..LAST_TURNS {
            let Some(qp) = self.qps.get(slot) else { return };
            if qp.state != QpState::Rts || qp.requester.sent_all(&qp.sq) {
                return;
            }
            self.env.agenda.mark_ready(qp);
            let (started, built) = (qp.requester.started(), self.env.outbox.ip_id);
            let served = self.env.agenda.ready.len() <= READY_BUDGET;
            let turn = self.poll_once(now);
            let Some(qp) = self.qps.get(slot).filter(|qp| qp.in_ready == Listed::Yes) else {
                return; // the rest waits for the peer, for a next hop, or for room on its route
            };
            let went_on = turn.tx > 0 || self.env.outbox.ip_id != built || qp.requester.started() != started;
            if served && !went_on {
                return; // the port takes nothing and has no room
            }
        }
    }

    /// Removes a queue pair. Pollers skip its completions from now on; the slot and the number are free.
    pub fn destroy_qp(&mut self, slot: u32) {
        let Some(mut qp) = self.qps.remove(slot) else { return };
        if !self.env.relays.is_empty() {
            self.end_relayed(&mut qp);
        }
        self.env.completions.forget_deferred(&mut qp);
        self.env.drop_held(&mut qp);
        self.env.stop_timing(&qp);
        self.env.release_source_port(&mut qp);
        self.env.peers.hosts.leave(&mut qp.peer);
        self.env.connected -= usize::from(!matches!(qp.state, QpState::Reset | QpState::Init));
        self.env.agenda.wheel.cancel(slot);
        self.env.peers.release(&self.env.shared, slot);
        self.env.in_flight.release(slot);
        self.count_qps();
        self.env.shared.mrs.forget_qp(qp.qpn);
        qp.release_gid(&self.env.shared);
        self.env.shared.words.store(qp.index, Word::new(qp.epoch.wrapping_add(1), 0, 0));
    }
}
