//! By which interface the kernel sends: its answer to a request for one route (rtnetlink(7)).

use core::net::Ipv4Addr;
use std::os::fd::{AsFd, OwnedFd};

use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};

/// `RTM_NEWROUTE` and `RTM_GETROUTE` of `<linux/rtnetlink.h>`.
const NEWROUTE: u16 = 24;
const GETROUTE: u16 = 26;
/// `NLM_F_REQUEST` of `<linux/netlink.h>`.
const REQUEST: u16 = 1;
/// Kinds of attributes of a route: `RTA_DST`, `RTA_SRC`, `RTA_OIF`.
const DST: u16 = 1;
const SRC: u16 = 2;
const OIF: u16 = 4;
/// Bytes of `struct nlmsghdr`, `struct rtmsg`, and of an attribute's header.
const HEADER: usize = 16;
const ROUTE: usize = 12;
const ATTRIBUTE: usize = 4;
/// Bytes of a request.
const LEN: usize = HEADER + ROUTE + 2 * (ATTRIBUTE + 4);

/// A socket on which routes are looked up.
pub(super) struct Router(OwnedFd);

impl Router {
    /// Opens one; `None` if the system refuses.
    pub fn open() -> Option<Self> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = rustix::net::socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, None).ok()?;
        rustix::net::bind(socket.as_fd(), &SocketAddrNetlink::new(0, 0)).ok()?;
        Some(Self(socket))
    }

    /// The number of the interface by which packets leave from `src`, an address of ours, to `dst`. `None`: there is no route.
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

/// The interface in an answer.
fn interface(answer: &[u8]) -> Option<u32> {
    let kind = u16::from_ne_bytes(*answer.get(4..)?.first_chunk()?);
    let mut rest = answer.get(HEADER + ROUTE..).filter(|_| kind == NEWROUTE)?;
    while let Some((head, _)) = rest.split_first_chunk::<ATTRIBUTE>() {
        let len = usize::from(u16::from_ne_bytes([head[0], head[1]]));
        let value = rest.get(ATTRIBUTE..len)?;
        if u16::from_ne_bytes([head[2], head[3]]) == OIF {
            return value.first_chunk().map(|bytes| u32::from_ne_bytes(*bytes));
        }
        rest = rest.get(len.next_multiple_of(4)..)?;
    }
    None
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
