//! A random run: one seed decides the set-up, the faults and the work, and every checker looks on.
//!
//! Phase 1 has the faults and must be safe. Phase 2 heals everything and must end: every request completes
//! within bounded virtual time. Then the queue pairs are torn down and everything left must be flushed.

use core::fmt;
use core::time::Duration;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;

use super::check::{self, Arrivals, Check, Completions, FlatMemory, FlatWord, Message};
use super::link::{FAULTS, Fault, Fired, Plan};
use super::memory::Region;
use super::node::{CqId, MrId, NodeConfig, QpConfig, QpId, SendWr, remote_rights};
use super::rng::Rng;
use super::world::{Record, Steering, World};
use crate::id::{Mtu, QpState, Qpn};
use crate::mem::{Access, Sge};
use crate::proto::status::{SendFlags, WcFlags, WcOpcode, WcStatus, WrOpcode};
use crate::proto::wqe::Cqe;
use crate::shard::counters::CounterSnapshot;
use crate::time::Instant;

/// What memory holds that nobody has written.
const BLANK: u8 = 0xa5;
/// Words of a flow that atomics change.
const WORDS: usize = 3;
/// Room around the elements of a scattered buffer.
const GAPS: usize = 64;
/// Virtual time in which everything must be over once the links are healed.
const LIVENESS: Duration = Duration::from_secs(20);
/// Steps in which it must be over.
const STEPS: u64 = 2_000_000;

/// The choices of a seed.
#[derive(Clone, Debug)]
pub struct Swarm {
    /// Shards of each node.
    pub shards: [usize; 2],
    /// How frames find queues.
    pub steering: Steering,
    /// IPv6 instead of IPv4.
    pub ipv6: bool,
    /// Queue pairs on each node.
    pub pairs: usize,
    /// Every queue pair.
    pub qp: QpConfig,
    /// The links, from node 0 and from node 1.
    pub plans: [Plan; 2],
    /// Requests of each direction of each pair.
    pub ops: u64,
    /// Bytes of a message at most.
    pub max_len: usize,
    /// Regions are named by offsets.
    pub zero_based: bool,
    /// Queue pairs may run out of retries.
    pub may_fail: bool,
    /// Steps in 8 after which a program posts or polls: a slow one lets queues run full.
    pub eagerness: u64,
}

impl Swarm {
    /// What `rng` chooses.
    pub fn draw(rng: &mut Rng) -> Self {
        let mtu = rng.pick(&Mtu::ALL);
        let mut plan = Plan { delay: Duration::from_nanos(rng.range(500, 8_000)), ..Plan::CLEAN };
        let mut harsh = false;
        // Swarm: each fault is in half of the runs, rare in most of those, frequent in some.
        for (i, fault) in Fault::ALL.iter().enumerate() {
            if rng.one_in(2) {
                continue;
            }
            plan.ppm[i] = match fault {
                Fault::Partition => rng.pick(&[0, 0, 0, 500]),
                Fault::Blackhole => rng.pick(&[0, 500, 3_000]),
                Fault::TxFull | Fault::NoBuffer => rng.pick(&[200, 2_000, 10_000]),
                _ => rng.pick(&[1_000, 10_000, 10_000, 60_000]),
            };
            harsh |= match fault {
                Fault::Partition | Fault::Blackhole => plan.ppm[i] > 0,
                Fault::Loss | Fault::Corrupt | Fault::Truncate => plan.ppm[i] > 10_000,
                _ => false,
            };
        }
        plan.hole = Duration::from_micros(rng.pick(&[20, 200, 2_000]));
        plan.jitter = Duration::from_micros(rng.pick(&[1, 5, 20]));
        plan.late = Duration::from_micros(rng.pick(&[100, 1_000, 20_000]));
        plan.stall = Duration::from_micros(rng.pick(&[1, 10, 100, 1_500]));
        let mut plans = [plan; 2];
        if rng.one_in(4) {
            plans[rng.below(2) as usize].ppm = [0; FAULTS];
        }
        let depth = |rng: &mut Rng| 1 << rng.range(0, 5);
        let slots = rng.pick(&[1, 2, 4, 16]);
        Self {
            shards: [rng.range(1, 4) as usize, rng.range(1, 4) as usize],
            steering: rng.pick(&[Steering::ByQpn, Steering::Hash, Steering::Random]),
            ipv6: rng.one_in(3),
            pairs: rng.range(1, 3) as usize,
            qp: QpConfig {
                send_depth: depth(rng),
                recv_depth: depth(rng),
                mtu,
                timeout: rng.range(7, 10) as u8,
                retry_cnt: 7,
                rnr_retry: 7,
                min_rnr_timer: rng.range(1, 14) as u8,
                max_rd_atomic: rng.range(1, u64::from(slots)) as u8,
                max_dest_rd_atomic: slots,
                sq_psn: if rng.one_in(2) { 0xff_fff0 } else { rng.next() as u32 & 0xff_ffff },
                sq_sig_all: rng.one_in(4),
                ..QpConfig::default()
            },
            plans,
            ops: rng.range(10, 60),
            max_len: mtu.bytes() * rng.range(1, 5) as usize + rng.below(7) as usize,
            zero_based: rng.one_in(3),
            may_fail: harsh,
            eagerness: rng.pick(&[1, 4, 8]),
        }
    }
}

