//! A simulation in one thread, with simulated time: a target and a host, each with a device, a link with every kind of fault, and a disk
//! that is slow, fails and loses power. A model checks every byte that is read. A seed determines the whole run: `SIM_SEED=N` runs only
//! that seed, `SIM_SEEDS=N` runs that many seeds, starting from `SIM_FIRST` (0 if absent).

pub mod disk;
mod model;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use nvmf::Target;
use nvmf::config::{Hosts, Namespace, Port, Ports, Settings, Subsystem};
use nvmf::status::Status;
use nvmf::wire::{Sgl, Sqe, io::DsmRange};
use nvmf_target::host::{Controller, Data, Host, HostError, HostQueue, Io, Options};
use nvmf_target::store::{Store, Stores};
use nvmf_target::target::{Config, Core, Usage};
use verbs::port::fault::{self, Fault, Plan, rng::Rng};
use verbs::port::{self, PortOptions};
use verbs::{Access, Clock, Context, DeviceConfig, Drive, Mr};
use zerocopy::IntoBytes;

use crate::common::{BLOCK, SUBSYSTEM, host_name, nqn};
use disk::{Disk, Lie, Line, Moods};
use model::{Model, Version, fill};

/// Blocks of the namespace.
const BLOCKS: usize = 512;
/// The most blocks of a command.
const LENGTH: usize = 64;
/// Commands of a run.
const COMMANDS: u64 = 300;
/// The most attempts to connect in a run.
const CONNECTS: u32 = 60;
/// The longest step of time, in nanoseconds.
const STEP_NS: u64 = 1 << 20;

/// How often each event happened.
#[derive(Default)]
struct Report(BTreeMap<String, u64>);

impl Report {
    fn note(&mut self, what: impl Into<String>) {
        self.add(what, 1);
    }
    fn add(&mut self, what: impl Into<String>, n: u64) {
        *self.0.entry(what.into()).or_default() += n;
    }
}

/// What a command does.
#[derive(Clone, Debug)]
enum Kind {
    Read,
    Write {
        fua: bool,
    },
    /// With the content of the blocks, or with another one.
    Compare {
        same: bool,
    },
    Zeroes {
        fua: bool,
    },
    Deallocate(Vec<Range<usize>>),
    Verify,
    /// Sent at this time of the model ([`Model::now`]).
    Flush(u64),
}

/// A command under way.
#[derive(Clone, Debug)]
struct Sent {
    kind: Kind,
    range: Range<usize>,
    version: Version,
}

impl Sent {
    /// The blocks that it writes.
    fn writes(&self) -> Vec<Range<usize>> {
        match &self.kind {
            Kind::Write { .. } | Kind::Zeroes { .. } => vec![self.range.clone()],
            Kind::Deallocate(ranges) => ranges.clone(),
            _ => Vec::new(),
        }
    }
    /// The blocks that no other command may use meanwhile.
    fn touches(&self) -> Vec<Range<usize>> {
        match &self.kind {
            Kind::Deallocate(ranges) => ranges.clone(),
            Kind::Flush(_) => Vec::new(),
            _ => vec![self.range.clone()],
        }
    }
    fn name(&self) -> &'static str {
        match self.kind {
            Kind::Read => "read",
            Kind::Write { fua: false } => "write",
            Kind::Write { fua: true } => "write with FUA",
            Kind::Compare { .. } => "compare",
            Kind::Zeroes { .. } => "write zeroes",
            Kind::Deallocate(_) => "deallocate",
            Kind::Verify => "verify",
            Kind::Flush(_) => "flush",
        }
    }
    /// The statuses with which it may fail.
    fn may_fail_with(&self) -> Vec<Status> {
        let mut all = vec![Status::CapacityExceeded, Status::NamespaceNotReady, Status::InternalError];
        all.push(match self.kind {
            Kind::Write { .. } | Kind::Zeroes { .. } | Kind::Deallocate(_) => Status::WriteFault,
            Kind::Flush(_) => Status::WriteFault,
            _ => Status::UnrecoveredReadError,
        });
        if let Kind::Compare { same: false } = self.kind {
            all.push(Status::CompareFailure);
        }
        all
    }
}

