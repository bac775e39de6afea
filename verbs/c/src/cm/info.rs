//! `rdma_getaddrinfo`: looks up names and services with getaddrinfo(3), and returns what is needed to create an identifier.

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

/// The relevant hints of a call.
struct Hints {
    flags: u32,
    family: c_int,
    port_space: u32,
    qp_type: u32,
    src: Option<SocketAddr>,
    dst: Option<SocketAddr>,
}

/// Port space and type of queue pairs. If a program gives only one of them, the other follows from it.
fn space_and_type(port_space: u32, qp_type: u32) -> (u32, u32) {
    match (port_space, qp_type) {
        (0, IBV_QPT_UD) => (RDMA_PS_UDP, qp_type),
        // The only port space for UC.
        (0, IBV_QPT_UC) => (RDMA_PS_IB, qp_type),
        (0, 0) => (RDMA_PS_TCP, IBV_QPT_RC),
        (0, _) => (RDMA_PS_TCP, qp_type),
        (RDMA_PS_UDP | RDMA_PS_IPOIB, 0) => (port_space, IBV_QPT_UD),
        (_, 0) => (port_space, IBV_QPT_RC),
        both => both,
    }
}

/// An address with its length, as in `struct rdma_addrinfo`; `None` if the length is 0.
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

/// Reads the hints of a call. Reads the destination address only if `reads_dst` is set: if a node or a service is given, that address is
/// ignored and may be uninitialised.
///
/// # Safety
/// `hints` is NULL, or valid by the contract of `rdma_getaddrinfo`.
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

/// Looks an address up with getaddrinfo(3). An error is one of its numbers.
///
/// # Safety
/// `node` and `service` are NULL or NUL-terminated strings.
unsafe fn find(
    node: *const c_char,
    service: *const c_char,
    hints: &Hints,
) -> core::result::Result<(SocketAddr, Option<CString>), c_int> {
    // SAFETY: zeros are valid hints that request nothing.
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

/// Allocates zeroed memory for C with calloc(3), to be freed by free(3).
///
/// # Errors
/// `ENOMEM` if there is no memory.
fn calloc<T>() -> Result<*mut T> {
    // SAFETY: any size is allowed, and the result is checked.
    let memory = unsafe { libc::calloc(1, size_of::<T>()) };
    if memory.is_null() { Err(ENOMEM) } else { Ok(memory.cast()) }
}

/// Copies an address into memory of calloc(3). Returns it with its length.
fn calloc_address(addr: SocketAddr) -> Result<(*mut sockaddr, u32)> {
    let place = calloc::<sockaddr_storage>()?;
    // SAFETY: any address fits.
    let len = unsafe { addr::write(addr, place) };
    Ok((place.cast(), len as u32))
}

/// Creates the result for C. Each part is allocated separately, because programs replace and free parts themselves.
fn info(
    hints: &Hints,
    src: Option<SocketAddr>,
    dst: Option<SocketAddr>,
    name: Option<&CStr>,
) -> Result<*mut rdma_addrinfo> {
    let info = calloc::<rdma_addrinfo>()?;
    // SAFETY: it was just allocated, and no other pointer to it exists; all zeros are a valid value.
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
            // SAFETY: a NUL-terminated string.
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
        // SAFETY: no other pointer to it exists.
        unsafe { rdma_freeaddrinfo(info) };
    }
    filled.map(|()| info)
}

/// Returns 0, an error number of getaddrinfo(3), or -1 with `errno`.
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
        // SAFETY: the caller keeps the contract of the C function.
        let hints = unsafe { read(hints, node.is_null() && service.is_null()) }?;
        let (mut src, mut dst, mut name) = (hints.src, hints.dst, None);
        if !(node.is_null() && service.is_null()) {
            // SAFETY: the caller keeps the contract of the C function.
            match unsafe { find(node, service, &hints) } {
                Ok((addr, canonical)) if hints.flags & RAI_PASSIVE != 0 => {
                    (src, dst, name) = (Some(addr), None, canonical);
                }
                Ok((addr, canonical)) => (dst, name) = (Some(addr), canonical),
                Err(libc::EAI_SYSTEM) => return Err(std::io::Error::last_os_error().into()),
                Err(error) => return Ok(error),
            }
        }
        // SAFETY: the caller keeps the contract of the C function.
        unsafe { *to = info(&hints, src, dst, name.as_deref())? };
        Ok(0)
    });
    result.unwrap_or_else(errno::fail)
}

/// Frees a list and the parts of its entries. Programs may have allocated any of them themselves, as libfabric does.
#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_freeaddrinfo(mut info: *mut rdma_addrinfo) {
    while !info.is_null() {
        // SAFETY: the caller must pass entries and parts that are NULL or memory of malloc(3), and must not use them any more.
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

/// The result of `rdma_resolve_addrinfo` for an identifier.
#[derive(Default)]
pub(super) enum Lookup {
    /// There was no lookup, or the program has taken the result.
    #[default]
    None,
    /// The result, to be freed with `rdma_freeaddrinfo`.
    Found(*mut rdma_addrinfo),
}

// SAFETY: the memory is not shared.
unsafe impl Send for Lookup {}

impl Drop for Lookup {
    fn drop(&mut self) {
        if let Self::Found(info) = *self {
            // SAFETY: allocated by `rdma_getaddrinfo`, and no other pointer to it exists.
            unsafe { rdma_freeaddrinfo(info) };
        }
    }
}
