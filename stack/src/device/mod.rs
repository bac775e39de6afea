//! The front door of the control plane: opens a port, gives its queues to shards, and turns the shards or lets the program do it.
//!
//! Hands out the objects that `verbs` wraps: protection domains, memory regions, completion queues, queue pairs.
//! Never touches packets or memory of users. Called by `verbs`; everything that `verbs` and programs above it
//! may use of the stack is exported here.
//!
//! # Who owns a shard
//!
//! A shard sits behind a claim ([`sync::claim`](crate::sync::claim)), which one thread holds at a time. A thread that turns the
//! shard takes the claim for a turn, or for many in a row, and never waits for it. A control call announces itself, so that
//! threads that turn stay out, and then waits for the end of the turn that is under way. No thread that holds a shard waits for
//! another shard, so control calls cannot deadlock, on whichever thread they are made.
//!
//! # Life
//!
//! Children hold their parents ([`QpCore`] its queues and domain, each of them the [`Device`]), so the order in which
//! handles are dropped does not matter. Threads of the device hold the shards, not the device; when the last handle
//! goes, they are stopped, and what is left to send is sent within [`CLOSE_DRAIN`].

#![deny(unsafe_code)] // but for one call in `claim`, and system calls in `scheduling`

mod ah;
mod channel;
mod claim;
mod cm_attr;
mod config;
mod cq;
mod drain;
mod drive;
mod error;
mod inspect;
mod limits;
mod mcast;
mod mr;
mod mw;
mod numbers;
mod pace;
mod pd;
mod peer_check;
mod qp;
mod random;
mod scheduling;
mod service;
mod srq;
pub mod stats;
mod stats_socket;
mod td;
mod xrcd;

use core::net::IpAddr;
use core::sync::atomic::{AtomicU32, Ordering};
use core::time::Duration;
use std::os::fd::BorrowedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use crate::net::{GIDS_MAX, canonical, check_address};
use crate::port::{Port, PortStats};
use crate::shard::{GidRefused, McastTable, Shard};
use crate::sync::doorbell::Doorbells;
use crate::sync::words::Words;

use crate::config::{CQ_MAX, HELPER_SLEEP, PD_MAX};
use claim::Core;
use limits::Quota;
use numbers::Numbers;
use random::Random;
use stats_socket::StatsSocket;

pub use ah::AhCore;
pub use channel::ChannelCore;
pub use claim::not_inside_turn;
pub use cm_attr::{cm_init, cm_rtr, cm_rts};
pub use config::{Clock, DeviceConfig, Drive, PortSource};
pub use cq::{CqCore, CqInit, CqTap};
pub use error::{DeviceError, OpenError};
pub use limits::{
    AtomicCap, DEFAULT_PKEY, DeviceAttr, DeviceCapFlags, GidEntry, GidType, LINK_LAYER_ETHERNET, PortAttr,
    PortCapFlags, PortPhysState, PortState, QPF_GRH_REQUIRED,
};
pub use mr::MrCore;
pub use mw::MwCore;
pub use pd::PdCore;
pub use peer_check::PeerCheck;
pub use qp::{GateClosed, Poster, QpCore, QpInit, RingTap};
pub use service::{PeerPath, Service};
pub use srq::{SrqAttr, SrqAttrMask, SrqCore, SrqTap, XrcSrqInit};
pub use td::TdCore;
pub use xrcd::{XrcdCore, XrcdInitAttr};

/// Connection management.
pub use crate::cm;
/// Limits of the stack.
pub use crate::config as limit;
pub use crate::id::{Gid, Mac, Mtu, PdId, Psn, QpState, QpType, Qpn};
pub use crate::mem::{Access, MemError, MwType, UserMemory, inc_rkey};
pub use crate::net::{NetConfigError, NoHost};
pub use crate::port;
pub use crate::proto::address::{self, AvError, GSI_QKEY, UdAddress};
pub use crate::proto::attr::{AhAttr, AttrMask, GlobalRoute, PathMigState, QpAttr, QpCap};
pub use crate::proto::congestion::Controller as CongestionController;
pub use crate::proto::recovery::Scheme as RecoveryScheme;
pub use crate::proto::requester::Policies;
pub use crate::proto::state::{ModifyError, required, state_name, type_name};
pub use crate::proto::status::{AsyncEvent, SendFlags, WcFlags, WcOpcode, WcStatus, WrOpcode};
pub use crate::proto::vendor::VendorErr;
pub use crate::proto::wqe::{self, Sge};
pub use crate::racy;
pub use crate::shard::counters::{Counter, CounterSnapshot};
pub use crate::shard::{CqState, DrainKind, DrainMark, Event, EventElement, PeerState, Turn};
pub use crate::sync::alarm::Alarm;
pub use crate::sync::eventfd::EventFd;
pub use crate::sync::exclusive::{Exclusive, Unavailable};
pub use crate::sync::huge::collapse_slice;
pub use crate::sync::prefetch::{bytes as prefetch_bytes, line as prefetch_line};
pub use crate::time::Instant;
pub use crate::wire::Discard;

