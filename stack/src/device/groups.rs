//! The multicast groups of a device: a table that every shard has a reference to.

use std::sync::{Arc, Mutex};

use super::claim::Core;
use super::error::DeviceError;
use crate::config::{MCAST_GRP_MAX, MCAST_QP_ATTACH_MAX};
use crate::id::{Gid, Qpn};
use crate::port::Port;
use crate::shard::{AttachError, McastTable, Member};
use crate::sync::lock::lock;

/// The current table. The lock orders attach and detach calls.
#[derive(Default)]
pub(super) struct Groups(Mutex<Arc<McastTable>>);

impl Groups {
    /// Attaches a queue pair to a group. The host joins the group when its first queue pair is attached.
    ///
    /// # Errors
    /// [`DeviceError::Exhausted`], [`DeviceError::InsideTurn`], [`DeviceError::Port`].
    pub(super) fn attach(
        &self,
        core: &Core,
        port: &dyn Port,
        group: &Gid,
        member: Member,
    ) -> Result<(), DeviceError> {
        let mut current = lock(&self.0);
        let mut table = McastTable::clone(&current);
        let first = table.attach(*group, member).map_err(|error| match error {
            AttachError::Groups => DeviceError::Exhausted { what: "multicast group", limit: MCAST_GRP_MAX },
            AttachError::Members => DeviceError::Exhausted {
                what: "place for a queue pair in the multicast group",
                limit: MCAST_QP_ATTACH_MAX,
            },
        })?;
        if first && let Some(host) = port.host() {
            host.join(group.to_ip()).map_err(|error| DeviceError::Port(Box::new(error)))?;
        } else if first {
            // Cannot be full: the IP host has as many entries as the table, and drops unsent leave messages to make room.
            let joined = core.shared.with_net(|net| net.join(core.now(), group));
            joined.map_err(|_| DeviceError::Exhausted { what: "multicast group", limit: MCAST_GRP_MAX })?;
        }
        *current = Arc::new(table);
        hand_out(core, &current)
    }

    /// Detaches a queue pair. Once this has returned, the queue pair receives no more messages of the group. The host leaves the group
    /// when its last queue pair is detached.
    ///
    /// # Errors
    /// [`DeviceError::NotAttached`], [`DeviceError::InsideTurn`].
    pub(super) fn detach(
        &self,
        core: &Core,
        port: &dyn Port,
        group: &Gid,
        qpn: Qpn,
    ) -> Result<(), DeviceError> {
        let mut current = lock(&self.0);
        let mut table = McastTable::clone(&current);
        let last = table.detach(group, qpn).ok_or(DeviceError::NotAttached { group: *group })?;
        *current = Arc::new(table);
        if last {
            match port.host() {
                Some(host) => host.leave(group.to_ip()),
                None => _ = core.shared.with_net(|net| net.leave(core.now(), group)),
            }
        }
        hand_out(core, &current)
    }

    /// The groups that a queue pair is attached to.
    pub(super) fn of(&self, qpn: Qpn) -> Vec<Gid> {
        lock(&self.0).groups_of(qpn).collect()
    }
}

/// Passes the table to every living shard, between two of its turns.
fn hand_out(core: &Core, table: &Arc<McastTable>) -> Result<(), DeviceError> {
    for shard in 0..core.cells.len() {
        core.control_living(shard, |s, _| s.set_mcast(table.clone()))?;
    }
    Ok(())
}
