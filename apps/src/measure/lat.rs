//! One message at a time: latency.
//!
//! SEND and WRITE bounce between the two ends, and half of each round trip is recorded. READ and atomics are answered by the
//! other end's stack alone, and the whole round trip is recorded, from the post to the completion.

use super::flow::request;
use super::queues::{QueueSet, of_wr_id, wr_id};
use super::watch::{Watch, out_of_turn};
use super::{Latency, histogram};
use crate::error::{AppError, Result};
use crate::plan::{Op, Spec};
use crate::protocol::Message;
use crate::rig::{Driver, Side};
use crate::verify::{Slices, Which};
use hdrhistogram::Histogram;
use std::hint::spin_loop;
use std::time::{Duration, Instant};
use verbs::{RecvWr, Sge, Wc};

/// Messages before the recorded ones: they resolve the neighbour's address and warm the caches.
const WARM_UP: u64 = 200;

/// Runs the client's end; returns the latencies.
///
/// # Errors
/// Failed requests, corrupt data, the peer's failure, a signal.
pub fn client(
    queues: &mut QueueSet,
    spec: &Spec,
    driver: &mut Driver,
    watch: &mut Watch<'_>,
) -> Result<Latency> {
    let mut hist = histogram();
    let mut bounce = Bounce::new(queues, spec);
    let warm_up = WARM_UP.min(spec.iters.unwrap_or(u64::MAX).div_ceil(10));
    let total = spec.iters.map_or(u64::MAX, |n| n + warm_up);
    let limit = Duration::from_millis(spec.duration_ms);
    let (mut end, mut seq) = (None, 0);
    let mut before = Instant::now();
    while seq < total {
        bounce.send(queues, driver, seq)?;
        bounce.repost(queues)?;
        match spec.op {
            Op::Send | Op::Write => bounce.receive(queues, driver, watch, seq, None)?,
            Op::Read | Op::FetchAdd | Op::CmpSwap => bounce.answer(queues, driver, watch, seq)?,
        };
        let after = Instant::now();
        if seq >= warm_up {
            record(&mut hist, after - before, spec.op);
            if spec.iters.is_none() && after >= *end.get_or_insert(after + limit) {
                seq += 1;
                break;
            }
        }
        seq += 1;
        before = if bounce.make_room(queues, driver, seq)? { Instant::now() } else { after };
    }
    bounce.drain(queues, driver, watch)?;
    watch.send(&Message::Finish { sent: vec![seq] })?;
    Ok(Latency::from(&hist))
}

fn record(hist: &mut Histogram<u64>, round_trip: Duration, op: Op) {
    let ns = round_trip.as_nanos() as u64;
    hist.saturating_record(if op.answers() { ns } else { ns / 2 });
}

/// Runs the server's end of a SEND or WRITE bounce: sends every message back, until the client reports how many it sent.
///
/// # Errors
/// As [`client`].
pub fn server(queues: &mut QueueSet, spec: &Spec, driver: &mut Driver, watch: &mut Watch<'_>) -> Result<()> {
    let mut bounce = Bounce::new(queues, spec);
    let mut finish = None;
    let mut seq = 0;
    while finish != Some(seq) {
        if !bounce.receive(queues, driver, watch, seq, Some(&mut finish))? {
            if finish.is_some_and(|n| n < seq) {
                return Err(AppError::Verify("more messages arrived than were sent".into()));
            }
            break;
        }
        bounce.send(queues, driver, seq)?;
        bounce.repost(queues)?;
        seq += 1;
        bounce.make_room(queues, driver, seq)?;
    }
    bounce.drain(queues, driver, watch)
}

/// The value of a WRITE's last byte: never 0, and never that of the message before.
fn marker(seq: u64) -> u8 {
    (seq % 255) as u8 + 1
}

/// One end of a bounce.
struct Bounce<'a> {
    spec: &'a Spec,
    tx_sges: Vec<Sge>,
    rx_sges: Vec<Sge>,
    /// Contents of a message that is sent inline.
    inline: Vec<u8>,
    slices: Slices,
    posted: u64,
    retired: u64,
    /// Whether a receive is to be reposted, and its position.
    used: bool,
    head: u32,
    wc: [Wc; 8],
}

impl<'a> Bounce<'a> {
    fn new(queues: &QueueSet, spec: &'a Spec) -> Self {
        Self {
            spec,
            tx_sges: queues.tx.all(1, spec.tx_depth),
            rx_sges: queues.rx.all(queues.inbox.is_some().into(), spec.rx_depth),
            inline: vec![0; if spec.inline { spec.size as usize } else { 0 }],
            slices: Slices::default(),
            posted: 0,
            retired: 0,
            used: false,
            head: 0,
            wc: [Wc::default(); 8],
        }
    }

