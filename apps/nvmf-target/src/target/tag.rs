//! The identifiers of work requests: the kind of the request, and the number of its command or buffer.

/// A capsule has come; with the number of its buffer.
pub const RECEIVED: u64 = 1 << 32;
/// An RDMA READ of a command's data.
pub const FETCHED: u64 = 2 << 32;
/// A response, and the data before it; with the number of its command, whose buffer they are in.
pub const ANSWERED: u64 = 3 << 32;
/// A request that no command waits for: a response, the data before one, or a probe.
pub const SENT: u64 = 4 << 32;

/// Kind, and number.
pub const fn split(wr_id: u64) -> (u64, u32) {
    (wr_id & !0xFFFF_FFFF, wr_id as u32)
}
