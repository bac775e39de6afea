//! The configuration of an IP host on the link, and its GID table.

use core::fmt;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::id::{Gid, Mac};

/// The most entries of a GID table: an index is 8 bits wide (`sgid_index` of `struct ibv_global_route`).
pub const GIDS_MAX: usize = 256;
const _: () = assert!(GIDS_MAX == 256, "the text of `NetConfigError::TooMany` says so");

/// Addresses of one port.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct NetConfig {
    /// Our Ethernet address.
    pub mac: Mac,
    /// Our IP addresses, each with the length of its on-link prefix in bits.
    pub addrs: Vec<(IpAddr, u8)>,
    /// Next hop of IPv4 destinations that are not on the link.
    pub gateway: Option<Ipv4Addr>,
    /// Next hop of IPv6 destinations that are not on the link.
    pub gateway6: Option<Ipv6Addr>,
    /// VLAN id of every frame, `1 ..= 4094`; `None`: untagged.
    pub vlan: Option<u16>,
    /// Neighbours on the link with fixed Ethernet addresses, which no packet changes.
    pub neighbours: Vec<(IpAddr, Mac)>,
    /// The Ethernet address for every destination, if the kernel below the port is the IP host ([`Host`](crate::port::Host)): it owns our
    /// addresses, finds routes and neighbours, and answers for us.
    pub next_hop: Option<Mac>,
}

/// Why a [`NetConfig`] is invalid.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NetConfigError {
    /// The Ethernet address is zero or a group address.
    #[error("{0} is not the address of a single station")]
    Mac(Mac),
    /// An address that no host can have.
    #[error("{addr} is not the address of a host: it is {kind}")]
    Address {
        /// The address.
        addr: IpAddr,
        /// What it is instead.
        kind: NoHost,
    },
    /// A gateway of the other IP version.
    #[error("the IPv6 gateway {0} is an IPv4 address; give it as the IPv4 gateway")]
    Gateway6(Ipv6Addr),
    /// A prefix longer than an address.
    #[error("prefix /{prefix} of {addr} is too long, allowed are 0 to {}", bits(*.addr))]
    Prefix {
        /// The address.
        addr: IpAddr,
        /// Its prefix.
        prefix: u8,
    },
    /// A VLAN id that is reserved.
    #[error("VLAN id {0} is reserved, allowed are 1 to 4094")]
    Vlan(u16),
    /// More addresses than a GID index can name.
    #[error("{0} addresses, allowed are up to 255")]
    TooMany(usize),
}

/// Why no host can have an address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum NoHost {
    /// 0.0.0.0/8 or ::.
    Unspecified,
    /// 127.0.0.0/8 or ::1.
    Loopback,
    /// 224.0.0.0/4 or ff00::/8.
    Multicast,
    /// 255.255.255.255.
    Broadcast,
    /// The first address of a subnet of this prefix length: it stands for the network, or for any of its routers (RFC 4291 2.6.1).
    Network(u8),
    /// The last address of an IPv4 subnet of this prefix length (RFC 922).
    SubnetBroadcast(u8),
}

impl fmt::Display for NoHost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unspecified => f.write_str("the unspecified address"),
            Self::Loopback => f.write_str("a loopback address"),
            Self::Multicast => f.write_str("a multicast address"),
            Self::Broadcast => f.write_str("the broadcast address"),
            Self::Network(prefix) => write!(f, "the address of its whole subnet /{prefix}"),
            Self::SubnetBroadcast(prefix) => write!(f, "the broadcast address of its subnet /{prefix}"),
        }
    }
}

/// Bits of an address of this family.
const fn bits(addr: IpAddr) -> u8 {
    if addr.is_ipv4() { 32 } else { 128 }
}

impl NetConfig {
    /// A host with this Ethernet address and nothing but its link-local address.
    pub fn new(mac: Mac) -> Self {
        Self { mac, ..Self::default() }
    }

