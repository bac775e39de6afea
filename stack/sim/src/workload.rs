//! A random run: one seed determines the set-up, the faults and the work, and every checker observes it.
//!
//! Phase 1 has the faults and must be safe. Phase 2 heals everything and must be live: every request completes within bounded virtual time.
//! Then the queue pairs are torn down: remaining requests are flushed, and nothing is left.

use core::fmt;
use core::time::Duration;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;

use super::check::{self, Check, Tally};
use super::conn::{Conn, Phase};
use super::flow::{Flow, Spoil};
use super::link::{Fault, Fired};
use super::lossy::Lossy;
use super::node::{CqId, MrId, Node, NodeConfig, QpConfig, QpId, remote_rights};
use super::rng::Rng;
use super::swarm::Swarm;
use super::world::{Record, Steering, World};
use stack::id::{QpState, QpType};
use stack::mark::{self, MARKS};
use stack::mem::Access;
use stack::proto::status::{AsyncEvent, WcOpcode, WcStatus, WrOpcode};
use stack::proto::wqe::Cqe;
use stack::shard::counters::CounterSnapshot;
use stack::time::Instant;

/// Virtual time within which all requests must complete once the links are healed.
const LIVENESS: Duration = Duration::from_secs(20);
/// Steps within which all requests must complete.
const STEPS: u64 = 2_000_000;

/// The results of a run.
#[derive(Clone, Copy, Debug)]
pub struct Report {
    /// Number of requests that completed with success.
    pub completed: u64,
    /// Number of connections that failed, as the faults allow.
    pub failed: u64,
    /// Steps of the world.
    pub steps: u64,
    /// Virtual time.
    pub time: Duration,
    /// Faults that happened.
    pub fired: Fired,
    /// Coverage marks that were hit.
    pub marks: [u64; MARKS],
    /// Sum of the counters of all nodes.
    pub counters: CounterSnapshot,
    /// Number of signalled requests that succeeded, by service type and opcode.
    pub done: [[u64; WR_OPCODES]; TYPES],
}

/// Number of opcodes.
const WR_OPCODES: usize = WrOpcode::RegMr as usize + 1;
/// Number of service types.
const TYPES: usize = QpType::ALL.len();

impl Default for Report {
    fn default() -> Self {
        Self {
            completed: 0,
            failed: 0,
            steps: 0,
            time: Duration::ZERO,
            fired: Fired::default(),
            marks: [0; MARKS],
            counters: CounterSnapshot::default(),
            done: Default::default(),
        }
    }
}

impl Report {
    /// Adds another run.
    pub fn add(&mut self, other: &Self) {
        self.completed += other.completed;
        self.failed += other.failed;
        self.steps += other.steps;
        self.time += other.time;
        self.fired.add(&other.fired);
        self.marks.iter_mut().zip(other.marks).for_each(|(a, b)| *a += b);
        self.counters += other.counters;
        let mine = self.done.iter_mut().flatten();
        mine.zip(other.done.into_iter().flatten()).for_each(|(a, b)| *a += b);
    }

    /// Number of signalled requests of this kind that succeeded on queue pairs of this type.
    pub fn done(&self, ty: QpType, opcode: WrOpcode) -> u64 {
        self.done[ty as usize][opcode as usize]
    }
}

/// The failure of a run, and how to reproduce it.
#[derive(Debug)]
pub struct Failure {
    /// The seed.
    pub seed: u64,
    /// The error of the checker.
    pub message: String,
    /// The choices of the seed.
    pub swarm: Swarm,
    /// The end of the trace.
    pub trace: String,
    /// The capture file and the whole trace, if they could be written.
    pub files: Option<[PathBuf; 2]>,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.trace)?;
        writeln!(f, "{:?}", self.swarm)?;
        if let Some([pcap, trace]) = &self.files {
            writeln!(f, "capture: {}\nwhole trace: {}", pcap.display(), trace.display())?;
        }
        writeln!(f, "seed {}: {}", self.seed, self.message)?;
        let test = "cargo test -p roce-stack --no-default-features --test all q60_seeds";
        write!(f, "to see it again: SIM_SEED={} {test}", self.seed)
    }
}

