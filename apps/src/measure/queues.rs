//! Queue pairs, memory and completion queues of one measurement, at one end.

use crate::cm;
use crate::completion;
use crate::error::{AppError, Result};
use crate::plan::{Mode, Op, Pattern, Spec};
use crate::protocol::{End, QpEnd, gid_hex, parse_gid};
use crate::rig::{Driver, OpenDevice, Side};
use crate::verify::{Slices, Which};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;
use verbs::rdma_cm::{CmEventType, CmId, CmOption, ConnParam, EventChannel};
use verbs::{
    Access, AttrMask, Cq, CqPoller, Gid, Mr, Mtu, Pd, Psn, Qp, QpAttr, QpCap, QpInitAttr, QpState, Qpn,
    RcEndpoint, RcOptions, RecvQueue, RecvWr, SendQueue, Sge, Srq, SrqInitAttr, Wc, WcStatus,
};

/// Entries of the completion queue of receives if the measuring thread drives the shards and polls after each turn.
const RECV_CQ_EMBEDDED: u32 = 4096;
/// Queue pairs connected between two calls of `idle`.
const CONNECTED_BETWEEN: usize = 64;
/// Distance between the target words of atomics: a cache line.
const WORD_STRIDE: usize = 64;

/// The role of an end in a measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Role {
    /// This end posts send requests.
    pub requests: bool,
    /// The other end posts send requests to this end.
    pub serves: bool,
    /// Included in the stream numbers of data that this end sends, so that the directions differ.
    pub side: Side,
}

impl Role {
    /// The role of `side` in `spec`.
    pub fn of(side: Side, spec: &Spec) -> Self {
        let both = spec.bidirectional || spec.mode == Mode::Lat && !spec.op.answers();
        Self { requests: both || side == Side::Client, serves: both || side == Side::Server, side }
    }
    /// The stream of queue pair `qp` towards the other end.
    pub fn tx_stream(&self, qp: usize) -> u32 {
        qp as u32 | if self.side == Side::Client { 0x8000 } else { 0 }
    }
    /// The stream of queue pair `qp` from the other end.
    pub fn rx_stream(&self, qp: usize) -> u32 {
        self.tx_stream(qp) ^ 0x8000
    }
}

/// The other end's memory, for WRITE, READ and atomics.
#[derive(Clone, Copy, Debug, Default)]
pub struct Remote {
    /// Address of the first byte.
    pub addr: u64,
    /// Key of that memory.
    pub rkey: u32,
}

/// The message buffers of an end: one for each position of each queue pair, or fewer that the positions use in turn.
#[derive(Clone, Copy, Debug)]
pub struct Buffers {
    /// The first one.
    first: Sge,
    /// Buffers of a queue pair.
    slots: usize,
    /// Bytes from one to the next.
    stride: usize,
}

impl Buffers {
    /// Buffers of `size` bytes at the start of `memory`; empty ones without memory, which cannot be posted.
    fn new(memory: Option<&Mr>, size: usize, slots: usize, stride: usize) -> Result<Self> {
        let first = memory.map(|mr| mr.sge(0..size)).transpose()?;
        Ok(Self { first: first.unwrap_or_default(), slots, stride })
    }
    /// Offset in the memory of the buffer at position `index` of queue pair `qp`.
    pub fn offset(&self, qp: usize, index: usize) -> usize {
        (qp * self.slots + index % self.slots) * self.stride
    }
    /// The buffer at position `index` of queue pair `qp`.
    pub fn sge(&self, qp: usize, index: usize) -> Sge {
        self.behind(self.offset(qp, index))
    }
    /// The buffers of all positions of `qps` queues of `depth`, one queue after the other.
    pub fn all(&self, qps: usize, depth: u32) -> Vec<Sge> {
        let of = |qp| self.from(qp, 0, depth).take(depth as usize).map(|(_, sge)| sge);
        (0..qps).flat_map(of).collect()
    }
    /// Positions of a queue of `depth` from `index` on, wrapping around, and their buffers.
    #[inline]
    pub fn from(&self, qp: usize, index: u32, depth: u32) -> impl Iterator<Item = (u32, Sge)> + use<> {
        let (all, start) = (*self, self.offset(qp, 0));
        let end = start + self.slots * self.stride;
        let (mut next, mut at) = (index, self.offset(qp, index as usize));
        core::iter::repeat_with(move || {
            let this = (next, all.behind(at));
            (next, at) = (next + 1, at + all.stride);
            if at == end {
                at = start;
            }
            if next == depth {
                (next, at) = (0, start);
            }
            this
        })
    }
    #[inline]
    fn behind(&self, offset: usize) -> Sge {
        Sge { addr: self.first.addr + offset as u64, ..self.first }
    }
}