/// What a run did.
#[derive(Clone, Copy, Default, Debug)]
pub struct Report {
    /// Requests that completed with success.
    pub completed: u64,
    /// Queue pairs that failed, as the faults allowed.
    pub failed: u64,
    /// Steps of the world.
    pub steps: u64,
    /// Virtual time.
    pub time: Duration,
    /// Faults that happened.
    pub fired: Fired,
    /// Counters of both nodes.
    pub counters: CounterSnapshot,
}

/// What went wrong in a run, and how to see it again.
#[derive(Debug)]
pub struct Failure {
    /// The seed.
    pub seed: u64,
    /// The complaint.
    pub message: String,
    /// The choices of the seed.
    pub swarm: Swarm,
    /// The end of the trace.
    pub trace: String,
    /// The capture file, if it could be written.
    pub pcap: Option<PathBuf>,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.trace)?;
        writeln!(f, "{:?}", self.swarm)?;
        if let Some(path) = &self.pcap {
            writeln!(f, "capture: {}", path.display())?;
        }
        write!(f, "SIM_SEED={}: {}", self.seed, self.message)
    }
}

/// Something planted to see whether a checker notices.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Plant {
    /// Nothing.
    None,
    /// A byte of a remote target changes by itself.
    TargetByte,
    /// A byte next to a region changes.
    Guard,
    /// A byte of a receive buffer changes before the message is looked at.
    Received,
    /// A completion is seen twice.
    DoubleCompletion,
    /// A completion is lost.
    LostCompletion,
    /// A frame is kept for ever.
    Leak,
}

/// Runs one seed. A seed that fails is run again with a trace and a capture.
pub fn run(seed: u64) -> Result<Report, Box<Failure>> {
    run_planted(seed, Plant::None)
}

/// Runs one seed with something planted in it.
pub fn run_planted(seed: u64, plant: Plant) -> Result<Report, Box<Failure>> {
    let attempt = |record: Option<Record>| {
        let mut run = Run::new(seed, record, plant);
        let result = catch_unwind(AssertUnwindSafe(|| run.go()));
        let result = result.unwrap_or_else(|panic| {
            let text = panic.downcast_ref::<String>().cloned();
            Err(text.or_else(|| panic.downcast_ref::<&str>().map(|s| (*s).into())).unwrap_or_default())
        });
        (result, run)
    };
    let (result, _) = attempt(None);
    let Err(message) = result else { return result.map_err(|_| unreachable!()) };
    let (again, mut run) = attempt(Some(Record::default()));
    let record = run.world.record.take().unwrap_or_default();
    let path = std::env::temp_dir().join(format!("sim-{seed}.pcap"));
    let pcap = (plant == Plant::None && record.write_pcap(&path).is_ok()).then_some(path);
    let message = match again {
        Err(same) if same == message => message,
        other => format!("{message} (and when run again: {:?})", other.map(|_| "no failure")),
    };
    Err(Box::new(Failure { seed, message, swarm: run.swarm.clone(), trace: record.tail(60), pcap }))
}

