//! Flags and levels of work requests and completions, with the numbers of libibverbs.

bitflags::bitflags! {
    /// Fields that completions shall contain (`enum ibv_create_cq_wc_flags`). Completions contain all fields that exist on RoCE, requested
    /// or not.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Hash)]
    #[doc(alias = "ibv_create_cq_wc_flags")]
    pub struct CqWcFlags: u64 {
        /// Number of bytes.
        const BYTE_LEN = 1;
        /// Immediate data.
        const IMM = 1 << 1;
        /// Number of the queue pair.
        const QP_NUM = 1 << 2;
        /// The queue pair that sent a datagram.
        const SRC_QP = 1 << 3;
        /// Source LID; 0 on RoCE.
        const SLID = 1 << 4;
        /// Service level.
        const SL = 1 << 5;
        /// Path bits of the destination LID; 0 on RoCE.
        const DLID_PATH_BITS = 1 << 6;
        /// Time of the completion on the device's clock.
        const COMPLETION_TIMESTAMP = 1 << 7;
        /// VLAN of a raw packet: not supported.
        const CVLAN = 1 << 8;
        /// Flow tag of a raw packet: not supported.
        const FLOW_TAG = 1 << 9;
        /// Tag matching: not supported.
        const TM_INFO = 1 << 10;
        /// Time of the completion as wall clock time.
        const COMPLETION_TIMESTAMP_WALLCLOCK = 1 << 11;
    }
}

bitflags::bitflags! {
    /// How to open an XRC domain by a file (`oflags` of `struct ibv_xrcd_init_attr`); the values are those of open(2).
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Hash)]
    pub struct XrcdOflags: u32 {
        /// Create the domain if it does not exist (`O_CREAT`).
        const CREAT = 0o100;
        /// Fail if the domain exists already (`O_EXCL`, with `O_CREAT`).
        const EXCL = 0o200;
    }
}

impl CqWcFlags {
    /// The fields that can be requested.
    pub const SUPPORTED: Self =
        Self::all().difference(Self::CVLAN).difference(Self::FLOW_TAG).difference(Self::TM_INFO);
}

bitflags::bitflags! {
    /// Operations that the extended posting interface can be created for (`enum ibv_qp_create_send_ops_flags`).
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Hash)]
    #[doc(alias = "ibv_qp_create_send_ops_flags")]
    pub struct SendOpsFlags: u64 {
        /// [`WrPost::rdma_write`](crate::WrPost::rdma_write).
        const RDMA_WRITE = 1;
        /// [`WrPost::rdma_write_imm`](crate::WrPost::rdma_write_imm).
        const RDMA_WRITE_WITH_IMM = 1 << 1;
        /// [`WrPost::send`](crate::WrPost::send).
        const SEND = 1 << 2;
        /// [`WrPost::send_imm`](crate::WrPost::send_imm).
        const SEND_WITH_IMM = 1 << 3;
        /// [`WrPost::rdma_read`](crate::WrPost::rdma_read).
        const RDMA_READ = 1 << 4;
        /// [`WrPost::atomic_cmp_swp`](crate::WrPost::atomic_cmp_swp).
        const ATOMIC_CMP_AND_SWP = 1 << 5;
        /// [`WrPost::atomic_fetch_add`](crate::WrPost::atomic_fetch_add).
        const ATOMIC_FETCH_AND_ADD = 1 << 6;
        /// [`WrPost::local_inv`](crate::WrPost::local_inv).
        const LOCAL_INV = 1 << 7;
        /// [`WrPost::bind_mw`](crate::WrPost::bind_mw).
        const BIND_MW = 1 << 8;
        /// [`WrPost::send_inv`](crate::WrPost::send_inv).
        const SEND_WITH_INV = 1 << 9;
        /// Segmentation offload: not supported.
        const TSO = 1 << 10;
        /// [`WrPost::flush`](crate::WrPost::flush).
        const FLUSH = 1 << 11;
        /// [`WrPost::atomic_write`](crate::WrPost::atomic_write).
        const ATOMIC_WRITE = 1 << 12;
    }
}

bitflags::bitflags! {
    /// What a FLUSH guarantees about the data (`enum ibv_placement_type`, IBA A19).
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Hash)]
    #[doc(alias = "ibv_placement_type")]
    pub struct FlushPlacement: u8 {
        /// The data is visible to all observers at the peer.
        const GLOBAL = 1;
        /// The data is persistent: it survives a loss of power.
        const PERSISTENT = 1 << 1;
    }
}

/// The memory that a FLUSH covers (`enum ibv_selectivity_level`, IBA A19).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Hash)]
#[repr(u8)]
#[doc(alias = "ibv_selectivity_level")]
pub enum FlushLevel {
    /// The range that the request names.
    #[default]
    Range = 0,
    /// The whole memory region.
    Mr = 1,
}
