//! A core: one thread's share of the target.

use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::time::Duration;

use nvmf::fair::{Shares, Turns};
use nvmf::limits::{DISCOVERY_MDTS, INPUT_MAX};
use nvmf::status::Status;
use nvmf::wire::Sqe;
use nvmf::{Instant, Queue, Remote, Response, Step, Target, Ticket};
use tracing::{debug, warn};
use verbs::rdma_cm::{CmId, EventChannel, PortSpace};
use verbs::{Context, Cq, CqPoller, DeviceError, Pd, Reactor, Sge, VerbsError, Wc};

use super::batch::Batch;
use super::commands::Commands;
use super::connection::{Connection, Ending, NotPosted, Outgoing};
use super::counters::{Counters, Usage};
use super::life::Admitted;
use super::meter::Meters;
use super::party::KINDS;
use super::pool::{CLASSES, Pool};
use super::qpns::ByQpn;
use super::receives::Receives;
use super::storage::Zeroing;
use super::tag;
use crate::store::{Done, Ring, Stores, Table};
use crate::wake::{Sender, Waker, channel};

/// Completions that are taken at a time.
const BATCH: usize = 64;
/// Turns between two looks at the clock and at connection management.
const LOOK: u64 = 32;
/// How often connections are looked after that do nothing.
const TEND: Duration = Duration::from_millis(10);
/// After so long a failure of storage is logged again.
const SAY_AGAIN: Duration = Duration::from_secs(60);
/// Different things that are logged in such a time, at most.
const SAID_MAX: usize = 64;
/// Turns without work after which the thread lets others run.
const IDLE_TURNS: u64 = 256;
/// How long it finds no work before it sleeps. A wake-up costs more than a host needs from one command to the next.
const AWAKE: Duration = Duration::from_micros(50);
/// Requests for connections that are handled at a time, and events.
const EVENTS: usize = 16;

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
    context: &'c Context,
    pub(super) config: Config,
    pub(super) target: Target,
    all_stores: Arc<Stores>,
    /// The table of storage when this core last looked.
    pub(super) stores: Arc<Table>,
    pub(super) counters: Arc<Counters>,
    pub(super) reactor: Reactor,
    // Dropped in order: connections before what they use.
    pub(super) connections: Vec<Option<Box<Connection>>>,
    pub(super) by_qpn: ByQpn,
    /// Connections with something to post that found no room, in turn.
    stalled: VecDeque<u32>,
    /// Connections that end.
    pub(super) ending: Vec<u32>,
    pub(super) commands: Commands,
    /// Connections with commands that wait for a buffer, in turn.
    pub(super) waiting: [Turns<u32>; CLASSES],
    pub(super) zeroing: Turns<Zeroing>,
    /// What hosts have of what they share here.
    pub(super) shares: Shares<KINDS>,
    /// What the turn does with namespaces in memory.
    pub(super) batch: Batch,
    /// Number of commands that wait for their storage, and the channel of the results.
    pub(super) at_work: usize,
    pub(super) results: (Sender<Done>, Receiver<Done>),
    /// The `io_uring` for files, where the system has it.
    pub(super) ring: Option<Ring>,
    /// No ring is wanted, or the system has none.
    no_ring: bool,
    pub(super) listeners: Vec<(CmId, u16)>,
    /// Where connections go: to this core and others, in turn.
    pub(super) others: Vec<Sender<Admitted>>,
    pub(super) next: usize,
    pub(super) inbox: (Sender<Admitted>, Receiver<Admitted>),
    pub(super) events: EventChannel,
    pub(super) poller: CqPoller,
    pub(super) cq: Cq,
    /// Entries of the completion queue that may be needed.
    pub(super) cq_needed: u32,
    pub(super) pool: Pool,
    pub(super) receives: Receives,
    pub(super) pd: Arc<Pd>,
    done: Vec<Wc>,
    ring_done: Vec<Done>,
    pub(super) scratch: Vec<u8>,
    pub(super) now: Instant,
    pub(super) turns: u64,
    /// Turns without work.
    idle: u64,
    /// When the first of them were over.
    idle_since: Instant,
    /// Wakes the core when something is sent to it.
    waker: Arc<Waker>,
    /// The last turn with completions.
    pub(super) completed: u64,
    /// The last turn that left no completion.
    pub(super) emptied: u64,
    tended: Instant,
    said: Said<nvmf::BackendError>,
    /// Addresses of which a connection or a controller was refused.
    pub(super) refused: Said<IpAddr>,
    /// Connections of hosts that no subsystem names.
    pub(super) guests: usize,
}

