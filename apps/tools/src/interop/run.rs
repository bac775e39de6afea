//! Runs a cell: creates a queue pair on both sides, transfers the messages, compares every byte.
//!
//! Byte `i` of pattern `s` is `(s + i) mod 251`; message `n` of a run carries pattern `seed + n`. Both regions have the same
//! layout: data to send, and the target of the peer's writes, in the lower half; receives in the upper half.

use super::cell::{Cell, Op, Requester, Service, UNREPEATED_PACKETS};
use super::remote::{Remote, Reply};
use apps::completion;
use apps::error::{AppError, Result};
use std::time::{Duration, Instant};
use verbs::{
    Access, Ah, Context, Cq, GRH_LEN, Gid, Mr, Pd, Psn, Qp, QpCap, QpInitAttr, QpType, Qpn, RcEndpoint,
    RcOptions, RecvWr, SendWr, Srq, SrqInitAttr, VendorErr, Wc, WcStatus, ah_attr_to,
};

/// Bytes of the registered region of either side.
const REGION: usize = 8 << 20;
/// Offset of the upper half.
pub(super) const HALF: usize = REGION / 2;
/// A cell without progress for this long has failed.
pub(super) const PATIENCE: Duration = Duration::from_secs(30);

/// One side's device and the guest, for all cells of a network.
#[derive(Debug)]
pub struct Bench {
    /// The program in the guest.
    pub remote: Remote,
    cq: Cq,
    mr: Mr,
    pd: Pd,
    gid_index: u8,
    theirs: u64,
    kernel: String,
    /// Whether the guest's kernel answers ATOMIC WRITE, and whether the guest's library can request it.
    atomic_write: [bool; 2],
    lossy: bool,
}

/// Attributes of a pair of queue pairs, in addition to the cell's.
#[derive(Clone, Copy, Debug)]
pub struct Terms {
    /// Exponent of the ACK timeout. An emulated guest is slow, and on a busy machine it waits for a core: 18 is 1.07 s, and seven retries
    /// are 10 s.
    pub timeout: u8,
    /// Transport retries.
    pub retry_cnt: u8,
    /// RNR retries.
    pub rnr_retry: u8,
    /// Code of the RNR timer.
    pub rnr_timer: u8,
    /// Access flags of the responder's queue pair.
    pub access: Access,
    /// Whether the guest requests atomics by the calls that check nothing.
    pub raw: bool,
}

impl Default for Terms {
    fn default() -> Self {
        let access = Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC;
        Self { timeout: 18, retry_cnt: 7, rnr_retry: 7, rnr_timer: 12, access, raw: false }
    }
}

/// A connected pair.
#[derive(Debug)]
pub struct Pair {
    /// This stack's queue pair.
    pub qp: Qp,
    /// The guest's number of its queue pair.
    pub id: u64,
    /// Key of the guest's region.
    pub rkey: u32,
    /// Address of the guest's region.
    pub addr: u64,
    /// Number of receives that can be posted.
    pub depth: u32,
    /// Where this side's receives are posted, if not to the queue pair. Declared after the queue pair, which must be destroyed first.
    srq: Option<Srq>,
    /// Destination of datagrams.
    route: Option<Route>,
}

#[derive(Debug)]
struct Route {
    ah: Ah,
    qpn: Qpn,
    qkey: u32,
}

/// The target of a run's requests, and their data.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// Address of the peer's region, or the address to request instead.
    pub addr: u64,
    /// Key of the region.
    pub rkey: u32,
    /// Seed of the first message's pattern.
    pub seed: u64,
    /// Number of messages with memory of their own, on both sides.
    pub slots: u64,
}

fn hex(gid: Gid) -> String {
    gid.0.iter().map(|b| format!("{b:02x}")).collect()
}

/// The error with the queue pair's counters, which distinguish a silent peer from one that missed packets.
fn with_counters(error: AppError, qp: &Qp) -> AppError {
    let AppError::Completion(what) = error else { return error };
    let counts: Vec<_> =
        qp.counters().iter().filter(|&(_, n)| n > 0).map(|(name, n)| format!("{name} {n}")).collect();
    AppError::Completion(format!("{what}; {}", counts.join(", ")))
}

fn put(into: &mut Vec<u8>, len: usize, seed: u64) {
    into.clear();
    into.extend((0..len as u64).map(|i| ((seed + i) % 251) as u8));
}

