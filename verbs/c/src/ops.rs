//! Opens the device. Fills in the function tables of a context, through which the inline functions of `<infiniband/verbs.h>` call.

use core::mem::size_of;

use crate::abi::{self, ibv_context, ibv_context_ops, ibv_device, verbs_context};
use crate::device::the_device;
use crate::errno::{EINVAL, Result};
use crate::guard::returning_pointer;
use crate::{context, cq, create_cq, create_qp, engine, mr, mw, pd, qp, query, srq, xrcd};

/// Opens a new context of the device, for the program or for connection management.
pub(crate) fn open() -> Result<*mut ibv_context> {
    engine::briefly(|device| context::create(device, operations()))
}

#[unsafe(no_mangle)]
extern "C" fn ibv_open_device(device: *mut ibv_device) -> *mut ibv_context {
    returning_pointer(|| if device == the_device() { open() } else { Err(EINVAL) })
}

/// A context whose function tables are filled in.
fn operations() -> verbs_context {
    // SAFETY: it consists of numbers, pointers and functions that may be NULL, and a mutex whose initial state is all zeros.
    let mut to: verbs_context = unsafe { abi::zeroed() };
    to.sz = size_of::<verbs_context>();
    to.query_port = Some(query::query_port);
    to.query_device_ex = Some(query::query_device_ex);
    to.query_rt_values = Some(query::query_rt_values);
    to.create_cq_ex = Some(create_cq::create_cq_ex);
    to.create_qp_ex = Some(create_qp::create_qp_ex);
    to.open_qp = Some(create_qp::open_qp);
    to.create_srq_ex = Some(srq::create_srq_ex);
    to.get_srq_num = Some(srq::get_srq_num);
    to.open_xrcd = Some(xrcd::open_xrcd);
    to.close_xrcd = Some(xrcd::close_xrcd);
    to.alloc_td = Some(pd::alloc_td);
    to.dealloc_td = Some(pd::dealloc_td);
    to.alloc_parent_domain = Some(pd::alloc_parent_domain);
    to.alloc_null_mr = Some(mr::alloc_null_mr);
    to.context.device = the_device();
    to.context.ops = ibv_context_ops {
        alloc_mw: Some(mw::alloc_mw),
        bind_mw: Some(qp::bind_mw),
        dealloc_mw: Some(mw::dealloc_mw),
        poll_cq: Some(cq::poll_cq),
        req_notify_cq: Some(cq::req_notify_cq),
        post_srq_recv: Some(srq::post_srq_recv),
        post_send: Some(qp::post_send),
        post_recv: Some(qp::post_recv),
        ..to.context.ops
    };
    // The mark by which programs know that a `verbs_context` contains this structure.
    to.context.abi_compat = core::ptr::without_provenance_mut(usize::MAX);
    to
}