/// How long closing a device goes on sending its backlog.
pub const CLOSE_DRAIN: Duration = Duration::from_millis(100);
/// The longest sleep, after there was work, of a thread that turns shards: the port has to be maintained, and a peer may lose a
/// wake-up.
const SLEEP: Duration = Duration::from_millis(10);
/// The longest sleep of the helper, reached while nothing happens.
const IDLE_SLEEP: Duration = Duration::from_millis(200);
/// The longest time until a waiting call notices that a shard died.
const DEATH_NOTICE: Duration = Duration::from_millis(100);
/// How often the port is maintained.
pub const MAINTAIN_EVERY: Duration = Duration::from_millis(10);

/// Number of the next device that this process opens.
static NEXT_NAME: AtomicU32 = AtomicU32::new(0);

/// An open device: a port, its shards and the numbers given out.
pub struct Device {
    core: Arc<Core>,
    threads: Vec<JoinHandle<()>>,
    numbers: Mutex<Numbers>,
    srqs: Mutex<srq::SrqNumbers>,
    xrcds: xrcd::Domains,
    random: Random,
    next_pd: AtomicU32,
    pds: Quota,
    cqs: Quota,
    /// Its name among the devices of this process.
    name: String,
    /// Serves the counters, if the configuration asks for it.
    stats: Option<StatsSocket>,
    next_cq: AtomicU32,
    /// Multicast groups: every shard has a copy of this.
    mcast: Mutex<Arc<McastTable>>,
}

impl Device {
    /// Opens the port, makes the shards and starts the threads that `config.drive` asks for.
    ///
    /// Where possible the device of a port that is opened by name, and DPDK with it, is opened only when the wire is used first
    /// ([`PortSpec::open_lazy`](port::PortSpec::open_lazy)); see [`start`](Self::start).
    ///
    /// # Errors
    /// [`OpenError`]: one sentence that says what to do.
    pub fn open(mut config: DeviceConfig) -> Result<Arc<Self>, OpenError> {
        config.check()?;
        let random = Random::new(config.seed)?;
        let shards = config.shards;
        let port = config.open_port()?;
        let info = port.info();
        if info.queues < shards {
            return Err(OpenError::Queues { port: info.name.clone(), queues: info.queues, shards });
        }
        let net_config = config.net(&*port)?;
        let shared = Arc::new(claim::shared(&net_config, info, shards, config.qps_per_shard)?);
        let drive = config.drive.clone();
        let clock = claim::ClockSource::new(&config.clock);
        let now = clock.now();
        let mut made = Vec::with_capacity(shards);
        for index in 0..shards {
            let queue = port
                .take_queue(index)
                .ok_or_else(|| OpenError::QueueTaken { port: port.info().name.clone(), queue: index })?;
            let mut shard = Shard::new(index, shared.clone(), queue, now);
            if let Some(window) = port.window() {
                shard.bound(window / shards);
            }
            made.push(shard);
        }
        let core = Arc::new(Core::new(shared, made, port, clock, &drive, config.assume_link));
        let stats = config.stats.as_deref().map(|path| StatsSocket::open(path, &core)).transpose()?;
        let threads = drive::start(&core, &drive)?;
        Ok(Arc::new(Self {
            core,
            threads,
            numbers: Mutex::new(Numbers::new(shards, config.qps_per_shard)),
            srqs: Mutex::default(),
            xrcds: xrcd::Domains::default(),
            random,
            next_pd: AtomicU32::new(1),
            pds: Quota::new("protection domain", PD_MAX),
            cqs: Quota::new("completion queue", CQ_MAX),
            name: format!("roce{}", NEXT_NAME.fetch_add(1, Ordering::Relaxed)),
            stats,
            next_cq: AtomicU32::new(1),
            mcast: Mutex::default(),
        }))
    }

