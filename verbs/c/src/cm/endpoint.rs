//! Endpoints: identifiers that one call creates, binds or resolves, and gives a queue pair; and the requests to listening endpoints.
//!
//! The functions here call functions that wait. They own nothing that needs to be dropped during the wait.

use core::ffi::c_int;
use core::ptr::null_mut;
use core::time::Duration;

use verbs::rdma_cm::IdState;

use super::id::{self, Wanted};
use super::sync::complete;
use super::{addr, create, event, info, qp};
use crate::abi::{
    RAI_PASSIVE, RDMA_CM_EVENT_CONNECT_REQUEST, ibv_pd, ibv_qp_init_attr, rdma_addrinfo, rdma_cm_event,
    rdma_cm_id,
};
use crate::attr;
use crate::create_qp::extended;
use crate::errno::{EINVAL, Errno, Result, fail};
use crate::guard::{returning_zero, uncancelled};
use crate::{config, engine};

/// How long the creation of an endpoint waits for the peer's address and path.
const RESOLVE_MS: c_int = 2000;

/// Creates the identifier and binds it, or starts to resolve its peer.
///
/// # Safety
/// The caller keeps the contract of the C function.
unsafe fn begin(
    info: *const rdma_addrinfo,
    pd: *mut ibv_pd,
    init: *const ibv_qp_init_attr,
) -> Result<*mut rdma_cm_id> {
    // SAFETY: as the caller promises.
    unsafe {
        let info = info.as_ref().ok_or(EINVAL)?;
        let qp_type = match info.ai_qp_type {
            0 => None,
            qp_type => Some(attr::qp_type(qp_type as u32)?),
        };
        let id = create::create(null_mut(), null_mut(), info.ai_port_space as u32, qp_type)?;
        let prepared = id::of(id).and_then(|object| {
            let private = object.private();
            if !pd.is_null() {
                (*id).pd = pd;
            }
            if info.ai_flags as u32 & RAI_PASSIVE == 0 {
                let src = info::address(info.ai_src_addr, info.ai_src_len)?;
                let dst = addr::read(info.ai_dst_addr)?;
                let patience = Duration::from_millis(RESOLVE_MS as u64);
                config::warn_of_private_link(dst.ip(), engine::device);
                return Ok(private.cm.resolve_addr(src, dst, patience)?);
            }
            if let Some(src) = info::address(info.ai_src_addr, info.ai_src_len)? {
                config::warn_of_private_link(src.ip(), engine::device);
                private.cm.bind_addr(src)?;
            }
            id::refresh_addresses(object);
            *private.wanted() = init.as_ref().map(|attr| Wanted { pd, attr: *attr });
            Ok(())
        });
        match prepared {
            Ok(()) => Ok(id),
            Err(error) => {
                let _ = create::destroy(id);
                Err(error)
            }
        }
    }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn rdma_create_ep(
    to: *mut *mut rdma_cm_id,
    info: *mut rdma_addrinfo,
    pd: *mut ibv_pd,
    init: *mut ibv_qp_init_attr,
) -> c_int {
    if to.is_null() {
        return fail(EINVAL);
    }
    // SAFETY: the caller keeps the contract of the C function.
    unsafe {
        let id = match uncancelled(|| begin(info, pd, init)) {
            Ok(id) => id,
            Err(error) => return fail(error),
        };
        if (*info).ai_flags as u32 & RAI_PASSIVE == 0 {
            let mut result = complete(id, Ok(()));
            if result == 0 {
                let route = uncancelled(|| Ok(id::of(id)?.private().cm.resolve_route(Duration::ZERO)?));
                result = complete(id, route);
            }
            if result == 0 && !init.is_null() {
                result = returning_zero(|| make_qp(id, pd, &mut *init));
            }
            if result != 0 {
                let error: Errno = std::io::Error::last_os_error().into();
                let _ = uncancelled(|| create::destroy(id));
                return fail(error);
            }
        }
        *to = id;
    }
    0
}

/// Creates the queue pair of an endpoint, of the endpoint's type.
///
/// # Safety
/// The caller keeps the contract of the C function.
unsafe fn make_qp(id: *mut rdma_cm_id, pd: *mut ibv_pd, init: &mut ibv_qp_init_attr) -> Result<()> {
    // SAFETY: as the caller promises.
    unsafe {
        init.qp_type = (*id).qp_type;
        let mut attr = extended(init, pd);
        qp::create(id, &mut attr)?;
        (init.cap, init.send_cq, init.recv_cq, init.srq) = (attr.cap, attr.send_cq, attr.recv_cq, attr.srq);
    }
    Ok(())
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_destroy_ep(id: *mut rdma_cm_id) {
    // SAFETY: the caller keeps the contract of the C function.
    let _ = uncancelled(|| unsafe {
        id::of(id)?;
        // These fail if the identifier does not have the object.
        let _ = qp::destroy(id);
        let _ = qp::destroy_srq(id);
        create::destroy(id)
    });
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn rdma_get_request(listen: *mut rdma_cm_id, to: *mut *mut rdma_cm_id) -> c_int {
    // SAFETY: the caller keeps the contract of the C function.
    unsafe {
        let events = uncancelled(|| {
            let private = id::of(listen)?.private();
            // An identifier that does not listen will get no request.
            let listens = private.cm.state() == IdState::Listening;
            if to.is_null() || !private.is_synchronous() || !listens {
                return Err(EINVAL);
            }
            Ok(private.channel())
        });
        let events = match events {
            Ok(events) => events,
            Err(error) => return fail(error),
        };
        let mut request = null_mut();
        match event::next(events, &raw mut request) {
            0 => returning_zero(|| {
                *to = incoming(listen, request)?;
                Ok(())
            }),
            failed => failed,
        }
    }
}

/// Makes the identifier of a request synchronous, and creates the queue pair that the listener wants for it.
///
/// # Safety
/// The listener is alive, and the event is ours.
unsafe fn incoming(listen: *mut rdma_cm_id, request: *mut rdma_cm_event) -> Result<*mut rdma_cm_id> {
    // SAFETY: as the caller promises.
    unsafe {
        if (*request).event != RDMA_CM_EVENT_CONNECT_REQUEST {
            event::ack(request)?;
            return Err(EINVAL);
        }
        let id = (*request).id;
        let wanted = *id::of(listen)?.private().wanted();
        let made = create::migrate(id, null_mut()).and_then(|()| match wanted {
            Some(Wanted { pd, mut attr }) => make_qp(id, pd, &mut attr),
            None => Ok(()),
        });
        if let Err(error) = made {
            let _ = event::ack(request);
            let _ = create::destroy(id);
            return Err(error);
        }
        (*id).event = request;
        Ok(id)
    }
}
