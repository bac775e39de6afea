//! Events of an identifier.

use std::fmt;
use std::sync::Arc;

use stack::device::Device;
use stack::device::cm::Path;

use super::gsi::{ah_attr, sgid_index};
use super::id::CmId;
use super::param::{PeerParam, UdParam};
use super::refusal::Refusal;
use super::service::Service;

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
    /// No path was found. Does not happen on RoCE, where the path follows from the addresses.
    #[doc(alias = "RDMA_CM_EVENT_ROUTE_ERROR")]
    RouteError,
    /// A peer requests a connection with a listening identifier; [`CmEvent::take_id`] returns the new identifier.
    #[doc(alias = "RDMA_CM_EVENT_CONNECT_REQUEST")]
    ConnectRequest,
    /// The peer accepted, and the identifier has no queue pair: bring it up, then [`CmId::establish`].
    #[doc(alias = "RDMA_CM_EVENT_CONNECT_RESPONSE")]
    ConnectResponse,
    /// Connecting failed on this side, with an error number as status.
    #[doc(alias = "RDMA_CM_EVENT_CONNECT_ERROR")]
    ConnectError,
    /// The peer did not answer.
    #[doc(alias = "RDMA_CM_EVENT_UNREACHABLE")]
    Unreachable,
    /// The peer refused, with the reason as status (IBA 12.6.7.2).
    #[doc(alias = "RDMA_CM_EVENT_REJECTED")]
    Rejected,
    /// The connection is established; for datagrams, the peer's queue pair is known.
    #[doc(alias = "RDMA_CM_EVENT_ESTABLISHED")]
    Established,
    /// The connection has ended.
    #[doc(alias = "RDMA_CM_EVENT_DISCONNECTED")]
    Disconnected,
    /// The device is gone. Does not happen here.
    #[doc(alias = "RDMA_CM_EVENT_DEVICE_REMOVAL")]
    DeviceRemoval,
    /// The group was joined.
    #[doc(alias = "RDMA_CM_EVENT_MULTICAST_JOIN")]
    MulticastJoin,
    /// The group could not be joined.
    #[doc(alias = "RDMA_CM_EVENT_MULTICAST_ERROR")]
    MulticastError,
    /// The address of the port changed. Does not happen here.
    #[doc(alias = "RDMA_CM_EVENT_ADDR_CHANGE")]
    AddrChange,
    /// The ended connection has left TIMEWAIT: its queue pair may be used again.
    #[doc(alias = "RDMA_CM_EVENT_TIMEWAIT_EXIT")]
    TimewaitExit,
}

impl CmEventType {
    /// Its name in the C API.
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
        }
    }
}

impl fmt::Display for CmEventType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A datagram peer or group, by addresses: a GID index could belong to another address by the time the program reads it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct UdPeer {
    pub path: Path,
    pub qp_num: u32,
    pub qkey: u32,
}

impl UdPeer {
    /// As the program gets it; `None` if the local address is no longer on the port.
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
}

impl EventData {
    pub(super) fn new(what: CmEventType) -> Self {
        Self { what, status: 0, peer: None, ud: None, refusal: None, private_data: Vec::new() }
    }
    pub(super) fn status(what: CmEventType, status: i32) -> Self {
        Self { status, ..Self::new(what) }
    }
    /// The peer refused.
    pub(super) fn refused(refusal: Refusal) -> Self {
        let what = if refusal.of_datagrams { CmEventType::Unreachable } else { CmEventType::Rejected };
        Self { refusal: Some(refusal), ..Self::status(what, refusal.reason.into()) }
    }
}

/// An event (`struct rdma_cm_event`), from [`EventChannel`](super::EventChannel).
///
/// Dropping it acknowledges it; until then its identifier cannot be destroyed.
#[must_use = "dropping the event acknowledges it"]
#[doc(alias = "rdma_cm_event")]
pub struct CmEvent {
    pub(super) data: EventData,
    /// The identifier whose unacknowledged events it counts among: the listening one of a CONNECT_REQUEST.
    pub(super) number: u64,
    pub(super) context: u64,
    pub(super) ud: Option<UdParam>,
    /// The new identifier of a CONNECT_REQUEST.
    pub(super) new: Option<CmId>,
    pub(super) service: Arc<Service>,
}

impl CmEvent {
    /// Its type.
    pub fn event(&self) -> CmEventType {
        self.data.what
    }
    /// 0, a negative error number, or for [`Rejected`](CmEventType::Rejected) the reason in the peer's message.
    pub fn status(&self) -> i32 {
        self.data.status
    }
    /// The identifier that it is for, by [`CmId::number`]; of a
    /// [`ConnectRequest`](CmEventType::ConnectRequest) the listening one.
    pub fn id(&self) -> u64 {
        self.number
    }
    /// Whether it is for this identifier.
    pub fn is_of(&self, id: &CmId) -> bool {
        self.number == id.number()
    }
    /// The identifier's context ([`CmId::set_context`]).
    pub fn context(&self) -> u64 {
        self.context
    }
    /// The new identifier of a [`ConnectRequest`](CmEventType::ConnectRequest), to be accepted or rejected; `None` after the
    /// first call. If the program does not take it, dropping the event rejects the request.
    pub fn take_id(&mut self) -> Option<CmId> {
        self.new.take()
    }
    /// The peer's private data. As in the C API, bytes that the peer did not fill are zeros.
    pub fn private_data(&self) -> &[u8] {
        &self.data.private_data
    }
    /// The peer's side of the connection, for events that carry it.
    pub fn peer(&self) -> Option<&PeerParam> {
        self.data.peer.as_ref()
    }
    /// The datagram peer or group, for events that carry it. `None` if the local address that reached it has been removed
    /// since.
    pub fn ud(&self) -> Option<&UdParam> {
        self.ud.as_ref()
    }
    /// Why the peer refused, as text: for [`Rejected`](CmEventType::Rejected), and for
    /// [`Unreachable`](CmEventType::Unreachable) with a positive status, the refusal of a datagram service.
    #[doc(alias = "rdma_reject_msg")]
    pub fn refusal(&self) -> Option<Refusal> {
        self.data.refusal
    }
    /// Acknowledges the event, as dropping it does.
    #[doc(alias = "rdma_ack_cm_event")]
    pub fn ack(self) {}
}

impl Drop for CmEvent {
    fn drop(&mut self) {
        self.service.ack_event(self.number);
    }
}

impl fmt::Debug for CmEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CmEvent").field("id", &self.number).field("data", &self.data).finish_non_exhaustive()
    }
}
