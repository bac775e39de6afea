//! Capabilities of the device, as in `ibv_query_device(3)` and `ibv_query_port(3)`.

use super::handle::Device;
use super::upkeep::{link_up, note_mtu};
use crate::config::{
    CQ_MAX, CQE_MAX, INLINE_MAX, MCAST_GRP_MAX, MCAST_QP_ATTACH_MAX, MESSAGE_MAX, MR_MAX, MR_SIZE_MAX,
    PD_MAX, QUEUE_DEPTH_MAX, RD_ATOMIC_MAX, SGE_MAX, SRQ_MAX,
};
use crate::id::{Gid, Mac, Mtu};
use crate::racy::kernel;
use crate::wire::Discard;

/// The partition key of the default partition, with full membership.
pub const DEFAULT_PKEY: u16 = 0xffff;
/// `vendor_id`: a locally administered number, which no vendor has. Programs take 0 and 0xffffff for Linux soft-RoCE, and then
/// avoid features that soft-RoCE lacks.
const VENDOR: u32 = 0x52_6f43;
/// Page sizes that memory may have, as a bit mask: 4 KiB and every larger power of two.
const PAGE_SIZES: u64 = !0xfff;
/// Exponent of the longest time to an ACK, 4.096 us * 2^15 = 134 ms: this long because a thread that turns shards may be preempted.
const ACK_DELAY: u8 = 15;

bitflags::bitflags! {
    /// Optional features of a device (`enum ibv_device_cap_flags` and, from bit 32 on, `device_cap_flags_ex`; ibv_query_device(3),
    /// ibv_query_device_ex(3)).
    #[doc(alias = "ibv_device_cap_flags")]
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub struct DeviceCapFlags: u64 {
        /// Queues of a queue pair can be resized.
        const RESIZE_MAX_WR = 1 << 0;
        /// Packets with a foreign partition key are counted.
        const BAD_PKEY_CNTR = 1 << 1;
        /// Packets with a wrong Q_Key are counted.
        const BAD_QKEY_CNTR = 1 << 2;
        /// Alternate paths.
        const AUTO_PATH_MIG = 1 << 4;
        /// `cur_qp_state` may be given to Modify QP.
        const CURR_QP_STATE_MOD = 1 << 7;
        /// Raises PORT_ACTIVE.
        const PORT_ACTIVE_EVENT = 1 << 10;
        /// Has a system image GUID.
        const SYS_IMAGE_GUID = 1 << 11;
        /// RC queue pairs send RNR NAKs.
        const RC_RNR_NAK_GEN = 1 << 12;
        /// Shared receive queues can be resized.
        const SRQ_RESIZE = 1 << 13;
        /// Notification for several completions can be requested.
        const N_NOTIFY_CQ = 1 << 14;
        /// Memory windows of type 1.
        const MEM_WINDOW = 1 << 17;
        /// XRC.
        const XRC = 1 << 20;
        /// Fast registration, SEND with invalidate, local invalidate.
        const MEM_MGT_EXTENSIONS = 1 << 21;
        /// Memory windows of type 2A.
        const MEM_WINDOW_TYPE_2A = 1 << 23;
        /// Memory windows of type 2B.
        const MEM_WINDOW_TYPE_2B = 1 << 24;
        /// FLUSH to global visibility.
        const FLUSH_GLOBAL = 1 << 38;
        /// FLUSH to persistence.
        const FLUSH_PERSISTENT = 1 << 39;
        /// ATOMIC WRITE.
        const ATOMIC_WRITE = 1 << 40;
    }
}

/// What remote atomics are atomic with respect to (`enum ibv_atomic_cap`).
#[doc(alias = "ibv_atomic_cap")]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AtomicCap {
    /// Not supported.
    None,
    /// Other atomics of this device.
    Hca,
    /// All accesses, those of the CPU included.
    Glob,
}

