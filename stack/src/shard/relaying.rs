//! Control calls on relayed XRC targets, and what follows from their state transitions.

use super::env::Env;
use super::qp::Qp;
use super::relays::{Leg, Target};
use super::state::Shard;
use crate::id::{Psn, QpState};
use crate::proto::relay::{Member, Relay};
use crate::wire::Discard;

impl Shard {
    /// Makes the XRC target in this slot a relayed one: its requests are forwarded to members.
    pub fn relay_target(&mut self, slot: u32) {
        self.env.relays.targets.insert(slot, Target::default());
    }

    /// Makes the queue pair in the slot `leg` the leg to a member; its first request has this PSN. Returns `false` if the target is not
    /// connected (RTR or above).
    pub fn add_leg(&mut self, target: u32, member: Member, leg: u32, psn: Psn) -> bool {
        let Some(relayed) = self.env.relays.targets.get_mut(&target) else { return false };
        let Some(relay) = &mut relayed.relay else { return false };
        relay.join(member, psn);
        relayed.legs.insert(member, leg);
        self.env.relays.legs.insert(leg, Leg { target, member });
        true
    }

    /// Sets which member has the shared receive queue with this number of a domain; `None`: no member has it.
    pub fn set_srq_member(&mut self, xrcd: u32, number: u32, member: Option<Member>) {
        match member {
            Some(member) => _ = self.env.relays.srqs.insert((xrcd, number), member),
            None => _ = self.env.relays.srqs.remove(&(xrcd, number)),
        }
    }

    /// Removes the state of a queue pair that is destroyed, if it is a relayed target or a leg.
    #[cold]
    pub(super) fn end_relayed(&mut self, qp: &mut Qp) {
        let Self { env, qps, .. } = self;
        if let Some(mut target) = env.relays.targets.remove(&qp.slot) {
            env.disconnect(qp, &mut target);
        }
        let Some(Leg { target: slot, member }) = env.relays.legs.remove(&qp.slot) else { return };
        env.with_target(slot, |env, target| {
            target.legs.remove(&member);
            if target.relay.as_mut().is_some_and(|relay| relay.leave(member))
                && let Some(qp) = qps.get(slot)
            {
                env.drop_waiting(qp, target);
            }
        });
    }
}

impl Env {
    /// Follows the state transition of a relayed target: its packet sequence begins in RTR, and ends in RESET and ERR.
    #[cold]
    pub fn follow_target(&mut self, qp: &mut Qp) {
        self.with_target(qp.slot, |env, target| match qp.state {
            QpState::Rtr => {
                let psn = Psn::new(qp.attr.rq_psn);
                target.relay = Some(Relay::new(qp.path_mtu(), psn, qp.attr.max_dest_rd_atomic));
            }
            QpState::Reset | QpState::Init | QpState::Err => env.disconnect(qp, target),
            _ => {}
        });
    }

    /// Calls `work` with the relayed target in this slot, if there is one.
    pub fn with_target<T>(&mut self, slot: u32, work: impl FnOnce(&mut Self, &mut Target) -> T) -> Option<T> {
        let mut target = self.relays.targets.remove(&slot)?;
        let done = work(self, &mut target);
        self.relays.targets.insert(slot, target);
        Some(done)
    }

    /// Ends the packet sequence of a target, whose connection is over, and drops its queued requests and responses.
    pub fn disconnect(&mut self, qp: &mut Qp, target: &mut Target) {
        target.relay = None;
        self.drop_waiting(qp, target);
        let frames = target.answers.drain(..).filter(|(_, frame)| frame.is_some()).count();
        self.peers.hosts.note_held(&qp.peer, -(frames as i32));
    }

    /// Drops the requests that wait at a target: its peer retransmits them, or its connection is over.
    pub fn drop_waiting(&mut self, qp: &mut Qp, target: &mut Target) {
        for _ in target.waiting.drain(..) {
            self.peers.hosts.note_held(&qp.peer, -1);
            self.discard_of(qp, Discard::OutOfSequence);
        }
    }
}
