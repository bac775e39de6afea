//! Connections: connect, accept, reject, disconnect, and the functions for a program with its own queue pair.

use core::ffi::{c_int, c_void};
use core::slice;

use verbs::AsyncEvent;
use verbs::rdma_cm::{ConnParam, IdState};

use super::sync::complete;
use super::{id, qp};
use crate::abi::{self, ibv_event_type, ibv_qp_attr, rdma_cm_id, rdma_conn_param};
use crate::attr;
use crate::errno::{EINVAL, Errno};
use crate::guard::{returning_zero, uncancelled};
use crate::signals::tell_peers_of_the_end;

/// The largest retry count that fits into a message; larger ones are reduced to it.
const RETRIES_MAX: u8 = 7;

/// Private data; empty if the pointer is NULL or the length is 0.
///
/// # Safety
/// `data` is NULL, or points to `len` bytes.
unsafe fn data<'a>(data: *const c_void, len: u8) -> &'a [u8] {
    if data.is_null() || len == 0 {
        return &[];
    }
    // SAFETY: as the caller promises.
    unsafe { slice::from_raw_parts(data.cast(), len.into()) }
}

/// The parameters of a call; the defaults for NULL. Fields that are not used for this kind of identifier, service or call may contain
/// anything, because `verbs` ignores them.
///
/// # Safety
/// `given` is NULL, or parameters whose private data is valid.
unsafe fn param<'a>(given: *const rdma_conn_param) -> ConnParam<'a> {
    // SAFETY: as the caller promises.
    let Some(given) = (unsafe { given.as_ref() }) else { return ConnParam::default() };
    ConnParam {
        // SAFETY: as the caller promises.
        private_data: unsafe { data(given.private_data, given.private_data_len) },
        responder_resources: given.responder_resources,
        initiator_depth: given.initiator_depth,
        flow_control: given.flow_control != 0,
        retry_count: given.retry_count.min(RETRIES_MAX),
        rnr_retry_count: given.rnr_retry_count.min(RETRIES_MAX),
        srq: given.srq != 0,
        qp_num: attr::qp_num(given.qp_num),
    }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn rdma_connect(id: *mut rdma_cm_id, conn_param: *mut rdma_conn_param) -> c_int {
    let call = uncancelled(|| {
        // SAFETY: the caller keeps the contract of the C function.
        let (id, param) = unsafe { (qp::follow(id)?, param(conn_param)) };
        tell_peers_of_the_end();
        Ok(id.private().cm.connect(&param)?)
    });
    // SAFETY: the caller keeps the contract of the C function.
    unsafe { complete(id, call) }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn rdma_accept(id: *mut rdma_cm_id, conn_param: *mut rdma_conn_param) -> c_int {
    let call = uncancelled(|| {
        // SAFETY: the caller keeps the contract of the C function.
        let (id, param) = unsafe { (qp::follow(id)?, param(conn_param)) };
        let cm = &id.private().cm;
        tell_peers_of_the_end();
        cm.accept(&param)?;
        Ok(cm.qp_type() == verbs::QpType::Ud)
    });
    match call {
        // For datagrams there is nothing to wait for.
        Ok(true) => 0,
        // SAFETY: the caller keeps the contract of the C function.
        other => unsafe { complete(id, other.map(|_| ())) },
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_reject(id: *mut rdma_cm_id, private_data: *const c_void, len: u8) -> c_int {
    returning_zero(|| {
        // SAFETY: the caller keeps the contract of the C function.
        let (id, data) = unsafe { (id::of(id)?, data(private_data, len)) };
        Ok(id.private().cm.reject(data)?)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn rdma_disconnect(id: *mut rdma_cm_id) -> c_int {
    // SAFETY: the caller keeps the contract of the C function.
    let call = uncancelled(|| Ok(unsafe { qp::follow(id) }?.private().cm.disconnect()?));
    // SAFETY: the caller keeps the contract of the C function.
    unsafe { complete(id, call) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_establish(id: *mut rdma_cm_id) -> c_int {
    // SAFETY: the caller keeps the contract of the C function.
    returning_zero(|| Ok(unsafe { qp::follow(id) }?.private().cm.establish()?))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_notify(id: *mut rdma_cm_id, event: ibv_event_type) -> c_int {
    returning_zero(|| {
        // SAFETY: the caller keeps the contract of the C function.
        let id = unsafe { id::of(id) }?;
        match event {
            abi::IBV_EVENT_COMM_EST => Ok(id.private().cm.notify(AsyncEvent::CommEst)?),
            // The other events do not concern connections.
            0..=abi::IBV_EVENT_WQ_FATAL => Ok(()),
            _ => Err(EINVAL),
        }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_init_qp_attr(id: *mut rdma_cm_id, to: *mut ibv_qp_attr, mask: *mut c_int) -> c_int {
    returning_zero(|| {
        // SAFETY: the caller keeps the contract of the C function.
        let (id, to, mask) =
            unsafe { (id::of(id)?, to.as_mut().ok_or(EINVAL)?, mask.as_mut().ok_or(EINVAL)?) };
        let (from, given) = id.private().cm.init_qp_attr(attr::state(to.qp_state)?)?;
        *to = attr::qp_attr_to(&from);
        *mask = given.bits() as c_int;
        Ok(())
    })
}

/// Sets vendor data for the peer (enhanced connection establishment). The stack has none, so only zeros are accepted.
#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_set_local_ece(id: *mut rdma_cm_id, ece: *mut abi::ibv_ece) -> c_int {
    returning_zero(|| {
        // SAFETY: the caller keeps the contract of the C function.
        let (_, ece) = unsafe { (id::of(id)?, ece.as_ref().ok_or(EINVAL)?) };
        if ece.vendor_id == 0 && ece.options == 0 { Ok(()) } else { Err(Errno(libc::EOPNOTSUPP)) }
    })
}

/// Returns zeros as the peer's vendor data, because the stack ignores it.
#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_get_remote_ece(id: *mut rdma_cm_id, ece: *mut abi::ibv_ece) -> c_int {
    returning_zero(|| {
        // SAFETY: the caller keeps the contract of the C function.
        let (id, ece) = unsafe { (id::of(id)?, ece.as_mut().ok_or(EINVAL)?) };
        if matches!(id.private().cm.state(), IdState::Idle | IdState::Bound | IdState::Listening) {
            return Err(EINVAL);
        }
        (ece.vendor_id, ece.options, ece.comp_mask) = (0, 0, 0);
        Ok(())
    })
}

/// Refuses a request because of the peer's vendor data.
#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_reject_ece(id: *mut rdma_cm_id, private_data: *const c_void, len: u8) -> c_int {
    returning_zero(|| {
        // SAFETY: the caller keeps the contract of the C function.
        let (id, data) = unsafe { (id::of(id)?, data(private_data, len)) };
        Ok(id.private().cm.reject_ece(data)?)
    })
}
