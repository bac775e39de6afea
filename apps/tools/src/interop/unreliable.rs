//! Unreliable messages longer than the queues on the path can hold: sent one at a time, and again after a loss. A message that arrives
//! has to be complete and correct; occasional losses are allowed.
//!
//! A cell is one combination of the test matrix: operation, length, service type and so on (`cell`). The program in the guest executes
//! requests that are lines of text (`remote`).

use super::cell::{Cell, Op, Requester};
use super::run::{Bench, HALF, Pair, Target, all_done, check_receive, slot_of};
use apps::completion;
use apps::error::{AppError, Result};
use apps::out::say;
use std::time::{Duration, Instant};
use verbs::{Wc, WcStatus};

/// Most times that a message is sent.
const TRIES: u32 = 10;
/// How long a message may take after its sender's completion.
const SECONDS: u64 = 3;

impl Bench {
    /// Transfers the messages of a cell; message `n` has the pattern `seed + n`. The receives are posted already.
    pub(super) fn one_by_one(&mut self, cell: &Cell, pair: &Pair, seed: u64) -> Result<()> {
        let mut lost = 0;
        for n in 0..cell.count.into() {
            let mut tries = 1..=TRIES;
            loop {
                if tries.next().is_none() {
                    return Err(AppError::Timeout(format!("message {n} was lost {TRIES} times")));
                }
                let arrived = match cell.by {
                    Requester::Us => self.send_one(cell, pair, seed, n)?,
                    Requester::Linux => self.receive_one(cell, pair, seed, n)?,
                };
                if arrived {
                    break;
                }
                lost += 1;
            }
        }
        if lost > 0 {
            say!("     {lost} of {} messages were lost and sent again", cell.count + lost)?;
        }
        Ok(())
    }

    /// Sends message `n` to the guest. Returns whether it has arrived.
    fn send_one(&mut self, cell: &Cell, pair: &Pair, seed: u64, n: u64) -> Result<bool> {
        let (op, len, id) = (cell.op, cell.len, pair.id);
        let pattern = seed + n;
        self.post(pair, op, n, len, &Target { addr: pair.addr, rkey: pair.rkey, seed, slots: 1 })?;
        let wc = self.next()?;
        if wc.status != WcStatus::Success {
            return Err(AppError::Completion(format!("message {n}: {}", completion::status(&wc))));
        }
        if op.receives() {
            // The message has left completely: from now on its time is measured.
            let reply = self.remote.ask(&format!(
                "expect qp={id} count=1 len={len} seed={pattern} op={} imm={n} secs={SECONDS} maybe=1",
                op.name()
            ))?;
            if reply.num("status") != 0 {
                all_done(&reply, 1)?;
            }
            if reply.num("done") == 0 {
                return Ok(false);
            }
        }
        if !op.writes() {
            return Ok(true);
        }
        let line = format!("check off=0 len={len} seed={pattern}");
        if op.receives() {
            // The receive completion means that the whole message has arrived.
            return self.remote.ask(&line).map(|_| true);
        }
        Ok(in_time(|| self.remote.ask(&line).is_ok()))
    }

    /// Makes the guest send message `n`. Returns whether it has arrived.
    fn receive_one(&mut self, cell: &Cell, pair: &Pair, seed: u64, n: u64) -> Result<bool> {
        let (op, len) = (cell.op, cell.len);
        let pattern = seed + n;
        let (addr, rkey) = self.region();
        self.remote.send(&format!(
            "run qp={} op={} count=1 len={len} addr={addr} rkey={rkey} stride=0 seed={pattern} imm={n} window=1",
            pair.id,
            op.name(),
        ))?;
        if !op.receives() {
            let reply = self.remote.answer()?;
            all_done(&reply, 1)?;
            return Ok(in_time(|| self.compare(0, len, pattern, "WRITE").is_ok()));
        }
        // The message may arrive before the guest's answer that it was sent.
        let early = self.wait_for_one()?;
        let reply = self.remote.answer()?;
        all_done(&reply, 1)?;
        // The message has left completely: from now on its time is measured.
        let wc = if early.is_some() { early } else { self.wait_for_one()? };
        let Some(wc) = wc else { return Ok(false) };
        check_receive(cell, &wc, n, 0)?;
        let at = if op == Op::WriteImm { 0 } else { HALF + wc.wr_id as usize * slot_of(len) };
        self.compare(at, len, pattern, &format!("message {n}"))?;
        self.post_recv(pair, wc.wr_id as u32, len)?;
        Ok(true)
    }

    /// The next completion, if it arrives in time.
    fn wait_for_one(&self) -> Result<Option<Wc>> {
        let mut found = Ok(None);
        in_time(|| {
            found = self.look();
            !matches!(found, Ok(None))
        });
        found
    }
}

/// Repeats a check until it succeeds, for [`SECONDS`] at most. Returns whether it did.
fn in_time(mut check: impl FnMut() -> bool) -> bool {
    let since = Instant::now();
    loop {
        if check() {
            return true;
        }
        if since.elapsed() > Duration::from_secs(SECONDS) {
            return false;
        }
        std::thread::yield_now();
    }
}
