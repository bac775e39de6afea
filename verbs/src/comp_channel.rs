//! Completion channels: how a program sleeps until there is a completion.

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
/// A completion queue that was created with the channel puts an event in here for the first completion after each
/// [`Cq::req_notify`]. A program arms its queue, polls it until it is empty, and then waits: by
/// [`get_cq_event`](Self::get_cq_event), or with epoll(7) on the channel's descriptor, which is readable while an event
/// waits. The program must not read from the descriptor. Each event fetched is acknowledged with [`Cq::ack_events`].
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

/// A completion event, with the completion queue that it is for. To be acknowledged with [`Cq::ack_events`].
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
    /// Whether the event is for this queue, if that is of the same context.
    pub fn is_of(&self, cq: &Cq) -> bool {
        self.cq == cq.number()
    }
}

impl Context {
    /// Creates a completion channel, on which completion queues report completions, with a descriptor for epoll(7).
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

    /// The oldest event, or `None`: never waits.
    #[doc(alias = "ibv_get_cq_event")]
    pub fn try_get_cq_event(&self) -> Option<CqEvent> {
        self.core.try_get().map(|cq| CqEvent::new(&cq))
    }

    /// Waits for an event, `None` after `timeout`. While it waits, the caller drives shards that no other thread drives, so
    /// events come in every [`Drive`](crate::Drive), even with a single thread.
    ///
    /// # Errors
    /// `EDEADLK` from inside a turn.
    #[doc(alias = "ibv_get_cq_event")]
    pub fn get_cq_event(&self, timeout: Duration) -> Result<Option<CqEvent>, VerbsError> {
        Ok(self.core.get(timeout)?.map(|cq| CqEvent::new(&cq)))
    }

    /// Frees the channel.
    ///
    /// # Errors
    /// `EBUSY` while completion queues use it; the channel comes back with the error.
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
