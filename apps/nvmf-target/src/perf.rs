//! A load on a namespace, and what it measured.

use std::time::{Duration, Instant};

use apps::verify::Which;
use hdrhistogram::Histogram;
use nvmf::wire::Sgl;
use verbs::port::fault::rng::Rng;
use verbs::{Access, Context, Mr};

use crate::host::{Controller, Data, Host, HostError, HostQueue, Io, NamespaceInfo, go_on, in_words};

/// The largest latency that is recorded; longer ones count as this one. A minute.
const LATENCY_MAX_NS: u64 = 60_000_000_000;
/// Turns between two looks at the clock of the run, and at the keep alive.
const LOOK: u64 = 256;
/// How long a run may make no progress.
const PATIENCE: Duration = Duration::from_secs(30);

/// What to do.
#[derive(Clone, Debug)]
pub struct Load {
    /// I/O queues.
    pub queues: u16,
    /// Commands under way on each.
    pub depth: u16,
    /// Bytes of a command.
    pub size: usize,
    /// Percentage of commands that are reads.
    pub read_percent: u8,
    /// One block after the other instead of random ones.
    pub sequential: bool,
    /// For how long; counting starts after a tenth of it.
    pub time: Duration,
    /// Instead of a time: so many commands, all of them counted.
    pub count: Option<u64>,
    /// Write all blocks first, and check what is read. Writes then write the same again.
    pub verify: bool,
    /// Bytes of the namespace to use, from its start; 0 for all.
    pub span: u64,
    /// Send data of writes in the capsule where there is room.
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

/// What was measured.
#[derive(Clone, Debug)]
pub struct Report {
    /// Commands that were counted.
    pub commands: u64,
    /// In this time.
    pub time: Duration,
    /// Bytes of a command.
    pub size: usize,
    /// Their latencies, in nanoseconds.
    pub latency: Histogram<u64>,
    /// Blocks that were checked.
    pub checked: u64,
}

impl Report {
    /// Commands a second.
    pub fn iops(&self) -> f64 {
        self.commands as f64 / self.time.as_secs_f64()
    }
    /// Gb/s of data.
    pub fn gbit_per_s(&self) -> f64 {
        self.iops() * self.size as f64 * 8.0 / 1e9
    }
}

/// Why a run gave no report.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PerfError {
    /// The target or the connection.
    #[error(transparent)]
    Host(#[from] HostError),
    /// It cannot be done.
    #[error("{0}")]
    Load(String),
    /// A read returned something else than was written.
    #[error("block {lba}: byte {at} of a read is not what was written")]
    Wrong {
        /// The block.
        lba: u64,
        /// The byte.
        at: usize,
    },
    /// Nothing came for a long time.
    #[error("no command completed within {PATIENCE:?}")]
    Stuck,
    /// A command failed.
    #[error("a command failed: {}", in_words(*.0))]
    Status(u16),
}

impl From<verbs::VerbsError> for PerfError {
    fn from(e: verbs::VerbsError) -> Self {
        Self::Host(e.into())
    }
}

/// A command under way.
#[derive(Clone, Copy, Default)]
struct Sent {
    at_ns: u64,
    lba: u64,
    read: bool,
}

/// A queue of the run, with its memory.
struct Lane {
    queue: HostQueue,
    sent: Vec<Sent>,
    mr: Mr,
}

/// The run.
struct Run<'r, 'c> {
    load: &'r Load,
    host: &'r mut Host<'c>,
    context: &'c Context,
    controller: &'r mut Controller,
    lanes: Vec<Lane>,
    nsid: u32,
    block: usize,
    /// Units of `size` bytes in the span.
    units: u64,
    next: u64,
    rng: Rng,
    checked: u64,
    scratch: Vec<u8>,
}

/// Puts a load on a namespace.
///
/// # Errors
/// If the load does not fit the namespace, a command fails, or data are wrong.
pub fn run(
    host: &mut Host<'_>,
    controller: &mut Controller,
    namespace: &NamespaceInfo,
    load: &Load,
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
    let mut lanes = Vec::new();
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
        lanes.push(Lane { queue, sent: vec![Sent::default(); depth], mr });
    }
    let mut run = Run {
        load,
        context: host.context(),
        host,
        controller,
        lanes,
        nsid: namespace.nsid,
        block,
        units,
        next: 0,
        rng: Rng::new(0),
        checked: 0,
        scratch: vec![0; load.size],
    };
    if load.verify {
        run.fill()?;
    }
    run.measure()
}

