//! Shards and their claims: turns, control calls, and the rules between the two.
//!
//! # When a holder of a shard panics
//!
//! A port or a `tracing` subscriber, which may be the program's own, or a bug of this stack may panic in a turn or a control call. The
//! shard's work is half done then, so the shard is dead: its claim is never released, so no thread turns it again, and no turn uses
//! registered memory any more. Posters find the gates of its queue pairs closed; control calls, polls of its completion queues and waiting
//! calls return [`DeviceError::ShardDied`]; and the program gets DEVICE_FATAL. Completions that were published before can be polled. The
//! other shards go on.

use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use core::time::Duration;
use std::sync::Arc;

use crossbeam_utils::CachePadded;

use super::clock::ClockSource;
use super::config::Drive;
use super::error::DeviceError;
use super::inside_turn::{inside_turn, not_inside_turn, set_inside_turn};
use super::service::ServiceSlot;
use super::stats::list::QpList;
use super::stats::tables::Tables;
use super::upkeep::Upkeep;
use crate::mem::TurnsPassed;
use crate::port::{Armed, Port};
use crate::proto::status::AsyncEvent;
use crate::shard::{EventElement, Shard, Shared, Turn};
use crate::sync::claim::{Claim, Refused};
use crate::sync::process::Process;
use crate::sync::scheduling;
use crate::time::Instant;

/// Marks the thread as holding a shard, until [`Holding::end`]. If a panic drops the mark instead, the drop reports the shard's death,
/// before the claim is dropped.
struct Holding<'a> {
    core: &'a Core,
    index: usize,
}

impl<'a> Holding<'a> {
    #[inline]
    fn begin(core: &'a Core, index: usize) -> Self {
        set_inside_turn(true);
        Self { core, index }
    }
    #[inline]
    fn end(self) {
        set_inside_turn(false);
        core::mem::forget(self);
    }
}
impl Drop for Holding<'_> {
    #[cold]
    fn drop(&mut self) {
        set_inside_turn(false);
        self.core.shard_died(self.index);
    }
}

/// A shard behind its claim.
pub(super) struct Cell {
    shard: Claim<Shard>,
    /// Turns by threads other than the helper thread, which watches this count; and the number of such a thread, or 0.
    turns: AtomicU32,
    caller: AtomicU32,
    /// A thread sleeps for this shard inside a poll.
    polled: AtomicBool,
    /// Non-zero if posts need not wake the helper, because polling threads sleep for this shard now and then: the number of checks of the
    /// helper, without a turn of theirs, until posts wake it again.
    poller_grace: AtomicU32,
}

/// See [`Cell::poller_grace`]: number of checks, a millisecond apart. A thread may be off its core for some time slices of the scheduler.
const POLLER_GRACE: u32 = 32;

impl Cell {
    /// Whether the shard is dead: a holder panicked.
    pub(super) fn is_dead(&self) -> bool {
        self.shard.is_dead()
    }
}

/// The state that the device's threads share with its handles.
pub(super) struct Core {
    pub shared: Arc<Shared>,
    pub cells: Box<[CachePadded<Cell>]>,
    pub port: Box<dyn Port>,
    /// The existing queue pairs, for statistics.
    pub qps: QpList,
    /// Counters that the program itself provides.
    pub tables: Tables,
    /// Whether polling a completion queue turns the shards that feed it.
    pub callers_drive: bool,
    /// Whether threads of the device turn every shard all the time.
    pub dedicated: bool,
    clock: ClockSource,
    stop: AtomicBool,
    /// Dead shards, as a bit mask.
    dead: AtomicU32,
    /// Periodic work for the port.
    pub upkeep: Upkeep,
    /// The service that runs between turns, if there is one.
    pub service: ServiceSlot,
    /// The process that opened the device: a forked child has neither its threads nor a port of its own.
    made_by: Process,
}

