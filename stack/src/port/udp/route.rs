//! By which interface the kernel sends: asks it for one route, and for all (rtnetlink(7)).

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};

use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};

use crate::wire::UDP_PORT;

/// `RTM_NEWROUTE` and `RTM_GETROUTE` of `<linux/rtnetlink.h>`.
const NEWROUTE: u16 = 24;
const GETROUTE: u16 = 26;
/// `NLMSG_ERROR` and `NLMSG_DONE`, `NLM_F_REQUEST` and `NLM_F_DUMP` of `<linux/netlink.h>`.
const ERROR: u16 = 2;
const DONE: u16 = 3;
const REQUEST: u16 = 1;
const DUMP: u16 = 0x300;
/// Kinds of attributes of a route: `RTA_DST`, `RTA_SRC`, `RTA_OIF`, `RTA_METRICS`, `RTA_MULTIPATH`.
const DST: u16 = 1;
const SRC: u16 = 2;
const OIF: u16 = 4;
const METRICS: u16 = 8;
const MULTIPATH: u16 = 9;
/// The kind of metric that is an MTU: `RTAX_MTU`.
const MTU: u16 = 2;
/// `RTN_UNICAST`, and `RT_TABLE_LOCAL`, the table of routes that stay on the host.
const UNICAST: u8 = 1;
const LOCAL: u8 = 255;
/// A copy of a route for one destination: `RTM_F_CLONED`.
const CLONED: u32 = 0x200;
/// Bytes of `struct nlmsghdr`, `struct rtmsg`, and of an attribute's header.
const HEADER: usize = 16;
const ROUTE: usize = 12;
const ATTRIBUTE: usize = 4;
/// Bytes of `struct rtnexthop`.
const NEXTHOP: usize = 8;
/// Bytes that are requested at a time, and the most requests: about 200 000 routes. Further routes are ignored.
const ANSWER: usize = 1 << 15;
const ANSWERS: usize = 1 << 10;
/// Bytes of a request.
const LEN: usize = HEADER + ROUTE + 2 * (ATTRIBUTE + 4);

/// Makes a socket that is connected to a peer's address; `None` if there is no route. To connect sends nothing, but makes the kernel look
/// up a route.
pub(super) fn towards(peer: IpAddr) -> Option<std::net::UdpSocket> {
    let any: IpAddr = match peer {
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let socket = std::net::UdpSocket::bind((any, 0)).ok()?;
    socket.connect(SocketAddr::new(peer, UDP_PORT)).ok()?;
    Some(socket)
}

/// A netlink socket on which routes are looked up.
pub(super) struct Router(OwnedFd);

impl Router {
    /// Opens the socket; `None` if the system refuses.
    pub fn open() -> Option<Self> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = rustix::net::socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, None).ok()?;
        rustix::net::bind(socket.as_fd(), &SocketAddrNetlink::new(0, 0)).ok()?;
        Some(Self(socket))
    }

    /// Index of the interface by which packets leave from `src`, an address of ours, to `dst`. `None` if there is no route.
    pub fn egress(&self, src: Ipv4Addr, dst: Ipv4Addr) -> Option<u32> {
        // Drops answers to earlier requests.
        let mut answer = [0; 1024];
        while rustix::net::recv(&self.0, &mut answer, RecvFlags::DONTWAIT).is_ok() {}
        rustix::net::send(&self.0, &request(src, dst), SendFlags::empty()).ok()?;
        // The kernel answers within the call.
        let (_, len) = rustix::net::recv(&self.0, &mut answer, RecvFlags::DONTWAIT).ok()?;
        interface(answer.get(..len)?)
    }
}

/// An interface by which a route leaves the host.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Way {
    /// The interface index.
    pub index: u32,
    /// Whether it is an IPv6 route.
    pub v6: bool,
    /// The MTU of the route, if it has one.
    pub mtu: Option<usize>,
}

/// The interfaces by which routes lead to other hosts, each once; routes to link-local addresses are left out. Empty if the kernel does not
/// tell.
pub(super) fn ways() -> Vec<Way> {
    let mut ways = Vec::new();
    for family in [libc::AF_INET, libc::AF_INET6] {
        let Some(router) = Router::open() else { continue };
        let mut ask = [0; HEADER + ROUTE];
        ask[..4].copy_from_slice(&((HEADER + ROUTE) as u32).to_ne_bytes());
        ask[4..6].copy_from_slice(&GETROUTE.to_ne_bytes());
        ask[6..8].copy_from_slice(&(REQUEST | DUMP).to_ne_bytes());
        ask[HEADER] = family as u8;
        if rustix::net::send(&router.0, &ask, SendFlags::empty()).is_err() {
            continue;
        }
        let mut answer = vec![0; ANSWER];
        for _ in 0..ANSWERS {
            // The kernel answers within the call.
            let Ok((_, len)) = rustix::net::recv(&router.0, &mut *answer, RecvFlags::DONTWAIT) else { break };
            if !each_message(&answer[..len.min(ANSWER)], |message| note_ways(message, &mut ways)) {
                break;
            }
            ways.sort_unstable();
            ways.dedup();
        }
    }
    ways
}

