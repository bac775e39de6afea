//! How a message is cut into packets.

use super::Position;
use crate::id::Mtu;

/// One packet's share of a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Segment {
    /// Its place.
    pub position: Position,
    /// Bytes of the message before it.
    pub offset: u32,
    /// Bytes of the message in it: the path MTU, the rest in the last.
    pub len: u32,
}

/// The share of packet `index`, which is below `mtu.packets(len)`, of a message of `len` bytes (IBA 9.7.7).
#[inline]
pub const fn segment(len: u32, mtu: Mtu, index: u32) -> Segment {
    let offset = index << mtu.log2();
    let rest = len - offset;
    let full = mtu.bytes() as u32;
    Segment {
        position: Position::of(index, mtu.packets(len)),
        offset,
        len: if rest < full { rest } else { full },
    }
}

/// Zero bytes that fill a payload of `len` bytes up to a multiple of 4.
#[inline(always)]
pub const fn pad_count(len: usize) -> usize {
    len.wrapping_neg() & 3
}
