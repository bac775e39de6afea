//! The Linux network interface below a port, and whether the port can use it now: af_packet's and a tap's.
//!
//! DPDK's drivers check it when they start and report "up" from then on, and the kernel silently drops what they send while the
//! interface is down or too long for it. So the port checks it itself, and drops and counts what cannot leave.

use super::eal::errno_text;
use core::sync::atomic::{AtomicU8, AtomicUsize, Ordering};
use dpdk_sys as sys;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// An interface, by the number that Linux gave it: it stays the same when it is renamed, and a later one of the same name has
/// another.
pub(super) struct Iface {
    name: String,
    index: u32,
    /// For queries, in the network namespace of the interface.
    socket: OwnedFd,
    /// The last state, as a [`Look`].
    last: AtomicU8,
    last_mtu: AtomicUsize,
}

/// The state of an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Look {
    /// Frames pass.
    Up,
    /// It is down, or has no carrier.
    Down,
    /// It does not exist any more.
    Gone,
}

impl Iface {
    /// The interface of that name. Called on DPDK's thread, so that it is looked up in the network namespace of its driver.
    pub(super) fn find(name: &str) -> Result<Self, String> {
        let unknown = |error: String| format!("the interface {name} cannot be looked at: {error}");
        let text = std::ffi::CString::new(name).map_err(|_| unknown("there is a NUL in its name".into()))?;
        // SAFETY: a terminated name.
        let index = unsafe { libc::if_nametoindex(text.as_ptr()) };
        if index == 0 {
            return Err(unknown(std::io::Error::last_os_error().to_string()));
        }
        // SAFETY: takes nothing.
        let fd = unsafe { sys::dpdk_sys_iface_socket() };
        if fd < 0 {
            return Err(unknown(errno_text(fd)));
        }
        // SAFETY: the descriptor was just made, and nothing else owns it.
        let socket = unsafe { OwnedFd::from_raw_fd(fd) };
        let (last, last_mtu) = (AtomicU8::new(Look::Up as u8), AtomicUsize::new(usize::MAX));
        Ok(Self { name: name.into(), index, socket, last, last_mtu })
    }

    /// Whether frames pass now, and its MTU, the last known one where it is gone. A change is logged, once.
    pub(super) fn look(&self) -> (Look, usize) {
        let mut mtu = 0;
        // SAFETY: the descriptor is a socket, the number ours.
        let seen = unsafe { sys::dpdk_sys_iface_look(self.socket.as_raw_fd(), self.index, &raw mut mtu) };
        let look = match seen {
            1 => Look::Up,
            0 => Look::Down,
            _ => Look::Gone,
        };
        let name = &self.name;
        if self.last.swap(look as u8, Ordering::Relaxed) != look as u8 {
            match look {
                Look::Up => tracing::info!("{name} is up"),
                Look::Down => tracing::warn!("{name} is down or has no carrier"),
                Look::Gone => tracing::warn!(
                    "{name} was deleted, and the port stays down, also if another interface gets its name: open the port again"
                ),
            }
        }
        if look == Look::Gone {
            return (look, self.last_mtu.load(Ordering::Relaxed));
        }
        let mtu = mtu as usize;
        let before = self.last_mtu.swap(mtu, Ordering::Relaxed);
        if before != mtu && before != usize::MAX {
            tracing::info!("{name} has an MTU of {mtu} now, {before} before");
        }
        (look, mtu)
    }
}
