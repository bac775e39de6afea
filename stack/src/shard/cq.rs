//! The part of a completion queue that shards see: its number, whether it overran, and its event channel.

use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard};

use super::events::{EventElement, EventQueue};
use crate::proto::wqe::Cqe;
use crate::sync::alarm::Alarm;
use crate::sync::eventfd::EventFd;
use crate::sync::lanes::CqLane;
use crate::sync::lock::lock;

/// A completion lane of a shard: one for each completion queue that the shard feeds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LaneId(pub u32);

impl LaneId {
    /// No lane: completions go nowhere.
    pub const NONE: Self = Self(u32::MAX);
}

/// A lane, as its shard holds it.
pub(super) struct Lane {
    pub writer: CqLane<Cqe>,
    pub cq: Arc<CqState>,
    /// A completion was lost in this lane.
    pub lost: bool,
}

/// The state of a completion queue that its device and its shards share.
#[derive(Debug)]
pub struct CqState {
    number: u32,
    context: u64,
    channel: Option<Arc<EventChannel>>,
    /// A completion was lost, and CQ_ERR was raised.
    overrun: AtomicBool,
    /// The queue overran, and all completions before the loss are published: once those are polled, polls fail.
    failed: AtomicBool,
    /// Number of its events in the channel's queue. Changed under the channel's lock.
    queued: AtomicU32,
    /// Number of events that were fetched and not acknowledged. Increased under the channel's lock.
    unacked: AtomicU32,
    /// The queue is being destroyed: no more events are queued. Changed under the channel's lock.
    retired: AtomicBool,
}

impl CqState {
    /// A queue with a number and the program's own context. Its events go to `channel`.
    pub fn new(number: u32, context: u64, channel: Option<Arc<EventChannel>>) -> Self {
        Self {
            number,
            context,
            channel,
            overrun: AtomicBool::new(false),
            failed: AtomicBool::new(false),
            queued: AtomicU32::new(0),
            unacked: AtomicU32::new(0),
            retired: AtomicBool::new(false),
        }
    }

    /// Number of the queue in the device.
    pub fn number(&self) -> u32 {
        self.number
    }
    /// The program's own context value.
    pub fn context(&self) -> u64 {
        self.context
    }
    /// Whether the queue overran and all completions before the loss are published: once those are polled, polls fail.
    #[inline]
    pub fn failed(&self) -> bool {
        self.failed.load(Ordering::Acquire)
    }
    /// Whether the queue overran.
    pub fn overran(&self) -> bool {
        self.overrun.load(Ordering::Acquire)
    }
    /// Number of events that were fetched and not acknowledged.
    pub fn unacked(&self) -> u32 {
        self.unacked.load(Ordering::Acquire)
    }

    /// Records that a completion was lost. Returns `true` for the first loss.
    pub(super) fn overrun(&self) -> bool {
        !self.overrun.swap(true, Ordering::AcqRel)
    }
    /// Records that all completions before the loss are published.
    pub(super) fn set_failed(&self) {
        self.failed.store(true, Ordering::Release);
    }

    /// Acknowledges `n` events (`ibv_ack_cq_events(3)`).
    ///
    /// # Errors
    /// The number of unacknowledged events, if that is less than `n`; nothing has changed then.
    pub fn ack(&self, n: u32) -> Result<(), u32> {
        let update = |unacked: u32| unacked.checked_sub(n);
        self.unacked.fetch_update(Ordering::AcqRel, Ordering::Acquire, update).map(drop)
    }

    /// Prepares to destroy the queue: its events leave both the channel and `events`, and no more are queued.
    ///
    /// # Errors
    /// The number of events that were fetched and not acknowledged; nothing has changed then.
    pub fn retire(&self, events: &EventQueue) -> Result<(), u32> {
        let element = EventElement::Cq(self.number);
        let Some(channel) = &self.channel else { return events.retire(element) };
        let mut waiting = channel.lock();
        match self.unacked() {
            0 => events.retire(element)?,
            n => return Err(n),
        }
        self.retired.store(true, Ordering::Relaxed);
        channel.purge(&mut waiting, self);
        Ok(())
    }

    /// The queue is gone, including events that were never acknowledged.
    pub fn abandon(&self) {
        if let Some(channel) = &self.channel {
            let mut waiting = channel.lock();
            self.retired.store(true, Ordering::Relaxed);
            channel.purge(&mut waiting, self);
        }
    }
}

impl Lane {
    /// Queues a completion event.
    #[cold]
    pub fn notify(&self) {
        if let Some(channel) = &self.cq.channel {
            channel.notify(&self.cq);
        }
    }
}

#[derive(Debug, Default)]
struct Waiting {
    queue: VecDeque<Arc<CqState>>,
    /// The file descriptor is readable.
    signalled: bool,
}

/// Completion events on their way to a program (`struct ibv_comp_channel`).
#[derive(Debug)]
pub struct EventChannel {
    waiting: Mutex<Waiting>,
    fd: EventFd,
    /// If set, a part of the device itself waits for the events: each event rings this alarm, and none is queued.
    alarm: Option<Arc<Alarm>>,
}

impl EventChannel {
    /// Most waiting events of one completion queue. Further events would say nothing new: a program that fetches these polls the queue.
    pub const PER_CQ: u32 = 1024;

    /// A channel with its file descriptor.
    ///
    /// # Errors
    /// Those of eventfd(2).
    pub fn new() -> io::Result<Self> {
        Ok(Self { waiting: Mutex::default(), fd: EventFd::new()?, alarm: None })
    }

    /// A channel that rings an alarm for each event, and queues none.
    ///
    /// # Errors
    /// Those of eventfd(2).
    pub fn to_alarm(alarm: Arc<Alarm>) -> io::Result<Self> {
        Ok(Self { alarm: Some(alarm), ..Self::new()? })
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        lock(&self.waiting)
    }

    /// Appends an event of `cq`.
    fn notify(&self, cq: &Arc<CqState>) {
        if let Some(alarm) = &self.alarm {
            return alarm.ring();
        }
        let mut waiting = self.lock();
        if cq.retired.load(Ordering::Relaxed) || cq.queued.load(Ordering::Relaxed) >= Self::PER_CQ {
            return;
        }
        cq.queued.fetch_add(1, Ordering::Relaxed);
        waiting.queue.push_back(cq.clone());
        waiting.signalled = true;
        self.fd.signal();
    }

    /// Takes the oldest event, if any, and returns its queue. The caller acknowledges it with [`CqState::ack`].
    pub fn try_get(&self) -> Option<Arc<CqState>> {
        let mut waiting = self.lock();
        let cq = waiting.queue.pop_front()?;
        cq.queued.fetch_sub(1, Ordering::Relaxed);
        cq.unacked.fetch_add(1, Ordering::AcqRel);
        self.clear_if_empty(&mut waiting);
        Some(cq)
    }

    /// The file descriptor, readable while an event waits.
    pub fn fd(&self) -> &EventFd {
        &self.fd
    }

    fn purge(&self, waiting: &mut Waiting, cq: &CqState) {
        waiting.queue.retain(|other| !core::ptr::eq(&**other, cq));
        cq.queued.store(0, Ordering::Relaxed);
        self.clear_if_empty(waiting);
    }

    /// Makes the file descriptor unreadable if the queue is empty.
    fn clear_if_empty(&self, waiting: &mut Waiting) {
        if waiting.signalled && waiting.queue.is_empty() {
            waiting.signalled = false;
            self.fd.clear();
        }
    }
}