/// The trace of a run, for comparisons.
pub fn trace(seed: u64) -> Vec<String> {
    let mut run = Run::new(seed, Some(Record::default()), Plant::None);
    let _ = run.go();
    run.world.record.take().map_or_else(Vec::new, |r| r.lines().to_vec())
}

#[derive(Clone, Debug)]
enum Kind {
    Send,
    Write,
    Read { offset: usize },
    Atomic { word: usize },
}

#[derive(Clone, Debug)]
struct Op {
    wr_id: u64,
    kind: Kind,
    /// Where a READ or atomic puts its bytes, in the sink.
    sink: Layout,
}

/// A buffer in pieces, in a slot of its own.
#[derive(Clone, Default, Debug)]
struct Layout {
    slot: usize,
    pieces: Vec<(usize, usize)>,
}

impl Layout {
    /// Cuts `len` bytes of slot `slot` into up to `max` pieces with gaps between them.
    fn draw(rng: &mut Rng, slot: usize, slot_len: usize, len: usize, max: usize) -> Self {
        let n = rng.range(1, max as u64) as usize;
        let mut pieces = Vec::new();
        let (mut at, mut left) = (slot * slot_len + rng.below(8) as usize, len);
        for i in 0..n {
            let part = if i + 1 == n { left } else { rng.below(left as u64 + 1) as usize };
            pieces.push((at, part));
            at += part + rng.below(8) as usize;
            left -= part;
        }
        Self { slot, pieces }
    }

    fn sges(&self, region: &Region, rng: &mut Rng) -> Vec<Sge> {
        let sge = |&(at, len): &(usize, usize)| {
            let mut sge = region.sge(at, len);
            if len == 0 && rng.one_in(2) {
                sge.lkey = 0xdead_beef; // nobody looks at the key of no bytes
            }
            sge
        };
        self.pieces.iter().map(sge).collect()
    }

    /// The first `len` bytes of the buffer. An error if anything else in the slot was written.
    fn gather(&self, region: &Region, slot_len: usize, len: usize) -> Result<Vec<u8>, String> {
        let base = self.slot * slot_len;
        let whole = region.read(base, slot_len);
        let mut granted = vec![false; slot_len];
        let mut out = Vec::new();
        for &(at, part) in &self.pieces {
            for i in 0..part.min(len - out.len()) {
                granted[at - base + i] = true;
                out.push(whole[at - base + i]);
            }
        }
        match whole.iter().zip(granted).position(|(byte, granted)| !granted && *byte != BLANK) {
            Some(at) => Err(format!("byte {} of a buffer was written, outside of the message", base + at)),
            None => Ok(out),
        }
    }
}

/// One direction of a connection.
struct Flow {
    from: usize,
    to: usize,
    qp: QpId,
    peer: QpId,
    qpn: Qpn,
    peer_qpn: Qpn,
    src: MrId,
    sink: MrId,
    target: MrId,
    recv: MrId,
    posted: u64,
    sends: Completions,
    receives: Completions,
    receives_posted: u64,
    buffers: VecDeque<(u64, Layout)>,
    free: Vec<usize>,
    ops: VecDeque<Op>,
    memory: FlatMemory,
    words: Vec<FlatWord>,
    arrivals: Arrivals,
}

struct Run {
    swarm: Swarm,
    world: World,
    rng: Rng,
    flows: Vec<Flow>,
    cqs: [CqId; 2],
    report: Report,
    plant: Plant,
    planted: bool,
    teardown: bool,
}

impl Run {
    fn new(seed: u64, record: Option<Record>, plant: Plant) -> Self {
        let mut rng = Rng::new(seed);
        let swarm = Swarm::draw(&mut rng);
        let configs = [0, 1].map(|i| NodeConfig {
            index: i as u8,
            shards: swarm.shards[i],
            ipv6: swarm.ipv6,
            ..NodeConfig::default()
        });
        let mut world = World::new(rng.next(), configs.to_vec());
        world.record = record;
        world.steering = swarm.steering;
        let cqs = [0, 1].map(|i| world.nodes[i].create_cq(4096));
        let mut run = Self {
            swarm,
            world,
            rng,
            flows: Vec::new(),
            cqs,
            report: Report::default(),
            plant,
            planted: false,
            teardown: false,
        };
        for _ in 0..run.swarm.pairs {
            run.connect();
        }
        for (node, plan) in run.swarm.plans.into_iter().enumerate() {
            run.world.link(node, 1 - node).plan = plan;
        }
        run
    }

