//! Many messages at once: bandwidth and rate.
//!
//! The requests of a queue pair are prepared in a table as long as its send queue, so that posting a list is passing a slice
//! of it. Where a request depends on its number (checked data, COMPARE & SWAP) it is built each time instead.

use super::exchange::{self, Outcome, Receiving, Sending};
use super::meter::Meter;
use super::queues::{QueueSet, of_wr_id, wr_id};
use super::shared;
use super::watch::Watch;
use crate::error::{AppError, Result};
use crate::plan::{Op, Spec};
use crate::protocol::Flow;
use crate::rig::Driver;
use crate::verify::{Slices, Which};
use std::time::{Duration, Instant};
use verbs::{RecvWr, SendWr, Sge, Wc};

/// Completions per poll: as many as one turn can deliver. If completions stay in the queue, receives are reposted too late.
const POLL: usize = 128;
/// Receives reposted in one call, at most.
const REPOST: u32 = 32;

/// Runs one measurement at one end, until both are done.
///
/// # Errors
/// Failed requests, corrupt data, the peer's failure, a signal.
pub fn run(
    queues: &mut QueueSet,
    spec: &Spec,
    driver: &mut Driver,
    watch: &mut Watch<'_>,
) -> Result<Outcome> {
    let qps = queues.sqs.len();
    let zeros = vec![0u8; if spec.inline { spec.size as usize } else { 0 }];
    let (requests, receives) = (queues.role.requests, queues.inbox.is_some());
    let tx_sges = queues.tx.all(if requests { qps } else { 0 }, spec.tx_depth);
    let rx_sges = queues.rx.all(if receives && !spec.srq { qps } else { 0 }, spec.rx_depth);
    let tx = requests.then(|| Tx::new(queues, spec, &tx_sges, &zeros));
    let (outcome, peer_sent) = if spec.srq {
        exchange::run(queues, driver, watch, tx, receives.then(|| shared::Rx::new(spec)), qps)?
    } else {
        exchange::run(queues, driver, watch, tx, receives.then(|| Rx::new(spec, &rx_sges, qps)), qps)?
    };
    if let Some(sent) = &peer_sent {
        queues.check_target(spec, sent, driver)?;
    }
    Ok(outcome)
}

/// The request for message `seq`.
#[inline]
pub(super) fn request<'a>(
    queues: &QueueSet,
    op: Op,
    sge: &'a [Sge],
    inline: Option<&'a [u8]>,
    (qp, index): (usize, u32),
    seq: u64,
) -> SendWr<'a> {
    let (id, at, rkey) = (wr_id(qp, index), queues.remote_addr(op, qp, index as usize), queues.remote.rkey);
    let wr = match op {
        Op::Send => SendWr::send(id, sge),
        Op::Write => SendWr::write(id, sge, at, rkey),
        Op::Read => SendWr::read(id, sge, at, rkey),
        Op::FetchAdd => SendWr::fetch_and_add(id, sge, at, rkey, 1),
        Op::CmpSwap => SendWr::cmp_and_swp(id, sge, at, rkey, seq, seq.wrapping_add(1)),
    };
    match inline {
        Some(data) => wr.inline(data),
        None => wr,
    }
}

/// The sending half.
struct Tx<'a> {
    spec: &'a Spec,
    sges: &'a [Sge],
    /// Prepared requests, one queue pair after the other; empty if they are built each time.
    table: Vec<SendWr<'a>>,
    qps: Vec<TxQp>,
    /// Contents of one message, if it is checked and sent inline.
    inline: Vec<u8>,
    slices: Slices,
    meter: Meter,
    deadline: Option<Instant>,
    done: usize,
    wcs: [Wc; POLL],
}

#[derive(Clone, Copy)]
struct TxQp {
    posted: u64,
    retired: u64,
    /// Messages to send; not known yet if time limits the measurement.
    target: u64,
    /// Position in the queue of the next request.
    head: u32,
    /// Position in the queue of the oldest request that is not known to be complete.
    tail: u32,
}

