//! The Linux network interface below an af_packet or tap port, and whether the port can use it now.
//!
//! DPDK's drivers check the interface when they start and report "up" from then on. The kernel silently drops what they send while the
//! interface is down or the frame is too long for it. So the port checks the interface itself, and drops and counts what cannot pass.

use crate::id::Mac;
use crate::port::netdevice;
use core::sync::atomic::{AtomicU8, AtomicUsize, Ordering};
use rustix::io::Errno;
use rustix::net::netdevice::name_to_index;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
use std::os::fd::{AsFd, OwnedFd};

/// An interface, by its Linux index: that stays when the interface is renamed, and a later interface of the same name has another index.
pub(super) struct Iface {
    pub(super) name: String,
    index: u32,
    /// For ioctls, in the network namespace of the interface.
    socket: OwnedFd,
    /// The last state, as an [`IfaceState`].
    last: AtomicU8,
    last_mtu: AtomicUsize,
}

/// The state of an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum IfaceState {
    /// Frames pass.
    Up,
    /// It is down, or has no carrier.
    Down,
    /// It does not exist any more.
    Gone,
}

impl Iface {
    /// Finds the interface of that name. Call it on DPDK's thread, so that it is looked up in the network namespace of its driver.
    pub(super) fn find(name: &str) -> Result<Self, String> {
        let unknown = |error: Errno| format!("the interface {name} cannot be looked at: {error}");
        let socket = socket_with(AddressFamily::INET, SocketType::DGRAM, SocketFlags::CLOEXEC, None);
        let socket = socket.map_err(unknown)?;
        let index = name_to_index(&socket, name).map_err(unknown)?;
        let (last, last_mtu) = (AtomicU8::new(IfaceState::Up as u8), AtomicUsize::new(usize::MAX));
        Ok(Self { name: name.into(), index, socket, last, last_mtu })
    }

    /// The interface's state, and its MTU in bytes; the last known MTU if the interface is gone. Logs each change once.
    pub(super) fn state(&self) -> (IfaceState, usize) {
        let found = netdevice::state(self.socket.as_fd(), self.index);
        let state = match found {
            Ok((true, _)) => IfaceState::Up,
            Ok((false, _)) => IfaceState::Down,
            Err(_) => IfaceState::Gone,
        };
        let name = &self.name;
        if self.last.swap(state as u8, Ordering::Relaxed) != state as u8 {
            match state {
                IfaceState::Up => tracing::info!("{name} is up"),
                IfaceState::Down => tracing::warn!("{name} is down or has no carrier"),
                IfaceState::Gone => tracing::warn!(
                    "{name} was deleted, and the port stays down, also if another interface gets its name: open the port again"
                ),
            }
        }
        let Ok((_, mtu)) = found else { return (state, self.last_mtu.load(Ordering::Relaxed)) };
        let before = self.last_mtu.swap(mtu, Ordering::Relaxed);
        if before != mtu && before != usize::MAX {
            tracing::info!("{name} has an MTU of {mtu} now, {before} before");
        }
        (state, mtu)
    }

    /// Sets its Ethernet address.
    pub(super) fn set_mac(&self, mac: Mac) -> std::io::Result<()> {
        netdevice::set_mac(self.socket.as_fd(), &self.name, mac)
    }
}