impl Bench {
    /// Prepares this side on an open device, with the address at `gid_index`, and the guest at address `theirs`; `lossy` if packets are
    /// lost on the path.
    ///
    /// # Errors
    /// [`AppError::Setup`], [`AppError::Peer`].
    pub fn new(
        context: &Context,
        mut remote: Remote,
        gid_index: u8,
        theirs: Gid,
        lossy: bool,
    ) -> Result<Self> {
        let hello = remote.ask("hello")?;
        let theirs = hex(theirs);
        let found =
            hello.pairs().find(|(_, v)| *v == theirs).and_then(|(k, _)| k.strip_prefix("gid")?.parse().ok());
        let theirs = found.ok_or_else(|| AppError::Setup(format!("the guest has no GID {theirs}")))?;
        let kernel = hello.text("kernel").to_string();
        let atomic_write = [hello.num("atomic_write") == 1, hello.num("post_atomic_write") == 1];
        let pd = context.alloc_pd()?;
        let rights = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC;
        let mr = pd.reg_mr(REGION, rights)?;
        let cq = context.create_cq(4096)?;
        Ok(Self { remote, cq, mr, pd, gid_index, theirs, kernel, atomic_write, lossy })
    }

    /// The reason why the guest cannot do its part of a cell, if any.
    pub fn lacks(&self, cell: &Cell) -> Option<String> {
        match (cell.op, cell.by) {
            (Op::AtomicWrite, _) if !self.atomic_write[0] => Some(format!(
                "soft-RoCE of Linux {} has no ATOMIC WRITE (Linux 6.2 and later do)",
                self.kernel
            )),
            (Op::AtomicWrite, Requester::Linux) if !self.atomic_write[1] => {
                Some("the guest's rdma-core cannot post ATOMIC WRITE".into())
            }
            (Op::AtomicWrite, Requester::Linux) if self.lossy => {
                Some("soft-RoCE repeats an ATOMIC WRITE with address 0".into())
            }
            (Op::Read, Requester::Us) if self.lossy && cell.len == 0 => {
                Some("soft-RoCE does not answer a READ of no bytes again".into())
            }
            _ => None,
        }
    }

    /// Address and key of this side's region.
    pub fn region(&self) -> (u64, u32) {
        (self.mr.addr(), self.mr.rkey())
    }

    /// Creates and connects a queue pair on both sides.
    ///
    /// # Errors
    /// Any error of either side.
    pub fn pair(&mut self, cell: &Cell, depth: u32, terms: &Terms) -> Result<Pair> {
        let cap = QpCap {
            max_send_wr: depth,
            max_recv_wr: depth,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline_data: 0,
        };
        let qp_type = match cell.service {
            Service::Rc => QpType::Rc,
            Service::Uc => QpType::Uc,
            Service::Ud => QpType::Ud,
        };
        let ours_shared = cell.srq && cell.by == Requester::Linux;
        let srq = ours_shared.then(|| self.pd.create_srq(&SrqInitAttr::new(depth, 1))).transpose()?;
        let mut init = QpInitAttr::new(qp_type, &self.cq, &self.cq).cap(cap).sig_all();
        if let Some(srq) = &srq {
            init = init.srq(srq);
        }
        let qp = self.pd.create_qp(&init)?;
        let t = terms;
        let theirs = self.remote.ask(&format!(
            "qp type={} mtu={} gid={} psn={} timeout={} retry={} rnr={} rnrt={} depth={depth} access={} srq={} \
             atomic_write={} raw={}",
            cell.service.name(),
            cell.mtu as u8,
            self.theirs,
            cell.psn,
            t.timeout,
            t.retry_cnt,
            t.rnr_retry,
            t.rnr_timer,
            t.access.bits(),
            u8::from(cell.srq && cell.by == Requester::Us),
            u8::from(cell.op == Op::AtomicWrite && cell.by == Requester::Linux),
            u8::from(t.raw && cell.op.atomic() && cell.by == Requester::Linux),
        ))?;
        let ours = qp.endpoint(self.gid_index)?;
        let id = theirs.num("qp");
        self.remote.ask(&format!(
            "connect qp={id} qpn={} psn={} dgid={}",
            ours.qpn.get(),
            ours.psn.get(),
            hex(ours.gid)
        ))?;
        let peer = RcEndpoint {
            gid: gid_of(theirs.text("gid"))?,
            qpn: Qpn::new(theirs.num("qpn") as u32),
            psn: Psn::new(theirs.num("psn") as u32),
        };
        let options = RcOptions::default()
            .sgid_index(self.gid_index)
            .path_mtu(cell.mtu)
            .timeout(t.timeout)
            .retry_cnt(t.retry_cnt)
            .rnr_retry(t.rnr_retry)
            .min_rnr_timer(t.rnr_timer)
            .max_rd_atomic(4)
            .max_dest_rd_atomic(4)
            .access(t.access);
        let mut route = None;
        match cell.service {
            Service::Rc => qp.connect_rc(&peer, &options)?,
            Service::Uc => qp.connect_uc(&peer, &options)?,
            Service::Ud => {
                let qkey = theirs.num("qkey") as u32;
                qp.activate_ud(qkey)?;
                let ah = self.pd.create_ah(&ah_attr_to(peer.gid, self.gid_index))?;
                route = Some(Route { ah, qpn: peer.qpn, qkey });
            }
        }
        let (rkey, addr) = (theirs.num("rkey") as u32, theirs.num("addr"));
        Ok(Pair { qp, id, rkey, addr, depth, srq, route })
    }

