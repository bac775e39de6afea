//! Puts a load on a namespace, and measures it.
//!
//! With `verify`, every read is checked (`expected.rs`). First every block is written, then the load runs, and at the end every block is
//! read once more, because otherwise the last write of a block would not be checked.

mod content;
mod expected;

use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use nvmf::wire::Sgl;
use verbs::port::fault::rng::Rng;
use verbs::{Access, Context, Mr};

use expected::{Expected, Wrong};

use crate::host::{Controller, Data, Host, HostError, HostQueue, Io, NamespaceInfo, go_on, in_words};

/// The largest latency that is recorded, one minute. Longer ones are recorded as this one.
const LATENCY_MAX_NS: u64 = 60_000_000_000;
/// The number of turns between two checks: for signals, for progress, and for a keep alive that is due.
const CHECK_TURNS: u64 = 256;
/// A run fails if it makes no progress for this long.
const PATIENCE: Duration = Duration::from_secs(30);

/// The parameters of a load.
#[derive(Clone, Debug)]
pub struct Load {
    /// The number of I/O queues.
    pub queues: u16,
    /// The number of outstanding commands on each queue.
    pub depth: u16,
    /// Bytes of a command.
    pub size: usize,
    /// Percentage of commands that are reads.
    pub read_percent: u8,
    /// Access blocks in order instead of at random.
    pub sequential: bool,
    /// How long commands are counted. A warm-up of a tenth of this time comes before.
    pub time: Duration,
    /// End after this many commands instead of after a time. All of them are counted, without a warm-up.
    pub count: Option<u64>,
    /// Write all blocks first, check everything that is read, and read all blocks at the end. Each write has different data.
    pub verify: bool,
    /// How many bytes of the namespace to use, from its start; 0 for all.
    pub span: u64,
    /// Send the data of writes in the capsule if there is room.
    pub in_capsule: bool,
}

impl Default for Load {
    fn default() -> Self {
        Self {
            queues: 4,
            depth: 32,
            size: 4096,
            read_percent: 100,
            sequential: false,
            time: Duration::from_secs(5),
            count: None,
            verify: false,
            span: 0,
            in_capsule: true,
        }
    }
}

/// The result of a run.
#[derive(Clone, Debug)]
pub struct Report {
    /// The number of commands that were counted.
    pub commands: u64,
    /// The time in which they were counted.
    pub time: Duration,
    /// Bytes of a command.
    pub size: usize,
    /// The latencies of the counted commands, in nanoseconds.
    pub latency: Histogram<u64>,
    /// The number of reads that were checked, including those at the end.
    pub checked: u64,
}

/// A phase of a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Phase {
    /// Write every block once, so that reads can be checked.
    Fill,
    /// Run the load.
    Load,
    /// Read every block once more.
    Check,
}

/// Is called regularly with the progress of a run: the phase, and the part of it that is done, from 0 to 1.
pub type OnProgress<'t> = &'t mut dyn FnMut(Phase, f64);

impl Report {
    /// Commands per second.
    pub fn iops(&self) -> f64 {
        self.commands as f64 / self.time.as_secs_f64()
    }
    /// Data rate in Gbit/s.
    pub fn gbit_per_s(&self) -> f64 {
        self.iops() * self.size as f64 * 8.0 / 1e9
    }
}

/// Why a run failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PerfError {
    /// The host, the target or the connection failed.
    #[error(transparent)]
    Host(#[from] HostError),
    /// The load is not possible; the text says why.
    #[error("{0}")]
    Load(String),
    /// A read returned other data than were written; the text says which.
    #[error("{0}")]
    Wrong(String),
    /// No response came for a long time.
    #[error("no command completed within {PATIENCE:?}")]
    Stuck,
    /// A command failed with this status.
    #[error("a command failed: {}", in_words(*.0))]
    Status(u16),
}

impl From<verbs::VerbsError> for PerfError {
    fn from(e: verbs::VerbsError) -> Self {
        Self::Host(e.into())
    }
}

/// An outstanding command.
#[derive(Clone, Copy, Default)]
struct Sent {
    at_ns: u64,
    unit: u64,
    read: bool,
    /// With `verify`, what [`Expected`] returned when the command was sent, to be passed to it at the end: the moment of a read, or the
    /// generation of a write.
    token: u64,
}

/// An I/O queue of the run, with its memory.
struct PerfQueue {
    queue: HostQueue,
    sent: Vec<Sent>,
    mr: Mr,
}

/// The state of a run.
struct PerfRun<'r, 'c> {
    load: &'r Load,
    host: &'r mut Host<'c>,
    context: &'c Context,
    controller: &'r mut Controller,
    queues: Vec<PerfQueue>,
    nsid: u32,
    block: usize,
    /// The number of units of `size` bytes in the used part of the namespace.
    units: u64,
    next: u64,
    rng: Rng,
    /// What reads may return, with `verify`.
    expected: Option<Expected>,
    checked: u64,
    scratch: Vec<u8>,
    on_progress: OnProgress<'r>,
}

