//! The programs of the processes, on one seed: they listen and close, connect by connection management, talk in both directions, send
//! datagrams, and are killed, stopped and started anew at any step. And what comes of it: see [`run`].

mod choices;
mod connecting;
mod datagrams;
mod talking;

pub use choices::{Choices, Report};

use core::time::Duration;
use std::collections::BTreeMap;

use super::host::{Counts, Plant};
use super::world::{NETWORK_MTU, Process, World};
use crate::check::{self, Check, Tally};
use crate::flow::Flow;
use crate::node::{CqId, MrId, QpConfig, QpId};
use crate::rng::Rng;
use crate::swarm::rights;
use stack::cm::{ConnId, ListenId};
use stack::device::PeerCheck;
use stack::id::{Gid, QpType, Qpn};
use stack::mem::Access;
use stack::proto::responder::GRH_LEN;
use stack::time::Instant;

/// Index of the address of a host that its processes use.
const SGID_INDEX: u8 = 1;
/// Ports on which the processes of a host listen.
const PORTS: u16 = 3;
/// Time after which the end of a process must have been noticed by those of its host that run.
const NOTICED: Duration = Duration::from_millis(300);
/// Time after which a queue pair in ERR has flushed.
const FLUSHED: Duration = Duration::from_millis(5);
/// Virtual time in which everything ends that began, once nothing goes wrong any more.
const LIVENESS: Duration = Duration::from_secs(20);
/// Steps of a run at most.
const STEPS: u64 = 400_000;
/// Datagrams: bytes of the longest, and receives of a process.
const DATAGRAM: usize = 600;
const RECEIVES: usize = 16;

/// A process's program.
struct Program {
    cq: CqId,
    /// A word to which others add, and how often.
    board: MrId,
    tally: Tally,
    /// For datagrams.
    ud: QpId,
    buffers: MrId,
    services: BTreeMap<u16, ListenId>,
    /// When it goes on, while it is stopped; when it went on last.
    until: Instant,
    went_on: Instant,
    checks: Vec<(ConnId, PeerCheck)>,
}

/// What an end of a connection is doing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    /// It waits for the other one.
    Waiting,
    /// It is connected.
    Up,
    /// It is over: its queue pair is in ERR since then.
    Over(Instant),
    /// Nothing of it is left.
    Gone,
    /// Its process was killed.
    Dead,
}

/// An end of a connection.
struct End {
    process: Process,
    qp: QpId,
    id: ConnId,
    phase: Phase,
    /// Connection management has said that it is over, or the program has ended it.
    told: bool,
    /// By then the death of the other end's process must have been noticed.
    notices_by: Option<Instant>,
}

/// A connection.
struct Conn {
    began: Instant,
    /// The one that began it, and the other one, once that has accepted.
    ends: [Option<End>; 2],
    /// There and back, once both ends have a queue pair.
    flows: Option<[Flow; 2]>,
    may_end: bool,
    /// A process that had accepted it was killed.
    lost_one: bool,
}

/// A datagram.
struct Sent {
    to: Process,
    inside: bool,
    arrived: u64,
}

/// A request that waits for the program.
struct Asked {
    at: Instant,
    process: Process,
    id: ConnId,
    conn: usize,
}

struct Run {
    world: World,
    choices: Choices,
    rng: Rng,
    programs: Vec<Program>,
    conns: Vec<Conn>,
    asked: Vec<Asked>,
    datagrams: Vec<Sent>,
    /// When a process of a host was stopped, or killed, last.
    troubled: Vec<Instant>,
    is_calm: bool,
    report: Report,
}

/// Runs a seed. What is checked:
///
/// - every completion is that of its request, with the right data; what arrives at a process is for one of its queue pairs, once;
/// - no two living processes have the same run;
/// - a request that is repeated after its listener closed arrives where the first one went;
/// - when a process has ended, those of its host that were connected with it have no requests outstanding a moment later, and
///   connection management has told them;
/// - no other connection ends by itself, but between hosts of which a process was stopped or ended meanwhile: what was steered there
///   waits, or is lost;
/// - once nothing goes wrong any more, everything ends that began.
///
/// # Errors
/// What a checker saw, and what had happened before.
pub fn run(seed: u64) -> Result<Report, String> {
    let choices = Choices::draw(&mut Rng::new(seed));
    run_with(seed, &choices).map_err(|failure| {
        let trace = trace(seed, &choices);
        let tail = trace[trace.len().saturating_sub(400)..].join("\n");
        format!("{tail}\n{failure}")
    })
}

