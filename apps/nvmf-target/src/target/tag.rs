//! What the identifier of a work request says: what it does, and for which command or buffer.

use super::ids::ReceiveId;
use crate::store::CommandIndex;

/// A work request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Tag {
    /// A receive; a capsule comes into its buffer.
    Received(ReceiveId),
    /// An RDMA READ of a command's data.
    Fetched(CommandIndex),
    /// A response, and the data before it, which are in the buffer of its command.
    Answered(CommandIndex),
    /// A request that no command waits for: a response, or the data before one.
    Sent,
}

const RECEIVED: u64 = 1 << 32;
const FETCHED: u64 = 2 << 32;
const ANSWERED: u64 = 3 << 32;
const SENT: u64 = 4 << 32;

impl Tag {
    /// As an identifier.
    pub const fn to_raw(self) -> u64 {
        match self {
            Self::Received(capsule) => RECEIVED | capsule.0 as u64,
            Self::Fetched(command) => FETCHED | command.0 as u64,
            Self::Answered(command) => ANSWERED | command.0 as u64,
            Self::Sent => SENT,
        }
    }
    /// From [`to_raw`](Self::to_raw).
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
