//! A core: one thread's share of the target.

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

/// Completions that are taken at a time.
const BATCH: usize = 64;
/// How often all connections are looked after: timeouts, silent hosts, connections that end.
const LOOK_AFTER: Duration = Duration::from_millis(10);
/// Events of connection management that are handled at a time, and as many connections that other cores gave to this one.
const EVENTS: usize = 16;
/// Bytes of memory that are made zeros in a turn, while hosts have no other commands.
const ZERO_PIECE: u64 = 1 << 20;
/// Bytes of memory that are made zeros in a turn, while hosts have other commands. Zeroing them takes about as long as a command.
const ZERO_PIECE_BUSY: u64 = 64 << 10;

/// What a core is made of.
#[derive(Clone, Debug)]
pub struct Config {
    /// The shard of the device that it turns.
    pub shard: usize,
    /// Receives for commands of all hosts of the core.
    pub receives: u32,
    /// Bytes of buffers.
    pub buffers: usize,
    /// Connections at a time.
    pub connections: usize,
    /// How long a host may take nothing of what is sent to it.
    pub patience: Duration,
    /// How long a host may be silent, for want of commands or because it is gone, until it is asked which.
    pub silence: Duration,
    /// Use `io_uring` for files, where the system has it.
    pub io_uring: bool,
    /// Count by namespace and host here.
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

/// One thread's share of the target.
pub struct Core<'c> {
    // Dropped in order: connections before what they use.
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
    /// A core of `target`, on a shard of a device. `pd` is the domain of the memory of `stores`.
    ///
    /// # Errors
    /// If there is no memory, or no such shard.
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

    /// What it did.
    pub fn counters(&self) -> Arc<Counters> {
        Arc::clone(&self.env.statistics.counters)
    }
    /// What it has in use now.
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
    /// Says how long a host may take nothing of what is sent to it.
    pub fn set_patience(&mut self, patience: Duration) {
        self.patience = patience;
    }
    /// Some of the connections that arrive here go to `other`.
    pub fn share_with(&mut self, other: &Core<'_>) {
        self.siblings.add(&other.siblings);
    }
    /// Accepts connections at an address, as port number `port` of the target. Returns where it listens.
    ///
    /// # Errors
    /// If the address is in use, or is not one of the device.
    pub fn listen(&mut self, port: u16, address: SocketAddr) -> Result<SocketAddr, VerbsError> {
        self.network.listen(self.env.context, port, address)
    }

    /// Turns until `stop` says so.
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
    /// Nothing was to be done for some turns: lets others run after many, and sleeps after a while.
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
        // Finds what was sent before that; what comes later wakes us.
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

    /// One turn: network, commands, storage. Never waits. Returns whether there was anything to do.
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

    /// A work request of a connection has completed.
    fn complete(&mut self, wc: &Wc) {
        let (env, tag) = (&mut self.env, Tag::from_raw(wc.wr_id));
        if let Tag::Received(_) = tag {
            env.shared.receives.take();
        }
        let Some(connection) = self.connections.of_qp(wc.qp_num) else {
            // It is gone, and so are its commands.
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
    /// The end of the turn, for namespaces in memory.
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

    /// Work besides completions; returns whether there was any.
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
    /// Work of the storage is done.
    fn take_stored(&mut self) {
        let Self { connections, env, stored, .. } = self;
        for Done { command, result } in stored.drain(..) {
            let Some(id) = env.commands.get_mut(command).map(|command| command.connection) else { continue };
            env.stored(connections.of_command(id), command, result);
        }
    }
    /// Posts what waits for room; returns whether anything was posted.
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
    /// Goes on with ranges that become zeros, of the host whose turn it is.
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

    /// What is not part of a command: the clock, connections that come and go.
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
