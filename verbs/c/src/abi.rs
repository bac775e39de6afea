//! The types and constants of `<infiniband/verbs.h>` and `<rdma/rdma_cma.h>`, from the installed headers.

#![allow(non_camel_case_types, non_upper_case_globals, non_snake_case, dead_code, missing_docs)]
#![allow(clippy::all, clippy::undocumented_unsafe_blocks, unsafe_op_in_unsafe_fn, reason = "generated")]

include!(concat!(env!("OUT_DIR"), "/bindings.rs"));

/// The function for FLUSH. Arguments: key, address, length, placement, level.
pub(crate) type WrFlush = Option<unsafe extern "C" fn(*mut ibv_qp_ex, u32, u64, usize, u8, u8)>;

/// `struct ibv_qp_ex` with room for the FLUSH function. Programs built with newer headers than the installed ones find it where they expect
/// it.
#[repr(C)]
pub(crate) struct QpEx {
    pub ex: ibv_qp_ex,
    #[cfg(not(flush_in_headers))]
    pub wr_flush: WrFlush,
}

impl QpEx {
    /// The place of its function for FLUSH.
    pub(crate) fn wr_flush(&mut self) -> &mut WrFlush {
        #[cfg(flush_in_headers)]
        {
            &mut self.ex.wr_flush
        }
        #[cfg(not(flush_in_headers))]
        {
            &mut self.wr_flush
        }
    }
}

/// A C structure of all zeros.
///
/// # Safety
/// All zeros are a valid value of the type: it has no references, and no function pointer that must not be NULL.
pub(crate) const unsafe fn zeroed<T>() -> T {
    // SAFETY: as the caller promises.
    unsafe { core::mem::zeroed() }
}

// These layouts may not change in any release, because programs are compiled with them. Other structures may grow; their functions take a
// size or a mask.
const _: () = assert!(
    size_of::<ibv_context>() == 328
        && size_of::<verbs_context>() == core::mem::offset_of!(verbs_context, context) + 328
        && core::mem::offset_of!(verbs_context, sz) + 8 == core::mem::offset_of!(verbs_context, context)
        && size_of::<ibv_qp>() == 160
        && size_of::<ibv_qp_ex>() >= 352
        && size_of::<QpEx>() >= 360
        && size_of::<ibv_cq>() == 128
        && size_of::<ibv_cq_ex>() == 288
        && size_of::<ibv_wc>() == 48
        && size_of::<ibv_send_wr>() == 128
        && size_of::<ibv_recv_wr>() == 32
        && size_of::<ibv_device>() == 664
);
