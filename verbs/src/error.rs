//! Error types.

use stack::device::{
    DeviceError, Full, GateClosed, OpenError, QpState, QpType, SendFlags, Unavailable, WrOpcode, state_name,
    type_name,
};

use stack::xrc::XrcError;

use crate::flags::{CqWcFlags, SendOpsFlags};
use crate::rdma_cm::error::CmError;

/// The error of a call that needs the posting or polling end of a queue while another user holds it.
pub(crate) fn unavailable(what: &'static str, why: Unavailable) -> VerbsError {
    match why {
        Unavailable::Taken => VerbsError::Split { what },
        Unavailable::Inside => DeviceError::InsideCall { object: what }.into(),
    }
}

/// Why a control call failed. The text says what was wrong, with the value, and what to do about it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum VerbsError {
    /// The device could not be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The device refused a control call.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The range is not inside the memory region.
    #[error(
        "bytes {start}..{end} are not inside the memory region of {len} bytes; use a range within 0..{len}"
    )]
    OutOfRegion {
        /// First byte.
        start: u64,
        /// One past the last byte.
        end: u64,
        /// Length of the region in bytes.
        len: u64,
    },
    /// The address of a 64-bit access is not a multiple of 8.
    #[error("address {addr:#x} is not a multiple of 8, as a 64-bit access needs; use an aligned offset")]
    Misaligned {
        /// The address.
        addr: u64,
    },
    /// The memory does not exist in this process, or lacks the rights.
    #[error("memory {addr:#x}..+{len} is not mapped with the rights asked for; register memory that exists")]
    BadAddress {
        /// First byte.
        addr: u64,
        /// Length in bytes.
        len: u64,
    },
    /// The operating system provided no memory.
    #[error("no memory for a region of {len} bytes; register less, or free some")]
    NoMemory {
        /// Requested bytes.
        len: usize,
    },
    /// A split handle of the queue exists.
    #[error("the {what} is in use as a split handle; use that one, or drop it first")]
    Split {
        /// The queue.
        what: &'static str,
    },
    /// A write to a region over memory of the caller that was registered without LOCAL_WRITE.
    #[error(
        "the memory region was registered without LOCAL_WRITE over memory of the caller; it is only read here"
    )]
    ReadOnly,
    /// A zero-based region, whose addresses begin at 0, was given another address for its first byte.
    #[error("iova {iova:#x} and ZERO_BASED contradict each other; leave one of them out")]
    ZeroBased {
        /// The address.
        iova: u64,
    },
    /// A file could not be read or written.
    #[error("{call}: {}", std::io::Error::from_raw_os_error(*.errno))]
    File {
        /// The system call.
        call: &'static str,
        /// The system's error number.
        errno: i32,
    },
    /// The call requires another state of the queue pair.
    #[error("the queue pair is in {}; {wanted}", state_name(*.found))]
    WrongState {
        /// The present state.
        found: QpState,
        /// What the call requires.
        wanted: &'static str,
    },
    /// The completion and the network header do not identify the sender of a datagram.
    #[error("no address handle can be made from this completion and network header: {reason}")]
    NoNetworkHeader {
        /// What is wrong.
        reason: &'static str,
    },
    /// Completions were requested with fields that completions on RoCE do not have.
    #[error("completions on RoCE carry no {0:?}; leave it out of wc_flags")]
    NoSuchField(CqWcFlags),
    /// A call that posts one work request could not post it.
    #[error(transparent)]
    Post(#[from] PostError),
    /// The memory window cannot be bound in this way.
    #[error(transparent)]
    Bind(#[from] BindError),
    /// The type of queue pair does not have these operations.
    #[error(
        "send_ops_flags: a queue pair of type {} has no {flags:?}; ask for operations that it has",
        type_name(*.qp_type)
    )]
    SendOps {
        /// The requested operations that it does not have.
        flags: SendOpsFlags,
        /// The queue pair's type.
        qp_type: QpType,
    },
    /// A call of connection management (`rdma_cm`) failed.
    #[error(transparent)]
    Cm(#[from] CmError),
    /// A call on a shared XRC domain failed.
    #[error(transparent)]
    Xrc(Box<XrcError>),
    /// The index is not in the table.
    #[error("{what} {index} does not exist; there are {count}, from {first}")]
    NoSuchIndex {
        /// What the table contains.
        what: &'static str,
        /// The index.
        index: usize,
        /// The first valid index.
        first: usize,
        /// Number of entries.
        count: usize,
    },
    /// The partition key is not in the port's table.
    #[error("P_Key {pkey:#06x} is not in the port's table; query_pkey tells what is")]
    NoSuchPkey {
        /// The key.
        pkey: u16,
    },
}