    /// Posts message `seq`.
    #[inline]
    fn send(&mut self, queues: &mut QueueSet, driver: &mut Driver, seq: u64) -> Result<()> {
        let spec = self.spec;
        let index = (seq % u64::from(spec.tx_depth)) as u32;
        let (at, size) = (queues.tx.offset(0, index as usize), spec.size as usize);
        let local = queues.local.as_ref().expect("both ends of a bounce send");
        if spec.verify && !spec.op.answers() {
            let which = Which { stream: queues.role.tx_stream(0), seq };
            match spec.inline {
                true => which.fill(&mut self.inline, 0),
                false => self.slices.write(local, at, size, which, || driver.turn_between())?,
            }
        }
        if spec.op == Op::Write {
            match self.inline.last_mut() {
                Some(last) => *last = marker(seq),
                None => local.write(at + size - 1, &[marker(seq)])?,
            }
        }
        let inline = spec.inline.then_some(&self.inline[..]);
        let sge = &self.tx_sges[index as usize..=index as usize];
        let wr = match spec.op {
            // All messages of a WRITE bounce have the same target.
            Op::Write => {
                let wr = verbs::SendWr::write(wr_id(0, index), sge, queues.remote.addr, queues.remote.rkey);
                if let Some(data) = inline { wr.inline(data) } else { wr }
            }
            op => request(queues, op, sge, inline, (0, index), seq),
        };
        // Every answer needs a completion; the messages of a bounce only now and then.
        let signal = spec.op.answers() || (index + 1).is_multiple_of(spec.cq_mod);
        queues.sqs[0].post_send(&[if signal { wr.signaled() } else { wr }])?;
        self.posted = seq + 1;
        Ok(())
    }

    /// Waits for the other end's message `seq`; returns whether it arrived. With `finish`, the client's final count ends the
    /// wait once that many messages have arrived.
    #[inline]
    fn receive(
        &mut self,
        queues: &mut QueueSet,
        driver: &mut Driver,
        watch: &mut Watch<'_>,
        seq: u64,
        mut finish: Option<&mut Option<u64>>,
    ) -> Result<bool> {
        let last = (self.spec.size as usize).saturating_sub(1);
        loop {
            driver.turn();
            if self.spec.op == Op::Send {
                if queues.recv_cq.poll(&mut self.wc[..1])? == 1 {
                    self.arrived(queues, driver, seq)?;
                    return Ok(true);
                }
            } else {
                let target = queues.target.as_ref().expect("both ends of a bounce can be written to");
                if target.read_u8(last)? == marker(seq) {
                    self.written(queues, driver, seq)?;
                    return Ok(true);
                }
                if !driver.is_mine() {
                    self.reap(queues)?;
                }
            }
            if watch.due() {
                self.reap(queues)?;
                let outstanding = self.posted > 0 && self.retired < self.posted;
                match (watch.look(Instant::now(), outstanding)?, &mut finish) {
                    (Some(Message::Finish { sent }), Some(finish)) if sent.len() == 1 => {
                        **finish = Some(sent[0])
                    }
                    (Some(message), _) => return Err(out_of_turn(&message)),
                    (None, _) => {}
                }
                if finish.as_ref().is_some_and(|finish| finish.is_some_and(|n| n <= seq)) {
                    return Ok(false);
                }
            }
            spin_loop();
        }
    }

    /// Checks a message after its receive completion.
    #[inline]
    fn arrived(&mut self, queues: &mut QueueSet, driver: &mut Driver, seq: u64) -> Result<()> {
        let wc = self.wc[0];
        if !wc.is_ok() {
            return Err(queues.failed("receive", &wc));
        }
        self.used = true;
        if self.spec.verify {
            let inbox = queues.inbox.as_ref().expect("both ends of a SEND bounce receive");
            let at = queues.rx.offset(0, of_wr_id(wc.wr_id).1 as usize);
            let which = Which { stream: queues.role.rx_stream(0), seq };
            self.slices.check(inbox, at, self.spec.size as usize, which, || driver.turn_between())?;
        }
        Ok(())
    }

