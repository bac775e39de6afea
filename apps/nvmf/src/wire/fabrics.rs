//! Fabrics commands (NVMe base 6): Connect, and access to the controller's properties.

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{Sgl, Sqe};

/// The opcode of all fabrics commands.
pub const OPCODE: u8 = 0x7F;

/// The type of a fabrics command, its byte 4.
pub mod fctype {
    #![allow(missing_docs, reason = "the names are those of the specification")]
    pub const PROPERTY_SET: u8 = 0x00;
    pub const CONNECT: u8 = 0x01;
    pub const PROPERTY_GET: u8 = 0x04;
}

/// A Connect command.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct ConnectCommand {
    /// [`OPCODE`].
    pub opcode: u8,
    /// As in [`Sqe`].
    pub flags: u8,
    /// As in [`Sqe`].
    pub cid: U16,
    /// [`fctype::CONNECT`].
    pub fctype: u8,
    /// Reserved, zero.
    pub reserved: [u8; 19],
    /// Where the [`ConnectData`] are.
    pub sgl: Sgl,
    /// Format of the data: 0.
    pub format: U16,
    /// Number of the queue.
    pub qid: U16,
    /// Entries of the submission queue, 0's based.
    pub sqsize: U16,
    /// Attributes; [`ConnectCommand::NO_FLOW_CONTROL`].
    pub attributes: u8,
    /// Reserved, zero.
    pub reserved2: u8,
    /// Keep alive timeout in milliseconds.
    pub kato_ms: U32,
    /// Reserved, zero.
    pub reserved3: [u8; 12],
}
const _: () = assert!(size_of::<ConnectCommand>() == Sqe::LEN);

impl ConnectCommand {
    /// Attribute: the host asks to disable SQ flow control.
    pub const NO_FLOW_CONTROL: u8 = 1 << 2;

    /// The command as a Connect.
    pub fn of(sqe: &Sqe) -> &Self {
        zerocopy::transmute_ref!(sqe)
    }
}

/// The data of Connect.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct ConnectData {
    /// Host identifier.
    pub host_id: [u8; 16],
    /// Controller identifier: [`ConnectData::ANY_CONTROLLER`] for an admin queue; for an I/O queue, the controller that it belongs to.
    pub cntlid: U16,
    /// Reserved, zero.
    pub reserved: [u8; 238],
    /// NQN of the subsystem.
    pub subsystem: [u8; 256],
    /// NQN of the host.
    pub host: [u8; 256],
    /// Reserved, zero.
    pub reserved2: [u8; 256],
}
const _: () = assert!(size_of::<ConnectData>() == ConnectData::LEN);

impl ConnectData {
    /// Length in bytes.
    pub const LEN: usize = 1024;
    /// The target chooses the controller.
    pub const ANY_CONTROLLER: u16 = 0xFFFF;
}

/// The invalid parameter of a Connect, as the result of a [`Status::ConnectInvalid`](crate::status::Status) completion encodes it: the byte
/// offset of the field, with bit 16 set if the field is in the data.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum ConnectField {
    /// Queue identifier, in the command.
    QueueId = 42,
    /// Submission queue size, in the command.
    QueueSize = 44,
    /// Host identifier, in the data.
    HostId = 1 << 16,
    /// Controller identifier, in the data.
    ControllerId = 1 << 16 | 16,
    /// Subsystem NQN, in the data.
    Subsystem = 1 << 16 | 256,
    /// Host NQN, in the data.
    Host = 1 << 16 | 512,
}

/// A Property Get or Property Set command.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct PropertyCommand {
    /// [`OPCODE`].
    pub opcode: u8,
    /// As in [`Sqe`].
    pub flags: u8,
    /// As in [`Sqe`].
    pub cid: U16,
    /// [`fctype::PROPERTY_GET`] or [`fctype::PROPERTY_SET`].
    pub fctype: u8,
    /// Reserved, zero.
    pub reserved: [u8; 35],
    /// Bits 2:0: 0 for a property of four bytes, 1 for one of eight.
    pub attributes: u8,
    /// Reserved, zero.
    pub reserved2: [u8; 3],
    /// Offset of the property.
    pub offset: U32,
    /// The new value, for Property Set.
    pub value: U64,
    /// Reserved, zero.
    pub reserved3: [u8; 8],
}
const _: () = assert!(size_of::<PropertyCommand>() == Sqe::LEN);

impl PropertyCommand {
    /// The command as a Property Get or Property Set.
    pub fn of(sqe: &Sqe) -> &Self {
        zerocopy::transmute_ref!(sqe)
    }
}