    /// Opens the port's device, if that was put off; the first queue pair does the same. Until then the link is down, and requests
    /// of neighbours get no answer.
    ///
    /// # Errors
    /// [`DeviceError::Port`], after which it may be tried again; [`DeviceError::InsideTurn`].
    pub fn start(&self) -> Result<(), DeviceError> {
        claim::not_inside_turn()?;
        self.core.not_forked()?;
        self.core.port.start().map_err(|error| DeviceError::Port(Box::new(error)))?;
        self.core.wake_helper(); // until now there was nothing to wait for
        Ok(())
    }

    /// Closes the device.
    ///
    /// # Errors
    /// [`DeviceError::Busy`] while something else refers to it, [`DeviceError::InsideTurn`]; it comes back with the error.
    pub fn close(self: Arc<Self>) -> Result<(), (DeviceError, Arc<Self>)> {
        if let Err(error) = claim::not_inside_turn() {
            return Err((error, self));
        }
        match Arc::try_unwrap(self) {
            Ok(device) => {
                drop(device);
                Ok(())
            }
            Err(device) => {
                let busy = DeviceError::Busy { object: "context", users: Arc::strong_count(&device) - 1 };
                Err((busy, device))
            }
        }
    }

    /// Its name: `roce` and how many devices this process opened before.
    pub fn name(&self) -> &str {
        &self.name
    }
    /// Number of shards.
    pub fn shards(&self) -> usize {
        self.core.cells.len()
    }
    /// Now, by the device's clock.
    pub fn now(&self) -> Instant {
        self.core.now()
    }
    /// A time of the device's clock as nanoseconds since 1970, by the system's clock as it is set now.
    pub fn wallclock_ns(&self, at: u64) -> u64 {
        let since_1970 =
            std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        let ago = self.now().as_nanos().saturating_sub(at);
        u64::try_from(since_1970.as_nanos()).unwrap_or(u64::MAX).saturating_sub(ago)
    }
    /// The port's addresses by index: the link-local one, the configured ones in order, those added since; zero where
    /// one was removed.
    pub fn gids(&self) -> Vec<Gid> {
        self.core.shared.gids.snapshot()
    }

    /// Gives the port one more address, announces it on the link, and reports GID_CHANGE to the program. Returns its index.
    ///
    /// # Errors
    /// [`DeviceError::Address`], [`DeviceError::Exists`], [`DeviceError::Exhausted`], [`DeviceError::InsideTurn`],
    /// [`DeviceError::HostAddress`].
    pub fn add_address(&self, addr: IpAddr, prefix: u8) -> Result<usize, DeviceError> {
        claim::not_inside_turn()?; // a turn may hold the IP host
        self.core.not_forked()?;
        self.not_of_host()?;
        let (addr, prefix) = canonical(addr, prefix);
        check_address(addr, prefix)?;
        let shared = &self.core.shared;
        let index = shared.gids.insert(Gid::from_ip(addr)).map_err(|refused| match refused {
            GidRefused::Exists => DeviceError::Exists { what: "address" },
            GidRefused::Full => DeviceError::Exhausted { what: "entry of the GID table", limit: GIDS_MAX },
        })?;
        shared.with_net(|net| net.add_address(addr, prefix));
        shared.events.raise(AsyncEvent::GidChange, EventElement::Port);
        self.core.wake_helper();
        Ok(index)
    }

