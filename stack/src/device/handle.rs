//! An open device: how it opens, starts and closes, and the state that its objects share.

use core::sync::atomic::{AtomicU32, Ordering};
use core::time::Duration;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::JoinHandle;

use super::claim::Core;
use super::clock::ClockSource;
use super::config::DeviceConfig;
use super::drive;
use super::error::{DeviceError, OpenError};
use super::groups::Groups;
use super::inside_turn::not_inside_turn;
use super::numbers::Numbers;
use super::quota::Quota;
use super::random::Random;
use super::service::Service;
use super::srq_numbers::SrqNumbers;
use super::stats::registry_stats::RegistryStats;
use super::stats::socket::StatsSocket;
use super::xrc_domain::Domains;
use crate::config::{CQ_MAX, PD_MAX};
use crate::id::Mtu;
use crate::net::{Net, NetConfig};
use crate::port::Port;
use crate::shard::blocks::Blocks;
use crate::shard::{Shard, Shared, SharedConfig};
use crate::sync::alarm::Alarm;
use crate::sync::lock::lock;
use crate::sync::words::Words;
use crate::time::Instant;

/// Time limit for sending the backlog when a device closes.
const CLOSE_DRAIN: Duration = Duration::from_millis(100);

/// Number of the next device that this process opens.
static NEXT_NAME: AtomicU32 = AtomicU32::new(0);

/// An open device: a port, its shards and the numbers in use.
pub struct Device {
    core: Arc<Core>,
    threads: Vec<JoinHandle<()>>,
    numbers: Mutex<Numbers>,
    pub(super) srqs: Mutex<SrqNumbers>,
    pub(super) xrcds: Domains,
    pub(super) random: Random,
    pub(super) next_pd: AtomicU32,
    pub(super) pds: Quota,
    pub(super) cqs: Quota,
    /// Its name among the devices of this process.
    name: String,
    /// Serves the counters on a socket, if configured.
    pub(super) stats: Option<StatsSocket>,
    /// Serves the counters to other processes of the host, if they share the device's addresses.
    registry_stats: Option<RegistryStats>,
    pub(super) next_cq: AtomicU32,
    pub(super) groups: Groups,
}

/// The state that all shards of a new device share.
///
/// # Errors
/// [`OpenError::PortMtu`].
fn shared_state(
    config: &NetConfig,
    port: &dyn Port,
    shards: usize,
    qps_per_shard: usize,
) -> Result<Shared, OpenError> {
    let has_numbers = port.numbers().is_some();
    let port = port.info();
    let net = Net::new(config);
    let gids = net.gids().iter().collect();
    let mtu = Mtu::of_link(port.mtu)
        .ok_or_else(|| OpenError::PortMtu { port: port.name.clone(), mtu: port.mtu })?;
    // Every peer that is reached over UDP sockets is behind one next hop.
    let computes_ids = config.next_hop;
    let (mac, vlan) = (port.mac, config.vlan);
    let mut shared =
        Shared::new(SharedConfig { net, gids, mac, vlan, mtu, shards, qps_per_shard, computes_ids });
    if has_numbers {
        shared.blocks = Blocks::foreign();
    }
    Ok(shared)
}

