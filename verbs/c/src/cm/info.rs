//! `rdma_getaddrinfo`: names and services as getaddrinfo(3) finds them, with what an identifier is created from.

use core::ffi::{c_char, c_int};
use core::mem::size_of;
use core::ptr::null_mut;
use std::ffi::{CStr, CString};
use std::net::SocketAddr;

use super::addr;
use crate::abi::{
    IBV_QPT_RC, IBV_QPT_UC, IBV_QPT_UD, RAI_FAMILY, RAI_NUMERICHOST, RAI_PASSIVE, RDMA_PS_IB, RDMA_PS_IPOIB,
    RDMA_PS_TCP, RDMA_PS_UDP, rdma_addrinfo, sockaddr, sockaddr_storage,
};
use crate::errno::{self, EINVAL, ENOMEM, Result};
use crate::guard::uncancelled;

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

/// An address with its length, as `struct rdma_addrinfo` has it; without a length there is none.
///
/// # Safety
/// As [`addr::read_optional`], unless the length is 0.
pub(super) unsafe fn address(addr: *const sockaddr, len: u32) -> Result<Option<SocketAddr>> {
    if len == 0 {
        return Ok(None);
    }
    // SAFETY: as the caller promises.
    unsafe { addr::read_optional(addr) }
}

/// The hints of a call. Their destination address is read only if `reads_dst`: where a node or a service gives one, it is ignored, and
/// may be uninitialised.
///
/// # Safety
/// `hints` is NULL, or valid as C promises.
unsafe fn read(hints: *const rdma_addrinfo, reads_dst: bool) -> Result<Hints> {
    // SAFETY: as the caller promises.
    unsafe {
        let (mut flags, mut family, mut space, mut qp_type, mut src, mut dst) = (0, 0, 0, 0, None, None);
        if let Some(given) = hints.as_ref() {
            (flags, family) = (given.ai_flags as u32, given.ai_family);
            (space, qp_type) = (given.ai_port_space as u32, given.ai_qp_type as u32);
            src = address(given.ai_src_addr, given.ai_src_len)?;
            if reads_dst {
                dst = address(given.ai_dst_addr, given.ai_dst_len)?;
            }
        }
        let (port_space, qp_type) = space_and_type(space, qp_type);
        Ok(Hints { flags, family, port_space, qp_type, src, dst })
    }
}

/// Asks the system for an address; an error is one of getaddrinfo(3).
///
/// # Safety
/// `node` and `service` are NULL or strings that end in NUL.
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

/// Memory of calloc(3) for C: all zeros, and freed by free(3).
///
/// # Errors
/// `ENOMEM`.
fn calloc<T>() -> Result<*mut T> {
    // SAFETY: any size is fine; the result is checked.
    let memory = unsafe { libc::calloc(1, size_of::<T>()) };
    if memory.is_null() { Err(ENOMEM) } else { Ok(memory.cast()) }
}

/// An address for C, in memory of calloc(3), and its length.
fn calloc_address(addr: SocketAddr) -> Result<(*mut sockaddr, u32)> {
    let place = calloc::<sockaddr_storage>()?;
    // SAFETY: any address fits.
    let len = unsafe { addr::write(addr, place) };
    Ok((place.cast(), len as u32))
}

/// Gives C the result. Each part is allocated separately, because programs replace and free parts themselves.
fn info(
    hints: &Hints,
    src: Option<SocketAddr>,
    dst: Option<SocketAddr>,
    name: Option<&CStr>,
) -> Result<*mut rdma_addrinfo> {
    let info = calloc::<rdma_addrinfo>()?;
    // SAFETY: it was just made, and nobody else has it; all zeros are a value.
    let public = unsafe { &mut *info };
    public.ai_flags = hints.flags as c_int;
    public.ai_qp_type = hints.qp_type as c_int;
    public.ai_port_space = hints.port_space as c_int;
    let family = |addr: SocketAddr| if addr.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
    public.ai_family = dst.or(src).map_or(hints.family, family);
    let mut fill = || {
        if let Some(src) = src {
            (public.ai_src_addr, public.ai_src_len) = calloc_address(src)?;
        }
        if let Some(dst) = dst {
            (public.ai_dst_addr, public.ai_dst_len) = calloc_address(dst)?;
        }
        if let Some(name) = name {
            // SAFETY: a string that ends in NUL.
            let copy = unsafe { libc::strdup(name.as_ptr()) };
            if copy.is_null() {
                return Err(ENOMEM);
            }
            let passive = hints.flags & RAI_PASSIVE != 0;
            *(if passive { &mut public.ai_src_canonname } else { &mut public.ai_dst_canonname }) = copy;
        }
        Ok(())
    };
    let filled = fill();
    if filled.is_err() {
        // SAFETY: nobody else has it.
        unsafe { rdma_freeaddrinfo(info) };
    }
    filled.map(|()| info)
}

/// 0, an error of getaddrinfo(3), or -1 with `errno`.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn rdma_getaddrinfo(
    node: *const c_char,
    service: *const c_char,
    hints: *const rdma_addrinfo,
    to: *mut *mut rdma_addrinfo,
) -> c_int {
    let result = uncancelled(|| {
        if to.is_null() || (node.is_null() && service.is_null() && hints.is_null()) {
            return Err(EINVAL);
        }
        // SAFETY: as C promises.
        let hints = unsafe { read(hints, node.is_null() && service.is_null()) }?;
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
        unsafe { *to = info(&hints, src, dst, name.as_deref())? };
        Ok(0)
    });
    result.unwrap_or_else(errno::fail)
}

/// Frees a list, and with each entry its parts. Programs may have made any of them: libfabric does.
#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_freeaddrinfo(mut info: *mut rdma_addrinfo) {
    while !info.is_null() {
        // SAFETY: C promises that the entries and their parts are memory of malloc(3), or NULL, and that it has done with them.
        unsafe {
            let entry = info.read();
            libc::free(entry.ai_src_addr.cast());
            libc::free(entry.ai_dst_addr.cast());
            libc::free(entry.ai_src_canonname.cast());
            libc::free(entry.ai_dst_canonname.cast());
            libc::free(entry.ai_route);
            libc::free(entry.ai_connect);
            libc::free(info.cast());
            info = entry.ai_next;
        }
    }
}

/// What `rdma_resolve_addrinfo` has found for an identifier.
#[derive(Default)]
pub(super) enum Lookup {
    /// It was not asked, or the program has the result.
    #[default]
    None,
    /// Freed by `rdma_freeaddrinfo`.
    Found(*mut rdma_addrinfo),
}

// SAFETY: memory that nobody else has.
unsafe impl Send for Lookup {}

impl Drop for Lookup {
    fn drop(&mut self) {
        if let Self::Found(info) = *self {
            // SAFETY: made by `rdma_getaddrinfo`, and nobody else has it.
            unsafe { rdma_freeaddrinfo(info) };
        }
    }
}