/// One end of a measurement, ready to run. The order of the fields is the order of their drops: handles before their objects.
#[derive(Debug)]
pub struct QueueSet {
    /// Send queues, by queue pair.
    pub sqs: Vec<SendQueue>,
    /// Receive queues, by queue pair.
    pub rqs: Vec<RecvQueue>,
    /// Completions of sends.
    pub send_cq: CqPoller,
    /// Completions of receives.
    pub recv_cq: CqPoller,
    qps: Vec<Arc<Qp>>,
    /// Their identifiers and the channel of these, if they are connected by `rdma_cm`.
    ids: Vec<CmId>,
    events: Option<EventChannel>,
    /// The shared receive queue, if the measurement uses one.
    srq: Option<Srq>,
    /// Source of sends, and target of READ and atomics' results.
    pub local: Option<Mr>,
    /// Target of receives.
    pub inbox: Option<Mr>,
    /// Memory that the other end may access.
    pub target: Option<Mr>,
    /// The other end's target.
    pub remote: Remote,
    /// The other end's address, for error messages.
    pub peer: Gid,
    /// This end's role.
    pub role: Role,
    cqs: [Cq; 2],
    pd: Pd,
    cap: QpCap,
    mtu: Mtu,
    gid: Gid,
    op: Op,
    send_cq_len: usize,
    options: RcOptions,
    /// The buffers of send requests in [`local`](Self::local); those in the target of WRITE and READ have the same layout.
    pub tx: Buffers,
    /// The buffers of receives in [`inbox`](Self::inbox).
    pub rx: Buffers,
}

/// Lengths of the completion queues of sends and of receives.
fn cq_lens(spec: &Spec, receives: bool, embedded: bool) -> (u32, u32) {
    let sends = match spec.pattern {
        Pattern::All => spec.qps * spec.tx_depth,
        Pattern::Random => spec.in_flight * spec.visit,
    };
    let receives = match spec.pattern {
        _ if !receives => 1,
        _ if spec.srq => spec.rx_slots() as u32,
        Pattern::All => spec.qps * spec.rx_depth,
        // A thread that drives the shards polls after each turn, which brings one burst or a few. Otherwise every posted
        // receive may complete before the next poll.
        Pattern::Random if embedded => (spec.qps * spec.rx_depth).min(RECV_CQ_EMBEDDED),
        Pattern::Random => (spec.qps * spec.rx_depth).min(verbs::limits::CQE_MAX),
    };
    (sends, receives)
}

/// Attributes of the connections.
fn options(spec: &Spec, sgid_index: u8, mtu: Mtu) -> RcOptions {
    RcOptions::default()
        .sgid_index(sgid_index)
        .path_mtu(mtu)
        .traffic_class(spec.tclass)
        .timeout(spec.timeout)
        .retry_cnt(spec.retry)
        .rnr_retry(spec.rnr_retry)
        .min_rnr_timer(1)
        .max_rd_atomic(spec.outs)
        .max_dest_rd_atomic(spec.outs)
}

