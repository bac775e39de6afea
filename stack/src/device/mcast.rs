//! Attaching queue pairs to multicast groups.

use super::error::DeviceError;
use super::inside_turn::not_inside_turn;
use super::qp::QpCore;
use crate::id::{Gid, QpType};
use crate::shard::Member;

impl QpCore {
    /// Attaches the queue pair to a multicast group. The first queue pair of a group makes this host its member.
    ///
    /// # Errors
    /// [`DeviceError::McastQp`], [`DeviceError::McastGid`], [`DeviceError::Exhausted`], [`DeviceError::InsideTurn`],
    /// [`DeviceError::Port`].
    pub fn attach_mcast(&self, group: &Gid) -> Result<(), DeviceError> {
        self.check_mcast(group)?;
        let device = self.device();
        let member = Member { qpn: self.qpn(), block_self: self.block_self_mcast_lb() };
        device.groups.attach(device.core(), device.port(), group, member)
    }

    /// Detaches the queue pair from a multicast group: when this returns, no copy for it is in flight.
    ///
    /// # Errors
    /// [`DeviceError::NotAttached`], or as [`attach_mcast`](Self::attach_mcast).
    pub fn detach_mcast(&self, group: &Gid) -> Result<(), DeviceError> {
        self.check_mcast(group)?;
        let device = self.device();
        device.groups.detach(device.core(), device.port(), group, self.qpn())
    }

    fn check_mcast(&self, group: &Gid) -> Result<(), DeviceError> {
        not_inside_turn()?;
        if self.qp_type() != QpType::Ud {
            return Err(DeviceError::McastQp { qp_type: self.qp_type() });
        }
        if !group.is_multicast() {
            return Err(DeviceError::McastGid { gid: *group });
        }
        Ok(())
    }
}
