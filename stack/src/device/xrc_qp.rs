//! Queue pairs of XRC domains: targets, and receive-only ones.

use std::collections::HashSet;
use std::sync::{Arc, Weak};

use super::error::DeviceError;
use super::inside_turn::not_inside_turn;
use super::qp::QpCore;
use super::qp_init::{QpInit, TargetOf};
use super::xrc_domain::{AnyQp, Receiver};
use super::xrcd::XrcdCore;
use crate::id::{QpState, QpType, Qpn};
use crate::proto::attr::{AttrMask, QpAttr};
use crate::proto::state::required;
use crate::sync::lock::lock;

impl XrcdCore {
    /// Creates an XRC target, in RESET; `number` is as in [`QpInit::number`].
    ///
    /// # Errors
    /// As for other queue pairs.
    pub fn create_qp(
        self: &Arc<Self>,
        shard: Option<usize>,
        number: Option<Qpn>,
    ) -> Result<Arc<QpCore>, DeviceError> {
        let qp = QpCore::new(
            self.device().clone(),
            None,
            &QpInit::target(shard, number),
            Some(TargetOf::Open(self.clone())),
        )?;
        let mut targets = lock(&self.domain().targets);
        targets.retain(|_, qp| qp.strong_count() > 0);
        let weak: Weak<QpCore> = Arc::downgrade(&qp);
        targets.insert(qp.qpn(), weak);
        Ok(qp)
    }

    /// An XRC target that another open of the domain created.
    ///
    /// # Errors
    /// [`DeviceError::NoSuchTarget`].
    pub fn open_qp(&self, qpn: Qpn) -> Result<Arc<QpCore>, DeviceError> {
        let found = lock(&self.domain().targets).get(&qpn).and_then(Weak::upgrade);
        found.map(known).ok_or(DeviceError::NoSuchTarget { qpn: qpn.get() })
    }

    /// Creates a receive-only queue pair of the domain and moves it from RESET through INIT to RTR, with the attributes in `attr` that
    /// these two transitions require. This open is registered with it.
    ///
    /// # Errors
    /// As for creation and modification; no queue pair is left then.
    pub fn create_receiver(&self, attr: &QpAttr) -> Result<Qpn, DeviceError> {
        let qp = self.receive_only(TargetOf::Domain(self.domain().id), attr)?;
        let qpn = qp.qpn();
        let registered = HashSet::from([self.open_id()]);
        lock(&self.domain().receivers).insert(qpn, Receiver { qp, registered });
        Ok(qpn)
    }

    /// Creates the shadow of a target in another process, and moves it to RTR. That process relays to it the messages for shared receive
    /// queues of this domain ([`RelayedTarget`](super::RelayedTarget)). Its receive completions name the target.
    ///
    /// # Errors
    /// As for creation and modification; no queue pair is left then.
    pub fn create_shadow(&self, target: Qpn, attr: &QpAttr) -> Result<Arc<QpCore>, DeviceError> {
        self.receive_only(TargetOf::Shadow(self.domain().id, target), attr)
    }

    /// Creates a target and moves it from RESET through INIT to RTR.
    fn receive_only(&self, target: TargetOf, attr: &QpAttr) -> Result<Arc<QpCore>, DeviceError> {
        let qp = QpCore::new(self.device().clone(), None, &QpInit::target(None, None), Some(target))?;
        let init = required(QpState::Reset, QpState::Init, QpType::XrcTgt);
        qp.modify(&QpAttr { qp_state: QpState::Init, ..*attr }, init)?;
        let rtr = required(QpState::Init, QpState::Rtr, QpType::XrcTgt);
        qp.modify(&QpAttr { qp_state: QpState::Rtr, ..*attr }, rtr)?;
        Ok(qp)
    }

    fn receiver(&self, qpn: Qpn) -> Result<Arc<QpCore>, DeviceError> {
        let receivers = lock(&self.domain().receivers);
        let found = receivers.get(&qpn).map(|receiver| receiver.qp.clone());
        found.map(known).ok_or(DeviceError::NoSuchTarget { qpn: qpn.get() })
    }

    /// Modifies a receive-only queue pair.
    ///
    /// # Errors
    /// [`DeviceError::NoSuchTarget`], [`DeviceError::Modify`], [`DeviceError::InsideTurn`].
    pub fn modify_receiver(&self, qpn: Qpn, attr: &QpAttr, mask: AttrMask) -> Result<(), DeviceError> {
        not_inside_turn()?;
        self.receiver(qpn)?.modify(attr, mask)
    }

    /// The attributes of a receive-only queue pair.
    ///
    /// # Errors
    /// [`DeviceError::NoSuchTarget`], [`DeviceError::InsideTurn`].
    pub fn query_receiver(&self, qpn: Qpn) -> Result<QpAttr, DeviceError> {
        not_inside_turn()?;
        self.receiver(qpn)?.query()
    }

    /// Registers this open with a receive-only queue pair, which is destroyed when its last registration or the domain ends.
    ///
    /// # Errors
    /// [`DeviceError::NoSuchTarget`].
    pub fn register_receiver(&self, qpn: Qpn) -> Result<(), DeviceError> {
        match lock(&self.domain().receivers).get_mut(&qpn) {
            Some(receiver) => {
                receiver.registered.insert(self.open_id());
                Ok(())
            }
            None => Err(DeviceError::NoSuchTarget { qpn: qpn.get() }),
        }
    }

    /// Unregisters this open from a receive-only queue pair. The last open to do so destroys it; closing the domain does not unregister.
    ///
    /// # Errors
    /// [`DeviceError::NoSuchTarget`], also if this open is not registered; [`DeviceError::InsideTurn`].
    pub fn unregister_receiver(&self, qpn: Qpn) -> Result<(), DeviceError> {
        not_inside_turn()?;
        let mut receivers = lock(&self.domain().receivers);
        let unknown = DeviceError::NoSuchTarget { qpn: qpn.get() };
        let receiver = receivers.get_mut(&qpn).ok_or_else(|| unknown.clone())?;
        if !receiver.registered.remove(&self.open_id()) {
            return Err(unknown);
        }
        let last = if receiver.registered.is_empty() { receivers.remove(&qpn) } else { None };
        drop(receivers);
        drop(last);
        Ok(())
    }
}

/// Downcasts a queue pair that a domain holds.
fn known(qp: Arc<AnyQp>) -> Arc<QpCore> {
    qp.downcast().expect("only this file puts queue pairs into domains")
}