/// Puts a load on a namespace.
///
/// # Errors
/// If the load does not fit the namespace, a command fails, or data are wrong.
pub fn run<'r>(
    host: &'r mut Host<'_>,
    controller: &'r mut Controller,
    namespace: &NamespaceInfo,
    load: &'r Load,
    on_progress: OnProgress<'r>,
) -> Result<Report, PerfError> {
    let block = namespace.block as usize;
    let bytes = namespace.blocks * block as u64;
    let span = if load.span == 0 { bytes } else { load.span.min(bytes) };
    let units = span / load.size.max(1) as u64;
    if load.size == 0 || !load.size.is_multiple_of(block) {
        let size = load.size;
        return Err(PerfError::Load(format!("{size} bytes are no multiple of a block of {block}")));
    }
    if load.size > controller.transfer_max() {
        let (size, max) = (load.size, controller.transfer_max());
        return Err(PerfError::Load(format!("a command transfers at most {max} bytes here, not {size}")));
    }
    if units == 0 {
        return Err(PerfError::Load(format!("the namespace has {bytes} bytes, less than a command")));
    }
    if load.queues == 0 || load.queues > controller.queues() {
        let (granted, asked) = (controller.queues(), load.queues);
        return Err(PerfError::Load(format!("the target grants {granted} queues, not {asked}")));
    }
    let expected = load.verify.then(|| {
        let run = getrandom::u64().map_err(|e| PerfError::Load(format!("no random number: {e}")))?;
        Expected::new(run, units, load.size).map_err(PerfError::Load)
    });
    let expected = expected.transpose()?;
    let mut queues = Vec::new();
    for qid in 1..=load.queues {
        let queue = controller.io_queue(host, qid, load.depth.saturating_add(1))?;
        let depth = queue.depth();
        if depth < load.depth as usize {
            return Err(PerfError::Load(format!(
                "the target's queues have a depth of {depth}, not {}",
                load.depth
            )));
        }
        let rights = Access::LOCAL_WRITE | Access::REMOTE_READ | Access::REMOTE_WRITE;
        let mr = host.pd().reg_mr(depth * load.size, rights)?;
        queues.push(PerfQueue { queue, sent: vec![Sent::default(); depth], mr });
    }
    let mut run = PerfRun {
        load,
        context: host.context(),
        host,
        controller,
        queues,
        nsid: namespace.nsid,
        block,
        units,
        next: 0,
        rng: Rng::new(0),
        expected,
        checked: 0,
        scratch: vec![0; load.size],
        on_progress,
    };
    if !load.verify {
        return run.measure();
    }
    run.sweep(Phase::Fill)?;
    let report = run.measure()?;
    run.sweep(Phase::Check)?;
    Ok(Report { checked: run.checked, ..report })
}

impl PerfRun<'_, '_> {
    /// Writes or reads every unit once.
    fn sweep(&mut self, phase: Phase) -> Result<(), PerfError> {
        let (mut to_send, mut done) = (0, 0);
        let mut progress = Instant::now();
        let (mut turns, mut seen) = (0u64, 0);
        (self.on_progress)(phase, 0.0);
        while done < self.units {
            self.host.turn();
            for index in 0..self.queues.len() {
                done += self.poll(index, |_| {})?;
                while to_send < self.units && self.queues[index].queue.under_way() < self.load.depth as usize
                {
                    if !self.submit(index, to_send, phase == Phase::Check, 0)? {
                        break;
                    }
                    to_send += 1;
                }
            }
            turns += 1;
            if turns.is_multiple_of(CHECK_TURNS) {
                self.check_run(done > seen, &mut progress)?;
                (self.on_progress)(phase, done as f64 / self.units as f64);
                seen = done;
            }
        }
        Ok(())
    }

    fn measure(&mut self) -> Result<Report, PerfError> {
        let mut latency = Histogram::new_with_bounds(1, LATENCY_MAX_NS, 3)
            .map_err(|e| PerfError::Load(format!("no histogram: {e}")))?;
        let mut commands = 0;
        let start = self.context.now();
        let warm_up = if self.load.count.is_some() { 0 } else { self.load.time.as_nanos() as u64 / 10 };
        let from = start + warm_up;
        let until = from + self.load.time.as_nanos() as u64;
        let mut progress = Instant::now();
        (self.on_progress)(Phase::Load, 0.0);
        let mut counted = false;
        let mut now = start;
        let (mut turns, mut seen) = (0u64, 0);
        while self.load.count.map_or(now < until, |count| commands < count) {
            self.host.turn();
            now = self.context.now();
            if !counted && now >= from {
                (commands, counted, seen) = (0, true, 0);
                latency.reset();
            }
            for index in 0..self.queues.len() {
                commands += self.poll(index, |at| latency.saturating_record(now.saturating_sub(at)))?;
                while self.queues[index].queue.under_way() < self.load.depth as usize {
                    let (unit, read) = self.choose();
                    if !self.submit(index, unit, read, now)? {
                        break;
                    }
                }
            }
            turns += 1;
            if turns.is_multiple_of(CHECK_TURNS) {
                self.check_run(commands != seen, &mut progress)?;
                let done = match self.load.count {
                    Some(count) => commands as f64 / count as f64,
                    None => (now - start) as f64 / (until - start).max(1) as f64,
                };
                (self.on_progress)(Phase::Load, done);
                seen = commands;
            }
        }
        let time = Duration::from_nanos(now - from);
        // Outstanding commands access memory that is about to be freed, so wait for their responses.
        let mut progress = Instant::now();
        while self.queues.iter().any(|own| own.queue.under_way() > 0) {
            self.host.turn();
            let mut done = 0;
            for index in 0..self.queues.len() {
                done += self.poll(index, |_| {})?;
            }
            self.check_run(done > 0, &mut progress)?;
        }
        Ok(Report { commands, time, size: self.load.size, latency, checked: self.checked })
    }

