//! Socket addresses and control messages as bytes, as the kernel lays them out (socket(7), ip(7), ipv6(7), udp(7), cmsg(3)).

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Bytes of an address: `struct sockaddr_in6` is the longest.
const NAME: usize = 28;

/// The address of a socket, IPv4 or IPv6.
#[derive(Clone, Copy, Debug)]
pub(super) struct Name {
    bytes: [u8; NAME],
    len: usize,
}

impl Name {
    /// An empty address, for the kernel to fill in.
    pub fn empty() -> Self {
        Self { bytes: [0; NAME], len: 0 }
    }

    /// An address for an IPv6 or an IPv4 socket; for an IPv6 socket an IPv4 address is mapped. `scope` is the interface index of a
    /// link-local address, 0 for any other.
    pub fn new(v6: bool, addr: IpAddr, port: u16, scope: u32) -> Self {
        let mut name = Self::empty();
        let (family, len) = match addr {
            IpAddr::V4(addr) if !v6 => {
                name.bytes[4..8].copy_from_slice(&addr.octets());
                (libc::AF_INET, 16)
            }
            addr => {
                let addr = match addr {
                    IpAddr::V4(addr) => addr.to_ipv6_mapped(),
                    IpAddr::V6(addr) => addr,
                };
                name.bytes[8..24].copy_from_slice(&addr.octets());
                name.bytes[24..28].copy_from_slice(&scope.to_ne_bytes());
                (libc::AF_INET6, 28)
            }
        };
        name.bytes[..2].copy_from_slice(&(family as libc::sa_family_t).to_ne_bytes());
        name.bytes[2..4].copy_from_slice(&port.to_be_bytes());
        name.len = len;
        name
    }

    /// The bytes of the address, as the kernel lays them out.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    /// The buffer into which the kernel writes an address. [`set_len`](Self::set_len) sets the length afterwards.
    pub fn space(&mut self) -> &mut [u8] {
        &mut self.bytes
    }

    /// Sets how many bytes the kernel has written.
    pub fn set_len(&mut self, len: usize) {
        self.len = len.min(NAME);
    }

    /// Address and port; a mapped address is returned as the IPv4 address. `None` if it is empty, cut off, or of another family.
    pub fn get(&self) -> Option<(IpAddr, u16)> {
        let family = libc::c_int::from(libc::sa_family_t::from_ne_bytes(*self.bytes().first_chunk()?));
        let port = u16::from_be_bytes([self.bytes[2], self.bytes[3]]);
        match (family, self.len) {
            (libc::AF_INET, 8..) => Some((v4(&self.bytes[4..])?, port)),
            (libc::AF_INET6, 24..) => Some((v6(&self.bytes[8..])?, port)),
            _ => None,
        }
    }
}

/// The IPv4 address at the start of some bytes.
fn v4(bytes: &[u8]) -> Option<IpAddr> {
    Some(Ipv4Addr::from(*bytes.first_chunk::<4>()?).into())
}

/// The IPv6 address at the start of some bytes; a mapped address is returned as the IPv4 address.
fn v6(bytes: &[u8]) -> Option<IpAddr> {
    Some(IpAddr::from(*bytes.first_chunk::<16>()?).to_canonical())
}

/// Bytes for control messages: room for those that this port asks for, and for some that other options of the host could add.
const CONTROL: usize = 320;
/// Bytes of a message's header, and what its data is aligned to: `size_t`, then level and type.
const WORD: usize = size_of::<usize>();
const HEADER: usize = (WORD + 8).next_multiple_of(WORD);

/// Control messages of one datagram.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(8))]
pub(super) struct Control {
    bytes: [u8; CONTROL],
    len: usize,
}

impl Control {
    /// No messages, for the kernel to fill in.
    pub fn empty() -> Self {
        Self { bytes: [0; CONTROL], len: 0 }
    }

    /// The bytes of the messages, as the kernel lays them out.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    /// The buffer into which the kernel writes messages. [`set_len`](Self::set_len) sets the length afterwards.
    pub fn space(&mut self) -> &mut [u8] {
        &mut self.bytes
    }

    /// Sets how many bytes the kernel has written.
    pub fn set_len(&mut self, len: usize) {
        self.len = len.min(CONTROL);
    }

