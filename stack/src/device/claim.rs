//! Shards and their claims: turns, control calls, and the rules between the two.
//!
//! # When a holder of a shard panics
//!
//! A port or a `tracing` subscriber, which are the program's, or a bug of ours may panic in a turn or a control call. The shard's
//! work is half done then, so the shard is dead: its claim is never released, so no thread turns it again, and no turn uses
//! registered memory any more. Posters find the gates of its queue pairs closed; control calls, polls of its completion queues and
//! waiting calls return [`DeviceError::ShardDied`]; and the program gets DEVICE_FATAL. Completions that were published before can
//! be polled. The other shards go on.

use core::cell::Cell as ThreadCell;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use core::time::Duration;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crossbeam_utils::CachePadded;

use super::MAINTAIN_EVERY;
use super::config::{Clock, Drive};
use super::error::{DeviceError, OpenError};
use super::service::ServiceSlot;
use super::stats::{QpList, Tables};
use crate::id::{Gid, Mtu};
use crate::mem::TurnsPassed;
use crate::net::{Net, NetConfig};
use crate::port::{Armed, Port, PortInfo};
use crate::proto::status::AsyncEvent;
use crate::shard::{EventElement, Shard, Shared, SharedConfig, Turn};
use crate::sync::claim::{Claim, Refused};
use crate::sync::eventfd::{EventFd, to_wait_for, wait_readable};
use crate::sync::process::Process;
use crate::sync::sleeper::{OTHERS, Sleep};
use crate::time::Instant;

thread_local! {
    /// Whether this thread is inside a turn or a control call of some shard.
    static HOLDS_SHARD: ThreadCell<bool> = const { ThreadCell::new(false) };
}

/// Marks the thread as holding a shard, until [`Holding::end`]. If a panic drops it instead, it reports the shard's death, before
/// the claim is dropped.
struct Holding<'a> {
    core: &'a Core,
    index: usize,
}

impl<'a> Holding<'a> {
    #[inline]
    fn begin(core: &'a Core, index: usize) -> Self {
        HOLDS_SHARD.set(true);
        Self { core, index }
    }
    #[inline]
    fn end(self) {
        HOLDS_SHARD.set(false);
        core::mem::forget(self);
    }
}
impl Drop for Holding<'_> {
    #[cold]
    fn drop(&mut self) {
        HOLDS_SHARD.set(false);
        self.core.shard_died(self.index);
    }
}

/// Whether this thread is inside a turn or a control call of some shard, of whichever device.
#[inline]
pub(super) fn inside_turn() -> bool {
    HOLDS_SHARD.get()
}

/// Refuses a call that would wait for a shard that this thread itself holds, or turn a shard inside of a turn.
///
/// # Errors
/// [`DeviceError::InsideTurn`].
#[inline]
pub fn not_inside_turn() -> Result<(), DeviceError> {
    if inside_turn() { Err(DeviceError::InsideTurn) } else { Ok(()) }
}

/// Locks a mutex whose data stays usable when a holder panicked: each change under it is complete in itself.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The device's clock.
pub(super) enum ClockSource {
    /// The CPU's counter if its rate is constant, else the system's clock; and its reading at the origin.
    Monotonic(quanta::Clock, u64),
    Manual(Arc<AtomicU64>),
}

impl ClockSource {
    pub(super) fn new(clock: &Clock) -> Self {
        match clock {
            Clock::Monotonic => {
                let clock = quanta::Clock::new();
                let origin = clock.raw();
                Self::Monotonic(clock, origin)
            }
            Clock::Manual(ns) => Self::Manual(ns.clone()),
        }
    }
    #[inline]
    pub(super) fn now(&self) -> Instant {
        Instant::from_nanos(match self {
            Self::Monotonic(clock, origin) => clock.delta_as_nanos(*origin, clock.raw()),
            Self::Manual(ns) => ns.load(Ordering::Acquire),
        })
    }
}

/// A shard behind its claim.
pub(super) struct Cell {
    shard: Claim<Shard>,
    /// Turns by threads other than the background helper, so that it can see them.
    turns: AtomicU32,
}

impl Cell {
    /// Whether the shard is dead: a holder panicked.
    pub(super) fn is_dead(&self) -> bool {
        self.shard.is_dead()
    }
}

