//! Queries and settings of Linux network interfaces through ioctl(2), as in netdevice(7) and ethtool(8), which our libraries do not
//! wrap. Each function works with any socket in the interface's network namespace.

#![allow(unsafe_code)]

#[cfg(feature = "dpdk")]
use crate::id::Mac;
use core::ffi::{CStr, c_ulong, c_void};
use core::mem::zeroed;
use std::io::{Error, Result};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

/// A request that names an interface. A name that is too long is cut off.
fn request_for(iface: &str) -> libc::ifreq {
    // SAFETY: it consists of numbers and pointers, for which all zeros are valid.
    let mut request: libc::ifreq = unsafe { zeroed() };
    let room = request.ifr_name.len() - 1;
    for (to, from) in request.ifr_name[..room].iter_mut().zip(iface.bytes()) {
        *to = from as _;
    }
    request
}

/// Issues an ioctl(2). The kernel writes its answer into `request`.
///
/// # Safety
/// If the command dereferences a pointer of `request`, that pointer is valid for everything the command reads and writes.
unsafe fn ioctl(socket: BorrowedFd<'_>, command: c_ulong, request: &mut libc::ifreq) -> Result<()> {
    // SAFETY: every command reads and writes `request`; the caller vouches for the pointer in it.
    let result = unsafe { libc::ioctl(socket.as_raw_fd(), command as _, &raw mut *request) };
    if result < 0 { Err(Error::last_os_error()) } else { Ok(()) }
}

/// MTU of the interface that `request` names: the length of its largest IP packet in bytes.
fn mtu_of(socket: BorrowedFd<'_>, request: &mut libc::ifreq) -> Result<usize> {
    // SAFETY: the command dereferences no pointer.
    unsafe { ioctl(socket, libc::SIOCGIFMTU, request) }?;
    // SAFETY: the command has written this member.
    Ok(unsafe { request.ifr_ifru.ifru_mtu }.max(0) as usize)
}

/// MTU of an interface: the length of its largest IP packet in bytes.
pub(super) fn mtu(socket: BorrowedFd<'_>, iface: &str) -> Result<usize> {
    mtu_of(socket, &mut request_for(iface))
}

/// Whether an interface is up and has a carrier, and its MTU in bytes. `index` identifies it even after it was renamed.
#[cfg(feature = "dpdk")]
pub(super) fn state(socket: BorrowedFd<'_>, index: u32) -> Result<(bool, usize)> {
    let mut request = request_for("");
    request.ifr_ifru.ifru_ifindex = index as _;
    // SAFETY: the command dereferences no pointer.
    unsafe { ioctl(socket, libc::SIOCGIFNAME, &mut request) }?;
    let mtu = mtu_of(socket, &mut request)?;
    // SAFETY: the command dereferences no pointer.
    unsafe { ioctl(socket, libc::SIOCGIFFLAGS, &mut request) }?;
    // SAFETY: the command has written this member.
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
    let mut request = request_for(iface);
    request.ifr_ifru.ifru_hwaddr = address;
    // SAFETY: the command dereferences no pointer.
    unsafe { ioctl(socket, libc::SIOCSIFHWADDR, &mut request) }
}

/// Commands and structures of `<linux/ethtool.h>`.
const ETHTOOL_GDRVINFO: u32 = 0x3;
const ETHTOOL_GSTRINGS: u32 = 0x1b;
const ETHTOOL_GSSET_INFO: u32 = 0x37;
const ETHTOOL_GFEATURES: u32 = 0x3a;
const ETH_SS_FEATURES: u32 = 4;
/// Bytes of a feature's name, with padding.
const ETH_GSTRING_LEN: usize = 32;
/// The most features of an interface that can be read.
const FEATURES: usize = 256;

/// `struct ethtool_drvinfo`. `rest` stands for the fields after the driver's name, which are not used.
#[repr(C)]
struct DriverInfo {
    cmd: u32,
    driver: [u8; 32],
    rest: [u32; 40],
}

/// `struct ethtool_sset_info`, with room for the size of one string set.
#[repr(C)]
struct SetInfo {
    cmd: u32,
    reserved: u32,
    mask: u64,
    data: [u32; 1],
}

/// `struct ethtool_gstrings`, with room for all names.
#[repr(C)]
struct Strings {
    cmd: u32,
    set: u32,
    len: u32,
    data: [u8; FEATURES * ETH_GSTRING_LEN],
}

/// `struct ethtool_gfeatures`. A block has four masks of 32 features: available, requested, active, never changed.
#[repr(C)]
struct Features {
    cmd: u32,
    size: u32,
    blocks: [[u32; 4]; FEATURES / 32],
}

/// Issues an ethtool command. `None` if it fails.
///
/// # Safety
/// `data` points to the structure of an ethtool command, which begins with the command's number and has room for as many elements as it
/// says.
unsafe fn ethtool(socket: BorrowedFd<'_>, iface: &str, data: *mut c_void) -> Option<()> {
    let mut request = request_for(iface);
    request.ifr_ifru.ifru_data = data.cast();
    // SAFETY: the caller vouches for `data`.
    unsafe { ioctl(socket, libc::SIOCETHTOOL, &mut request) }.ok()
}

/// Whether a feature of a network interface of this host is active. `feature` is its name in ethtool(8), for example `rx-gro`. `None` if
/// there is no such interface or it has no such feature.
pub fn interface_feature(iface: &str, feature: &str) -> Option<bool> {
    let socket = std::net::UdpSocket::bind((core::net::Ipv4Addr::UNSPECIFIED, 0)).ok()?;
    has_feature(socket.as_fd(), iface, feature)
}

/// The name of an interface's driver. `None` if the interface does not report one.
pub(super) fn driver(socket: BorrowedFd<'_>, iface: &str) -> Option<String> {
    let mut info = DriverInfo { cmd: ETHTOOL_GDRVINFO, driver: [0; 32], rest: [0; 40] };
    // SAFETY: `info` is the structure of this command.
    unsafe { ethtool(socket, iface, (&raw mut info).cast()) }?;
    CStr::from_bytes_until_nul(&info.driver).ok()?.to_str().ok().map(str::to_owned)
}

/// Same as [`interface_feature`], through a given socket.
pub(super) fn has_feature(socket: BorrowedFd<'_>, iface: &str, feature: &str) -> Option<bool> {
    let mut info = SetInfo { cmd: ETHTOOL_GSSET_INFO, reserved: 0, mask: 1 << ETH_SS_FEATURES, data: [0] };
    // SAFETY: `info` is the structure of this command, with room for the one size that it asks for.
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
    // SAFETY: `strings` is the structure of this command, with room for at least the names that it asks for.
    unsafe { ethtool(socket, iface, (&raw mut *strings).cast()) }?;
    let (names, _) = strings.data.as_chunks::<ETH_GSTRING_LEN>();
    let is_wanted = |name: &[u8; ETH_GSTRING_LEN]| {
        CStr::from_bytes_until_nul(name).is_ok_and(|name| name.to_bytes() == feature.as_bytes())
    };
    let at = names[..count].iter().position(is_wanted)?;
    let size = count.div_ceil(32) as u32;
    let mut features = Features { cmd: ETHTOOL_GFEATURES, size, blocks: [[0; 4]; FEATURES / 32] };
    // SAFETY: `features` is the structure of this command, with room for at least the blocks that it asks for.
    unsafe { ethtool(socket, iface, (&raw mut features).cast()) }?;
    Some(features.blocks[at / 32][2] >> (at % 32) & 1 != 0)
}