    /// Takes an address from the port, and reports GID_CHANGE to the program. Queue pairs that use it keep their index.
    ///
    /// # Errors
    /// [`DeviceError::NoSuchAddress`] also for the link-local address that the port's Ethernet address makes,
    /// [`DeviceError::InsideTurn`], [`DeviceError::HostAddress`].
    pub fn remove_address(&self, addr: IpAddr) -> Result<(), DeviceError> {
        claim::not_inside_turn()?;
        self.core.not_forked()?;
        self.not_of_host()?;
        let shared = &self.core.shared;
        let gid = Some(Gid::from_ip(addr)).filter(|gid| *gid != Gid::link_local(shared.mac));
        gid.and_then(|gid| shared.gids.remove(&gid)).ok_or(DeviceError::NoSuchAddress { addr })?;
        shared.with_net(|net| net.remove_address(addr));
        // A shard that was in a turn may still have known it.
        self.core.pass_turn_boundaries()?;
        shared.events.raise(AsyncEvent::GidChange, EventElement::Port);
        Ok(())
    }
    /// Refuses a change of addresses where a host below the port owns them.
    fn not_of_host(&self) -> Result<(), DeviceError> {
        if self.port().host().is_some() { Err(DeviceError::HostAddress) } else { Ok(()) }
    }
    /// Counters of all shards, added up.
    pub fn counters(&self) -> CounterSnapshot {
        let mut sum = CounterSnapshot::default();
        for counters in &self.core.shared.counters {
            sum += counters.snapshot();
        }
        sum
    }
    /// Counters of one shard.
    ///
    /// # Panics
    /// If there is no such shard.
    pub fn shard_counters(&self, shard: usize) -> CounterSnapshot {
        self.core.shared.counters[shard].snapshot()
    }
    /// Outcomes of the frames of the IP host (ARP, neighbour discovery, ICMP and others), by name. Takes the host's lock for a
    /// moment, as each of those frames does; inside a turn, which may hold it, the list is empty.
    pub fn net_counters(&self) -> Vec<(&'static str, u64)> {
        if claim::inside_turn() {
            return Vec::new();
        }
        self.core.shared.with_net(|net| net.counters().map(|(counter, n)| (counter.name(), n)).collect())
    }
    /// Counters and state of the device, its shards and its queue pairs, as `roce-stat` gets them. Never stops a shard.
    pub fn stats(&self) -> stats::Snapshot {
        stats::Snapshot::of(&self.core)
    }
    /// Takes [`stats`](Self::stats) from other threads, as long as the device exists.
    pub fn stats_reader(&self) -> stats::Reader {
        stats::Reader::new(&self.core)
    }
    /// Shows what the program itself counts in [`stats`](Self::stats): `source` is called for each snapshot, on the thread that
    /// takes it.
    pub fn add_stats(&self, source: impl Fn() -> stats::Table + Send + Sync + 'static) {
        self.core.tables.add(Arc::new(source));
    }
    /// The socket that serves [`stats`](Self::stats), if there is one.
    pub fn stats_path(&self) -> Option<&std::path::Path> {
        self.stats.as_ref().map(StatsSocket::path)
    }
    /// Whether this process is a fork of the one that opened the device: then the device can only be dropped, which touches
    /// nothing of the other process.
    pub fn is_forked(&self) -> bool {
        self.core.is_forked()
    }
    /// The port's own counters.
    pub fn port_stats(&self) -> PortStats {
        self.core.port.stats()
    }
    /// The port.
    pub fn port(&self) -> &dyn Port {
        &*self.core.port
    }