    /// Sends a keep alive if one is due. Fails if no command has completed for too long, or if a signal asks the process to end.
    #[inline]
    fn check_run(&mut self, progressed: bool, progress: &mut Instant) -> Result<(), PerfError> {
        go_on()?;
        if progressed {
            *progress = Instant::now();
            return Ok(self.controller.keep_alive(self.host)?);
        }
        if progress.elapsed() > PATIENCE { Err(PerfError::Stuck) } else { Ok(()) }
    }

    /// Chooses the next unit, and whether to read it.
    #[inline]
    fn choose(&mut self) -> (u64, bool) {
        let read = self.rng.below(100) < self.load.read_percent as u64;
        let unit = if self.load.sequential {
            self.next = if self.next + 1 < self.units { self.next + 1 } else { 0 };
            self.next
        } else {
            self.rng.below(self.units)
        };
        (unit, read)
    }

    /// Sends a command on a queue. Returns false if the queue has no room for it.
    #[inline]
    fn submit(&mut self, index: usize, unit: u64, read: bool, now: u64) -> Result<bool, PerfError> {
        let size = self.load.size;
        let PerfQueue { queue, sent, mr } = &mut self.queues[index];
        let cid = queue.next_cid().ok_or(HostError::QueueFull)? as usize;
        let at = cid * size;
        let lba = unit * (size / self.block) as u64;
        let io = Io::new(self.nsid, lba, (size / self.block) as u32);
        if let Some(expected) = &self.expected {
            if read {
                mr.fill(at..at + size, 0)?;
            } else {
                expected.next_content(unit).fill(&mut self.scratch);
                mr.write(at, &self.scratch)?;
            }
        }
        let keyed = Sgl::keyed(mr.iova() + at as u64, size as u32, mr.rkey(), false);
        let data;
        let sqe = if read {
            data = Data::Elsewhere;
            io.read(keyed)
        } else if self.load.in_capsule && size <= self.controller.in_capsule() {
            data = Data::InCapsule(mr, at..at + size);
            io.write(Sgl::in_capsule(0, size as u32))
        } else {
            data = Data::Elsewhere;
            io.write(keyed)
        };
        if queue.submit(&sqe, data)?.is_none() {
            return Ok(false);
        }
        let token = match &mut self.expected {
            None => 0,
            Some(expected) if read => expected.read_begins(unit),
            Some(expected) => expected.write_begins(unit),
        };
        sent[cid] = Sent { at_ns: now, unit, read, token };
        Ok(true)
    }

    #[inline]
    fn poll(&mut self, index: usize, mut each: impl FnMut(u64)) -> Result<u64, PerfError> {
        let PerfQueue { queue, sent, mr } = &mut self.queues[index];
        let mut wrong = None;
        let n = queue.poll(|cqe| {
            let cid = cqe.cid.get() as usize;
            let Sent { at_ns, unit, read, token } = sent[cid];
            each(at_ns);
            let status = cqe.status.get() >> 1;
            if status != 0 {
                wrong = Some(PerfError::Status(status & 0x7FF));
                return;
            }
            let Some(expected) = &mut self.expected else { return };
            if !read {
                return expected.write_ends(unit, token);
            }
            self.checked += 1;
            let bytes = &mut self.scratch[..];
            let checked = match mr.read(cid * bytes.len(), bytes) {
                Ok(()) => {
                    expected.read_ends(unit, token, bytes).map_err(|e| wrong_read(unit, self.block, bytes, e))
                }
                Err(e) => Err(e.into()),
            };
            if let Err(e) = checked {
                wrong = Some(e);
            }
        })?;
        wrong.map_or(Ok(n as u64), Err)
    }
}

/// The error for a wrong read of a unit: which block is wrong, from which byte on, and what was found.
fn wrong_read(unit: u64, block: usize, bytes: &[u8], Wrong { at, found, wanted }: Wrong) -> PerfError {
    let size = bytes.len();
    let (lba, byte) = (unit * (size / block) as u64 + (at / block) as u64, at % block);
    PerfError::Wrong(format!(
        "block {lba} is wrong from byte {byte} on: a read of {size} bytes gave {found}, and the last write of these bytes was write \
         {wanted}"
    ))
}