    fn slot_len(&self) -> usize {
        (self.swarm.max_len + GAPS).next_multiple_of(8)
    }

    fn target_len(&self) -> usize {
        (2 * self.swarm.max_len + 64).next_multiple_of(8)
    }

    /// A pair of queue pairs, and the memory of both directions.
    fn connect(&mut self) {
        let shards = self.swarm.shards;
        let mut config = self.swarm.qp;
        // Each side starts where it likes; the other side is told.
        let psns = [config.sq_psn, self.rng.next() as u32 & 0xff_ffff];
        let qps = [0, 1].map(|node| {
            (config.sq_psn, config.rq_psn) = (psns[node], psns[1 - node]);
            let shard = self.rng.below(shards[node] as u64) as usize;
            self.world.nodes[node].create_qp(shard, config, self.cqs[node], self.cqs[node])
        });
        self.world.connect((0, qps[0]), (1, qps[1]));
        let (slot_len, target_len) = (self.slot_len(), self.target_len());
        let base = if self.swarm.zero_based { Access::ZERO_BASED } else { Access::empty() };
        for from in 0..2 {
            let to = 1 - from;
            let nodes = &mut self.world.nodes;
            let src = nodes[from].register(4 * self.swarm.max_len + 64, base);
            let sink =
                nodes[from].register(slot_len * config.send_depth as usize, base | Access::LOCAL_WRITE);
            let target = nodes[to].register(target_len + 8 * WORDS, base | remote_rights());
            let recv = nodes[to].register(slot_len * config.recv_depth as usize, base | Access::LOCAL_WRITE);
            let bytes = self.rng.bytes(nodes[from].mr(src).len());
            nodes[from].mr(src).write(0, &bytes);
            let start = self.rng.bytes(target_len);
            nodes[to].mr(target).write(0, &start);
            for mr in [nodes[from].mr(sink), nodes[to].mr(recv)] {
                mr.fill(0, mr.len(), BLANK);
            }
            self.flows.push(Flow {
                from,
                to,
                qp: qps[from],
                peer: qps[to],
                qpn: nodes[from].qp(qps[from]).qpn,
                peer_qpn: nodes[to].qp(qps[to]).qpn,
                src,
                sink,
                target,
                recv,
                posted: 0,
                sends: Completions::default(),
                receives: Completions::default(),
                receives_posted: 0,
                buffers: VecDeque::new(),
                free: (0..config.recv_depth as usize).collect(),
                ops: VecDeque::new(),
                memory: FlatMemory::new(start),
                words: vec![FlatWord::default(); WORDS],
                arrivals: Arrivals::default(),
            });
        }
    }

    fn go(&mut self) -> Result<Report, String> {
        // Phase 1: safe, whatever happens.
        let mut steps = 0;
        while self.flows.iter().any(|f| !f.sends.failed() && f.posted < self.swarm.ops) && steps < 20_000 {
            steps += 1;
            self.turn(true)?;
            if self.world.now > Instant::from_nanos(2_000_000_000) {
                break;
            }
        }
        // Phase 2: everything ends.
        self.world.heal();
        self.world.note(0, || "everything is healed".into());
        let end = self.world.now.after(LIVENESS);
        while self.flows.iter().any(|f| !f.sends.settled() || !f.sends.failed() && f.posted < self.swarm.ops)
        {
            steps += 1;
            if self.world.now > end || steps > STEPS {
                let stuck: Vec<_> = self.flows.iter().map(|f| (f.qpn, f.sends.outstanding())).collect();
                return Err(format!("requests never complete on healed links: {stuck:?}"));
            }
            self.turn(false)?;
        }
        self.settle(100)?;
        self.idle()?;
        self.report.failed = self.flows.iter().filter(|f| f.sends.failed()).count() as u64;
        self.teardown()?;
        self.report.steps = steps;
        self.report.time = Duration::from_nanos(self.world.now.as_nanos());
        self.report.fired = self.world.fired;
        for node in &self.world.nodes {
            self.report.counters += node.counters();
        }
        Ok(self.report)
    }

