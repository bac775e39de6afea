//! The message loop of a pingpong: one message at a time in each direction.

use super::end::{End, PAGE, QKEY};
use super::exchange::{Destination, Stream};
use crate::cli::pingpong::Service;
use crate::completion;
use crate::error::{AppError, Result};
use crate::rig::{Driver, Side};
use crate::stop;
use std::time::{Duration, Instant};
use verbs::{Ah, Context, CqPoller, Discard, Qpn, RecvQueue, RecvWr, SendQueue, SendWr, Wc};

/// Tags of requests, with the numbers of the stock tool.
const RECV_ID: u64 = 1;
const SEND_ID: u64 = 2;
/// How long a peer may be silent after it has closed its TCP connection.
const GONE: Duration = Duration::from_secs(10);
/// How long a peer may be silent while its TCP connection is open.
const SILENCE: Duration = Duration::from_secs(60);
/// Time between two attempts to send a message that could not leave this host.
const AGAIN: Duration = Duration::from_millis(100);
/// How long an unreliable message may take. Repeating one that has left this host would not help: the other end could not
/// distinguish it from the next message, and the stock tools count messages.
const QUIET: Duration = Duration::from_secs(10);

/// The message loop.
pub struct Rounds<'a> {
    end: &'a End<'a>,
    context: &'a Context,
    sq: SendQueue,
    rq: RecvQueue,
    poller: CqPoller,
    /// Number of posted receives.
    posted: u32,
    /// Packets of this end that never left this host, and whose message was sent again.
    repeated: u64,
    peer: verbs::Gid,
    /// Destination of datagrams.
    to: Option<(Ah, Qpn)>,
}

impl<'a> Rounds<'a> {
    /// Takes the queues of `end`, and posts the receives.
    ///
    /// # Errors
    /// Errors of the device.
    pub fn new(end: &'a End<'a>, context: &'a Context) -> Result<Self> {
        let (sq, rq) = end.qp.split()?;
        let poller = end.cq.poller()?;
        let mut rounds =
            Self { end, context, sq, rq, poller, posted: 0, repeated: 0, peer: end.gid, to: None };
        rounds.post_receives()?;
        Ok(rounds)
    }

    /// Posts the receives again, after a reset of the queue pair that discarded them.
    ///
    /// # Errors
    /// Errors of the device.
    pub fn start_over(&mut self) -> Result<()> {
        self.posted = 0;
        self.post_receives()
    }

    /// Sets the peer, once its address is known.
    ///
    /// # Errors
    /// Errors of the device.
    pub fn set_peer(&mut self, theirs: &Destination) -> Result<()> {
        self.peer = theirs.gid;
        self.to = self.end.address_handle(theirs)?.map(|ah| (ah, Qpn::new(theirs.qpn)));
        Ok(())
    }

    /// Posts receives until the queue is full.
    fn post_receives(&mut self) -> Result<()> {
        let sge = [self.end.mr.sge(0..self.end.mr.len())?];
        while self.posted < self.end.cli.rx_depth {
            self.rq.post_recv(&[RecvWr::new(RECV_ID, &sge)])?;
            self.posted += 1;
        }
        Ok(())
    }

    fn post_send(&mut self) -> Result<()> {
        let sge = [self.end.mr.sge(self.end.head..self.end.mr.len())?];
        let wr = SendWr::send(SEND_ID, &sge).signaled();
        let wr = match &self.to {
            Some((ah, qpn)) => wr.to(ah, *qpn, QKEY),
            None => wr,
        };
        Ok(self.sq.post_send(&[wr])?)
    }

    /// Packets of this end that could not leave because the peer's Ethernet address could not be resolved.
    fn never_left(&self) -> u64 {
        self.context.counters().discarded(Discard::Unreachable)
    }

    /// Whether the last message never left: the other end cannot have received it, so it may be sent again.
    fn is_held_up(&self) -> bool {
        self.never_left() > self.repeated
    }

    /// Runs all rounds; returns the time that they took.
    ///
    /// # Errors
    /// A request that failed; a peer that is silent; a signal.
    pub fn run(&mut self, side: Side, driver: &mut Driver, stream: &mut Stream) -> Result<Duration> {
        if self.end.cli.check {
            for page in (self.end.head..self.end.mr.len()).step_by(PAGE) {
                self.end.mr.write(page, &[0])?;
            }
        }
        let (mut sent, mut received) = (0u64, 0u64);
        let (mut sending, mut receiving) = (false, true);
        let mut wcs = [Wc::default(); 2];
        let (mut turns, mut idle_turns) = (0u32, 0u32);
        let (mut closed_since, mut quiet_since, mut repeated) = (None, None, None);
        let start = Instant::now();
        if side == Side::Client {
            self.post_send()?;
            sending = true;
        }
        // A reliable connection retries by itself.
        let unreliable = self.end.cli.transport != Service::Rc;
        while received < self.end.cli.iters || sent < self.end.cli.iters || unreliable && self.is_held_up() {
            driver.turn();
            turns = turns.wrapping_add(1);
            if turns.is_multiple_of(4096) {
                stop::check()?;
            }
            let n = self.poller.poll(&mut wcs)?;
            for wc in &wcs[..n] {
                let is_send = wc.wr_id == SEND_ID;
                if !wc.is_ok() {
                    return Err(completion::failed(if is_send { "SEND" } else { "receive" }, wc, &self.peer));
                }
                if is_send {
                    (sent, sending) = (sent + 1, false);
                } else {
                    (received, receiving) = (received + 1, false);
                    (closed_since, quiet_since) = (None, None);
                    self.posted -= 1;
                    if self.posted <= self.end.cli.rx_depth / 2 {
                        self.post_receives()?;
                    }
                }
            }
            // The next round starts when the peer's message has arrived and this end's send has completed.
            if n > 0 && !sending && !receiving && sent < self.end.cli.iters {
                self.post_send()?;
                (sending, receiving) = (true, true);
            }
            idle_turns = if n > 0 { 0 } else { idle_turns.wrapping_add(1) };
            if idle_turns % 4096 == 4095 {
                let now = Instant::now();
                if unreliable && !sending && self.is_held_up() && repeated.is_none_or(|at| now - at > AGAIN) {
                    self.repeated = self.never_left();
                    self.post_send()?;
                    (sent, sending, repeated) = (sent - 1, true, Some(now));
                }
                // The stock tool closes its end right after the exchange. So a closed connection matters only when no message
                // arrives for long; outstanding requests fail by themselves.
                let quiet = now - *quiet_since.get_or_insert(now);
                if quiet > SILENCE {
                    return Err(AppError::Timeout(format!(
                        "no message came for {SILENCE:?} after {received} of {}, though the other end is there; does it \
                         still run?",
                        self.end.cli.iters
                    )));
                }
                if unreliable && quiet > QUIET {
                    return Err(AppError::Timeout(format!(
                        "no message came for {QUIET:?} after {received} of {}: one was lost, which over {} nobody \
                         repeats",
                        self.end.cli.iters,
                        self.end.cli.transport.name(),
                    )));
                }
                if !sending && stream.is_closed() {
                    let since = *closed_since.get_or_insert(now);
                    if now - since > GONE {
                        return Err(AppError::Timeout(format!(
                            "no message came for {GONE:?}, and the other end closed its TCP connection; it ended \
                             after {received} of {} messages",
                            self.end.cli.iters
                        )));
                    }
                }
            }
        }
        Ok(start.elapsed())
    }
}
