//! Completion queues: a lane from each shard, and one reader.

use core::fmt;
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use core::time::Duration;
use std::sync::{Arc, Mutex};

use super::channel::ChannelCore;
use super::error::DeviceError;
use super::handle::Device;
use super::idle_polls;
use super::inside_turn::{inside_turn, not_inside_turn};
use super::pd::PdCore;
use super::quota::Share;
use crate::config::CQE_MAX;
use crate::proto::wqe::Cqe;
use crate::shard::{CqState, EventElement, LaneId};
use crate::sync::exclusive::Exclusive;
use crate::sync::lanes::{self, Arm, Armer, CqLane, CqReader};
use crate::sync::lock::lock;

/// Most turns that one poll makes to send posted datagrams: one turn may not send all of them.
const SENDING_TURNS: usize = 16;

/// The reading end of a completion queue, which its holder may poll.
pub struct CqTap(CqReader<Cqe>);

impl fmt::Debug for CqTap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CqTap").field("len", &self.0.len()).finish()
    }
}

enum Lane {
    /// No queue pair of the shard uses the completion queue yet.
    Spare(CqLane<Cqe>),
    /// The shard holds the lane.
    Attached(LaneId),
    /// Transient state, while the lane moves to the shard.
    Moving,
}

/// The parameters of a new completion queue.
#[derive(Clone, Copy, Debug)]
pub struct CqInit<'a> {
    /// Minimum number of entries.
    pub cqe: u32,
    /// The channel of its events; `None` for a queue without events.
    pub channel: Option<&'a Arc<ChannelCore>>,
    /// A value for the program's own use.
    pub context: u64,
    /// The parent domain in which it is created.
    pub parent: Option<&'a Arc<PdCore>>,
}

/// A completion queue. Its queue pairs and pollers hold references to it.
pub struct CqCore {
    device: Arc<Device>,
    cqe: AtomicU32,
    tap: Exclusive<CqTap>,
    lanes: Mutex<Vec<Lane>>,
    /// Shards that have a lane, as a bit mask.
    feeders: AtomicU32,
    /// A thread that polls this queue should sleep: see [`rest`](Self::rest).
    rest_is_due: AtomicBool,
    state: Arc<CqState>,
    /// The channel, which must outlive this queue, and the handle that arms the queue; `None` without events.
    channel: Option<(Arc<ChannelCore>, Armer)>,
    /// Must outlive this queue.
    _parent: Option<Arc<PdCore>>,
    _share: Share,
}

fn check_cqe(cqe: u32, min: u32) -> Result<(), DeviceError> {
    if (min.max(1)..=CQE_MAX).contains(&cqe) {
        return Ok(());
    }
    let (given, max) = (cqe.into(), CQE_MAX.into());
    Err(DeviceError::Range { what: "cqe", given, min: min.max(1).into(), max })
}

impl Device {
    /// Creates a completion queue.
    ///
    /// # Errors
    /// [`DeviceError::Range`], [`DeviceError::Exhausted`], [`DeviceError::Foreign`] for a channel or parent domain of
    /// another device, [`DeviceError::WrongKind`] for a protection domain that is no parent domain.
    pub fn create_cq(self: &Arc<Self>, init: &CqInit<'_>) -> Result<Arc<CqCore>, DeviceError> {
        CqCore::new(self.clone(), init)
    }
}

