//! The data structures of Identify (NVMe base 5.1.13), 4096 bytes each. Fields that this crate always leaves zero are part of a `reserved`
//! field.

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Length in bytes of every Identify data structure.
pub const LEN: usize = 4096;

/// CNS, the low byte of dword 10: which data structure to return.
pub mod cns {
    #![allow(missing_docs, reason = "the names are those of the specification")]
    pub const NAMESPACE: u8 = 0x00;
    pub const CONTROLLER: u8 = 0x01;
    pub const ACTIVE_NAMESPACES: u8 = 0x02;
    pub const DESCRIPTORS: u8 = 0x03;
    pub const NVM_CONTROLLER: u8 = 0x06;
}

/// Identify Controller.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Controller {
    /// PCI vendor: none.
    pub vid: U16,
    /// PCI subsystem vendor: none.
    pub ssvid: U16,
    /// Serial number.
    pub sn: [u8; 20],
    /// Model.
    pub mn: [u8; 40],
    /// Firmware revision.
    pub fr: [u8; 8],
    /// Recommended arbitration burst and IEEE OUI, zero.
    pub reserved: [u8; 4],
    /// Bit 0: the subsystem may have several ports; bit 1: several controllers.
    pub cmic: u8,
    /// Largest transfer: 4 KiB times 2 to this power; 0 is no limit.
    pub mdts: u8,
    /// Controller identifier.
    pub cntlid: U16,
    /// Version, as in the property VS.
    pub ver: U32,
    /// Runtime D3 latencies, zero.
    pub reserved2: [u8; 8],
    /// Supported optional asynchronous events.
    pub oaes: U32,
    /// Attributes; see [`Controller::HOST_ID_128`].
    pub ctratt: U32,
    /// Read recovery levels and reserved bytes, zero.
    pub reserved3: [u8; 11],
    /// 1: I/O, 2: discovery.
    pub cntrltype: u8,
    /// FRU GUID, command retry delays, management interface, optional admin commands, zero.
    pub reserved4: [u8; 146],
    /// Maximum number of outstanding Abort commands, 0's based.
    pub acl: u8,
    /// Maximum number of outstanding Asynchronous Event Requests, 0's based.
    pub aerl: u8,
    /// Firmware updates: bit 0: slot 1 is read-only; bits 3:1: number of slots.
    pub frmw: u8,
    /// Log page attributes: bit 1: effects log page; bit 2: offsets.
    pub lpa: u8,
    /// Entries of the error log, 0's based.
    pub elpe: u8,
    /// The fields from power states (NPSS) to timeouts and sanitize capabilities, zero.
    pub reserved5: [u8; 57],
    /// Granularity of the keep alive timeout, in units of 100 ms.
    pub kas: U16,
    /// The fields after the keep alive granularity, up to ANA and endurance groups, zero.
    pub reserved6: [u8; 190],
    /// Sizes of submission queue entries, powers of two.
    pub sqes: u8,
    /// Sizes of completion queue entries, powers of two.
    pub cqes: u8,
    /// Maximum number of outstanding commands of an I/O queue.
    pub maxcmd: U16,
    /// The largest namespace identifier.
    pub nn: U32,
    /// Optional NVM commands; see [`Controller::ONCS`].
    pub oncs: U16,
    /// Fused operation support and format attributes, zero.
    pub reserved7: [u8; 3],
    /// Volatile write cache: bit 0: present; bits 2:1: 2, Flush of all namespaces is not supported.
    pub vwc: u8,
    /// Atomic write units and vendor fields, zero: no atomicity beyond one block.
    pub reserved8: [u8; 10],
    /// SGL support; see [`Controller::SGLS`].
    pub sgls: U32,
    /// Maximum number of namespaces.
    pub mnan: U32,
    /// Reserved, zero.
    pub reserved9: [u8; 224],
    /// NQN of the subsystem.
    pub subnqn: [u8; 256],
    /// Reserved, zero.
    pub reserved10: [u8; 768],
    /// Largest command capsule of an I/O queue, in units of 16 bytes.
    pub ioccsz: U32,
    /// Largest response capsule of an I/O queue, in units of 16 bytes.
    pub iorcsz: U32,
    /// Offset of in-capsule data from the end of the submission queue entry, in units of 16 bytes.
    pub icdoff: U16,
    /// Fabrics controller attributes: bit 0 clear: dynamic controllers, which the target chooses.
    pub fcatt: u8,
    /// Maximum number of SGL data descriptors in a command.
    pub msdbd: u8,
    /// Optional fabrics commands, power state descriptors, vendor area, zero.
    pub reserved11: [u8; 2292],
}
const _: () = assert!(size_of::<Controller>() == LEN);

impl Controller {
    /// `cmic`: the subsystem may have several ports.
    pub const SEVERAL_PORTS: u8 = 1;
    /// `cmic`: the subsystem may have several controllers.
    pub const SEVERAL_CONTROLLERS: u8 = 1 << 1;
    /// `ctratt`: host identifiers have 128 bits.
    pub const HOST_ID_128: u32 = 1;
    /// `ctratt`: every command restarts the keep alive timer.
    pub const TRAFFIC_KEEP_ALIVE: u32 = 1 << 6;
    /// `oncs`: Compare, Write Zeroes, Verify.
    pub const ONCS: u16 = 1 | 1 << 3 | 1 << 7;
    /// `oncs`: Dataset Management.
    pub const ONCS_DATASET_MANAGEMENT: u16 = 1 << 2;
    /// `sgls`: SGLs are supported with any alignment, and keyed descriptors are supported.
    pub const SGLS: u32 = 1 | 1 << 2;
    /// `sgls`: descriptors with an offset are supported, that is, in-capsule data.
    pub const SGLS_OFFSET: u32 = 1 << 20;
    /// `frmw`: one slot, read-only.
    pub const ONE_FIRMWARE: u8 = 1 | 1 << 1;
    /// `vwc`: a volatile write cache is present; Flush of all namespaces at once is not supported.
    pub const CACHE: u8 = 1 | 2 << 1;
}