impl QueueSet {
    /// Creates everything that does not depend on the other end. With `rdma_cm` the queue pairs are created later, with their
    /// identifiers.
    ///
    /// # Errors
    /// Errors of the device.
    pub fn new(
        device: &mut OpenDevice,
        spec: &Spec,
        side: Side,
        gid_index: u8,
        mtu: Mtu,
        rdma_cm: bool,
    ) -> Result<Self> {
        let role = Role::of(side, spec);
        let gid = device.gid(gid_index)?;
        let OpenDevice { context, driver, .. } = device;
        let pd = context.alloc_pd()?;
        let qps = spec.qps as usize;
        let (stride, tx_slots, rx_slots) =
            (spec.stride() as usize, spec.tx_slots() as usize, spec.rx_slots() as usize);
        let receives = spec.op == Op::Send && role.serves;

        let (send_cq_len, recv_cq_len) = cq_lens(spec, receives, driver.is_mine());
        let send_cq = context.create_cq(send_cq_len)?;
        let recv_cq = context.create_cq(recv_cq_len)?;
        // Registering gigabytes takes a while, and a client's `rdma_cm` exchange runs on the same device.
        let mut memory = |wanted: bool, len: usize, access: Access| {
            if wanted { driver.meanwhile(|| pd.reg_mr(len, access)).map(Some) } else { Ok(None) }
        };
        let local = memory(role.requests, qps * tx_slots * stride, Access::LOCAL_WRITE)?;
        let srq = (receives && spec.srq).then(|| pd.create_srq(&SrqInitAttr::new(spec.rx_slots() as u32, 1)));
        let srq = srq.transpose()?;
        let receivers = if spec.srq { 1 } else { qps };
        let inbox = memory(receives, receivers * rx_slots * stride, Access::LOCAL_WRITE)?;
        let remote = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC;
        let target = match spec.op {
            Op::Send => None,
            Op::FetchAdd | Op::CmpSwap => memory(role.serves, qps * WORD_STRIDE, remote)?,
            Op::Write | Op::Read => memory(role.serves, qps * tx_slots * stride, remote)?,
        };

        let cap = QpCap {
            max_send_wr: if role.requests { spec.tx_depth } else { 1 },
            max_recv_wr: if receives { spec.rx_depth } else { 1 },
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline_data: if spec.inline { spec.size as u32 } else { 0 },
        };
        let init = init(&send_cq, &recv_cq, srq.as_ref(), cap);
        let now = if rdma_cm { 0 } else { qps };
        let made =
            (0..now).map(|_| pd.create_qp(&init).map(Arc::new)).collect::<std::result::Result<_, _>>()?;
        let options = options(spec, gid_index, mtu);
        let size = spec.size as usize;
        let (tx, rx) = (
            Buffers::new(local.as_ref(), size, tx_slots, stride)?,
            Buffers::new(inbox.as_ref(), size, rx_slots, stride)?,
        );
        let queues = Self {
            sqs: Vec::with_capacity(qps),
            rqs: Vec::with_capacity(qps),
            send_cq: send_cq.poller()?,
            recv_cq: recv_cq.poller()?,
            srq,
            local,
            inbox,
            target,
            remote: Remote::default(),
            peer: gid,
            role,
            qps: made,
            ids: Vec::new(),
            events: rdma_cm.then(EventChannel::new).transpose()?,
            cqs: [send_cq, recv_cq],
            pd,
            cap,
            mtu,
            gid,
            op: spec.op,
            send_cq_len: send_cq_len as usize,
            options,
            tx,
            rx,
        };
        queues.fill_memory(spec, driver)?;
        if queues.srq.is_some() {
            for slot in 0..rx_slots {
                queues.post_shared(&[RecvWr::new(wr_id(0, slot as u32), &[queues.rx.sge(0, slot)])])?;
            }
        }
        Ok(queues)
    }

