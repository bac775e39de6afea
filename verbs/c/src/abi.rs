//! The types and constants of `<infiniband/verbs.h>` and `<rdma/rdma_cma.h>`, as the installed headers have them.

#![allow(non_camel_case_types, non_upper_case_globals, non_snake_case, dead_code, missing_docs)]
#![allow(clippy::all, clippy::undocumented_unsafe_blocks, unsafe_op_in_unsafe_fn, reason = "generated")]

include!(concat!(env!("OUT_DIR"), "/bindings.rs"));

/// FLUSH: key, address, length, placement, level.
pub(crate) type WrFlush = Option<unsafe extern "C" fn(*mut ibv_qp_ex, u32, u64, usize, u8, u8)>;

/// `struct ibv_qp_ex` of every release: programs of a later one than the headers at hand find FLUSH where they look for it.
#[repr(C)]
pub(crate) struct QpEx {
    pub ex: ibv_qp_ex,
    #[cfg(not(flush_in_headers))]
    pub wr_flush: WrFlush,
}

impl QpEx {
    /// Where its function for FLUSH goes.
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

/// A structure of C that is all zeros.
///
/// # Safety
/// All zeros are a value of the type: it has no references and no function that may not be NULL.
pub(crate) const unsafe fn zeroed<T>() -> T {
    // SAFETY: as the caller promises.
    unsafe { core::mem::zeroed() }
}

// Layouts that no release may change: programs are compiled with them. Other structures may grow, and their calls take a size or
// a mask.
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
