//! Newtypes of the wire and of verbs: numbers that must not be mixed up have types that do not mix.
//!
//! Uses nothing, never allocates, is used by every other module.

use core::fmt;

/// A packet sequence number: 24 bits on a circle (IBA 9.7.1).
///
/// There is no `Ord`: `<` means nothing on a circle. Use [`Psn::diff`].
#[derive(Clone, Copy, PartialEq, Eq, Default, Hash)]
pub struct Psn(u32);

impl Psn {
    /// The low 24 bits of `v`.
    pub const fn new(v: u32) -> Self {
        Self(v & 0x00ff_ffff)
    }
    /// The value, `0 ..= 0xff_ffff`.
    pub const fn get(self) -> u32 {
        self.0
    }
    /// `self + n` on the circle.
    #[must_use]
    pub const fn add(self, n: u32) -> Self {
        Self(self.0.wrapping_add(n) & 0x00ff_ffff)
    }
    /// `self - n` on the circle.
    #[must_use]
    pub const fn sub(self, n: u32) -> Self {
        Self(self.0.wrapping_sub(n) & 0x00ff_ffff)
    }
    /// Signed distance `self - other`, in `-2^23 ..= 2^23 - 1`. The exact opposite on the circle counts as earlier.
    pub const fn diff(self, other: Self) -> i32 {
        (self.0.wrapping_sub(other.0) << 8) as i32 >> 8
    }
}

impl fmt::Debug for Psn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#08x}", self.0)
    }
}

/// A queue pair number: 24 bits (IBA 3.5.10). 0 is the SMI, 1 the GSI, `0xff_ffff` multicast.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Hash)]
pub struct Qpn(u32);

impl Qpn {
    /// The general services interface, used by connection management.
    pub const GSI: Self = Self(1);
    /// The destination of UD multicast packets.
    pub const MULTICAST: Self = Self(0x00ff_ffff);
    /// The low 24 bits of `v`.
    pub const fn new(v: u32) -> Self {
        Self(v & 0x00ff_ffff)
    }
    /// The value, `0 ..= 0xff_ffff`.
    pub const fn get(self) -> u32 {
        self.0
    }
    /// The block that it is in.
    pub const fn block(self) -> QpnBlock {
        QpnBlock((self.0 >> QpnBlock::BITS) as u16)
    }
}

/// A block of queue pair numbers: those with the same upper 12 bits. The device leases whole blocks for its shards.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash)]
pub struct QpnBlock(u16);

impl QpnBlock {
    const BITS: u32 = 12;
    /// Number of blocks.
    pub const COUNT: usize = 1 << (24 - Self::BITS);
    /// Queue pair numbers in a block.
    pub const NUMBERS: u32 = 1 << Self::BITS;

    /// The block whose number is the low 12 bits of `v`.
    pub const fn new(v: u32) -> Self {
        Self((v as usize % Self::COUNT) as u16)
    }
    /// The block's number, below [`QpnBlock::COUNT`].
    pub const fn index(self) -> usize {
        self.0 as usize
    }
    /// The queue pair number in it whose low 12 bits are those of `low`.
    pub const fn number(self, low: u32) -> Qpn {
        Qpn(((self.0 as u32) << Self::BITS) | (low % Self::NUMBERS))
    }
    /// Whether numbers in it mean something to every host: the first block and the last one.
    pub const fn is_reserved(self) -> bool {
        matches!(self.0, 0 | 0xfff)
    }
}

impl fmt::Debug for Qpn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#08x}", self.0)
    }
}

/// A global identifier: the 16 bytes of an IPv6 address, or an IPv4 address as `::ffff:a.b.c.d` (IBA A17).
#[doc(alias = "ibv_gid")]
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Hash)]
pub struct Gid(pub [u8; 16]);

impl Gid {
    /// The GID of an IPv4 address.
    pub const fn v4(a: [u8; 4]) -> Self {
        Self([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, a[0], a[1], a[2], a[3]])
    }
    /// The GID of an IP address. An IPv4-mapped IPv6 address has the GID of the IPv4 address: the bytes are the same.
    pub const fn from_ip(ip: core::net::IpAddr) -> Self {
        match ip {
            core::net::IpAddr::V4(a) => Self::v4(a.octets()),
            core::net::IpAddr::V6(a) => Self(a.octets()),
        }
    }
    /// The IPv4 address, if this is an IPv4-mapped GID.
    pub fn as_v4(&self) -> Option<[u8; 4]> {
        match self.0 {
            [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, a, b, c, d] => Some([a, b, c, d]),
            _ => None,
        }
    }
    /// The IP address this GID stands for.
    pub fn to_ip(self) -> core::net::IpAddr {
        match self.as_v4() {
            Some(a) => core::net::IpAddr::V4(a.into()),
            None => core::net::IpAddr::V6(self.0.into()),
        }
    }
    /// The link-local GID `fe80::/64` + modified EUI-64 of a MAC address.
    pub const fn link_local(m: Mac) -> Self {
        let m = m.0;
        Self([0xfe, 0x80, 0, 0, 0, 0, 0, 0, m[0] ^ 2, m[1], m[2], 0xff, 0xfe, m[3], m[4], m[5]])
    }
    /// Whether both are IPv4 addresses, or both IPv6 addresses.
    pub fn same_family(&self, other: &Self) -> bool {
        self.as_v4().is_some() == other.as_v4().is_some()
    }
    /// Whether this is an IPv4 or IPv6 multicast address.
    pub fn is_multicast(&self) -> bool {
        match self.as_v4() {
            Some(a) => a[0] & 0xf0 == 0xe0,
            None => self.0[0] == 0xff,
        }
    }
    /// Whether all 16 bytes are zero: no address.
    pub fn is_zero(&self) -> bool {
        self.0 == [0; 16]
    }
}

