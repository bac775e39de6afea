//! A host: its processes, their registry, and what is in the sockets and links between them.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant as SystemInstant};

use core::net::{IpAddr, Ipv4Addr};

use super::checks::Deliveries;
use super::links::{End, Link, Meeting};
use super::sockets::{Datagram, Steering};
use crate::registry::host::{Host as System, SimKernel};
use crate::rng::Rng;
use stack::id::Qpn;
use stack::port::Stall;
use stack::port::host::{Published, Table};
use stack::port::sorting::Living;
use stack::registry::{Addresses, Claim, Member, RegistryError, Run, Terms};
use stack::sync::lock::lock;
use stack::time::Instant;

/// A process by its number on its host: how many were started there before it.
pub type Pid = usize;

/// Runs that a host has, and how long each rests.
const RUNS: usize = 96;
const REST: Duration = Duration::from_millis(300);
/// How long a process waits for those that it asks to let it join.
const PATIENCE: Duration = Duration::from_millis(5);

/// What is wrong on purpose: a checker must notice it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Plant {
    /// A datagram that arrived at the wrong process stays there.
    StaysAtTheWrongProcess,
    /// A datagram is passed on twice.
    PassedOnTwice,
    /// The end of a link is told before what had arrived.
    EndsEarly,
    /// The end of a link is never told.
    EndsUntold,
    /// A process leases a run that another one has.
    LeasedTwice,
    /// Nobody remembers where a request for a connection went.
    RequestsAreForgotten,
    /// The end of one process ends the links of another one.
    EndsOthers,
}

/// How a host behaves.
#[derive(Clone, Copy, Debug)]
pub struct Weather {
    /// Datagrams in a million that go to any process.
    pub steered_wrong_ppm: u32,
    /// Time from one end of a link to the other, at most.
    pub link_delay: Duration,
    /// Time until two processes have a link, and until a process notices that another one has ended, at most.
    pub meeting: Duration,
    /// Frames that a ring holds.
    pub ring: usize,
    /// What is wrong on purpose.
    pub plant: Option<Plant>,
}

/// What happened on a host.
#[derive(Clone, Copy, Default, Debug)]
pub struct Counts {
    /// Links that were made, and that ended.
    pub links: u64,
    /// Links whose end was told to a queue.
    pub ends: u64,
    /// Frames that arrived by links.
    pub by_links: u64,
    /// Datagrams that arrived by sockets, and those that were passed on or dropped.
    pub by_sockets: u64,
    /// Datagrams that arrived at another process, which passed them on.
    pub passed_on: u64,
    /// Datagrams for nobody.
    pub strayed: u64,
    /// Datagrams for which a socket had no room.
    pub overflowed: u64,
    /// Frames for which a ring had no room at first.
    pub full: u64,
    /// Runs that nobody had when they were asked for.
    pub vacant: u64,
    /// Requests for connections that arrived again at a process that had closed its listener.
    pub repeated: u64,
}

/// A host.
pub struct Host {
    /// The time.
    pub now: Instant,
    /// How it behaves.
    pub weather: Weather,
    /// Its addresses; the second one is that which its processes use.
    pub addresses: [IpAddr; 2],
    /// The processes that were ever started.
    pub processes: Vec<Process>,
    /// Frames to other hosts.
    pub outgoing: VecDeque<Vec<u8>>,
    /// What happened.
    pub counts: Counts,
    pub(super) links: Vec<Link>,
    pub(super) meetings: Vec<Meeting>,
    pub(super) steering: Steering,
    pub(super) deliveries: Deliveries,
    pub(super) rng: Rng,
    pub(super) frames: u64,
    pub(super) system: Arc<System>,
    /// Time 0, for what is told the time of the system.
    pub(super) epoch: SystemInstant,
}

/// A process.
pub struct Process {
    /// Whether it lives.
    pub is_alive: bool,
    /// Whether it is stopped.
    pub is_stopped: bool,
    /// The services for which it listens.
    pub listens: BTreeMap<u32, Claim>,
    /// Its runs, each with its queue. The first one is leased from the start.
    pub(super) runs: Vec<(Run, usize)>,
    pub(super) is_first_given: bool,
    pub(super) member: Option<Member<SimKernel>>,
    pub(super) kernel: SimKernel,
    pub(super) living: Living,
    pub(super) published: Arc<Published>,
    pub(super) table: Table,
    /// When the keeper of its links has something to do.
    pub(super) due: Instant,
    /// Its links by their numbers here.
    pub(super) ends: Vec<Option<End>>,
    pub(super) queues: Vec<Queue>,
}

/// What a shard has of the port.
#[derive(Default)]
pub(super) struct Queue {
    /// In its sockets.
    pub arrived: VecDeque<Datagram>,
    /// Links that have ended, of which everything was received, by their numbers; and since when.
    pub ended: VecDeque<(u8, Instant)>,
    /// The one that was told last.
    pub told: Option<u8>,
    /// The link with which the next burst begins.
    pub turn: usize,
    /// By the numbers of links.
    pub stalls: BTreeMap<u8, Stall>,
}

/// A host, as its processes and the simulation have it.
#[derive(Clone)]
pub struct Shared(Arc<Mutex<Host>>);

impl Shared {
    /// The host with this number.
    pub fn new(number: u8, weather: Weather, now: Instant, mut rng: Rng) -> Self {
        let system = System::driven(rng.next());
        let epoch = SystemInstant::now();
        Self(Arc::new(Mutex::new(Host {
            now,
            weather,
            addresses: [1, 0].map(|net| IpAddr::V4(Ipv4Addr::new(10, net, number, 1))),
            processes: Vec::new(),
            outgoing: VecDeque::new(),
            counts: Counts::default(),
            links: Vec::new(),
            meetings: Vec::new(),
            steering: Steering::default(),
            deliveries: Deliveries::default(),
            rng,
            frames: 0,
            system,
            epoch,
        })))
    }