impl Device {
    /// Opens the port, creates the shards and starts the threads that `config.drive` requires.
    ///
    /// Where possible, the underlying device of a port that is opened by name, and DPDK with it, is opened only at the first use of the
    /// wire ([`PortSpec::open_lazy`](crate::port::PortSpec::open_lazy)); see [`start`](Self::start).
    ///
    /// # Errors
    /// [`OpenError`]. Its message says in one sentence what to do.
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
        let shared = Arc::new(shared_state(&net_config, &*port, shards, config.qps_per_shard)?);
        let drive = config.drive.clone();
        let clock = ClockSource::new(&config.clock);
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
            let message = port.info().message;
            if message > 0 {
                shard.send_in_messages(message);
            }
            made.push(shard);
        }
        let core = Arc::new(Core::new(shared, made, port, clock, &drive, config.assume_link));
        let stats = config.stats.as_deref().map(|path| StatsSocket::open(path, &core)).transpose()?;
        let registry = core.port.numbers().and_then(|numbers| numbers.registry());
        let registry_stats = registry.map(|registry| RegistryStats::serve(registry, &core));
        let threads = drive::start(&core, &drive)?;
        Ok(Arc::new(Self {
            core,
            threads,
            numbers: Mutex::new(Numbers::new(shards, config.qps_per_shard)),
            srqs: Mutex::default(),
            xrcds: Domains::default(),
            random,
            next_pd: AtomicU32::new(1),
            pds: Quota::new("protection domain", PD_MAX),
            cqs: Quota::new("completion queue", CQ_MAX),
            name: format!("roce{}", NEXT_NAME.fetch_add(1, Ordering::Relaxed)),
            stats,
            registry_stats,
            next_cq: AtomicU32::new(1),
            groups: Groups::default(),
        }))
    }

    /// Opens the port's underlying device, if that was deferred; creating the first queue pair does the same. Until then the link is down,
    /// and neighbours' requests get no answer.
    ///
    /// # Errors
    /// [`DeviceError::Port`], after which the call may be repeated; [`DeviceError::InsideTurn`].
    pub fn start(&self) -> Result<(), DeviceError> {
        not_inside_turn()?;
        self.core.not_forked()?;
        self.core.port.start().map_err(|error| DeviceError::Port(Box::new(error)))?;
        self.core.wake_helper(); // until now it had nothing to wait for
        Ok(())
    }

    /// Closes the device.
    ///
    /// # Errors
    /// [`DeviceError::Busy`] while other objects refer to it, [`DeviceError::InsideTurn`]. The device is returned with the error.
    pub fn close(self: Arc<Self>) -> Result<(), (DeviceError, Arc<Self>)> {
        if let Err(error) = not_inside_turn() {
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

    /// Its name: `roce` followed by the number of devices that this process opened before.
    pub fn name(&self) -> &str {
        &self.name
    }
    /// Number of shards.
    pub fn shards(&self) -> usize {
        self.core.cells.len()
    }
    /// The current time of the device's clock.
    pub fn now(&self) -> Instant {
        self.core.now()
    }
    /// Converts a time of the device's clock to nanoseconds since 1970, by the system's clock as it is currently set.
    pub fn wallclock_ns(&self, at: u64) -> u64 {
        let since_1970 =
            std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        let ago = self.now().as_nanos().saturating_sub(at);
        u64::try_from(since_1970.as_nanos()).unwrap_or(u64::MAX).saturating_sub(ago)
    }
    /// Whether this process is a forked child of the one that opened the device. The device can then only be dropped, which does not affect
    /// the other process.
    pub fn is_forked(&self) -> bool {
        self.core.is_forked()
    }
    /// The port.
    pub fn port(&self) -> &dyn Port {
        &*self.core.port
    }

    /// Installs the service, at most one at a time. It stays until [`uninstall`](Self::uninstall).
    ///
    /// # Errors
    /// [`DeviceError::Exists`] while another one is installed.
    pub fn install(&self, service: Arc<dyn Service>) -> Result<(), DeviceError> {
        self.core.service.install(service)
    }
    /// Removes the service: when this returns, no thread runs it any more.
    pub fn uninstall(&self) {
        self.core.service.uninstall();
    }
    /// The service's alarm.
    pub fn alarm(&self) -> &Arc<Alarm> {
        self.core.service.alarm()
    }
    /// Makes a thread check the alarm soon.
    pub fn wake(&self) {
        self.core.wake_helper();
    }
    /// A random number, from the source of keys.
    ///
    /// # Errors
    /// [`DeviceError::Random`].
    pub fn random(&self) -> Result<u32, DeviceError> {
        self.random.next()
    }

    /// Fails if a shard has died. The device goes on with the others, but should be closed.
    ///
    /// # Errors
    /// [`DeviceError::ShardDied`].
    pub fn check_alive(&self) -> Result<(), DeviceError> {
        self.core.alive(u32::MAX)
    }
    /// Fails if the calling thread may not wait for shards and turn them.
    ///
    /// # Errors
    /// [`DeviceError::InsideTurn`], [`DeviceError::Forked`].
    pub fn check_outside_turn(&self) -> Result<(), DeviceError> {
        not_inside_turn()?;
        self.core.not_forked()
    }

    /// Turns the shards until they have nothing left that could be sent, for at most `bound`; makes no turn inside a turn.
    pub fn drain_tx(&self, bound: Duration) {
        self.core.drain_tx(bound);
    }

    pub(super) fn core(&self) -> &Arc<Core> {
        &self.core
    }
    pub(super) fn words(&self) -> &Words {
        &self.core.shared.words
    }
    pub(super) fn numbers(&self) -> MutexGuard<'_, Numbers> {
        lock(&self.numbers)
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        self.stats = None;
        self.registry_stats = None;
        if self.is_forked() {
            // Threads and backlog belong to the parent.
            core::mem::forget(core::mem::take(&mut self.threads));
            return;
        }
        self.core.stop();
        for thread in self.threads.drain(..) {
            // A thread cannot join itself: code called by a turn may have dropped the device. The thread ends after the turn.
            if thread.thread().id() != std::thread::current().id() {
                // A thread that panicked has reported it already.
                let _ = thread.join();
            }
        }
        // A port that panics must not turn the close of the device into a panic, which could end the process.
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