/// A planted fault, to test a checker.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Plant {
    /// Nothing.
    None,
    /// A byte of a remote target changes by itself.
    TargetByte,
    /// A word that atomics change is changed once more, by no request.
    Word,
    /// The word to which all queue pairs add is changed once more, by no request.
    Tally,
    /// A byte next to a region changes.
    Guard,
    /// A byte of a receive buffer changes before the message is checked.
    Received,
    /// A completion is reported twice.
    DoubleCompletion,
    /// A completion is lost.
    LostCompletion,
    /// Frame buffers are leaked.
    Leak,
    /// A frame is received that no counter accounts for.
    Uncounted,
    /// A deregistered region is written.
    DeadRegion,
    /// A byte of an unreliable message changes before it is checked.
    Unreliable,
    /// A word changes that an unreliable WRITE may have written.
    UnreliableWord,
    /// An XRC message is attributed to another queue.
    OtherQueue,
    /// A window that was invalidated is bound again.
    Window,
    /// The event of a completion queue that overflowed is ignored.
    EventsIgnored,
    /// No receives are posted any more.
    NoReceives,
}

/// Runs one seed. A seed that fails is run again with a trace and a capture.
pub fn run(seed: u64) -> Result<Report, Box<Failure>> {
    run_planted(seed, Plant::None)
}

/// Runs one seed with a planted fault.
pub fn run_planted(seed: u64, plant: Plant) -> Result<Report, Box<Failure>> {
    run_swarm(seed, &Swarm::draw(&mut Rng::new(seed)), plant)
}

/// Runs one seed with the caller's choices.
pub fn run_swarm(seed: u64, swarm: &Swarm, plant: Plant) -> Result<Report, Box<Failure>> {
    let attempt = |record: Option<Record>| {
        mark::take();
        let mut workload = Workload::new(seed, swarm.clone(), record, plant);
        let result = catch_unwind(AssertUnwindSafe(|| workload.go()));
        let result = result.unwrap_or_else(|panic| {
            let text = panic.downcast_ref::<String>().cloned();
            Err(text.or_else(|| panic.downcast_ref::<&str>().map(|s| (*s).into())).unwrap_or_default())
        });
        (result, workload)
    };
    let (result, _) = attempt(None);
    let Err(message) = result else { return result.map_err(|_| unreachable!()) };
    if plant != Plant::None {
        // A planted failure needs no trace.
        let swarm = swarm.clone();
        return Err(Box::new(Failure { seed, message, swarm, trace: String::new(), files: None }));
    }
    let (again, mut workload) = attempt(Some(Record::default()));
    let record = workload.world.record.take().unwrap_or_default();
    let name = |kind| std::env::temp_dir().join(format!("sim-{seed}.{kind}"));
    let files = [name("pcap"), name("txt")];
    let written =
        record.write_pcap(&files[0]).is_ok() && std::fs::write(&files[1], record.tail(usize::MAX)).is_ok();
    let files = written.then_some(files);
    let message = match again {
        Err(same) if same == message => message,
        other => format!("{message} (and when run again: {:?})", other.map(|_| "no failure")),
    };
    Err(Box::new(Failure { seed, message, swarm: workload.swarm.clone(), trace: record.tail(60), files }))
}

/// The trace of a run, for comparisons.
pub fn trace(seed: u64) -> Vec<String> {
    let swarm = Swarm::draw(&mut Rng::new(seed));
    let mut workload = Workload::new(seed, swarm, Some(Record::default()), Plant::None);
    let _ = workload.go();
    workload.world.record.take().map_or_else(Vec::new, |r| r.lines().to_vec())
}

