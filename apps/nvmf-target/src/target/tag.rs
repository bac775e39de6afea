//! The `wr_id` of work requests: what a request does, and for which command or receive buffer.

use super::ids::ReceiveId;
use crate::store::CommandIndex;

/// The decoded `wr_id` of a work request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Tag {
    /// A receive for a capsule, into this buffer.
    Received(ReceiveId),
    /// An RDMA READ of a command's data.
    Fetched(CommandIndex),
    /// The response of a command that owns the buffer of the data that were sent before it.
    Answered(CommandIndex),
    /// A request that no command waits for: a response, or the WRITE of data before a response.
    Sent,
}

const RECEIVED: u64 = 1 << 32;
const FETCHED: u64 = 2 << 32;
const ANSWERED: u64 = 3 << 32;
const SENT: u64 = 4 << 32;

impl Tag {
    /// The tag as a `wr_id`.
    pub const fn to_raw(self) -> u64 {
        match self {
            Self::Received(capsule) => RECEIVED | capsule.0 as u64,
            Self::Fetched(command) => FETCHED | command.0 as u64,
            Self::Answered(command) => ANSWERED | command.0 as u64,
            Self::Sent => SENT,
        }
    }
    /// Makes the tag from a `wr_id` that [`to_raw`](Self::to_raw) returned.
    pub const fn from_raw(wr_id: u64) -> Self {
        let number = wr_id as u32;
        match wr_id & !0xFFFF_FFFF {
            RECEIVED => Self::Received(ReceiveId(number)),
            FETCHED => Self::Fetched(CommandIndex(number)),
            ANSWERED => Self::Answered(CommandIndex(number)),
            _ => Self::Sent,
        }
    }
}