    /// Lets the world come to rest: nothing is on the links.
    fn settle(&mut self, extra: usize) -> Check {
        for _ in 0..1_000_000 {
            self.world.step_within(Duration::from_millis(1))?;
            self.poll()?;
            if self.world.in_flight() == 0
                && self.world.nodes.iter().all(|n| n.shards.iter().all(|s| s.quiet()))
            {
                break;
            }
        }
        for _ in 0..extra {
            self.world.step_within(Duration::from_micros(1))?;
        }
        self.poll()
    }

    /// Queue pairs with nothing to do do nothing: after a while, each that has not failed is as it was.
    fn idle(&mut self) -> Check {
        let end = self.world.now.after(Duration::from_secs(1));
        while self.world.now < end {
            self.world.step_within(Duration::from_millis(10))?;
        }
        self.poll()?;
        for flow in self.flows.iter().filter(|f| !f.sends.failed()) {
            let state = self.world.nodes[flow.from].state(flow.qp);
            if state != QpState::Rts {
                return Err(format!("{:?} had nothing to do and is in {state:?}", flow.qpn));
            }
        }
        Ok(())
    }

    fn teardown(&mut self) -> Check {
        for flow in &self.flows {
            let memory = self.world.nodes[flow.to].mr(flow.target);
            let len = memory.len() - 8 * WORDS;
            let who = |e| format!("{:?} to {:?}: {e}", flow.qpn, flow.peer_qpn);
            flow.memory.matches(&memory.read(0, len)).map_err(who)?;
            for (i, word) in flow.words.iter().enumerate() {
                word.matches(memory.word(len + 8 * i)).map_err(who)?;
            }
            if !flow.sends.failed() && flow.arrivals.missing() > 0 {
                return Err(who(format!("{} messages completed and never arrived", flow.arrivals.missing())));
            }
        }
        self.world.check(true)?;
        // After ERR everything flushes, also what is posted then.
        self.teardown = true;
        for i in 0..self.flows.len() {
            let (now, node, qp) = (self.world.now, self.flows[i].from, self.flows[i].qp);
            self.world.nodes[node].modify_state(now, qp, QpState::Err).map_err(|e| e.to_string())?;
        }
        for i in 0..self.flows.len() {
            self.post_receives(i, 1);
            let (node, qp, flow) = (self.flows[i].from, self.flows[i].qp, &mut self.flows[i]);
            let wr = SendWr::new(flow.posted, WrOpcode::Send).unsignaled();
            if self.world.nodes[node].post_send(qp, &wr).is_ok() {
                flow.sends.posted(flow.posted, false);
                flow.memory.posted(flow.posted, 0, &[], false);
            }
        }
        self.settle(10)?;
        for flow in &self.flows {
            if flow.sends.outstanding() + flow.receives.outstanding() > 0 {
                return Err(format!(
                    "{:?} is in ERR and did not flush {} sends and {} receives of its peer",
                    flow.qpn,
                    flow.sends.outstanding(),
                    flow.receives.outstanding()
                ));
            }
        }
        self.world.check(true)
    }

    /// One step of the world, and what the programs do about it.
    fn turn(&mut self, random: bool) -> Check {
        // The program goes on by itself while it has something to do.
        let limit = if random { Duration::from_nanos(self.rng.range(500, 50_000)) } else { Duration::MAX };
        self.world.step_within(limit)?;
        if random && self.rng.below(8) >= self.swarm.eagerness {
            return Ok(());
        }
        self.poll()?;
        for i in 0..self.flows.len() {
            let lazy = random && self.rng.one_in(4);
            if !lazy {
                let n = if random { self.rng.range(1, 4) } else { u64::MAX };
                self.post_receives(i, n);
            }
            let n = if random { self.rng.below(4) } else { u64::MAX };
            for _ in 0..n {
                if !self.post(i) {
                    break;
                }
            }
        }
        self.spoil();
        self.world.check(false)
    }