/// A random run at work: its parts and its state.
pub(super) struct Workload {
    pub swarm: Swarm,
    pub world: World,
    pub rng: Rng,
    pub conns: Vec<Conn>,
    pub flows: Vec<Flow>,
    /// The UC and UD directions.
    pub lossy: Vec<Lossy>,
    pub cqs: Vec<CqId>,
    /// On each node, a region with the word to which every queue pair adds one.
    pub boards: Vec<MrId>,
    pub tallies: Vec<Tally>,
    pub report: Report,
    pub plant: Plant,
    pub planted: bool,
    /// Whether the faults are on.
    pub faulty: bool,
    pub teardown: bool,
    /// Until when a node's process is stopped.
    stopped_until: Instant,
    /// Until when each node's program does not poll.
    asleep: Vec<Instant>,
    /// Until when each flow's program posts no receives.
    dry: Vec<Instant>,
}

impl Workload {
    fn new(seed: u64, swarm: Swarm, record: Option<Record>, plant: Plant) -> Self {
        let mut rng = Rng::new(!seed);
        let config = |(i, shards): (usize, &usize)| NodeConfig {
            own_source_ports: i % 2 == 1,
            sees_stalls: true,
            index: i as u8,
            shards: *shards,
            ipv6: swarm.ipv6,
            vlan: swarm.vlan,
            mtu: swarm.qp.mtu,
            buffers: swarm.buffers,
            window: swarm.window,
            ..NodeConfig::default()
        };
        let mut world = World::new(rng.next(), swarm.shards.iter().enumerate().map(config).collect());
        world.record = record;
        world.steering = swarm.steering;
        let nodes = swarm.shards.len();
        let cqs = (0..nodes).map(|i| world.nodes[i].create_cq(4096)).collect();
        let boards = (0..nodes).map(|i| world.nodes[i].register(8, remote_rights())).collect();
        let mut workload = Self {
            stopped_until: Instant::ZERO,
            asleep: vec![Instant::ZERO; nodes],
            dry: vec![Instant::ZERO; 2 * swarm.conns.len()],
            swarm,
            world,
            rng,
            conns: Vec::new(),
            flows: Vec::new(),
            lossy: Vec::new(),
            cqs,
            boards,
            tallies: vec![Tally::default(); nodes],
            report: Report::default(),
            plant,
            planted: false,
            faulty: true,
            teardown: false,
        };
        for ends in workload.swarm.conns.clone() {
            workload.create(ends);
        }
        workload.create_lossy();
        // All nodes resolve each other's addresses before faults begin.
        workload.world.run_for(Duration::from_micros(100));
        for from in 0..nodes {
            for to in 0..nodes {
                workload.world.link(from, to).conditions = workload.swarm.conditions[from][to];
            }
        }
        workload
    }

    pub fn base(&self) -> Access {
        if self.swarm.zero_based { Access::ZERO_BASED } else { Access::empty() }
    }

    fn go(&mut self) -> Result<Report, String> {
        // Phase 1: safety, whatever happens.
        let mut steps = 0;
        while self.flows.iter().any(|f| f.left(self.swarm.ops) > 0) && steps < self.swarm.steps {
            steps += 1;
            self.turn()?;
            if Duration::from_nanos(self.world.now.as_nanos()) > self.swarm.time {
                break;
            }
        }
        // Phase 2: liveness.
        self.faulty = false;
        self.world.heal();
        self.world.note(0, || "everything is healed".into());
        let patience = if self.plant == Plant::None { LIVENESS } else { LIVENESS / 20 };
        let end = self.world.now.after(patience);
        while !self.over() {
            steps += 1;
            if self.world.now > end || steps > STEPS {
                let stuck = |f: &Flow| (f.qpn, f.sends.outstanding(), f.left(self.swarm.ops));
                let stuck: Vec<_> = self.flows.iter().map(stuck).collect();
                let phases: Vec<_> = self.conns.iter().map(|c| &c.phase).collect();
                return Err(format!("requests never complete on healed links: {stuck:?}, {phases:?}"));
            }
            self.turn()?;
        }
        self.quiesce(100)?;
        self.idle()?;
        self.lossy_arrive()?;
        self.teardown()?;
        self.report.steps = steps;
        self.report.time = Duration::from_nanos(self.world.now.as_nanos());
        self.report.fired = self.world.fired;
        self.report.marks = mark::take();
        for node in &self.world.nodes {
            self.report.counters += node.counters();
        }
        Ok(self.report)
    }