impl From<XrcError> for VerbsError {
    fn from(error: XrcError) -> Self {
        match error {
            XrcError::Device(error) => error.into(),
            error => Self::Xrc(Box::new(error)),
        }
    }
}

/// Why a memory window cannot be bound, for reasons that are known when the bind is posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BindError {
    /// The call is for the other type of memory window.
    #[error("{call} is for memory windows of type {wanted}")]
    WindowType {
        /// The call.
        call: &'static str,
        /// The type that the call is for.
        wanted: u8,
    },
    /// The key does not belong to the window: it differs in more than the low 8 bits.
    #[error("key {given:#010x} is not one of {own:#010x}, of which only the low 8 bits may be chosen")]
    ForeignKey {
        /// The given key.
        given: u32,
        /// The window's key.
        own: u32,
    },
    /// A bind with a length but without a memory region.
    #[error("a bind of {length} bytes at {addr:#x} names no memory region; name one, or unbind with neither")]
    NoRegion {
        /// First byte.
        addr: u64,
        /// Length in bytes.
        length: u64,
    },
    /// The objects belong to different protection domains.
    #[error("the {what} belongs to another protection domain; use one of the same")]
    OtherPd {
        /// The object.
        what: &'static str,
    },
}

/// Why a work request was not posted. The requests before it in the list were posted; it and those after it were not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("work request {bad_wr} of the list: {kind}")]
pub struct PostError {
    /// Position in the list of the first request that was not posted.
    pub bad_wr: usize,
    /// What is wrong with it.
    pub kind: PostErrorKind,
}

impl From<Unavailable> for PostErrorKind {
    fn from(why: Unavailable) -> Self {
        match why {
            Unavailable::Taken => Self::Split,
            Unavailable::Inside => Self::InsideCall,
        }
    }
}

impl From<GateClosed> for PostErrorKind {
    fn from(closed: GateClosed) -> Self {
        match closed {
            GateClosed::State(state) => Self::State(state),
            GateClosed::ShardDied(shard) => Self::ShardDied(shard),
        }
    }
}

impl From<Full> for PostErrorKind {
    fn from(Full { depth }: Full) -> Self {
        Self::Full { depth }
    }
}