impl<'a> Tx<'a> {
    fn new(queues: &QueueSet, spec: &'a Spec, sges: &'a [Sge], zeros: &'a [u8]) -> Self {
        let fresh = spec.verify || spec.op == Op::CmpSwap;
        let qps = queues.sqs.len();
        let mut table = Vec::new();
        if !fresh {
            for (n, sge) in sges.iter().enumerate() {
                let (qp, index) = (n / spec.tx_depth as usize, n as u32 % spec.tx_depth);
                let inline = spec.inline.then_some(zeros);
                let wr = request(queues, spec.op, std::slice::from_ref(sge), inline, (qp, index), 0);
                table.push(if (index + 1) % spec.cq_mod == 0 { wr.signaled() } else { wr });
            }
        }
        let target = spec.iters.unwrap_or(u64::MAX);
        Self {
            spec,
            sges,
            table,
            qps: vec![TxQp { posted: 0, retired: 0, target, head: 0, tail: 0 }; qps],
            inline: vec![0; if spec.verify && spec.inline { spec.size as usize } else { 0 }],
            slices: Slices::default(),
            meter: Meter::after(0),
            deadline: None,
            done: 0,
            wcs: [Wc::default(); POLL],
        }
    }

    #[inline]
    fn advance(&mut self, q: usize, n: u32) {
        let qp = &mut self.qps[q];
        qp.posted += u64::from(n);
        qp.head += n;
        if qp.head == self.spec.tx_depth {
            qp.head = 0;
        }
    }

    /// Builds and posts one request.
    fn post_fresh(&mut self, queues: &mut QueueSet, driver: &mut Driver, q: usize) -> Result<()> {
        let spec = self.spec;
        let TxQp { posted: seq, target, head, .. } = self.qps[q];
        let at = queues.tx.offset(q, head as usize);
        let mut inline = None;
        if spec.verify && !spec.op.is_atomic() {
            let local = queues.local.as_ref().expect("an end that requests has memory");
            let (size, which) = (spec.size as usize, Which { stream: queues.role.tx_stream(q), seq });
            if spec.op == Op::Read {
                self.slices.set(local, at, size, 0, || driver.turn_between())?;
            } else if spec.inline {
                which.fill(&mut self.inline, 0);
                inline = Some(&self.inline[..]);
            } else {
                self.slices.write(local, at, size, which, || driver.turn_between())?;
            }
        }
        let sge = &self.sges[q * spec.tx_depth as usize + head as usize];
        let mut wr = request(queues, spec.op, std::slice::from_ref(sge), inline, (q, head), seq);
        if (head + 1) % spec.cq_mod == 0 || seq + 1 == target {
            wr = wr.signaled();
        }
        queues.sqs[q].post_send(&[wr])?;
        self.advance(q, 1);
        Ok(())
    }

    /// Checks the returned data of message `seq`.
    fn check_answer(
        &mut self,
        queues: &QueueSet,
        driver: &mut Driver,
        (q, index): (usize, u32),
        seq: u64,
    ) -> Result<()> {
        let local = queues.local.as_ref().expect("an end that requests has memory");
        let at = queues.tx.offset(q, index as usize);
        if self.spec.op == Op::Read {
            let which = Which { stream: queues.role.rx_stream(q), seq: index.into() };
            return self.slices.check(local, at, self.spec.size as usize, which, || driver.turn_between());
        }
        let is = local.read_u64(at)?;
        // Queue pairs share the word of FETCH & ADD: with several, only the final sum can be checked.
        if (self.spec.op == Op::CmpSwap || self.qps.len() == 1) && is != seq {
            return Err(AppError::Verify(format!(
                "{} {seq} of queue pair {q} found {is} instead of {seq}",
                self.spec.op.name()
            )));
        }
        Ok(())
    }
}