    fn post_receives(&mut self, i: usize, n: u64) {
        let (slot_len, max_len) = (self.slot_len(), self.swarm.max_len);
        for _ in 0..n {
            let flow = &mut self.flows[i];
            let Some(slot) = flow.free.pop() else { return };
            let node = &mut self.world.nodes[flow.to];
            let layout = Layout::draw(&mut self.rng, slot, slot_len, max_len, 4);
            let region = node.mr(flow.recv);
            region.fill(slot * slot_len, slot_len, BLANK);
            let sges = layout.sges(region, &mut self.rng);
            if node.post_recv(flow.peer, flow.receives_posted, &sges).is_err() {
                flow.free.push(slot);
                return;
            }
            flow.receives.posted(flow.receives_posted, true);
            flow.buffers.push_back((flow.receives_posted, layout));
            flow.receives_posted += 1;
        }
    }

    /// Posts one random request. `false`: the queue is full, or there is nothing left to do.
    fn post(&mut self, i: usize) -> bool {
        let (slot_len, target_len, max_len) = (self.slot_len(), self.target_len(), self.swarm.max_len);
        let (rng, flow) = (&mut self.rng, &mut self.flows[i]);
        if flow.posted >= self.swarm.ops || flow.sends.failed() {
            return false;
        }
        let depth = u64::from(self.swarm.qp.send_depth);
        if self.world.nodes[flow.from].sends_in_use(flow.qp) >= self.swarm.qp.send_depth
            || flow.ops.len() as u64 >= depth
        {
            return false;
        }
        let wr_id = flow.posted;
        let mtu = self.swarm.qp.mtu.bytes();
        let len = match rng.below(8) {
            0 => 0,
            1..=3 => rng.range(1, 64) as usize,
            4 => mtu * rng.range(1, 3) as usize,
            5 => mtu * rng.range(1, 3) as usize + 1,
            _ => rng.range(1, max_len as u64) as usize,
        }
        .min(max_len);
        let opcode = rng.pick(&[
            WrOpcode::Send,
            WrOpcode::SendWithImm,
            WrOpcode::RdmaWrite,
            WrOpcode::RdmaWriteWithImm,
            WrOpcode::RdmaRead,
            WrOpcode::AtomicCmpAndSwp,
            WrOpcode::AtomicFetchAndAdd,
        ]);
        let imm = (rng.next() as u32).to_be_bytes();
        let slot = (wr_id % depth) as usize;
        // The last request and every one that fills the queue must tell; others may be silent.
        let last = wr_id + 1 == self.swarm.ops || (wr_id + 1) % depth.div_ceil(2) == 0;
        let signaled = last || rng.one_in(2);
        let fenced = rng.one_in(6);
        let node = &self.world.nodes[flow.from];
        let target = self.world.nodes[flow.to].mr(flow.target);
        let offset = rng.below((target_len - len) as u64 + 1) as usize;
        let mut wr = SendWr::new(wr_id, opcode);
        let mut sink = Layout::default();
        let mut data = Vec::new();
        let kind = match opcode {
            WrOpcode::RdmaRead => {
                sink = Layout::draw(rng, slot, slot_len, len, 4);
                node.mr(flow.sink).fill(slot * slot_len, slot_len, BLANK);
                wr = wr.sges(&sink.sges(node.mr(flow.sink), rng)).remote(target.va(offset), target.key);
                Kind::Read { offset }
            }
            WrOpcode::AtomicCmpAndSwp | WrOpcode::AtomicFetchAndAdd => {
                let word = rng.below(WORDS as u64) as usize;
                sink = Layout::draw(rng, slot, slot_len, 8, 2);
                node.mr(flow.sink).fill(slot * slot_len, slot_len, BLANK);
                let (a, b) = (rng.next() >> rng.below(64), rng.next());
                wr = wr
                    .sges(&sink.sges(node.mr(flow.sink), rng))
                    .remote(target.va(target_len + 8 * word), target.key)
                    .operands(a, b);
                if opcode == WrOpcode::AtomicCmpAndSwp {
                    // Half of them match.
                    let last =
                        flow.words[word].pending.iter().fold(flow.words[word].value, |v, op| match op {
                            Ok((c, s)) if *c == v => *s,
                            Ok(_) => v,
                            Err(add) => v.wrapping_add(*add),
                        });
                    let compare = if rng.one_in(2) { last } else { a };
                    wr = wr.operands(compare, b);
                    flow.words[word].pending.push_back(Ok((compare, b)));
                } else {
                    flow.words[word].pending.push_back(Err(a));
                }
                Kind::Atomic { word }
            }
            _ => {
                let src = node.mr(flow.src);
                let mut sges = Vec::new();
                let (n, mut left) = (rng.range(1, 4), len);
                for k in 0..n {
                    let part = if k + 1 == n { left } else { rng.below(left as u64 + 1) as usize };
                    let at = rng.below((src.len() - part) as u64 + 1) as usize;
                    data.extend(src.read(at, part));
                    sges.push(src.sge(at, part));
                    left -= part;
                }
                wr = if len <= self.swarm.qp.inline as usize && rng.one_in(3) {
                    wr.inline(&data)
                } else {
                    wr.sges(&sges)
                };
                wr = wr.imm(imm);
                if matches!(opcode, WrOpcode::RdmaWrite | WrOpcode::RdmaWriteWithImm) {
                    wr = wr.remote(target.va(offset), target.key);
                    Kind::Write
                } else {
                    Kind::Send
                }
            }
        };
        if !signaled {
            wr = wr.unsignaled();
        }
        if fenced {
            wr = wr.with(SendFlags::FENCE);
        }
        if rng.one_in(3) {
            wr = wr.with(SendFlags::SOLICITED);
        }
        let writes = matches!(kind, Kind::Write);
        flow.memory.posted(
            wr_id,
            offset.min(target_len - data.len()),
            if writes { &data } else { &[] },
            fenced,
        );
        if matches!(opcode, WrOpcode::Send | WrOpcode::SendWithImm | WrOpcode::RdmaWriteWithImm) {
            let imm = (opcode != WrOpcode::Send).then_some(imm);
            let data = if writes { Vec::new() } else { data };
            flow.arrivals.posted(Message { data, len, imm, write: writes });
        }
        flow.sends.posted(wr_id, signaled || self.swarm.qp.sq_sig_all);
        flow.ops.push_back(Op { wr_id, kind, sink });
        flow.posted += 1;
        let (from, qp) = (flow.from, flow.qp);
        self.world.note(from, || format!("post {opcode:?} {wr_id} of {len} bytes"));
        let posted = self.world.nodes[from].post_send(qp, &wr);
        assert_eq!(posted, Ok(()), "the queue has room and the request is good");
        true
    }

