//! Work completions.

use stack::device::wqe::Cqe;
use stack::device::{Qpn, WcFlags, WcOpcode, WcStatus};

/// A work completion (`struct ibv_wc`).
///
/// If [`status`](Self::status) is not [`WcStatus::Success`], only `status`, `wr_id`, `qp_num` and `vendor_err` are valid (ibv_poll_cq(3)).
// Laid out like the start of a completion queue entry, so that a poll copies it with a few wide loads and stores.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
#[non_exhaustive]
#[doc(alias = "ibv_wc")]
pub struct Wc {
    /// The `wr_id` of the work request.
    pub wr_id: u64,
    /// When the completion was generated, in nanoseconds on the device's clock ([`Context::now`](crate::Context::now)).
    pub timestamp: u64,
    /// Bytes received; for READs and atomics, bytes returned.
    pub byte_len: u32,
    /// The number of the queue pair.
    pub qp_num: Qpn,
    /// For a datagram, the number of the queue pair that sent it.
    pub src_qp: Qpn,
    /// The exact cause if the status is an error: see [`VendorErr`](crate::VendorErr) for the numbers and their texts.
    pub vendor_err: u32,
    srqn: u32,
    imm: u32,
    /// Says which optional fields are valid.
    pub wc_flags: WcFlags,
    /// How the work request ended.
    pub status: WcStatus,
    /// The kind of work request.
    pub opcode: WcOpcode,
    /// Service level of a datagram: the priority of its VLAN tag, or 0 without a VLAN.
    pub sl: u8,
    /// Index of the partition key of a datagram: always 0.
    pub pkey_index: u16,
}

impl Wc {
    /// The immediate data of the message in host byte order; `None` if it had none.
    #[inline]
    pub fn imm_data(&self) -> Option<u32> {
        self.wc_flags.contains(WcFlags::WITH_IMM).then(|| u32::from_be(self.imm))
    }
    /// The local key that the message invalidated; `None` if it invalidated none.
    #[inline]
    pub fn invalidated_rkey(&self) -> Option<u32> {
        self.wc_flags.contains(WcFlags::WITH_INV).then_some(self.imm)
    }
    /// The number of the XRC shared receive queue that the receive request came from; `None` if it came from another queue.
    #[inline]
    pub fn srq_num(&self) -> Option<u32> {
        (self.srqn != 0).then_some(self.srqn)
    }
    /// Whether the work request succeeded.
    #[inline]
    pub fn is_ok(&self) -> bool {
        self.status == WcStatus::Success
    }

    #[inline]
    pub(crate) fn from_cqe(cqe: &Cqe) -> Self {
        Self {
            wr_id: cqe.wr_id,
            timestamp: cqe.timestamp,
            byte_len: cqe.byte_len,
            qp_num: cqe.qpn,
            src_qp: cqe.src_qp,
            vendor_err: cqe.vendor_err,
            srqn: cqe.srqn,
            imm: cqe.imm,
            wc_flags: cqe.flags,
            status: cqe.status,
            opcode: cqe.opcode,
            sl: cqe.sl,
            pkey_index: 0,
        }
    }
}

impl Default for Wc {
    /// An entry for a poll to overwrite.
    fn default() -> Self {
        Self::from_cqe(&Cqe::default())
    }
}
