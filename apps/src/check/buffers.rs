//! Checks how many bytes the kernel lets one UDP socket buffer, and all UDP sockets of the host together.

use super::finding::{Finding, Verdict, bytes, read};
use rustix::net::sockopt;
use std::net::UdpSocket;
use std::path::Path;

/// Topic of the finding about the buffers of one socket.
const SOCKET: &str = "socket buffers";
/// Bytes that a `udp` port requests for each buffer of a socket.
const WANTED: u64 = 4 << 20;
/// Bytes that all UDP sockets of a host should be able to buffer: enough for several ports.
const ALL: u64 = 16 * WANTED;

pub(super) fn check(root: &Path) -> [Finding; 2] {
    let socket = match granted() {
        Ok(granted) => socket(granted),
        Err(error) => Finding::new(SOCKET, Verdict::Unknown, error.to_string()),
    };
    [socket, host(&read(root, "proc/sys/net/ipv4/udp_mem"), &read(root, "proc/net/sockstat"))]
}

/// Bytes of receive buffer and of send buffer that the kernel grants to a socket that requests what a port requests.
fn granted() -> std::io::Result<[u64; 2]> {
    let socket = UdpSocket::bind(("127.0.0.1", 0))?;
    // As a port does: beyond the system's limit where this process has the privilege.
    let wanted = WANTED as usize;
    sockopt::set_socket_recv_buffer_size_force(&socket, wanted)
        .or_else(|_| sockopt::set_socket_recv_buffer_size(&socket, wanted))?;
    sockopt::set_socket_send_buffer_size_force(&socket, wanted)
        .or_else(|_| sockopt::set_socket_send_buffer_size(&socket, wanted))?;
    // The kernel reports twice what it grants (socket(7)).
    let receive = sockopt::socket_recv_buffer_size(&socket)? / 2;
    Ok([receive as u64, sockopt::socket_send_buffer_size(&socket)? as u64 / 2])
}

fn socket(granted: [u64; 2]) -> Finding {
    let what = format!("{} to receive, {} to send", bytes(granted[0]), bytes(granted[1]));
    let short: Vec<_> = ["net.core.rmem_max", "net.core.wmem_max"]
        .into_iter()
        .zip(granted)
        .filter(|(_, granted)| *granted < WANTED)
        .map(|(setting, _)| format!("{setting}={WANTED}"))
        .collect();
    if short.is_empty() {
        return Finding::ok(SOCKET, what);
    }
    let what =
        format!("{what}; a port asks for {}, and loses packets when its program does not run", bytes(WANTED));
    Finding::new(SOCKET, Verdict::Note, what).advice(format!("sysctl -w {}", short.join(" ")))
}

/// Checks the memory of all UDP sockets. `limits` and `used` are the kernel's figures, in pages.
fn host(limits: &str, used: &str) -> Finding {
    const TOPIC: &str = "UDP memory";
    let page = rustix::param::page_size() as u64;
    let Some(most) = limits.split_whitespace().nth(2).and_then(|pages| pages.parse::<u64>().ok()) else {
        return Finding::new(
            TOPIC,
            Verdict::Unknown,
            "only the host's own network namespace says (net.ipv4.udp_mem)",
        );
    };
    let used =
        used.lines().find_map(|line| line.strip_prefix("UDP:")?.split_once("mem ")?.1.trim().parse().ok());
    let (most, used) = (most.saturating_mul(page), used.unwrap_or(0) * page);
    let what =
        format!("{} in use of {} that all UDP sockets of this host may hold", bytes(used), bytes(most));
    if most.saturating_sub(used) >= ALL {
        return Finding::ok(TOPIC, what);
    }
    let pages = (ALL / page + used / page).next_power_of_two();
    Finding::new(TOPIC, Verdict::Note, format!("{what}; beyond it packets are lost though sockets have room"))
        .advice(format!("sysctl -w net.ipv4.udp_mem='{} {} {pages}'", pages / 2, pages * 3 / 4))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_buffers_are_named_with_the_setting() {
        assert_eq!(socket([WANTED, WANTED]).verdict, Verdict::Ok);
        let small = socket([212_992, WANTED]);
        assert_eq!(small.verdict, Verdict::Note);
        assert_eq!(small.advice, "sysctl -w net.core.rmem_max=4194304");
        assert!(small.what.starts_with("208 KiB to receive, 4 MiB to send"), "{}", small.what);
    }

    #[test]
    fn the_hosts_memory_is_in_pages() {
        let page = rustix::param::page_size() as u64;
        let limits = format!("1 2 {}", (1 << 30) / page);
        let used = "sockets: used 5\nUDP: inuse 3 mem 16\nUDPLITE: inuse 0\n";
        let plenty = host(&limits, used);
        assert_eq!(plenty.verdict, Verdict::Ok, "{}", plenty.what);
        assert!(plenty.what.starts_with(&bytes(16 * page)), "{}", plenty.what);
        assert_eq!(host("1 2 100", used).verdict, Verdict::Note);
        assert_eq!(host("", used).verdict, Verdict::Unknown);
    }
}