/// Calls `each` on every message of an answer. Returns whether more answers follow.
fn each_message(mut rest: &[u8], mut each: impl FnMut(&[u8])) -> bool {
    while let Some(head) = rest.first_chunk::<HEADER>() {
        let len = u32::from_ne_bytes([head[0], head[1], head[2], head[3]]) as usize;
        let kind = u16::from_ne_bytes([head[4], head[5]]);
        let Some(message) = rest.get(..len).filter(|_| len >= HEADER) else { return false };
        if matches!(kind, ERROR | DONE) {
            return false;
        }
        each(message);
        rest = rest.get(len.next_multiple_of(4)..).unwrap_or_default();
    }
    true
}

/// Iterates over attributes: kinds and values. Ends at one that is cut off.
fn attributes(mut rest: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    core::iter::from_fn(move || {
        let head = rest.first_chunk::<ATTRIBUTE>()?;
        let len = usize::from(u16::from_ne_bytes([head[0], head[1]]));
        let value = rest.get(ATTRIBUTE..len)?;
        rest = rest.get(len.next_multiple_of(4)..).unwrap_or_default();
        Some((u16::from_ne_bytes([head[2], head[3]]), value))
    })
}

fn number(bytes: &[u8]) -> Option<u32> {
    bytes.first_chunk().map(|bytes| u32::from_ne_bytes(*bytes))
}

/// Adds the interfaces of one route to `ways`.
fn note_ways(message: &[u8], ways: &mut Vec<Way>) {
    let kind = message.get(4..6).and_then(|kind| kind.first_chunk()).map(|kind| u16::from_ne_bytes(*kind));
    let Some(route) = message.get(HEADER..).and_then(|rest| rest.first_chunk::<ROUTE>()) else { return };
    let flags = u32::from_ne_bytes([route[8], route[9], route[10], route[11]]);
    let leads_out = route[7] == UNICAST && route[4] != LOCAL && flags & CLONED == 0;
    if kind != Some(NEWROUTE) || !leads_out {
        return;
    }
    let v6 = i32::from(route[0]) == libc::AF_INET6;
    let (mut mtu, mut by) = (None, Vec::new());
    for (kind, value) in attributes(&message[HEADER + ROUTE..]) {
        match kind {
            DST if v6 => {
                let to = value.first_chunk::<16>().map(|to| Ipv6Addr::from(*to));
                if to.is_some_and(|to| to.is_unicast_link_local() || to.is_multicast()) {
                    return;
                }
            }
            OIF => by.extend(number(value)),
            METRICS => {
                mtu = attributes(value).find(|(kind, _)| *kind == MTU).and_then(|(_, mtu)| number(mtu))
            }
            MULTIPATH => {
                let mut rest = value;
                while let Some(hop) = rest.first_chunk::<NEXTHOP>() {
                    by.extend(number(&hop[4..]));
                    let len = usize::from(u16::from_ne_bytes([hop[0], hop[1]])).max(NEXTHOP);
                    rest = rest.get(len.next_multiple_of(4)..).unwrap_or_default();
                }
            }
            _ => {}
        }
    }
    let mtu = mtu.filter(|mtu| *mtu > 0).map(|mtu| mtu as usize);
    ways.extend(by.into_iter().map(|index| Way { index, v6, mtu }));
}

fn request(src: Ipv4Addr, dst: Ipv4Addr) -> [u8; LEN] {
    let mut out = [0; LEN];
    out[..4].copy_from_slice(&(LEN as u32).to_ne_bytes());
    out[4..6].copy_from_slice(&GETROUTE.to_ne_bytes());
    out[6..8].copy_from_slice(&REQUEST.to_ne_bytes());
    out[HEADER] = libc::AF_INET as u8;
    // Lengths of the prefixes of both addresses.
    (out[HEADER + 1], out[HEADER + 2]) = (32, 32);
    let attributes = out[HEADER + ROUTE..].chunks_exact_mut(ATTRIBUTE + 4);
    for (to, (kind, addr)) in attributes.zip([(DST, dst), (SRC, src)]) {
        to[..2].copy_from_slice(&((ATTRIBUTE + 4) as u16).to_ne_bytes());
        to[2..4].copy_from_slice(&kind.to_ne_bytes());
        to[4..].copy_from_slice(&addr.octets());
    }
    out
}