/// What the device's threads share with its handles.
pub(super) struct Core {
    pub shared: Arc<Shared>,
    pub cells: Box<[CachePadded<Cell>]>,
    pub port: Box<dyn Port>,
    /// Queue pairs that exist, for statistics.
    pub qps: QpList,
    /// What the program counts itself.
    pub tables: Tables,
    /// Whether polling a completion queue turns the shards that feed it.
    pub callers_turn: bool,
    /// Whether threads of the device turn every shard all the time.
    pub dedicated: bool,
    clock: ClockSource,
    stop: AtomicBool,
    /// Dead shards, as bits.
    dead: AtomicU32,
    /// When the port is maintained next, in nanoseconds; written under shard 0's claim.
    maintain_at: AtomicU64,
    link_up: AtomicBool,
    /// Whether the program is told that the link is up, whatever it is.
    pub assume_link: bool,
    /// [`Host::generation`](crate::port::Host::generation) of the addresses that were taken over.
    host_seen: AtomicU64,
    /// The service that runs between turns, if there is one.
    pub service: ServiceSlot,
    /// The process that opened the device: a fork has neither its threads nor a port that is its own.
    made_by: Process,
}

/// Sleeps until one of the descriptors is readable, or the time is over.
fn nap(fds: &[BorrowedFd<'_>], time: Duration) {
    match fds {
        [] => std::thread::sleep(time),
        fds => {
            wait_readable(&mut to_wait_for::<OTHERS>(fds.iter().copied()), time);
        }
    }
}

/// The state that all shards of a new device share.
///
/// # Errors
/// [`OpenError::PortMtu`].
pub(super) fn shared(
    config: &NetConfig,
    port: &PortInfo,
    shards: usize,
    qps_per_shard: usize,
) -> Result<Shared, OpenError> {
    let net = Net::new(config);
    let gids = net.gids().iter().collect();
    let mtu = Mtu::of_link(port.mtu)
        .ok_or_else(|| OpenError::PortMtu { port: port.name.clone(), mtu: port.mtu })?;
    // Everybody is behind one next hop where the port's frames are those of UDP sockets.
    let computed_ids = config.next_hop.is_some();
    let (mac, vlan) = (port.mac, config.vlan);
    Ok(Shared::new(SharedConfig { net, gids, mac, vlan, mtu, shards, qps_per_shard, computed_ids }))
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
            .map(|shard| CachePadded::new(Cell { shard: Claim::new(shard), turns: AtomicU32::new(0) }))
            .collect();
        let link_up = AtomicBool::new(port.link_up());
        // The shared state may have older addresses than the host has now: `u64::MAX` makes the first maintenance read them again.
        let host_seen = port.host().map_or(0, |_| u64::MAX);
        Self {
            shared,
            cells,
            port,
            qps: QpList::default(),
            tables: Tables::default(),
            callers_turn: *drive == Drive::Caller,
            dedicated: matches!(drive, Drive::Dedicated { .. }),
            clock,
            stop: AtomicBool::new(false),
            dead: AtomicU32::new(0),
            maintain_at: AtomicU64::new(0),
            link_up,
            assume_link,
            host_seen: AtomicU64::new(host_seen),
            service: ServiceSlot::default(),
            made_by: Process::this(),
        }
    }

    #[inline]
    pub(super) fn now(&self) -> Instant {
        self.clock.now()
    }

    /// Whether shards are turned without explicit calls of the program: by threads that poll, or by the device's own.
    #[inline]
    pub(super) fn turns_by_itself(&self) -> bool {
        self.callers_turn || self.dedicated
    }

    /// Whether this process is a fork of the one that opened the device. It then leaves shards, locks and threads alone: any of
    /// them may be held by a thread that this process does not have.
    #[inline]
    pub(super) fn is_forked(&self) -> bool {
        !self.made_by.is_this()
    }

    /// Refuses calls that need more of the device than a fork has.
    pub(super) fn not_forked(&self) -> Result<(), DeviceError> {
        if self.is_forked() { Err(DeviceError::Forked) } else { Ok(()) }
    }

    /// One turn, unless another thread has the shard, a control call waits for it, or this thread is inside a turn.
    #[inline]
    pub(super) fn turn(&self, index: usize) -> Option<Turn> {
        if self.is_forked() {
            return None;
        }
        let cell = &self.cells[index];
        let (turn, _) = self.turn_and(cell, index, |_| ())?;
        // No atomic read-modify-write: if two threads turn in quick succession one count may be lost, which costs the helper a look
        // or a turn.
        cell.turns.store(cell.turns.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
        self.serve();
        Some(turn)
    }

    /// After a turn: runs the service if it is due.
    #[inline]
    fn serve(&self) {
        if self.service.is_due(|| self.now()) {
            self.service.run();
        }
    }

    /// One turn, then calls `look` on the shard.
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

    /// A turn of every shard that is free. Returns whether there was work.
    pub(super) fn turn_all(&self) -> bool {
        let mut work = false;
        for index in 0..self.cells.len() {
            if let Some(turn) = self.turn(index) {
                work |= !turn.idle();
            }
        }
        work
    }

    /// Calls `look` on a shard that is free.
    pub(super) fn peek<R>(&self, index: usize, look: impl FnOnce(&Shard) -> R) -> Option<R> {
        self.not_forked().ok()?;
        let shard = self.cells[index].shard.try_take()?;
        let seen = look(&shard);
        shard.release();
        Some(seen)
    }

    /// Works on a shard between two turns, on the calling thread.
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

    /// As [`Core::control`], for work that a dead shard does not need.
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

    /// A holder of the shard panicked. Called during unwinding, so nothing here may panic, nor call code of the program. The
    /// claim, which is still held, is dropped after this.
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

    /// Dead shards, as bits.
    #[inline]
    pub(super) fn dead(&self) -> u32 {
        self.dead.load(Ordering::Relaxed)
    }

    /// Fails where one of these shards, as bits, is dead.
    ///
    /// # Errors
    /// [`DeviceError::ShardDied`].
    pub(super) fn alive(&self, shards: u32) -> Result<(), DeviceError> {
        match self.dead.load(Ordering::Acquire) & shards {
            0 => Ok(()),
            dead => Err(DeviceError::ShardDied { shard: dead.trailing_zeros() as usize }),
        }
    }

    /// Whether no shard is left.
    pub(super) fn all_dead(&self) -> bool {
        self.cells.iter().all(|cell| cell.is_dead())
    }

    /// Wakes the thread that sleeps for this device, if there is one: there may be work soon.
    pub(super) fn wake_helper(&self) {
        self.shared.sleeper.wake();
    }

    /// Sleeps until one of these shards, as bits, may have work, `fd` is readable, or `at_most` is over. Ports that cannot signal
    /// are checked every `look`. Returns at once where there is work already.
    pub(super) fn sleep(&self, shards: u32, fd: Option<&EventFd>, at_most: Duration, look: Duration) {
        match self.shared.sleeper.begin() {
            Some(sleep) => self.sleep_here(sleep, shards, fd.map(AsFd::as_fd).as_slice(), at_most, look),
            None => nap(fd.map(AsFd::as_fd).as_slice(), at_most.min(look)),
        }
    }
    /// As [`Core::sleep`], for the thread that turns one shard, and with several descriptors. Threads that turn others may sleep at the
    /// same time.
    pub(super) fn sleep_for(&self, shard: usize, fds: &[BorrowedFd<'_>], at_most: Duration, look: Duration) {
        if self.is_forked() || inside_turn() {
            return;
        }
        match self.shared.sleeper.begin_for(1 + shard, 1 << shard) {
            Some(sleep) => self.sleep_here(sleep, 1 << shard, fds, at_most, look),
            None => nap(fds, at_most.min(look)),
        }
    }
    fn sleep_here(
        &self,
        mut sleep: Sleep<'_>,
        shards: u32,
        fds: &[BorrowedFd<'_>],
        at_most: Duration,
        look: Duration,
    ) {
        let mut at_most = if self.stopped() { Duration::ZERO } else { at_most };
        for index in (0..self.cells.len()).filter(|i| shards >> i & 1 != 0) {
            match self.arm(index) {
                Some((Armed::Down(again, event), due)) => {
                    at_most = at_most.min(due).min(again);
                    if sleep.watch(index, event).is_err() {
                        at_most = at_most.min(look);
                    }
                }
                Some((Armed::Event(event), due)) => {
                    at_most = at_most.min(due);
                    if sleep.watch(index, Some(event)).is_err() {
                        at_most = at_most.min(look);
                    }
                }
                Some((Armed::Unable, due)) => {
                    at_most = at_most.min(due).min(look);
                    // Removing a descriptor does not fail.
                    let _ = sleep.watch(index, None);
                }
                Some((Armed::Pending, _)) => at_most = Duration::ZERO,
                // Another thread turns it.
                None if !self.cells[index].is_dead() => at_most = at_most.min(look),
                None => {}
            }
        }
        if let Some(wait) = self.service.wait(self.now()) {
            at_most = at_most.min(wait);
        }
        if !at_most.is_zero() {
            sleep.wait(fds, at_most);
        }
    }

    /// Prepares a free shard for a sleep. Returns how its port is armed, and the time until something is due.
    fn arm(&self, index: usize) -> Option<(Armed, Duration)> {
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

    /// Returns once every turn that was under way at the call is over: a turn holds its shard's claim. A dead shard has no turn.
    /// Call this after the key for which the result is used was revoked.
    pub(super) fn pass_turn_boundaries(&self) -> Result<TurnsPassed, DeviceError> {
        for index in 0..self.cells.len() {
            self.control_living(index, |_, _| ())?;
        }
        // SAFETY: each claim was taken and released since the call, or is dead: the turn that was under way is over.
        #[allow(unsafe_code)]
        Ok(unsafe { TurnsPassed::new() })
    }

    /// Whether this is the first shard that lives: its holder does what is done once for the whole device.
    #[inline]
    fn is_first(&self, index: usize) -> bool {
        self.dead().trailing_ones() as usize == index
    }

    /// Maintains the port when it is due and this shard is the first; called by a shard's holder.
    #[inline]
    fn maintain(&self, now: Instant, index: usize) {
        if now.as_nanos() >= self.maintain_at.load(Ordering::Relaxed) && self.is_first(index) {
            self.maintain_now(now);
        }
    }
    #[cold]
    fn maintain_now(&self, now: Instant) {
        self.maintain_at.store(now.after(MAINTAIN_EVERY).as_nanos(), Ordering::Relaxed);
        self.port.maintain();
        self.note_mtu();
        self.note_addresses();
        let up = self.link_up();
        if self.link_up.swap(up, Ordering::Relaxed) != up {
            let event = if up { AsyncEvent::PortActive } else { AsyncEvent::PortErr };
            if !self.assume_link {
                self.shared.events.raise(event, EventElement::Port);
            }
            if up {
                self.shared.with_net(|net| net.report_groups(now));
            }
        }
    }

    /// Reads the MTU that the port carries now, in bytes, and limits queue pairs to it.
    pub(super) fn note_mtu(&self) -> usize {
        let mtu = self.port.mtu();
        self.shared.set_mtu(Mtu::of_link(mtu).unwrap_or(Mtu::Mtu256));
        mtu
    }

    /// Takes over the addresses of the host below the port, if there is one, as they are now.
    fn note_addresses(&self) {
        let Some(host) = self.port.host() else { return };
        let generation = host.generation();
        if self.host_seen.swap(generation, Ordering::Relaxed) == generation {
            return;
        }
        let (addrs, gids) = (host.addresses(), &self.shared.gids);
        let gone = gids.snapshot().into_iter().filter(|gid| !gid.is_zero() && !addrs.contains(&gid.to_ip()));
        let gone = gone.filter(|gid| gids.remove(gid).is_some()).map(Gid::to_ip).collect::<Vec<_>>();
        let new =
            addrs.into_iter().filter(|addr| gids.insert(Gid::from_ip(*addr)).is_ok()).collect::<Vec<_>>();
        if gone.is_empty() && new.is_empty() {
            return;
        }
        self.shared.with_net(|net| {
            gone.iter().for_each(|addr| net.remove_address(*addr));
            new.iter().for_each(|addr| net.add_address(*addr, 0));
        });
        self.shared.events.raise(AsyncEvent::GidChange, EventElement::Port);
    }

    /// Whether packets pass: the link is up, and what it carries is enough for the smallest path MTU.
    pub(super) fn link_up(&self) -> bool {
        self.port.link_up() && Mtu::of_link(self.port.mtu()).is_some()
    }

    /// Makes the device's threads end.
    pub(super) fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
        self.wake_helper();
    }

    /// Turns the shards until they have nothing left that they could send, for at most `bound`; not at all inside a turn.
    pub(super) fn drain_tx(&self, bound: Duration) {
        let start = std::time::Instant::now();
        while !inside_turn() {
            let mut quiet = true;
            for (index, cell) in self.cells.iter().enumerate().filter(|(_, cell)| !cell.is_dead()) {
                // A shard that another thread holds may have something.
                quiet &= self.turn_and(cell, index, |s| s.quiet()).is_some_and(|(_, quiet)| quiet);
                quiet &= !self.shared.doorbells[index].any();
            }
            if quiet || start.elapsed() >= bound {
                return;
            }
            std::thread::yield_now();
        }
    }

    /// The loop of a dedicated thread: turns one shard until it dies or the device closes, and releases it only for control calls
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
            // At least one turn: a service that is due may have to wait for the end of a call, and the shard must not.
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

    /// Whether the device's threads are to end.
    pub(super) fn stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }
    /// Turns by threads other than the helper, modulo 2^32.
    pub(super) fn turns_of_callers(&self, index: usize) -> u32 {
        self.cells[index].turns.load(Ordering::Relaxed)
    }
    /// A turn by the helper: its work, and how many queue pairs are connected.
    pub(super) fn turn_by_helper(&self, index: usize) -> Option<(Turn, usize)> {
        let (turn, connected) = self.turn_and(&self.cells[index], index, |s| s.connected_qps())?;
        if self.service.is_due(|| self.now()) {
            self.service.run_apart();
        }
        Some((turn, connected))
    }
}