    /// Whether every connection works and has completed all requests.
    fn over(&self) -> bool {
        self.conns.iter().all(|c| matches!(c.phase, Phase::Live))
            && self.flows.iter().all(|f| f.left(self.swarm.ops) == 0 && f.sends.awaits_none())
    }

    /// Steps the world until no frame is on the links and the shards are quiet, then `extra` steps more.
    fn quiesce(&mut self, extra: usize) -> Check {
        for _ in 0..1_000_000 {
            self.world.step_within(Duration::from_millis(1))?;
            self.poll_all()?;
            if self.world.in_flight() == 0
                && self.world.nodes.iter().all(|n| n.shards(|s| s.quiet()).all(|quiet| quiet))
            {
                break;
            }
        }
        for _ in 0..extra {
            self.world.step_within(Duration::from_micros(1))?;
        }
        self.poll_all()
    }

    /// Checks that queue pairs without work stay in RTS for a while.
    fn idle(&mut self) -> Check {
        let end = self.world.now.after(Duration::from_secs(1));
        while self.world.now < end {
            self.world.step_within(Duration::from_millis(10))?;
        }
        self.poll_all()?;
        for flow in &self.flows {
            let state = self.world.nodes[flow.from].state(flow.qp);
            if state != QpState::Rts {
                return Err(format!("{:?} had nothing to do and is in {state:?}", flow.qpn));
            }
        }
        self.nothing_held()
    }

    /// Checks that no queue pair has bytes in flight: all of the ports' windows are free.
    fn nothing_held(&self) -> Check {
        let held = |node: &Node| node.shards(|shard| shard.bytes_in_flight()).find(|bytes| *bytes > 0);
        if let Some(bytes) = self.world.nodes.iter().find_map(held) {
            return Err(format!("{bytes} bytes count as in flight, and nothing is"));
        }
        Ok(())
    }

    fn teardown(&mut self) -> Check {
        let nodes = &self.world.nodes;
        for flow in &self.flows {
            flow.matches(nodes)?;
            if flow.arrivals.missing() > 0 {
                let missing = flow.arrivals.missing();
                return Err(format!("{:?}: {missing} messages completed and never arrived", flow.qpn));
            }
        }
        for (i, tally) in self.tallies.iter().enumerate() {
            let to_it = |c: &&Conn| c.ends.iter().any(|e| e.node == i);
            let all = self.conns.iter().filter(to_it).all(|c| c.lives == 1);
            tally.matches(nodes[i].mr(self.boards[i]).word(0), all).map_err(|e| format!("node {i}: {e}"))?;
        }
        self.world.check(true)?;
        // In ERR all requests are flushed, also those that are posted then.
        self.teardown = true;
        for i in 0..self.conns.len() {
            self.break_ends(i)?;
        }
        for end in self.lossy_ends() {
            let now = self.world.now;
            let node = &mut self.world.nodes[end.0];
            node.modify_state(now, end.1, QpState::Err).map_err(|e| e.to_string())?;
        }
        for flow in &mut self.flows {
            flow.post_receives(&mut self.world.nodes, &mut self.rng, 1);
            flow.post_to_flush(&mut self.world.nodes);
        }
        self.quiesce(10)?;
        for flow in &self.flows {
            flushed(flow, &self.world.nodes)?;
        }
        if let Some(l) = self.lossy.iter().find(|l| l.sends.outstanding() + l.receives.outstanding() > 0) {
            return Err(format!("{:?} is in ERR and did not flush everything", l.qpn));
        }
        self.nothing_held()?;
        self.world.check(true)?;
        // Without queue pairs nothing is left: no timer, no frame, no request.
        for i in 0..self.conns.len() {
            for end in self.conns[i].ends.clone() {
                self.world.nodes[end.node].destroy(end.qp);
            }
        }
        for end in self.lossy_ends() {
            self.world.nodes[end.0].destroy(end.1);
        }
        self.quiesce(10)?;
        self.world.check(true)?;
        self.world.nodes.iter().try_for_each(check::nothing_left)
    }

