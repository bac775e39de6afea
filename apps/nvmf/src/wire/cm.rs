//! The private data of RDMA connections (RDMA transport 3.1.2): one connection a queue.

use zerocopy::little_endian::U16;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// What the host says in its request.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct RequestData {
    /// Format of this record: 0.
    pub format: U16,
    /// Number of the queue, 0 for the admin queue.
    pub qid: U16,
    /// Receives that the host posts for responses.
    pub host_receives: U16,
    /// Entries of its submission queue, less one.
    pub host_sends: U16,
    /// Controller of an I/O queue. Older hosts leave 0.
    pub cntlid: U16,
    /// Zeros.
    pub reserved: [u8; 22],
}
const _: () = assert!(size_of::<RequestData>() == 32);

/// What the target says in its reply.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct ReplyData {
    /// Format of this record: 0.
    pub format: U16,
    /// Receives that the target posts for commands.
    pub receives: U16,
    /// Zeros.
    pub reserved: [u8; 28],
}
const _: () = assert!(size_of::<ReplyData>() == 32);

/// What the target says in a reject, whose reason is 28, "consumer reject".
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct RejectData {
    /// Format of this record: 0.
    pub format: U16,
    /// [`RejectReason`].
    pub status: U16,
}
const _: () = assert!(size_of::<RejectData>() == 4);

/// Why a connection is refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[repr(u16)]
pub enum RejectReason {
    /// Private data shorter than [`RequestData`].
    #[error("the private data are too short")]
    Length = 1,
    /// The record has another format.
    #[error("the private data have an unknown format")]
    Format = 2,
    /// A queue number that no controller here has.
    #[error("the queue number is out of range")]
    QueueId = 3,
    /// More, or fewer, submission queue entries than a queue may have.
    #[error("the submission queue's size is out of range")]
    HostSends = 4,
    /// No receives for responses.
    #[error("the host posts no receives")]
    HostReceives = 5,
    /// The target has no room for another queue.
    #[error("no resources are left")]
    Resources = 6,
    /// A host that lets the target read nothing of its memory.
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