/// The reasons in a [`PostError`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PostErrorKind {
    /// Posting is not allowed in the queue pair's state (IBA 10.3.1).
    #[error("the queue pair is in {}; sends are taken from RTS on, receives from INIT on", state_name(*.0))]
    State(QpState),
    /// A thread panicked while it held the queue pair's shard, so posted requests are no longer processed.
    #[error(
        "shard {0}, which the queue pair is on, died of a panic; destroy what there is and open the device again"
    )]
    ShardDied(usize),
    /// Every slot of the queue holds a request that has not completed.
    #[error("the queue is full with {depth} requests; poll for completions first, or make it deeper")]
    Full {
        /// Capacity of the queue in requests.
        depth: u32,
    },
    /// More scatter/gather elements than the queue was created for.
    #[error("{given} scatter/gather elements; the queue was made for {max}")]
    TooManySge {
        /// Elements given.
        given: usize,
        /// Elements allowed.
        max: u32,
    },
    /// More inline data than the queue was created for.
    #[error("{given} bytes of inline data; the queue was made for {max}")]
    InlineTooLong {
        /// Bytes given.
        given: usize,
        /// Bytes allowed.
        max: u32,
    },
    /// Inline data with an operation that cannot have any.
    #[error("{0} takes no inline data; only sends and writes do")]
    InlineNotAllowed(WrOpcode),
    /// The operation does not exist for this type of queue pair (ibv_post_send(3)).
    #[error("{opcode} does not exist on a queue pair of type {}", type_name(*.qp_type))]
    Opcode {
        /// The operation.
        opcode: WrOpcode,
        /// The queue pair's type.
        qp_type: QpType,
    },
    /// The result of an atomic, or the data of an atomic write, is not 8 bytes long (IBA 9.4.5, A19).
    #[error("an atomic returns or writes 8 bytes; the list has {0}")]
    AtomicLength(u64),
    /// The address of an atomic is not a multiple of 8 (IBA 9.4.5).
    #[error("an atomic needs a remote address that is a multiple of 8, not {0:#x}")]
    AtomicAddress(u64),
    /// A FLUSH without a placement.
    #[error("a flush needs a placement: FlushPlacement::GLOBAL, PERSISTENT or both")]
    NoPlacement,
    /// The memory window cannot be bound in this way.
    #[error(transparent)]
    Bind(BindError),
    /// Data with an operation that takes none.
    #[error("{0} takes no data; leave the setter out")]
    NoData(WrOpcode),
    /// A setter was called before any request was begun.
    #[error("{0} came before any request; call it after the one it is for")]
    NoRequest(&'static str),
    /// Flags that requests of the extended interface cannot have.
    #[error("wr_flags {0:?} do not exist here; allowed are FENCE, SIGNALED and SOLICITED")]
    Flags(SendFlags),
    /// The operation is not among those that the queue pair was created for.
    #[error("{0} is not among the send_ops_flags that the queue pair was made with; ask for it there")]
    NotAskedFor(WrOpcode),
    /// A message of more than 2^31 bytes (IBA 9.7.7).
    #[error("a message of {0} bytes; 2147483648 is the longest")]
    TooLong(u64),
    /// A datagram without a destination.
    #[error("a request on a queue pair of type {} needs a destination; add .to(&ah, qpn, qkey)", type_name(*.qp_type))]
    NoAddress {
        /// The queue pair's type.
        qp_type: QpType,
    },
    /// A destination with a request on a connected queue pair.
    #[error("a queue pair of type {} has one peer; leave .to() out", type_name(*.qp_type))]
    UnexpectedAddress {
        /// The queue pair's type.
        qp_type: QpType,
    },
    /// The address handle belongs to another protection domain.
    #[error("the address handle belongs to another protection domain; make one in the queue pair's own")]
    ForeignAh,
    /// The type has no receive queue.
    #[error("a queue pair of type {} has no receive queue; post to the receiving side", type_name(*.qp_type))]
    NoReceiveQueue {
        /// The queue pair's type.
        qp_type: QpType,
    },
    /// A request on an XRC initiator without the number of the peer's shared receive queue.
    #[error(
        "a request on an XRC initiator needs the number of the peer's shared receive queue (remote_srqn)"
    )]
    NoSrqn,
    /// The number of a shared receive queue on a queue pair that cannot send one, or a number of more than 24 bits.
    #[error("remote_srqn {0:#x} cannot be sent; it is a number of 24 bits, on XRC initiators only")]
    BadSrqn(u32),
    /// The queue pair's receive requests come from a shared receive queue (ibv_post_recv(3)).
    #[error("the queue pair takes its receive requests from shared receive queue {number}; post them there")]
    SharedReceiveQueue {
        /// Number of the shared receive queue.
        number: u32,
    },
    /// A split handle of the queue exists.
    #[error("the queue is in use as a split handle; post through that one, or drop it first")]
    Split,
    /// The thread is already posting to this queue: the call came from the iterator of a list, or the thread has begun a list and not
    /// completed it.
    #[error("the queue is in use by an unfinished call of this thread; post when that one has ended")]
    InsideCall,
}
