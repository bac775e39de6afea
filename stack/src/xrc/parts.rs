//! What the owner of a domain needs of its device. Behind a trait, so that its decisions are tested without one.

use super::attributes::Attributes;
use super::members::MemberId;
use super::refusal::Refusal;
use crate::device::{AttrMask, QpState, Qpn};

/// The domain of the owner's device.
pub trait Domain {
    /// A target of it.
    type Target: Target;

    /// Makes a target, in RESET.
    ///
    /// # Errors
    /// Those of the device.
    fn create(&self) -> Result<Self::Target, Refusal>;

    /// Packets that name the shared receive queue of this number are for this member from now on; `None`: for nobody.
    ///
    /// # Errors
    /// Those of the device.
    fn set_srq_owner(&self, number: u32, member: Option<MemberId>) -> Result<(), Refusal>;
}

/// A target, which passes its requests on to members. It is destroyed when it is dropped.
pub trait Target {
    /// Its number.
    fn qpn(&self) -> Qpn;
    /// Its state.
    fn state(&self) -> QpState;
    /// Modifies it, as `ibv_modify_qp`.
    ///
    /// # Errors
    /// Those of the device; nothing has changed then.
    fn modify(&self, attr: &Attributes, mask: AttrMask) -> Result<(), Refusal>;
    /// Its attributes.
    ///
    /// # Errors
    /// Those of the device.
    fn query(&self) -> Result<Attributes, Refusal>;
    /// Makes the leg to a member; it is in RTR. Returns the attributes that take the member's shadow to RTR.
    ///
    /// # Errors
    /// Those of the device.
    fn add_leg(&self, member: MemberId) -> Result<Attributes, Refusal>;
    /// The shadow of this member has this number: packets for the member go there from now on.
    ///
    /// # Errors
    /// Those of the device.
    fn connect_leg(&self, member: MemberId, shadow: Qpn) -> Result<(), Refusal>;
    /// Ends the leg to a member.
    fn remove_leg(&self, member: MemberId);
}
