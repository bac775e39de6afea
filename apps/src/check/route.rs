//! Checks the route to another host.

use super::finding::{Finding, Verdict};
use super::udp_port::PORT;
use crate::error::{AppError, Result};
use rustix::net::sockopt;
use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, ToSocketAddrs, UdpSocket};
use std::time::Duration;
use verbs::Mtu;

/// How long an ICMP refusal may take to arrive.
const PATIENCE: Duration = Duration::from_millis(500);

/// The first address that the name of a host resolves to.
pub(super) fn resolve(host: &str) -> Result<IpAddr> {
    let addrs = (host, PORT).to_socket_addrs();
    let mut addrs = addrs.map_err(|error| AppError::Usage(format!("host {host:?}: {error}")))?;
    addrs.next().map(|addr| addr.ip()).ok_or_else(|| AppError::Usage(format!("host {host:?} has no address")))
}

pub(super) fn check(name: &str, peer: IpAddr) -> Vec<Finding> {
    const TOPIC: &str = "route";
    let any: IpAddr = match peer {
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let name = if name.parse() == Ok(peer) { name.to_owned() } else { format!("{name} ({peer})") };
    let connected =
        UdpSocket::bind((any, 0)).and_then(|socket| socket.connect((peer, PORT)).map(|()| socket));
    let socket = match connected {
        Ok(socket) => socket,
        Err(error) => {
            return vec![
                Finding::new(TOPIC, Verdict::Broken, format!("{name} cannot be reached: {error}"))
                    .advice(format!("ip route get {peer} says what the kernel would do")),
            ];
        }
    };
    let source = socket.local_addr().map_or_else(|_| "?".into(), |addr| addr.ip().to_string());
    let mtu = if peer.is_ipv4() { sockopt::ip_mtu(&socket) } else { sockopt::ipv6_mtu(&socket) };
    let mtu = mtu.map_or(0, |mtu| mtu as usize);
    let way = match Mtu::of_link(mtu) {
        Some(path) => {
            Finding::ok(TOPIC, format!("{name} from {source}, MTU {mtu}: path MTU {}", path.bytes()))
        }
        None => {
            Finding::new(TOPIC, Verdict::Broken, format!("{name} from {source}, MTU {mtu}: no path MTU fits"))
        }
    };
    vec![way, answer(&name, &socket)]
}

/// Whether the other host refuses a datagram to its port. A host that accepts it sends no answer, because it is no RoCE packet.
fn answer(name: &str, socket: &UdpSocket) -> Finding {
    const TOPIC: &str = "peer";
    let sent = socket.send(b"roce-check").and_then(|_| {
        socket.set_read_timeout(Some(PATIENCE))?;
        socket.recv(&mut [0; 64])
    });
    match sent.map_err(|error| error.kind()) {
        Err(ErrorKind::ConnectionRefused) => Finding::new(
            TOPIC,
            Verdict::Note,
            format!("{name} answers, and no program there has UDP port {PORT}"),
        )
        .advice("start the program there first, with --port udp: too; or its firewall rejects the port"),
        Err(ErrorKind::HostUnreachable | ErrorKind::NetworkUnreachable) => Finding::new(
            TOPIC,
            Verdict::Broken,
            format!("{name} is not there: nobody answers for its address"),
        ),
        _ => Finding::ok(
            TOPIC,
            format!("{name} does not refuse UDP port {PORT}: a program has it, or a firewall drops all"),
        )
        .advice("if no connection comes up, a firewall on the way drops UDP port 4791"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_host_is_reached_by_its_loopback_interface() {
        let peer = resolve("127.0.0.1").unwrap();
        let findings = check("127.0.0.1", peer);
        assert_eq!(findings[0].verdict, Verdict::Ok, "{findings:?}");
        assert!(findings[0].what.starts_with("127.0.0.1 from 127.0.0.1, MTU "), "{findings:?}");
        assert!(resolve("").is_err());
    }
}
