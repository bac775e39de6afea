//! Completion channels, on which a program sleeps until there is a completion.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::Arc;
use std::time::Duration;

use stack::device::{ChannelCore, CqState};

use crate::context::Context;
use crate::cq::Cq;
use crate::error::VerbsError;

/// A completion channel (`struct ibv_comp_channel`), from
/// [`Context::create_comp_channel`](crate::Context::create_comp_channel).
///
/// A completion queue that was created with the channel puts an event into it at the first completion after each [`Cq::req_notify`]. A
/// program arms its queue, polls it until it is empty, and then waits: with [`get_cq_event`](Self::get_cq_event), or with epoll(7) on the
/// channel's file descriptor, which is readable while an event waits. The program must not read from the descriptor. Acknowledge each
/// fetched event with [`Cq::ack_events`].
///
/// ```
/// use std::time::Duration;
/// use verbs::{Context, CqInitAttr, DeviceConfig};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let context = Context::open(DeviceConfig::loopback())?;
/// let channel = context.create_comp_channel()?;
/// let cq = context.create_cq_ex(&CqInitAttr::new(16).channel(&channel))?;
/// cq.req_notify(false)?;
/// if let Some(event) = channel.get_cq_event(Duration::from_millis(1))? {
///     assert!(event.is_of(&cq));
///     cq.ack_events(1)?;
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
#[doc(alias = "ibv_comp_channel")]
pub struct CompChannel {
    core: Arc<ChannelCore>,
}

/// A completion event and the queue that raised it. Acknowledge it with [`Cq::ack_events`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use = "an event is acknowledged with Cq::ack_events, or its completion queue cannot be destroyed"]
#[non_exhaustive]
pub struct CqEvent {
    /// [`Cq::number`] of the queue.
    pub cq: u32,
    /// The queue's [`CqInitAttr::cq_context`](crate::CqInitAttr::cq_context).
    pub cq_context: u64,
}

impl CqEvent {
    fn new(cq: &CqState) -> Self {
        Self { cq: cq.number(), cq_context: cq.context() }
    }
    /// Whether the event is of this queue. Meaningful only for a queue of the channel's context.
    pub fn is_of(&self, cq: &Cq) -> bool {
        self.cq == cq.number()
    }
}

impl Context {
    /// Creates a completion channel with a file descriptor for epoll(7).
    ///
    /// # Errors
    /// `EMFILE` if no file descriptor is left.
    #[doc(alias = "ibv_create_comp_channel")]
    pub fn create_comp_channel(&self) -> Result<CompChannel, VerbsError> {
        Ok(CompChannel { core: self.device().create_channel()? })
    }
}

impl CompChannel {
    pub(crate) fn core(&self) -> &Arc<ChannelCore> {
        &self.core
    }

    /// Takes the oldest event; `None` if there is none. Never waits.
    #[doc(alias = "ibv_get_cq_event")]
    pub fn try_get_cq_event(&self) -> Option<CqEvent> {
        self.core.try_get().map(|cq| CqEvent::new(&cq))
    }

    /// Waits up to `timeout` for an event; `None` if none arrives. Meanwhile the caller drives shards that no other thread drives, so
    /// events arrive in every [`Drive`](crate::Drive), even with a single thread.
    ///
    /// # Errors
    /// `EDEADLK` from inside a turn.
    #[doc(alias = "ibv_get_cq_event")]
    pub fn get_cq_event(&self, timeout: Duration) -> Result<Option<CqEvent>, VerbsError> {
        Ok(self.core.get(timeout)?.map(|cq| CqEvent::new(&cq)))
    }

    /// Destroys the channel.
    ///
    /// # Errors
    /// `EBUSY` while completion queues use it. The channel is returned with the error.
    #[doc(alias = "ibv_destroy_comp_channel")]
    pub fn destroy(self) -> Result<(), (VerbsError, Self)> {
        ChannelCore::destroy(self.core).map_err(|(e, core)| (e.into(), Self { core }))
    }
}

impl AsFd for CompChannel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.core.as_fd()
    }
}
impl AsRawFd for CompChannel {
    fn as_raw_fd(&self) -> RawFd {
        self.as_fd().as_raw_fd()
    }
}
