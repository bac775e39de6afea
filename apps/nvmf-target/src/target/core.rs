//! A core: one thread of the target, with its shard and its connections.

use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use nvmf::limits::{DISCOVERY_MDTS, INPUT_MAX};
use nvmf::{Instant, Target};
use verbs::{Context, DeviceError, Pd, VerbsError, Wc};

use super::batch::{Batch, Written};
use super::commands::Commands;
use super::connections::Connections;
use super::counters::{Counters, Usage};
use super::disks::Disks;
use super::env::Env;
use super::meter::Meters;
use super::network::Network;
use super::outbox::NotPosted;
use super::pace::{Pace, Rest};
use super::pool::{Class, Pool};
use super::receives::Receives;
use super::shared::Shared;
use super::siblings::Siblings;
use super::statistics::Statistics;
use super::tag::Tag;
use super::zeroing::Zeroing;
use crate::store::{Done, Stores};
use crate::wake::Waker;

/// The most completions that are polled at a time.
const BATCH: usize = 64;
/// How often all connections are checked for timeouts, silent hosts, and the progress of their end.
const LOOK_AFTER: Duration = Duration::from_millis(10);
/// The most events of connection management that are handled at a time; also the most connections that are taken over from other cores at a
/// time.
const EVENTS: usize = 16;
/// Bytes of memory that are zeroed in a turn while hosts have no other commands.
const ZERO_PIECE: u64 = 1 << 20;
/// Bytes of memory that are zeroed in a turn while hosts have other commands. Zeroing them takes about as long as a command.
const ZERO_PIECE_BUSY: u64 = 64 << 10;

/// The configuration of a core.
#[derive(Clone, Debug)]
pub struct Config {
    /// Index of the shard of the device that this core polls.
    pub shard: usize,
    /// The number of receive buffers for command capsules, shared by all hosts of the core.
    pub receives: u32,
    /// Memory for data buffers, in bytes.
    pub buffers: usize,
    /// The maximum number of connections at a time.
    pub connections: usize,
    /// How long a host may acknowledge nothing while requests to it are outstanding. Then its connection is closed.
    pub patience: Duration,
    /// How long a host may be silent before the core checks whether it still has its end of the connection.
    pub silence: Duration,
    /// Use `io_uring` for files, if the system allows it.
    pub io_uring: bool,
    /// Meters of commands by namespace and host; `None`: commands are not metered.
    pub meters: Option<Arc<Meters>>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            shard: 0,
            receives: 4096,
            buffers: 64 << 20,
            connections: 1024,
            patience: Duration::from_secs(30),
            silence: Duration::from_secs(10),
            io_uring: true,
            meters: None,
        }
    }
}

/// One thread of the target, with its shard and its connections.
pub struct Core<'c> {
    // Fields are dropped in order: the connections before the parts that they use.
    pub(super) connections: Connections,
    pub(super) env: Env<'c>,
    pub(super) siblings: Siblings,
    pub(super) network: Network,
    pace: Pace,
    /// Wakes the core when something is sent to it.
    waker: Arc<Waker>,
    patience: Duration,
    silence: Duration,
    looked_after: Instant,
    completions: Vec<Wc>,
    stored: Vec<Done>,
}

impl<'c> Core<'c> {
    /// Makes a core of `target` on a shard of a device. `pd` is the protection domain of the memory in `stores`.
    ///
    /// # Errors
    /// If there is not enough memory, or no such shard.
    pub fn new(
        context: &'c Context,
        pd: Arc<Pd>,
        target: Target,
        stores: Arc<Stores>,
        config: Config,
    ) -> Result<Self, VerbsError> {
        let settings = target.settings();
        let receives = Receives::new(&pd, config.receives, settings.in_capsule)?;
        let largest = settings.transfer_max().max(4096 << DISCOVERY_MDTS) as usize;
        let pool = Pool::new(&pd, config.buffers, largest)?;
        let regions = [Arc::clone(pool.mr()), Arc::clone(receives.mr())];
        let waker = Waker::new().map_err(|e| VerbsError::Device(DeviceError::Descriptor(e.kind())))?;
        let env = Env {
            context,
            target,
            shared: Shared::new(pool, receives, config.connections),
            commands: Commands::default(),
            disks: Disks::new(stores, regions, &waker, config.io_uring),
            zeroing: Zeroing::default(),
            batch: Batch::default(),
            statistics: Statistics::new(config.shard, config.meters),
            stalled: Default::default(),
            scratch: vec![0; INPUT_MAX],
            now: Instant::from_nanos(context.now()),
        };
        Ok(Self {
            connections: Connections::default(),
            env,
            network: Network::new(context, config.shard, pd, config.receives)?,
            siblings: Siblings::new(&waker),
            pace: Pace::default(),
            waker,
            patience: config.patience,
            silence: config.silence,
            looked_after: Instant::default(),
            completions: vec![Wc::default(); BATCH],
            stored: Vec::new(),
        })
    }