impl Core {
    pub(super) fn new(
        shared: Arc<Shared>,
        shards: Vec<Shard>,
        port: Box<dyn Port>,
        clock: ClockSource,
        drive: &Drive,
        assume_link: bool,
    ) -> Self {
        let cells = shards
            .into_iter()
            .map(|shard| {
                CachePadded::new(Cell {
                    shard: Claim::new(shard),
                    turns: AtomicU32::new(0),
                    caller: AtomicU32::new(0),
                    polled: AtomicBool::new(false),
                    poller_grace: AtomicU32::new(0),
                })
            })
            .collect();
        let upkeep = Upkeep::new(&*port, assume_link);
        let service = ServiceSlot::new(Arc::clone(shared.ended_peers.alarm()));
        Self {
            shared,
            cells,
            port,
            qps: QpList::default(),
            tables: Tables::default(),
            callers_drive: *drive == Drive::Caller,
            dedicated: matches!(drive, Drive::Dedicated { .. }),
            clock,
            stop: AtomicBool::new(false),
            dead: AtomicU32::new(0),
            upkeep,
            service,
            made_by: Process::this(),
        }
    }

    #[inline]
    pub(super) fn now(&self) -> Instant {
        self.clock.now()
    }

    /// Whether shards are turned without explicit calls of the program: by threads that poll, or by the device's own threads.
    #[inline]
    pub(super) fn turns_by_itself(&self) -> bool {
        self.callers_drive || self.dedicated
    }

    /// Whether this process is a forked child of the one that opened the device. It then leaves shards, locks and threads alone: any of
    /// them may be held by a thread that this process does not have.
    #[inline]
    pub(super) fn is_forked(&self) -> bool {
        !self.made_by.is_this()
    }

    /// Refuses calls that need more of the device than a forked child has.
    pub(super) fn not_forked(&self) -> Result<(), DeviceError> {
        if self.is_forked() { Err(DeviceError::Forked) } else { Ok(()) }
    }