    /// Adds a message.
    fn push(&mut self, level: i32, kind: i32, data: &[u8]) {
        let (at, len) = (self.len, HEADER + data.len());
        let room = &mut self.bytes[at..at + len.next_multiple_of(WORD)];
        room[..WORD].copy_from_slice(&len.to_ne_bytes());
        room[WORD..WORD + 4].copy_from_slice(&level.to_ne_bytes());
        room[WORD + 4..WORD + 8].copy_from_slice(&kind.to_ne_bytes());
        room[HEADER..len].copy_from_slice(data);
        self.len += len.next_multiple_of(WORD);
    }

    /// Adds the address to send from.
    pub fn push_source(&mut self, source: IpAddr, scope: u32) {
        match source {
            IpAddr::V4(addr) => {
                let mut info = [0; 12];
                info[..4].copy_from_slice(&scope.to_ne_bytes());
                info[4..8].copy_from_slice(&addr.octets());
                self.push(libc::IPPROTO_IP, libc::IP_PKTINFO, &info);
            }
            IpAddr::V6(addr) => {
                let mut info = [0; 20];
                info[..16].copy_from_slice(&addr.octets());
                info[16..].copy_from_slice(&scope.to_ne_bytes());
                self.push(libc::IPPROTO_IPV6, libc::IPV6_PKTINFO, &info);
            }
        }
    }

    /// Adds the TOS byte or traffic class.
    pub fn push_traffic_class(&mut self, v6: bool, class: u8) {
        let (level, kind) =
            if v6 { (libc::IPPROTO_IPV6, libc::IPV6_TCLASS) } else { (libc::IPPROTO_IP, libc::IP_TOS) };
        self.push(level, kind, &i32::from(class).to_ne_bytes());
    }

    /// Adds the TTL or hop limit.
    pub fn push_hop_limit(&mut self, v6: bool, limit: u8) {
        let (level, kind) =
            if v6 { (libc::IPPROTO_IPV6, libc::IPV6_HOPLIMIT) } else { (libc::IPPROTO_IP, libc::IP_TTL) };
        self.push(level, kind, &i32::from(limit).to_ne_bytes());
    }

    /// Has the kernel segment the message into datagrams of this many bytes (UDP_SEGMENT).
    pub fn push_segment(&mut self, bytes: u16) {
        self.push(libc::SOL_UDP, libc::UDP_SEGMENT, &bytes.to_ne_bytes());
    }

    /// Iterates over the messages: level, type, data. Ends at one that is cut off.
    fn iter(&self) -> impl Iterator<Item = (i32, i32, &[u8])> {
        let mut rest = self.bytes();
        core::iter::from_fn(move || {
            let len = usize::from_ne_bytes(*rest.first_chunk()?);
            let number = |at: usize| Some(i32::from_ne_bytes(*rest.get(at..)?.first_chunk()?));
            let message = (number(WORD)?, number(WORD + 4)?, rest.get(HEADER..len)?);
            rest = rest.get(len.next_multiple_of(WORD)..).unwrap_or_default();
            Some(message)
        })
    }

    /// Reads what the kernel reports about a datagram.
    pub fn arrival(&self) -> Arrival {
        let mut arrival = Arrival::default();
        for (level, kind, data) in self.iter() {
            let byte = data.first().copied().unwrap_or_default();
            let number = data.first_chunk().map(|bytes| i32::from_ne_bytes(*bytes));
            match (level, kind) {
                // The destination of the packet, not the address from which the kernel would answer.
                (libc::IPPROTO_IP, libc::IP_PKTINFO) => arrival.to = data.get(8..).and_then(v4),
                (libc::IPPROTO_IPV6, libc::IPV6_PKTINFO) => arrival.to = v6(data),
                (libc::IPPROTO_IP, libc::IP_TOS) => arrival.traffic_class = byte,
                (libc::IPPROTO_IPV6, libc::IPV6_TCLASS) => {
                    arrival.traffic_class = number.unwrap_or_default() as u8;
                }
                (libc::IPPROTO_IP, libc::IP_TTL) | (libc::IPPROTO_IPV6, libc::IPV6_HOPLIMIT) => {
                    arrival.hop_limit = number.unwrap_or_default() as u8;
                }
                (libc::SOL_UDP, libc::UDP_GRO) => {
                    arrival.segment = number.and_then(|bytes| usize::try_from(bytes).ok()).filter(|n| *n > 0);
                }
                (libc::SOL_SOCKET, libc::SO_RXQ_OVFL) => arrival.overflows = number.map(|n| n as u32),
                _ => {}
            }
        }
        arrival
    }

