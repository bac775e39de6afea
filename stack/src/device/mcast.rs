//! Attaching queue pairs to multicast groups.

use std::sync::Arc;

use super::claim::{lock, not_inside_turn};
use super::error::DeviceError;
use super::qp::QpCore;
use crate::config::{MCAST_GRP_MAX, MCAST_QP_ATTACH_MAX};
use crate::id::{Gid, QpType};
use crate::shard::{AttachError, McastTable, Member};

impl QpCore {
    /// Attaches the queue pair to a multicast group. The first queue pair of a group makes this host its member.
    ///
    /// # Errors
    /// [`DeviceError::McastQp`], [`DeviceError::McastGid`], [`DeviceError::Exhausted`], [`DeviceError::InsideTurn`],
    /// [`DeviceError::HostMulticast`].
    pub fn attach_mcast(&self, group: &Gid) -> Result<(), DeviceError> {
        self.check_mcast(group)?;
        let device = self.device();
        if device.port().host().is_some() {
            return Err(DeviceError::HostMulticast);
        }
        let mut current = lock(device.mcast());
        let mut table = McastTable::clone(&current);
        let member = Member { qpn: self.qpn(), block_self: self.block_self_mcast_lb() };
        let first = table.attach(*group, member).map_err(|error| match error {
            AttachError::Groups => DeviceError::Exhausted { what: "multicast group", limit: MCAST_GRP_MAX },
            AttachError::Members => DeviceError::Exhausted {
                what: "place for a queue pair in the multicast group",
                limit: MCAST_QP_ATTACH_MAX,
            },
        })?;
        if first {
            // Cannot be full: the IP host has as many entries as the table, and evicts leave messages that are not sent yet.
            let joined = device.core().shared.with_net(|net| net.join(device.now(), group));
            joined.map_err(|_| DeviceError::Exhausted { what: "multicast group", limit: MCAST_GRP_MAX })?;
        }
        *current = Arc::new(table);
        device.hand_out(&current)
    }

    /// Detaches the queue pair from a multicast group: when this returns, no copy for it is on its way.
    ///
    /// # Errors
    /// [`DeviceError::NotAttached`], or as [`attach_mcast`](Self::attach_mcast).
    pub fn detach_mcast(&self, group: &Gid) -> Result<(), DeviceError> {
        self.check_mcast(group)?;
        self.detach(group)
    }

    fn detach(&self, group: &Gid) -> Result<(), DeviceError> {
        let device = self.device();
        let mut current = lock(device.mcast());
        let mut table = McastTable::clone(&current);
        let last = table.detach(group, self.qpn()).ok_or(DeviceError::NotAttached { group: *group })?;
        *current = Arc::new(table);
        if last {
            device.core().shared.with_net(|net| net.leave(device.now(), group));
        }
        device.hand_out(&current)
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

    /// Groups that the queue pair is attached to.
    pub(super) fn groups(&self) -> Vec<Gid> {
        if self.qp_type() != QpType::Ud {
            return Vec::new();
        }
        lock(self.device().mcast()).groups_of(self.qpn()).collect()
    }

    /// Leaves every group, for a queue pair that is destroyed.
    pub(super) fn detach_all(&self) {
        // Inside a turn, where no handle of a user is dropped, another thread may hold the lock and wait for this very shard.
        if not_inside_turn().is_ok() {
            for group in self.groups() {
                let _ = self.detach(&group); // it is attached
            }
        }
    }
}

impl super::Device {
    /// Gives each shard the table.
    fn hand_out(&self, table: &Arc<McastTable>) -> Result<(), DeviceError> {
        for shard in 0..self.shards() {
            self.core().control_living(shard, |s, _| s.set_mcast(table.clone()))?;
        }
        Ok(())
    }
}