    /// One turn of a shard. `None` if another thread has the shard, or waits to make a control call, or if the shard cannot be
    /// turned at all: see [`may_turn`](Self::may_turn).
    ///
    /// # Panics
    /// If there is no such shard; if the port or a `tracing` subscriber does, which is the end of the shard.
    #[inline]
    pub fn turn(&self, shard: usize) -> Option<Turn> {
        self.core.turn(shard)
    }
    /// Sleeps, for the thread that turns this shard alone, until it may have work, one of `fds` ([`OTHERS`](crate::sync::sleeper::OTHERS)
    /// at most) is readable, a signal handler ran, or `at_most` is over; 10 ms at most. Returns at once where there is work already.
    pub fn sleep(&self, shard: usize, fds: &[BorrowedFd<'_>], at_most: Duration) {
        self.core.sleep_for(shard, fds, at_most.min(SLEEP), HELPER_SLEEP);
    }
    /// Whether this thread may turn a shard at all.
    ///
    /// # Errors
    /// [`DeviceError::InsideTurn`], [`DeviceError::ShardDied`].
    ///
    /// # Panics
    /// If there is no such shard.
    pub fn may_turn(&self, shard: usize) -> Result<(), DeviceError> {
        claim::not_inside_turn()?;
        if self.core.cells[shard].is_dead() { Err(DeviceError::ShardDied { shard }) } else { Ok(()) }
    }
    /// Time until the shard has work by itself; `None`: nothing is due, or it is being turned.
    pub fn next_deadline(&self, shard: usize) -> Option<Duration> {
        let due = self.core.service.wait(self.now());
        let deadline = self.core.peek(shard, |s| s.next_deadline())?;
        let deadline = deadline.map(|at| Duration::from_nanos(at.nanos_since(self.now())));
        deadline.into_iter().chain(due).min()
    }

    /// The oldest asynchronous event, if there is one. Acknowledge it by [`ack_event`](Self::ack_event).
    pub fn try_event(&self) -> Option<Event> {
        // A fork has a copy of the queue, and shares the parent's descriptor, which may be readable.
        self.core.not_forked().ok()?;
        self.core.shared.events.try_get()
    }

    /// Waits for an asynchronous event; `None` after `timeout`. Turns shards that no other thread turns meanwhile.
    ///
    /// # Errors
    /// As [`wait`](Self::wait).
    pub fn wait_event(&self, timeout: Duration) -> Result<Option<Event>, DeviceError> {
        self.wait(timeout, self.core.shared.events.made_fd(), || self.try_event())
    }

    /// Acknowledges an asynchronous event.
    pub fn ack_event(&self, event: &Event) {
        if self.is_forked() {
            return;
        }
        self.core.shared.events.ack(event.element);
    }

    /// Asynchronous events that were lost because earlier ones were not fetched.
    pub fn events_lost(&self) -> u64 {
        self.core.shared.events.lost()
    }

    /// A descriptor that is readable while an asynchronous event waits.
    ///
    /// # Errors
    /// [`DeviceError::Descriptor`].
    pub fn event_fd(&self) -> Result<std::os::fd::BorrowedFd<'_>, DeviceError> {
        use std::os::fd::AsFd;
        let fd = self.core.shared.events.fd();
        fd.map(|fd| fd.as_fd()).map_err(|e| DeviceError::Descriptor(e.kind()))
    }

    /// Calls `look` until it returns something, for at most `timeout`. Turns shards that no other thread turns meanwhile, so the
    /// result comes whichever thread waits. `fd` becomes readable when there is something.
    ///
    /// # Errors
    /// [`DeviceError::InsideTurn`], [`DeviceError::Forked`]; [`DeviceError::ShardDied`] where there is nothing, and it may never
    /// come.
    pub fn wait<R>(
        &self,
        timeout: Duration,
        fd: Option<&EventFd>,
        mut look: impl FnMut() -> Option<R>,
    ) -> Result<Option<R>, DeviceError> {
        claim::not_inside_turn()?;
        self.core.not_forked()?;
        let start = std::time::Instant::now();
        let mut idle: u32 = 0;
        loop {
            // Checked before the call, so that results from before the death are found.
            let alive = self.check_alive();
            if let Some(found) = look() {
                return Ok(Some(found));
            }
            alive?;
            let left = timeout.saturating_sub(start.elapsed());
            if left.is_zero() {
                return Ok(None);
            }
            if !self.core.dedicated && self.core.turn_all() {
                idle = 0;
                continue;
            }
            // Short sleeps first, for results that follow at once.
            idle = (idle + 1).min(20);
            let nap = Duration::from_micros(u64::from(idle) * 50).min(left);
            match fd {
                // This thread cannot make the result come sooner; but it has to notice the death of a shard.
                Some(fd) if self.core.dedicated => fd.wait(left.min(DEATH_NOTICE)),
                None if self.core.dedicated => std::thread::sleep(nap),
                Some(_) => self.core.sleep(u32::MAX, fd, left.min(SLEEP), nap),
                // Another thread may cause the result, and does not wake this one.
                None => self.core.sleep(u32::MAX, None, nap, nap),
            }
        }
    }