/// An I/O queue of the host, its memory, and the commands under way on it by command identifier.
struct IoQueue {
    queue: HostQueue,
    mr: Mr,
    sent: Vec<Option<Sent>>,
}

/// The target's machine: everything but the host.
struct Machine<'c> {
    context: &'c Context,
    /// The target and its core; `None` while it has no power.
    running: Option<(Target, Core<'c>)>,
    disk: Arc<Disk>,
    line: Line,
    /// Connect commands that waited for the disk, at targets before the present one.
    connect_waits: u64,
    /// Time of both devices in nanoseconds.
    clock: Arc<AtomicU64>,
    /// Turns since the target last worked.
    idle: u32,
    config: Config,
}

impl Machine<'_> {
    /// Makes a turn of everything but the host, and advances the time: by short steps while the target works.
    fn turn(&mut self) {
        let now = self.clock.load(Ordering::Relaxed);
        self.line.turn(now);
        let worked = self.running.as_mut().is_some_and(|(_, core)| core.turn().expect("the device works"));
        self.idle = if worked { 0 } else { self.idle.saturating_add(1) };
        let step = (1000u64 << (self.idle / 64).min(20)).min(STEP_NS);
        self.clock.store(now + step, Ordering::Relaxed);
    }
    /// Takes the power from the machine.
    fn stop(&mut self) {
        self.connect_waits = self.connect_waits();
        self.running = None;
        self.line.lose();
        self.disk.lose_power();
    }
    fn connect_waits(&self) -> u64 {
        let now = self.running.as_ref().map(|(_, core)| core.counters().connect_waits.get());
        self.connect_waits + now.unwrap_or(0)
    }
    /// Whether no host has a controller.
    fn is_free(&self) -> bool {
        self.running.as_ref().is_none_or(|(target, _)| target.controllers() == (0, 0))
    }
    /// What the target holds for hosts.
    fn usage(&self) -> Usage {
        let usage = self.running.as_ref().map(|(_, core)| core.usage()).unwrap_or_default();
        // Posted receives do not count: the next capsules use them.
        Usage { receives: 0, ..usage }
    }
    /// Starts a target.
    fn start(&mut self) {
        let pd = Arc::new(self.context.alloc_pd().expect("a domain"));
        let stores = Stores::default();
        let backend = stores.add(Store::Other(self.disk.clone(), self.line.workers()));
        let target = Target::new(Settings::default()).expect("settings");
        target.add_port(Port { id: 1, address: at() }).expect("a port");
        let namespace = Namespace {
            nsid: 1,
            backend,
            blocks: BLOCKS as u64,
            block_shift: BLOCK.trailing_zeros() as u8,
            uuid: [1; 16],
            nguid: [2; 16],
            read_only: false,
            deallocates: Some(512),
        };
        let (nqn, serial) = (nqn(SUBSYSTEM), "42".try_into().expect("short"));
        let subsystem =
            Subsystem { nqn, serial, ports: Ports::All, hosts: Hosts::Any, namespaces: vec![namespace] };
        target.add_subsystem(subsystem).expect("a subsystem");
        let core = Core::new(self.context, pd, target.clone(), Arc::new(stores), self.config.clone());
        let mut core = core.expect("a core");
        core.listen(1, at()).expect("the address is free");
        self.running = Some((target, core));
    }
}

/// Address of the target.
fn at() -> SocketAddr {
    SocketAddr::from(([10, 77, 0, 1], 4420))
}