    /// Makes one turn, unless another thread has the shard, a control call waits for it, or this thread is inside a turn.
    #[inline]
    pub(super) fn turn(&self, index: usize) -> Option<Turn> {
        if self.is_forked() {
            return None;
        }
        let cell = &self.cells[index];
        let (turn, _) = self.turn_and(cell, index, |_| ())?;
        // No atomic read-modify-write: if two threads turn in quick succession one count may be lost, which costs the helper one check or
        // one turn.
        cell.turns.store(cell.turns.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
        self.serve();
        Some(turn)
    }

    /// An extra turn of a polling thread: as [`Core::turn`], but neither counted nor followed by the service. (A separate function, so that
    /// `turn` is inlined into polls.)
    #[cold]
    pub(super) fn extra_turn(&self, index: usize) -> Option<Turn> {
        let (turn, _) = self.turn_and(&self.cells[index], index, |_| ())?;
        Some(turn)
    }

    /// Runs the service after a turn, if it is due.
    #[inline]
    fn serve(&self) {
        if self.service.is_due(|| self.now()) {
            self.service.run();
        }
    }

    /// Makes one turn, then calls `look` on the shard.
    #[inline]
    fn turn_and<R>(&self, cell: &Cell, index: usize, look: impl FnOnce(&Shard) -> R) -> Option<(Turn, R)> {
        if inside_turn() {
            return None;
        }
        let Some(mut shard) = cell.shard.try_take() else {
            if cell.shard.wanted() {
                // On a machine with few cores the waiting thread may need this one.
                std::thread::yield_now();
            }
            return None;
        };
        let holding = Holding::begin(self, index);
        let now = self.now();
        let turn = shard.poll_once(now);
        self.maintain(now, index);
        let seen = look(&shard);
        holding.end();
        shard.release();
        Some((turn, seen))
    }

    /// Makes a turn of every free shard. Returns whether any of them had work.
    pub(super) fn turn_all(&self) -> bool {
        let mut work = false;
        for index in 0..self.cells.len() {
            if let Some(turn) = self.turn(index) {
                work |= !turn.idle();
            }
        }
        work
    }

    /// Calls `look` on a shard, if it is free.
    pub(super) fn peek<R>(&self, index: usize, look: impl FnOnce(&Shard) -> R) -> Option<R> {
        self.not_forked().ok()?;
        let shard = self.cells[index].shard.try_take()?;
        let seen = look(&shard);
        shard.release();
        Some(seen)
    }

    /// Calls `work` on a shard between two turns, on the calling thread.
    ///
    /// # Errors
    /// [`DeviceError::InsideTurn`], [`DeviceError::ShardDied`].
    pub(super) fn control<R>(
        &self,
        index: usize,
        work: impl FnOnce(&mut Shard, Instant) -> R,
    ) -> Result<R, DeviceError> {
        not_inside_turn()?;
        self.not_forked()?;
        let mut shard = self.cells[index].shard.take().map_err(|refused| match refused {
            Refused::Inside => DeviceError::InsideTurn,
            Refused::Dead => DeviceError::ShardDied { shard: index },
        })?;
        let holding = Holding::begin(self, index);
        let result = work(&mut shard, self.now());
        holding.end();
        shard.release();
        self.wake_helper();
        Ok(result)
    }

    /// As [`Core::control`], for work that is pointless on a dead shard.
    ///
    /// # Errors
    /// [`DeviceError::InsideTurn`].
    pub(super) fn control_living(
        &self,
        index: usize,
        work: impl FnOnce(&mut Shard, Instant),
    ) -> Result<(), DeviceError> {
        match self.control(index, work) {
            Err(DeviceError::ShardDied { .. }) => Ok(()),
            other => other,
        }
    }

    /// Handles the panic of a shard's holder. Called during unwinding, so nothing here may panic, nor call code of the program. The claim,
    /// which is still held, is dropped after this.
    #[cold]
    fn shard_died(&self, index: usize) {
        self.shared.end_shard(index);
        let before = self.dead.fetch_or(1 << index, Ordering::AcqRel);
        if before == 0 {
            self.shared.events.raise(AsyncEvent::DeviceFatal, EventElement::Device);
        }
        self.service.device_died();
        self.wake_helper();
    }

    /// Dead shards, as a bit mask.
    #[inline]
    pub(super) fn dead(&self) -> u32 {
        self.dead.load(Ordering::Relaxed)
    }

    /// Fails if one of these shards, a bit mask, is dead.
    ///
    /// # Errors
    /// [`DeviceError::ShardDied`].
    pub(super) fn alive(&self, shards: u32) -> Result<(), DeviceError> {
        match self.dead.load(Ordering::Acquire) & shards {
            0 => Ok(()),
            dead => Err(DeviceError::ShardDied { shard: dead.trailing_zeros() as usize }),
        }
    }

    /// Whether all shards are dead.
    pub(super) fn all_dead(&self) -> bool {
        self.cells.iter().all(|cell| cell.is_dead())
    }

    /// Wakes the thread that sleeps for this device, if any: there may be work soon.
    pub(super) fn wake_helper(&self) {
        self.shared.sleeper.wake();
    }

    /// Prepares a free shard for a sleep. Returns how its port is armed, and the time until its next deadline.
    pub(super) fn arm(&self, index: usize) -> Option<(Armed, Duration)> {
        let mut shard = self.cells[index].shard.try_take()?;
        let holding = Holding::begin(self, index);
        let armed = shard.arm();
        let due = match armed {
            Armed::Down(..) => shard.next_deadline_without_link(),
            _ => shard.next_deadline(),
        };
        holding.end();
        shard.release();
        let due = due.map_or(Duration::MAX, |at| Duration::from_nanos(at.nanos_since(self.now())));
        Some((armed, due))
    }

    /// Waits for a grace period, as `synchronize_rcu` does: returns once every turn in progress at the call has ended. Turns are the
    /// read-side critical sections of key lookups (`shard/keys.rs`), and each holds its shard's claim; a dead shard has none. Call this
    /// after the key for which the result is used was revoked.
    pub(super) fn pass_turn_boundaries(&self) -> Result<TurnsPassed, DeviceError> {
        for index in 0..self.cells.len() {
            self.control_living(index, |_, _| ())?;
        }
        // SAFETY: each claim was taken and released since the call, or is dead: the turn that was in progress has ended.
        #[allow(unsafe_code)]
        Ok(unsafe { TurnsPassed::new() })
    }

    /// Whether this is the first living shard: its holder does the work that is done once for the whole device.
    #[inline]
    fn is_first(&self, index: usize) -> bool {
        self.dead().trailing_ones() as usize == index
    }

    /// Runs the port's upkeep if it is due and this shard is the first; called by the shard's holder.
    #[inline]
    fn maintain(&self, now: Instant, index: usize) {
        if self.upkeep.is_due(now) && self.is_first(index) {
            self.upkeep.run(now, &*self.port, &self.shared);
        }
    }

    /// Makes the device's threads end.
    pub(super) fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
        self.wake_helper();
    }