    /// Destroys a pair on both sides.
    ///
    /// # Errors
    /// [`AppError::Peer`].
    pub fn close(&mut self, pair: Pair) -> Result<()> {
        self.remote.ask(&format!("destroy qp={}", pair.id))?;
        drop(pair);
        Ok(())
    }

    fn poll(&self, until: Instant) -> Result<Wc> {
        loop {
            if let Some(wc) = self.look()? {
                return Ok(wc);
            }
            if Instant::now() > until {
                return Err(AppError::Timeout(format!("no completion for {} s", PATIENCE.as_secs())));
            }
            apps::stop::check()?;
        }
    }

    /// The next completion, if there is one.
    pub(super) fn look(&self) -> Result<Option<Wc>> {
        let mut wc = [Wc::default()];
        Ok((self.cq.poll(&mut wc)? == 1).then_some(wc[0]))
    }

    /// Waits for this side's next completion.
    ///
    /// # Errors
    /// [`AppError::Timeout`].
    pub fn next(&self) -> Result<Wc> {
        self.poll(Instant::now() + PATIENCE)
    }

    /// Posts the `n`-th receive of a pair, into the slots of the upper half in turn.
    ///
    /// # Errors
    /// [`AppError::Completion`].
    pub fn post_recv(&self, pair: &Pair, n: u32, len: u32) -> Result<()> {
        let slot = n % pair.depth;
        let at = HALF + slot as usize * slot_of(len);
        let sge = [self.mr.sge(at..at + len as usize)?];
        let wr = [RecvWr::new(slot.into(), &sge)];
        match &pair.srq {
            Some(srq) => srq.post_recv(&wr)?,
            None => pair.qp.post_recv(&wr)?,
        }
        Ok(())
    }

    /// Posts request `n` of a run as the requester.
    ///
    /// # Errors
    /// [`AppError::Completion`].
    pub fn post(&self, pair: &Pair, op: Op, n: u64, len: u32, to: &Target) -> Result<()> {
        let Target { addr: base, rkey, seed, slots } = *to;
        let slot = n % slots;
        let at = slot as usize * slot_of(len);
        let sge = [self.mr.sge(at..at + len as usize)?];
        let mut data = Vec::new();
        put(&mut data, len as usize, if op == Op::Read { n + 100 } else { seed + n });
        self.mr.write(at, &data)?;
        let addr = base + slot * slot_of(len) as u64;
        let imm = n as u32;
        let wr = match op {
            Op::Send => SendWr::send(n, &sge),
            Op::SendImm => SendWr::send_with_imm(n, &sge, imm),
            Op::Write => SendWr::write(n, &sge, addr, rkey),
            Op::WriteImm => SendWr::write_with_imm(n, &sge, addr, rkey, imm),
            Op::Read => SendWr::read(n, &sge, addr, rkey),
            Op::Cas => SendWr::cmp_and_swp(n, &sge, base, rkey, seed + n, seed + n + 1),
            Op::Fadd => SendWr::fetch_and_add(n, &sge, base, rkey, 1),
            Op::AtomicWrite => SendWr::atomic_write(n, &sge, addr, rkey),
        };
        let wr = match &pair.route {
            Some(route) => wr.to(&route.ah, route.qpn, route.qkey),
            None => wr,
        };
        pair.qp.post_send(&[wr.signaled()])?;
        Ok(())
    }