impl CqCore {
    fn new(device: Arc<Device>, init: &CqInit<'_>) -> Result<Arc<Self>, DeviceError> {
        check_cqe(init.cqe, 1)?;
        if init.channel.is_some_and(|c| !Arc::ptr_eq(c.device(), &device)) {
            return Err(DeviceError::Foreign { what: "completion channel" });
        }
        if let Some(parent) = init.parent {
            if !Arc::ptr_eq(parent.device(), &device) {
                return Err(DeviceError::Foreign { what: "parent domain" });
            }
            if !parent.is_parent() {
                return Err(DeviceError::WrongKind { call: "create_cq_ex", wanted: "parent domain" });
            }
        }
        let share = device.cqs.take()?;
        let make = if init.channel.is_some() { lanes::cq_with_events } else { lanes::cq };
        let (reader, lanes) = make(init.cqe, device.shards());
        let number = device.next_cq.fetch_add(1, Ordering::Relaxed);
        let events = init.channel.map(|c| c.queue().clone());
        Ok(Arc::new(Self {
            device,
            cqe: AtomicU32::new(init.cqe),
            channel: init.channel.map(|c| (c.clone(), reader.armer())),
            tap: Exclusive::new(Some(CqTap(reader))),
            lanes: Mutex::new(lanes.into_iter().map(Lane::Spare).collect()),
            feeders: AtomicU32::new(0),
            rest_is_due: AtomicBool::new(false),
            state: Arc::new(CqState::new(number, init.context, events)),
            _parent: init.parent.cloned(),
            _share: share,
        }))
    }

    /// Number of entries.
    pub fn cqe(&self) -> u32 {
        self.cqe.load(Ordering::Relaxed)
    }
    /// Its number, context and status.
    #[inline]
    pub fn state(&self) -> &Arc<CqState> {
        &self.state
    }
    /// The channel of its events, if any.
    pub fn channel(&self) -> Option<&Arc<ChannelCore>> {
        self.channel.as_ref().map(|(channel, _)| channel)
    }
    /// The device.
    pub fn device(&self) -> &Arc<Device> {
        &self.device
    }
    /// The reading end; unavailable while another owner has it.
    #[inline]
    pub fn tap(&self) -> &Exclusive<CqTap> {
        &self.tap
    }

    /// Passes up to `max` completions to `each`, skipping those of queue pairs that were reset or destroyed since. Returns the number
    /// passed.
    #[inline]
    pub fn poll_with(&self, tap: &mut CqTap, max: usize, mut each: impl FnMut(&Cqe)) -> usize {
        let words = self.device.words();
        let mut given = 0;
        loop {
            let before = given;
            let taken = tap.0.poll_with(max - before, |cqe| {
                if words.load(cqe.qp_index).epoch() == cqe.epoch {
                    each(cqe);
                    given += 1;
                }
            });
            // Polls again only to replace skipped completions.
            if taken == given - before {
                return given;
            }
        }
    }

    /// Drops completions of queue pairs that were reset or destroyed, up to the first live completion of each lane, so that they take no
    /// room. Polls skip the remaining ones.
    pub(super) fn drop_stale(&self) {
        let words = self.device.words();
        // If another thread has the tap, its polls skip them.
        if let Some(mut tap) = self.tap.try_lock() {
            tap.0.discard_while(|cqe| words.load(cqe.qp_index).epoch() != cqe.epoch);
        }
    }

    /// Called after a poll that found completions, before the program sees them: sends datagrams that were posted before and that no turn
    /// has sent yet, so that the program may reuse their buffers.
    #[inline]
    pub fn send_unsent(&self) {
        if self.device.core().shared.unsent.among(self.feeders.load(Ordering::Relaxed)) != 0 {
            self.send_datagrams();
        }
    }

    /// If callers drive the shards, makes turns. Waits for a turn in progress, which may have begun before the datagrams were posted.
    #[cold]
    fn send_datagrams(&self) {
        let core = self.device.core();
        let mut shards = core.shared.unsent.among(self.feeders.load(Ordering::Relaxed));
        core.shared.unsent.clear(shards);
        if !core.callers_drive || inside_turn() || core.is_forked() {
            return;
        }
        while shards != 0 {
            let index = shards.trailing_zeros() as usize;
            for _ in 0..SENDING_TURNS {
                match core.extra_turn(index) {
                    Some(turn) if turn.more => {}
                    Some(_) => break,
                    // Fails only inside a turn.
                    None => _ = core.control_living(index, |shard, now| _ = shard.poll_once(now)),
                }
            }
            shards &= shards - 1;
        }
    }

