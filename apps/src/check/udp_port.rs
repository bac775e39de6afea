//! Checks UDP port 4791: which process has it, and whether datagrams that this host sends to it arrive.

use super::finding::{Finding, Verdict, read};
use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket};
use std::path::Path;
use std::time::{Duration, Instant};
use verbs::port::HostAddress;

pub(super) const PORT: u16 = 4791;
/// How long a datagram to an address of this host may take to arrive.
const PATIENCE: Duration = Duration::from_millis(300);

/// A socket bound to the port, unless another process has the port; and the finding about the process that has it.
pub(super) fn check(root: &Path) -> (Option<UdpSocket>, Finding) {
    const TOPIC: &str = "UDP port 4791";
    // A host without IPv6 has no IPv6 sockets.
    let socket = UdpSocket::bind((Ipv6Addr::UNSPECIFIED, PORT)).or_else(|error| match error.kind() {
        ErrorKind::AddrInUse => Err(error),
        _ => UdpSocket::bind((Ipv4Addr::UNSPECIFIED, PORT)),
    });
    let finding = match &socket {
        Ok(_) => Finding::ok(TOPIC, "free"),
        Err(error) if error.kind() == ErrorKind::AddrInUse => {
            let holders = holders(root);
            if holders.is_empty() && root.join("sys/module/rdma_rxe").exists() {
                Finding::new(TOPIC, Verdict::Broken, "the kernel's soft-RoCE has it")
                    .advice("rdma link delete NAME for each device that rdma link shows, then rmmod rdma_rxe")
            } else {
                let who: Vec<_> = holders.iter().map(Holder::name).collect();
                let who = if who.is_empty() { "another program".into() } else { who.join(" and ") };
                Finding::new(TOPIC, Verdict::Broken, format!("{who} has it")).advice(
                    "end it (ss -lunp names it), or give each program an address of its own: --port udp:ADDR",
                )
            }
        }
        Err(error) => Finding::new(TOPIC, Verdict::Broken, format!("a socket cannot be had: {error}")),
    };
    (socket.ok(), finding)
}

/// Sends a datagram from each address to the port at the same address, through the firewall of this host.
pub(super) fn check_loop(socket: Option<&UdpSocket>, addrs: &[HostAddress]) -> Finding {
    const TOPIC: &str = "firewall";
    let Some(socket) = socket else {
        let what = "not tried, as another program has the port";
        return Finding::new(TOPIC, Verdict::Unknown, what);
    };
    let usable = addrs.iter().filter(|of| of.up && !is_link_local(of.addr)).map(|of| of.addr);
    let lost: Vec<_> = usable.filter(|addr| !arrives(socket, *addr)).map(|addr| addr.to_string()).collect();
    if lost.is_empty() {
        Finding::ok(
            TOPIC,
            "what this host sends to its own port arrives (the way to another host: --check HOST)",
        )
    } else {
        Finding::new(TOPIC, Verdict::Broken, format!("what is sent to {} does not arrive", lost.join(", "))).advice(
            "a firewall of this host drops it: accept UDP port 4791, for example nft add rule inet filter input udp dport 4791 accept",
        )
    }
}

/// Whether the address is link-local: such an address needs an interface index, and its check shows nothing new.
fn is_link_local(addr: IpAddr) -> bool {
    match addr {
        IpAddr::V4(addr) => addr.is_link_local(),
        IpAddr::V6(addr) => addr.is_unicast_link_local(),
    }
}

/// Whether a datagram from an address to the port at the same address arrives.
fn arrives(socket: &UdpSocket, addr: IpAddr) -> bool {
    let Ok(sender) = UdpSocket::bind((addr, 0)) else { return true }; // the address was just removed
    let Ok(from) = sender.local_addr() else { return true };
    if sender.send_to(b"roce-check", (addr, PORT)).is_err() {
        return false;
    }
    let end = Instant::now() + PATIENCE;
    let mut room = [0; 64];
    while let Some(left) = end.checked_duration_since(Instant::now()).filter(|left| !left.is_zero()) {
        let _ = socket.set_read_timeout(Some(left));
        match socket.recv_from(&mut room) {
            Ok((_, peer)) if peer.port() == from.port() => return true,
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(_) => return false,
        }
    }
    false
}

/// The owner of a socket on the port.
#[derive(Debug, PartialEq, Eq)]
struct Holder {
    user: u32,
    /// Number and name of the process, where this user may see them.
    process: Option<(u32, String)>,
}

impl Holder {
    fn name(&self) -> String {
        match &self.process {
            Some((pid, name)) => format!("{name} (process {pid})"),
            None => format!("a program of user {}", self.user),
        }
    }
}

fn holders(root: &Path) -> Vec<Holder> {
    let local = format!(":{PORT:04X}");
    let mut found = Vec::new();
    for list in ["proc/net/udp", "proc/net/udp6"] {
        for line in read(root, list).lines() {
            // sl local_address rem_address st tx:rx tr:when retrnsmt uid timeout inode ...
            let fields: Vec<_> = line.split_whitespace().collect();
            let [_, at, _, _, _, _, _, user, _, inode, ..] = fields[..] else { continue };
            if let (true, Ok(user)) = (at.ends_with(&local), user.parse()) {
                found.push(Holder { user, process: owner(root, inode) });
            }
        }
    }
    found.dedup();
    found
}

/// The process that has the socket with this inode.
fn owner(root: &Path, inode: &str) -> Option<(u32, String)> {
    let wanted = format!("socket:[{inode}]");
    let processes = std::fs::read_dir(root.join("proc")).ok()?.flatten();
    for process in processes {
        let Some(pid) = process.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        let Ok(descriptors) = std::fs::read_dir(process.path().join("fd")) else { continue };
        let has = descriptors
            .flatten()
            .any(|fd| std::fs::read_link(fd.path()).is_ok_and(|to| to.as_os_str() == wanted.as_str()));
        if has {
            return Some((pid, read(root, &format!("proc/{pid}/comm")).trim().to_owned()));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_has_the_port_is_read_from_the_kernels_lists() {
        let root = std::env::temp_dir().join(format!("roce-check-{}", std::process::id()));
        let write = |path: &str, text: &str| {
            let path = root.join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        let head = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode ref pointer drops\n";
        let line = |at: &str, user: u32, inode: u32| {
            format!(
                "  1: {at} 00000000:0000 07 00000000:00000000 00:00000000 00000000  {user}        0 {inode} 2 0 0\n"
            )
        };
        write(
            "proc/net/udp",
            &format!("{head}{}{}", line("0100007F:0035", 0, 1), line("00000000:12B7", 7, 2)),
        );
        write("proc/net/udp6", &format!("{head}{}", line("00000000000000000000000000000000:12B7", 1000, 3)));
        write("proc/42/comm", "roce-nvmf\n");
        std::fs::create_dir_all(root.join("proc/42/fd")).unwrap();
        std::os::unix::fs::symlink("socket:[3]", root.join("proc/42/fd/5")).unwrap();
        let names: Vec<_> = holders(&root).iter().map(Holder::name).collect();
        std::fs::remove_dir_all(&root).unwrap();
        assert_eq!(names, ["a program of user 7", "roce-nvmf (process 42)"]);
    }
}
