//! The owner's use of its device: targets whose requests are relayed.

use std::sync::Arc;

use super::attributes::Attributes;
use super::error::XrcError;
use super::members::MemberId;
use super::parts::{Domain, Target};
use super::refusal::Refusal;
use super::shared::can_share;
use crate::device::{
    AttrMask, CqCore, CqInit, Device, PdCore, QpState, Qpn, RelayedTarget, XrcdCore, XrcdInitAttr,
};

/// The domain of an owner: its XRC domain on the device, and the objects that all legs share.
#[derive(Debug)]
pub struct RelayedDomain {
    xrcd: Arc<XrcdCore>,
    pd: Arc<PdCore>,
    /// Never used, but a queue pair that sends requires one.
    cq: Arc<CqCore>,
}

impl RelayedDomain {
    /// A domain without targets.
    ///
    /// # Errors
    /// [`XrcError::Port`]; the errors of the device.
    pub fn new(device: &Arc<Device>) -> Result<Self, XrcError> {
        if !can_share(device) {
            return Err(XrcError::Port { port: device.port().info().name.clone() });
        }
        let xrcd = device.open_xrcd(&XrcdInitAttr::anonymous())?;
        Ok(Self {
            xrcd,
            pd: device.alloc_pd()?,
            cq: device.create_cq(&CqInit { cqe: 1, channel: None, context: 0, parent: None })?,
        })
    }
}

impl Domain for RelayedDomain {
    type Target = RelayedTarget;

    fn create(&self) -> Result<RelayedTarget, Refusal> {
        Ok(self.xrcd.create_relayed(&self.pd, &self.cq)?)
    }

    fn set_srq_owner(&self, number: u32, member: Option<MemberId>) -> Result<(), Refusal> {
        Ok(self.xrcd.set_srq_member(number, member.map(|member| member.0))?)
    }
}

impl Target for RelayedTarget {
    fn qpn(&self) -> Qpn {
        self.qp().qpn()
    }
    fn state(&self) -> QpState {
        self.qp().state()
    }
    fn modify(&self, attr: &Attributes, mask: AttrMask) -> Result<(), Refusal> {
        let attr = attr.on(self.qp().device())?;
        Ok(self.qp().modify(&attr, mask)?)
    }
    fn query(&self) -> Result<Attributes, Refusal> {
        let attr = self.qp().query()?;
        // An address that the device has lost is left out.
        Ok(Attributes::of(self.qp().device(), &attr, AttrMask::AV).unwrap_or(attr.into()))
    }
    fn add_leg(&self, member: MemberId) -> Result<Attributes, Refusal> {
        let source = self.query()?.source;
        let attr = RelayedTarget::add_leg(self, member.0, source)?;
        // Owner and members share the addresses of the host.
        Ok(Attributes { attr, source })
    }
    fn connect_leg(&self, member: MemberId, shadow: Qpn) -> Result<(), Refusal> {
        Ok(RelayedTarget::connect_leg(self, member.0, shadow)?)
    }
    fn remove_leg(&self, member: MemberId) {
        RelayedTarget::remove_leg(self, member.0);
    }
}
