//! Bytes <-> fields: capsules, SGL descriptors, private data of connections, and the data structures that hosts read.
//!
//! Every structure has the layout of its bytes on the wire: little-endian fields, no padding, an asserted size. Nothing is checked here;
//! the code that uses a field checks it.

pub mod capsule;
pub mod cm;
pub mod discovery;
pub mod fabrics;
pub mod identify;
pub mod io;
pub mod log;
pub mod sgl;

pub use capsule::{Cqe, Sqe};
pub use sgl::Sgl;

/// Opcodes of the admin command set.
pub mod admin_opcode {
    #![allow(missing_docs, reason = "the names are those of the specification")]
    pub const GET_LOG_PAGE: u8 = 0x02;
    pub const IDENTIFY: u8 = 0x06;
    pub const ABORT: u8 = 0x08;
    pub const SET_FEATURES: u8 = 0x09;
    pub const GET_FEATURES: u8 = 0x0A;
    pub const ASYNC_EVENT_REQUEST: u8 = 0x0C;
    pub const KEEP_ALIVE: u8 = 0x18;
}

/// Opcodes of the NVM command set.
pub mod io_opcode {
    #![allow(missing_docs, reason = "the names are those of the specification")]
    pub const FLUSH: u8 = 0x00;
    pub const WRITE: u8 = 0x01;
    pub const READ: u8 = 0x02;
    pub const COMPARE: u8 = 0x05;
    pub const WRITE_ZEROES: u8 = 0x08;
    pub const DATASET_MANAGEMENT: u8 = 0x09;
    pub const VERIFY: u8 = 0x0C;
}

/// `text`, left-aligned and padded with spaces (NVMe base 1.8: ASCII strings). Text that does not fit is cut off.
pub fn ascii<const N: usize>(text: &str) -> [u8; N] {
    let mut field = [b' '; N];
    for (to, from) in field.iter_mut().zip(text.bytes()) {
        *to = from;
    }
    field
}

/// `text`, left-aligned and padded with zeros (NQNs are strings that end with a zero). Text that does not fit is cut off.
pub fn zero_padded<const N: usize>(text: &str) -> [u8; N] {
    let mut field = [0; N];
    for (to, from) in field.iter_mut().zip(text.bytes()) {
        *to = from;
    }
    field
}