    /// The host, for a call.
    pub fn lock(&self) -> MutexGuard<'_, Host> {
        lock(&self.0)
    }
}

impl Host {
    /// Sets the time.
    pub fn at(&mut self, now: Instant) {
        self.now = now;
        let mut system = self.system.state();
        system.now = system.now.max((1 << 40) + now.as_nanos());
    }

    /// The time, for what is told the time of the system.
    pub(super) fn system_now(&self) -> SystemInstant {
        self.epoch + Duration::from_nanos(self.now.as_nanos())
    }

    /// Starts a process, which joins the registry; with as many queues. Fails while all members are stopped.
    pub fn start(&mut self, queues: usize) -> Result<Pid, RegistryError> {
        let pid = self.system.state().spawn(false);
        let kernel = SimKernel { host: Arc::clone(&self.system), pid };
        let terms = Terms { runs: RUNS, rest: REST, addresses: Addresses::default() };
        let member = Member::join(kernel.clone(), terms, PATIENCE).inspect_err(|_| {
            self.system.state().kill(pid);
        })?;
        kernel.serve(member.birth(), member.memory());
        let published = Arc::new(Published::default());
        let run = member.runs()[0];
        self.check_lease(run);
        self.processes.push(Process {
            is_alive: true,
            is_stopped: false,
            listens: BTreeMap::new(),
            runs: vec![(run, 0)],
            is_first_given: false,
            member: Some(member),
            kernel,
            living: Living::new(self.epoch),
            // As long as a process of the port waits for another one.
            table: Table::new(Arc::clone(&published), Duration::from_secs(5)),
            published,
            due: Instant::ZERO,
            ends: Vec::new(),
            queues: (0..queues).map(|_| Queue::default()).collect(),
        });
        self.attach();
        Ok(self.processes.len() - 1)
    }

    /// Leases a run for a queue of a process.
    pub(super) fn lease(&mut self, pid: Pid, queue: usize) -> Result<Run, RegistryError> {
        let plant = self.weather.plant == Some(Plant::LeasedTwice);
        let others = self.processes.iter().enumerate().filter(|(other, it)| *other != pid && it.is_alive);
        let other = others.last().and_then(|(_, it)| it.runs.first()).filter(|_| plant).copied();
        let process = &mut self.processes[pid];
        if queue == 0 && !process.is_first_given {
            process.is_first_given = true;
            return Ok(process.runs[0].0);
        }
        let run = match (other, &process.member) {
            (Some((run, _)), _) => run,
            (None, Some(member)) => member.lease_run()?,
            (None, None) => return Err(RegistryError::Forked),
        };
        self.check_lease(run);
        self.processes[pid].runs.push((run, queue));
        self.attach();
        Ok(run)
    }

    /// No two living processes have the same run.
    fn check_lease(&mut self, run: Run) {
        let has = |process: &Process| process.is_alive && process.runs.iter().any(|(of, _)| *of == run);
        if let Some(other) = self.processes.iter().position(has) {
            self.deliveries.fail(format!("run {run} is leased, which process {other} has"));
        }
    }

    /// Whether a process has a run.
    pub(super) fn has(&self, pid: Pid, run: Run) -> bool {
        self.processes[pid].runs.iter().any(|(of, _)| *of == run)
    }

    /// The living process that has a run.
    pub(super) fn holder(&self, run: Run) -> Option<Pid> {
        (0..self.processes.len()).find(|pid| self.processes[*pid].is_alive && self.has(*pid, run))
    }

    /// The member that a living process is.
    pub fn member(&self, pid: Pid) -> Option<&Member<SimKernel>> {
        self.processes[pid].member.as_ref().filter(|_| self.processes[pid].is_alive)
    }

    /// Ends a process: by itself, so that it gives up its runs and says so, or at once.
    pub fn end(&mut self, pid: Pid, by_itself: bool) {
        let process = &mut self.processes[pid];
        if by_itself {
            drop(process.member.take());
        }
        (process.is_alive, process.is_stopped) = (false, false);
        process.queues.iter_mut().for_each(|queue| queue.arrived.clear());
        self.system.state().kill(process.kernel.pid);
        drop(process.member.take());
        self.end_links(pid);
    }

    /// Stops a process, or has it go on.
    pub fn stop(&mut self, pid: Pid, is_stopped: bool) {
        let (now, process) = (self.now, &mut self.processes[pid]);
        process.is_stopped = is_stopped;
        let ended = process.queues.iter_mut().flat_map(|queue| &mut queue.ended);
        ended.for_each(|(_, since)| *since = now);
        self.system.state().processes[self.processes[pid].kernel.pid].is_stopped = is_stopped;
    }

    /// The processes that live.
    pub fn alive(&self) -> Vec<Pid> {
        (0..self.processes.len()).filter(|pid| self.processes[*pid].is_alive).collect()
    }

    /// What a checker saw.
    pub fn failure(&mut self) -> Option<String> {
        self.deliveries.take_failure()
    }

    /// A number for a frame.
    pub(super) fn next_frame(&mut self) -> u64 {
        self.frames += 1;
        self.frames
    }

    /// Whether a run of this number is a process's own.
    pub(super) fn has_number(&self, pid: Pid, number: Qpn) -> bool {
        number.block().is_reserved() || self.has(pid, Run::of(number.block()))
    }
}
