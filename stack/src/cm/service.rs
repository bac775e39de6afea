//! How services are named: service IDs, the port spaces of `rdma_cm`, and the IP header that precedes the private data (IBA annex A11, IP
//! CM service).

use core::fmt;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// A port space of `rdma_cm` (`enum rdma_port_space`): bits 16 to 31 of a service ID.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash)]
#[repr(u16)]
pub enum PortSpace {
    /// Datagram services of IP over InfiniBand.
    #[doc(alias = "RDMA_PS_IPOIB")]
    IpoIb = 0x0002,
    /// Connected services.
    #[doc(alias = "RDMA_PS_TCP")]
    Tcp = 0x0106,
    /// Datagram services.
    #[doc(alias = "RDMA_PS_UDP")]
    Udp = 0x0111,
    /// Services of any type, with InfiniBand service IDs.
    #[doc(alias = "RDMA_PS_IB")]
    Ib = 0x013f,
}

impl PortSpace {
    /// From the number in `enum rdma_port_space`; `None` for an unknown number.
    pub const fn from_enum(v: u16) -> Option<Self> {
        match v {
            0x0002 => Some(Self::IpoIb),
            0x0106 => Some(Self::Tcp),
            0x0111 => Some(Self::Udp),
            0x013f => Some(Self::Ib),
            _ => None,
        }
    }
}

/// A service ID: names the service that a REQ or SIDR_REQ requests (IBA 12.7.3).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Hash)]
pub struct ServiceId(pub u64);

impl ServiceId {
    /// The service ID of a port of `rdma_cm`: port space in bits 16 to 31, port in bits 0 to 15.
    pub const fn new(space: PortSpace, port: u16) -> Self {
        Self(((space as u64) << 16) | port as u64)
    }
    /// The port space; `None` if this is not a service ID of `rdma_cm`. If it is one, the private data begins with an [`IpHeader`].
    pub const fn port_space(self) -> Option<PortSpace> {
        if self.0 >> 32 != 0 { None } else { PortSpace::from_enum((self.0 >> 16) as u16) }
    }
    /// The low 16 bits: the destination port, if [`ServiceId::port_space`] is not `None`.
    pub const fn port(self) -> u16 {
        self.0 as u16
    }
}

impl fmt::Debug for ServiceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#018x}", self.0)
    }
}

/// The header of 36 bytes that `rdma_cm` puts before the private data of a REQ or SIDR_REQ (IBA annex A11).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub struct IpHeader {
    /// Port of the active side. (The destination port is in the service ID.)
    pub src_port: u16,
    /// Address of the active side.
    pub src: IpAddr,
    /// Address of the passive side, of the same family.
    pub dst: IpAddr,
}

/// Why 36 bytes are not an [`IpHeader`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum IpHeaderError {
    /// The version byte is not zero.
    #[error("version {0:#04x} of the IP CM header is not known, 0 is")]
    Version(u8),
    /// The IP version is neither 4 nor 6.
    #[error("IP version {0} of the IP CM header is neither 4 nor 6")]
    IpVersion(u8),
}

impl IpHeader {
    /// Length of the header in bytes.
    pub const LEN: usize = 36;

    /// Reads the header. An IPv4-mapped IPv6 address, which some peers use, becomes an IPv4 address.
    ///
    /// # Errors
    /// [`IpHeaderError`] if the version is not 0, or the IP version is neither 4 nor 6.
    pub fn read(b: &[u8; Self::LEN]) -> Result<Self, IpHeaderError> {
        if b[0] != 0 {
            return Err(IpHeaderError::Version(b[0]));
        }
        let addr = |at: usize| -> [u8; 16] { b[at..at + 16].try_into().expect("16 bytes") };
        let v4 = |a: [u8; 16]| IpAddr::V4(Ipv4Addr::new(a[12], a[13], a[14], a[15]));
        let (src, dst) = match b[1] >> 4 {
            4 => (v4(addr(4)), v4(addr(20))),
            6 => (IpAddr::V6(Ipv6Addr::from(addr(4))), IpAddr::V6(Ipv6Addr::from(addr(20)))),
            other => return Err(IpHeaderError::IpVersion(other)),
        };
        let src_port = u16::from_be_bytes([b[2], b[3]]);
        Ok(Self { src_port, src: src.to_canonical(), dst: dst.to_canonical() })
    }

    /// Writes the header, in the address family of the destination. A source of the other family is written as zero.
    pub fn write(&self, b: &mut [u8; Self::LEN]) {
        b.fill(0);
        b[1] = if self.dst.is_ipv4() { 0x40 } else { 0x60 };
        b[2..4].copy_from_slice(&self.src_port.to_be_bytes());
        for (at, addr) in [(4, self.src), (20, self.dst)] {
            match (addr, self.dst.is_ipv4()) {
                (IpAddr::V4(a), true) => b[at + 12..at + 16].copy_from_slice(&a.octets()),
                (IpAddr::V6(a), false) => b[at..at + 16].copy_from_slice(&a.octets()),
                _ => {}
            }
        }
    }
}