    /// Checks all values. [`Net::new`](super::Net::new) does not: it truncates what is too long.
    ///
    /// # Errors
    /// [`NetConfigError`], for the first wrong value.
    pub fn check(&self) -> Result<(), NetConfigError> {
        if !is_unicast(self.mac) {
            return Err(NetConfigError::Mac(self.mac));
        }
        if self.addrs.len() >= GIDS_MAX {
            return Err(NetConfigError::TooMany(self.addrs.len()));
        }
        for &(addr, prefix) in &self.addrs {
            check_address(addr, prefix)?;
        }
        if let Some(gateway) = self.gateway6.filter(|gateway| gateway.to_ipv4_mapped().is_some()) {
            return Err(NetConfigError::Gateway6(gateway));
        }
        let gateways = [self.gateway.map(IpAddr::V4), self.gateway6.map(IpAddr::V6)];
        let neighbours = self.neighbours.iter().map(|(addr, _)| addr.to_canonical());
        for addr in gateways.into_iter().flatten().chain(neighbours) {
            if let Some(kind) = no_host(addr) {
                return Err(NetConfigError::Address { addr, kind });
            }
        }
        if let Some((_, mac)) = self.neighbours.iter().find(|(_, mac)| !is_unicast(*mac)) {
            return Err(NetConfigError::Mac(*mac));
        }
        match self.vlan {
            Some(vlan) if !(1..=4094).contains(&vlan) => Err(NetConfigError::Vlan(vlan)),
            _ => Ok(()),
        }
    }

    /// The configured neighbours in the form of the table.
    pub(super) fn fixed_neighbours(&self) -> Vec<(Gid, Mac)> {
        self.neighbours.iter().map(|&(addr, mac)| (Gid::from_ip(addr), mac)).collect()
    }
}

/// Converts an address and its prefix length to the form that the stack uses: an IPv4-mapped IPv6 address becomes its IPv4 address, and its
/// prefix loses the first 96 bits if it includes them.
pub fn canonical(addr: IpAddr, prefix: u8) -> (IpAddr, u8) {
    let mapped = bits(addr) - bits(addr.to_canonical());
    (addr.to_canonical(), if prefix >= mapped { prefix - mapped } else { prefix })
}

/// Checks that a host can have this address in a subnet of this prefix length; both as [`canonical`] returns them.
///
/// In a subnet of two addresses hosts can have both (RFC 3021, RFC 6164).
///
/// # Errors
/// [`NetConfigError::Address`], [`NetConfigError::Prefix`].
pub fn check_address(addr: IpAddr, prefix: u8) -> Result<(), NetConfigError> {
    if prefix > bits(addr) {
        return Err(NetConfigError::Prefix { addr, prefix });
    }
    let host_bits = bits(addr) - prefix;
    let host = u128::MAX.checked_shr(128 - u32::from(host_bits)).unwrap_or(0);
    let of_host = u128::from_be_bytes(Gid::from_ip(addr).0) & host;
    let kind = no_host(addr).or(match of_host {
        _ if host_bits < 2 => None,
        0 => Some(NoHost::Network(prefix)),
        all if all == host && addr.is_ipv4() => Some(NoHost::SubnetBroadcast(prefix)),
        _ => None,
    });
    kind.map_or(Ok(()), |kind| Err(NetConfigError::Address { addr, kind }))
}

/// Whether an Ethernet address can be that of one host: unicast, and not zero.
pub(super) fn is_unicast(mac: Mac) -> bool {
    mac.0[0] & 1 == 0 && mac.0 != [0; 6]
}

/// Whether an address can be that of one host, on whatever subnet.
pub(super) fn is_host(gid: &Gid) -> bool {
    no_host(gid.to_ip()).is_none()
}

/// Why no host can have an address, on any subnet.
fn no_host(addr: IpAddr) -> Option<NoHost> {
    match addr {
        IpAddr::V4(a) if a.octets()[0] == 0 => Some(NoHost::Unspecified),
        IpAddr::V4(a) if a.is_broadcast() => Some(NoHost::Broadcast),
        a if a.is_unspecified() => Some(NoHost::Unspecified),
        a if a.is_loopback() => Some(NoHost::Loopback),
        a if a.is_multicast() => Some(NoHost::Multicast),
        _ => None,
    }
}

/// Whether an address is of `fe80::/10`.
pub(super) fn is_link_local(gid: &Gid) -> bool {
    gid.0[0] == 0xfe && gid.0[1] & 0xc0 == 0x80
}

/// Our addresses as GIDs. Index 0 is the link-local address of the Ethernet address, and the configured ones follow in order (IBA A17.4).
/// If the kernel is the IP host, the table has only its addresses. An address given twice keeps its first index.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct GidTable {
    gids: Vec<Gid>,
}

