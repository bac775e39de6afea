//! Measures what the NVMe layer adds to a command: compares Reads through a target and a host with the same bytes moved by SEND, RDMA WRITE
//! and SEND alone. In both measurements, one thread runs both ends, so the time per command is the CPU time of both ends. The rounds of the
//! two measurements alternate, so that a busy machine affects both.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use apps::report::median;
use nvmf::Nqn;
use nvmf::wire::{Cqe, Sgl, Sqe};
use verbs::port::{self, Port, fault::rng::Rng};
use verbs::{
    Access, Context, Cq, CqPoller, DeviceConfig, Drive, Mr, Pd, Qp, QpCap, QpInitAttr, RcOptions, Reactor,
    RecvQueue, RecvWr, SendQueue, SendWr, Sge, VerbsError, Wc, WcOpcode,
};

use crate::config::{self, Offer};
use crate::host::{Controller, Data, Host, HostError, HostQueue, Io, Options, go_on};
use crate::perf::PerfError;
use crate::target::{Config, Core};

/// Bytes that a command reads.
pub const SIZE: usize = 4096;
/// Block size in bytes.
const BLOCK: u32 = 512;
/// Commands in flight.
const DEPTH: usize = 32;
/// Size of the namespace in bytes. Commands read at random offsets of it. It is larger than the caches of a CPU core.
const SPAN: usize = 64 << 20;
/// A round fails if it makes no progress for this long.
const PATIENCE: Duration = Duration::from_secs(30);

/// The result: medians over the rounds, in nanoseconds per command, for both ends together.
#[derive(Clone, Copy, Debug)]
pub struct Overhead {
    /// A Read through the target and the host.
    pub nvme_ns: f64,
    /// The same bytes moved without target and host.
    pub bare_ns: f64,
    /// The median of the differences between the two, round by round.
    pub added_ns: f64,
}

/// Measures `rounds` rounds of `commands` commands, with NVMe and without.
///
/// # Errors
/// If a device, a connection or a command fails.
pub fn measure(nqn: &Nqn, rounds: usize, commands: u64) -> Result<Overhead, PerfError> {
    let (a, b) = port::pair(1);
    let (target, host) = (device(a, 1)?, device(b, 2)?);
    let pd = Arc::new(target.alloc_pd()?);
    let at = SocketAddr::new(address(1), 4420);
    let built = config::build(&Offer::of_memory(nqn, SPAN as u64, BLOCK), at.ip(), &pd)
        .map_err(|e| PerfError::Load(e.what))?;
    let mut core = Core::new(&target, Arc::clone(&pd), built.target, built.stores, Config::default())?;
    let at = core.listen(1, at)?;
    let mut host = Host::new(&host, &Drive::Embedded, nqn.clone(), [1; 16])?;
    let mut nvme = Nvme::connect(core, &mut host, at, nqn)?;
    let mut bare = Bare::connect()?;
    // The first round of each is a warm-up.
    nvme.round(&mut host, commands)?;
    bare.round(commands)?;
    let mut each = Vec::new();
    for _ in 0..rounds {
        each.push((nvme.round(&mut host, commands)?, bare.round(commands)?));
    }
    let median = |of: fn(&(f64, f64)) -> f64| median(each.iter().map(of).collect()).unwrap_or(f64::NAN);
    Ok(Overhead { nvme_ns: median(|r| r.0), bare_ns: median(|r| r.1), added_ns: median(|r| r.0 - r.1) })
}

fn address(last: u8) -> IpAddr {
    IpAddr::V4(Ipv4Addr::new(10, 77, 0, last))
}
fn device(port: Box<dyn Port>, last: u8) -> Result<Context, VerbsError> {
    let addrs = vec![(address(last), 24)];
    Context::open(DeviceConfig::new(port).addrs(addrs).drive(Drive::Embedded))
}

/// Repeats `step`, which returns how many commands it has completed, until `commands` commands are done. Returns the nanoseconds per
/// command.
fn time(commands: u64, mut step: impl FnMut() -> Result<u64, PerfError>) -> Result<f64, PerfError> {
    let start = Instant::now();
    let (mut done, mut progress) = (0, start);
    while done < commands {
        go_on()?;
        match step()? {
            0 if progress.elapsed() > PATIENCE => return Err(PerfError::Stuck),
            0 => {}
            n => {
                done += n;
                progress = Instant::now();
            }
        }
    }
    Ok(start.elapsed().as_nanos() as f64 / commands as f64)
}