    /// Fills memory with the contents that the other end expects to read.
    fn fill_memory(&self, spec: &Spec, driver: &mut Driver) -> Result<()> {
        let mut slices = Slices::default();
        for qp in 0..spec.qps as usize {
            for slot in 0..self.tx.slots {
                if let (Some(target), Op::Read, true) = (&self.target, spec.op, spec.verify) {
                    let which = Which { stream: self.role.tx_stream(qp), seq: slot as u64 };
                    let (at, len) = (self.tx.offset(qp, slot), spec.size as usize);
                    slices.write(target, at, len, which, || driver.turn_between())?;
                }
            }
        }
        Ok(())
    }

    /// This end, as sent to the other end.
    pub fn end(&self) -> End {
        let target = self.target.as_ref();
        End {
            gid: gid_hex(&self.gid),
            qps_total: self.qps.len(),
            qps: self
                .qps
                .iter()
                .map(|qp| QpEnd { qpn: qp.qp_num().get(), psn: qp.first_psn().get() })
                .collect(),
            addr: target.map_or(0, Mr::addr),
            rkey: target.map_or(0, Mr::rkey),
            len: target.map_or(0, |mr| mr.len() as u64),
        }
    }

    /// Stores the other end's address and memory.
    ///
    /// # Errors
    /// An end that does not match this one.
    pub fn learn(&mut self, other: &End, spec: &Spec, peer: Option<Gid>) -> Result<()> {
        let misfit = |what: &str| AppError::Peer(format!("its end of the measurement has {what}"));
        let gid = parse_gid(&other.gid).ok_or_else(|| misfit("no valid GID"))?;
        if other.qps.len() != self.qps.len() {
            return Err(misfit("another number of queue pairs"));
        }
        let needed = match spec.op {
            Op::Send => 0,
            Op::FetchAdd | Op::CmpSwap => spec.qps as usize * WORD_STRIDE,
            Op::Write | Op::Read => spec.qps as usize * self.tx.slots * self.tx.stride,
        };
        if self.role.requests && other.len < needed as u64 {
            return Err(misfit("too little memory"));
        }
        self.peer = peer.unwrap_or(gid);
        self.remote = Remote { addr: other.addr, rkey: other.rkey };
        Ok(())
    }

    /// Connects to the other end and posts the receives. `idle` is called regularly: this host has to answer its neighbours
    /// while very many queue pairs are connected.
    ///
    /// # Errors
    /// An end that does not match this one; errors of the device.
    pub fn connect(
        &mut self,
        other: &End,
        spec: &Spec,
        peer: Option<Gid>,
        mut idle: impl FnMut(),
    ) -> Result<()> {
        self.learn(other, spec, peer)?;
        for (n, other) in other.qps.iter().enumerate() {
            if n % CONNECTED_BETWEEN == CONNECTED_BETWEEN - 1 {
                idle();
            }
            let endpoint = RcEndpoint { gid: self.peer, qpn: Qpn::new(other.qpn), psn: Psn::new(other.psn) };
            self.qps[n].connect_rc(&endpoint, &self.options)?;
            self.take_handles(n, spec)?;
        }
        Ok(())
    }

    /// Connects queue pair `index` to the server at `to` by `rdma_cm`.
    ///
    /// # Errors
    /// Errors of `rdma_cm`.
    pub fn connect_rdma_cm(
        &mut self,
        device: &OpenDevice,
        to: SocketAddr,
        index: usize,
        spec: &Spec,
    ) -> Result<()> {
        let until = Instant::now() + cm::PATIENCE;
        let id = cm::resolved(device, self.events()?, Some(self.gid.to_ip()), to, until)?;
        for option in
            [CmOption::Tos(spec.tclass), CmOption::AckTimeout(spec.timeout), CmOption::PathMtu(self.mtu)]
        {
            id.set_option(option)?;
        }
        let data = cm::measured(index);
        self.bring_up(id, spec, |id, param| id.connect(&ConnParam { private_data: &data, ..param }))
    }