    /// If callers drive the shards, makes one turn of each shard that feeds this queue and that no other thread holds. Returns whether to
    /// poll again.
    ///
    /// # Errors
    /// [`DeviceError::InsideTurn`].
    #[inline]
    pub fn turn_feeders(&self) -> Result<bool, DeviceError> {
        let core = self.device.core();
        if !core.callers_drive {
            return Ok(false);
        }
        not_inside_turn()?;
        let mut feeders = self.feeders.load(Ordering::Relaxed);
        while feeders != 0 {
            let index = feeders.trailing_zeros() as usize;
            let turn = core.turn(index);
            if core.turns_of_callers(index).is_multiple_of(idle_polls::CHECK_INTERVAL) {
                core.set_caller(index);
                if idle_polls::note(turn.is_some_and(|turn| !turn.idle())) {
                    self.rest_is_due.store(true, Ordering::Relaxed);
                }
            }
            feeders &= feeders - 1;
        }
        Ok(true)
    }

    /// Called after a poll that found nothing, once other threads may poll again. If cores are busy and this thread has polled in vain for
    /// a while, sleeps until there may be work, for a millisecond at most.
    #[inline]
    pub fn rest(&self) {
        if self.rest_is_due.load(Ordering::Relaxed) {
            self.rest_now();
        }
    }

    #[cold]
    fn rest_now(&self) {
        self.rest_is_due.store(false, Ordering::Relaxed);
        // `None` if another thread set the flag.
        if let Some(at_most) = idle_polls::take_due() {
            self.device.core().sleep_in_poll(self.feeders.load(Ordering::Relaxed), at_most);
        }
    }

    /// Waits for the end of turns in progress, so that their completions can be polled. If shards are turned without explicit calls of the
    /// program, makes a turn for requests posted before.
    fn finish_turns(&self) -> Result<(), DeviceError> {
        let core = self.device.core();
        let mut feeders = self.feeders.load(Ordering::Relaxed);
        while feeders != 0 {
            core.control_living(feeders.trailing_zeros() as usize, |shard, now| {
                if core.turns_by_itself() {
                    shard.poll_once(now);
                }
            })?;
            feeders &= feeders - 1;
        }
        Ok(())
    }

    /// Whether completions may be missing beyond those that can be polled now: the queue overran, or a shard that feeds it died.
    #[inline]
    pub fn broken(&self) -> bool {
        self.state.failed() || self.feeders.load(Ordering::Relaxed) & self.device.core().dead() != 0
    }

    /// Why the queue is [`broken`](Self::broken).
    #[cold]
    pub fn failure(&self) -> DeviceError {
        match self.device.core().alive(self.feeders.load(Ordering::Relaxed)) {
            Err(died) if !self.state.failed() => died,
            _ => DeviceError::CqOverrun,
        }
    }

    /// Requests one event, for the next completion, or for the next solicited or failed one.
    ///
    /// # Errors
    /// [`DeviceError::NoChannel`].
    pub fn arm(&self, solicited_only: bool) -> Result<(), DeviceError> {
        let (_, armer) = self.channel.as_ref().ok_or(DeviceError::NoChannel)?;
        armer.arm(if solicited_only { Arm::Solicited } else { Arm::Next });
        // The program is about to sleep. If callers drive the shards, the helper has to take over.
        self.device.core().wake_helper();
        Ok(())
    }

    /// Acknowledges `n` completion events.
    ///
    /// # Errors
    /// [`DeviceError::NotFetched`].
    pub fn ack_events(&self, n: u32) -> Result<(), DeviceError> {
        self.state.ack(n).map_err(|fetched| DeviceError::NotFetched { given: n, fetched })
    }

    /// Changes the number of entries to `cqe`; waiting completions stay, in order. `tap` must be this queue's.
    ///
    /// # Errors
    /// [`DeviceError::Range`] also if `cqe` is less than the number of waiting completions, [`DeviceError::CqOverrun`],
    /// [`DeviceError::InsideTurn`].
    pub fn resize(&self, tap: &mut CqTap, cqe: u32) -> Result<(), DeviceError> {
        not_inside_turn()?;
        // Posted requests may have completed, and their completions count.
        self.finish_turns()?;
        if self.state.overran() {
            return Err(DeviceError::CqOverrun);
        }
        let mut lanes = lock(&self.lanes);
        check_cqe(cqe, u32::try_from(tap.0.len()).unwrap_or(u32::MAX))?;
        for (shard, (lane, new)) in lanes.iter_mut().zip(tap.0.resize(cqe)).enumerate() {
            match lane {
                Lane::Attached(id) => {
                    self.device.core().control_living(shard, |s, _| s.replace_lane(*id, new))?;
                }
                Lane::Spare(_) | Lane::Moving => *lane = Lane::Spare(new),
            }
        }
        self.cqe.store(cqe, Ordering::Relaxed);
        Ok(())
    }