/// Limits of a device (`struct ibv_device_attr`, and the fields of `ibv_device_attr_ex` that apply here).
///
/// Every announced limit can be reached; a request beyond it is refused with [`Range`](super::DeviceError::Range) or
/// [`Exhausted`](super::DeviceError::Exhausted). Fields of the C structures about end-to-end contexts, raw datagrams and FMRs are left out:
/// all of them are 0.
#[doc(alias = "ibv_device_attr")]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct DeviceAttr {
    /// Version of the stack.
    pub fw_ver: &'static str,
    /// Identifies the device: the EUI-64 of its Ethernet address.
    pub node_guid: [u8; 8],
    /// Identifies the system image: equal to `node_guid`.
    pub sys_image_guid: [u8; 8],
    /// IEEE number of the vendor: a locally administered one, which no vendor has.
    pub vendor_id: u32,
    /// The vendor's part number.
    pub vendor_part_id: u32,
    /// Version of the hardware: 0, because no hardware exists.
    pub hw_ver: u32,
    /// Optional features of the device.
    pub device_cap_flags: DeviceCapFlags,
    /// Size of the largest memory region in bytes.
    pub max_mr_size: u64,
    /// Whether regions may have [`Access::ON_DEMAND`](super::Access::ON_DEMAND): whether the kernel allows process_vm_readv(2), which
    /// copies to and from them.
    pub on_demand: bool,
    /// Page sizes, as a bit mask.
    pub page_size_cap: u64,
    /// Queue pairs, over all shards.
    pub max_qp: usize,
    /// Queue pairs of one shard.
    pub qps_per_shard: usize,
    /// Requests of a send or receive queue.
    pub max_qp_wr: u32,
    /// Scatter/gather elements of a request.
    pub max_sge: u32,
    /// Scatter/gather elements of a READ request.
    pub max_sge_rd: u32,
    /// Inline bytes of a request.
    pub max_inline_data: u32,
    /// Completion queues.
    pub max_cq: usize,
    /// Entries of a completion queue.
    pub max_cqe: u32,
    /// Shared receive queues.
    pub max_srq: usize,
    /// Requests of a shared receive queue.
    pub max_srq_wr: u32,
    /// Scatter/gather elements of such a request.
    pub max_srq_sge: u32,
    /// Memory regions, if there are no windows: both take their keys from one table.
    pub max_mr: usize,
    /// Memory windows, if there are no regions.
    pub max_mw: usize,
    /// Protection domains.
    pub max_pd: usize,
    /// READ and atomic requests outstanding as responder, for each queue pair.
    pub max_qp_rd_atom: u8,
    /// READ and atomic requests outstanding as responder, over all queue pairs.
    pub max_res_rd_atom: usize,
    /// READ and atomic requests outstanding as requester, for each queue pair.
    pub max_qp_init_rd_atom: u8,
    /// What remote atomics are atomic with respect to.
    pub atomic_cap: AtomicCap,
    /// Multicast groups that queue pairs of the device can be attached to at a time.
    pub max_mcast_grp: usize,
    /// Queue pairs attached to one multicast group.
    pub max_mcast_qp_attach: usize,
    /// Queue pairs attached to multicast groups, over all groups.
    pub max_total_mcast_qp_attach: usize,
    /// Number of ports: 1.
    pub phys_port_cnt: u8,
    /// Entries of the partition key table: 1, the default key.
    pub max_pkeys: u16,
    /// Exponent of the longest time from a request to its ACK, in 4.096 us (IBA 11.2.1.2).
    pub local_ca_ack_delay: u8,
    /// Valid bits of a completion's timestamp.
    pub completion_timestamp_mask: u64,
    /// Frequency of the clock of timestamps, in kHz: they are nanoseconds.
    pub hca_core_clock: u64,
    /// Number of shards.
    pub shards: usize,

    /// Address handles: limited only by memory.
    pub max_ah: usize,
}

/// Whether a port can be used (`enum ibv_port_state`).
#[doc(alias = "ibv_port_state")]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum PortState {
    /// The link is down.
    Down = 1,
    /// The link is up.
    Active = 4,
}

/// State of the port's physical layer (`phys_state` of `struct ibv_port_attr`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum PortPhysState {
    /// Down.
    Disabled = 3,
    /// Up.
    LinkUp = 5,
}