/// A target, and a host with a queue.
struct Nvme<'c> {
    core: Core<'c>,
    queue: HostQueue,
    /// Kept because dropping it would end the association with the target.
    _controller: Controller,
    mr: Mr,
    rng: Rng,
}

impl<'c> Nvme<'c> {
    fn connect(
        mut core: Core<'c>,
        host: &mut Host<'_>,
        at: SocketAddr,
        nqn: &Nqn,
    ) -> Result<Self, PerfError> {
        let ready = AtomicBool::new(false);
        // `connect` blocks, so the target runs on another thread meanwhile.
        let (controller, queue) = std::thread::scope(|scope| {
            let running = scope.spawn(|| core.run(|| ready.load(Ordering::Relaxed)));
            let connected = (|| {
                let mut controller = Controller::connect(host, at, nqn, Options::default())?;
                let queue = controller.io_queue(host, 1, DEPTH as u16 + 1)?;
                Ok::<_, HostError>((controller, queue))
            })();
            ready.store(true, Ordering::Relaxed);
            running.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
            Ok::<_, PerfError>(connected?)
        })?;
        let rights = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
        let mr = host.pd().reg_mr(DEPTH * SIZE, rights)?;
        Ok(Self { core, queue, _controller: controller, mr, rng: Rng::new(0) })
    }

    fn round(&mut self, host: &mut Host<'_>, commands: u64) -> Result<f64, PerfError> {
        let Self { core, queue, mr, rng, .. } = self;
        time(commands, || {
            while let Some(cid) = queue.next_cid() {
                let at = cid as usize * SIZE;
                let lba = rng.below((SPAN / SIZE) as u64) * SIZE as u64 / u64::from(BLOCK);
                let to = Sgl::keyed(mr.iova() + at as u64, SIZE as u32, mr.rkey(), false);
                queue
                    .submit(&Io::new(1, lba, SIZE as u32 / BLOCK).read(to), Data::Elsewhere)?
                    .ok_or(HostError::QueueFull)?;
            }
            host.turn();
            core.turn()?;
            let mut failed = 0;
            let n = queue.poll(|cqe| failed |= cqe.status.get() >> 1)?;
            if failed == 0 { Ok(n as u64) } else { Err(PerfError::Status(failed)) }
        })
    }
}

/// An end of a connection without NVMe.
struct End {
    reactor: Reactor,
    sq: SendQueue,
    rq: RecvQueue,
    poller: CqPoller,
    /// The memory into which messages are received.
    messages: Mr,
    /// The parts of `messages`, one for each receive request.
    slots: Vec<[Sge; 1]>,
    /// At the target, the blocks that are read; at the host, the memory that they are written to.
    blocks: Mr,
    done: Vec<Wc>,
    // Dropped last: the fields above refer to them.
    qp: Qp,
    _cq: Cq,
    _pd: Pd,
    _context: Context,
}

