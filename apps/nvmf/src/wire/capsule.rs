//! Capsules (NVMe base 3.3.3): the submission queue entry that starts a command capsule, and the completion queue entry that is a response
//! capsule.

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::sgl::Sgl;

/// A submission queue entry.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Sqe {
    /// The command. The same number means different commands on I/O queues and on the admin queue.
    pub opcode: u8,
    /// Bits 1:0: fused operation; bits 7:6 (PSDT): whether PRPs or SGLs describe the data.
    pub flags: u8,
    /// Command identifier: chosen by the host, copied to the response.
    pub cid: U16,
    /// Namespace identifier. In a fabrics command its low byte is the command type.
    pub nsid: U32,
    /// Command dword 2.
    pub cdw2: U32,
    /// Command dword 3.
    pub cdw3: U32,
    /// Metadata pointer.
    pub metadata: U64,
    /// SGL descriptor of the data.
    pub sgl: Sgl,
    /// Command dword 10.
    pub cdw10: U32,
    /// Command dword 11.
    pub cdw11: U32,
    /// Command dword 12.
    pub cdw12: U32,
    /// Command dword 13.
    pub cdw13: U32,
    /// Command dword 14.
    pub cdw14: U32,
    /// Command dword 15.
    pub cdw15: U32,
}
const _: () = assert!(size_of::<Sqe>() == Sqe::LEN);

impl Sqe {
    /// Length in bytes; in-capsule data follow the entry.
    pub const LEN: usize = 64;
    /// `flags`: the data are described by one SGL descriptor, and there is no SGL for metadata.
    pub const FLAGS_SGL: u8 = 0x40;
    /// `flags`: the bits of PSDT.
    pub const FLAGS_PSDT: u8 = 0xC0;
    /// `flags`: the bits of the fused operation.
    pub const FLAGS_FUSE: u8 = 0x03;

    /// The bytes as a submission queue entry.
    pub fn of(bytes: &[u8; Self::LEN]) -> &Self {
        zerocopy::transmute_ref!(bytes)
    }
    /// The first logical block, in commands that have one.
    pub const fn slba(&self) -> u64 {
        self.cdw10.get() as u64 | (self.cdw11.get() as u64) << 32
    }
}

/// A completion queue entry; it is a whole response capsule.
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Cqe {
    /// Command-specific result.
    pub result: U64,
    /// Submission queue head pointer: consumed entries, modulo the size of the queue.
    pub sq_head: U16,
    /// Identifier of the queue.
    pub sq_id: U16,
    /// Identifier of the command.
    pub cid: U16,
    /// Status field, as made by [`Status::field`](crate::status::Status::field).
    pub status: U16,
}
const _: () = assert!(size_of::<Cqe>() == 16);