    /// The error of an earlier send, which came back by ICMP or which this host found itself.
    pub fn refusal(&self) -> Option<Refusal> {
        let is_error = |level, kind| {
            matches!(
                (level, kind),
                (libc::IPPROTO_IP, libc::IP_RECVERR) | (libc::IPPROTO_IPV6, libc::IPV6_RECVERR)
            )
        };
        // `struct sock_extended_err`: number, origin, type, code, pad, info.
        let (_, _, data) = self.iter().find(|(level, kind, _)| is_error(*level, *kind))?;
        let error = i32::from_ne_bytes(*data.first_chunk()?);
        let came_back = *data.get(4)? != SO_EE_ORIGIN_LOCAL;
        Some(Refusal { error, came_back, mtu: u32::from_ne_bytes(*data.get(8..)?.first_chunk()?) })
    }
}

/// `SO_EE_ORIGIN_LOCAL` of `<linux/errqueue.h>`.
const SO_EE_ORIGIN_LOCAL: u8 = 1;

/// An error of something that was sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Refusal {
    /// Its errno.
    pub error: i32,
    /// Whether it came by ICMP; if not, nothing was sent.
    pub came_back: bool,
    /// The MTU that it names.
    pub mtu: u32,
}

/// What the kernel reports about a datagram.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(super) struct Arrival {
    /// The address that it was sent to.
    pub to: Option<IpAddr>,
    /// TOS byte or traffic class.
    pub traffic_class: u8,
    /// TTL or hop limit.
    pub hop_limit: u8,
    /// Set if the message is several datagrams of this many bytes (UDP_GRO); the last one may be shorter.
    pub segment: Option<usize>,
    /// Datagrams that were dropped since the socket was made because its buffer was full (SO_RXQ_OVFL).
    pub overflows: Option<u32>,
}

/// Whether an IPv6 address is valid on its own link only.
pub(in crate::port) fn is_link_local(addr: IpAddr) -> bool {
    matches!(addr, IpAddr::V6(addr) if Ipv6Addr::is_unicast_link_local(&addr))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_come_back_as_they_went_in() {
        for (v6, addr) in [(false, "10.0.0.7"), (true, "10.0.0.7"), (true, "fd00::7"), (true, "fe80::1")] {
            let addr: IpAddr = addr.parse().unwrap();
            assert_eq!(Name::new(v6, addr, 4791, 3).get(), Some((addr, 4791)));
        }
        let mut name = Name::new(true, IpAddr::V6(Ipv6Addr::LOCALHOST), 4791, 0);
        name.set_len(7);
        assert_eq!((name.get(), Name::empty().get()), (None, None));
    }

    #[test]
    fn what_is_pushed_is_read() {
        let mut control = Control::empty();
        assert_eq!(control.arrival(), Arrival::default());
        control.push_traffic_class(true, 0xfe);
        control.push_hop_limit(true, 200);
        control.push_source("fd00::9".parse().unwrap(), 4);
        control.push(libc::SOL_UDP, libc::UDP_GRO, &1000i32.to_ne_bytes());
        control.push(libc::SOL_SOCKET, libc::SO_RXQ_OVFL, &7u32.to_ne_bytes());
        let to = Some("fd00::9".parse().unwrap());
        let all =
            Arrival { to, traffic_class: 0xfe, hop_limit: 200, segment: Some(1000), overflows: Some(7) };
        assert_eq!(control.arrival(), all);
        // Cut off anywhere, it reports less, but nothing else.
        for len in 0..control.len {
            control.set_len(len);
            let cut = control.arrival();
            assert!(cut.to.is_none() || cut.to == all.to);
            assert!(cut.segment.is_none() || cut.segment == all.segment);
        }
    }

    #[test]
    fn what_this_host_refuses_did_not_come_back() {
        for (level, kind) in [(libc::IPPROTO_IP, libc::IP_RECVERR), (libc::IPPROTO_IPV6, libc::IPV6_RECVERR)]
        {
            // Local, by ICMP, by ICMPv6.
            for (origin, came_back) in [(1, false), (2, true), (3, true)] {
                let mut error = [0; 16];
                error[..4].copy_from_slice(&libc::EMSGSIZE.to_ne_bytes());
                error[4] = origin;
                error[8..12].copy_from_slice(&700u32.to_ne_bytes());
                let mut control = Control::empty();
                control.push_hop_limit(false, 64);
                control.push(level, kind, &error);
                let refusal = Refusal { error: libc::EMSGSIZE, came_back, mtu: 700 };
                assert_eq!(control.refusal(), Some(refusal), "{origin}");
            }
        }
    }
}
