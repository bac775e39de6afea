//! System calls of a UDP socket that our libraries do not wrap: bursts of datagrams with their control messages, errors that came back by
//! ICMP, and the addresses of the host.
//!
//! Addresses and control messages are laid out and read as bytes, in safe code. Only the calls themselves are `unsafe`; each gets pointers
//! to memory that is borrowed until it returns.
//!
//! Calls of the hot path go through syscall(2): the functions of libc are cancellation points (pthreads(7)), and a thread of a C
//! program that is cancelled while it polls cannot be unwound from here.

#![allow(unsafe_code)]

use super::control::{Control, Name};
use crate::config::TX_BURST;
use arrayvec::ArrayVec;
use core::ffi::{c_int, c_long};
use core::mem::{MaybeUninit, zeroed};
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use core::ops::Range;
use core::ptr;
use std::ffi::CStr;
use std::io::{Error, IoSlice, Result};
use std::os::fd::{AsRawFd, BorrowedFd};

/// The most messages that one call receives.
pub(super) const RECEIVES: usize = 8;
/// Bytes of the longest message: a whole buffer of datagrams that the kernel coalesced.
pub(super) const MESSAGE: usize = 1 << 16;
/// Bytes before a message, for headers.
pub(super) const FRONT: usize = 64;
/// Bytes of the buffer for one message.
pub(super) const BUFFER: usize = FRONT + MESSAGE;

/// Sets an option of a socket to a number.
pub(super) fn set(socket: BorrowedFd<'_>, level: c_int, option: c_int, value: c_int) -> Result<()> {
    let (value, len) = ((&raw const value).cast(), size_of::<c_int>() as libc::socklen_t);
    // SAFETY: the value is a number of this size, which lives until the call returns.
    check(unsafe { libc::setsockopt(socket.as_raw_fd(), level, option, value, len) })
}

/// Reads an option of a socket that is a number.
pub(super) fn get(socket: BorrowedFd<'_>, level: c_int, option: c_int) -> Result<c_int> {
    let (mut value, mut len): (c_int, _) = (0, size_of::<c_int>() as libc::socklen_t);
    let at = (&raw mut value).cast();
    // SAFETY: there is room for a number of this size, and for its length, until the call returns.
    check(unsafe { libc::getsockopt(socket.as_raw_fd(), level, option, at, &raw mut len) })?;
    Ok(value)
}

/// Binds a socket to an address.
pub(super) fn bind(socket: BorrowedFd<'_>, name: &Name) -> Result<()> {
    let (at, len) = (name.bytes().as_ptr().cast(), name.bytes().len() as libc::socklen_t);
    // SAFETY: `at` points to `len` bytes.
    check(unsafe { libc::bind(socket.as_raw_fd(), at, len) })
}

/// Attaches a classic BPF program to a group of sockets on one UDP port (SO_REUSEPORT). It sees a datagram's payload and returns the index
/// of the socket that receives it, in the order in which they were bound. `socket` may be any socket of the group.
pub(super) fn steer(socket: BorrowedFd<'_>, program: &mut [libc::sock_filter]) -> Result<()> {
    attach(socket, libc::SO_ATTACH_REUSEPORT_CBPF, program)
}

/// Makes a socket drop every datagram that arrives (a classic BPF program: return 0).
pub(super) fn drop_all(socket: BorrowedFd<'_>) -> Result<()> {
    let drop = libc::sock_filter { code: (libc::BPF_RET | libc::BPF_K) as u16, jt: 0, jf: 0, k: 0 };
    attach(socket, libc::SO_ATTACH_FILTER, &mut [drop])
}

/// Attaches a classic BPF program to a socket.
fn attach(socket: BorrowedFd<'_>, option: c_int, program: &mut [libc::sock_filter]) -> Result<()> {
    let len = u16::try_from(program.len()).map_err(|_| Error::from(std::io::ErrorKind::InvalidInput))?;
    let program = libc::sock_fprog { len, filter: program.as_mut_ptr() };
    let (at, size) = ((&raw const program).cast(), size_of_val(&program) as libc::socklen_t);
    // SAFETY: the program and its instructions live until the call returns; the kernel copies them, and checks them.
    check(unsafe { libc::setsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, option, at, size) })
}

fn check(result: impl Into<c_long>) -> Result<()> {
    if result.into() < 0 { Err(Error::last_os_error()) } else { Ok(()) }
}

/// A message to send: one datagram, or several that the kernel segments.
pub(super) struct Message {
    /// The destination.
    pub to: Name,
    /// Its control messages.
    pub control: Control,
    /// Which of the parts are its bytes.
    pub parts: Range<usize>,
}

