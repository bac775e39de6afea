//! The multicast groups of a device and the queue pairs attached to each.
//!
//! Control calls change the table and give each shard the new version between two of its turns. So the shards read theirs without a lock,
//! and no shard uses an older version once the call has returned.

use crate::config::{MCAST_GRP_MAX, MCAST_QP_ATTACH_MAX};
use crate::id::{Gid, Qpn};

/// A queue pair attached to a group.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Member {
    /// Its queue pair number.
    pub qpn: Qpn,
    /// Whether it gets no copy of its own messages to the group (`IBV_QP_CREATE_BLOCK_SELF_MCAST_LB`).
    pub block_self: bool,
}

/// Why a queue pair cannot be attached.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AttachError {
    /// The device has [`MCAST_GRP_MAX`] groups already.
    Groups,
    /// The group has [`MCAST_QP_ATTACH_MAX`] queue pairs already.
    Members,
}

/// The groups with attached queue pairs.
#[derive(Clone, Default, Debug)]
pub struct McastTable {
    groups: Vec<(Gid, Vec<Member>)>, // sorted by address; each has members
}

impl McastTable {
    fn find(&self, group: &Gid) -> Result<usize, usize> {
        self.groups.binary_search_by(|(g, _)| g.cmp(group))
    }

    /// The queue pairs attached to a group.
    pub fn members(&self, group: &Gid) -> &[Member] {
        self.find(group).map_or(&[], |i| &self.groups[i].1)
    }

    /// The groups that a queue pair is attached to.
    pub fn groups_of(&self, qpn: Qpn) -> impl Iterator<Item = Gid> + '_ {
        let has = move |(_, members): &&(Gid, Vec<Member>)| members.iter().any(|m| m.qpn == qpn);
        self.groups.iter().filter(has).map(|(group, _)| *group)
    }

    /// Attaches a queue pair to a group. Returns whether it is the group's first. If it is already attached, nothing changes.
    ///
    /// # Errors
    /// [`AttachError`]; nothing changes then.
    pub fn attach(&mut self, group: Gid, member: Member) -> Result<bool, AttachError> {
        match self.find(&group) {
            Ok(i) => {
                let members = &mut self.groups[i].1;
                if members.iter().any(|m| m.qpn == member.qpn) {
                    return Ok(false);
                }
                if members.len() == MCAST_QP_ATTACH_MAX {
                    return Err(AttachError::Members);
                }
                members.push(member);
                Ok(false)
            }
            Err(_) if self.groups.len() == MCAST_GRP_MAX => Err(AttachError::Groups),
            Err(i) => {
                self.groups.insert(i, (group, vec![member]));
                Ok(true)
            }
        }
    }

    /// Detaches a queue pair from a group. Returns whether it was the group's last; `None` if it was not attached.
    pub fn detach(&mut self, group: &Gid, qpn: Qpn) -> Option<bool> {
        let i = self.find(group).ok()?;
        let members = &mut self.groups[i].1;
        let at = members.iter().position(|m| m.qpn == qpn)?;
        members.remove(at);
        let last = members.is_empty();
        if last {
            self.groups.remove(i);
        }
        Some(last)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(n: u32) -> Member {
        Member { qpn: Qpn::new(n), block_self: false }
    }
    fn group(n: usize) -> Gid {
        Gid::v4([239, 0, (n >> 8) as u8, n as u8])
    }

    #[test]
    fn attach_and_detach() {
        let mut table = McastTable::default();
        assert_eq!(table.attach(group(1), member(7)), Ok(true));
        assert_eq!(table.attach(group(1), member(7)), Ok(false), "again");
        assert_eq!(table.attach(group(1), member(8)), Ok(false));
        assert_eq!(table.attach(group(0), member(8)), Ok(true));
        assert_eq!(table.members(&group(1)), [member(7), member(8)]);
        assert_eq!(table.members(&group(2)), []);
        assert_eq!(table.groups_of(Qpn::new(8)).collect::<Vec<_>>(), [group(0), group(1)]);
        assert_eq!(table.detach(&group(1), Qpn::new(9)), None);
        assert_eq!(table.detach(&group(2), Qpn::new(7)), None);
        assert_eq!(table.detach(&group(1), Qpn::new(7)), Some(false));
        assert_eq!(table.detach(&group(1), Qpn::new(8)), Some(true));
        assert_eq!(table.members(&group(1)), []);
        assert_eq!(table.groups_of(Qpn::new(8)).count(), 1);
    }

    #[test]
    fn limits_are_as_announced() {
        let mut table = McastTable::default();
        for g in 0..MCAST_GRP_MAX {
            for m in 0..MCAST_QP_ATTACH_MAX as u32 {
                assert_eq!(table.attach(group(g), member(m)), Ok(m == 0));
            }
        }
        assert_eq!(table.attach(group(MCAST_GRP_MAX), member(0)), Err(AttachError::Groups));
        assert_eq!(table.attach(group(0), member(1 << 20)), Err(AttachError::Members));
        assert_eq!(table.attach(group(0), member(0)), Ok(false));
    }
}