/// Draws the faults of the link, for frames to the host and from it.
fn links(rng: &mut Rng) -> (Plan, Plan) {
    let mut plan = || {
        let mut plan = Plan { delay: Duration::from_micros(rng.below(20)), ..Plan::CLEAN };
        let faults = [
            (Fault::Loss, 20_000),
            (Fault::Duplicate, 20_000),
            (Fault::Reorder, 20_000),
            (Fault::Corrupt, 10_000),
            (Fault::Truncate, 5_000),
            (Fault::LateDuplicate, 10_000),
            (Fault::Blackhole, 500),
        ];
        for (fault, most) in faults {
            if rng.one_in(2) {
                plan = plan.with(fault, rng.below(most) as u32);
            }
        }
        // Length of a blackhole. Long ones make the queue pairs give up.
        plan.hole = Duration::from_micros(rng.pick(&[300, 3000, 60_000]));
        plan
    };
    (plan(), plan())
}

/// A run of one seed.
struct Run<'r, 'm> {
    rng: Rng,
    model: Model,
    version: Version,
    host: Host<'r>,
    machine: &'r RefCell<Machine<'m>>,
    /// The host's controller and its queues, while it is connected.
    connection: Option<(Controller, Vec<IoQueue>)>,
    /// Commands under way when the last connection ended. The disk may still carry them out until the host is connected again.
    unknown: Vec<Sent>,
    /// Attempts to connect so far.
    connects: u32,
    report: Report,
}

/// `Err` says what is wrong with the target.
type Outcome = Result<(), String>;

/// Runs a seed, on a disk that lies if `lie` is set. Returns what happened.
///
/// # Errors
/// What the target did wrong.
fn run(seed: u64, lie: Option<Lie>) -> Result<Report, String> {
    let mut rng = Rng::new(seed);
    let (rx, tx) = links(&mut rng);
    let fails_ppm = if rng.one_in(3) { 0 } else { rng.below(100_000) as u32 };
    let slow_ns = rng.pick(&[0, 20_000, 1_000_000, 30_000_000]);
    let clock = Arc::new(AtomicU64::new(1_000_000));
    let options = PortOptions { mtu: rng.pick(&[1500, 4200]), ..PortOptions::default() };
    let (a, b) = port::pair_with(&options, &options, Arc::new(|_, _, _| 0));
    let device = |port: Box<dyn port::Port>, last: u8, seed: u64| {
        let addrs = vec![(IpAddr::V4(Ipv4Addr::new(10, 77, 0, last)), 24)];
        let clock = Clock::Manual(clock.clone());
        let config = DeviceConfig::new(port).addrs(addrs).clock(clock).drive(Drive::Embedded).seed(seed);
        Context::open(config).expect("a device")
    };
    let target = device(a, 1, rng.next());
    let (b, met) = fault::counted(b, rx, tx, rng.next());
    let host = device(b, 2, rng.next());
    let config = Config {
        receives: rng.pick(&[16, 64, 256]),
        buffers: rng.pick(&[0, 1 << 20]),
        io_uring: false,
        ..Config::default()
    };
    let disk = Arc::new(Disk::new(BLOCKS * BLOCK, Moods { fails_ppm, lie, ..Moods::GOOD }, rng.fork(1)));
    let machine = RefCell::new(Machine {
        context: &target,
        running: None,
        disk: disk.clone(),
        line: Line::new(slow_ns, rng.fork(3)),
        connect_waits: 0,
        clock,
        idle: 0,
        config,
    });
    machine.borrow_mut().start();
    let mut run = Run {
        rng: rng.fork(2),
        model: Model::new(BLOCKS),
        version: 0,
        host: Host::new(&host, &Drive::Embedded, host_name(1), [1; 16]).expect("a host"),
        machine: &machine,
        connection: None,
        unknown: Vec::new(),
        connects: 0,
        report: Report::default(),
    };
    run.host.beside(|| machine.borrow_mut().turn());
    run.commands().and_then(|()| run.end()).map_err(|e| format!("seed {seed}: {e}"))?;
    for (what, n) in disk.counts() {
        run.report.add(format!("disk: {what}"), n);
    }
    for &fault in Fault::ALL {
        if met.count(fault) > 0 {
            run.report.add(format!("link: {}", fault.name()), met.count(fault));
        }
    }
    match machine.borrow().connect_waits() {
        0 => {}
        n => run.report.add("a Connect that waited for the disk", n),
    }
    Ok(run.report)
}