/// Runs a seed with something wrong on purpose.
///
/// # Errors
/// What a checker saw.
pub fn run_planted(seed: u64, plant: Plant) -> Result<Report, String> {
    let mut choices = Choices::draw(&mut Rng::new(seed));
    choices.weather.plant = Some(plant);
    // So that it makes a difference soon.
    (choices.kills, choices.weather.link_delay) = (5_000, Duration::from_micros(50));
    run_with(seed, &choices)
}

/// Runs a seed with the caller's choices.
///
/// # Errors
/// What a checker saw.
pub fn run_with(seed: u64, choices: &Choices) -> Result<Report, String> {
    let mut run = Run::new(seed, choices);
    let result = run.go();
    result.map(|()| run.report).map_err(|failure| format!("seed {seed}: {failure}"))
}

/// What happens in a run.
pub fn trace(seed: u64, choices: &Choices) -> Vec<String> {
    let mut run = Run::new(seed, choices);
    run.world.trace = Some(Vec::new());
    let _ = run.go();
    run.world.trace.take().unwrap_or_default()
}

impl Run {
    fn new(seed: u64, choices: &Choices) -> Self {
        let mut rng = Rng::new(seed ^ 0x5eed);
        Self {
            troubled: vec![Instant::ZERO; choices.processes.len()],
            world: World::new(rng.next(), choices.processes.len(), choices.weather, choices.conditions),
            choices: choices.clone(),
            rng,
            programs: Vec::new(),
            conns: Vec::new(),
            asked: Vec::new(),
            datagrams: Vec::new(),
            is_calm: false,
            report: Report::default(),
        }
    }

    fn go(&mut self) -> Check {
        for host in 0..self.choices.processes.len() {
            for _ in 0..self.choices.processes[host] {
                self.start(host);
            }
        }
        let mut steps = 0;
        while self.conns.len() < self.choices.connections || !self.is_over() {
            steps += 1;
            if steps >= STEPS / 4 && !self.is_calm {
                break;
            }
            self.turn()?;
            if self.conns.len() >= self.choices.connections && self.rng.one_in(2_000) {
                break;
            }
        }
        self.calm();
        let end = self.world.now.after(LIVENESS);
        while !self.is_over() {
            steps += 1;
            if self.world.now > end || steps > STEPS {
                let (busy, now) = (self.world.busy(), self.world.now);
                return Err(format!(
                    "not everything ended by {now:?}, in {steps} steps: {}; {busy}",
                    self.left()
                ));
            }
            self.turn()?;
        }
        self.finish()?;
        self.report.add("steps", steps);
        Ok(())
    }

    /// Nothing goes wrong from now on, and nothing new begins.
    fn calm(&mut self) {
        self.is_calm = true;
        self.world.heal();
        self.world.note(|| "nothing goes wrong any more".into());
        for process in self.world.alive(None) {
            if self.world.is_stopped(process) {
                self.go_on(process);
            }
        }
    }

    /// Whether nothing waits for anything.
    fn is_over(&self) -> bool {
        let is_done = |flow: &Flow| flow.left(self.choices.ops) == 0 && flow.sends.awaits_none();
        let settled = |conn: &Conn| {
            let is_settled = |side: usize| {
                let Some(end) = &conn.ends[side] else { return true };
                if end.notices_by.is_some() && end.phase != Phase::Dead {
                    return false;
                }
                match (end.phase, &conn.flows) {
                    (Phase::Gone | Phase::Dead, _) => true,
                    (Phase::Up, Some(flows))
                        if conn.ends[1 - side].as_ref().is_some_and(|end| end.phase == Phase::Dead) =>
                    {
                        // That of another host is missed when something is requested of it.
                        !self.are_neighbours(conn) && is_done(&flows[side])
                    }
                    (Phase::Up, Some(flows)) => is_done(&flows[side]) && flows[side].arrivals.missing() == 0,
                    _ => false,
                }
            };
            is_settled(0) && is_settled(1)
        };
        self.asked.is_empty() && self.conns.iter().all(settled)
    }

