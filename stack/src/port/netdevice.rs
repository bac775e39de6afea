//! Requests about Linux network interfaces, by ioctl(2) (netdevice(7)), for which our libraries have no calls. The socket of a
//! request may be any socket in the interface's network namespace.

#![allow(unsafe_code)]

#[cfg(feature = "dpdk")]
use crate::id::Mac;
use core::ffi::{CStr, c_ulong, c_void};
use core::mem::zeroed;
use std::io::{Error, Result};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

/// A request about the interface of that name.
fn named(iface: &str) -> libc::ifreq {
    // SAFETY: a structure of numbers and pointers, for which zeros are a value.
    let mut request: libc::ifreq = unsafe { zeroed() };
    let room = request.ifr_name.len() - 1;
    for (to, from) in request.ifr_name[..room].iter_mut().zip(iface.bytes()) {
        *to = from as _;
    }
    request
}

/// Gives a request to the kernel, which writes its answer into it.
///
/// # Safety
/// Where the command follows a pointer, the request has one, to what the command reads and writes.
unsafe fn ask(socket: BorrowedFd<'_>, command: c_ulong, request: &mut libc::ifreq) -> Result<()> {
    // SAFETY: every command reads and writes a request, and the caller answers for what that points to.
    let result = unsafe { libc::ioctl(socket.as_raw_fd(), command as _, &raw mut *request) };
    if result < 0 { Err(Error::last_os_error()) } else { Ok(()) }
}

/// Largest IP packet of the interface that a request is about.
fn mtu_of(socket: BorrowedFd<'_>, request: &mut libc::ifreq) -> Result<usize> {
    // SAFETY: the command follows no pointer.
    unsafe { ask(socket, libc::SIOCGIFMTU, request) }?;
    // SAFETY: the command wrote this member.
    Ok(unsafe { request.ifr_ifru.ifru_mtu }.max(0) as usize)
}

/// Largest IP packet of an interface.
pub(super) fn mtu(socket: BorrowedFd<'_>, iface: &str) -> Result<usize> {
    mtu_of(socket, &mut named(iface))
}

/// Whether the interface of that number, whatever its name is by now, is up and has a carrier, and its MTU.
#[cfg(feature = "dpdk")]
pub(super) fn state(socket: BorrowedFd<'_>, index: u32) -> Result<(bool, usize)> {
    let mut request = named("");
    request.ifr_ifru.ifru_ifindex = index as _;
    // SAFETY: the command follows no pointer.
    unsafe { ask(socket, libc::SIOCGIFNAME, &mut request) }?;
    let mtu = mtu_of(socket, &mut request)?;
    // SAFETY: the command follows no pointer.
    unsafe { ask(socket, libc::SIOCGIFFLAGS, &mut request) }?;
    // SAFETY: the command wrote this member.
    let flags = i32::from(unsafe { request.ifr_ifru.ifru_flags });
    Ok((flags & libc::IFF_UP != 0 && flags & libc::IFF_RUNNING != 0, mtu))
}

/// Sets the Ethernet address of an interface.
#[cfg(feature = "dpdk")]
pub(super) fn set_mac(socket: BorrowedFd<'_>, iface: &str, mac: Mac) -> Result<()> {
    let mut address = libc::sockaddr { sa_family: libc::ARPHRD_ETHER, sa_data: [0; 14] };
    for (to, from) in address.sa_data.iter_mut().zip(mac.0) {
        *to = from as _;
    }
    let mut request = named(iface);
    request.ifr_ifru.ifru_hwaddr = address;
    // SAFETY: the command follows no pointer.
    unsafe { ask(socket, libc::SIOCSIFHWADDR, &mut request) }
}

/// Commands and structures of `<linux/ethtool.h>`.
const ETHTOOL_GDRVINFO: u32 = 0x3;
const ETHTOOL_GSTRINGS: u32 = 0x1b;
const ETHTOOL_GSSET_INFO: u32 = 0x37;
const ETHTOOL_GFEATURES: u32 = 0x3a;
const ETH_SS_FEATURES: u32 = 4;
/// Bytes of a feature's name.
const ETH_GSTRING_LEN: usize = 32;
/// Features that an interface may have, at most.
const FEATURES: usize = 256;

