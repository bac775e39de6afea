//! What Identify returns (NVMe base 5.1.13), 4096 bytes each. Fields that are zero in every target of this crate are
//! gathered in `reserved`.

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Bytes that every Identify returns.
pub const LEN: usize = 4096;

/// What is asked for: CNS, the low byte of dword 10.
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
    /// Recommended arbitration burst, an OUI.
    pub reserved: [u8; 4],
    /// Bit 0: several ports, bit 1: several controllers.
    pub cmic: u8,
    /// Largest transfer: 2^n times 4 KiB, 0 is any.
    pub mdts: u8,
    /// Number of the controller.
    pub cntlid: U16,
    /// Version, as the property VS.
    pub ver: U32,
    /// Times of runtime D3.
    pub reserved2: [u8; 8],
    /// Asynchronous events that there are.
    pub oaes: U32,
    /// Attributes; [`Controller::HOST_ID_128`].
    pub ctratt: U32,
    /// Read recovery levels.
    pub reserved3: [u8; 11],
    /// 1: I/O, 2: discovery.
    pub cntrltype: u8,
    /// Identifier of the FRU; retry delays; management interface; optional admin commands.
    pub reserved4: [u8; 146],
    /// Abort commands at a time, less one.
    pub acl: u8,
    /// Asynchronous event requests at a time, less one.
    pub aerl: u8,
    /// Firmware: bit 0: slot 1 is read-only, bits 3:1: slots.
    pub frmw: u8,
    /// Log pages: bit 1: effects, bit 2: offsets.
    pub lpa: u8,
    /// Entries of the error log, less one.
    pub elpe: u8,
    /// Power states to sanitize: none.
    pub reserved5: [u8; 57],
    /// Granularity of the keep alive timeout, 100 ms.
    pub kas: U16,
    /// Thermal management to endurance groups, ANA.
    pub reserved6: [u8; 190],
    /// Sizes of submission queue entries, powers of two.
    pub sqes: u8,
    /// Sizes of completion queue entries, powers of two.
    pub cqes: u8,
    /// Commands that a queue may have at a time.
    pub maxcmd: U16,
    /// Namespace identifiers are 1 to this.
    pub nn: U32,
    /// Optional NVM commands; [`Controller::ONCS`].
    pub oncs: U16,
    /// Fused commands, format attributes.
    pub reserved7: [u8; 3],
    /// Volatile write cache: bit 0: present, bits 2:1: 2, Flush names one namespace.
    pub vwc: u8,
    /// Atomicity beyond one block: none.
    pub reserved8: [u8; 10],
    /// Data descriptors; [`Controller::SGLS`].
    pub sgls: U32,
    /// Namespaces that there may be.
    pub mnan: U32,
    /// Nothing.
    pub reserved9: [u8; 224],
    /// Name of the subsystem.
    pub subnqn: [u8; 256],
    /// Nothing.
    pub reserved10: [u8; 768],
    /// Largest command capsule, in 16 bytes.
    pub ioccsz: U32,
    /// Largest response capsule, in 16 bytes.
    pub iorcsz: U32,
    /// Where in-capsule data start, in 16 bytes behind the submission queue entry.
    pub icdoff: U16,
    /// 0: controllers are chosen by the target.
    pub fcatt: u8,
    /// Data descriptors a command.
    pub msdbd: u8,
    /// Disconnect, power states, vendor.
    pub reserved11: [u8; 2292],
}
const _: () = assert!(size_of::<Controller>() == LEN);

impl Controller {
    /// `cmic`: the subsystem has several ports.
    pub const SEVERAL_PORTS: u8 = 1;
    /// `cmic`: it has several controllers.
    pub const SEVERAL_CONTROLLERS: u8 = 1 << 1;
    /// `ctratt`: host identifiers have 128 bits.
    pub const HOST_ID_128: u32 = 1;
    /// `ctratt`: every command keeps the association alive.
    pub const TRAFFIC_KEEP_ALIVE: u32 = 1 << 6;
    /// `oncs`: Compare, Write Zeroes, Verify.
    pub const ONCS: u16 = 1 | 1 << 3 | 1 << 7;
    /// `oncs`: Dataset Management.
    pub const ONCS_DATASET_MANAGEMENT: u16 = 1 << 2;
    /// `sgls`: supported, any alignment; keyed.
    pub const SGLS: u32 = 1 | 1 << 2;
    /// `sgls`: offsets, that is in-capsule data.
    pub const SGLS_OFFSET: u32 = 1 << 20;
    /// `frmw`: one slot, read-only.
    pub const ONE_FIRMWARE: u8 = 1 | 1 << 1;
    /// `vwc`: there is a cache; Flush of all namespaces at once is not supported.
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
    /// Features.
    pub nsfeat: u8,
    /// Formats, less one.
    pub nlbaf: u8,
    /// The format in use.
    pub flbas: u8,
    /// Metadata, protection.
    pub reserved: [u8; 3],
    /// Bit 0: several controllers may have it.
    pub nmic: u8,
    /// Reservations, format progress.
    pub reserved2: [u8; 2],
    /// Bits 2:0: 1: deallocated blocks read as zeros; bit 3: Write Zeroes may deallocate.
    pub dlfeat: u8,
    /// Atomicity beyond one block, boundaries.
    pub reserved3: [u8; 30],
    /// Blocks that are best written together, and from which multiples of blocks on; less one, as all of these.
    pub npwg: U16,
    /// See above.
    pub npwa: U16,
    /// Blocks that can be deallocated together, and from which multiples on.
    pub npdg: U16,
    /// See above.
    pub npda: U16,
    /// Blocks that are best written by a command.
    pub nows: U16,
    /// Limits of copies, groups.
    pub reserved6: [u8; 25],
    /// Bit 0: write protected.
    pub nsattr: u8,
    /// Groups.
    pub reserved4: [u8; 4],
    /// Globally unique identifier.
    pub nguid: [u8; 16],
    /// EUI-64: none.
    pub eui64: [u8; 8],
    /// Formats.
    pub lbaf: [Format; 16],
    /// Nothing.
    pub reserved5: [u8; 3904],
}
const _: () = assert!(size_of::<Namespace>() == LEN);

impl Namespace {
    /// `nsfeat`: `npwg` to `nows` mean something.
    pub const GRANULARITIES: u8 = 1 << 4;
}

/// A format of blocks.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Format {
    /// Bytes of metadata a block.
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
    /// Bytes that follow.
    pub len: u8,
    /// Nothing.
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

    // Goal: sizes add up even if two fields were exchanged; offsets do not.
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
