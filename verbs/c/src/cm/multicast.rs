//! Multicast groups of datagram identifiers.

use core::ffi::{c_int, c_void};

use super::sync::complete;
use super::{addr, qp};
use crate::abi::{
    RDMA_CM_JOIN_MC_ATTR_ADDRESS, RDMA_CM_JOIN_MC_ATTR_JOIN_FLAGS, RDMA_MC_JOIN_FLAG_FULLMEMBER,
    RDMA_MC_JOIN_FLAG_SENDONLY_FULLMEMBER, rdma_cm_id, rdma_cm_join_mc_attr_ex, sockaddr,
};
use crate::errno::{EINVAL, EOPNOTSUPP, Result};
use crate::guard::{returning_zero, uncancelled};

/// Joins a group, either to send to it only, or to receive from it too.
///
/// # Safety
/// The caller keeps the contract of the C function.
unsafe fn join(
    id: *mut rdma_cm_id,
    group: *const sockaddr,
    context: *mut c_void,
    receive: bool,
) -> Result<()> {
    // SAFETY: as the caller promises.
    let (id, group) = unsafe { (qp::follow(id)?, addr::read(group)?.ip().to_canonical()) };
    let private = id.private();
    // Before the call, because the event may be fetched before the call returns.
    private.join(group, context);
    let joined =
        if receive { private.cm.join_multicast(group) } else { private.cm.join_multicast_to_send(group) };
    if joined.is_err() {
        private.leave(group);
    }
    Ok(joined?)
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn rdma_join_multicast(
    id: *mut rdma_cm_id,
    addr: *mut sockaddr,
    context: *mut c_void,
) -> c_int {
    // SAFETY: the caller keeps the contract of the C function.
    let call = uncancelled(|| unsafe { join(id, addr, context, true) });
    // SAFETY: the caller keeps the contract of the C function.
    unsafe { complete(id, call) }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn rdma_join_multicast_ex(
    id: *mut rdma_cm_id,
    attr: *mut rdma_cm_join_mc_attr_ex,
    context: *mut c_void,
) -> c_int {
    let call = uncancelled(|| {
        // SAFETY: the caller keeps the contract of the C function.
        let attr = unsafe { attr.as_ref() }.ok_or(EINVAL)?;
        let wanted = RDMA_CM_JOIN_MC_ATTR_ADDRESS | RDMA_CM_JOIN_MC_ATTR_JOIN_FLAGS;
        if attr.comp_mask & wanted != wanted {
            return Err(EINVAL);
        }
        if attr.comp_mask & !wanted != 0 {
            return Err(EOPNOTSUPP);
        }
        let receive = match attr.join_flags {
            RDMA_MC_JOIN_FLAG_FULLMEMBER => true,
            RDMA_MC_JOIN_FLAG_SENDONLY_FULLMEMBER => false,
            _ => return Err(EINVAL),
        };
        // SAFETY: the caller keeps the contract of the C function.
        unsafe { join(id, attr.addr, context, receive) }
    });
    // SAFETY: the caller keeps the contract of the C function.
    unsafe { complete(id, call) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_leave_multicast(id: *mut rdma_cm_id, addr: *mut sockaddr) -> c_int {
    returning_zero(|| {
        // SAFETY: the caller keeps the contract of the C function.
        let (id, group) = unsafe { (qp::follow(id)?, addr::read(addr)?.ip().to_canonical()) };
        id.private().cm.leave_multicast(group)?;
        id.private().leave(group);
        Ok(())
    })
}