impl End {
    fn new(context: Context, blocks: usize) -> Result<Self, VerbsError> {
        let pd = context.alloc_pd()?;
        let cq = context.create_cq(1024)?;
        let cap = QpCap {
            max_send_wr: 8 * DEPTH as u32,
            max_recv_wr: 2 * DEPTH as u32,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline_data: Sqe::LEN as u32,
        };
        let qp = pd.create_qp(&QpInitAttr::rc(&cq, &cq).cap(cap))?;
        let messages = pd.reg_mr(2 * DEPTH * Sqe::LEN, Access::LOCAL_WRITE)?;
        let slot = |n: usize| Ok([messages.sge(n * Sqe::LEN..(n + 1) * Sqe::LEN)?]);
        let slots = (0..2 * DEPTH).map(slot).collect::<Result<Vec<_>, VerbsError>>()?;
        qp.init_rc(&RcOptions::default())?;
        qp.post_recv(slots.iter().zip(0..).map(|(slot, n)| RecvWr::new(n, slot)))?;
        let blocks = pd.reg_mr(blocks, Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
        let (reactor, poller) = (context.reactor(0)?, cq.poller()?);
        let (sq, rq) = qp.split()?;
        let done = vec![Wc::default(); 64];
        let (_cq, _pd, _context) = (cq, pd, context);
        Ok(Self { reactor, sq, rq, poller, messages, slots, blocks, done, qp, _cq, _pd, _context })
    }

    /// Makes one turn of the shard, and calls `each` for every message that arrived, with the send queue, the blocks and the bytes of the
    /// message. Returns how many arrived.
    fn turn(
        &mut self,
        mut each: impl FnMut(&mut SendQueue, &Mr, [u8; Sqe::LEN]) -> Result<(), PerfError>,
    ) -> Result<u64, PerfError> {
        self.reactor.poll_once();
        let n = self.poller.poll(&mut self.done)?;
        let mut came = 0;
        for wc in &self.done[..n] {
            if !wc.is_ok() {
                return Err(HostError::Connection(wc.status).into());
            }
            if wc.opcode != WcOpcode::Recv {
                continue;
            }
            let slot = wc.wr_id as usize;
            let mut message = [0; Sqe::LEN];
            self.messages.read(slot * Sqe::LEN, &mut message)?;
            self.rq.post_recv([RecvWr::new(wc.wr_id, &self.slots[slot])]).map_err(HostError::from)?;
            each(&mut self.sq, &self.blocks, message)?;
            came += 1;
        }
        Ok(came)
    }
}

/// A connection without NVMe that moves the same bytes for each command: a SEND of the length of a command, an RDMA WRITE of the data, a
/// SEND of the length of a response.
struct Bare {
    target: End,
    host: End,
    under_way: usize,
    rng: Rng,
}

impl Bare {
    fn connect() -> Result<Self, PerfError> {
        let (a, b) = port::pair(1);
        let (target, host) = (End::new(device(a, 1)?, SPAN)?, End::new(device(b, 2)?, DEPTH * SIZE)?);
        let options = RcOptions::default();
        target.qp.connect_rc(&host.qp.endpoint(options.sgid_index)?, &options)?;
        host.qp.connect_rc(&target.qp.endpoint(options.sgid_index)?, &options)?;
        Ok(Self { target, host, under_way: 0, rng: Rng::new(0) })
    }

    fn round(&mut self, commands: u64) -> Result<f64, PerfError> {
        let Self { target, host, under_way, rng } = self;
        let (to, key) = (host.blocks.iova(), host.blocks.rkey());
        time(commands, || {
            while *under_way < DEPTH {
                // Like a command, the message says where the data are and where they go.
                let mut command = [0; Sqe::LEN];
                let block = rng.below((SPAN / SIZE) as u64);
                command[..8].copy_from_slice(&block.to_ne_bytes());
                command[8..16].copy_from_slice(&(*under_way as u64).to_ne_bytes());
                host.sq.post_send([SendWr::send(0, &[]).inline(&command)]).map_err(HostError::from)?;
                *under_way += 1;
            }
            let n = host.turn(|_, _, _| Ok(()))?;
            target.turn(|sq, blocks, command| {
                let [block, slot] = [0, 8].map(|at| number(&command, at) as usize);
                let data = [blocks.sge(block * SIZE..(block + 1) * SIZE)?];
                let write = SendWr::write(0, &data, to + (slot * SIZE) as u64, key);
                let response = SendWr::send(0, &[]).inline(&command[..size_of::<Cqe>()]);
                Ok(sq.post_send([write, response]).map_err(HostError::from)?)
            })?;
            *under_way -= n as usize;
            Ok(n)
        })
    }
}

/// The number at byte offset `at` of a message.
fn number(message: &[u8; Sqe::LEN], at: usize) -> u64 {
    u64::from_ne_bytes(message[at..at + 8].try_into().expect("eight bytes"))
}

#[cfg(test)]
mod tests {
    use super::*;

    // Goal: both measurements succeed and give results. Benchmarks check how large these are.
    #[test]
    fn both_kinds_are_measured() {
        let nqn: Nqn = "nqn.2024-01.test.blocks:ram0".parse().unwrap();
        let out = measure(&nqn, 3, 500).unwrap();
        assert!(out.nvme_ns > 0.0 && out.bare_ns > 0.0 && out.added_ns.is_finite(), "{out:?}");
    }
}
