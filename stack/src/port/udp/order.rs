//! The order of the host's addresses, which becomes the order of the GIDs: programs use the first suitable one unless they are told
//! otherwise.

use core::net::IpAddr;
use std::path::Path;

use super::control::is_link_local;
use super::route::towards;
use super::sys::Local;

/// What an address is good for, the best first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Standing {
    /// Packets that take a default route are sent from it.
    Default,
    /// It is on an interface that other hosts reach.
    Outside,
    /// It is on a bridge, such as those of containers and virtual machines on this host.
    Bridge,
    /// Its interface is down, or has no carrier.
    Down,
    /// It is valid on one link only.
    LinkLocal,
    /// It is valid on this host only.
    Loopback,
}

impl Standing {
    /// Classifies an address. `sources` are the source addresses of the default routes.
    pub fn of(local: &Local, sources: &[IpAddr], is_bridge: bool) -> Self {
        match local {
            _ if local.addr.is_loopback() => Self::Loopback,
            _ if is_link_local(local.addr) => Self::LinkLocal,
            _ if !local.up => Self::Down,
            _ if sources.contains(&local.addr) => Self::Default,
            _ if is_bridge => Self::Bridge,
            _ => Self::Outside,
        }
    }
}

/// The source addresses of packets that take a default route.
pub(super) fn default_sources() -> Vec<IpAddr> {
    // Addresses for documentation (RFC 5737, RFC 3849): only a default route leads to them.
    let nobody: [IpAddr; 2] = [[192, 0, 2, 1].into(), [0x2001, 0xdb8, 0, 0, 0, 0, 0, 1].into()];
    nobody.into_iter().filter_map(|peer| Some(towards(peer)?.local_addr().ok()?.ip())).collect()
}

/// Whether an interface is a bridge.
pub(super) fn is_bridge(iface: &str) -> bool {
    Path::new("/sys/class/net").join(iface).join("bridge").exists()
}

#[cfg(test)]
mod tests {
    use super::*;

    // Goal: an address by which others reach the host comes before those that lead to its containers, or nowhere.
    #[test]
    fn the_address_that_others_reach_comes_first() {
        let local = |addr: &str, up| {
            let addr: IpAddr = addr.parse().unwrap();
            Local { addr, iface: "x".into(), index: 1, up, loopback: addr.is_loopback() }
        };
        let sources = ["10.0.0.1".parse().unwrap(), "172.18.0.1".parse().unwrap()];
        let of = |addr, up, is_bridge| Standing::of(&local(addr, up), &sources, is_bridge);
        let order = [
            of("10.0.0.1", true, false),
            of("10.0.0.2", true, false),
            of("172.17.0.1", true, true),
            of("10.0.0.1", false, false),
            of("fe80::1", true, false),
            of("127.0.0.1", true, false),
        ];
        assert!(order.is_sorted_by(|a, b| a < b), "{order:?}");
        // A bridge that has the host's own interface as a port.
        assert_eq!(of("172.18.0.1", true, true), Standing::Default);
        // A virtual address on the loopback interface.
        let on_lo = Local { loopback: true, ..local("10.9.9.9", true) };
        assert_eq!(Standing::of(&on_lo, &sources, false), Standing::Outside);
    }
}