impl fmt::Debug for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        core::net::Ipv6Addr::from(self.0).fmt(f)
    }
}

/// An Ethernet address.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Hash)]
pub struct Mac(pub [u8; 6]);

impl Mac {
    /// ff:ff:ff:ff:ff:ff.
    pub const BROADCAST: Self = Self([0xff; 6]);

    /// The Ethernet group address of an IP multicast GID: 01:00:5e + 23 bits, or 33:33 + 32 bits.
    pub fn multicast(gid: &Gid) -> Self {
        match gid.as_v4() {
            Some([_, b, c, d]) => Self([0x01, 0x00, 0x5e, b & 0x7f, c, d]),
            None => Self([0x33, 0x33, gid.0[12], gid.0[13], gid.0[14], gid.0[15]]),
        }
    }
}

impl fmt::Debug for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

impl core::str::FromStr for Mac {
    type Err = &'static str;
    fn from_str(s: &str) -> Result<Self, Self::Err> {
        let mut out = [0u8; 6];
        let mut parts = s.split(':');
        for byte in &mut out {
            let part = parts.next().ok_or("a MAC address has six parts, as 02:00:00:00:00:01")?;
            // `from_str_radix` alone accepts a sign.
            let digits = part.len() <= 2 && part.bytes().all(|b| b.is_ascii_hexdigit());
            let value = u8::from_str_radix(part, 16).ok().filter(|_| digits);
            *byte = value.ok_or("a MAC address is hexadecimal, as 02:00:00:00:00:01")?;
        }
        if parts.next().is_some() {
            return Err("a MAC address has six parts, as 02:00:00:00:00:01");
        }
        Ok(Self(out))
    }
}

/// Path MTU, with the values of `enum ibv_mtu`.
#[doc(alias = "ibv_mtu")]
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash)]
#[repr(u8)]
pub enum Mtu {
    /// 256 bytes.
    Mtu256 = 1,
    /// 512 bytes.
    Mtu512 = 2,
    /// 1024 bytes.
    Mtu1024 = 3,
    /// 2048 bytes.
    Mtu2048 = 4,
    /// 4096 bytes.
    Mtu4096 = 5,
}

impl Mtu {
    /// Every path MTU, ascending.
    pub const ALL: [Self; 5] = [Self::Mtu256, Self::Mtu512, Self::Mtu1024, Self::Mtu2048, Self::Mtu4096];
    /// What an L3 packet may need beside the payload, as Linux counts it, so that both ends of a link come to the same path
    /// MTU: IPv6 (a port always has an IPv6 address), UDP, BTH, XRCETH, AtomicETH, ICRC. A VLAN tag is no part of an L3 packet.
    pub const OVERHEAD: usize = 40 + 8 + 12 + 4 + 28 + 4;

    /// Payload bytes of a full packet.
    pub const fn bytes(self) -> usize {
        1 << self.log2()
    }
    /// Base-2 logarithm of [`Mtu::bytes`].
    pub const fn log2(self) -> u32 {
        self as u32 + 7
    }
    /// From the value of `enum ibv_mtu`.
    pub const fn from_enum(v: u8) -> Option<Self> {
        match v {
            1 => Some(Self::Mtu256),
            2 => Some(Self::Mtu512),
            3 => Some(Self::Mtu1024),
            4 => Some(Self::Mtu2048),
            5 => Some(Self::Mtu4096),
            _ => None,
        }
    }
    /// From a number of bytes that is a path MTU.
    pub fn from_bytes(n: usize) -> Option<Self> {
        Self::ALL.into_iter().find(|m| m.bytes() == n)
    }
    /// Bytes of the L3 packets that a link must carry for this path MTU.
    pub const fn of_packet(self) -> usize {
        self.bytes() + Self::OVERHEAD
    }
    /// The largest path MTU that a link carries whose L3 packets have up to `l3_mtu` bytes; `None` where not even 256 fits.
    pub fn of_link(l3_mtu: usize) -> Option<Self> {
        Self::ALL.into_iter().rev().find(|m| m.of_packet() <= l3_mtu)
    }
    /// Packets of a message of `len` bytes: `max(1, ceil(len / mtu))`.
    pub const fn packets(self, len: u32) -> u32 {
        if len as usize <= self.bytes() {
            return 1;
        }
        ((len as u64 + self.bytes() as u64 - 1) >> self.log2()) as u32
    }
}