impl Run<'_, '_> {
    /// Connects the host, unless it is connected.
    fn connect(&mut self) -> Outcome {
        while self.connection.is_none() {
            self.connects += 1;
            if self.connects > CONNECTS {
                return Err("the host does not get through".into());
            }
            match self.try_connect() {
                Ok(connection) => {
                    self.connection = Some(connection);
                    self.report.note("connected");
                    for sent in std::mem::take(&mut self.unknown) {
                        for range in sent.writes() {
                            self.model.may_be_written(range, sent.version);
                        }
                    }
                }
                // The target has lost the connection of the admin queue, and the host does not know it yet.
                Err(HostError::Status { status, .. }) if status == Status::ControllerUnknown.field() >> 1 => {
                    self.gone("a controller that ended before its host had connected")?;
                }
                Err(HostError::Status { status, .. }) => {
                    return Err(format!("connecting fails with status {status:#x}"));
                }
                Err(_) => self.gone("a connection that was not made")?,
            }
        }
        Ok(())
    }
    fn try_connect(&mut self) -> Result<(Controller, Vec<IoQueue>), HostError> {
        let queues = 1 + self.rng.below(3) as u16;
        let options = Options { queues, keep_alive: Duration::ZERO };
        let mut controller = Controller::connect(&mut self.host, at(), &nqn(SUBSYSTEM), options)?;
        let entries = self.rng.pick(&[2, 5, 33]);
        let mut io_queues = Vec::new();
        for qid in 1..=controller.queues() {
            let queue = controller.io_queue(&mut self.host, qid, entries)?;
            let rights = Access::LOCAL_WRITE | Access::REMOTE_READ | Access::REMOTE_WRITE;
            let mr = self.host.pd().reg_mr(entries as usize * LENGTH * BLOCK, rights)?;
            io_queues.push(IoQueue { queue, mr, sent: vec![None; entries as usize] });
        }
        Ok((controller, io_queues))
    }
    /// Ends the connection for reason `why`, and waits until the target has noticed. Its disk may still carry out commands.
    fn gone(&mut self, why: &str) -> Outcome {
        self.report.note(why);
        let queues = self.connection.take().map(|(_, queues)| queues).unwrap_or_default();
        self.unknown.extend(queues.into_iter().flat_map(|q| q.sent).flatten());
        self.wait("the target does not notice that the host has gone", |machine| machine.is_free())
    }
    /// Makes turns until `holds` returns true; fails with `what` if it never does.
    fn wait(&mut self, what: &str, holds: impl Fn(&Machine<'_>) -> bool) -> Outcome {
        for _ in 0..2_000_000 {
            if holds(&self.machine.borrow()) {
                return Ok(());
            }
            self.host.turn();
        }
        Err(format!("{what}: {:?}", self.machine.borrow().usage()))
    }
    /// Takes the power from the target, so that its disk loses what was not stable, and starts it again.
    fn power_loss(&mut self) -> Outcome {
        self.report.note("power loss");
        let mut machine = self.machine.borrow_mut();
        machine.stop();
        machine.start();
        drop(machine);
        let queues = self.connection.take().map(|(_, queues)| queues).unwrap_or_default();
        self.unknown.clear();
        self.model.lost_power();
        drop(queues);
        Ok(())
    }

    /// Carries out the commands of the run, with power losses and disconnects in between.
    fn commands(&mut self) -> Outcome {
        let mut left = COMMANDS;
        let mut quiet = 0u32;
        while left > 0 {
            self.connect()?;
            let mut worked = false;
            while left > 0 && self.rng.below(3) > 0 && self.submit()? {
                left -= 1;
                worked = true;
            }
            worked |= self.poll()?;
            quiet = if worked { 0 } else { quiet + 1 };
            if quiet > 2_000_000 {
                return Err("nothing completes".into());
            }
            if worked && self.rng.one_in(150) {
                match self.rng.below(3) {
                    0 => self.power_loss()?,
                    _ => self.gone("the host dropped its connections")?,
                }
            }
        }
        Ok(())
    }

    /// Sends a random command. Returns whether one was sent: there may be no room, or other commands may use the blocks.
    fn submit(&mut self) -> Result<bool, String> {
        let Some((_, queues)) = &mut self.connection else { return Ok(false) };
        let busy: Vec<Range<usize>> =
            queues.iter().flat_map(|q| q.sent.iter().flatten()).flat_map(Sent::touches).collect();
        let is_free = |range: &Range<usize>| {
            busy.iter().all(|other| other.end <= range.start || range.end <= other.start)
        };
        let q = self.rng.below(queues.len() as u64) as usize;
        let q = &mut queues[q];
        let Some(cid) = q.queue.next_cid() else { return Ok(false) };
        let mut any = || {
            let len = self.rng.pick(&[1, 1, 7, 8, 8, 9, LENGTH]);
            let start = self.rng.below((BLOCKS - len) as u64 + 1) as usize;
            start..start + len
        };
        let range = any();
        let ranges = [any(), any()];
        if !is_free(&range) {
            return Ok(false);
        }
        self.version += 1;
        let version = self.version;
        let certain = self.model.is_certain(range.clone());
        let kind = match self.rng.below(16) {
            0..=4 => Kind::Read,
            5..=10 => Kind::Write { fua: self.rng.one_in(4) },
            11 if certain => Kind::Compare { same: self.rng.one_in(2) },
            12 => Kind::Zeroes { fua: self.rng.one_in(4) },
            13 if ranges.iter().all(is_free) && ranges[0].end <= ranges[1].start => {
                Kind::Deallocate(ranges.into())
            }
            14 => Kind::Verify,
            15 => Kind::Flush(self.model.now()),
            _ => Kind::Read,
        };
        let writes_zeros = matches!(kind, Kind::Zeroes { .. } | Kind::Deallocate(_));
        let version = if writes_zeros { 0 } else { version };
        let sent = Sent { kind, range: range.clone(), version };

        let (from, len) = (cid as usize * LENGTH * BLOCK, range.len() * BLOCK);
        let keyed = |len: usize| Sgl::keyed(q.mr.iova() + from as u64, len as u32, q.mr.rkey(), false);
        let in_capsule =
            |len: usize| (Sgl::in_capsule(0, len as u32), Data::InCapsule(&q.mr, from..from + len));
        let inside = self.rng.one_in(2);
        let give = |bytes: &[u8]| {
            q.mr.write(from, bytes).expect("it is long enough");
            if inside && bytes.len() <= 4096 {
                in_capsule(bytes.len())
            } else {
                (keyed(bytes.len()), Data::Elsewhere)
            }
        };
        let io = Io::new(1, range.start as u64, range.len() as u32);
        let (sqe, data): (Sqe, Data<'_>) = match &sent.kind {
            Kind::Read => {
                q.mr.fill(from..from + len, 0xa5).expect("it is long enough");
                (io.read(keyed(len)), Data::Elsewhere)
            }
            Kind::Write { fua } => {
                let bytes: Vec<u8> = range.clone().flat_map(|n| fill(n, version)).collect();
                let (sgl, data) = give(&bytes);
                (if *fua { io.fua() } else { io }.write(sgl), data)
            }
            Kind::Compare { same } => {
                let mut bytes = self.model.bytes(range.clone());
                let last = bytes.len() - 1;
                bytes[last] ^= u8::from(!same);
                let (sgl, data) = give(&bytes);
                (io.compare(sgl), data)
            }
            Kind::Zeroes { fua } => (if *fua { io.fua() } else { io }.write_zeroes(), Data::Elsewhere),
            Kind::Deallocate(ranges) => {
                let list: Vec<DsmRange> = ranges
                    .iter()
                    .map(|range| DsmRange {
                        attributes: 0u32.into(),
                        blocks: (range.len() as u32).into(),
                        slba: (range.start as u64).into(),
                    })
                    .collect();
                let (sgl, data) = give(list.as_bytes());
                (Io::deallocate(1, list.len() as u32, sgl), data)
            }
            Kind::Verify => (io.verify(), Data::Elsewhere),
            Kind::Flush(_) => (io.flush(), Data::Elsewhere),
        };
        match q.queue.submit(&sqe, data) {
            Ok(Some(cid)) => {
                for range in sent.writes() {
                    self.model.begun(range, sent.version);
                }
                q.sent[cid as usize] = Some(sent);
                Ok(true)
            }
            Ok(None) => Ok(false),
            Err(_) => self.gone("a connection that failed").map(|()| false),
        }
    }

    /// Takes responses and checks them. Returns whether there were any.
    fn poll(&mut self) -> Result<bool, String> {
        self.host.turn();
        let Some((_, queues)) = &mut self.connection else { return Ok(false) };
        let (mut done, mut failed) = (Vec::new(), false);
        for (n, q) in queues.iter_mut().enumerate() {
            let polled = q.queue.poll(|cqe| done.push((n, cqe.cid.get() as usize, cqe.status.get() >> 1)));
            failed |= polled.is_err();
        }
        let worked = !done.is_empty();
        for (queue, cid, status) in done {
            self.completed(queue, cid, status)?;
        }
        if failed {
            self.gone("a connection that failed")?;
        }
        Ok(worked)
    }
    /// Checks the response to command `cid` of the queue with index `queue`.
    fn completed(&mut self, queue: usize, cid: usize, status: u16) -> Outcome {
        let Some((_, queues)) = &mut self.connection else { return Ok(()) };
        let q = &mut queues[queue];
        let sent = q.sent[cid].take().ok_or("a response to nothing")?;
        if status != 0 {
            let known = sent.may_fail_with().into_iter().find(|known| known.field() >> 1 == status);
            let known = known.ok_or_else(|| format!("{sent:?} ends with status {status:#x}"))?;
            self.report.note(format!("{} ends with {}", sent.name(), known.name()));
            for range in sent.writes() {
                self.model.may_be_written(range, sent.version);
            }
            return Ok(());
        }
        self.report.note(sent.name());
        match &sent.kind {
            Kind::Read => {
                let from = cid * LENGTH * BLOCK;
                let bytes = q.mr.to_vec(from..from + sent.range.len() * BLOCK).expect("it is within");
                self.model.read(sent.range.start, &bytes)?;
            }
            Kind::Compare { same: false } => return Err(format!("{sent:?} finds no difference")),
            Kind::Flush(then) => self.model.flushed(*then),
            Kind::Write { fua } | Kind::Zeroes { fua } => self.model.written(sent.range, sent.version, *fua),
            Kind::Deallocate(ranges) => {
                ranges.iter().for_each(|range| self.model.written(range.clone(), sent.version, false));
            }
            Kind::Compare { .. } | Kind::Verify => {}
        }
        Ok(())
    }

    /// Heals the disk, and checks that all commands under way end, that every block reads as it should, and that the target holds
    /// nothing for a host that has left.
    fn end(&mut self) -> Outcome {
        self.machine.borrow().disk.heal();
        self.machine.borrow_mut().line.heal();
        let mut next = 0;
        let mut quiet = 0u32;
        loop {
            self.connect()?;
            let under_way = |run: &Self| {
                run.connection
                    .iter()
                    .flat_map(|connection| &connection.1)
                    .flat_map(|q| &q.sent)
                    .flatten()
                    .count()
            };
            if under_way(self) == 0 {
                if next == BLOCKS {
                    break;
                }
                let Some((_, queues)) = &mut self.connection else { continue };
                let q = &mut queues[0];
                let range = next..next + LENGTH;
                let cid = q.queue.next_cid().ok_or("a queue that is empty is full")?;
                let at = q.mr.iova() + (cid as usize * LENGTH * BLOCK) as u64;
                let sgl = Sgl::keyed(at, (LENGTH * BLOCK) as u32, q.mr.rkey(), false);
                let sqe = Io::new(1, next as u64, LENGTH as u32).read(sgl);
                if let Ok(Some(_)) = q.queue.submit(&sqe, Data::Elsewhere) {
                    q.sent[cid as usize] = Some(Sent { kind: Kind::Read, range, version: 0 });
                }
            }
            let before = under_way(self);
            let worked = self.poll()?;
            if worked && before == 1 && self.connection.is_some() && under_way(self) == 0 {
                next += LENGTH;
            }
            quiet = if worked { 0 } else { quiet + 1 };
            if quiet > 2_000_000 {
                return Err("nothing completes in the end".into());
            }
        }
        self.gone("the end")?;
        self.wait("the target keeps something of a host that has gone", |machine| {
            machine.usage() == Usage::default()
        })
    }
}

/// The environment variable `name`, a number.
fn number(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name} is a number, not {text:?}")))
}

