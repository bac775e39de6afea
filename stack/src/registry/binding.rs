//! A binding of a connection management identifier to a port, and the rule which two bindings can coexist.

use core::net::{IpAddr, Ipv6Addr};

/// The IP versions to which a binding applies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Family {
    /// IPv4 only.
    V4,
    /// IPv6 only.
    V6,
    /// Both: the IPv6 wildcard without AFONLY.
    Both,
}

/// A binding of a port.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Binding {
    /// Port space and port: the low half of the service ID, whose high half is zero.
    pub service: u32,
    /// The local address; `None` for every local address of `family`.
    pub addr: Option<IpAddr>,
    /// The IP versions.
    pub family: Family,
    /// Whether other bindings that allow it, too, may have the same port and address.
    pub reuse: bool,
}

impl Binding {
    /// Whether two bindings cannot coexist.
    pub fn clashes(&self, other: &Self) -> bool {
        let other_family =
            matches!((self.family, other.family), (Family::V4, Family::V6) | (Family::V6, Family::V4));
        let other_addr = matches!((self.addr, other.addr), (Some(a), Some(b)) if a != b);
        let shared = self.reuse && other.reuse;
        self.service == other.service && !(other_family || other_addr || shared)
    }

    /// How specifically it matches a destination: 0 not at all, 1 by the wildcard address, 2 by its own address.
    pub fn serves(&self, dst: IpAddr) -> u8 {
        match self.addr {
            Some(addr) => 2 * u8::from(addr == dst),
            None => u8::from(match self.family {
                Family::V4 => dst.is_ipv4(),
                Family::V6 => dst.is_ipv6(),
                Family::Both => true,
            }),
        }
    }

    /// Packs family, presence of an address, and reuse into bits; returns them and the address.
    pub(super) fn pack(&self) -> (u64, u128) {
        let family = match self.family {
            Family::V4 => 0,
            Family::V6 => 1,
            Family::Both => 2,
        };
        let addr = self.addr.map_or(0, |addr| match addr {
            IpAddr::V4(addr) => addr.to_ipv6_mapped().to_bits(),
            IpAddr::V6(addr) => addr.to_bits(),
        });
        (family | u64::from(self.addr.is_some()) << 2 | u64::from(self.reuse) << 3, addr)
    }

    /// Unpacks a [packed](Self::pack) binding. Any numbers are valid input.
    pub(super) fn unpack(service: u32, bits: u64, addr: u128) -> Self {
        let family = match bits & 3 {
            0 => Family::V4,
            1 => Family::V6,
            _ => Family::Both,
        };
        let addr = IpAddr::V6(Ipv6Addr::from_bits(addr)).to_canonical();
        Self { service, addr: (bits >> 2 & 1 != 0).then_some(addr), family, reuse: bits >> 3 & 1 != 0 }
    }
}

/// Number of bits that [`Binding::pack`] uses.
pub(super) const PACKED: u32 = 4;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bindings_come_back_as_they_went_in() {
        for addr in [None, Some("10.0.0.1".parse().unwrap()), Some("fd00::7".parse().unwrap())] {
            for family in [Family::V4, Family::V6, Family::Both] {
                for reuse in [false, true] {
                    let binding = Binding { service: 7, addr, family, reuse };
                    let (bits, packed) = binding.pack();
                    assert_eq!(bits >> PACKED, 0);
                    assert_eq!(Binding::unpack(7, bits, packed), binding);
                }
            }
        }
    }

    #[test]
    fn the_own_address_serves_before_the_wildcard() {
        let [v4, other]: [IpAddr; 2] = ["10.0.0.1", "10.0.0.2"].map(|addr| addr.parse().unwrap());
        let v6: IpAddr = "fd00::7".parse().unwrap();
        let of = |addr, family| Binding { service: 7, addr, family, reuse: false };
        let serves = |binding: Binding| [v4, other, v6].map(|dst| binding.serves(dst));
        assert_eq!(serves(of(Some(v4), Family::V4)), [2, 0, 0]);
        assert_eq!(serves(of(None, Family::V4)), [1, 1, 0]);
        assert_eq!(serves(of(None, Family::V6)), [0, 0, 1]);
        assert_eq!(serves(of(None, Family::Both)), [1, 1, 1]);
    }
}
