//! The private data of RDMA connections (RDMA transport 3.1.2). Each queue has a connection of its own.

use zerocopy::little_endian::U16;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Private data of the host's connection request.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct RequestData {
    /// Format of this record: 0.
    pub format: U16,
    /// Number of the queue, 0 for the admin queue.
    pub qid: U16,
    /// Receives that the host posts for responses (HRQSIZE).
    pub host_receives: U16,
    /// Entries of its submission queue, 0's based (HSQSIZE).
    pub host_sends: U16,
    /// Controller identifier of an I/O queue. Older hosts leave it 0.
    pub cntlid: U16,
    /// Zeros.
    pub reserved: [u8; 22],
}
const _: () = assert!(size_of::<RequestData>() == 32);

/// Private data of the target's reply.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct ReplyData {
    /// Format of this record: 0.
    pub format: U16,
    /// Receives that the target posts for commands (CRQSIZE).
    pub receives: U16,
    /// Zeros.
    pub reserved: [u8; 28],
}
const _: () = assert!(size_of::<ReplyData>() == 32);

/// Private data of the target's reject, whose reason code is 28, "consumer reject".
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct RejectData {
    /// Format of this record: 0.
    pub format: U16,
    /// The [`RejectReason`] as a number.
    pub status: U16,
}
const _: () = assert!(size_of::<RejectData>() == 4);

/// Why a connection is refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[repr(u16)]
pub enum RejectReason {
    /// The private data are shorter than [`RequestData`].
    #[error("the private data are too short")]
    Length = 1,
    /// The format of the private data is not 0.
    #[error("the private data have an unknown format")]
    Format = 2,
    /// The queue number is greater than the number of I/O queues that a controller may have.
    #[error("the queue number is out of range")]
    QueueId = 3,
    /// The number of submission queue entries is not one that a queue may have.
    #[error("the submission queue's size is out of range")]
    HostSends = 4,
    /// The host posts no receives for responses.
    #[error("the host posts no receives")]
    HostReceives = 5,
    /// The target has no resources for another queue.
    #[error("no resources are left")]
    Resources = 6,
    /// The host accepts no RDMA READs, so the target could not fetch data.
    #[error("the host grants no RDMA READ")]
    Reads = 7,
    /// No such controller.
    #[error("there is no such controller")]
    ControllerId = 9,
}

impl RejectReason {
    /// The private data of the reject.
    pub fn data(self) -> RejectData {
        RejectData { format: U16::ZERO, status: U16::new(self as u16) }
    }
}
