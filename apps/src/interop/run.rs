//! Runs a cell: makes a queue pair on both sides, moves the messages, compares every byte.
//!
//! Byte `i` of pattern `s` is `(s + i) mod 251`; message `n` of a run carries pattern `seed + n`. Both regions are
//! laid out alike: what is sent, and what peers write to, in the lower half; receives in the upper half.

use super::cell::{Cell, Op, Requester, Service};
use super::remote::{Remote, Reply};
use crate::error::{AppError, Result};
use std::time::{Duration, Instant};
use verbs::{
    Access, Ah, Context, Cq, GRH_LEN, Gid, Mr, Pd, Psn, Qp, QpCap, QpInitAttr, QpType, Qpn, RcEndpoint,
    RcOptions, RecvWr, SendWr, Wc, WcStatus, ah_attr_to,
};

/// Bytes of the registered region of either side.
const REGION: usize = 8 << 20;
const HALF: usize = REGION / 2;
/// A cell without progress for this long has failed.
const PATIENCE: Duration = Duration::from_secs(30);

/// One side's device and the guest, for all cells of a network.
#[derive(Debug)]
pub struct Bench {
    /// The program in the guest.
    pub remote: Remote,
    cq: Cq,
    mr: Mr,
    pd: Pd,
    context: Context,
    gid_index: u8,
    theirs: u64,
}

/// How a pair of queue pairs is made, beyond the cell.
#[derive(Clone, Copy, Debug)]
pub struct Terms {
    /// Exponent of the ACK timeout. An emulated guest takes its time: 18 is 1.07 s.
    pub timeout: u8,
    /// Transport retries.
    pub retry_cnt: u8,
    /// RNR retries.
    pub rnr_retry: u8,
    /// Code of the RNR timer.
    pub rnr_timer: u8,
    /// What the responder's queue pair allows, as access flags.
    pub access: Access,
}

impl Default for Terms {
    fn default() -> Self {
        let access = Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC;
        Self { timeout: 18, retry_cnt: 7, rnr_retry: 7, rnr_timer: 12, access }
    }
}

/// A connected pair.
#[derive(Debug)]
pub struct Pair {
    /// Ours.
    pub qp: Qp,
    /// What the guest calls its own.
    pub id: u64,
    /// Key of the guest's region.
    pub rkey: u32,
    /// Address of the guest's region.
    pub addr: u64,
    depth: u32,
    /// Where datagrams go.
    route: Option<Route>,
}

#[derive(Debug)]
struct Route {
    ah: Ah,
    qpn: Qpn,
    qkey: u32,
}

/// Where the requests of a run go, and what they carry.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// Address of the peer's region, or of what is asked for in its place.
    pub addr: u64,
    /// Its key.
    pub rkey: u32,
    /// Seed of the first message.
    pub seed: u64,
    /// Messages that have memory of their own, on both sides.
    pub slots: u64,
}

fn hex(gid: Gid) -> String {
    gid.0.iter().map(|b| format!("{b:02x}")).collect()
}

fn put(into: &mut Vec<u8>, len: usize, seed: u64) {
    into.clear();
    into.extend((0..len as u64).map(|i| ((seed + i) % 251) as u8));
}

impl Bench {
    /// Our side on an open device, talking from the address at `gid_index` to the guest's `theirs`.
    ///
    /// # Errors
    /// [`AppError::Setup`], [`AppError::Peer`].
    pub fn new(context: Context, mut remote: Remote, gid_index: u8, theirs: Gid) -> Result<Self> {
        let hello = remote.ask("hello")?;
        let theirs = hex(theirs);
        let found =
            hello.pairs().find(|(_, v)| *v == theirs).and_then(|(k, _)| k.strip_prefix("gid")?.parse().ok());
        let theirs = found.ok_or_else(|| AppError::Setup(format!("the guest has no GID {theirs}")))?;
        let pd = context.alloc_pd()?;
        let rights = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC;
        let mr = pd.reg_mr(REGION, rights)?;
        Ok(Self { remote, cq: context.create_cq(4096)?, mr, pd, context, gid_index, theirs })
    }