/// Sends messages, in order. Returns how many the kernel accepted.
///
/// # Errors
/// The error of the first message; nothing was sent then.
pub(super) fn send(socket: BorrowedFd<'_>, messages: &[Message], parts: &[IoSlice<'_>]) -> Result<usize> {
    let mut headers = ArrayVec::<libc::mmsghdr, TX_BURST>::new();
    for message in messages.iter().take(TX_BURST) {
        let parts = &parts[message.parts.clone()];
        // SAFETY: a structure of numbers and pointers, for which zeros are a value.
        let mut header: libc::mmsghdr = unsafe { zeroed() };
        let (name, control) = (message.to.bytes(), message.control.bytes());
        header.msg_hdr.msg_name = name.as_ptr().cast_mut().cast();
        header.msg_hdr.msg_namelen = name.len() as libc::socklen_t;
        // An `IoSlice` is an iovec (its documentation).
        header.msg_hdr.msg_iov = parts.as_ptr().cast_mut().cast();
        header.msg_hdr.msg_iovlen = parts.len() as _;
        header.msg_hdr.msg_control = control.as_ptr().cast_mut().cast();
        header.msg_hdr.msg_controllen = control.len() as _;
        headers.push(header);
    }
    let (fd, count) = (socket.as_raw_fd(), headers.len() as u32);
    // SAFETY: each header points to a name, a control buffer and parts, which are borrowed until the call returns; the kernel
    // only reads them.
    let sent =
        unsafe { libc::syscall(libc::SYS_sendmmsg, fd, headers.as_mut_ptr(), count, libc::MSG_DONTWAIT) };
    check(sent)?;
    Ok(sent as usize)
}

/// A received message, without its bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Received {
    /// The sender's address.
    pub from: Name,
    /// Its control messages.
    pub control: Control,
    /// Its length in bytes.
    pub len: usize,
    /// Whether neither the message nor its control messages are cut off.
    pub whole: bool,
}

impl Received {
    /// An empty message.
    pub fn nothing() -> Self {
        Self { from: Name::empty(), control: Control::empty(), len: 0, whole: false }
    }
}

/// Receives messages, each into [`BUFFER`] bytes of `buffers`, after the first [`FRONT`] of them. Describes them in the first elements of
/// `out`. Returns how many it received.
///
/// # Errors
/// When nothing was received. The kernel also reports the error of an earlier send here.
pub(super) fn receive(
    socket: BorrowedFd<'_>,
    buffers: &mut [u8],
    out: &mut [Received; RECEIVES],
) -> Result<usize> {
    let mut vectors = [MaybeUninit::<libc::iovec>::uninit(); RECEIVES];
    let mut headers = ArrayVec::<libc::mmsghdr, RECEIVES>::new();
    for ((received, vector), buffer) in out.iter_mut().zip(&mut vectors).zip(buffers.chunks_exact_mut(BUFFER))
    {
        let buffer = &mut buffer[FRONT..];
        vector.write(libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() });
        // SAFETY: as in `send`.
        let mut header: libc::mmsghdr = unsafe { zeroed() };
        let (name, control) = (received.from.space(), received.control.space());
        header.msg_hdr.msg_name = name.as_mut_ptr().cast();
        header.msg_hdr.msg_namelen = name.len() as libc::socklen_t;
        header.msg_hdr.msg_iov = vector.as_mut_ptr();
        header.msg_hdr.msg_iovlen = 1;
        header.msg_hdr.msg_control = control.as_mut_ptr().cast();
        header.msg_hdr.msg_controllen = control.len() as _;
        headers.push(header);
    }
    let (fd, count) = (socket.as_raw_fd(), headers.len() as u32);
    // SAFETY: each header points to a vector that was written, to a buffer, and to room for a name and for control messages, with
    // their lengths; all of them are borrowed for writing until the call returns.
    let got = unsafe {
        let no_timeout = ptr::null_mut::<libc::timespec>();
        libc::syscall(libc::SYS_recvmmsg, fd, headers.as_mut_ptr(), count, libc::MSG_DONTWAIT, no_timeout)
    };
    check(got)?;
    let got = (got as usize).min(headers.len());
    for (received, header) in out.iter_mut().zip(&headers[..got]) {
        let cut = libc::MSG_TRUNC | libc::MSG_CTRUNC;
        received.len = (header.msg_len as usize).min(MESSAGE);
        received.whole = header.msg_hdr.msg_flags & cut == 0;
        received.from.set_len(header.msg_hdr.msg_namelen as usize);
        received.control.set_len(header.msg_hdr.msg_controllen);
    }
    Ok(got)
}