    /// Creates the UC and UD queue pairs, and posts a first message on each, to resolve addresses.
    fn create_lossy(&mut self) {
        for (ty, a, b) in self.swarm.lossy.clone() {
            let config = QpConfig { ty, rq_psn: self.swarm.qp.sq_psn, ..self.swarm.qp };
            let ends = [a, b].map(|node| {
                let shard = self.rng.below(self.swarm.shards[node] as u64) as usize;
                (node, self.world.nodes[node].create_qp(shard, config, self.cqs[node], self.cqs[node]))
            });
            self.world.link_up(ends[0], ends[1]);
            let mtu = config.mtu.bytes();
            let max = if ty == QpType::Ud { mtu } else { self.swarm.max_len.max(mtu) };
            for (from, to) in [(ends[0], ends[1]), (ends[1], ends[0])] {
                let mut lossy = Lossy::new(&mut self.world.nodes, from, to, max, self.rng.next());
                let conditions = self.swarm.conditions[from.0][to.0];
                let wild = [Fault::Duplicate, Fault::LateDuplicate, Fault::Reorder];
                // Frames of one queue pair that arrive on several queues overtake each other.
                lossy.numbers.tame = self.swarm.steering != Steering::Random
                    && wild.iter().all(|fault| conditions.rate(*fault) == 0);
                lossy.post_receives(&mut self.world.nodes);
                lossy.post(&mut self.world.nodes);
                self.lossy.push(lossy);
            }
        }
    }

    fn lossy_ends(&self) -> Vec<(usize, QpId)> {
        self.lossy.iter().map(|l| (l.from, l.qp)).collect()
    }

    fn post_lossy(&mut self) {
        for l in &mut self.lossy {
            let rng = &mut self.rng;
            if self.faulty && rng.one_in(2) {
                continue;
            }
            if self.dry.first().is_none_or(|until| *until <= self.world.now) {
                l.post_receives(&mut self.world.nodes);
            }
            if l.posted < 2 * self.swarm.ops {
                l.post(&mut self.world.nodes);
            }
        }
    }

    /// Checks that nothing is lost on healed links, with receives posted: a message of each pair must arrive.
    fn lossy_arrive(&mut self) -> Check {
        self.world.steering = Steering::ByQpn; // no frame overtakes another
        let before: Vec<u64> = self.lossy.iter().map(|l| l.numbers.arrived).collect();
        for l in &mut self.lossy {
            l.post_receives(&mut self.world.nodes);
            if l.sends.outstanding() > 0 || !l.post_as(&mut self.world.nodes, WrOpcode::SendWithImm) {
                return Err(format!("{:?} did not complete {} sends", l.qpn, l.sends.outstanding()));
            }
        }
        self.quiesce(100)?;
        self.lossy.iter().try_for_each(|l| l.places(&self.world.nodes))?;
        match self.lossy.iter().zip(before).find(|(l, before)| l.numbers.arrived == *before) {
            Some((l, _)) => Err(format!("a message of {:?} is lost on healed links", l.qpn)),
            None => Ok(()),
        }
    }

