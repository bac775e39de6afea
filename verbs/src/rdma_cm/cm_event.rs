//! Events as the program fetches them.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use stack::device::not_inside_turn;

use super::channel::EventChannel;
use super::error::CmError;
use super::event::{CmEventType, EventData};
use super::id::CmId;
use super::param::{PeerParam, UdParam};
use super::queue::Queued;
use super::refusal::Refusal;
use super::service::{Service, State};
use crate::error::VerbsError;

/// An event (`struct rdma_cm_event`), from [`EventChannel`].
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
    /// The number that the program gave with an event of its own ([`CmId::write_event`]).
    pub fn arg(&self) -> u64 {
        self.data.arg
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

/// How long a wait of a channel that several devices use stays with one of them.
const SLICE: Duration = Duration::from_millis(1);
/// How long a wait of a channel that no device uses stays before it looks whether one does.
const NO_DEVICE: Duration = Duration::from_millis(20);

/// What a waiting channel finds.
enum Found {
    Event(CmEvent),
    /// It is used with another device.
    Device,
}

impl EventChannel {
    /// The oldest event of one of its devices, or `None`: never waits.
    #[doc(alias = "rdma_get_cm_event")]
    pub fn try_get_event(&self) -> Option<CmEvent> {
        let services = self.services();
        let first = self.turn.fetch_add(1, Ordering::Relaxed) % services.len().max(1);
        let (before, after) = services.split_at(first);
        after.iter().chain(before).find_map(|service| Service::fetch(service, self.number))
    }

    /// Waits for an event, `None` after `timeout`. While it waits, the caller drives shards that no other thread drives, so
    /// events come in every [`Drive`](crate::Drive), even with a single thread; where several devices use the channel, it
    /// waits on one after the other, a millisecond each.
    ///
    /// # Errors
    /// `EDEADLK` from inside a turn.
    #[doc(alias = "rdma_get_cm_event")]
    pub fn get_event(&self, timeout: Duration) -> Result<Option<CmEvent>, VerbsError> {
        not_inside_turn()?;
        let start = Instant::now();
        let mut turn = 0usize;
        loop {
            turn += 1;
            let (devices, service) = {
                let services = self.services();
                (services.len(), services.get(turn % services.len().max(1)).cloned())
            };
            let left = timeout.saturating_sub(start.elapsed());
            let look = || match self.try_get_event() {
                Some(event) => Some(Found::Event(event)),
                None if self.services().len() != devices => Some(Found::Device),
                None => None,
            };
            let found = match service {
                Some(service) => {
                    let slice = if devices > 1 { left.min(SLICE) } else { left };
                    service.device().wait(slice, Some(self.signal.fd()), look)?
                }
                None => {
                    self.signal.fd().wait(left.min(NO_DEVICE));
                    look()
                }
            };
            match found {
                Some(Found::Event(event)) => return Ok(Some(event)),
                None if start.elapsed() >= timeout => return Ok(None),
                Some(Found::Device) | None => {}
            }
        }
    }
}

impl CmId {
    /// The event that the last synchronous call waited for, with the peer's private data and parameters. It is to be
    /// acknowledged like any other.
    pub fn event(&self) -> Option<CmEvent> {
        let mut state = self.service.lock();
        let data = state.id(self.number).last.clone()?;
        let queued = Queued { id: self.number, new: None, data };
        Some(Service::event(&self.service, &mut state, queued))
    }

    /// The next event of a synchronous identifier that belongs to none of its calls, such as the peer's disconnection; `None`
    /// after `timeout`.
    ///
    /// # Errors
    /// `EINVAL` where it has an event channel; `EDEADLK` from inside a turn.
    #[doc(alias = "rdma_get_cm_event")]
    pub fn get_event(&self, timeout: Duration) -> Result<Option<CmEvent>, VerbsError> {
        if !self.is_synchronous() {
            let why = "its events come through its event channel";
            return Err(CmError::Unsuitable { call: "get_event", why }.into());
        }
        Ok(self.service.device().wait(timeout, None, || Service::fetch(&self.service, self.number))?)
    }
}

impl Service {
    /// Fetches the oldest event of a queue.
    pub(super) fn fetch(service: &Arc<Self>, queue: u64) -> Option<CmEvent> {
        let mut state = service.enter()?;
        let queued = state.queues.pop(queue)?;
        if let Some(new) = queued.new {
            state.fetched(new);
        }
        Some(Self::event(service, &mut state, queued))
    }

    /// Makes the event that the program gets, which counts as unacknowledged from now on.
    pub(super) fn event(service: &Arc<Self>, state: &mut State, queued: Queued) -> CmEvent {
        let Queued { id: number, new, data } = queued;
        let mut context = 0;
        if let Some(id) = state.ids.get_mut(&number) {
            id.unacked += 1;
            context = id.context;
        }
        let new = new.map(|number| CmId { number, service: service.clone() });
        let ud = data.ud.and_then(|peer| peer.param(service.device()));
        CmEvent { data, number, context, ud, new, service: service.clone() }
    }
}