    /// Whether both ends of a connection are on one host.
    fn are_neighbours(&self, conn: &Conn) -> bool {
        let mut hosts = conn.ends.iter().flatten().map(|end| self.world.host_of(end.process));
        hosts.next() == hosts.next()
    }

    fn left(&self) -> String {
        let left = self.conns.iter().enumerate().filter(|(_, conn)| {
            !conn.ends.iter().flatten().all(|end| matches!(end.phase, Phase::Gone | Phase::Dead))
        });
        let left = left.map(|(at, conn)| {
            let ends: Vec<_> = conn.ends.iter().flatten().map(|end| (end.process, end.phase)).collect();
            let flows = conn.flows.iter().flatten();
            let flows: Vec<_> = flows
                .map(|f| (f.left(self.choices.ops), f.sends.outstanding(), f.arrivals.missing()))
                .collect();
            format!("{at}: {ends:?} {flows:?}")
        });
        left.collect::<Vec<_>>().join("; ")
    }

    /// What was written is what the requests wrote.
    fn finish(&mut self) -> Check {
        for conn in &self.conns {
            for flow in conn.flows.iter().flatten() {
                flow.matches(&self.world.nodes)?;
            }
        }
        for (process, program) in self.programs.iter().enumerate() {
            let node = &self.world.nodes[process];
            program.tally.matches(node.mr(program.board).word(0), false)?;
            check::guards(node)?;
        }
        for host in &self.world.hosts {
            let Counts {
                links,
                ends,
                by_links,
                by_sockets,
                passed_on,
                strayed,
                overflowed,
                full,
                vacant,
                repeated,
            } = host.lock().counts;
            for (what, n) in [
                ("links", links),
                ("ends of links", ends),
                ("frames by links", by_links),
                ("datagrams", by_sockets),
                ("passed on", passed_on),
                ("strayed", strayed),
                ("overflowed", overflowed),
                ("full rings", full),
                ("vacant runs", vacant),
                ("requests repeated after their listener closed", repeated),
            ] {
                self.report.add(what, n);
            }
        }
        Ok(())
    }

    /// Starts a process with its program.
    fn start(&mut self, host: usize) {
        let shards = self.rng.range(1, 2) as usize;
        let started = self.world.start(host, shards, |config| stack::cm::Config { ack_delay: 8, ..config });
        let Ok(process) = started else { return self.report.count("starts in vain") };
        self.report.count("starts");
        let now = self.world.now;
        let node = &mut self.world.nodes[process];
        let cq = node.create_cq(8192);
        let board = node.register(8, rights());
        node.mr(board).set_word(0, 0);
        let buffers = node.register((RECEIVES + 1) * (GRH_LEN + DATAGRAM), Access::LOCAL_WRITE);
        let config = QpConfig { ty: QpType::Ud, recv_depth: RECEIVES as u32, ..self.config() };
        let node = &mut self.world.nodes[process];
        let ud = node.create_qp(0, config, cq, cq);
        node.to_init(now, ud);
        node.to_rtr(now, ud, Gid::default(), Qpn::default());
        node.to_rts(now, ud);
        self.programs.push(Program {
            cq,
            board,
            tally: Tally::default(),
            ud,
            buffers,
            services: BTreeMap::new(),
            until: Instant::ZERO,
            went_on: Instant::ZERO,
            checks: Vec::new(),
        });
        for slot in 0..RECEIVES {
            self.receive_datagram(process, slot);
        }
        self.toggle_listener(process);
    }

    /// The queues of a new queue pair.
    fn config(&mut self) -> QpConfig {
        QpConfig {
            send_depth: 1 << self.rng.range(0, 4),
            recv_depth: 1 << self.rng.range(0, 4),
            mtu: NETWORK_MTU,
            access: rights(),
            ..QpConfig::default()
        }
    }