    /// Accepts a client's queue pair.
    ///
    /// # Errors
    /// Errors of `rdma_cm`; a signal.
    pub fn accept(&mut self, id: CmId, spec: &Spec) -> Result<()> {
        id.migrate_id(Some(self.events()?))?;
        id.set_option(CmOption::AckTimeout(spec.timeout))?;
        self.bring_up(id, spec, |id, param| id.accept(&param))
    }

    fn events(&self) -> Result<&EventChannel> {
        self.events
            .as_ref()
            .ok_or_else(|| AppError::Setup("these queues are not connected by rdma_cm".into()))
    }

    /// Creates an identifier's queue pair, posts its receives and connects it.
    fn bring_up(
        &mut self,
        id: CmId,
        spec: &Spec,
        connect: impl FnOnce(&CmId, ConnParam<'static>) -> std::result::Result<(), verbs::VerbsError>,
    ) -> Result<()> {
        let init = init(&self.cqs[0], &self.cqs[1], self.srq.as_ref(), self.cap);
        let qp = id.create_qp(&self.pd, &init)?;
        self.qps.push(qp.clone());
        self.take_handles(self.qps.len() - 1, spec)?;
        let param = ConnParam {
            initiator_depth: spec.outs,
            retry_count: spec.retry,
            rnr_retry_count: spec.rnr_retry,
            ..ConnParam::default()
        };
        connect(&id, param)?;
        cm::await_event(self.events()?, &id, CmEventType::Established, Instant::now() + cm::PATIENCE)?;
        let min_rnr_timer = self.options.min_rnr_timer;
        let attr = QpAttr { qp_state: QpState::Rts, min_rnr_timer, ..QpAttr::default() };
        qp.modify(&attr, AttrMask::STATE | AttrMask::MIN_RNR_TIMER)?;
        self.ids.push(id);
        Ok(())
    }

    /// Takes the handles of queue pair `qp`, and posts its receives.
    fn take_handles(&mut self, qp: usize, spec: &Spec) -> Result<()> {
        let (sq, rq) = self.qps[qp].split()?;
        self.sqs.push(sq);
        self.rqs.push(rq);
        for slot in 0..if self.inbox.is_some() && !spec.srq { spec.rx_depth } else { 0 } {
            let sge = [self.rx.sge(qp, slot as usize)];
            self.rqs[qp].post_recv(&[RecvWr::new(wr_id(qp, slot), &sge)])?;
        }
        Ok(())
    }

    /// Posts requests to the shared receive queue.
    ///
    /// # Errors
    /// Errors of the device.
    pub fn post_shared(&self, wrs: &[RecvWr<'_>]) -> Result<()> {
        let srq = self.srq.as_ref().ok_or_else(no_memory)?;
        Ok(srq.post_recv(wrs)?)
    }

    /// The remote address of request `index` of queue pair `qp`.
    pub fn remote_addr(&self, op: Op, qp: usize, index: usize) -> u64 {
        let offset = match op {
            Op::FetchAdd => 0,
            Op::CmpSwap => qp * WORD_STRIDE,
            Op::Send | Op::Write | Op::Read => self.tx.offset(qp, index),
        };
        self.remote.addr + offset as u64
    }

    /// Checks what the other end wrote to local memory, once that end is done: the last message in each slot (WRITE), or the sums
    /// (atomics).
    ///
    /// # Errors
    /// [`AppError::Verify`] with the first difference.
    pub fn check_target(&self, spec: &Spec, sent: &[u64], driver: &mut Driver) -> Result<()> {
        let Some(target) = &self.target else { return Ok(()) };
        let differs = |what: String, want: u64, is: u64| {
            Err(AppError::Verify(format!("{what} is {is} after {want} operations from 0")))
        };
        match spec.op {
            Op::FetchAdd => {
                let (want, is) = (sent.iter().sum(), target.read_u64(0)?);
                if want != is {
                    return differs("the shared word".into(), want, is);
                }
            }
            Op::CmpSwap => {
                for (qp, &want) in sent.iter().enumerate() {
                    let is = target.read_u64(qp * WORD_STRIDE)?;
                    if want != is {
                        return differs(format!("the word of queue pair {qp}"), want, is);
                    }
                }
            }
            Op::Write if spec.verify && spec.mode != Mode::Lat => {
                let mut slices = Slices::default();
                for (qp, &sent) in sent.iter().enumerate() {
                    for seq in sent.saturating_sub(self.tx.slots as u64)..sent {
                        let index = (seq % u64::from(spec.tx_depth)) as usize;
                        let which = Which { stream: self.role.rx_stream(qp), seq };
                        let (at, len) = (self.tx.offset(qp, index), spec.size as usize);
                        slices.check(target, at, len, which, || driver.turn_between())?;
                    }
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// The queue pair and the position of a receive that completed with a message of `size` bytes.
    ///
    /// # Errors
    /// A receive that failed, or has received another length.
    #[inline]
    pub fn received(&mut self, wc: &Wc, size: u64) -> Result<(usize, u32)> {
        if !wc.is_ok() {
            return Err(self.failed("receive", wc));
        }
        if u64::from(wc.byte_len) != size {
            return Err(AppError::wrong_length(wc.byte_len, size));
        }
        Ok(of_wr_id(wc.wr_id))
    }

    /// The error for a failed request `wc` called `op`. If it was only flushed, the reason is in another completion, which is
    /// searched for.
    pub fn failed(&mut self, op: &str, wc: &Wc) -> AppError {
        let mut wcs = [Wc::default(); 32];
        let mut left = if wc.status == WcStatus::WrFlushErr { self.send_cq_len } else { 0 };
        while left > 0 {
            let Ok(n @ 1..) = self.send_cq.poll(&mut wcs) else { break };
            left = left.saturating_sub(n);
            let reason = |wc: &&Wc| !wc.is_ok() && wc.status != WcStatus::WrFlushErr;
            if let Some(first) = wcs[..n].iter().find(reason) {
                return completion::failed(self.op.name(), first, &self.peer);
            }
        }
        completion::failed(op, wc, &self.peer)
    }
}

fn init<'a>(send_cq: &'a Cq, recv_cq: &'a Cq, srq: Option<&'a Srq>, cap: QpCap) -> QpInitAttr<'a> {
    let init = QpInitAttr::rc(send_cq, recv_cq).cap(cap);
    if let Some(srq) = srq { init.srq(srq) } else { init }
}

fn no_memory() -> AppError {
    AppError::Setup("this end has no memory for the requests of this measurement".into())
}

/// A tag: queue pair and position in its queue.
#[inline]
pub fn wr_id(qp: usize, index: u32) -> u64 {
    (qp as u64) << 32 | u64::from(index)
}

/// The queue pair and the position of a tag.
#[inline]
pub fn of_wr_id(id: u64) -> (usize, u32) {
    ((id >> 32) as usize, id as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_of_positions_in_a_row_are_those_of_each() {
        // As many buffers as positions; fewer, whose number does not divide theirs; and one.
        for slots in [8, 3, 1] {
            let buffers = Buffers { first: Sge { addr: 1 << 20, length: 60, lkey: 7 }, slots, stride: 64 };
            for (qp, index) in (0..3).flat_map(|qp| (0..8).map(move |index| (qp, index))) {
                let in_a_row = buffers.from(qp, index, 8).take(20);
                let each = (index..index + 20).map(|n| (n % 8, buffers.sge(qp, n as usize % 8)));
                assert!(in_a_row.eq(each), "{slots} buffers, from {index} of {qp}");
            }
            let (last, next) = (buffers.offset(1, 7), buffers.offset(2, 0));
            assert!(last + 60 <= next && next == 2 * slots * 64);
        }
    }
}