/// Identify Namespace.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Namespace {
    /// Size in blocks.
    pub nsze: U64,
    /// Capacity in blocks.
    pub ncap: U64,
    /// Blocks in use.
    pub nuse: U64,
    /// Features; see [`Namespace::GRANULARITIES`].
    pub nsfeat: u8,
    /// Number of LBA formats, 0's based.
    pub nlbaf: u8,
    /// The LBA format in use.
    pub flbas: u8,
    /// Metadata and protection capabilities, zero.
    pub reserved: [u8; 3],
    /// Bit 0: several controllers may share the namespace.
    pub nmic: u8,
    /// Reservation capabilities and format progress, zero.
    pub reserved2: [u8; 2],
    /// Bits 2:0, value 1: deallocated blocks read as zeros; bit 3: Write Zeroes may deallocate.
    pub dlfeat: u8,
    /// Atomic write units and boundaries, zero.
    pub reserved3: [u8; 30],
    /// Preferred write granularity in blocks, 0's based.
    pub npwg: U16,
    /// Preferred write alignment in blocks, 0's based.
    pub npwa: U16,
    /// Preferred deallocate granularity in blocks, 0's based.
    pub npdg: U16,
    /// Preferred deallocate alignment in blocks, 0's based.
    pub npda: U16,
    /// Optimal write size in blocks, 0's based.
    pub nows: U16,
    /// Copy limits and ANA group, zero.
    pub reserved6: [u8; 25],
    /// Bit 0: write protected.
    pub nsattr: u8,
    /// NVM set and endurance group identifiers, zero.
    pub reserved4: [u8; 4],
    /// Namespace globally unique identifier.
    pub nguid: [u8; 16],
    /// EUI-64: none.
    pub eui64: [u8; 8],
    /// LBA formats.
    pub lbaf: [Format; 16],
    /// Reserved, zero.
    pub reserved5: [u8; 3904],
}
const _: () = assert!(size_of::<Namespace>() == LEN);

impl Namespace {
    /// `nsfeat`: the fields `npwg` to `nows` are valid.
    pub const GRANULARITIES: u8 = 1 << 4;
}

/// An LBA format.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Format {
    /// Bytes of metadata per block.
    pub ms: U16,
    /// Bytes of data per block, as an exponent of two.
    pub lbads: u8,
    /// Relative performance: 0 is best.
    pub rp: u8,
}

/// The head of an entry of the namespace identification descriptor list.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct DescriptorHead {
    /// [`DescriptorHead::NGUID`] or [`DescriptorHead::UUID`].
    pub kind: u8,
    /// Length of the identifier that follows, in bytes.
    pub len: u8,
    /// Reserved, zero.
    pub reserved: [u8; 2],
}
const _: () = assert!(size_of::<DescriptorHead>() == 4);

impl DescriptorHead {
    /// A globally unique identifier, 16 bytes.
    pub const NGUID: u8 = 2;
    /// A UUID, 16 bytes.
    pub const UUID: u8 = 3;
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::mem::offset_of;

    // Goal: fields have the right offsets. The size alone would not show that two fields are exchanged.
    #[test]
    fn fields_are_where_the_specification_has_them() {
        let controller = [
            (offset_of!(Controller, sn), 4),
            (offset_of!(Controller, mn), 24),
            (offset_of!(Controller, fr), 64),
            (offset_of!(Controller, cmic), 76),
            (offset_of!(Controller, mdts), 77),
            (offset_of!(Controller, cntlid), 78),
            (offset_of!(Controller, ver), 80),
            (offset_of!(Controller, oaes), 92),
            (offset_of!(Controller, ctratt), 96),
            (offset_of!(Controller, cntrltype), 111),
            (offset_of!(Controller, acl), 258),
            (offset_of!(Controller, aerl), 259),
            (offset_of!(Controller, frmw), 260),
            (offset_of!(Controller, lpa), 261),
            (offset_of!(Controller, elpe), 262),
            (offset_of!(Controller, kas), 320),
            (offset_of!(Controller, sqes), 512),
            (offset_of!(Controller, cqes), 513),
            (offset_of!(Controller, maxcmd), 514),
            (offset_of!(Controller, nn), 516),
            (offset_of!(Controller, oncs), 520),
            (offset_of!(Controller, vwc), 525),
            (offset_of!(Controller, sgls), 536),
            (offset_of!(Controller, mnan), 540),
            (offset_of!(Controller, subnqn), 768),
            (offset_of!(Controller, ioccsz), 1792),
            (offset_of!(Controller, iorcsz), 1796),
            (offset_of!(Controller, icdoff), 1800),
            (offset_of!(Controller, fcatt), 1802),
            (offset_of!(Controller, msdbd), 1803),
        ];
        let namespace = [
            (offset_of!(Namespace, nsfeat), 24),
            (offset_of!(Namespace, flbas), 26),
            (offset_of!(Namespace, nmic), 30),
            (offset_of!(Namespace, dlfeat), 33),
            (offset_of!(Namespace, npwg), 64),
            (offset_of!(Namespace, npdg), 68),
            (offset_of!(Namespace, nows), 72),
            (offset_of!(Namespace, nsattr), 99),
            (offset_of!(Namespace, nguid), 104),
            (offset_of!(Namespace, eui64), 120),
            (offset_of!(Namespace, lbaf), 128),
        ];
        for (is, should) in controller.into_iter().chain(namespace) {
            assert_eq!(is, should);
        }
    }
}
