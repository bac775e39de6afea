//! The discovery log page (NVMe base 5.1.12.3.1): a header, then a record for each subsystem and port.

use zerocopy::little_endian::{U16, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The header.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Header {
    /// Generation counter: changes when the records change.
    pub generation: U64,
    /// Number of records.
    pub records: U64,
    /// Format of the records: 0.
    pub format: U16,
    /// Reserved, zero.
    pub reserved: [u8; 1006],
}
const _: () = assert!(size_of::<Header>() == 1024);

/// A record.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Record {
    /// Transport: 1 is RDMA.
    pub transport: u8,
    /// Address family: 1 is IPv4, 2 is IPv6.
    pub family: u8,
    /// Subsystem type: [`Record::NVM`] or [`Record::CURRENT`].
    pub subtype: u8,
    /// Transport requirements; [`Record::NO_FLOW_CONTROL`].
    pub requirements: u8,
    /// Port identifier.
    pub port: U16,
    /// Controller identifier: 0xFFFF, the target chooses.
    pub cntlid: U16,
    /// Maximum number of entries of an admin submission queue.
    pub admin_entries: U16,
    /// Flags of the entry.
    pub flags: U16,
    /// Reserved, zero.
    pub reserved: [u8; 20],
    /// Service: the port number, in decimal.
    pub service: [u8; 32],
    /// Reserved, zero.
    pub reserved2: [u8; 192],
    /// Name of the subsystem.
    pub subsystem: [u8; 256],
    /// IP address, as text.
    pub address: [u8; 256],
    /// How to connect by RDMA.
    pub rdma: RdmaAddress,
}
const _: () = assert!(size_of::<Record>() == Record::LEN);

impl Record {
    /// Length in bytes.
    pub const LEN: usize = 1024;
    /// `transport`: RDMA.
    pub const RDMA: u8 = 1;
    /// `subtype`: a subsystem with namespaces.
    pub const NVM: u8 = 2;
    /// `subtype`: the discovery subsystem that returns this log.
    pub const CURRENT: u8 = 3;
    /// `requirements`: SQ flow control may be disabled.
    pub const NO_FLOW_CONTROL: u8 = 1 << 2;
}

/// How to connect by RDMA: the transport specific part of a record.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct RdmaAddress {
    /// Queue pair type; 1: reliable connected.
    pub qp_type: u8,
    /// RDMA provider; 4: RoCEv2.
    pub provider: u8,
    /// Connection management; 1: RDMA_CM.
    pub cm: u8,
    /// Reserved, zero.
    pub reserved: [u8; 5],
    /// Partition key; 0 outside of InfiniBand.
    pub pkey: U16,
    /// Reserved, zero.
    pub reserved2: [u8; 246],
}
const _: () = assert!(size_of::<RdmaAddress>() == 256);