    /// Destroys an object; where its events are not acknowledged, tries again when `unacked` returns 0, for at most `timeout`.
    fn destroy_wait<T>(
        &self,
        timeout: Duration,
        object: Arc<T>,
        destroy: impl Fn(Arc<T>) -> Result<(), (DeviceError, Arc<T>)>,
        unacked: impl Fn() -> u32,
    ) -> Result<(), (DeviceError, Arc<T>)> {
        let start = std::time::Instant::now();
        let mut object = object;
        loop {
            match destroy(object) {
                Err((e @ DeviceError::Unacked { .. }, back)) => {
                    object = back;
                    let left = timeout.saturating_sub(start.elapsed());
                    match self.wait(left, None, || (unacked() == 0).then_some(())) {
                        Ok(Some(())) => {}
                        Ok(None) => return Err((e, object)),
                        Err(e) => return Err((e, object)),
                    }
                }
                other => return other,
            }
        }
    }

    /// Allocates a protection domain.
    ///
    /// # Errors
    /// [`DeviceError::Exhausted`].
    pub fn alloc_pd(self: &Arc<Self>) -> Result<Arc<PdCore>, DeviceError> {
        let share = self.pds.take()?;
        // Numbers do not wrap: one that came again would open the memory of one domain to the queue pairs of another.
        let next = |n: u32| n.checked_add(1);
        let number = self.next_pd.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next);
        let exhausted =
            |_| DeviceError::Exhausted { what: "protection domain number", limit: u32::MAX as usize };
        Ok(PdCore::new(self.clone(), PdId(number.map_err(exhausted)?), share))
    }

    /// Allocates a thread domain.
    pub fn alloc_td(self: &Arc<Self>) -> Arc<TdCore> {
        TdCore::new(self.clone())
    }

    /// Makes a completion queue.
    ///
    /// # Errors
    /// [`DeviceError::Range`], [`DeviceError::Exhausted`], [`DeviceError::Foreign`] for a channel or parent domain of
    /// another device, [`DeviceError::WrongKind`] for a protection domain that is no parent domain.
    pub fn create_cq(self: &Arc<Self>, init: &CqInit<'_>) -> Result<Arc<CqCore>, DeviceError> {
        CqCore::new(self.clone(), init)
    }

    /// Makes a completion channel.
    ///
    /// # Errors
    /// [`DeviceError::Descriptor`].
    pub fn create_channel(self: &Arc<Self>) -> Result<Arc<ChannelCore>, DeviceError> {
        ChannelCore::new(self.clone())
    }

    /// Opens an XRC domain.
    ///
    /// # Errors
    /// [`DeviceError::NoSuchDomain`], [`DeviceError::DomainExists`].
    pub fn open_xrcd(self: &Arc<Self>, init: &XrcdInitAttr<'_>) -> Result<Arc<XrcdCore>, DeviceError> {
        XrcdCore::open(self, init)
    }

    /// Turns the shards until they have nothing left that they could send, for at most `bound`; not at all inside a turn.
    pub fn drain_tx(&self, bound: Duration) {
        self.core.drain_tx(bound);
    }

    fn core(&self) -> &Core {
        &self.core
    }
    fn words(&self) -> &Words {
        &self.core.shared.words
    }
    fn doorbells(&self, shard: usize) -> &Doorbells {
        &self.core.shared.doorbells[shard]
    }
    fn mcast(&self) -> &Mutex<Arc<McastTable>> {
        &self.mcast
    }
    fn numbers(&self) -> std::sync::MutexGuard<'_, Numbers> {
        claim::lock(&self.numbers)
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        self.stats = None;
        if self.is_forked() {
            // The threads and the backlog are the parent's.
            core::mem::forget(core::mem::take(&mut self.threads));
            return;
        }
        self.core.stop();
        for thread in self.threads.drain(..) {
            // A thread cannot join itself: code that a turn called may have dropped the device; the thread ends after the turn.
            if thread.thread().id() != std::thread::current().id() {
                // A thread that panicked has reported it; there is nothing to add.
                let _ = thread.join();
            }
        }
        // A port that panics must not turn the end of the device into a panic, and perhaps the end of the process.
        let drained = catch_unwind(AssertUnwindSafe(|| self.core.drain_tx(CLOSE_DRAIN)));
        if drained.is_err() {
            tracing::error!(device = %self.name, "the port panicked; what was left to send is lost");
        }
    }
}

impl core::fmt::Debug for Device {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Device")
            .field("port", &self.core.port.info().name)
            .field("shards", &self.shards())
            .finish()
    }
}