    /// The device.
    pub fn context(&self) -> &Context {
        &self.context
    }

    /// Address and key of our region.
    pub fn region(&self) -> (u64, u32) {
        (self.mr.addr(), self.mr.rkey())
    }

    /// Makes and connects a queue pair on both sides.
    ///
    /// # Errors
    /// Whatever either side refuses.
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
        let qp = self.pd.create_qp(&QpInitAttr::new(qp_type, &self.cq, &self.cq).cap(cap).sig_all())?;
        let t = terms;
        let theirs = self.remote.ask(&format!(
            "qp type={} mtu={} gid={} psn={} timeout={} retry={} rnr={} rnrt={} depth={depth} access={} srq={}",
            format!("{:?}", cell.service).to_lowercase(),
            cell.mtu as u8,
            self.theirs,
            cell.psn,
            t.timeout,
            t.retry_cnt,
            t.rnr_retry,
            t.rnr_timer,
            t.access.bits(),
            u8::from(cell.srq),
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
        let options = RcOptions {
            sgid_index: self.gid_index,
            path_mtu: Some(cell.mtu),
            timeout: t.timeout,
            retry_cnt: t.retry_cnt,
            rnr_retry: t.rnr_retry,
            min_rnr_timer: t.rnr_timer,
            max_rd_atomic: 4,
            max_dest_rd_atomic: 4,
            access: t.access,
            ..RcOptions::default()
        };
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
        Ok(Pair { qp, id, rkey, addr, depth, route })
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
        let mut wc = [Wc::default()];
        loop {
            if self.cq.poll(&mut wc)? == 1 {
                return Ok(wc[0]);
            }
            if Instant::now() > until {
                return Err(AppError::Timeout(format!("no completion for {} s", PATIENCE.as_secs())));
            }
            crate::stop::check()?;
        }
    }

    /// The next completion of ours.
    ///
    /// # Errors
    /// [`AppError::Timeout`].
    pub fn next(&self) -> Result<Wc> {
        self.poll(Instant::now() + PATIENCE)
    }

    /// Posts the `n`-th receive of a pair: slots of the upper half in turn.
    ///
    /// # Errors
    /// [`AppError::Completion`].
    pub fn post_recv(&self, pair: &Pair, n: u32, len: u32) -> Result<()> {
        let slot = n % pair.depth;
        let at = HALF + slot as usize * slot_of(len);
        let sge = self.mr.sge(at..at + len as usize)?;
        pair.qp.post_recv(&[RecvWr::new(slot.into(), &[sge])])?;
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
        };
        let wr = match &pair.route {
            Some(route) => wr.to(&route.ah, route.qpn, route.qkey),
            None => wr,
        };
        pair.qp.post_send(&[wr.signaled()])?;
        Ok(())
    }

    fn compare(&self, at: usize, len: u32, seed: u64, what: &str) -> Result<()> {
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
    /// What went wrong, in one sentence.
    pub fn run(&mut self, cell: &Cell) -> Result<()> {
        let room = cell.len + grh(cell.service);
        let depth = (HALF / slot_of(room).max(1)).clamp(1, 64) as u32;
        let pair = self.pair(cell, depth.next_power_of_two().min(64), &Terms::default())?;
        let done = self.messages(cell, &pair, depth);
        let closed = self.close(pair);
        done.and(closed)
    }

    /// All messages of a cell: at once where lost packets come again, else in batches that no queue is too short for.
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
        let packets = cell.len.div_ceil(cell.mtu.bytes() as u32).max(1);
        let batch = match cell.service {
            Service::Rc => cell.count,
            Service::Uc | Service::Ud => (BATCH_PACKETS / packets).clamp(1, 16),
        };
        let seed = 1000 + u64::from(cell.len);
        for first in (0..cell.count).step_by(batch as usize) {
            let part = Cell { count: batch.min(cell.count - first), ..*cell };
            let window = u64::from(depth.min(16));
            match cell.by {
                Requester::Us => self.ask(&part, pair, seed + u64::from(first), window)?,
                Requester::Linux => self.serve(&part, pair, seed + u64::from(first), window)?,
            }
        }
        Ok(())
    }

