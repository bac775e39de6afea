//! Control calls on XRC targets that are relayed, and what follows from the states that they enter.

use super::env::Env;
use super::qp::Qp;
use super::relays::{Leg, Target};
use super::state::Shard;
use crate::id::{Psn, QpState};
use crate::proto::relay::{Member, Relay};
use crate::wire::Discard;

impl Shard {
    /// Requests to the XRC target in this slot are passed on from now on.
    pub fn relay_target(&mut self, slot: u32) {
        self.env.relays.targets.insert(slot, Target::default());
    }

    /// The queue pair in the slot `leg` leads to this member of a target; its first packet has the number `psn`. Whether the target
    /// is in a state that has a sequence.
    pub fn add_leg(&mut self, target: u32, member: Member, leg: u32, psn: Psn) -> bool {
        let Some(relayed) = self.env.relays.targets.get_mut(&target) else { return false };
        let Some(relay) = &mut relayed.relay else { return false };
        relay.join(member, psn);
        relayed.legs.insert(member, leg);
        self.env.relays.legs.insert(leg, Leg { target, member });
        true
    }

    /// This member has the shared receive queue with this number of a domain; `None`: nobody has it.
    pub fn set_srq_member(&mut self, xrcd: u32, number: u32, member: Option<Member>) {
        match member {
            Some(member) => _ = self.env.relays.srqs.insert((xrcd, number), member),
            None => _ = self.env.relays.srqs.remove(&(xrcd, number)),
        }
    }

    /// A queue pair is destroyed, which may be a relayed target or a leg.
    #[cold]
    pub(super) fn end_relayed(&mut self, qp: &mut Qp) {
        if let Some(mut target) = self.env.relays.targets.remove(&qp.slot) {
            self.env.drop_answers(qp, &mut target);
            self.env.drop_waiting(qp, &mut target);
        }
        let Some(Leg { target: slot, member }) = self.env.relays.legs.remove(&qp.slot) else { return };
        let Some(mut target) = self.env.relays.targets.remove(&slot) else { return };
        target.legs.remove(&member);
        if target.relay.as_mut().is_some_and(|relay| relay.leave(member))
            && let Some(qp) = self.qps.get(slot)
        {
            self.env.drop_waiting(qp, &mut target);
        }
        self.env.relays.targets.insert(slot, target);
    }
}

impl Env {
    /// A queue pair enters a state. The sequence of a relayed target begins with RTR, and ends with RESET and ERR.
    #[cold]
    pub fn follow_target(&mut self, qp: &mut Qp) {
        let Some(mut target) = self.relays.targets.remove(&qp.slot) else { return };
        match qp.state {
            QpState::Rtr => {
                let psn = Psn::new(qp.attr.rq_psn);
                target.relay = Some(Relay::new(qp.path_mtu(), psn, qp.attr.max_dest_rd_atomic));
            }
            QpState::Reset | QpState::Init | QpState::Err => {
                target.relay = None;
                self.drop_answers(qp, &mut target);
                self.drop_waiting(qp, &mut target);
            }
            _ => {}
        }
        self.relays.targets.insert(qp.slot, target);
    }

    /// The connection of a target is over: nobody wants its answers.
    pub fn drop_answers(&mut self, qp: &Qp, target: &mut Target) {
        let frames = target.answers.drain(..).filter(|(_, frame)| frame.is_some()).count();
        self.peers.hosts.note_held(&qp.peer, -(frames as i32));
    }

    /// What waits at a target is lost: its peer sends it again, or nobody wants it any more.
    pub fn drop_waiting(&mut self, qp: &mut Qp, target: &mut Target) {
        for _ in target.waiting.drain(..) {
            self.peers.hosts.note_held(&qp.peer, -1);
            self.discard_of(qp, Discard::OutOfSequence);
        }
    }
}
