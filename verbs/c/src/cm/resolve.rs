//! Addresses of identifiers: binding, resolving the peer's address and path, listening; and name lookup for identifiers.

use core::ffi::{c_char, c_int};
use core::ptr::null_mut;
use core::time::Duration;

use verbs::rdma_cm::{CmEventType, CmId};

use super::info::{Lookup, rdma_getaddrinfo};
use super::sync::complete;
use super::{addr, id};
use crate::abi::{rdma_addrinfo, rdma_cm_id, sockaddr};
use crate::errno::{EINVAL, EOPNOTSUPP, Errno, Result};
use crate::guard::{returning_zero, uncancelled};
use crate::{config, engine};

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_bind_addr(id: *mut rdma_cm_id, addr: *mut sockaddr) -> c_int {
    returning_zero(|| {
        // SAFETY: the caller keeps the contract of the C function.
        let (id, addr) = unsafe { (id::of(id)?, addr::read(addr)?) };
        config::warn_of_private_link(addr.ip(), engine::device);
        id.private().cm.bind_addr(addr)?;
        id::refresh_addresses(id);
        Ok(())
    })
}

/// A timeout in milliseconds; a negative one is 0.
fn timeout(ms: c_int) -> Duration {
    Duration::from_millis(ms.try_into().unwrap_or(0))
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn rdma_resolve_addr(
    id: *mut rdma_cm_id,
    src: *mut sockaddr,
    dst: *mut sockaddr,
    timeout_ms: c_int,
) -> c_int {
    let call = uncancelled(|| {
        // SAFETY: the caller keeps the contract of the C function.
        let (id, src, dst) = unsafe { (id::of(id)?, addr::read_optional(src)?, addr::read(dst)?) };
        config::warn_of_private_link(dst.ip(), engine::device);
        id.private().cm.resolve_addr(src, dst, timeout(timeout_ms))?;
        id::refresh_addresses(id);
        Ok(())
    });
    // SAFETY: the caller keeps the contract of the C function.
    unsafe { complete(id, call) }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn rdma_resolve_route(id: *mut rdma_cm_id, timeout_ms: c_int) -> c_int {
    let call = uncancelled(|| {
        // SAFETY: the caller keeps the contract of the C function.
        Ok(unsafe { id::of(id) }?.private().cm.resolve_route(timeout(timeout_ms))?)
    });
    // SAFETY: the caller keeps the contract of the C function.
    unsafe { complete(id, call) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_listen(id: *mut rdma_cm_id, backlog: c_int) -> c_int {
    returning_zero(|| {
        // SAFETY: the caller keeps the contract of the C function.
        let id = unsafe { id::of(id) }?;
        id.private().cm.listen(backlog.try_into().unwrap_or(0))?;
        id::refresh_addresses(id);
        Ok(())
    })
}

/// A port number of an identifier, in network byte order.
unsafe fn port_of(id: *mut rdma_cm_id, port: impl FnOnce(&CmId) -> u16) -> u16 {
    let port = uncancelled(|| {
        // SAFETY: the caller keeps the contract of the C function.
        Ok(port(&unsafe { id::of(id) }?.private().cm))
    });
    port.unwrap_or(0).to_be()
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_get_src_port(id: *mut rdma_cm_id) -> u16 {
    // SAFETY: the caller keeps the contract of the C function.
    unsafe { port_of(id, CmId::src_port) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_get_dst_port(id: *mut rdma_cm_id) -> u16 {
    // SAFETY: the caller keeps the contract of the C function.
    unsafe { port_of(id, CmId::dst_port) }
}

/// A flag that older headers do not have.
const RAI_SA: u32 = 0x10;

/// Looks an address up, as `rdma_getaddrinfo` does, and raises `AddrinfoResolved` if it finds one.
///
/// # Safety
/// The caller keeps the contract of `rdma_resolve_addrinfo` and `rdma_getaddrinfo`.
unsafe fn look_up(
    id: *mut rdma_cm_id,
    node: *const c_char,
    service: *const c_char,
    hints: *const rdma_addrinfo,
) -> Result<()> {
    // SAFETY: as the caller promises.
    unsafe {
        let private = id::of(id)?.private();
        let flags = hints.as_ref().map_or(0, |hints| hints.ai_flags as u32);
        if flags & RAI_SA != 0 {
            // RoCE has no subnet administrator that could be asked.
            return Err(EOPNOTSUPP);
        }
        let mut found = private.found();
        if matches!(*found, Lookup::Found(_)) {
            return Err(Errno(libc::EBUSY));
        }
        let mut info = null_mut();
        match rdma_getaddrinfo(node, service, hints, &raw mut info) {
            0 => *found = Lookup::Found(info),
            -1 => return Err(std::io::Error::last_os_error().into()),
            // The stock library, too, returns this number.
            error => return Err(Errno(error)),
        }
        Ok(private.cm.write_event(CmEventType::AddrinfoResolved, 0, 0)?)
    }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn rdma_resolve_addrinfo(
    id: *mut rdma_cm_id,
    node: *const c_char,
    service: *const c_char,
    hints: *const rdma_addrinfo,
) -> c_int {
    // SAFETY: the caller keeps the contract of the C function.
    let call = uncancelled(|| unsafe { look_up(id, node, service, hints) });
    // SAFETY: the caller keeps the contract of the C function.
    unsafe { complete(id, call) }
}

/// Returns the result of `rdma_resolve_addrinfo`, once.
#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_query_addrinfo(id: *mut rdma_cm_id, to: *mut *mut rdma_addrinfo) -> c_int {
    returning_zero(|| {
        // SAFETY: the caller keeps the contract of the C function.
        let (private, to) = unsafe { (id::of(id)?.private(), to.as_mut().ok_or(EINVAL)?) };
        let mut found = private.found();
        let Lookup::Found(info) = *found else { return Err(Errno(libc::ENOENT)) };
        *to = info;
        core::mem::forget(core::mem::take(&mut *found));
        Ok(())
    })
}