impl GidTable {
    /// Makes the table of a configuration.
    pub fn new(config: &NetConfig) -> Self {
        let mut gids = Vec::new();
        if config.next_hop.is_none() {
            gids.push(Gid::link_local(config.mac));
        }
        for gid in config.addrs.iter().map(|(addr, _)| Gid::from_ip(*addr)) {
            if !gids.contains(&gid) && gids.len() < GIDS_MAX {
                gids.push(gid);
            }
        }
        Self { gids }
    }
    /// Number of entries.
    #[expect(clippy::len_without_is_empty, reason = "nobody asks")]
    pub fn len(&self) -> usize {
        self.gids.len()
    }
    /// The GID at an index; `None` beyond the last one.
    pub fn get(&self, index: usize) -> Option<Gid> {
        self.gids.get(index).copied()
    }
    /// Adds a GID, unless the table has it or is full.
    pub(super) fn add(&mut self, gid: Gid) {
        if !self.is_local(&gid) && self.gids.len() < GIDS_MAX {
            self.gids.push(gid);
        }
    }
    /// Removes a GID; the indices of later ones decrease by one.
    pub(super) fn remove(&mut self, gid: &Gid) {
        self.gids.retain(|g| g != gid);
    }
    /// Whether the table has a GID.
    #[inline]
    pub fn is_local(&self, gid: &Gid) -> bool {
        self.gids.contains(gid)
    }
    /// Every GID, in index order.
    pub fn iter(&self) -> impl Iterator<Item = Gid> {
        self.gids.iter().copied()
    }
}

/// On-link prefixes and gateways, from which the next hop of a destination follows.
#[derive(Clone, Debug)]
pub(super) struct Routes {
    /// Our addresses, each with the number of leading GID bits that an on-link destination shares.
    prefixes: Vec<(Gid, u8)>,
    gateway: Option<Gid>,
    gateway6: Option<Gid>,
    link_local: Gid,
}

impl Routes {
    pub(super) fn new(config: &NetConfig) -> Self {
        let prefixes = config.addrs.iter().map(|&(addr, prefix)| {
            let gid = Gid::from_ip(addr);
            (gid, 128 - bits(gid.to_ip()) + prefix.min(bits(gid.to_ip())))
        });
        Self {
            prefixes: prefixes.collect(),
            gateway: config.gateway.map(|a| Gid::from_ip(a.into())),
            gateway6: config.gateway6.map(|a| Gid::from_ip(a.into())),
            link_local: Gid::link_local(config.mac),
        }
    }

    pub(super) fn add(&mut self, addr: IpAddr, prefix: u8) {
        let gid = Gid::from_ip(addr);
        self.remove(&gid);
        self.prefixes.push((gid, 128 - bits(addr) + prefix.min(bits(addr))));
    }

    pub(super) fn remove(&mut self, gid: &Gid) {
        self.prefixes.retain(|(own, _)| own != gid);
    }

    /// Whether a destination is on the link.
    pub(super) fn on_link(&self, dst: &Gid) -> bool {
        is_link_local(dst) || self.prefixes.iter().any(|(own, len)| share(own, dst, *len))
    }

    /// The neighbour to resolve for a destination; `None` if there is no route.
    pub(super) fn next_hop(&self, dst: &Gid) -> Option<Gid> {
        if self.on_link(dst) {
            return Some(*dst);
        }
        if dst.as_v4().is_some() { self.gateway } else { self.gateway6 }
    }

    /// Our address to send from: the one on the smallest subnet that contains the target, otherwise any of its family.
    pub(super) fn source_for(&self, target: &Gid) -> Option<Gid> {
        if is_link_local(target) {
            return Some(self.link_local);
        }
        let on_subnet = self.prefixes.iter().filter(|(own, len)| share(own, target, *len));
        let nearest = on_subnet.rev().max_by_key(|(_, len)| *len);
        let any = || self.prefixes.iter().find(|(own, _)| own.same_family(target));
        let link_local = Some(self.link_local).filter(|own| own.same_family(target));
        nearest.or_else(any).map(|(own, _)| *own).or(link_local)
    }
}

/// Whether two GIDs are of one family and agree in their first `len` bits.
fn share(a: &Gid, b: &Gid, len: u8) -> bool {
    let differing = u128::from_be_bytes(a.0) ^ u128::from_be_bytes(b.0);
    a.same_family(b) && differing.checked_shr(128 - u32::from(len)).unwrap_or(0) == 0
}
