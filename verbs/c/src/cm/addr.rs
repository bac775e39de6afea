//! Conversion of socket addresses between C and Rust.

use core::mem::{offset_of, size_of};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};

use crate::abi::{sockaddr, sockaddr_storage};
use crate::errno::{EINVAL, Errno, Result};

/// Reads the address in a structure of C.
///
/// # Errors
/// `EINVAL` for NULL; `EAFNOSUPPORT` for a family other than IPv4 and IPv6.
///
/// # Safety
/// `addr` is NULL, or a structure of the length that its family requires.
pub(super) unsafe fn read(addr: *const sockaddr) -> Result<SocketAddr> {
    if addr.is_null() {
        return Err(EINVAL);
    }
    // SAFETY: the structure contains at least a family.
    let family = unsafe {
        addr.byte_add(offset_of!(sockaddr, sa_family)).cast::<libc::sa_family_t>().read_unaligned()
    };
    match i32::from(family) {
        libc::AF_INET => {
            // SAFETY: an IPv4 address, by its family.
            let v4 = unsafe { addr.cast::<libc::sockaddr_in>().read_unaligned() };
            let ip = Ipv4Addr::from(u32::from_be(v4.sin_addr.s_addr));
            Ok(SocketAddr::from((ip, u16::from_be(v4.sin_port))))
        }
        libc::AF_INET6 => {
            // SAFETY: an IPv6 address, by its family.
            let v6 = unsafe { addr.cast::<libc::sockaddr_in6>().read_unaligned() };
            let ip = Ipv6Addr::from(v6.sin6_addr.s6_addr);
            Ok(SocketAddrV6::new(ip, u16::from_be(v6.sin6_port), 0, v6.sin6_scope_id).into())
        }
        _ => Err(Errno(libc::EAFNOSUPPORT)),
    }
}

/// Reads an address; `None` for NULL.
///
/// # Errors
/// As [`read`].
///
/// # Safety
/// As [`read`].
pub(super) unsafe fn read_optional(addr: *const sockaddr) -> Result<Option<SocketAddr>> {
    if addr.is_null() {
        return Ok(None);
    }
    // SAFETY: as the caller promises.
    unsafe { read(addr) }.map(Some)
}

/// Writes an address and returns its length in bytes.
///
/// # Safety
/// `to` has room for the address.
pub(super) unsafe fn write(addr: SocketAddr, to: *mut sockaddr_storage) -> usize {
    match addr {
        SocketAddr::V4(v4) => {
            // SAFETY: all zeros are a valid address.
            let mut raw: libc::sockaddr_in = unsafe { core::mem::zeroed() };
            raw.sin_family = libc::AF_INET as libc::sa_family_t;
            raw.sin_port = v4.port().to_be();
            raw.sin_addr.s_addr = u32::from(*v4.ip()).to_be();
            // SAFETY: as the caller promises.
            unsafe { to.cast::<libc::sockaddr_in>().write_unaligned(raw) };
            size_of::<libc::sockaddr_in>()
        }
        SocketAddr::V6(v6) => {
            // SAFETY: all zeros are a valid address.
            let mut raw: libc::sockaddr_in6 = unsafe { core::mem::zeroed() };
            raw.sin6_family = libc::AF_INET6 as libc::sa_family_t;
            raw.sin6_port = v6.port().to_be();
            raw.sin6_addr.s6_addr = v6.ip().octets();
            raw.sin6_scope_id = v6.scope_id();
            // SAFETY: as the caller promises.
            unsafe { to.cast::<libc::sockaddr_in6>().write_unaligned(raw) };
            size_of::<libc::sockaddr_in6>()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_go_there_and_back() {
        for text in ["10.77.0.1:18515", "[fd00::1]:7", "[fe80::1%3]:9", "0.0.0.0:0"] {
            let addr: SocketAddr = text.parse().unwrap();
            // SAFETY: all zeros are a valid address.
            let mut raw: sockaddr_storage = unsafe { core::mem::zeroed() };
            // SAFETY: there is room for every address.
            let (len, back) = unsafe { (write(addr, &raw mut raw), read((&raw const raw).cast())) };
            assert_eq!((len, back), (if addr.is_ipv4() { 16 } else { 28 }, Ok(addr)));
        }
        let unspecified = [0u8; 128];
        // SAFETY: NULL, and a structure with an unknown family.
        let (null, none) = unsafe { (read(core::ptr::null()), read(unspecified.as_ptr().cast())) };
        assert_eq!((null, none), (Err(EINVAL), Err(Errno(libc::EAFNOSUPPORT))));
    }
}