/// Takes an error from a socket's error queue: the destination of the datagram that it is about, and the error's control messages. `None`
/// if the queue is empty.
pub(super) fn take_error(socket: BorrowedFd<'_>) -> Option<(Name, Control)> {
    let (mut name, mut control) = (Name::empty(), Control::empty());
    // SAFETY: as in `send`.
    let mut header: libc::msghdr = unsafe { zeroed() };
    header.msg_name = name.space().as_mut_ptr().cast();
    header.msg_namelen = name.space().len() as libc::socklen_t;
    header.msg_control = control.space().as_mut_ptr().cast();
    header.msg_controllen = control.space().len() as _;
    let flags = libc::MSG_ERRQUEUE | libc::MSG_DONTWAIT;
    // SAFETY: the header points to room for a name and for control messages, with their lengths, and to no other buffer.
    if unsafe { libc::syscall(libc::SYS_recvmsg, socket.as_raw_fd(), &raw mut header, flags) } < 0 {
        return None;
    }
    name.set_len(header.msg_namelen as usize);
    control.set_len(header.msg_controllen as usize);
    Some((name, control))
}

/// An address of an interface of the host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Local {
    /// The address.
    pub addr: IpAddr,
    /// The interface's name.
    pub iface: String,
    /// The interface's index.
    pub index: u32,
    /// Whether the interface is up and has a carrier.
    pub up: bool,
    /// Whether the interface is the loopback interface.
    pub loopback: bool,
}

/// An interface of the host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Interface {
    /// Its name.
    pub name: String,
    /// Its index.
    pub index: u32,
    /// Whether what is sent by it may reach another host: it is neither a loopback interface nor one that only holds addresses (dummy,
    /// VRF).
    pub leads_out: bool,
}

/// The addresses of the host's interfaces.
///
/// # Errors
/// Those of getifaddrs(3).
pub(super) fn addresses() -> Result<Vec<Local>> {
    Ok(interfaces()?.0)
}

/// The addresses of the host's interfaces, and the interfaces.
///
/// # Errors
/// Those of getifaddrs(3).
pub(super) fn interfaces() -> Result<(Vec<Local>, Vec<Interface>)> {
    let mut list = ptr::null_mut();
    // SAFETY: there is room for a pointer.
    check(unsafe { libc::getifaddrs(&raw mut list) })?;
    let (mut found, mut all, mut next) = (Vec::new(), Vec::new(), list);
    // SAFETY: the elements of the list stay until it is freed below, and each pointer in one is null or valid.
    while let Some(entry) = unsafe { next.as_ref() } {
        next = entry.ifa_next;
        // SAFETY: as above; the name is terminated.
        let (name, index) = unsafe { (CStr::from_ptr(entry.ifa_name), libc::if_nametoindex(entry.ifa_name)) };
        let is = |flag: c_int| entry.ifa_flags & flag as u32 != 0;
        // SAFETY: as above; the kind of a socket address says how long it is.
        let addr = unsafe {
            match entry.ifa_addr.as_ref().map(|addr| c_int::from(addr.sa_family)) {
                Some(libc::AF_INET) => {
                    let addr = entry.ifa_addr.cast::<libc::sockaddr_in>().read_unaligned();
                    IpAddr::V4(Ipv4Addr::from_bits(u32::from_be(addr.sin_addr.s_addr)))
                }
                Some(libc::AF_INET6) => {
                    let addr = entry.ifa_addr.cast::<libc::sockaddr_in6>().read_unaligned();
                    IpAddr::V6(Ipv6Addr::from(addr.sin6_addr.s6_addr))
                }
                // Each interface has an entry of its own.
                Some(libc::AF_PACKET) => {
                    let holds = is(libc::IFF_NOARP) && !is(libc::IFF_POINTOPOINT);
                    let leads_out = !is(libc::IFF_LOOPBACK) && !holds;
                    let name = name.to_string_lossy().into_owned();
                    all.push(Interface { name, index, leads_out });
                    continue;
                }
                _ => continue,
            }
        };
        found.push(Local {
            addr,
            // An address may have a label, which is not an interface (`eth0:1`).
            iface: name.to_string_lossy().split(':').next().unwrap_or_default().to_owned(),
            index,
            up: is(libc::IFF_UP) && is(libc::IFF_RUNNING),
            loopback: is(libc::IFF_LOOPBACK),
        });
    }
    // SAFETY: the list came from getifaddrs, and nothing refers to it any more.
    unsafe { libc::freeifaddrs(list) };
    Ok((found, all))
}
