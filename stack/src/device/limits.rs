//! What the device can do, in the words of `ibv_query_device(3)` and `ibv_query_port(3)`.

use super::Device;
use crate::config::{
    CQE_MAX, INLINE_MAX, MCAST_GRP_MAX, MCAST_QP_ATTACH_MAX, MESSAGE_MAX, MR_MAX, QUEUE_DEPTH_MAX,
    RD_ATOMIC_MAX, SGE_MAX, SRQ_MAX,
};
use crate::id::{Mac, Mtu};

/// With what remote atomics are atomic (`enum ibv_atomic_cap`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AtomicCap {
    /// Not supported.
    None,
    /// With other atomics of this device.
    Hca,
    /// With everything, the CPU too.
    Glob,
}

bitflags::bitflags! {
    /// Features of a device, with the values of `enum ibv_device_cap_flags` and, from bit 32 on, of
    /// `device_cap_flags_ex` (`ibv_query_device_ex(3)`).
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Hash)]
    pub struct DeviceCap: u64 {
        /// Memory windows of type 1.
        const MEM_WINDOW = 1 << 17;
        /// Fast registration, local invalidation and SEND with invalidate.
        const MEM_MGT_EXTENSIONS = 1 << 21;
        /// Memory windows of type 2B, tied to a queue pair and a protection domain.
        const MEM_WINDOW_TYPE_2B = 1 << 24;
        /// FLUSH to global visibility.
        const FLUSH_GLOBAL = 1 << 38;
        /// FLUSH to persistence.
        const FLUSH_PERSISTENT = 1 << 39;
        /// ATOMIC WRITE.
        const ATOMIC_WRITE = 1 << 40;
    }
}

/// Limits of a device (`struct ibv_device_attr`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DeviceAttr {
    /// Version of the stack.
    pub fw_ver: &'static str,
    /// Identifies the device: the EUI-64 of its Ethernet address.
    pub node_guid: [u8; 8],
    /// Bytes of the largest memory region.
    pub max_mr_size: u64,
    /// Queue pairs.
    pub max_qp: usize,
    /// Requests of a send or receive queue.
    pub max_qp_wr: u32,
    /// Scatter/gather elements of a request.
    pub max_sge: u32,
    /// Inline bytes of a request.
    pub max_inline_data: u32,
    /// Entries of a completion queue.
    pub max_cqe: u32,
    /// Shared receive queues.
    pub max_srq: usize,
    /// Requests of a shared receive queue.
    pub max_srq_wr: u32,
    /// Scatter/gather elements of such a request.
    pub max_srq_sge: u32,
    /// Memory regions, if there are no windows: both have their keys from one table.
    pub max_mr: usize,
    /// Memory windows, if there are no regions.
    pub max_mw: usize,
    /// What of the optional features there is; FLUSH to persistence is not among them.
    pub device_cap_flags: DeviceCap,
    /// READ and atomic requests outstanding as responder, for each queue pair.
    pub max_qp_rd_atom: u8,
    /// READ and atomic requests outstanding as requester, for each queue pair.
    pub max_qp_init_rd_atom: u8,
    /// With what remote atomics are atomic.
    pub atomic_cap: AtomicCap,
    /// Multicast groups that queue pairs of the device can be attached to at a time.
    pub max_mcast_grp: usize,
    /// Queue pairs attached to one multicast group.
    pub max_mcast_qp_attach: usize,
    /// Queue pairs attached to multicast groups, over all groups.
    pub max_total_mcast_qp_attach: usize,
    /// Ports: 1.
    pub phys_port_cnt: u8,
    /// Entries of the partition key table: 1, the default key.
    pub max_pkeys: u16,
    /// Shards.
    pub shards: usize,
}

/// Whether a port can be used (`enum ibv_port_state`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum PortState {
    /// The link is down.
    Down = 1,
    /// The link is up.
    Active = 4,
}

/// State and limits of the port (`struct ibv_port_attr`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PortAttr {
    /// Whether the link is up.
    pub state: PortState,
    /// Largest path MTU of any port.
    pub max_mtu: Mtu,
    /// Largest path MTU that this link carries.
    pub active_mtu: Mtu,
    /// Largest L3 packet in bytes.
    pub link_mtu: usize,
    /// Its Ethernet address.
    pub mac: Mac,
    /// Entries of the GID table.
    pub gid_tbl_len: usize,
    /// Entries of the partition key table.
    pub pkey_tbl_len: u16,
    /// Bytes of the longest message.
    pub max_msg_sz: u32,
    /// Queues of the port.
    pub queues: usize,
}

impl Device {
    /// What the device can do.
    pub fn attr(&self) -> DeviceAttr {
        let Mac([a, b, c, d, e, f]) = self.port().info().mac;
        DeviceAttr {
            fw_ver: env!("CARGO_PKG_VERSION"),
            node_guid: [a ^ 2, b, c, 0xff, 0xfe, d, e, f],
            max_mr_size: isize::MAX as u64,
            max_qp: self.words().len(),
            max_qp_wr: QUEUE_DEPTH_MAX,
            max_sge: SGE_MAX as u32,
            max_inline_data: INLINE_MAX,
            max_cqe: CQE_MAX,
            max_srq: SRQ_MAX,
            max_srq_wr: QUEUE_DEPTH_MAX,
            max_srq_sge: SGE_MAX as u32,
            max_mr: MR_MAX,
            max_mw: MR_MAX,
            device_cap_flags: DeviceCap::MEM_WINDOW
                | DeviceCap::MEM_MGT_EXTENSIONS
                | DeviceCap::MEM_WINDOW_TYPE_2B
                | DeviceCap::FLUSH_GLOBAL
                | DeviceCap::ATOMIC_WRITE,
            max_qp_rd_atom: RD_ATOMIC_MAX,
            max_qp_init_rd_atom: RD_ATOMIC_MAX,
            atomic_cap: AtomicCap::Glob,
            max_mcast_grp: MCAST_GRP_MAX,
            max_mcast_qp_attach: MCAST_QP_ATTACH_MAX,
            max_total_mcast_qp_attach: MCAST_GRP_MAX * MCAST_QP_ATTACH_MAX,
            phys_port_cnt: 1,
            max_pkeys: 1,
            shards: self.shards(),
        }
    }

    /// State and limits of the port.
    pub fn port_attr(&self) -> PortAttr {
        let info = self.port().info();
        PortAttr {
            state: if self.port().link_up() { PortState::Active } else { PortState::Down },
            max_mtu: Mtu::Mtu4096,
            active_mtu: Mtu::of_link(info.mtu),
            link_mtu: info.mtu,
            mac: info.mac,
            gid_tbl_len: self.gids().len(),
            pkey_tbl_len: 1,
            max_msg_sz: MESSAGE_MAX,
            queues: info.queues,
        }
    }
}