    /// Polls every completion queue: receives first, because an acknowledgement follows what it acknowledges.
    fn poll(&mut self) -> Check {
        let mut all = Vec::new();
        for node in 0..2 {
            let cqes = self.world.nodes[node].poll_cq(self.cqs[node], usize::MAX);
            all.extend(cqes.into_iter().map(|cqe| (node, cqe)));
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
        let is_recv = |cqe: &Cqe| WcOpcode::from_number(u32::from(cqe.opcode)).is_some_and(WcOpcode::is_recv);
        for (node, cqe) in &all {
            let status = check::status(cqe);
            self.world.note(*node, || {
                let kind = if is_recv(cqe) { "receive" } else { "send" };
                format!("cqe  {kind} {} of {:#x}: {status:?}", cqe.wr_id, cqe.qpn)
            });
        }
        for (node, cqe) in all.iter().filter(|(_, c)| is_recv(c)) {
            self.received(*node, cqe).map_err(|e| format!("queue pair {:#x}: {e}", cqe.qpn))?;
        }
        for (node, cqe) in all.iter().filter(|(_, c)| !is_recv(c)) {
            self.sent(*node, cqe).map_err(|e| format!("queue pair {:#x}: {e}", cqe.qpn))?;
        }
        Ok(())
    }

    fn received(&mut self, node: usize, cqe: &Cqe) -> Check {
        let slot_len = self.slot_len();
        let may_fail = self.swarm.may_fail || self.teardown;
        let flow = self
            .flows
            .iter_mut()
            .find(|f| f.to == node && f.peer_qpn.get() == cqe.qpn)
            .ok_or("a completion of a queue pair that is not ours")?;
        let status = check::status(cqe);
        flow.receives.completed(cqe.wr_id, status)?;
        let (_, layout) = flow.buffers.pop_front().ok_or("more receives complete than were posted")?;
        flow.free.push(layout.slot);
        match status {
            WcStatus::Success => {}
            WcStatus::WrFlushErr if may_fail => return Ok(()),
            other => return Err(format!("receive {} completes with {other:?}", cqe.wr_id)),
        }
        let region = self.world.nodes[node].mr(flow.recv);
        if self.plant == Plant::Received && !self.planted && cqe.byte_len > 0 {
            self.planted = true;
            let at = layout.pieces.iter().find(|p| p.1 > 0).map_or(0, |p| p.0);
            region.write(at, &[!region.read(at, 1)[0]]);
        }
        let write = cqe.opcode == WcOpcode::RecvRdmaWithImm as u8;
        let data = layout.gather(region, slot_len, if write { 0 } else { cqe.byte_len as usize })?;
        let imm = (u32::from(cqe.flags) & WcFlags::WITH_IMM.bits() != 0).then(|| cqe.imm.to_ne_bytes());
        flow.arrivals.arrived(&Message { data, len: cqe.byte_len as usize, imm, write })
    }

    fn sent(&mut self, node: usize, cqe: &Cqe) -> Check {
        let slot_len = self.slot_len();
        let (may_fail, teardown) = (self.swarm.may_fail, self.teardown);
        let flow = self
            .flows
            .iter_mut()
            .find(|f| f.from == node && f.qpn.get() == cqe.qpn)
            .ok_or("a completion of a queue pair that is not ours")?;
        let status = check::status(cqe);
        let first = !flow.sends.failed();
        let mut done = flow.sends.completed(cqe.wr_id, status)?;
        if status != WcStatus::Success {
            done.pop();
        }
        let sink = self.world.nodes[node].mr(flow.sink);
        for wr_id in done {
            let op = flow.ops.pop_front().ok_or("more requests complete than were posted")?;
            assert_eq!(op.wr_id, wr_id, "requests complete in order");
            self.report.completed += 1;
            match op.kind {
                Kind::Send | Kind::Write => flow.memory.completed(wr_id),
                Kind::Read { offset } => {
                    let len = op.sink.pieces.iter().map(|p| p.1).sum();
                    flow.memory.read(wr_id, offset, &op.sink.gather(sink, slot_len, len)?)?;
                }
                Kind::Atomic { word } => {
                    let got = op.sink.gather(sink, slot_len, 8)?;
                    let original = u64::from_ne_bytes(got.try_into().expect("eight bytes"));
                    flow.words[word].completed(Some(original))?;
                    flow.memory.completed(wr_id);
                }
            }
        }
        match status {
            WcStatus::Success => Ok(()),
            WcStatus::RetryExcErr | WcStatus::RnrRetryExcErr if may_fail && first => Ok(()),
            WcStatus::WrFlushErr if !first || teardown => Ok(()),
            other => Err(format!("request {} completes with {other:?}", cqe.wr_id)),
        }
    }

    /// Plants what was asked for, once something is under way.
    fn spoil(&mut self) {
        if self.planted || self.flows[0].arrivals.arrived == 0 {
            return;
        }
        let flow = &self.flows[0];
        let node = &self.world.nodes[flow.to];
        match self.plant {
            Plant::TargetByte if flow.posted == self.swarm.ops && flow.sends.settled() => {
                let target = node.mr(flow.target);
                let byte = target.read(3, 1)[0];
                target.write(3, &[!byte]);
            }
            Plant::Guard => node.mr(flow.target).spoil_guard(),
            Plant::Leak => {
                // Frames that are taken out of the ring and forgotten, as a lost return would.
                let wire = &node.wires[0];
                for _ in 0..4 {
                    wire.lose_a_buffer();
                }
            }
            _ => return,
        }
        self.planted = true;
    }
}