    /// The counters of the core.
    pub fn counters(&self) -> Arc<Counters> {
        Arc::clone(&self.env.statistics.counters)
    }
    /// The resources that are in use now.
    pub fn usage(&self) -> Usage {
        let Shared { pool, receives, .. } = &self.env.shared;
        Usage {
            connections: self.env.shared.connections(),
            commands: self.env.commands.len(),
            buffers: pool.in_use(),
            capsules: receives.in_use(),
            receives: receives.posted(),
        }
    }
    /// Sets how long a host may acknowledge nothing while requests to it are outstanding ([`Config::patience`]).
    pub fn set_patience(&mut self, patience: Duration) {
        self.patience = patience;
    }
    /// Adds `other` to the cores among which the connections that arrive at this core are distributed.
    pub fn share_with(&mut self, other: &Core<'_>) {
        self.siblings.add(&other.siblings);
    }
    /// Listens for connections at an address, as port `port` of the target. Returns the address with the actual port number.
    ///
    /// # Errors
    /// If the address is in use, or is not one of the device.
    pub fn listen(&mut self, port: u16, address: SocketAddr) -> Result<SocketAddr, VerbsError> {
        self.network.listen(self.env.context, port, address)
    }

    /// Makes turns until `stop` returns true. Sleeps while there is nothing to do.
    ///
    /// # Errors
    /// If the device fails.
    pub fn run(&mut self, stop: impl Fn() -> bool) -> Result<(), VerbsError> {
        while !stop() {
            self.turn()?;
            if self.pace.may_rest() {
                self.rest()?;
            }
        }
        Ok(())
    }
    /// Called after turns without work: yields the CPU after many of them, and sleeps after a while.
    fn rest(&mut self) -> Result<(), VerbsError> {
        match self.pace.rest(Instant::from_nanos(self.env.context.now())) {
            Rest::Look => return Ok(()),
            Rest::Yield => {
                std::thread::yield_now();
                return Ok(());
            }
            Rest::Sleep => {}
        }
        let sleep = self.waker.begin();
        // This turn finds everything that was sent before `begin`. Anything that is sent later wakes the core.
        self.turn()?;
        self.housekeep();
        if !self.pace.is_idle() || !self.env.disks.may_sleep() {
            return Ok(());
        }
        self.env.statistics.counters.sleeps.add(1);
        self.pace.sleeps();
        let ring = self.env.disks.descriptor();
        let fds = [sleep.as_fd(), ring.unwrap_or(sleep.as_fd())];
        self.network.sleep(&fds[..1 + usize::from(ring.is_some())], LOOK_AFTER);
        Ok(())
    }

    /// Makes one turn: network, commands, storage. Never waits. Returns whether there was anything to do.
    ///
    /// # Errors
    /// If the device fails.
    #[inline]
    pub fn turn(&mut self) -> Result<bool, VerbsError> {
        self.pace.begin();
        let turned = self.network.turn();
        let mut completions = std::mem::take(&mut self.completions);
        let polled = self.network.poll(&mut completions);
        let n = *polled.as_ref().unwrap_or(&0);
        if n > 0 && self.env.statistics.is_metered() {
            self.env.look_at_clock();
        }
        for wc in &completions[..n] {
            self.complete(wc);
        }
        self.completions = completions;
        polled?;
        self.finish_batch();
        self.pace.took(n, BATCH);
        let worked = self.work() | (n > 0) | turned.is_some_and(|turn| !turn.idle());
        self.env.shared.receives.refill()?;
        if self.pace.end(worked) {
            self.housekeep();
        }
        Ok(worked)
    }