bitflags::bitflags! {
    /// Optional features of a port (`enum ibv_port_cap_flags`).
    #[doc(alias = "ibv_port_cap_flags")]
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub struct PortCapFlags: u32 {
        /// Connection management.
        const CM_SUP = 1 << 16;
        /// GIDs are IP addresses.
        const IP_BASED_GIDS = 1 << 26;
    }
}

/// `flags` of [`PortAttr`]: address vectors need a global route (`IBV_QPF_GRH_REQUIRED`).
pub const QPF_GRH_REQUIRED: u8 = 1 << 0;
/// `link_layer` of [`PortAttr`]: Ethernet (`IBV_LINK_LAYER_ETHERNET`).
pub const LINK_LAYER_ETHERNET: u8 = 2;

/// State and limits of the port (`struct ibv_port_attr`). LIDs and related fields do not exist on Ethernet; C programs see 0.
#[doc(alias = "ibv_port_attr")]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct PortAttr {
    /// Whether the link is up.
    pub state: PortState,
    /// The same for the physical layer.
    pub phys_state: PortPhysState,
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
    /// Length of the longest message in bytes.
    pub max_msg_sz: u32,
    /// Optional features of the port.
    pub port_cap_flags: PortCapFlags,
    /// Packets received so far with a foreign partition key; the C field has 16 bits.
    pub bad_pkey_cntr: u64,
    /// Packets received so far with a wrong Q_Key; the C field has 16 bits.
    pub qkey_viol_cntr: u64,
    /// Number of virtual lanes: 1.
    pub max_vl_num: u8,
    /// Width of the link, as a code: 2 for four lanes.
    pub active_width: u8,
    /// Speed of a lane, as a code: 32 for 25 Gb/s. Ports do not report their speed, and the stack does not use it; programs do, to
    /// choose between copying and RDMA (UCX). So this is 100 Gb/s over four lanes, the most that a core moves.
    pub active_speed: u8,
    /// [`QPF_GRH_REQUIRED`].
    pub flags: u8,
    /// [`LINK_LAYER_ETHERNET`].
    pub link_layer: u8,
    /// Number of queues of the port.
    pub queues: usize,
}

/// The protocol of a GID (`enum ibv_gid_type`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum GidType {
    /// RoCEv2: over UDP. The only type in this stack.
    RoceV2 = 2,
}

/// An entry of the GID table (`struct ibv_gid_entry`).
#[doc(alias = "ibv_gid_entry")]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct GidEntry<'a> {
    /// The address.
    pub gid: Gid,
    /// Its index.
    pub gid_index: usize,
    /// Its port: 1.
    pub port_num: u8,
    /// Its protocol.
    pub gid_type: GidType,
    /// Name of the system's network interface that the port uses; empty if it uses none.
    pub ndev: &'a str,
}

