//! What the owner of a domain needs of its device. A trait, so that the owner's decisions are tested without a device.

use super::attributes::Attributes;
use super::members::MemberId;
use super::refusal::Refusal;
use crate::device::{AttrMask, QpState, Qpn};

/// A domain in the owner's device.
pub trait Domain {
    /// A target of the domain.
    type Target: Target;

    /// Creates a target, in RESET.
    ///
    /// # Errors
    /// The errors of the device.
    fn create(&self) -> Result<Self::Target, Refusal>;

    /// Sets the member to which packets for the shared receive queue with this number are relayed; `None` for no member.
    ///
    /// # Errors
    /// The errors of the device.
    fn set_srq_owner(&self, number: u32, member: Option<MemberId>) -> Result<(), Refusal>;
}

/// A target, which relays its requests to members. Dropping it destroys the target.
pub trait Target {
    /// Its number.
    fn qpn(&self) -> Qpn;
    /// Its state.
    fn state(&self) -> QpState;
    /// Modifies it, as `ibv_modify_qp`.
    ///
    /// # Errors
    /// The errors of the device; nothing has changed then.
    fn modify(&self, attr: &Attributes, mask: AttrMask) -> Result<(), Refusal>;
    /// Its attributes.
    ///
    /// # Errors
    /// The errors of the device.
    fn query(&self) -> Result<Attributes, Refusal>;
    /// Creates the leg to a member; the target must be in RTR. Returns the attributes that bring the member's shadow to RTR.
    ///
    /// # Errors
    /// The errors of the device.
    fn add_leg(&self, member: MemberId) -> Result<Attributes, Refusal>;
    /// Connects the leg to a member's shadow with this number: packets for the member are relayed to it from now on.
    ///
    /// # Errors
    /// The errors of the device.
    fn connect_leg(&self, member: MemberId, shadow: Qpn) -> Result<(), Refusal>;
    /// Removes the leg to a member.
    fn remove_leg(&self, member: MemberId);
}