    /// We are the requester.
    fn ask(&mut self, cell: &Cell, pair: &Pair, seed: u64, window: u64) -> Result<()> {
        let (op, len, count) = (cell.op, cell.len, u64::from(cell.count));
        let stride = slot_of(len);
        let id = pair.id;
        if op.receives() {
            self.remote.tell(&format!(
                "expect qp={id} count={count} len={len} seed={seed} op={} imm=0",
                op.name()
            ))?;
        } else if op == Op::Read {
            self.remote.ask(&format!("fill off=0 len={len} seed={seed} count={window} stride={stride}"))?;
        } else if op.atomic() {
            self.remote.ask(&format!("word qp={id} off=0 set={seed}"))?;
        }
        let to = Target { addr: pair.addr, rkey: pair.rkey, seed, slots: window };
        let (mut posted, mut done) = (0, 0);
        while done < count {
            while posted < count && posted - done < window {
                self.post(pair, op, posted, len, &to)?;
                posted += 1;
            }
            let wc = self.next()?;
            if wc.status != WcStatus::Success {
                return Err(AppError::Completion(format!(
                    "request {}: {} ({})",
                    wc.wr_id,
                    wc.status,
                    wc.status.name()
                )));
            }
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
        if matches!(op, Op::Write | Op::WriteImm) {
            let (slots, first) = (window.min(count), count.saturating_sub(window));
            for n in first..first + slots {
                let line = format!("check off={} len={len} seed={}", n % window * stride as u64, seed + n);
                // Nothing tells when an unreliable WRITE is there.
                settled(cell.service, || self.remote.ask(&line).map(drop))?;
            }
        }
        Ok(())
    }

    /// Linux is the requester.
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
        self.remote.tell(&format!(
            "run qp={} op={} count={count} len={len} addr={} rkey={} stride={stride} seed={seed} window={window}",
            pair.id,
            op.name(),
            self.mr.addr(),
            self.mr.rkey(),
        ))?;
        if op.receives() {
            for n in 0..count {
                let wc = self.next()?;
                if wc.status != WcStatus::Success {
                    return Err(AppError::Completion(format!(
                        "receive {n}: {} ({})",
                        wc.status,
                        wc.status.name()
                    )));
                }
                if wc.byte_len != len + extra {
                    return Err(AppError::Verify(format!(
                        "message {n} has {} bytes, not {len}",
                        wc.byte_len
                    )));
                }
                if op.imm() && wc.imm_data() != Some(n as u32) {
                    return Err(AppError::Verify(format!("message {n} has immediate {:?}", wc.imm_data())));
                }
                if op != Op::WriteImm {
                    let at = HALF + wc.wr_id as usize * slot_of(len + extra) + extra as usize;
                    self.compare(at, len, seed + n, &format!("message {n}"))?;
                }
                self.post_recv(pair, wc.wr_id as u32, len + grh(cell.service))?;
            }
        }
        // A thread of the device turns it while nobody polls.
        let reply = self.remote.answer()?;
        all_done(&reply, count)?;
        if matches!(op, Op::Write | Op::WriteImm) {
            for n in count.saturating_sub(window)..count {
                let at = (n % window) as usize * stride;
                settled(cell.service, || self.compare(at, len, seed + n, &format!("WRITE {n}")))?;
            }
        }
        Ok(())
    }
}

/// Packets of unreliable messages that are under way at most: no queue on the way may overflow.
const BATCH_PACKETS: u32 = 48;

/// Bytes in front of a received message that hold the network header.
fn grh(service: Service) -> u32 {
    if service == Service::Ud { GRH_LEN as u32 } else { 0 }
}

/// Looks until what is looked for is there; for a reliable service it is there at the first look.
fn settled(service: Service, mut look: impl FnMut() -> Result<()>) -> Result<()> {
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
fn slot_of(len: u32) -> usize {
    (len as usize).next_multiple_of(64)
}

fn all_done(reply: &Reply, count: u64) -> Result<()> {
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
