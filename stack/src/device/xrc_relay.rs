//! XRC targets whose requests are relayed to other processes, which share their domain.
//!
//! The process that has the target is its owner. For each process with shared receive queues in the domain, a *member*, the owner has a
//! leg: an XRC initiator without a poster, connected with a shadow of the target in the member ([`XrcdCore::create_shadow`]).
//! [`proto::relay`](crate::proto::relay) decides what is relayed, and when.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use super::cq::CqCore;
use super::error::DeviceError;
use super::inside_turn::not_inside_turn;
use super::pd::PdCore;
use super::qp::QpCore;
use super::qp_init::QpInit;
use super::xrcd::XrcdCore;
use crate::id::{Gid, QpState, QpType, Qpn};
use crate::proto::attr::{AhAttr, GlobalRoute, QpAttr, QpCap};
use crate::proto::relay::Member;
use crate::proto::requester::Policies;
use crate::proto::state::required;
use crate::sync::lock::lock;

/// An XRC target whose requests are relayed to the members of its domain.
#[derive(Debug)]
pub struct RelayedTarget {
    /// Declared before the target, so that legs are dropped first.
    legs: Mutex<HashMap<Member, Leg>>,
    target: Arc<QpCore>,
    pd: Arc<PdCore>,
    /// Never used, but an initiator requires one.
    cq: Arc<CqCore>,
}

#[derive(Debug)]
struct Leg {
    qp: Arc<QpCore>,
    /// The address vector to the member.
    to: AhAttr,
}

impl XrcdCore {
    /// Creates an XRC target, in RESET, whose requests are relayed. `pd` and `cq` are for its legs.
    ///
    /// # Errors
    /// As for other queue pairs.
    pub fn create_relayed(
        self: &Arc<Self>,
        pd: &Arc<PdCore>,
        cq: &Arc<CqCore>,
    ) -> Result<RelayedTarget, DeviceError> {
        let target = self.create_qp(None, None)?;
        let slot = target.slot();
        self.device().core().control(target.shard(), |shard, _| shard.relay_target(slot))?;
        Ok(RelayedTarget { legs: Mutex::default(), target, pd: pd.clone(), cq: cq.clone() })
    }

    /// Sets the member that has the shared receive queue with this number, to which requests for it are relayed; `None` for no member.
    ///
    /// # Errors
    /// [`DeviceError::InsideTurn`], [`DeviceError::ShardDied`].
    pub fn set_srq_member(&self, number: u32, member: Option<Member>) -> Result<(), DeviceError> {
        not_inside_turn()?;
        let xrcd = self.id();
        for shard in 0..self.device().shards() {
            self.device().core().control(shard, |shard, _| shard.set_srq_member(xrcd, number, member))?;
        }
        Ok(())
    }
}

impl RelayedTarget {
    /// The target, for calls that apply to any target.
    pub fn qp(&self) -> &Arc<QpCore> {
        &self.target
    }

    /// Creates the leg to a member at address `to`; the target must be in RTR. Returns the attributes that bring the target's shadow in the
    /// member to RTR; the member sets the index of its local address among them. Packets are relayed from
    /// [`connect_leg`](Self::connect_leg) on.
    ///
    /// # Errors
    /// [`DeviceError::Unsuitable`] if the target has no peer; as for other queue pairs.
    pub fn add_leg(&self, member: Member, to: Gid) -> Result<QpAttr, DeviceError> {
        let (attr, grh) = self.connected()?;
        let from = self.target.device().gids().get(usize::from(grh.sgid_index)).copied().unwrap_or_default();
        let qp = self.pd.create_qp(&QpInit {
            qp_type: QpType::XrcIni,
            send_cq: Some(&self.cq),
            recv_cq: None,
            srq: None,
            cap: QpCap { max_send_wr: 1, ..QpCap::default() },
            sq_sig_all: false,
            shard: Some(self.target.shard()),
            block_self_mcast_lb: false,
            number: None,
            policies: Policies::default(),
        })?;
        let route = |dgid| AhAttr { grh: Some(GlobalRoute { dgid, ..grh }), ..attr.ah_attr };
        let (dest_qp_num, rq_psn) = (qp.qpn().get(), qp.first_psn().get());
        lock(&self.legs).insert(member, Leg { qp, to: route(to) });
        Ok(QpAttr { dest_qp_num, rq_psn, ah_attr: route(from), ..attr })
    }

    /// Connects the leg to the shadow with this number: packets are relayed to it from now on.
    ///
    /// # Errors
    /// [`DeviceError::Unsuitable`] if the target is no longer connected, or [`add_leg`](Self::add_leg) was not called; as for other queue
    /// pairs.
    pub fn connect_leg(&self, member: Member, shadow: Qpn) -> Result<(), DeviceError> {
        let (attr, _) = self.connected()?;
        let legs = lock(&self.legs);
        let none = DeviceError::Unsuitable("the leg of a relayed XRC target is made before it is connected");
        let Leg { qp, to } = legs.get(&member).ok_or(none)?;
        let state = |qp_state| QpAttr {
            qp_state,
            port_num: 1,
            path_mtu: attr.path_mtu,
            ah_attr: *to,
            dest_qp_num: shadow.get(),
            sq_psn: qp.first_psn().get(),
            ..QpAttr::default()
        };
        for (from, to) in
            [(QpState::Reset, QpState::Init), (QpState::Init, QpState::Rtr), (QpState::Rtr, QpState::Rts)]
        {
            qp.modify(&state(to), required(from, to, QpType::XrcIni))?;
        }
        let (target, leg, psn) = (self.target.slot(), qp.slot(), qp.first_psn());
        let core = self.target.device().core();
        let joined = core.control(qp.shard(), |shard, _| shard.add_leg(target, member, leg, psn))?;
        if joined { Ok(()) } else { Err(no_peer()) }
    }

    /// Removes the leg to a member that ended, or has no more shared receive queues: packets that it has not acknowledged are lost.
    pub fn remove_leg(&self, member: Member) {
        let leg = lock(&self.legs).remove(&member);
        drop(leg);
    }

    /// The attributes of the target, and the path to its peer.
    fn connected(&self) -> Result<(QpAttr, GlobalRoute), DeviceError> {
        let attr = self.target.query()?;
        let connected = matches!(attr.qp_state, QpState::Rtr | QpState::Rts | QpState::Sqd);
        let grh = attr.ah_attr.grh.filter(|_| connected).ok_or_else(no_peer)?;
        Ok((attr, grh))
    }
}

fn no_peer() -> DeviceError {
    DeviceError::Unsuitable("a relayed XRC target passes nothing on before it is in RTR")
}
