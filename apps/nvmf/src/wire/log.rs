//! Log pages (NVMe base 5.1.12), except the discovery log page.

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
    /// Number of the error, counted from 1 since the controller was created; 0 for an unused entry.
    pub count: U64,
    /// Submission queue identifier of the command.
    pub sq_id: U16,
    /// Command identifier.
    pub cid: U16,
    /// Status field of its completion.
    pub status: U16,
    /// Byte and bit of the invalid parameter; 0xFFFF if no one parameter is to blame.
    pub location: U16,
    /// The first affected logical block.
    pub lba: U64,
    /// Namespace of the command.
    pub nsid: U32,
    /// Vendor-specific log page with more information; 0 for none.
    pub vendor: u8,
    /// Transport: 1 is RDMA.
    pub transport: u8,
    /// Reserved, zero.
    pub reserved: [u8; 2],
    /// Reserved, zero.
    pub specific: U64,
    /// Reserved, zero.
    pub transport_specific: U16,
    /// Reserved, zero.
    pub reserved2: [u8; 22],
}
const _: () = assert!(size_of::<ErrorEntry>() == 64);

/// SMART / health information.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Smart {
    /// Critical warning: only [`Smart::RELIABILITY`] is used, while a namespace has lost data.
    pub warning: u8,
    /// Composite temperature in Kelvin; 0 for not reported.
    pub temperature: U16,
    /// Available spare capacity, in percent.
    pub spare: u8,
    /// Spare capacity below which a warning is due, in percent.
    pub spare_threshold: u8,
    /// Used part of the expected lifetime, in percent.
    pub used: u8,
    /// Reserved, zero.
    pub reserved: [u8; 26],
    /// Data read, in units of 1000 times 512 bytes, rounded up.
    pub data_read: U128,
    /// Data written, in units of 1000 times 512 bytes, rounded up.
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
    /// Number of error log entries since the controller was created.
    pub error_entries: U128,
    /// Times at high temperatures, and temperatures of sensors: not reported.
    pub rest: [u8; 320],
}
const _: () = assert!(size_of::<Smart>() == 512);

impl Smart {
    /// Critical warning: the reliability of the subsystem is degraded.
    pub const RELIABILITY: u8 = 1 << 2;
}

/// Firmware slot information: there is one slot, and its firmware is active.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Firmware {
    /// The active slot, from 1.
    pub active: u8,
    /// Reserved, zero.
    pub reserved: [u8; 7],
    /// Revision of the firmware in slot 1.
    pub revision: [u8; 8],
    /// Other slots.
    pub rest: [u8; 496],
}
const _: () = assert!(size_of::<Firmware>() == 512);

/// Commands supported and effects.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Effects {
    /// Admin commands, by opcode.
    pub admin: [U32; 256],
    /// I/O commands, by opcode.
    pub io: [U32; 256],
    /// Reserved, zero.
    pub reserved: [u8; 2048],
}
const _: () = assert!(size_of::<Effects>() == 4096);

impl Effects {
    /// The command is supported.
    pub const SUPPORTED: u32 = 1;
    /// The command may change the content of logical blocks.
    pub const CHANGES_BLOCKS: u32 = 1 << 1;

    /// A page with no supported commands.
    pub fn none() -> Self {
        Self::new_zeroed()
    }
}
