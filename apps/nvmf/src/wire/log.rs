//! Log pages (NVMe base 5.1.12), the discovery log aside.

use zerocopy::little_endian::{U16, U32, U64, U128};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Identifiers of log pages.
pub mod lid {
    #![allow(missing_docs, reason = "the names are those of the specification")]
    pub const ERROR: u8 = 0x01;
    pub const SMART: u8 = 0x02;
    pub const FIRMWARE: u8 = 0x03;
    pub const CHANGED_NAMESPACES: u8 = 0x04;
    pub const EFFECTS: u8 = 0x05;
    pub const DISCOVERY: u8 = 0x70;
}

/// An entry of the error log.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct ErrorEntry {
    /// Counts errors since the controller was made; 0 is no entry.
    pub count: U64,
    /// Queue of the command.
    pub sq_id: U16,
    /// Identifier of the command.
    pub cid: U16,
    /// Status field of its completion.
    pub status: U16,
    /// Byte and bit that is wrong, or 0xFFFF.
    pub location: U16,
    /// The first block that has to do with it.
    pub lba: U64,
    /// Its namespace.
    pub nsid: U32,
    /// No vendor specific log.
    pub vendor: u8,
    /// Transport: 1 is RDMA.
    pub transport: u8,
    /// Nothing.
    pub reserved: [u8; 2],
    /// Nothing.
    pub specific: U64,
    /// Nothing.
    pub transport_specific: U16,
    /// Nothing.
    pub reserved2: [u8; 22],
}
const _: () = assert!(size_of::<ErrorEntry>() == 64);

/// SMART / health information.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Smart {
    /// Critical warnings: bit 2 alone, while a namespace has lost data.
    pub warning: u8,
    /// Composite temperature in Kelvin; 0 is not reported.
    pub temperature: U16,
    /// Spare capacity in percent.
    pub spare: u8,
    /// Spare capacity below which a warning is due.
    pub spare_threshold: u8,
    /// Used part of the expected life, in percent.
    pub used: u8,
    /// Nothing.
    pub reserved: [u8; 26],
    /// Thousands of 512 bytes, rounded up.
    pub data_read: U128,
    /// Thousands of 512 bytes, rounded up.
    pub data_written: U128,
    /// Read and Compare commands.
    pub reads: U128,
    /// Write commands.
    pub writes: U128,
    /// Not reported.
    pub busy_minutes: U128,
    /// Not reported.
    pub power_cycles: U128,
    /// Not reported.
    pub power_on_hours: U128,
    /// Not reported.
    pub unsafe_shutdowns: U128,
    /// Commands that ended with a media error.
    pub media_errors: U128,
    /// Entries that the error log had.
    pub error_entries: U128,
    /// Times, and temperatures of sensors: not reported.
    pub rest: [u8; 320],
}
const _: () = assert!(size_of::<Smart>() == 512);

impl Smart {
    /// Critical warning: the reliability is degraded.
    pub const RELIABILITY: u8 = 1 << 2;
}

/// Firmware slots: one, whose firmware is active.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Firmware {
    /// The active slot, from 1.
    pub active: u8,
    /// Nothing.
    pub reserved: [u8; 7],
    /// Revision of the firmware in slot 1.
    pub revision: [u8; 8],
    /// Other slots.
    pub rest: [u8; 496],
}
const _: () = assert!(size_of::<Firmware>() == 512);

/// Which commands there are and what they change.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Effects {
    /// By opcode.
    pub admin: [U32; 256],
    /// By opcode.
    pub io: [U32; 256],
    /// Nothing.
    pub reserved: [u8; 2048],
}
const _: () = assert!(size_of::<Effects>() == 4096);

impl Effects {
    /// The command is supported.
    pub const SUPPORTED: u32 = 1;
    /// It may change the content of logical blocks.
    pub const CHANGES_BLOCKS: u32 = 1 << 1;

    /// None.
    pub fn none() -> Self {
        Self::new_zeroed()
    }
}