/// What was logged, each with its last time.
pub(super) struct Said<T>(Vec<(T, Instant)>);

impl<T> Default for Said<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<T: PartialEq> Said<T> {
    /// Whether this is to be logged now: it was not for a while, and not too much else was.
    pub(super) fn is_news(&mut self, what: T, now: Instant) -> bool {
        self.0.retain(|&(_, at)| now < at.after(SAY_AGAIN));
        if self.0.len() >= SAID_MAX || self.0.iter().any(|(said, _)| *said == what) {
            return false;
        }
        self.0.push((what, now));
        true
    }
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
        let cq = context.create_cq(config.receives)?;
        let waker = Waker::new().map_err(|e| VerbsError::Device(DeviceError::Descriptor(e.kind())))?;
        let mut core = Self {
            reactor: context.reactor(config.shard)?,
            connections: Vec::new(),
            by_qpn: ByQpn::default(),
            stalled: VecDeque::new(),
            ending: Vec::new(),
            commands: Commands::default(),
            waiting: Default::default(),
            zeroing: Turns::default(),
            shares: Shares::default(),
            batch: Batch::default(),
            at_work: 0,
            results: channel(&waker),
            ring: None,
            no_ring: !config.io_uring,
            listeners: Vec::new(),
            others: Vec::new(),
            next: 0,
            inbox: channel(&waker),
            waker,
            events: EventChannel::new()?,
            poller: cq.poller()?,
            cq,
            cq_needed: config.receives,
            pool,
            receives,
            pd,
            done: vec![Wc::default(); BATCH],
            ring_done: Vec::new(),
            scratch: vec![0; INPUT_MAX],
            now: Instant::from_nanos(context.now()),
            turns: 0,
            idle: 0,
            idle_since: Instant::default(),
            completed: 0,
            emptied: 0,
            tended: Instant::default(),
            said: Said::default(),
            refused: Said::default(),
            guests: 0,
            counters: Arc::default(),
            context,
            config,
            target,
            stores: Arc::default(),
            all_stores: stores,
        };
        core.renew_stores();
        Ok(core)
    }

    /// What it did.
    pub fn counters(&self) -> Arc<Counters> {
        Arc::clone(&self.counters)
    }
    /// What it has in use now.
    pub fn usage(&self) -> Usage {
        Usage {
            connections: self.connections.iter().flatten().count(),
            commands: self.commands.len(),
            buffers: self.pool.in_use(),
            capsules: self.receives.in_use(),
            receives: self.receives.posted(),
        }
    }
    /// Says how long a host may take nothing of what is sent to it.
    pub fn set_patience(&mut self, patience: Duration) {
        self.config.patience = patience;
    }
    /// Some of the connections that arrive here go to `other`.
    pub fn share_with(&mut self, other: &Core<'_>) {
        self.others.push(other.inbox.0.clone());
    }
    /// Accepts connections at an address, as port number `port` of the target. Returns where it listens.
    ///
    /// # Errors
    /// If the address is in use, or is not one of the device.
    pub fn listen(&mut self, port: u16, address: SocketAddr) -> Result<SocketAddr, VerbsError> {
        let id = self.context.create_id(Some(&self.events), PortSpace::Tcp)?;
        id.bind_addr(address)?;
        id.listen(0)?;
        let at = id.local_addr().unwrap_or(address);
        self.listeners.push((id, port));
        Ok(at)
    }

    /// Turns until `stop` says so.
    ///
    /// # Errors
    /// If the device fails.
    pub fn run(&mut self, stop: impl Fn() -> bool) -> Result<(), VerbsError> {
        while !stop() {
            self.turn()?;
            // By turns and time: a turn of some ports is a system call.
            if self.idle > IDLE_TURNS || self.idle > 0 && self.idle.is_multiple_of(LOOK) {
                self.rest()?;
            }
        }
        Ok(())
    }
    /// Nothing was to be done for some turns: lets others run after many, and sleeps after a while.
    fn rest(&mut self) -> Result<(), VerbsError> {
        let now = Instant::from_nanos(self.context.now());
        if self.idle == LOOK {
            self.idle_since = now;
        }
        if now < self.idle_since.after(AWAKE) {
            if self.idle > IDLE_TURNS {
                std::thread::yield_now();
            }
            return Ok(());
        }
        let sleep = self.waker.begin();
        // Finds what was sent before that; what comes later wakes us.
        self.turn()?;
        self.look();
        let ring = self.ring.as_ref().filter(|ring| ring.under_way() > 0);
        if self.idle == 0 || ring.is_some_and(|ring| !ring.is_submitted()) {
            return Ok(());
        }
        self.counters.sleeps.add(1);
        // Where nothing has come it sleeps again at once.
        self.idle = IDLE_TURNS;
        let fds = [Some(sleep.as_fd()), ring.map(AsFd::as_fd)];
        let n = fds.iter().flatten().count();
        let [event, ring] = fds.map(|fd| fd.unwrap_or(sleep.as_fd()));
        self.reactor.sleep(&[event, ring][..n], TEND);
        Ok(())
    }

    /// One turn: network, commands, storage. Never waits. Returns whether there was anything to do.
    ///
    /// # Errors
    /// If the device fails.
    #[inline]
    pub fn turn(&mut self) -> Result<bool, VerbsError> {
        self.turns += 1;
        let turned = self.reactor.poll_once();
        let mut done = std::mem::take(&mut self.done);
        let n = self.poller.poll(&mut done);
        let n = match n {
            Ok(n) => n,
            Err(e) => {
                self.done = done;
                return Err(e);
            }
        };
        if n > 0 && self.config.meters.is_some() {
            self.now = Instant::from_nanos(self.context.now());
        }
        for wc in &done[..n] {
            self.completion(wc);
        }
        self.done = done;
        self.finish_batch();
        if n < BATCH {
            self.emptied = self.turns;
        }
        if n > 0 {
            self.completed = self.turns;
        }
        let worked = self.work() | (n > 0) | turned.is_some_and(|turn| !turn.idle());
        self.receives.refill()?;
        self.idle = if worked { 0 } else { self.idle + 1 };
        if self.turns.is_multiple_of(LOOK) {
            self.look();
        }
        Ok(worked)
    }

    fn completion(&mut self, wc: &Wc) {
        let (kind, n) = tag::split(wc.wr_id);
        match kind {
            tag::RECEIVED => {
                self.receives.take();
                let connection = self.by_qpn.get(&wc.qp_num.get()).copied();
                match connection.filter(|&c| wc.is_ok() && self.is_open(c)) {
                    Some(c) => self.capsule(c, n, wc.byte_len as usize),
                    None => self.receives.give(n),
                }
            }
            tag::FETCHED => {
                let Some(c) = self.commands.get_mut(n).map(|command| command.connection) else { return };
                if wc.is_ok() && self.is_open(c) {
                    self.connection(c).completed(kind);
                    self.fetched(c, n);
                } else {
                    self.finish(n);
                }
            }
            tag::ANSWERED => {
                if let Some(c) = self.finish(n) {
                    self.connection(c).completed(kind);
                }
            }
            _ => {
                if let Some(&c) = self.by_qpn.get(&wc.qp_num.get()) {
                    self.connection(c).completed(kind);
                }
            }
        }
        if !wc.is_ok()
            && let Some(&c) = self.by_qpn.get(&wc.qp_num.get())
        {
            self.close(c, &wc.status);
        }
    }

    /// A capsule of `len` bytes is in a buffer.
    fn capsule(&mut self, c: u32, buffer: u32, len: usize) {
        self.counters.capsules.add(1);
        let mut sqe = [0; Sqe::LEN];
        let first = len.min(Sqe::LEN);
        let read = self.receives.mr().read(self.receives.offset(buffer), &mut sqe[..first]);
        debug_assert!(read.is_ok(), "the buffer is inside of the region");
        let now = self.now;
        let Some(queue) = self.queue(c) else { return self.receives.give(buffer) };
        match queue.handle_capsule(now, &sqe[..first], len) {
            Ok(step) => self.advance(c, step, Some(buffer)),
            Err(end) => {
                self.receives.give(buffer);
                self.close(c, &end);
            }
        }
    }

    /// Does what a command needs next. Its capsule is in the buffer.
    pub(super) fn advance(&mut self, c: u32, step: Step<'_>, capsule: Option<u32>) {
        match step {
            Step::Run(ticket, request) => return self.request(c, ticket, &request, capsule),
            Step::Fetch(ticket, nvmf::Source::Capsule { offset, len }) => {
                let Some(buffer) = capsule else { return };
                let at = self.receives.offset(buffer) + offset as usize;
                let mut scratch = std::mem::take(&mut self.scratch);
                let read = self.receives.mr().read(at, &mut scratch[..len as usize]);
                debug_assert!(read.is_ok(), "the controller has checked the capsule");
                self.receives.give(buffer);
                self.data(c, ticket, &scratch[..len as usize]);
                self.scratch = scratch;
                return;
            }
            _ => {}
        }
        if let Some(buffer) = capsule {
            self.receives.give(buffer);
        }
        match step {
            Step::Respond(response) => self.answer(c, response, None, None),
            Step::Fetch(ticket, nvmf::Source::Remote(from)) => {
                self.fetch(c, ticket, from, super::commands::Then::Data);
            }
            Step::Give(ticket, to) => self.with_buffer(c, ticket, super::commands::Stage::Give(to), to.len),
            Step::Wait | Step::Run(..) | Step::Fetch(..) => {}
        }
    }
    /// The bytes that the controller asked for have come.
    pub(super) fn data(&mut self, c: u32, ticket: Ticket, data: &[u8]) {
        let now = self.now;
        let Some(queue) = self.queue(c) else { return };
        match queue.handle_data(now, ticket, data) {
            Ok(Step::Wait) => self.counters.connect_waits.add(1),
            Ok(step) => {
                self.note_who(c);
                if matches!(&step, Step::Respond(response) if response.cqe.status.get() == Status::ControllerBusy.field())
                {
                    self.say_no_controller(c);
                }
                self.advance(c, step, None);
            }
            Err(end) => self.close(c, &end),
        }
    }
    #[cold]
    fn say_no_controller(&mut self, c: u32) {
        let peer = self.who(c).address;
        if self.refused.is_news(peer, self.now) {
            warn!(
                %peer,
                "a host gets no controller: a host has no more than are left, and some are kept for hosts that a subsystem names"
            );
        }
    }
    /// A command is done, or has failed.
    #[inline]
    pub(super) fn respond(&mut self, c: u32, ticket: Ticket, done: Result<(), nvmf::BackendError>) {
        self.metered(c, ticket, done.is_ok());
        if let Err(error) = done
            && error != nvmf::BackendError::Mismatch
        {
            self.storage_failed(c, error);
        }
        let Some(queue) = self.queue(c) else { return };
        match queue.handle_done(ticket, done) {
            Ok(response) => self.answer(c, response, None, None),
            Err(end) => self.close(c, &end),
        }
    }
    /// Logs a failure of the storage: the host gets a status, but the operator of the disks would not see it.
    #[cold]
    fn storage_failed(&mut self, c: u32, error: nvmf::BackendError) {
        let Some((host, subsystem)) = self.queue(c).and_then(|queue| queue.host().zip(queue.subsystem()))
        else {
            return;
        };
        // What is lost the storage itself has logged.
        if error != nvmf::BackendError::Lost && self.said.is_news(error, self.now) {
            warn!(%error, %host, %subsystem, "a command failed; others that fail so are not logged for a minute");
        }
    }
    /// Sends a response, after data.
    #[inline]
    pub(super) fn answer(
        &mut self,
        c: u32,
        response: Response,
        data: Option<(Sge, Remote)>,
        command: Option<u32>,
    ) {
        self.counters.responses.add(1);
        self.post(c, Outgoing::Answer { response, data, command });
    }
    #[inline]
    pub(super) fn post(&mut self, c: u32, outgoing: Outgoing) {
        let connection = self.connection(c);
        match connection.post(outgoing) {
            Ok(()) => {}
            Err(NotPosted::Later(outgoing)) => {
                connection.waiting.push_back(outgoing);
                self.counters.send_waits.add(1);
                if !self.stalled.contains(&c) {
                    self.stalled.push_back(c);
                }
            }
            Err(NotPosted::Dead(e)) => {
                // Its command and buffer are freed with the connection.
                connection.waiting.push_back(outgoing);
                self.close(c, &e);
            }
        }
    }

    /// Work besides completions; returns whether there was any.
    #[inline]
    fn work(&mut self) -> bool {
        let mut worked = false;
        if !self.stalled.is_empty() {
            worked |= self.post_stalled();
        }
        for class in 0..CLASSES {
            worked |= self.hand_out(class);
        }
        if !self.zeroing.is_empty() {
            self.zero_a_piece();
            worked = true;
        }
        if self.at_work > 0 {
            while let Ok((n, result)) = self.results.1.try_recv() {
                self.at_work -= 1;
                self.stored(n, result);
                worked = true;
            }
        }
        if self.ring.as_ref().is_some_and(|ring| ring.under_way() > 0) {
            worked |= self.turn_ring();
        }
        worked
    }
    /// Submits requests to the ring, and takes what is done; returns whether anything was.
    fn turn_ring(&mut self) -> bool {
        let mut done = std::mem::take(&mut self.ring_done);
        if let Some(ring) = &mut self.ring
            && let Err(e) = ring.turn(|result| done.push(result))
        {
            // The requests stay in the ring, and are submitted again in the next turn.
            debug!(error = %e, "the ring was not submitted");
        }
        let worked = !done.is_empty();
        for (n, result) in done.drain(..) {
            self.stored(n, result);
        }
        self.ring_done = done;
        worked
    }
    /// Posts what waits for room; returns whether anything was posted.
    fn post_stalled(&mut self) -> bool {
        let mut posted = false;
        for _ in 0..self.stalled.len() {
            let Some(c) = self.stalled.pop_front() else { break };
            let Some(connection) = self.connections[c as usize].as_mut() else { continue };
            while let Some(outgoing) = connection.waiting.pop_front() {
                let Err(not_posted) = connection.post_now(outgoing) else {
                    posted = true;
                    continue;
                };
                match not_posted {
                    NotPosted::Later(rest) => {
                        connection.waiting.push_front(rest);
                        self.stalled.push_back(c);
                    }
                    NotPosted::Dead(e) => {
                        connection.waiting.push_front(outgoing);
                        self.close(c, &e);
                    }
                }
                break;
            }
        }
        posted
    }

    /// What is not part of a command: the clock, connections that come and go.
    fn look(&mut self) {
        self.now = Instant::from_nanos(self.context.now());
        for _ in 0..EVENTS {
            let Some(event) = self.events.try_get_event() else { break };
            self.idle = 0;
            self.event(event);
        }
        for _ in 0..EVENTS {
            let Ok(admitted) = self.inbox.1.try_recv() else { break };
            self.idle = 0;
            self.admit(admitted);
        }
        self.renew_stores();
        if self.now >= self.tended.after(TEND) {
            self.tended = self.now;
            self.tend();
        }
    }
    /// A command of a namespace has its response.
    #[inline]
    pub(super) fn metered(&mut self, c: u32, ticket: Ticket, ok: bool) {
        if self.config.meters.is_none() {
            return;
        }
        let now = self.context.now();
        let connection = self.connections[c as usize].as_mut();
        if let Some(gauge) = connection.and_then(|connection| connection.gauge.as_mut()) {
            gauge.end(ticket, now, ok);
        }
    }
    /// A command of a namespace begins.
    #[inline]
    pub(super) fn meter(&mut self, c: u32, ticket: Ticket, request: &nvmf::Request<'_>) {
        if self.config.meters.is_none() {
            return;
        }
        let now = self.now.as_nanos();
        let Some(Connection { gauge: Some(gauge), queue: Some(queue), .. }) =
            self.connections[c as usize].as_deref_mut()
        else {
            return;
        };
        gauge.begin(ticket, request, now, || queue.host().zip(queue.subsystem()));
    }

    /// Takes the newest table of storage; returns whether there was a newer one. The removal of storage waits until all cores
    /// have done so.
    pub(super) fn renew_stores(&mut self) -> bool {
        let Some(newer) = self.all_stores.newer(&self.stores) else { return false };
        if self.ring.is_none() && !self.no_ring && newer.has_files() {
            self.ring = new_ring(&self.pool, &self.receives);
            self.no_ring = self.ring.is_none();
        }
        self.stores = newer;
        true
    }

    /// The connection of a number that is in use.
    #[inline]
    pub(super) fn connection(&mut self, c: u32) -> &mut Connection {
        self.connections[c as usize].as_mut().expect("who names a connection keeps it")
    }
    #[inline]
    pub(super) fn is_open(&self, c: u32) -> bool {
        self.connections[c as usize].as_ref().is_some_and(|connection| connection.ending == Ending::No)
    }
    /// The controller's side of a connection, unless it ends.
    #[inline]
    pub(super) fn queue(&mut self, c: u32) -> Option<&mut Queue> {
        self.connections[c as usize].as_mut()?.queue.as_mut()
    }
}

