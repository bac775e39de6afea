//! Sizes of socket buffers: as large as the system permits, within a share of the memory for all UDP sockets of the host.

use std::io::Error;
use std::os::fd::BorrowedFd;

use super::sys;

/// Requested size of a socket buffer in bytes, unless the port's options say otherwise.
const BUFFER: u64 = 4 << 20;
/// The least size that is requested: room for some messages of the longest kind.
const LEAST: u64 = 256 << 10;
/// A receive buffer with less memory makes large messages slow; a warning says so.
const SMALL: usize = 1 << 20;
/// The sockets of a port take at most one part in this many of the memory with which the kernel begins to save memory for UDP (the second
/// value of `udp_mem`, udp(7)). Beyond that the kernel drops datagrams even if a socket's own buffer has room.
const SHARE: u64 = 8;

/// Default size in bytes of each buffer of a port with this many sockets.
pub(super) fn default_size(sockets: usize) -> u32 {
    // Only the initial network namespace has this file.
    let list = std::fs::read_to_string("/proc/sys/net/ipv4/udp_mem").unwrap_or_default();
    size(&list, rustix::param::page_size() as u64, sockets as u64) as u32
}

/// Same as [`default_size`], from the contents of `udp_mem`: three numbers of pages.
fn size(udp_mem: &str, page: u64, sockets: u64) -> u64 {
    let pressure: Option<u64> = udp_mem.split_whitespace().nth(1).and_then(|pages| pages.parse().ok());
    // A buffer of n bytes takes up to 2 n bytes of memory (socket(7)).
    let most = pressure.map_or(u64::MAX, |pages| pages.saturating_mul(page) / SHARE / 2 / sockets.max(1));
    BUFFER.min(most).max(LEAST)
}

/// Sets the size of a socket's send buffer in bytes, or to the system's limit if that is less.
pub(super) fn set_sending(socket: BorrowedFd<'_>, bytes: u32) -> Result<(), Error> {
    set(socket, [libc::SO_SNDBUFFORCE, libc::SO_SNDBUF], bytes)
}

/// Sets the size of a socket's receive buffer in bytes, or to the system's limit if that is less. Returns how much memory it may take.
pub(super) fn set_receiving(socket: BorrowedFd<'_>, bytes: u32) -> Result<usize, Error> {
    set(socket, [libc::SO_RCVBUFFORCE, libc::SO_RCVBUF], bytes)?;
    Ok(sys::get(socket, libc::SOL_SOCKET, libc::SO_RCVBUF)?.max(0) as usize)
}

/// Sets a size, beyond the system's limit if the process has the privilege (CAP_NET_ADMIN), else up to the limit.
fn set(socket: BorrowedFd<'_>, [force, within]: [i32; 2], bytes: u32) -> Result<(), Error> {
    let bytes = i32::try_from(bytes).unwrap_or(i32::MAX);
    sys::set(socket, libc::SOL_SOCKET, force, bytes)
        .or_else(|_| sys::set(socket, libc::SOL_SOCKET, within, bytes))
}

/// Warns if the system permits sockets much less than was requested. `memory` is what a receive buffer may take.
pub(super) fn warn_if_small(port: &str, asked: u32, memory: usize) {
    if memory < SMALL && (memory as u64) < 2 * u64::from(asked) {
        tracing::warn!(
            "port {port}: the system lets a socket hold {} KiB, so large messages are slow: sysctl -w net.core.rmem_max={BUFFER}",
            memory / 2048
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // Goal: a port with many sockets, or on a small host, leaves memory for UDP to others as well.
    #[test]
    fn the_sockets_of_a_port_have_a_share_of_the_hosts_memory() {
        let large = "575799\t767732\t1151598\n";
        assert_eq!(size(large, 4096, 1), BUFFER);
        assert_eq!(size(large, 4096, 100), 767_732 * 4096 / 1600);
        // 512 MiB of memory.
        let small = "12000 16000 24000";
        assert_eq!([1, 2, 64].map(|n| size(small, 4096, n)), [4_096_000, 2_048_000, LEAST]);
        // What cannot be read limits nothing.
        assert_eq!(["", "1", "1 x 3"].map(|list| size(list, 4096, 100)), [BUFFER; 3]);
        assert_eq!(size("0 0 0", 4096, 1), LEAST);
        assert_eq!(size("1 18446744073709551615 3", 65_536, 1), BUFFER);
    }
}
