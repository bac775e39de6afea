//! Fields of the NVM command set (NVM command set 3).

use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::Sqe;

/// Command dword 12 of Read, Write, Compare, Write Zeroes and Verify.
#[derive(Clone, Copy, Debug)]
pub struct Control(pub u32);

impl Control {
    /// Dword 12 of the command.
    pub const fn of(sqe: &Sqe) -> Self {
        Self(sqe.cdw12.get())
    }
    /// Number of logical blocks, 1 to 65536.
    pub const fn blocks(self) -> u32 {
        (self.0 & 0xFFFF) + 1
    }
    /// FUA: whether force unit access is requested.
    pub const fn fua(self) -> bool {
        self.0 >> 30 & 1 != 0
    }
    /// DEAC: whether Write Zeroes may deallocate the blocks.
    pub const fn deallocate(self) -> bool {
        self.0 >> 25 & 1 != 0
    }
    /// DTYPE: directive type, in commands that have one.
    pub const fn directive(self) -> u8 {
        (self.0 >> 20 & 0xF) as u8
    }
}

/// A range of Dataset Management.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct DsmRange {
    /// Context attributes, which are hints.
    pub attributes: U32,
    /// Number of logical blocks; 0 for an empty range.
    pub blocks: U32,
    /// The first logical block.
    pub slba: U64,
}
const _: () = assert!(size_of::<DsmRange>() == 16);

/// Dataset Management, dword 11: deallocate the blocks (AD).
pub const DSM_DEALLOCATE: u32 = 1 << 2;
