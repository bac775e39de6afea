//! Types and contents of events.

use std::fmt;

use stack::device::Device;
use stack::device::cm::Path;

use super::gsi::{ah_attr, sgid_index};
use super::param::{PeerParam, UdParam};
use super::refusal::Refusal;

/// The type of an event (`enum rdma_cm_event_type`).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
#[doc(alias = "rdma_cm_event_type")]
pub enum CmEventType {
    /// The destination's Ethernet address is known.
    #[doc(alias = "RDMA_CM_EVENT_ADDR_RESOLVED")]
    AddrResolved,
    /// No host answered for the destination's address.
    #[doc(alias = "RDMA_CM_EVENT_ADDR_ERROR")]
    AddrError,
    /// The path is known.
    #[doc(alias = "RDMA_CM_EVENT_ROUTE_RESOLVED")]
    RouteResolved,
    /// No path was found. Not raised on RoCE, where the path follows from the addresses.
    #[doc(alias = "RDMA_CM_EVENT_ROUTE_ERROR")]
    RouteError,
    /// A peer requests a connection with a listening identifier; [`CmEvent::take_id`](super::CmEvent::take_id) returns the new identifier.
    #[doc(alias = "RDMA_CM_EVENT_CONNECT_REQUEST")]
    ConnectRequest,
    /// The peer accepted, and the identifier has no queue pair: the program moves its own to RTS, then calls
    /// [`CmId::establish`](super::CmId::establish).
    #[doc(alias = "RDMA_CM_EVENT_CONNECT_RESPONSE")]
    ConnectResponse,
    /// Connecting failed on this side. The status is an error number.
    #[doc(alias = "RDMA_CM_EVENT_CONNECT_ERROR")]
    ConnectError,
    /// The peer did not answer.
    #[doc(alias = "RDMA_CM_EVENT_UNREACHABLE")]
    Unreachable,
    /// The peer refused. The status is the reason (IBA 12.6.7.2).
    #[doc(alias = "RDMA_CM_EVENT_REJECTED")]
    Rejected,
    /// The connection is established; for datagrams, the peer's queue pair number is known.
    #[doc(alias = "RDMA_CM_EVENT_ESTABLISHED")]
    Established,
    /// The connection has ended.
    #[doc(alias = "RDMA_CM_EVENT_DISCONNECTED")]
    Disconnected,
    /// Connection management has ended, because a shard of the device died or it panicked itself. Calls return the error.
    #[doc(alias = "RDMA_CM_EVENT_DEVICE_REMOVAL")]
    DeviceRemoval,
    /// The group was joined.
    #[doc(alias = "RDMA_CM_EVENT_MULTICAST_JOIN")]
    MulticastJoin,
    /// The group could not be joined.
    #[doc(alias = "RDMA_CM_EVENT_MULTICAST_ERROR")]
    MulticastError,
    /// The address of the port changed. Not raised by this crate.
    #[doc(alias = "RDMA_CM_EVENT_ADDR_CHANGE")]
    AddrChange,
    /// The connection has left TIMEWAIT, so its queue pair may be used again.
    #[doc(alias = "RDMA_CM_EVENT_TIMEWAIT_EXIT")]
    TimewaitExit,
    /// An address was looked up for the identifier. Raised only by [`CmId::write_event`](super::CmId::write_event).
    #[doc(alias = "RDMA_CM_EVENT_ADDRINFO_RESOLVED")]
    AddrinfoResolved,
    /// No address was found for the identifier. Raised only by [`CmId::write_event`](super::CmId::write_event).
    #[doc(alias = "RDMA_CM_EVENT_ADDRINFO_ERROR")]
    AddrinfoError,
    /// An event of the program itself, raised by [`CmId::write_event`](super::CmId::write_event).
    #[doc(alias = "RDMA_CM_EVENT_USER")]
    User,
}

impl CmEventType {
    /// The name of the type in the C API.
    #[doc(alias = "rdma_event_str")]
    pub const fn name(self) -> &'static str {
        match self {
            Self::AddrResolved => "RDMA_CM_EVENT_ADDR_RESOLVED",
            Self::AddrError => "RDMA_CM_EVENT_ADDR_ERROR",
            Self::RouteResolved => "RDMA_CM_EVENT_ROUTE_RESOLVED",
            Self::RouteError => "RDMA_CM_EVENT_ROUTE_ERROR",
            Self::ConnectRequest => "RDMA_CM_EVENT_CONNECT_REQUEST",
            Self::ConnectResponse => "RDMA_CM_EVENT_CONNECT_RESPONSE",
            Self::ConnectError => "RDMA_CM_EVENT_CONNECT_ERROR",
            Self::Unreachable => "RDMA_CM_EVENT_UNREACHABLE",
            Self::Rejected => "RDMA_CM_EVENT_REJECTED",
            Self::Established => "RDMA_CM_EVENT_ESTABLISHED",
            Self::Disconnected => "RDMA_CM_EVENT_DISCONNECTED",
            Self::DeviceRemoval => "RDMA_CM_EVENT_DEVICE_REMOVAL",
            Self::MulticastJoin => "RDMA_CM_EVENT_MULTICAST_JOIN",
            Self::MulticastError => "RDMA_CM_EVENT_MULTICAST_ERROR",
            Self::AddrChange => "RDMA_CM_EVENT_ADDR_CHANGE",
            Self::TimewaitExit => "RDMA_CM_EVENT_TIMEWAIT_EXIT",
            Self::AddrinfoResolved => "RDMA_CM_EVENT_ADDRINFO_RESOLVED",
            Self::AddrinfoError => "RDMA_CM_EVENT_ADDRINFO_ERROR",
            Self::User => "RDMA_CM_EVENT_USER",
        }
    }
}

impl fmt::Display for CmEventType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A datagram peer or group. It contains addresses instead of a GID index, which could belong to another address by the time the program
/// reads the event.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct UdPeer {
    pub path: Path,
    pub qp_num: u32,
    pub qkey: u32,
}

impl UdPeer {
    /// Converts it for the program; `None` if the local address is no longer on the port.
    pub(super) fn param(&self, device: &Device) -> Option<UdParam> {
        let index = sgid_index(device, &self.path.sgid).ok()?;
        Some(UdParam { ah_attr: ah_attr(&self.path, index), qp_num: self.qp_num, qkey: self.qkey })
    }
}

/// The content of an event, without its identifier.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct EventData {
    pub what: CmEventType,
    pub status: i32,
    pub peer: Option<PeerParam>,
    pub ud: Option<UdPeer>,
    pub refusal: Option<Refusal>,
    pub private_data: Vec<u8>,
    /// The number that the program gave with its own event.
    pub arg: u64,
}

impl EventData {
    pub(super) fn new(what: CmEventType) -> Self {
        Self { what, status: 0, peer: None, ud: None, refusal: None, private_data: Vec::new(), arg: 0 }
    }
    pub(super) fn status(what: CmEventType, status: i32) -> Self {
        Self { status, ..Self::new(what) }
    }
    /// The event of a refusal by the peer.
    pub(super) fn refused(refusal: Refusal) -> Self {
        let what = if refusal.of_datagrams { CmEventType::Unreachable } else { CmEventType::Rejected };
        Self { refusal: Some(refusal), ..Self::status(what, refusal.reason.into()) }
    }
}