    /// Handles the completion of a work request.
    fn complete(&mut self, wc: &Wc) {
        let (env, tag) = (&mut self.env, Tag::from_raw(wc.wr_id));
        if let Tag::Received(_) = tag {
            env.shared.receives.take();
        }
        let Some(connection) = self.connections.of_qp(wc.qp_num) else {
            // The connection was dropped, and none of its commands is left.
            if let Tag::Received(capsule) = tag {
                env.shared.receives.give(capsule);
            }
            return;
        };
        let goes_on = wc.is_ok() && connection.is_open();
        match tag {
            Tag::Received(capsule) if goes_on => {
                env.handle_capsule(connection, capsule, wc.byte_len as usize)
            }
            Tag::Received(capsule) => env.shared.receives.give(capsule),
            Tag::Fetched(command) if goes_on => env.fetched(connection, command),
            Tag::Fetched(command) => env.finish(connection, command),
            Tag::Answered(command) => {
                env.finish(connection, command);
                connection.outbox.answer_completed();
            }
            Tag::Sent => connection.outbox.answer_completed(),
        }
        if !wc.is_ok() {
            env.close(connection, &wc.status);
        }
    }
    /// Carries out the turn's Writes to namespaces in memory.
    #[inline]
    fn finish_batch(&mut self) {
        let Env { batch, disks, commands, .. } = &mut self.env;
        if batch.prefetch(disks, commands) {
            self.write_batch();
        }
    }
    fn write_batch(&mut self) {
        let Self { connections, env, .. } = self;
        while env.batch.copy_some(&env.disks, &mut env.commands, &env.shared) {
            while let Some(Written { command, connection, ticket, result }) = env.batch.next_written() {
                let connection = connections.of_command(connection);
                env.finish(connection, command);
                env.respond(connection, ticket, result);
            }
        }
    }

    /// Does the work that is not caused by completions. Returns whether there was any.
    #[inline]
    fn work(&mut self) -> bool {
        let mut worked = false;
        if !self.env.stalled.is_empty() {
            worked |= self.post_stalled();
        }
        for class in Class::ALL {
            while let Some((id, buffer)) = self.env.shared.next_buffer(class) {
                let connection = self.connections.of_command(id);
                let command = self.env.shared.hand_out(&mut connection.share, &buffer);
                self.env.begin(connection, command, buffer);
                worked = true;
            }
        }
        if !self.env.zeroing.is_empty() {
            self.zero_a_piece();
            worked = true;
        }
        self.env.disks.submit_and_collect(&mut self.stored);
        if !self.stored.is_empty() {
            self.take_stored();
            worked = true;
        }
        worked
    }
    /// Continues the commands whose work at the storage is done.
    fn take_stored(&mut self) {
        let Self { connections, env, stored, .. } = self;
        for Done { command, result } in stored.drain(..) {
            let Some(id) = env.commands.get_mut(command).map(|command| command.connection) else { continue };
            env.stored(connections.of_command(id), command, result);
        }
    }
    /// Posts requests that waited for room in their send queue. Returns whether any was posted.
    fn post_stalled(&mut self) -> bool {
        let Self { connections, env, .. } = self;
        let mut any = false;
        for _ in 0..env.stalled.len() {
            let Some(id) = env.stalled.pop_front() else { break };
            let Some(connection) = connections.get_mut(id) else { continue };
            let (posted, rest) = connection.outbox.post_waiting();
            any |= posted;
            match rest {
                Ok(()) => {}
                Err(NotPosted::Later) => env.stalled.push_back(id),
                Err(NotPosted::Dead(e)) => env.close(connection, &e),
            }
        }
        any
    }
    /// Zeroes the next piece, for the host whose turn it is.
    #[cold]
    fn zero_a_piece(&mut self) {
        let Self { connections, env, .. } = self;
        let Some((who, mut order)) = env.zeroing.pop() else { return };
        let Some(command) = env.commands.get_mut(order.command) else { return };
        let (connection, ticket) = (connections.of_command(command.connection), command.ticket);
        let most = if self.pace.is_busy() { ZERO_PIECE_BUSY } else { ZERO_PIECE };
        let done = if connection.is_open() { order.step(most) } else { Some(Ok(())) };
        match done {
            None => env.zeroing.put_back(who, order),
            Some(done) => {
                env.finish(connection, order.command);
                env.respond(connection, ticket, done);
            }
        }
    }

    /// Does the regular work that is not part of a command: reads the clock, handles events of connections, and takes over changes of the
    /// storage.
    fn housekeep(&mut self) {
        self.env.look_at_clock();
        for _ in 0..EVENTS {
            let Some(event) = self.network.next_event() else { break };
            self.pace.worked();
            self.handle_event(event);
        }
        for _ in 0..EVENTS {
            let Some(admitted) = self.siblings.take() else { break };
            self.pace.worked();
            self.admit(admitted);
        }
        self.env.disks.renew();
        if self.env.now >= self.looked_after.after(LOOK_AFTER) {
            self.looked_after = self.env.now;
            self.look_after_connections();
        }
    }
    fn look_after_connections(&mut self) {
        let Self { connections, env, network, pace, .. } = self;
        for connection in connections.iter_mut() {
            env.look_after(connection, self.patience, self.silence);
        }
        connections.drop_those(|connection| env.is_over(connection, network, pace));
    }
}