    pub(super) fn compare(&self, at: usize, len: u32, seed: u64, what: &str) -> Result<()> {
        let (mut want, mut is) = (Vec::new(), vec![0; len as usize]);
        put(&mut want, len as usize, seed);
        self.mr.read(at, &mut is)?;
        match want.iter().zip(&is).position(|(w, i)| w != i) {
            None => Ok(()),
            Some(i) => {
                Err(AppError::Verify(format!("{what}: byte {i} is {:#04x}, not {:#04x}", is[i], want[i])))
            }
        }
    }

    /// Runs a cell.
    ///
    /// # Errors
    /// The failure, in one sentence.
    pub fn run(&mut self, cell: &Cell) -> Result<()> {
        let room = cell.len + grh(cell.service);
        let depth = (HALF / slot_of(room).max(1)).clamp(1, 64) as u32;
        let pair = self.pair(cell, depth.next_power_of_two().min(64), &Terms::default())?;
        let done = self.messages(cell, &pair, depth).map_err(|e| with_counters(e, &pair.qp));
        let closed = self.close(pair);
        done.and(closed)
    }

    /// Transfers all messages of a cell: at once if lost packets are retransmitted, otherwise in batches that fit into every queue on the
    /// path.
    fn messages(&mut self, cell: &Cell, pair: &Pair, depth: u32) -> Result<()> {
        if cell.op.receives() {
            match cell.by {
                Requester::Us => {
                    self.remote.ask(&format!("recv qp={} count={depth} len={}", pair.id, cell.len))?;
                }
                Requester::Linux => {
                    for n in 0..depth {
                        self.post_recv(pair, n, cell.len + grh(cell.service))?;
                    }
                }
            }
        }
        let window = depth.min(16);
        let batch = match cell.service {
            // Each WRITE is checked before another one overwrites it.
            Service::Rc if cell.op.writes() => window,
            Service::Rc => cell.count,
            Service::Uc | Service::Ud => (UNREPEATED_PACKETS / cell.packets()).clamp(1, window),
        };
        let seed = 1000 + u64::from(cell.len);
        if cell.service != Service::Rc && cell.packets() > UNREPEATED_PACKETS {
            return self.one_by_one(cell, pair, seed);
        }
        let window = u64::from(window);
        for first in (0..cell.count).step_by(batch as usize) {
            let part = Cell { count: batch.min(cell.count - first), ..*cell };
            match cell.by {
                Requester::Us => self.ask(&part, pair, seed + u64::from(first), window)?,
                Requester::Linux => self.serve(&part, pair, seed + u64::from(first), window)?,
            }
        }
        Ok(())
    }

    /// Runs a cell with this stack as the requester.
    fn ask(&mut self, cell: &Cell, pair: &Pair, seed: u64, window: u64) -> Result<()> {
        let (op, len, count) = (cell.op, cell.len, u64::from(cell.count));
        let stride = slot_of(len);
        let id = pair.id;
        if op.receives() {
            self.remote.send(&format!(
                "expect qp={id} count={count} len={len} seed={seed} op={} imm=0",
                op.name()
            ))?;
        } else if op == Op::Read {
            self.remote.ask(&format!("fill off=0 len={len} seed={seed} count={window} stride={stride}"))?;
        } else if op.atomic() {
            self.remote.ask(&format!("word qp={id} off=0 set={seed}"))?;
        }
        let to = Target { addr: pair.addr, rkey: pair.rkey, seed, slots: window };
        let (mut posted, mut done, mut last) = (0, 0, Instant::now());
        while done < count {
            while posted < count && posted - done < window {
                self.post(pair, op, posted, len, &to)?;
                posted += 1;
            }
            let wc = self.next()?;
            if wc.status != WcStatus::Success {
                let why = VendorErr(wc.vendor_err);
                let after = last.elapsed().as_secs_f64();
                return Err(AppError::Completion(format!(
                    "{} ({why}), {after:.2} s after the one before",
                    completion::status(&wc)
                )));
            }
            last = Instant::now();
            let slot = done % window;
            let at = slot as usize * stride;
            if op == Op::Read {
                self.compare(at, len, seed + slot, &format!("READ {done}"))?;
            } else if op.atomic() {
                let mut was = [0; 8];
                self.mr.read(at, &mut was)?;
                let was = u64::from_ne_bytes(was);
                if was != seed + done {
                    return Err(AppError::Verify(format!("atomic {done} found {was}, not {}", seed + done)));
                }
            }
            done += 1;
        }
        if op.receives() {
            let reply = self.remote.answer()?;
            all_done(&reply, count)?;
        }
        if op.writes() {
            let line = format!("check off=0 len={len} seed={seed} count={count} stride={stride}");
            // An unreliable WRITE has no completion at its target.
            until_ok(cell.service, || self.remote.ask(&line).map(drop))?;
        }
        Ok(())
    }