    /// The lane from a shard, attached on first use.
    pub(super) fn lane(&self, shard: usize) -> Result<LaneId, DeviceError> {
        let mut lanes = lock(&self.lanes);
        match core::mem::replace(&mut lanes[shard], Lane::Moving) {
            Lane::Spare(lane) => {
                let mut lane = Some(lane);
                let attached = self
                    .device
                    .core()
                    .control(shard, |s, _| lane.take().map(|l| s.attach_cq(l, self.state.clone())));
                match attached {
                    Ok(Some(id)) => {
                        lanes[shard] = Lane::Attached(id);
                        self.feeders.fetch_or(1 << shard, Ordering::Relaxed);
                        Ok(id)
                    }
                    Ok(None) => unreachable!("the lane was there"),
                    Err(e) => {
                        lanes[shard] = lane.map_or(Lane::Moving, Lane::Spare);
                        Err(e)
                    }
                }
            }
            Lane::Attached(id) => {
                lanes[shard] = Lane::Attached(id);
                Ok(id)
            }
            Lane::Moving => unreachable!("a lane moves under its lock only"),
        }
    }

    /// Frees the queue, with its events that were not fetched.
    ///
    /// # Errors
    /// [`DeviceError::Busy`] while other objects refer to it, [`DeviceError::Unacked`] while a fetched event of it is not acknowledged,
    /// [`DeviceError::Forked`]. The queue is returned with the error.
    pub fn destroy(cq: Arc<Self>) -> Result<(), (DeviceError, Arc<Self>)> {
        if let Err(e) = cq.device.core().not_forked() {
            return Err((e, cq));
        }
        let cq = Arc::try_unwrap(cq).map_err(|cq| {
            let users = Arc::strong_count(&cq) - 1;
            (DeviceError::Busy { object: "completion queue", users }, cq)
        })?;
        match cq.state.retire(&cq.device.core().shared.events) {
            Ok(()) => {
                drop(cq);
                Ok(())
            }
            Err(events) => Err((DeviceError::Unacked { object: "completion queue", events }, Arc::new(cq))),
        }
    }

    /// As [`destroy`](Self::destroy), but waits until its events are acknowledged, for at most `timeout`.
    ///
    /// # Errors
    /// As `destroy`, and [`DeviceError::InsideTurn`].
    pub fn destroy_wait(cq: Arc<Self>, timeout: Duration) -> Result<(), (DeviceError, Arc<Self>)> {
        let (device, state, element) = (cq.device.clone(), cq.state.clone(), cq.element());
        let unacked = || state.unacked() + device.core().shared.events.unacked(element);
        device.destroy_wait(timeout, cq, Self::destroy, unacked)
    }

    fn element(&self) -> EventElement {
        EventElement::Cq(self.state.number())
    }
}

impl Drop for CqCore {
    fn drop(&mut self) {
        if self.device.is_forked() {
            return;
        }
        for (shard, lane) in lock(&self.lanes).drain(..).enumerate() {
            if let Lane::Attached(id) = lane {
                // Refused only inside a turn: the lane then stays, unused.
                let _ = self.device.core().control_living(shard, |s, _| s.detach_lane(id));
            }
        }
        self.state.abandon();
        let events = &self.device.core().shared.events;
        events.purge(self.element());
        events.forget(self.element());
    }
}

impl fmt::Debug for CqCore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CqCore")
            .field("number", &self.state.number())
            .field("cqe", &self.cqe())
            .finish_non_exhaustive()
    }
}
