//! Fetching the events of identifiers.

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
/// Dropping it acknowledges it. Until then its identifier cannot be destroyed.
#[must_use = "dropping the event acknowledges it"]
#[doc(alias = "rdma_cm_event")]
pub struct CmEvent {
    pub(super) data: EventData,
    /// The identifier that counts it as unacknowledged; for a CONNECT_REQUEST the listening one.
    pub(super) number: u64,
    pub(super) context: u64,
    pub(super) ud: Option<UdParam>,
    /// For a CONNECT_REQUEST, the new identifier.
    pub(super) new: Option<CmId>,
    pub(super) service: Arc<Service>,
}

impl CmEvent {
    /// The type of the event.
    pub fn event(&self) -> CmEventType {
        self.data.what
    }
    /// 0, a negative error number, or for [`Rejected`](CmEventType::Rejected) the reason code of the peer's message.
    pub fn status(&self) -> i32 {
        self.data.status
    }
    /// The [`CmId::number`] of the identifier that the event concerns; for a [`ConnectRequest`](CmEventType::ConnectRequest) the listening
    /// one.
    pub fn id(&self) -> u64 {
        self.number
    }
    /// Whether the event concerns this identifier.
    pub fn is_of(&self, id: &CmId) -> bool {
        self.number == id.number()
    }
    /// The identifier's context ([`CmId::set_context`]).
    pub fn context(&self) -> u64 {
        self.context
    }
    /// Takes the new identifier out of a [`ConnectRequest`](CmEventType::ConnectRequest), to be accepted or rejected. `None` for other
    /// events and after the first call. If the program does not take it, dropping the event rejects the request.
    pub fn take_id(&mut self) -> Option<CmId> {
        self.new.take()
    }
    /// The peer's private data. As in the C API, it is padded with zeros.
    pub fn private_data(&self) -> &[u8] {
        &self.data.private_data
    }
    /// The peer's connection parameters, if the event has any.
    pub fn peer(&self) -> Option<&PeerParam> {
        self.data.peer.as_ref()
    }
    /// The datagram peer or group, if the event has one. `None` also if the local address that was used to reach it has been removed since.
    pub fn ud(&self) -> Option<&UdParam> {
        self.ud.as_ref()
    }
    /// The reason of the refusal, which `Display` explains: for [`Rejected`](CmEventType::Rejected), and for
    /// [`Unreachable`](CmEventType::Unreachable) with a positive status, which is the refusal of a datagram service.
    #[doc(alias = "rdma_reject_msg")]
    pub fn refusal(&self) -> Option<Refusal> {
        self.data.refusal
    }
    /// The number that the program gave to [`CmId::write_event`].
    pub fn arg(&self) -> u64 {
        self.data.arg
    }
    /// Acknowledges the event, as dropping does.
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

/// How long a wait on a channel of several devices waits for one of them before it turns to the next.
const SLICE: Duration = Duration::from_millis(1);
/// How often a wait on a channel without devices checks whether one has been added.
const NO_DEVICE: Duration = Duration::from_millis(20);

/// What a wait on a channel found.
enum Found {
    Event(CmEvent),
    /// A device was added to the channel.
    Device,
}

impl EventChannel {
    /// Takes the oldest event of one of its devices; `None` if there is none. Never waits.
    #[doc(alias = "rdma_get_cm_event")]
    pub fn try_get_event(&self) -> Option<CmEvent> {
        let services = self.services();
        let first = self.turn.fetch_add(1, Ordering::Relaxed) % services.len().max(1);
        let (before, after) = services.split_at(first);
        after.iter().chain(before).find_map(|service| Service::fetch(service, self.number))
    }

    /// Waits up to `timeout` for an event; `None` if none arrives. Meanwhile the caller drives shards that no other thread drives, so
    /// events arrive in every [`Drive`](crate::Drive), even with a single thread. If several devices use the channel, it waits for each in
    /// turn, a millisecond each.
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
    /// A copy of the event that the last synchronous call waited for, with the peer's private data and parameters. It has to be
    /// acknowledged like any other.
    pub fn event(&self) -> Option<CmEvent> {
        let mut state = self.service.lock();
        let data = state.id(self.number).last.clone()?;
        let queued = Queued { id: self.number, new: None, data };
        Some(Service::event(&self.service, &mut state, queued))
    }

    /// Waits up to `timeout` for the next event of a synchronous identifier that is not the result of a call, such as the peer's
    /// disconnection; `None` if none arrives.
    ///
    /// # Errors
    /// `EINVAL` if the identifier has an event channel; `EDEADLK` from inside a turn.
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
    /// Takes the oldest event out of a queue.
    pub(super) fn fetch(service: &Arc<Self>, queue: u64) -> Option<CmEvent> {
        let mut state = service.enter()?;
        let queued = state.queues.pop(queue)?;
        if let Some(new) = queued.new {
            state.fetched(new);
        }
        Some(Self::event(service, &mut state, queued))
    }

    /// Creates the event for the program, and counts it as unacknowledged.
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