    /// Turns the shards until they have nothing left that could be sent, for at most `bound`; makes no turn inside a turn.
    pub(super) fn drain_tx(&self, bound: Duration) {
        let start = std::time::Instant::now();
        while !inside_turn() {
            let mut quiet = true;
            for (index, cell) in self.cells.iter().enumerate().filter(|(_, cell)| !cell.is_dead()) {
                // A shard that another thread holds may have work.
                quiet &= self.turn_and(cell, index, |s| s.quiet()).is_some_and(|(_, quiet)| quiet);
                quiet &= !self.shared.doorbells[index].any();
            }
            if quiet || start.elapsed() >= bound {
                return;
            }
            std::thread::yield_now();
        }
    }

    /// The loop of a dedicated thread: turns one shard until the shard dies or the device closes, and releases it only for control calls
    /// and the service.
    pub(super) fn run_dedicated(&self, index: usize) {
        let cell = &self.cells[index];
        let serves = || self.is_first(index) && self.service.is_due(|| self.now());
        while !self.stop.load(Ordering::Relaxed) {
            if serves() {
                self.service.run_apart();
            }
            let Some(mut shard) = cell.shard.try_take() else {
                if cell.is_dead() {
                    return;
                }
                std::thread::yield_now();
                continue;
            };
            let holding = Holding::begin(self, index);
            // At least one turn: a service that is due may have to wait for the end of a call, and the shard must not wait with it.
            loop {
                let now = self.now();
                shard.poll_once(now);
                self.maintain(now, index);
                if cell.shard.wanted() || serves() || self.stop.load(Ordering::Relaxed) {
                    break;
                }
            }
            holding.end();
            shard.release();
        }
    }

    /// Whether the device's threads should end.
    pub(super) fn stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }
    /// Number of turns by threads other than the helper, modulo 2^32.
    pub(super) fn turns_of_callers(&self, index: usize) -> u32 {
        self.cells[index].turns.load(Ordering::Relaxed)
    }
    /// The number of a thread that has made such turns lately; 0 if none has made many.
    pub(super) fn caller(&self, index: usize) -> u32 {
        self.cells[index].caller.load(Ordering::Relaxed)
    }
    /// Notes that the calling thread turns the shard repeatedly.
    pub(super) fn set_caller(&self, index: usize) {
        self.cells[index].caller.store(scheduling::thread_number(), Ordering::Relaxed);
    }
    /// Sets whether a thread sleeps for these shards, a bit mask, inside a poll.
    pub(super) fn set_polled(&self, shards: u32, polled: bool) {
        for (_, cell) in self.cells.iter().enumerate().filter(|(i, _)| shards >> i & 1 != 0) {
            cell.polled.store(polled, Ordering::Relaxed);
            if polled {
                cell.poller_grace.store(POLLER_GRACE, Ordering::Relaxed);
            }
        }
    }
    /// Whether a thread sleeps for a shard inside a poll.
    pub(super) fn is_polled(&self, index: usize) -> bool {
        self.cells[index].polled.load(Ordering::Relaxed)
    }
    /// For one check of the helper: whether polling threads handle the posts of a shard, so that posts need not wake the helper.
    pub(super) fn is_left_to_pollers(&self, index: usize, callers_turned: bool) -> bool {
        let grace = &self.cells[index].poller_grace;
        let looks = grace.load(Ordering::Relaxed);
        if looks > 0 && !callers_turned {
            grace.store(looks - 1, Ordering::Relaxed);
        }
        looks > 0
    }
    /// Makes a turn for the helper. Returns its work, and the number of connected queue pairs.
    pub(super) fn turn_by_helper(&self, index: usize) -> Option<(Turn, usize)> {
        let (turn, connected) = self.turn_and(&self.cells[index], index, |s| s.connected_qps())?;
        if self.service.is_due(|| self.now()) {
            self.service.run_apart();
        }
        Some((turn, connected))
    }
}