impl Sending for Tx<'_> {
    /// Posts as many whole lists to each queue as it has room for.
    #[inline]
    fn post(&mut self, queues: &mut QueueSet, driver: &mut Driver) -> Result<()> {
        let depth = self.spec.tx_depth;
        for q in 0..self.qps.len() {
            loop {
                let qp = &self.qps[q];
                let left = qp.target - qp.posted;
                let list = u64::from(self.spec.post_list.min(depth - qp.head)).min(left) as u32;
                if list == 0 || qp.posted - qp.retired + u64::from(list) > u64::from(depth) {
                    break;
                }
                if self.table.is_empty() {
                    self.post_fresh(queues, driver, q)?;
                    continue;
                }
                let from = q * depth as usize + qp.head as usize;
                let wrs = &mut self.table[from..from + list as usize];
                if left == u64::from(list) {
                    // The completion of the last request means that all others are complete.
                    if let Some(last) = wrs.last_mut() {
                        *last = last.signaled();
                    }
                }
                queues.sqs[q].post_send(wrs)?;
                self.advance(q, list);
            }
        }
        Ok(())
    }

    /// Polls completions: each completes all requests of its queue up to its own.
    #[inline]
    fn reap(&mut self, queues: &mut QueueSet, driver: &mut Driver) -> Result<()> {
        let n = queues.send_cq.poll(&mut self.wcs)?;
        if n == 0 {
            self.meter.pause();
            return Ok(());
        }
        let depth = self.spec.tx_depth;
        let mut messages = 0;
        for k in 0..n {
            let wc = self.wcs[k];
            if !wc.is_ok() {
                return Err(queues.failed(self.spec.op.name(), &wc));
            }
            let (q, index) = of_wr_id(wc.wr_id);
            let TxQp { retired, tail, .. } = self.qps[q];
            let count = (index + depth - tail) % depth + 1;
            if self.spec.verify && self.spec.op.answers() {
                for i in 0..count {
                    self.check_answer(queues, driver, (q, (tail + i) % depth), retired + u64::from(i))?;
                }
            }
            let qp = &mut self.qps[q];
            qp.retired += u64::from(count);
            qp.tail = if index + 1 == depth { 0 } else { index + 1 };
            messages += u64::from(count);
            if qp.retired == qp.target {
                self.done += 1;
            }
        }
        self.meter.count(messages);
        if self.deadline.is_none() {
            self.deadline = Some(Instant::now() + Duration::from_millis(self.spec.duration_ms));
        }
        Ok(())
    }

    fn is_done(&self) -> bool {
        self.done == self.qps.len()
    }

    fn counts(&self) -> Vec<u64> {
        self.qps.iter().map(|qp| qp.posted).collect()
    }

    /// Sets the end of a measurement limited by time: the posted requests, up to the next signalled one.
    fn stop_when_due(&mut self, now: Instant) {
        if self.spec.iters.is_some() || self.deadline.is_none_or(|deadline| now < deadline) {
            return;
        }
        for qp in &mut self.qps {
            if qp.target == u64::MAX {
                qp.target = qp.posted.next_multiple_of(u64::from(self.spec.cq_mod));
                if qp.retired == qp.target {
                    self.done += 1;
                }
            }
        }
    }

    fn flow(self) -> Flow {
        self.meter.flow()
    }
}

/// The receiving half of SEND.
struct Rx<'a> {
    spec: &'a Spec,
    /// Prepared requests, one queue pair after the other.
    table: Vec<RecvWr<'a>>,
    qps: Vec<RxQp>,
    repost: u32,
    slices: Slices,
    meter: Meter,
    wcs: [Wc; POLL],
}

#[derive(Clone, Copy, Default)]
struct RxQp {
    /// Messages received.
    seq: u64,
    /// Position in the queue of the oldest request to be reposted, and their number.
    head: u32,
    free: u32,
}

impl<'a> Rx<'a> {
    fn new(spec: &'a Spec, sges: &'a [Sge], qps: usize) -> Self {
        let depth = spec.rx_depth as usize;
        let table = sges
            .iter()
            .enumerate()
            .map(|(n, sge)| RecvWr::new(wr_id(n / depth, (n % depth) as u32), std::slice::from_ref(sge)));
        Self {
            spec,
            table: table.collect(),
            qps: vec![RxQp::default(); qps],
            repost: (spec.rx_depth / 4).clamp(1, REPOST),
            slices: Slices::default(),
            meter: Meter::after(0),
            wcs: [Wc::default(); POLL],
        }
    }
}

impl Receiving for Rx<'_> {
    /// Polls completions and reposts receives, in batches.
    #[inline]
    fn reap(&mut self, queues: &mut QueueSet, driver: &mut Driver) -> Result<()> {
        let n = queues.recv_cq.poll(&mut self.wcs)?;
        if n == 0 {
            self.meter.pause();
            return Ok(());
        }
        let depth = self.spec.rx_depth;
        for k in 0..n {
            let wc = self.wcs[k];
            let (q, index) = queues.received(&wc, self.spec.size)?;
            let qp = &mut self.qps[q];
            if self.spec.verify {
                let inbox = queues.inbox.as_ref().expect("an end that receives has memory");
                let (at, which) = (
                    queues.rx.offset(q, index as usize),
                    Which { stream: queues.role.rx_stream(q), seq: qp.seq },
                );
                self.slices.check(inbox, at, self.spec.size as usize, which, || driver.turn_between())?;
            }
            qp.seq += 1;
            qp.free += 1;
            while qp.free >= self.repost {
                let list = qp.free.min(depth - qp.head);
                let from = q * depth as usize + qp.head as usize;
                queues.rqs[q].post_recv(&self.table[from..from + list as usize])?;
                qp.free -= list;
                qp.head += list;
                if qp.head == depth {
                    qp.head = 0;
                }
            }
        }
        self.meter.count(n as u64);
        Ok(())
    }

    fn total(&self) -> u64 {
        self.meter.total
    }

    fn flow(self) -> Flow {
        self.meter.flow()
    }
}
