//! Conversion of completions between C and `verbs`.

use verbs::{Wc, WcFlags};

use crate::abi::{ibv_wc, ibv_wc__bindgen_ty_1};

/// The 4 bytes that came with a message: immediate data in network byte order, or the invalidated key.
#[inline]
pub(crate) fn extra(from: &Wc) -> u32 {
    from.imm_data().map(u32::to_be).or(from.invalidated_rkey()).unwrap_or(0)
}

/// Converts a completion to C.
#[inline]
pub(crate) fn to_c(from: &Wc) -> ibv_wc {
    ibv_wc {
        wr_id: from.wr_id,
        status: from.status as u32,
        opcode: from.opcode as u32,
        vendor_err: from.vendor_err,
        byte_len: from.byte_len,
        __bindgen_anon_1: ibv_wc__bindgen_ty_1 { imm_data: extra(from) },
        qp_num: from.qp_num.get(),
        src_qp: from.src_qp.get(),
        wc_flags: from.wc_flags.bits(),
        pkey_index: from.pkey_index,
        slid: 0,
        sl: from.sl,
        dlid_path_bits: 0,
    }
}

/// Converts as much of a completion as is needed to find the sender of a datagram. Ignores the status, because programs that poll field by
/// field do not set it.
pub(crate) fn from_c(from: &ibv_wc) -> Wc {
    let mut to = Wc::default();
    to.wc_flags = WcFlags::from_bits_retain(from.wc_flags);
    to.sl = from.sl;
    to
}