/// `struct ethtool_drvinfo`: what is behind the driver's name is of no interest here.
#[repr(C)]
struct DriverInfo {
    cmd: u32,
    driver: [u8; 32],
    rest: [u32; 40],
}

/// `struct ethtool_sset_info`, with room for one number.
#[repr(C)]
struct SetInfo {
    cmd: u32,
    reserved: u32,
    mask: u64,
    data: [u32; 1],
}

/// `struct ethtool_gstrings`.
#[repr(C)]
struct Strings {
    cmd: u32,
    set: u32,
    len: u32,
    data: [u8; FEATURES * ETH_GSTRING_LEN],
}

/// `struct ethtool_gfeatures`; of 32 features each: available, requested, active, never changed.
#[repr(C)]
struct Features {
    cmd: u32,
    size: u32,
    blocks: [[u32; 4]; FEATURES / 32],
}

/// Gives a command of ethtool(8) to the kernel.
///
/// # Safety
/// What is pointed to begins with a command, and is the structure that this command reads and writes, with room for as many elements as
/// it says.
unsafe fn ethtool(socket: BorrowedFd<'_>, iface: &str, about: *mut c_void) -> Option<()> {
    let mut request = named(iface);
    request.ifr_ifru.ifru_data = about.cast();
    // SAFETY: the caller answers for what is pointed to.
    unsafe { ask(socket, libc::SIOCETHTOOL, &mut request) }.ok()
}

/// Whether a feature of a network interface of this host is active, by its name in ethtool(8) (`rx-gro`); `None`: there is no such
/// interface, or it does not say.
pub fn interface_feature(iface: &str, feature: &str) -> Option<bool> {
    let socket = std::net::UdpSocket::bind((core::net::Ipv4Addr::UNSPECIFIED, 0)).ok()?;
    has_feature(socket.as_fd(), iface, feature)
}

/// The name of an interface's driver; `None`: it does not say.
pub(super) fn driver(socket: BorrowedFd<'_>, iface: &str) -> Option<String> {
    let mut info = DriverInfo { cmd: ETHTOOL_GDRVINFO, driver: [0; 32], rest: [0; 40] };
    // SAFETY: a structure of this command.
    unsafe { ethtool(socket, iface, (&raw mut info).cast()) }?;
    CStr::from_bytes_until_nul(&info.driver).ok()?.to_str().ok().map(str::to_owned)
}

/// As [`interface_feature`], through a socket.
pub(super) fn has_feature(socket: BorrowedFd<'_>, iface: &str, feature: &str) -> Option<bool> {
    let mut info = SetInfo { cmd: ETHTOOL_GSSET_INFO, reserved: 0, mask: 1 << ETH_SS_FEATURES, data: [0] };
    // SAFETY: a structure of this command, with room for the one number that it asks for.
    unsafe { ethtool(socket, iface, (&raw mut info).cast()) }?;
    let count = info.data[0] as usize;
    if info.mask == 0 || count > FEATURES {
        return None;
    }
    let mut strings = Box::new(Strings {
        cmd: ETHTOOL_GSTRINGS,
        set: ETH_SS_FEATURES,
        len: count as u32,
        data: [0; FEATURES * ETH_GSTRING_LEN],
    });
    // SAFETY: a structure of this command, with room for more names than it asks for.
    unsafe { ethtool(socket, iface, (&raw mut *strings).cast()) }?;
    let (names, _) = strings.data.as_chunks::<ETH_GSTRING_LEN>();
    let is_it = |name: &[u8; ETH_GSTRING_LEN]| {
        CStr::from_bytes_until_nul(name).is_ok_and(|name| name.to_bytes() == feature.as_bytes())
    };
    let at = names[..count].iter().position(is_it)?;
    let size = count.div_ceil(32) as u32;
    let mut features = Features { cmd: ETHTOOL_GFEATURES, size, blocks: [[0; 4]; FEATURES / 32] };
    // SAFETY: a structure of this command, with room for more blocks than it asks for.
    unsafe { ethtool(socket, iface, (&raw mut features).cast()) }?;
    Some(features.blocks[at / 32][2] >> (at % 32) & 1 != 0)
}