    /// Makes one step of the world, and lets the programs react.
    fn turn(&mut self) -> Check {
        // The program continues by itself while it has work.
        let random = self.faulty;
        let limit = if random { Duration::from_nanos(self.rng.range(500, 50_000)) } else { Duration::MAX };
        let waits = self.conns.iter().any(|c| !matches!(c.phase, Phase::Live));
        let limit = if waits { limit.min(Duration::from_micros(50)) } else { limit };
        // It does not sleep until the next timer either, which may be a minute away, while it has requests to post.
        let posts = self.flows.iter().any(|f| f.left(self.swarm.ops) > 0);
        let limit = if posts { limit.min(Duration::from_millis(1)) } else { limit };
        self.world.step_within(limit)?;
        self.program_faults();
        self.poll()?;
        for i in 0..self.conns.len() {
            self.advance(i)?;
        }
        for i in 0..self.flows.len() {
            let conn = self.conn_of(i);
            if !matches!(self.conns[conn].phase, Phase::Live | Phase::Draining { .. }) {
                continue;
            }
            let flow = &mut self.flows[i];
            if self.dry[i] <= self.world.now {
                let n = if random { self.rng.range(1, 4) } else { u64::MAX };
                flow.post_receives(&mut self.world.nodes, &mut self.rng, n);
            }
            let n = if random { self.rng.below(4) } else { u64::MAX };
            for _ in 0..n {
                let tally = (self.boards[flow.to], &mut self.tallies[flow.to]);
                let ops = self.swarm.ops;
                match flow.post(&mut self.world.nodes, &mut self.rng, ops, tally) {
                    Some(what) => self.world.note(flow.from, || what),
                    None => break,
                }
            }
        }
        for i in 0..self.flows.len() {
            self.tend_window(i);
        }
        self.post_lossy();
        self.spoil();
        self.world.check(false)
    }

    /// Makes the program's next step for a flow's window: binds it, stops its use, or invalidates it.
    fn tend_window(&mut self, i: usize) {
        let Some(binder) = self.flows[i].binder else { return };
        if !matches!(self.conns[self.conn_of(i)].phase, Phase::Live) || !self.rng.one_in(4) {
            return;
        }
        let flow = &mut self.flows[i];
        let (target, len) = (self.world.nodes[flow.to].mr(flow.mrs.target), flow.target_len());
        if self.rng.one_in(3) {
            flow.window.close();
        }
        let Some((request, next)) = flow.window.next(&mut self.rng, target, len) else { return };
        let ops = self.swarm.ops;
        if self.flows[binder].post_local(&mut self.world.nodes, ops, i, &request) {
            self.flows[i].window = next;
            self.world.note(self.flows[binder].from, || format!("post {}", request.name()));
        }
    }

    /// Handles completed requests about the windows of other flows.
    fn complete_windows(&mut self, binder: usize) -> Check {
        for i in core::mem::take(&mut self.flows[binder].changed_windows) {
            let flow = &mut self.flows[i];
            let revive = self.plant == Plant::Window && !self.planted;
            let (node, mr) = (&self.world.nodes[flow.to], flow.mrs.target);
            self.planted |= flow.window.request_completed(node, flow.peer_qpn, mr, revive)?;
        }
        Ok(())
    }

    /// Begins faults of programs: a process is stopped, or a program stops polling or posting receives.
    fn program_faults(&mut self) {
        self.stop_a_process();
        if !self.faulty {
            self.asleep.fill(Instant::ZERO);
            self.dry.fill(if self.plant == Plant::NoReceives { Instant::FAR } else { Instant::ZERO });
            return;
        }
        let now = self.world.now;
        for node in 0..self.asleep.len() {
            let rate = self.swarm.program(node, Fault::SlowConsumer);
            if self.asleep[node] <= now && self.rng.ppm(rate) {
                self.asleep[node] = now.after_nanos(self.rng.range(1_000, 300_000));
                self.world.fired.count(Fault::SlowConsumer);
            }
        }
        for i in 0..self.flows.len() {
            let rate = self.swarm.program(self.flows[i].to, Fault::FewReceives);
            if self.dry[i] <= now && self.rng.ppm(rate) {
                self.dry[i] = now.after_nanos(self.rng.range(1_000, 300_000));
                self.world.fired.count(Fault::FewReceives);
            }
        }
    }

