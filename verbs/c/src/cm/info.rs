//! `rdma_getaddrinfo`: names and services as getaddrinfo(3) finds them, with what an identifier is created from.

use core::ffi::{c_char, c_int};
use core::ptr::{self, null_mut};
use std::ffi::{CStr, CString};
use std::net::SocketAddr;

use super::addr;
use crate::abi::{
    self, IBV_QPT_RC, IBV_QPT_UC, IBV_QPT_UD, RAI_FAMILY, RAI_NUMERICHOST, RAI_PASSIVE, RDMA_PS_IB,
    RDMA_PS_IPOIB, RDMA_PS_TCP, RDMA_PS_UDP, rdma_addrinfo, sockaddr, sockaddr_storage,
};
use crate::errno::{self, EINVAL, Errno, Result};
use crate::guard::settled;

/// What C gets, and what it names.
#[repr(C)]
struct Info {
    public: rdma_addrinfo,
    src: sockaddr_storage,
    dst: sockaddr_storage,
    name: Option<CString>,
}

/// What a call asks for.
struct Hints {
    flags: u32,
    family: c_int,
    port_space: u32,
    qp_type: u32,
    src: Option<SocketAddr>,
    dst: Option<SocketAddr>,
}

/// Port space and type of queue pairs: one follows from the other where a program gives only one.
fn space_and_type(port_space: u32, qp_type: u32) -> (u32, u32) {
    match (port_space, qp_type) {
        (0, IBV_QPT_UD) => (RDMA_PS_UDP, qp_type),
        // The only one for unreliable connections.
        (0, IBV_QPT_UC) => (RDMA_PS_IB, qp_type),
        (0, 0) => (RDMA_PS_TCP, IBV_QPT_RC),
        (0, _) => (RDMA_PS_TCP, qp_type),
        (RDMA_PS_UDP | RDMA_PS_IPOIB, 0) => (port_space, IBV_QPT_UD),
        (_, 0) => (port_space, IBV_QPT_RC),
        both => both,
    }
}

/// # Safety
/// NULL, or hints as C promises.
unsafe fn read(hints: *const rdma_addrinfo) -> Result<Hints> {
    // SAFETY: as the caller promises.
    unsafe {
        let (mut flags, mut family, mut space, mut qp_type, mut src, mut dst) = (0, 0, 0, 0, None, None);
        if let Some(given) = hints.as_ref() {
            (flags, family) = (given.ai_flags as u32, given.ai_family);
            (space, qp_type) = (given.ai_port_space as u32, given.ai_qp_type as u32);
            src = addr::read_optional(given.ai_src_addr)?;
            dst = addr::read_optional(given.ai_dst_addr)?;
        }
        let (port_space, qp_type) = space_and_type(space, qp_type);
        Ok(Hints { flags, family, port_space, qp_type, src, dst })
    }
}

/// Asks the system for an address; an error is one of getaddrinfo(3).
///
/// # Safety
/// NULL, or texts.
unsafe fn find(
    node: *const c_char,
    service: *const c_char,
    hints: &Hints,
) -> core::result::Result<(SocketAddr, Option<CString>), c_int> {
    // SAFETY: zeros are hints that ask for nothing.
    let mut ask: libc::addrinfo = unsafe { core::mem::zeroed() };
    if hints.flags & RAI_PASSIVE != 0 {
        ask.ai_flags |= libc::AI_PASSIVE;
    }
    if hints.flags & RAI_NUMERICHOST != 0 {
        ask.ai_flags |= libc::AI_NUMERICHOST;
    }
    if hints.flags & RAI_FAMILY != 0 || hints.family != 0 {
        ask.ai_family = hints.family;
    }
    ask.ai_socktype = if hints.qp_type == IBV_QPT_UD { libc::SOCK_DGRAM } else { libc::SOCK_STREAM };
    let mut found = null_mut();
    // SAFETY: as the caller promises; the list is read before it is freed.
    unsafe {
        let error = libc::getaddrinfo(node, service, &raw const ask, &raw mut found);
        if error != 0 {
            return Err(error);
        }
        let mut at = found;
        let mut result = Err(libc::EAI_NONAME);
        while let Some(one) = at.as_ref() {
            if let Ok(addr) = addr::read(one.ai_addr.cast()) {
                let name = (!one.ai_canonname.is_null()).then(|| CStr::from_ptr(one.ai_canonname).to_owned());
                result = Ok((addr, name));
                break;
            }
            at = one.ai_next;
        }
        libc::freeaddrinfo(found);
        result
    }
}