impl Run<'_, '_> {
    /// Writes every unit once.
    fn fill(&mut self) -> Result<(), PerfError> {
        let (mut to_send, mut done) = (0, 0);
        let mut progress = Instant::now();
        while done < self.units {
            self.host.turn();
            let before = done;
            for lane in 0..self.lanes.len() {
                done += self.poll(lane, |_| {})?;
                while to_send < self.units && self.lanes[lane].queue.under_way() < self.load.depth as usize {
                    if !self.submit(lane, to_send, false, 0)? {
                        break;
                    }
                    to_send += 1;
                }
            }
            self.look(done > before, &mut progress)?;
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
            for lane in 0..self.lanes.len() {
                commands += self.poll(lane, |at| latency.saturating_record(now.saturating_sub(at)))?;
                while self.lanes[lane].queue.under_way() < self.load.depth as usize {
                    let (unit, read) = self.choose();
                    if !self.submit(lane, unit, read, now)? {
                        break;
                    }
                }
            }
            turns += 1;
            if turns.is_multiple_of(LOOK) {
                self.look(commands != seen, &mut progress)?;
                seen = commands;
            }
        }
        let time = Duration::from_nanos(now - from);
        // Commands under way access memory that is about to be freed: wait for their responses.
        let mut progress = Instant::now();
        while self.lanes.iter().any(|lane| lane.queue.under_way() > 0) {
            self.host.turn();
            let mut done = 0;
            for lane in 0..self.lanes.len() {
                done += self.poll(lane, |_| {})?;
            }
            self.look(done > 0, &mut progress)?;
        }
        Ok(Report { commands, time, size: self.load.size, latency, checked: self.checked })
    }

    /// Sends a keep alive if it is time for one; fails when no command completed for too long, or a signal asks to end.
    #[inline]
    fn look(&mut self, progressed: bool, progress: &mut Instant) -> Result<(), PerfError> {
        go_on()?;
        if progressed {
            *progress = Instant::now();
            return Ok(self.controller.keep_alive(self.host)?);
        }
        if progress.elapsed() > PATIENCE { Err(PerfError::Stuck) } else { Ok(()) }
    }

    /// The next unit, and whether it is read.
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

    /// Whether there was room for the command.
    #[inline]
    fn submit(&mut self, lane: usize, unit: u64, read: bool, now: u64) -> Result<bool, PerfError> {
        let size = self.load.size;
        let Lane { queue, sent, mr } = &mut self.lanes[lane];
        let cid = queue.next_cid().ok_or(HostError::QueueFull)? as usize;
        let at = cid * size;
        let lba = unit * (size / self.block) as u64;
        let io = Io::new(self.nsid, lba, (size / self.block) as u32);
        if self.load.verify {
            if read {
                mr.fill(at..at + size, 0)?;
            } else {
                content(lba).fill(&mut self.scratch, 0);
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
        sent[cid] = Sent { at_ns: now, lba, read };
        Ok(queue.submit(&sqe, data)?.is_some())
    }

    #[inline]
    fn poll(&mut self, lane: usize, mut each: impl FnMut(u64)) -> Result<u64, PerfError> {
        let Lane { queue, sent, mr } = &mut self.lanes[lane];
        let mut wrong = None;
        let n = queue.poll(|cqe| {
            let cid = cqe.cid.get() as usize;
            let Sent { at_ns, lba, read } = sent[cid];
            each(at_ns);
            let status = cqe.status.get() >> 1;
            if status != 0 {
                wrong = Some(PerfError::Status(status & 0x7FF));
            } else if read && self.load.verify {
                let at = cid * self.load.size;
                match check(mr, at, &mut self.scratch, lba) {
                    Ok(()) => self.checked += 1,
                    Err(e) => wrong = Some(e),
                }
            }
        })?;
        wrong.map_or(Ok(n as u64), Err)
    }
}

/// What the blocks from `lba` on hold.
fn content(lba: u64) -> Which {
    Which { stream: 0, seq: lba }
}
fn check(mr: &Mr, at: usize, bytes: &mut [u8], lba: u64) -> Result<(), PerfError> {
    mr.read(at, bytes)?;
    let wrong = content(lba).first_wrong(bytes, 0);
    wrong.map_or(Ok(()), |(at, ..)| Err(PerfError::Wrong { lba, at }))
}
