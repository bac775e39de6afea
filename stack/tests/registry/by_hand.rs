//! Sockets and requests as a member makes them, made by hand.

use crate::member::wait_for;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use stack::registry::RegistryConfig;
use std::os::fd::OwnedFd;

/// The text of a name: as every version has it.
pub fn name(config: &RegistryConfig, rest: &str) -> SocketAddrUnix {
    let uid = rustix::process::geteuid().as_raw();
    SocketAddrUnix::new_abstract_name(format!("{}/{uid}/{rest}", config.space).as_bytes()).unwrap()
}

pub fn socket() -> OwnedFd {
    rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None).unwrap()
}

pub fn connect(to: &SocketAddrUnix) -> OwnedFd {
    let socket = socket();
    rustix::net::connect(&socket, to).unwrap();
    socket
}

/// A socket that listens, of whoever calls.
pub fn listen(at: &SocketAddrUnix) -> OwnedFd {
    let socket = socket();
    // A process that another test starts has all of our descriptors for a moment.
    wait_for(|| rustix::net::bind(&socket, at).is_ok());
    rustix::net::listen(&socket, 100).unwrap();
    socket
}

/// A request to join, of a release with this version.
pub fn join_request(version: u32) -> Vec<u8> {
    [&b"ROCEJOIN"[..], &1u32.to_ne_bytes(), &version.to_ne_bytes()].concat()
}