    /// Stops one process at a time, for up to a hundred ACK timeouts, and continues it.
    fn stop_a_process(&mut self) {
        let now = self.world.now;
        if !self.faulty || self.stopped_until <= now {
            self.world.stopped = None;
        }
        if !self.faulty || self.world.stopped.is_some() {
            return;
        }
        for node in 0..self.asleep.len() {
            let rate = self.swarm.program(node, Fault::Stopped);
            if self.rng.ppm(rate) {
                self.world.stopped = Some(node);
                self.stopped_until = now.after_nanos(self.rng.range(100_000, 50_000_000));
                self.world.fired.count(Fault::Stopped);
                return;
            }
        }
    }

    /// Polls the completion queues of the programs that are awake.
    fn poll(&mut self) -> Check {
        let (now, stopped) = (self.world.now, self.world.stopped);
        let runs = |node: &usize| stopped != Some(*node) && self.asleep[*node] <= now;
        let awake: Vec<usize> = (0..self.cqs.len()).filter(runs).collect();
        self.poll_nodes(&awake)
    }

    /// Polls every completion queue.
    pub fn poll_all(&mut self) -> Check {
        let all: Vec<usize> = (0..self.cqs.len()).collect();
        self.poll_nodes(&all)
    }

    /// Handles receive completions first, because an acknowledgement follows the message.
    fn poll_nodes(&mut self, nodes: &[usize]) -> Check {
        let mut all = Vec::new();
        let failed: Vec<_> = nodes.iter().flat_map(|node| self.failed_queues(*node)).collect();
        for &node in nodes {
            let own = self.conns.iter().flat_map(|c| &c.ends).filter(|e| e.node == node && e.tight);
            for cq in own.map(|e| e.cq).chain([self.cqs[node]]).collect::<Vec<_>>() {
                let cqes = self.world.nodes[node].poll_cq(cq, usize::MAX);
                all.extend(cqes.into_iter().map(|cqe| (node, cqe)));
            }
        }
        if !self.planted && !all.is_empty() && self.world.now > Instant::from_nanos(1_150_000) {
            match self.plant {
                Plant::DoubleCompletion => {
                    self.planted = true;
                    all.push(all[0]);
                }
                Plant::LostCompletion => {
                    self.planted = true;
                    all.remove(0);
                }
                _ => {}
            }
        }
        let is_recv = |cqe: &Cqe| cqe.opcode.is_recv();
        for (node, cqe) in &all {
            let status = check::status(cqe);
            self.world.note(*node, || {
                let kind = if is_recv(cqe) { "receive" } else { "send" };
                format!("cqe  {kind} {} of {:#x}: {status:?}", cqe.wr_id, cqe.qpn.get())
            });
        }
        for (node, cqe) in all.iter().filter(|(_, c)| is_recv(c)) {
            self.received(*node, cqe).map_err(|e| format!("queue pair {:#x}: {e}", cqe.qpn.get()))?;
        }
        for (node, cqe) in all.iter().filter(|(_, c)| !is_recv(c)) {
            self.sent(*node, cqe).map_err(|e| format!("queue pair {:#x}: {e}", cqe.qpn.get()))?;
        }
        for &node in nodes {
            for (event, of) in self.world.nodes[node].events() {
                if !matches!(event, AsyncEvent::CqErr | AsyncEvent::QpFatal)
                    || self.plant == Plant::EventsIgnored
                {
                    continue;
                }
                self.world.note(node, || format!("{event:?} of {of:?}"));
                self.overflow(node, event, of)?;
            }
        }
        for (i, k) in failed {
            self.polled_to_the_end(i, k);
        }
        Ok(())
    }