/// Default number of seeds. A test with at least this many fails if an expected event never happened.
const ENOUGH: u64 = 60;

// Goal: whatever the network and the disk do, every command ends with an allowed status, no read returns what was not written, and no
// acknowledged write is lost: none at all before a power loss, and none that was flushed or had FUA after it. Each expected event happens.
#[test]
fn nothing_is_lost_over_faulty_links_on_a_faulty_disk() {
    let (first, n) = match number("SIM_SEED") {
        Some(seed) => (seed, 1),
        None => (number("SIM_FIRST").unwrap_or(0), number("SIM_SEEDS").unwrap_or(ENOUGH)),
    };
    let mut sum = Report::default();
    for seed in first..first + n {
        let report = run(seed, None).unwrap_or_else(|e| panic!("{e}"));
        report.0.into_iter().for_each(|(what, n)| sum.add(what, n));
    }
    println!("{n} seeds: {:#?}", sum.0);
    if n >= ENOUGH {
        let happened = |what: &str| match what.strip_suffix('*') {
            Some(beginning) => sum.0.keys().any(|happened| happened.starts_with(beginning)),
            None => sum.0.contains_key(what),
        };
        let never: Vec<_> = EXPECTED.iter().filter(|&&what| !happened(what)).collect();
        assert!(never.is_empty(), "in {n} seeds these never happened: {never:?}; these did: {:#?}", sum.0);
    }
}

