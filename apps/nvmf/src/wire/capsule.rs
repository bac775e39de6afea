//! Command and response: the submission queue entry that starts a command capsule, the completion queue entry that is a
//! response capsule (NVMe base 3.3.3).

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::sgl::Sgl;

/// A submission queue entry.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Sqe {
    /// What to do. On I/O queues and the admin queue the same number means different things.
    pub opcode: u8,
    /// Bits 1:0 fused operation, bits 7:6 what describes the data.
    pub flags: u8,
    /// Chosen by the host, echoed in the response.
    pub cid: U16,
    /// Namespace. Its low byte is the type of a fabrics command.
    pub nsid: U32,
    /// Command dword 2.
    pub cdw2: U32,
    /// Command dword 3.
    pub cdw3: U32,
    /// Metadata pointer.
    pub metadata: U64,
    /// Where the data are.
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
    /// Bytes on the wire; in-capsule data follow.
    pub const LEN: usize = 64;
    /// `flags`: the data are described by one SGL descriptor, there is no metadata.
    pub const FLAGS_SGL: u8 = 0x40;
    /// `flags`: the bits that say what describes the data.
    pub const FLAGS_PSDT: u8 = 0xC0;
    /// `flags`: the bits of fused operations.
    pub const FLAGS_FUSE: u8 = 0x03;

    /// The entry that these bytes are.
    pub fn of(bytes: &[u8; Self::LEN]) -> &Self {
        zerocopy::transmute_ref!(bytes)
    }
    /// The first logical block, in commands that have one.
    pub const fn slba(&self) -> u64 {
        self.cdw10.get() as u64 | (self.cdw11.get() as u64) << 32
    }
}

/// A completion queue entry, the whole of a response capsule.
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Cqe {
    /// What the command returns.
    pub result: U64,
    /// Entries of the submission queue consumed, modulo its size.
    pub sq_head: U16,
    /// The queue's number.
    pub sq_id: U16,
    /// That of the command.
    pub cid: U16,
    /// [`Status::field`](crate::status::Status::field).
    pub status: U16,
}
const _: () = assert!(size_of::<Cqe>() == 16);