    /// Runs a cell with Linux as the requester.
    fn serve(&mut self, cell: &Cell, pair: &Pair, seed: u64, window: u64) -> Result<()> {
        let (op, len, count) = (cell.op, cell.len, u64::from(cell.count));
        let (stride, extra) = (slot_of(len), if op == Op::WriteImm { 0 } else { grh(cell.service) });
        let mut data = Vec::new();
        if op == Op::Read {
            for slot in 0..window {
                put(&mut data, len as usize, seed + slot);
                self.mr.write(slot as usize * stride, &data)?;
            }
        } else if op.atomic() {
            self.mr.write(0, &seed.to_ne_bytes())?;
        }
        self.remote.send(&format!(
            "run qp={} op={} count={count} len={len} addr={} rkey={} stride={stride} seed={seed} window={window}",
            pair.id,
            op.name(),
            self.mr.addr(),
            self.mr.rkey(),
        ))?;
        if op.receives() {
            for n in 0..count {
                let wc = self.next()?;
                check_receive(cell, &wc, n, extra)?;
                if op != Op::WriteImm {
                    let at = HALF + wc.wr_id as usize * slot_of(len + extra) + extra as usize;
                    self.compare(at, len, seed + n, &format!("message {n}"))?;
                }
                self.post_recv(pair, wc.wr_id as u32, len + grh(cell.service))?;
            }
        }
        // A thread of the device drives it while this thread does not poll.
        let reply = self.remote.answer()?;
        all_done(&reply, count)?;
        if op.writes() {
            for n in 0..count {
                let at = n as usize * stride;
                until_ok(cell.service, || self.compare(at, len, seed + n, &format!("WRITE {n}")))?;
            }
        }
        Ok(())
    }
}

/// Bytes of the network header in front of a received message.
fn grh(service: Service) -> u32 {
    if service == Service::Ud { GRH_LEN as u32 } else { 0 }
}

/// Checks the receive completion of message `n` of a cell; `extra` is the length of a network header before the message.
pub(super) fn check_receive(cell: &Cell, wc: &Wc, n: u64, extra: u32) -> Result<()> {
    if wc.status != WcStatus::Success {
        return Err(AppError::Completion(format!("receive {n}: {}", completion::status(wc))));
    }
    if wc.byte_len != cell.len + extra {
        return Err(AppError::Verify(format!("message {n} has {} bytes, not {}", wc.byte_len, cell.len)));
    }
    if cell.op.imm() && wc.imm_data() != Some(n as u32) {
        return Err(AppError::Verify(format!("message {n} has immediate {:?}", wc.imm_data())));
    }
    Ok(())
}

/// Repeats a check until it succeeds; for a reliable service it must succeed at once.
fn until_ok(service: Service, mut look: impl FnMut() -> Result<()>) -> Result<()> {
    let start = Instant::now();
    loop {
        let seen = look();
        if seen.is_ok() || service == Service::Rc || start.elapsed() > Duration::from_secs(2) {
            return seen;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Bytes from one message's slot to the next, on both sides.
pub(super) fn slot_of(len: u32) -> usize {
    (len as usize).next_multiple_of(64)
}

pub(super) fn all_done(reply: &Reply, count: u64) -> Result<()> {
    if reply.num("done") == count {
        return Ok(());
    }
    let status = WcStatus::from_number(reply.num("status") as u32);
    let status = status.map_or("?", WcStatus::name);
    Err(AppError::Peer(format!("{} of {count} done, then {status}", reply.num("done"))))
}

fn gid_of(text: &str) -> Result<Gid> {
    let byte = |i: usize| text.get(2 * i..2 * i + 2).and_then(|b| u8::from_str_radix(b, 16).ok());
    let mut gid = [0; 16];
    for (i, b) in gid.iter_mut().enumerate() {
        *b = byte(i).ok_or_else(|| AppError::Peer(format!("no GID: {text:?}")))?;
    }
    Ok(Gid(gid))
}
