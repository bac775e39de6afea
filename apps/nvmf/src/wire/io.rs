//! Fields of the NVM command set (NVM command set 3).

use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::Sqe;

/// Command dword 12 of Read, Write, Compare, Write Zeroes and Verify.
#[derive(Clone, Copy, Debug)]
pub struct Control(pub u32);

impl Control {
    /// That of the command.
    pub const fn of(sqe: &Sqe) -> Self {
        Self(sqe.cdw12.get())
    }
    /// Number of logical blocks, 1 to 65536.
    pub const fn blocks(self) -> u32 {
        (self.0 & 0xFFFF) + 1
    }
    /// FUA: force unit access.
    pub const fn fua(self) -> bool {
        self.0 >> 30 & 1 != 0
    }
    /// DEAC: blocks that are to be zero may be deallocated.
    pub const fn deallocate(self) -> bool {
        self.0 >> 25 & 1 != 0
    }
    /// DTYPE: directive type, where the command has one.
    pub const fn directive(self) -> u8 {
        (self.0 >> 20 & 0xF) as u8
    }
}

/// A range of Dataset Management.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct DsmRange {
    /// Hints.
    pub attributes: U32,
    /// Number of logical blocks; 0 is none.
    pub blocks: U32,
    /// The first.
    pub slba: U64,
}
const _: () = assert!(size_of::<DsmRange>() == 16);

/// Dataset Management, dword 11: the blocks are to be deallocated.
pub const DSM_DEALLOCATE: u32 = 1 << 2;