/// Events that many seeds must have met. Each way in which a DEALLOCATE can fail is rare, so one of them is enough.
#[rustfmt::skip]
const EXPECTED: &[&str] = &[
    "connected", "a connection that failed", "the host dropped its connections", "power loss",
    "a Connect that waited for the disk",
    "link: loss", "link: blackhole", "link: duplicate", "link: reorder", "link: corrupt", "link: truncate",
    "link: late_duplicate",
    "read", "write", "write with FUA", "compare", "write zeroes", "deallocate", "verify", "flush",
    "disk: EIO", "disk: ENOSPC", "disk: ENXIO", "disk: another error",
    "read ends with UnrecoveredReadError", "write ends with WriteFault", "write ends with CapacityExceeded",
    "write ends with NamespaceNotReady", "write ends with InternalError", "write with FUA ends with WriteFault",
    "write zeroes ends with CapacityExceeded", "deallocate ends with *", "flush ends with WriteFault",
    "compare ends with CompareFailure",
];

// Goal: a run can be repeated: the same seed gives the same events.
#[test]
fn a_seed_determines_the_run() {
    for seed in 0..3 {
        let [one, two] = [run(seed, None), run(seed, None)].map(|report| report.map(|report| report.0));
        assert_eq!(one, two, "seed {seed}");
    }
}

// Goal: the model detects every kind of lie of a disk.
#[test]
fn a_disk_that_lies_is_found_out() {
    for lie in Lie::ALL {
        let found = (0..ENOUGH).find_map(|seed| run(seed, Some(lie)).err());
        let found = found.unwrap_or_else(|| panic!("a disk that {lie:?} is not found out"));
        let judged = [" may hold ", " finds no difference", " ends with status "];
        assert!(judged.iter().any(|judged| found.contains(judged)), "{lie:?}: {found}");
    }
}
