//! A member's part of the targets of a domain: a shadow of each, to which the owner relays the target's requests.

use std::collections::HashMap;
use std::sync::Arc;

use super::message::{Order, Outcome};
use super::refusal::{Reason, Refusal};
use crate::device::{
    AsyncEvent, AttrMask, DeviceError, EventElement, QpAttr, QpCore, QpState, QpType, Qpn, XrcdCore, required,
};

/// Executes the owner's orders, on a separate thread.
pub(super) trait Executor: Send {
    /// Executes an order.
    fn execute(&mut self, order: &Order) -> Result<Outcome, Refusal>;
    /// Handles an event of a target of which this process has a handle.
    fn handle_event(&mut self, target: Qpn, event: AsyncEvent);
}

/// The shadows in this process, by target.
#[derive(Debug)]
pub(super) struct Shadows {
    domain: Arc<XrcdCore>,
    made: HashMap<Qpn, Arc<QpCore>>,
}

impl Shadows {
    /// Without shadows yet. `domain` is the domain of this process's device, with its shared receive queues.
    pub(super) fn new(domain: Arc<XrcdCore>) -> Self {
        Self { domain, made: HashMap::new() }
    }

    fn modify(&self, target: Qpn, attr: &QpAttr, mask: AttrMask) -> Result<(), DeviceError> {
        let shadow = self.made.get(&target).ok_or(DeviceError::NoSuchTarget { qpn: target.get() })?;
        if mask.contains(AttrMask::STATE) {
            return shadow.modify(attr, mask);
        }
        // In SQD every attribute that a target may change can be changed, and requests are still accepted.
        for (from, to) in [(QpState::Rtr, QpState::Rts), (QpState::Rts, QpState::Sqd)] {
            if shadow.state() == from {
                let next = QpAttr { qp_state: to, ..shadow.query()? };
                shadow.modify(&next, required(from, to, QpType::XrcTgt))?;
            }
        }
        shadow.modify(attr, mask)
    }
}

impl Executor for Shadows {
    fn execute(&mut self, order: &Order) -> Result<Outcome, Refusal> {
        match order {
            Order::Make(target, attr) => {
                if self.made.contains_key(target) {
                    return Err(Refusal::new(Reason::Invalid, "there is a shadow of this target"));
                }
                let made = attr
                    .on(self.domain.device())
                    .and_then(|attr| Ok(self.domain.create_shadow(*target, &attr)?));
                let shadow = made.inspect_err(|error| {
                    tracing::warn!(
                        "messages of the XRC target {target:?} do not reach this process, until it makes its next shared receive queue \
                         in the domain: {error}"
                    );
                })?;
                let qpn = shadow.qpn();
                self.made.insert(*target, shadow);
                Ok(Outcome::Shadow(qpn))
            }
            Order::Modify(target, attr, mask) => {
                Ok(self.modify(*target, &attr.attr, *mask).map(|()| Outcome::Done)?)
            }
            Order::End(target) => {
                self.made.remove(target);
                Ok(Outcome::Done)
            }
        }
    }

    fn handle_event(&mut self, target: Qpn, event: AsyncEvent) {
        self.domain.device().raise(event, EventElement::Qp(target));
    }
}
