//! A late receiver: the requester gets RNR NAKs, retries, and every message arrives.

use super::cell::{Cell, Network, Op, Requester, Service};
use super::run::{Bench, HALF, PATIENCE, Pair, Target, Terms, all_done, slot_of};
use apps::completion;
use apps::error::{AppError, Result};
use std::time::{Duration, Instant};
use verbs::{Counter, Mtu, WcStatus};

/// One case of a late receiver.
#[derive(Clone, Copy, Debug)]
pub struct Late {
    /// Name of the case.
    pub name: &'static str,
    /// The request.
    pub op: Op,
    /// Code of the receiver's RNR timer.
    pub timer: u8,
    /// The requester's RNR retries; 7 means for ever.
    pub retries: u8,
    /// Whether the missing receives belong to a shared receive queue.
    pub srq: bool,
    /// Shortest time that the requester must wait before it retries.
    pub wait: Duration,
}

const fn late(name: &'static str, op: Op) -> Late {
    Late { name, op, timer: 12, retries: 7, srq: false, wait: Duration::ZERO }
}

/// Every case.
pub const LATE: &[Late] = &[
    late("late receive, SEND", Op::Send),
    late("late receive, SEND with immediate", Op::SendImm),
    late("late receive, WRITE with immediate", Op::WriteImm),
    Late { srq: true, ..late("late receive in a shared queue, SEND", Op::Send) },
    // 24 means 41 ms: the steps after a NAK take a few ms, and the number of retries is limited.
    Late { timer: 24, retries: 6, ..late("late receive, 6 retries", Op::Send) },
    // The longest delay has the smallest code.
    Late {
        timer: 0,
        wait: Duration::from_millis(655),
        ..late("late receive, RNR timer 0 (655 ms)", Op::Send)
    },
];

/// Messages outstanding when the first is refused: the later ones are refused, too.
const MESSAGES: u32 = 4;
const LEN: u32 = 1500;
const SEED: u64 = 77;

impl Bench {
    /// Runs a case with `by` as the requester.
    ///
    /// # Errors
    /// The failure, in one sentence.
    pub fn late(&mut self, late: &Late, by: Requester, mtu: Mtu) -> Result<()> {
        let cell = Cell {
            net: Network::Ipv4,
            service: Service::Rc,
            op: late.op,
            by,
            size: 0,
            len: LEN,
            mtu,
            count: MESSAGES,
            srq: late.srq,
            psn: 0x2000,
        };
        let terms = Terms { rnr_timer: late.timer, rnr_retry: late.retries, ..Terms::default() };
        let pair = self.pair(&cell, 16, &terms)?;
        let start = Instant::now();
        let done = match by {
            Requester::Us => self.late_linux(late, &pair),
            Requester::Linux => self.late_ours(late, &pair),
        };
        let took = start.elapsed();
        self.close(pair)?;
        done?;
        if took < late.wait {
            return Err(AppError::Verify(format!(
                "it was over after {took:?}: the NAK said {:?}",
                late.wait
            )));
        }
        Ok(())
    }

    /// Runs a case with Linux as the late receiver.
    fn late_linux(&mut self, late: &Late, pair: &Pair) -> Result<()> {
        let to = Target { addr: pair.addr, rkey: pair.rkey, seed: SEED, slots: MESSAGES.into() };
        for n in 0..MESSAGES.into() {
            self.post(pair, late.op, n, LEN, &to)?;
        }
        self.refused(pair, Counter::RnrNaksReceived)?;
        let (id, op) = (pair.id, late.op.name());
        self.remote.ask(&format!("recv qp={id} count={MESSAGES} len={LEN}"))?;
        self.remote
            .send(&format!("expect qp={id} count={MESSAGES} len={LEN} seed={SEED} op={op} imm=0 again=0"))?;
        for n in 0..MESSAGES {
            let wc = self.next()?;
            if wc.status != WcStatus::Success {
                return Err(AppError::Completion(format!("request {n}: {}", completion::status(&wc))));
            }
        }
        let reply = self.remote.answer()?;
        all_done(&reply, MESSAGES.into())?;
        if late.op.writes() {
            let stride = slot_of(LEN);
            self.remote
                .ask(&format!("check off=0 len={LEN} seed={SEED} count={MESSAGES} stride={stride}"))?;
        }
        Ok(())
    }

    /// Runs a case with this stack as the late receiver.
    fn late_ours(&mut self, late: &Late, pair: &Pair) -> Result<()> {
        let (addr, rkey) = self.region();
        let stride = slot_of(LEN);
        self.remote.send(&format!(
            "run qp={} op={} count={MESSAGES} len={LEN} addr={addr} rkey={rkey} stride={stride} seed={SEED} \
             window={MESSAGES}",
            pair.id,
            late.op.name(),
        ))?;
        self.refused(pair, Counter::RnrNaksSent)?;
        for n in 0..MESSAGES {
            self.post_recv(pair, n, LEN)?;
        }
        for n in 0..MESSAGES {
            let wc = self.next()?;
            if wc.status != WcStatus::Success {
                return Err(AppError::Completion(format!("receive {n}: {}", completion::status(&wc))));
            }
            if late.op.imm() && wc.imm_data() != Some(n) {
                return Err(AppError::Verify(format!("message {n} has immediate {:?}", wc.imm_data())));
            }
            let base = if late.op.writes() { 0 } else { HALF };
            self.compare(base + n as usize * stride, LEN, SEED + u64::from(n), &format!("message {n}"))?;
        }
        let reply = self.remote.answer()?;
        all_done(&reply, MESSAGES.into())
    }

    /// Waits until this counter of RNR NAKs increases. Nothing may complete before.
    fn refused(&self, pair: &Pair, naks: Counter) -> Result<()> {
        let since = Instant::now();
        while pair.qp.counters().get(naks) == 0 {
            if let Some(wc) = self.look()? {
                return Err(AppError::Completion(format!("without a receive: {}", completion::status(&wc))));
            }
            if since.elapsed() > PATIENCE {
                return Err(AppError::Timeout("there was no RNR NAK".into()));
            }
            apps::stop::check()?;
        }
        Ok(())
    }
}