    /// Checks a message that the peer wrote into local memory.
    fn written(&mut self, queues: &QueueSet, driver: &mut Driver, seq: u64) -> Result<()> {
        if self.spec.verify {
            let target = queues.target.as_ref().expect("both ends of a bounce can be written to");
            // The last byte is the marker.
            let body = (self.spec.size as usize - 1) & !7;
            let which = Which { stream: queues.role.rx_stream(0), seq };
            self.slices.check(target, 0, body, which, || driver.turn_between())?;
        }
        Ok(())
    }

    /// Waits for the completion of message `seq`, which means its answer has arrived.
    #[inline]
    fn answer(
        &mut self,
        queues: &mut QueueSet,
        driver: &mut Driver,
        watch: &mut Watch<'_>,
        seq: u64,
    ) -> Result<bool> {
        loop {
            driver.turn();
            if self.reap(queues)? > 0 {
                if self.spec.verify {
                    self.check_answer(queues, driver, seq)?;
                }
                return Ok(true);
            }
            if watch.due()
                && let Some(message) = watch.look(Instant::now(), true)?
            {
                return Err(out_of_turn(&message));
            }
            spin_loop();
        }
    }

    fn check_answer(&mut self, queues: &QueueSet, driver: &mut Driver, seq: u64) -> Result<()> {
        let index = (seq % u64::from(self.spec.tx_depth)) as usize;
        let local = queues.local.as_ref().expect("the client has memory");
        let at = queues.tx.offset(0, index);
        if self.spec.op == Op::Read {
            let (len, which) =
                (self.spec.size as usize, Which { stream: queues.role.rx_stream(0), seq: index as u64 });
            self.slices.check(local, at, len, which, || driver.turn_between())?;
            return self.slices.set(local, at, len, 0, || driver.turn_between());
        }
        let is = local.read_u64(at)?;
        if is == seq {
            return Ok(());
        }
        Err(AppError::Verify(format!("{} {seq} found {is} instead of {seq}", self.spec.op.name())))
    }

    /// Polls send completions; returns their number.
    #[inline]
    fn reap(&mut self, queues: &mut QueueSet) -> Result<usize> {
        let n = queues.send_cq.poll(&mut self.wc)?;
        for wc in &self.wc[..n] {
            if !wc.is_ok() {
                return Err(queues.failed(self.spec.op.name(), wc));
            }
            let depth = u64::from(self.spec.tx_depth);
            let tail = self.retired % depth;
            self.retired += (u64::from(of_wr_id(wc.wr_id).1) + depth - tail) % depth + 1;
        }
        Ok(n)
    }

    /// Reposts the receive of the last message while the next one is on its way: many reposts at once would delay a later
    /// message.
    #[inline]
    fn repost(&mut self, queues: &mut QueueSet) -> Result<()> {
        if core::mem::take(&mut self.used) {
            let index = self.head as usize;
            queues.rqs[0].post_recv(&[RecvWr::new(wr_id(0, self.head), &self.rx_sges[index..=index])])?;
            self.head = (self.head + 1) % self.spec.rx_depth;
        }
        Ok(())
    }

    /// Makes room in the send queue between two messages. Returns whether that, or an earlier check of data, took time.
    #[inline]
    fn make_room(&mut self, queues: &mut QueueSet, driver: &mut Driver, seq: u64) -> Result<bool> {
        let mut busy = self.spec.verify;
        if seq - self.retired >= u64::from(self.spec.tx_depth.div_ceil(2)) {
            self.reap(queues)?;
            busy = true;
        }
        while seq - self.retired >= u64::from(self.spec.tx_depth) {
            crate::stop::check()?;
            driver.turn();
            self.reap(queues)?;
        }
        Ok(busy)
    }

    /// Waits for the outstanding completions. Unsignalled requests after the last one have arrived: the other end has
    /// answered them, or reported that it is done.
    fn drain(&mut self, queues: &mut QueueSet, driver: &mut Driver, watch: &mut Watch<'_>) -> Result<()> {
        let signalled = self.posted - self.posted % u64::from(self.spec.cq_mod);
        while self.retired < signalled {
            driver.turn();
            self.reap(queues)?;
            if watch.due()
                && let Some(message) = watch.look(Instant::now(), true)?
            {
                return Err(out_of_turn(&message));
            }
        }
        Ok(())
    }
}

/// Runs the end of a latency measurement at `side`.
///
/// # Errors
/// As [`client`].
pub fn run(
    side: Side,
    queues: &mut QueueSet,
    spec: &Spec,
    driver: &mut Driver,
    watch: &mut Watch<'_>,
) -> Result<Option<Latency>> {
    match side {
        Side::Client => client(queues, spec, driver, watch).map(Some),
        Side::Server => server(queues, spec, driver, watch).map(|()| None),
    }
}