impl Device {
    /// Limits and features of the device.
    pub fn attr(&self) -> DeviceAttr {
        let Mac([a, b, c, d, e, f]) = self.port().info().mac;
        DeviceAttr {
            fw_ver: env!("CARGO_PKG_VERSION"),
            node_guid: [a ^ 2, b, c, 0xff, 0xfe, d, e, f],
            sys_image_guid: [a ^ 2, b, c, 0xff, 0xfe, d, e, f],
            vendor_id: VENDOR,
            vendor_part_id: 1,
            hw_ver: 0,
            device_cap_flags: DeviceCapFlags::BAD_PKEY_CNTR
                | DeviceCapFlags::CURR_QP_STATE_MOD
                | DeviceCapFlags::PORT_ACTIVE_EVENT
                | DeviceCapFlags::SYS_IMAGE_GUID
                | DeviceCapFlags::RC_RNR_NAK_GEN
                | DeviceCapFlags::BAD_QKEY_CNTR
                | DeviceCapFlags::SRQ_RESIZE
                | DeviceCapFlags::MEM_WINDOW
                | DeviceCapFlags::XRC
                | DeviceCapFlags::MEM_MGT_EXTENSIONS
                | DeviceCapFlags::MEM_WINDOW_TYPE_2B
                | DeviceCapFlags::FLUSH_GLOBAL
                | DeviceCapFlags::ATOMIC_WRITE,
            max_mr_size: MR_SIZE_MAX,
            on_demand: kernel::works(),
            page_size_cap: PAGE_SIZES,
            max_qp: self.words().len(),
            qps_per_shard: self.core().shared.qps_per_shard,
            max_qp_wr: QUEUE_DEPTH_MAX,
            max_sge: SGE_MAX as u32,
            max_sge_rd: SGE_MAX as u32,
            max_inline_data: INLINE_MAX,
            max_cq: CQ_MAX,
            max_cqe: CQE_MAX,
            max_srq: SRQ_MAX,
            max_srq_wr: QUEUE_DEPTH_MAX,
            max_srq_sge: SGE_MAX as u32,
            max_mr: MR_MAX,
            max_mw: MR_MAX,
            max_pd: PD_MAX,
            max_qp_rd_atom: RD_ATOMIC_MAX,
            max_res_rd_atom: self.words().len() * usize::from(RD_ATOMIC_MAX),
            max_qp_init_rd_atom: RD_ATOMIC_MAX,
            atomic_cap: AtomicCap::Glob,
            max_mcast_grp: MCAST_GRP_MAX,
            max_mcast_qp_attach: MCAST_QP_ATTACH_MAX,
            max_total_mcast_qp_attach: MCAST_GRP_MAX * MCAST_QP_ATTACH_MAX,
            phys_port_cnt: 1,
            max_pkeys: 1,
            local_ca_ack_delay: ACK_DELAY,
            completion_timestamp_mask: u64::MAX,
            hca_core_clock: 1_000_000,
            shards: self.shards(),
            max_ah: i32::MAX as usize,
        }
    }

    /// Whether the port's link is up, so that frames can reach a peer.
    pub fn link_up(&self) -> bool {
        link_up(self.port())
    }

    /// State and limits of the port.
    pub fn port_attr(&self) -> PortAttr {
        let (core, info) = (self.core(), self.port().info());
        let mtu = note_mtu(self.port(), &core.shared);
        let up = core.upkeep.tells_up(self.port());
        let counters = self.counters();
        PortAttr {
            state: if up { PortState::Active } else { PortState::Down },
            phys_state: if up { PortPhysState::LinkUp } else { PortPhysState::Disabled },
            max_mtu: Mtu::Mtu4096,
            active_mtu: core.shared.mtu(),
            link_mtu: mtu,
            mac: info.mac,
            gid_tbl_len: self.gids().len(),
            pkey_tbl_len: 1,
            max_msg_sz: MESSAGE_MAX,
            port_cap_flags: PortCapFlags::CM_SUP | PortCapFlags::IP_BASED_GIDS,
            bad_pkey_cntr: counters.discarded(Discard::BadPkey),
            qkey_viol_cntr: counters.discarded(Discard::BadQkey),
            max_vl_num: 1,
            active_width: 2,
            active_speed: 32,
            flags: QPF_GRH_REQUIRED,
            link_layer: LINK_LAYER_ETHERNET,
            queues: info.queues,
        }
    }

    /// The largest path MTU of the port, as last seen: [`PortAttr::active_mtu`] without a query of the port.
    pub fn active_mtu(&self) -> Mtu {
        self.core().shared.mtu()
    }

    /// Name of the system's network interface that the port uses; empty if it uses none.
    pub fn ndev(&self) -> &str {
        match self.port().info().name.split_once(':') {
            Some(("tap" | "af_packet", rest)) => rest.split(',').next().unwrap_or(rest),
            _ => "",
        }
    }

    /// The entry of the GID table at `index`, if any.
    pub fn gid_entry(&self, index: usize) -> Option<GidEntry<'_>> {
        let gid = *self.gids().get(index)?; // zero where an address was removed
        Some(GidEntry { gid, gid_index: index, port_num: 1, gid_type: GidType::RoceV2, ndev: self.ndev() })
    }
}