/// The interface index in an answer.
fn interface(answer: &[u8]) -> Option<u32> {
    let kind = u16::from_ne_bytes(*answer.get(4..)?.first_chunk()?);
    let rest = answer.get(HEADER + ROUTE..).filter(|_| kind == NEWROUTE)?;
    attributes(rest).find(|(kind, _)| *kind == OIF).and_then(|(_, value)| number(value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg_attr(miri, ignore = "it asks the kernel")]
    fn the_kernel_says_by_which_interface() {
        let router = Router::open().expect("every process may look routes up");
        let lo = std::fs::read_to_string("/sys/class/net/lo/ifindex").unwrap().trim().parse().unwrap();
        let [a, b] = [Ipv4Addr::new(127, 47, 92, 1), Ipv4Addr::new(127, 47, 92, 2)];
        for _ in 0..3 {
            assert_eq!(router.egress(a, b), Some(lo));
            // From an address that this host does not have.
            assert_eq!(router.egress(Ipv4Addr::new(192, 0, 2, 7), b), None);
        }
    }

    /// A message about a route with these attributes.
    fn route(family: i32, kind: u8, table: u8, with: &[(u16, &[u8])]) -> Vec<u8> {
        let mut out = vec![0; HEADER + ROUTE];
        out[4..6].copy_from_slice(&NEWROUTE.to_ne_bytes());
        (out[HEADER], out[HEADER + 4], out[HEADER + 7]) = (family as u8, table, kind);
        for (kind, value) in with {
            out.extend(((ATTRIBUTE + value.len()) as u16).to_ne_bytes());
            out.extend(kind.to_ne_bytes());
            out.extend(*value);
            out.resize(out.len().next_multiple_of(4), 0);
        }
        let len = out.len() as u32;
        out[..4].copy_from_slice(&len.to_ne_bytes());
        out
    }

    #[test]
    fn the_ways_of_a_route_are_found() {
        const MAIN: u8 = 254;
        let ways = |message: &[u8]| {
            let mut ways = Vec::new();
            note_ways(message, &mut ways);
            ways.iter().map(|way: &Way| (way.index, way.v6, way.mtu)).collect::<Vec<_>>()
        };
        let [three, five] = [3u32, 5].map(u32::to_ne_bytes);
        let metric = [&8u16.to_ne_bytes()[..], &MTU.to_ne_bytes(), &1400u32.to_ne_bytes()].concat();
        let hop = |index: [u8; 4]| [&8u16.to_ne_bytes()[..], &[0, 0], &index].concat();
        let hops = [hop(three), hop(five)].concat();
        let [v4, v6] = [libc::AF_INET, libc::AF_INET6];
        assert_eq!(ways(&route(v4, UNICAST, MAIN, &[(OIF, &three)])), [(3, false, None)]);
        let limited = route(v6, UNICAST, 10, &[(OIF, &five), (METRICS, &metric)]);
        assert_eq!(ways(&limited), [(5, true, Some(1400))]);
        let several = route(v4, UNICAST, MAIN, &[(METRICS, &metric), (MULTIPATH, &hops)]);
        assert_eq!(ways(&several), [(3, false, Some(1400)), (5, false, Some(1400))]);
        // Routes that stay on the host, blackholes, and routes to the link only.
        assert_eq!(ways(&route(v4, UNICAST, LOCAL, &[(OIF, &three)])), []);
        assert_eq!(ways(&route(v4, 6, MAIN, &[(OIF, &three)])), []);
        let link = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 0).octets();
        assert_eq!(ways(&route(v6, UNICAST, MAIN, &[(DST, &link), (OIF, &three)])), []);
        // Cut anywhere it says less, and nothing else.
        for len in 0..several.len() {
            assert!(ways(&several[..len]).iter().all(|way| ways(&several).contains(way) || way.2.is_none()));
        }
        let both = [several, limited].concat();
        let mut seen = 0;
        assert!(each_message(&both, |_| seen += 1));
        assert_eq!(seen, 2);
        assert!(!each_message(&both[..both.len() - 1], |_| ()), "the last one is cut");
        for len in [0u32, 7, u32::MAX] {
            let mut wrong = both.clone();
            wrong[..4].copy_from_slice(&len.to_ne_bytes());
            assert!(!each_message(&wrong, |_| panic!("it has no such length")));
        }
    }

    #[test]
    fn an_answer_may_be_anything() {
        let mut answer = request(Ipv4Addr::LOCALHOST, Ipv4Addr::LOCALHOST).to_vec();
        assert_eq!(interface(&answer), None, "that is a request");
        answer[4..6].copy_from_slice(&NEWROUTE.to_ne_bytes());
        assert_eq!(interface(&answer), None, "without an interface");
        answer.extend([8u16, OIF].map(u16::to_ne_bytes).concat());
        answer.extend(7u32.to_ne_bytes());
        assert_eq!(interface(&answer), Some(7));
        for len in 0..answer.len() {
            assert_eq!(interface(&answer[..len]), None, "cut at {len}");
        }
        // An attribute that says that it has no length.
        answer[HEADER + ROUTE] = 0;
        assert_eq!(interface(&answer), None);
    }
}