/// Gives C the result.
fn info(
    hints: &Hints,
    src: Option<SocketAddr>,
    dst: Option<SocketAddr>,
    name: Option<CString>,
) -> *mut rdma_addrinfo {
    // SAFETY: numbers, addresses, and pointers that may be NULL.
    let (public, storage): (rdma_addrinfo, sockaddr_storage) = unsafe { (abi::zeroed(), abi::zeroed()) };
    let info = Box::into_raw(Box::new(Info { public, src: storage, dst: storage, name }));
    // SAFETY: it was just made, and nobody else has it.
    unsafe {
        let public = &raw mut (*info).public;
        let passive = hints.flags & RAI_PASSIVE != 0;
        (*public).ai_flags = hints.flags as c_int;
        (*public).ai_qp_type = hints.qp_type as c_int;
        (*public).ai_port_space = hints.port_space as c_int;
        let family = |addr: SocketAddr| if addr.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
        (*public).ai_family = dst.or(src).map_or(hints.family, family);
        let name = (*info).name.as_ref().map_or(ptr::null(), |name| name.as_ptr()).cast_mut();
        if let Some(src) = src {
            let place = &raw mut (*info).src;
            (*public).ai_src_len = addr::write(src, place) as u32;
            (*public).ai_src_addr = place.cast::<sockaddr>();
        }
        if let Some(dst) = dst {
            let place = &raw mut (*info).dst;
            (*public).ai_dst_len = addr::write(dst, place) as u32;
            (*public).ai_dst_addr = place.cast::<sockaddr>();
        }
        if passive {
            (*public).ai_src_canonname = name;
        } else {
            (*public).ai_dst_canonname = name;
        }
        public
    }
}

/// 0, an error of getaddrinfo(3), or -1 with `errno`.
#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_getaddrinfo(
    node: *const c_char,
    service: *const c_char,
    hints: *const rdma_addrinfo,
    to: *mut *mut rdma_addrinfo,
) -> c_int {
    let result = settled(|| {
        if to.is_null() || (node.is_null() && service.is_null() && hints.is_null()) {
            return Err(EINVAL);
        }
        // SAFETY: as C promises.
        let hints = unsafe { read(hints) }?;
        let (mut src, mut dst, mut name) = (hints.src, hints.dst, None);
        if !(node.is_null() && service.is_null()) {
            // SAFETY: as C promises.
            match unsafe { find(node, service, &hints) } {
                Ok((addr, canonical)) if hints.flags & RAI_PASSIVE != 0 => {
                    (src, dst, name) = (Some(addr), None, canonical);
                }
                Ok((addr, canonical)) => (dst, name) = (Some(addr), canonical),
                Err(libc::EAI_SYSTEM) => return Err(std::io::Error::last_os_error().into()),
                Err(error) => return Ok(error),
            }
        }
        // SAFETY: as C promises.
        unsafe { *to = info(&hints, src, dst, name) };
        Ok(0)
    });
    result.unwrap_or_else(|error: Errno| {
        errno::set(error);
        -1
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_freeaddrinfo(info: *mut rdma_addrinfo) {
    if !info.is_null() {
        // SAFETY: C promises that it came from `rdma_getaddrinfo`, which made it so; C's part is the first.
        drop(unsafe { Box::from_raw(info.cast::<Info>()) });
    }
}