/// A ring for the buffers; `None`, after a warning, where io_uring cannot be used.
fn new_ring(pool: &Pool, receives: &Receives) -> Option<Ring> {
    match Ring::new(vec![Arc::clone(pool.mr()), Arc::clone(receives.mr())]) {
        Ok(ring) => {
            if !ring.is_registered() {
                warn!(
                    "the buffers could not be registered with io_uring, which makes files slower: a core may have up to 1 GiB of \
                     them (--buffers), and as much as the limit of locked memory allows (ulimit -l)"
                );
            }
            Some(ring)
        }
        Err(e) => {
            warn!(error = %e, "io_uring cannot be used here; threads read and write the files instead");
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nvmf::BackendError::{Io, NoSpace};

    // Goal: a disk that fails in several ways at once is logged once a minute for each of them, not for each command.
    #[test]
    fn each_kind_of_failure_is_logged_once_a_minute() {
        let mut said = Said::default();
        let second = |n: u64| Instant::from_nanos(n * 1_000_000_000);
        let logged = (0..120)
            .flat_map(|n| [(n, Io), (n, NoSpace)])
            .filter(|&(n, error)| said.is_news(error, second(n)));
        assert_eq!(logged.collect::<Vec<_>>(), [(0, Io), (0, NoSpace), (60, Io), (60, NoSpace)]);
    }
}