    fn received(&mut self, node: usize, cqe: &Cqe) -> Check {
        let qpn = cqe.qpn;
        if let Some(l) = self.lossy.iter_mut().find(|l| l.to == node && l.peer_qpn == qpn) {
            let seen = &self.world.datagrams;
            let holds_bytes = cqe.byte_len > 0 && cqe.opcode == WcOpcode::Recv;
            if self.plant == Plant::Unreliable && !self.planted && holds_bytes {
                self.planted = true;
                l.spoil(&self.world.nodes);
            }
            let inside = l.from == l.to; // these frames do not cross a link
            let frames = |n| if inside { 1 } else { seen.get(&(node, qpn, n)).copied().unwrap_or(0) };
            return l.received(&self.world.nodes, cqe, self.teardown, frames);
        }
        let i = self.flows.iter().position(|f| f.to == node && f.peer_qpn == cqe.qpn);
        let i = i.ok_or("a completion of a queue pair that is not ours")?;
        let conn = self.conn_of(i);
        let allowed = self.conns[conn].allowed(self.teardown);
        let spoil = match self.plant {
            Plant::Received if !self.planted => Some(Spoil::Byte),
            Plant::OtherQueue if !self.planted => Some(Spoil::Queue),
            _ => None,
        };
        self.planted |= self.flows[i].received(&self.world.nodes, cqe, &allowed, spoil)?;
        if check::status(cqe) != WcStatus::Success {
            self.broken(conn);
        }
        Ok(())
    }

    fn sent(&mut self, node: usize, cqe: &Cqe) -> Check {
        if let Some(l) = self.lossy.iter_mut().find(|l| l.from == node && l.qpn == cqe.qpn) {
            if let Some(opcode) = l.sent(cqe, self.teardown)? {
                self.report.done[l.ty as usize][opcode as usize] += 1;
            }
            return Ok(());
        }
        let i = self.flows.iter().position(|f| f.from == node && f.qpn == cqe.qpn);
        let i = i.ok_or("a completion of a queue pair that is not ours")?;
        let conn = self.conn_of(i);
        let allowed = self.conns[conn].allowed(self.teardown);
        let flow = &mut self.flows[i];
        let tally = &mut self.tallies[flow.to];
        let done = flow.sent(&self.world.nodes, cqe, tally, &allowed)?;
        self.report.completed += done.requests;
        if let Some(opcode) = done.opcode {
            self.report.done[flow.config.ty as usize][opcode as usize] += 1;
        }
        self.complete_windows(i)?;
        if check::status(cqe) != WcStatus::Success {
            self.broken(conn);
        }
        Ok(())
    }

    /// Plants the fault, once a message has arrived.
    fn spoil(&mut self) {
        if self.planted || self.flows[0].arrivals.arrived == 0 {
            return;
        }
        let flow = &self.flows[0];
        let done = flow.left(self.swarm.ops) == 0 && flow.sends.awaits_none();
        let node = &self.world.nodes[flow.to];
        let target = node.mr(flow.mrs.target);
        let last_word = target.len() - 8;
        match self.plant {
            Plant::TargetByte if done => target.write(3, &[!target.read(3, 1)[0]]),
            Plant::Word if done => target.set_word(last_word, target.word(last_word).wrapping_add(1)),
            Plant::Tally if done => {
                let board = node.mr(self.boards[flow.to]);
                board.set_word(0, board.word(0) + 1);
            }
            Plant::UnreliableWord if done && !self.lossy.is_empty() => {
                self.lossy[0].spoil_word(&self.world.nodes);
            }
            Plant::Guard => target.spoil_guard(),
            Plant::Leak => {
                // As if frames were taken from the ring and lost, for example by an ignored return code.
                for _ in 0..4 {
                    node.wires[0].lose_a_buffer();
                }
            }
            Plant::Uncounted => {
                node.shared.counters[0].add(stack::shard::counters::Counter::RxFrames, 1);
                self.world.delivered[flow.to] += 1;
            }
            _ => return,
        }
        self.planted = true;
    }
}

/// Checks that nothing is outstanding on a flow in ERR.
pub(super) fn flushed(flow: &Flow, nodes: &[Node]) -> Check {
    let receives = flow.receives_left(nodes);
    if flow.sends.outstanding() + receives > 0 {
        return Err(format!(
            "{:?} is in ERR and did not flush {} sends and {} receives of its peer",
            flow.qpn,
            flow.sends.outstanding(),
            receives
        ));
    }
    Ok(())
}