    /// One step of the world, and of all programs.
    fn turn(&mut self) -> Check {
        let limit = self.rng.range(500, if self.is_calm { 2_000_000 } else { 100_000 });
        self.world.step(Duration::from_nanos(limit))?;
        if !self.is_calm {
            self.trouble();
            self.begin();
        }
        for process in self.world.alive(None) {
            if self.world.runs(process) {
                self.events(process)?;
                self.poll(process)?;
            }
        }
        self.decide()?;
        for conn in 0..self.conns.len() {
            self.advance(conn)?;
        }
        Ok(())
    }

    /// Processes are killed, stopped and started.
    fn trouble(&mut self) {
        let now = self.world.now;
        for process in self.world.alive(None) {
            if self.world.is_stopped(process) && self.programs[process].until <= now {
                self.go_on(process);
            }
        }
        let alive = self.world.alive(None);
        if !alive.is_empty() && self.rng.ppm(self.choices.kills) {
            let process = self.rng.pick(&alive);
            self.end(process);
        }
        let running: Vec<Process> = alive.iter().copied().filter(|p| self.world.runs(*p)).collect();
        if !running.is_empty() && self.rng.ppm(self.choices.stops) {
            let process = self.rng.pick(&running);
            self.report.count("stops");
            self.programs[process].until =
                now.after_nanos(self.rng.below(self.choices.stopped_for.as_nanos() as u64));
            self.world.stop(process, true);
            self.troubled[self.world.host_of(process)] = now;
        }
        if self.rng.ppm(self.choices.starts) {
            let host = self.rng.below(self.choices.processes.len() as u64) as usize;
            if self.world.alive(Some(host)).len() < self.choices.processes[host] {
                self.start(host);
            }
        }
    }

    fn go_on(&mut self, process: Process) {
        let now = self.world.now;
        self.world.stop(process, false);
        self.programs[process].went_on = now;
        self.troubled[self.world.host_of(process)] = now;
    }

    fn end(&mut self, process: Process) {
        // One that is stopped does nothing by itself.
        let by_itself = !self.world.is_stopped(process) && self.rng.one_in(3);
        self.report.count(if by_itself { "exits" } else { "kills" });
        let now = self.world.now;
        self.world.end(process, by_itself);
        self.troubled[self.world.host_of(process)] = now;
        self.asked.retain(|asked| asked.process != process);
        for at in 0..self.conns.len() {
            for side in 0..2 {
                let conn = &mut self.conns[at];
                let end = conn.ends[side].as_mut().filter(|end| end.process == process);
                let Some(end) = end.filter(|end| end.phase != Phase::Dead) else { continue };
                if end.phase != Phase::Gone {
                    end.phase = Phase::Dead;
                    (conn.may_end, conn.lost_one) = (true, conn.lost_one || side == 1);
                    if let Some(flows) = &mut conn.flows {
                        flows[side].sender_gone();
                        flows[1 - side].receiver_gone();
                    }
                }
                self.must_notice(at, 1 - side);
            }
        }
    }

    /// The process of the other end has ended: if this one is connected and on the same host, it has to notice that.
    fn must_notice(&mut self, conn: usize, side: usize) {
        let now = self.world.now;
        let [Some(one), Some(other)] = [side, 1 - side].map(|side| self.conns[conn].ends[side].as_ref())
        else {
            return;
        };
        let is_here = self.world.host_of(one.process) == self.world.host_of(other.process);
        let is_dead = !self.world.is_alive(other.process);
        if one.phase == Phase::Up && is_dead && is_here {
            self.report.count("deaths to notice");
            if let Some(end) = &mut self.conns[conn].ends[side] {
                end.notices_by = Some(now.after(NOTICED));
            }
        }
    }

    /// Something begins: a connection, a datagram, a listener.
    fn begin(&mut self) {
        let running: Vec<Process> =
            self.world.alive(None).into_iter().filter(|process| self.world.runs(*process)).collect();
        if running.is_empty() {
            return;
        }
        let process = self.rng.pick(&running);
        match self.rng.below(64) {
            0..2 if self.conns.len() < self.choices.connections => self.connect(process),
            2..4 => self.send_datagram(process),
            4 => self.toggle_listener(process),
            _ => {}
        }
    }
}