/// Service type of a queue pair. The discriminant is the column of the transition table.
#[doc(alias = "ibv_qp_type")]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
#[repr(u8)]
pub enum QpType {
    /// Reliable connection.
    Rc,
    /// Unreliable connection.
    Uc,
    /// Unreliable datagram.
    Ud,
    /// XRC initiator (send side).
    XrcIni,
    /// XRC target (receive side).
    XrcTgt,
    /// General services interface (QP1).
    Gsi,
}

impl QpType {
    /// Every type, in column order.
    pub const ALL: [Self; 6] = [Self::Rc, Self::Uc, Self::Ud, Self::XrcIni, Self::XrcTgt, Self::Gsi];
}

/// State of a queue pair, with the values of `enum ibv_qp_state`.
#[doc(alias = "ibv_qp_state")]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
#[repr(u8)]
pub enum QpState {
    /// Created; nothing may be posted.
    Reset,
    /// Receives may be posted.
    Init,
    /// Ready to receive.
    Rtr,
    /// Ready to send.
    Rts,
    /// Send queue drained (or draining).
    Sqd,
    /// Send queue in error (UC, UD).
    Sqe,
    /// Everything is flushed.
    Err,
}

impl QpState {
    /// Every state, in the order of `enum ibv_qp_state`.
    pub const ALL: [Self; 7] =
        [Self::Reset, Self::Init, Self::Rtr, Self::Rts, Self::Sqd, Self::Sqe, Self::Err];
    /// From the value of `enum ibv_qp_state`.
    pub fn from_enum(v: u8) -> Option<Self> {
        Self::ALL.get(v as usize).copied()
    }
}

/// A protection domain, by number.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub struct PdId(pub u32);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn q02_psn_distance() {
        let d = |n: u32| Psn::new(n).diff(Psn::new(0));
        assert_eq!(d(0), 0);
        assert_eq!(d(1), 1);
        assert_eq!(d((1 << 23) - 1), (1 << 23) - 1);
        assert_eq!(d(1 << 23), -(1 << 23));
        assert_eq!(d((1 << 23) + 1), -(1 << 23) + 1);
        assert_eq!(d((1 << 24) - 1), -1);
    }

    #[test]
    fn p32_path_mtu_of_link() {
        for (l3, mtu) in [(1500, 1024), (4200, 4096), (9000, 4096), (576, 256)] {
            assert_eq!(Mtu::of_link(l3).map(Mtu::bytes), Some(mtu), "link MTU {l3}");
        }
        for (l3, mtu) in [(352, 256), (608, 512), (1120, 1024), (2144, 2048), (4192, 4096)] {
            let mtu = Mtu::from_bytes(mtu);
            assert_eq!(Mtu::of_link(l3), mtu, "link MTU {l3}");
            assert!(Mtu::of_link(l3 - 1) < mtu, "link MTU {}", l3 - 1);
        }
        assert_eq!([0, 300, 351].map(Mtu::of_link), [None; 3]);
    }

    #[test]
    fn p33_gids() {
        assert_eq!(Gid::v4([10, 0, 0, 1]).to_string(), "::ffff:10.0.0.1");
        let v6: core::net::IpAddr = "fd00::7".parse().unwrap();
        assert_eq!(Gid::from_ip(v6).to_ip(), v6);
        let mac: Mac = "00:11:22:33:44:55".parse().unwrap();
        assert_eq!(Gid::link_local(mac).to_string(), "fe80::211:22ff:fe33:4455");
    }

    #[test]
    fn p34_multicast_macs() {
        assert_eq!(Mac::multicast(&Gid::v4([239, 1, 2, 3])).to_string(), "01:00:5e:01:02:03");
        let solicited = Gid::from_ip("ff02::1:ff00:1".parse().unwrap());
        assert_eq!(Mac::multicast(&solicited).to_string(), "33:33:ff:00:00:01");
    }

    #[test]
    fn packet_counts() {
        for (len, n) in
            [(0, 1), (1, 1), (1023, 1), (1024, 1), (1025, 2), (2048, 2), (2049, 3), (1 << 31, 1 << 21)]
        {
            assert_eq!(Mtu::Mtu1024.packets(len), n, "length {len}");
        }
    }
}
