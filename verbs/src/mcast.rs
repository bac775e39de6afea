//! Multicast: attaching UD queue pairs to groups.
//!
//! A datagram that is sent to a group's address and to [`Qpn::MULTICAST`](crate::Qpn::MULTICAST) arrives at every attached queue pair with
//! its Q_Key, on any shard, and each gets its own copy. The sender gets one too if it is attached, unless it was created with
//! [`block_self_mcast_lb`](crate::QpInitAttr::block_self_mcast_lb). While a queue pair is attached to a group, the device is a member of
//! the group on the link: it reports its membership to routers and switches (IGMP, MLD) and answers their queries.

use stack::device::Gid;

use crate::error::VerbsError;
use crate::qp::Qp;

impl Qp {
    /// Attaches the queue pair to a multicast group, in any state. Attaching it again changes nothing. The group is an
    /// IPv4 address 224.0.0.0/4 ([`Gid::from_ip`]) or an IPv6 address ff00::/8; RoCE has no LIDs, `lid` is ignored.
    ///
    /// # Errors
    /// `EINVAL` for a queue pair that is not UD and for an address that is not multicast; `ENOMEM` beyond
    /// [`DeviceAttr::max_mcast_grp`](crate::DeviceAttr::max_mcast_grp) or
    /// [`max_mcast_qp_attach`](crate::DeviceAttr::max_mcast_qp_attach); `EDEADLK` from inside a turn.
    #[doc(alias = "ibv_attach_mcast")]
    pub fn attach_mcast(&self, gid: Gid, lid: u16) -> Result<(), VerbsError> {
        let _ = lid;
        Ok(self.core().attach_mcast(&gid)?)
    }

    /// Detaches the queue pair from a multicast group. Once it has returned, no more datagrams of the group arrive. Completed ones stay in
    /// the completion queue. When the last queue pair of a group detaches, the device leaves the group.
    ///
    /// # Errors
    /// `EINVAL` if it is not attached; those of [`attach_mcast`](Self::attach_mcast).
    #[doc(alias = "ibv_detach_mcast")]
    pub fn detach_mcast(&self, gid: Gid, lid: u16) -> Result<(), VerbsError> {
        let _ = lid;
        Ok(self.core().detach_mcast(&gid)?)
    }
}
