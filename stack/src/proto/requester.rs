//! The requester: work requests in, request packets out (IBA 9.7.2 to 9.7.4).
//!
//! Owns the send side's sequence numbers. [`Requester::poll_transmit`] returns the next packet; the
//! [completer](super::completer) handles responses, on the same state. Never touches a payload byte: a
//! [`Segment`] names the part of a work request that goes out.
//!
//! Its parts are files of their own: which requests started and are complete (`send_log`), which packets are in flight
//! (`in_flight`), what the peer lets start (`credits`, `rd_atomic`), which packets request an acknowledgement (`ack_requests`), the
//! timer (`timer`), retries (`retries`) and a failure on this side (`failure`). What depends on several of them is decided in
//! `limits` and here.

use super::congestion::{Congestion, Controller, Event};
use super::in_flight::{InFlight, distance};
use super::recovery::{Recovery, Repair, Scheme};
use super::state::Gates;
use super::status::{SendFlags, WcStatus, WrOpcode};
use super::wqe::{Granule, SendWqe};
use crate::id::{Mtu, Psn};
use crate::mark::{Mark, hit};
use crate::time::Instant;

mod ack_requests;
mod credits;
mod failure;
mod limits;
mod operation;
mod peer_check;
mod rd_atomic;
mod retries;
mod segment;
mod send_log;
mod send_window;
mod series;
mod timer;
mod unreliable;

use ack_requests::SinceAckReq;
use credits::Credits;
use failure::LocalFailure;
use operation::Operation;
pub use peer_check::{CheckProgress, CheckStep};
use rd_atomic::RdAtomic;
use retries::Retries;
pub use segment::{Segment, Unsent};
pub(super) use send_log::Acknowledged;
pub use send_log::RequestKind;
use send_log::{Remembered, SendLog, Started};
pub use send_window::SendWindow;
pub use series::{Series, SeriesKind, SeriesLimits, SeriesOutcome, SeriesRequest, Unbuilt};
pub(super) use timer::Awaited;
use timer::Timer;

/// The send queue as the requester sees it: slots by sequence number.
pub trait SendRing {
    /// Sequence number behind the last posted request.
    fn published(&self) -> u32;
    /// The slot of a posted request that is not released.
    fn slot(&self, seq: u32) -> &[Granule];
    /// Slots from that of `seq` on that are contiguous in memory, one at least and `max` at most, and how many granules each
    /// has. `seq + max` is at most the last value of [`published`](Self::published).
    #[inline]
    fn contiguous(&self, seq: u32, max: u32) -> (&[Granule], usize) {
        debug_assert!(max > 0, "somebody wants a slot");
        let slot = self.slot(seq);
        (slot, slot.len())
    }
}

/// Why [`Requester::poll_transmit`] returned nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Idle {
    /// Nothing is posted, or the state allows nothing.
    NothingToDo,
    /// Waiting for the peer: window, credits, fence, READ limit, RNR.
    Waiting,
    /// A work request failed on this side and is the oldest: see [`Requester::local_failure`].
    Failed,
    /// The work request with this sequence number is a local operation, and is next: carry it out, then call
    /// [`Requester::local_done`] or [`Requester::fail_local`], and poll again.
    Local(u32),
}

/// The share of a queue pair that shares no window with others: no limit.
pub const UNSHARED: u32 = u32::MAX;

/// What a queue pair does about losses and congestion: chosen when it is made.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Policies {
    /// Which packets go out again.
    pub recovery: Scheme,
    /// How many may leave, and when.
    pub congestion: Controller,
}

/// The send side's settings, from the queue pair's attributes.
#[derive(Clone, Copy, Debug)]
pub struct RequesterConfig {
    /// Path MTU.
    pub mtu: Mtu,
    /// First sequence number.
    pub sq_psn: Psn,
    /// Exponent of the local ACK timeout, 0 = none.
    pub timeout: u8,
    /// Retries after a timeout or sequence error, `0..=7`.
    pub retry_cnt: u8,
    /// Retries after an RNR NAK, 7 = for ever.
    pub rnr_retry: u8,
    /// READ and ATOMIC requests outstanding at most.
    pub max_rd_atomic: u8,
}

/// The send side of one reliable queue pair.
#[derive(Debug)]
pub struct Requester {
    pub(super) log: SendLog,
    pub(super) in_flight: InFlight,
    pub(super) credits: Credits,
    pub(super) rd_atomic: RdAtomic,
    since_ack_req: SinceAckReq,
    failure: LocalFailure,
    pub(super) timer: Timer,
    pub(super) retries: Retries,
    pub(super) rnr_retries: Retries,
    pub(super) repair: Repair,
    pub(super) recovery: Recovery,
    pub(super) congestion: Congestion,
    pub(super) mtu: Mtu,
}

// Each policy may have a box of its own; with both, requester and send ring still fit two cache lines of a queue pair.
const _: () = {
    const POINTER: usize = size_of::<Box<u8>>();
    assert!(size_of::<Recovery>() <= POINTER && size_of::<Congestion>() <= POINTER);
    assert!(size_of::<Requester>() + 2 * POINTER - size_of::<Recovery>() - size_of::<Congestion>() <= 96);
};

impl Requester {
    /// Bytes kept outside of the requester for each request that it started.
    pub(crate) const REMEMBERED: usize = size_of::<Remembered>();

    /// A requester at rest, for a send queue of `depth` requests (a power of two).
    pub fn new(depth: u32, policies: Policies) -> Self {
        Self::at_rest(SendLog::new(depth), policies)
    }

    fn at_rest(log: SendLog, policies: Policies) -> Self {
        Self {
            log,
            in_flight: InFlight::at(Psn::new(0)),
            credits: Credits::NONE,
            rd_atomic: RdAtomic::default(),
            since_ack_req: SinceAckReq::NONE,
            failure: LocalFailure::NONE,
            timer: Timer::IDLE,
            retries: Retries::default(),
            rnr_retries: Retries::default(),
            repair: Repair::default(),
            recovery: Recovery::new(policies.recovery),
            congestion: Congestion::new(policies.congestion),
            mtu: Mtu::Mtu1024,
        }
    }

    /// Forgets everything but its policies; the queue goes on at sequence number `seq`.
    pub fn reset(&mut self, seq: u32) {
        let mut log = core::mem::take(&mut self.log);
        log.reset(seq);
        let policies =
            Policies { recovery: self.recovery.scheme(), congestion: self.congestion.controller() };
        *self = Self::at_rest(log, policies);
    }

    /// RTR → RTS: starts at the first sequence number.
    pub fn start(&mut self, c: &RequesterConfig) {
        self.in_flight = InFlight::at(c.sq_psn);
        self.log.assign_from(c.sq_psn);
        self.configure(c);
    }

    /// Takes over changed attributes (also in SQD); sequence numbers stay.
    pub fn configure(&mut self, c: &RequesterConfig) {
        self.mtu = c.mtu;
        self.timer.configure(c.timeout);
        self.retries.configure(c.retry_cnt);
        self.rnr_retries.configure(c.rnr_retry);
        self.rd_atomic.configure(c.max_rd_atomic);
    }

    /// Sequence number of the oldest work request that is not complete: all before it succeeded.
    #[inline]
    pub fn head(&self) -> u32 {
        self.log.head()
    }

    /// Sequence number of the next work request to start.
    #[inline]
    pub fn started(&self) -> u32 {
        self.log.started()
    }

    /// Packets sent that are neither answered nor about to be sent again; responses to READs among them.
    #[inline(always)]
    pub fn packets_in_flight(&self) -> u32 {
        self.in_flight.packets()
    }

    /// The oldest sequence number that is not acknowledged.
    pub fn oldest(&self) -> Psn {
        self.in_flight.una()
    }

    /// The number of the packet that was sent last, if it ends a message, requests an acknowledgement, and nothing goes out again. (What
    /// a READ takes says more of its length than of the way.)
    pub fn asked_last(&self) -> Option<Psn> {
        let asked = !self.since_ack_req.any() && self.in_flight.is_at_end() && !self.in_flight.is_empty();
        let is_message = || self.log.get(self.log.started().wrapping_sub(1)).kind == RequestKind::Message;
        let last = asked && !self.repair.resending && !self.log.is_drained() && is_message();
        last.then(|| self.in_flight.next().sub(1))
    }

    /// Path MTU.
    #[inline]
    pub fn mtu(&self) -> Mtu {
        self.mtu
    }

    /// When [`Requester::handle_timeout`] is due.
    #[inline]
    pub fn deadline(&self) -> Instant {
        self.timer.deadline().min(self.congestion.resumes_at())
    }

    /// Whether every started work request is complete: what SQD waits for.
    #[inline]
    pub fn drained(&self) -> bool {
        self.log.is_drained()
    }

    /// The attribute `sq_psn`: sequence number of the first packet of the next work request.
    pub fn sq_psn(&self) -> Psn {
        self.log.assigned()
    }

    /// Starts the ACK timer for a packet that is due, unless a timer runs; even when the port takes no frame: a link that
    /// is down and a peer that is dead end alike.
    #[inline]
    pub fn arm(&mut self, now: Instant) {
        self.timer.arm(now);
    }

    /// Nothing can leave: the ACK timer starts with the first packet that does.
    #[cold]
    pub fn rest(&mut self) {
        if !self.timer.is_rnr() {
            self.timer.stop();
        }
    }

    /// Whether it waits out an RNR NAK.
    pub(crate) fn waits_for_receive(&self) -> bool {
        self.timer.is_rnr()
    }

    /// Marks a work request as failed on this side (a bad local key, a malformed request). It completes with
    /// `status` once everything before it has completed; nothing from it on is sent.
    pub fn fail_local(&mut self, seq: u32, status: WcStatus) {
        self.failure.add(seq, status);
    }

    /// The packet that was handed out last could not be built: it did not leave, and its work request
    /// [fails](Self::fail_local) with `status`.
    #[cold]
    pub fn take_back(&mut self, unsent: Unsent, status: WcStatus) {
        self.log.go_back_to(unsent.seq);
        self.in_flight.take_back(unsent.psn, unsent.again);
        self.since_ack_req = unsent.since_ack_req;
        self.fail_local(unsent.seq, status);
    }

    /// The status of the oldest work request, if it failed on this side.
    #[inline]
    pub fn local_failure(&self) -> Option<WcStatus> {
        self.failure.of(self.log.head())
    }

    /// Whether the request whose packet is next failed on this side, or one before it.
    #[inline]
    fn has_failed(&self) -> bool {
        self.failure.before_or_at(self.log.current()).is_some()
    }

    /// Sequence number of the work request whose packet is sent next.
    #[inline]
    pub fn next_to_send(&self) -> u32 {
        self.log.current()
    }

    /// Where the entry of a work request is, for a prefetch.
    #[inline]
    pub(crate) fn remembers(&self, seq: u32) -> *const () {
        self.log.address(seq)
    }

    /// Packets that may be sent now, estimated from the next request alone: for a caller that allocates buffers for a
    /// burst.
    #[inline]
    pub fn waiting(&self, window: &SendWindow, sq: &impl SendRing) -> u32 {
        let begun = match self.log.all_sent() {
            true => 0,
            false => (self.log.get(self.log.current()).last.diff(self.in_flight.cursor()) + 1).max(1) as u32,
        };
        let started = self.log.started();
        let waiting = match sq.published().wrapping_sub(started) {
            0 => begun,
            posted => begun + self.unstarted(SendWqe::of(sq.slot(started)), posted),
        };
        waiting.min(self.room(window))
    }

    /// Whether nothing is left to send and no failure to report: [`Requester::poll_transmit`] need not be called.
    #[inline]
    pub(crate) fn sent_all(&self, sq: &impl SendRing) -> bool {
        self.log.all_sent() && !self.failure.is_some() && self.log.started() == sq.published()
    }

    /// Packets of `posted` requests that have not started, if all are like `next`, which is the first of them.
    #[inline]
    fn unstarted(&self, next: &SendWqe, posted: u32) -> u32 {
        let Some(operation) = Operation::of(next) else { return 0 };
        let packets = match operation.kind {
            RequestKind::Message => self.mtu.packets(next.length),
            _ => 1,
        };
        match posted.min(self.may_start(operation, next.flags().contains(SendFlags::FENCE))) {
            0 => 0,
            n => n - 1 + packets,
        }
    }

    /// The next packet to build, or why there is none.
    #[inline(always)]
    pub fn poll_transmit<'a>(
        &mut self,
        window: &SendWindow,
        gates: Gates,
        epoch: u32,
        sq: &'a impl SendRing,
    ) -> Result<Segment<'a>, Idle> {
        let (started, slot) = loop {
            if self.timer.is_rnr() || self.failure.is_some() || !gates.has(Gates::TX_RETRY) {
                self.held_up(gates)?;
            }
            if self.log.all_sent() {
                match self.start_next(window, gates, epoch, sq)? {
                    Some(next) => break next,
                    None => continue,
                }
            }
            let current = self.log.current();
            let started = self.log.get(current);
            if started.kind.takes_no_psn() {
                self.log.leave_current();
                continue;
            }
            break (started, sq.slot(current));
        };
        let mut room = self.room(window);
        if room == 0 {
            room = self.window_full(window)?;
        }
        let psn = self.in_flight.cursor();
        let last = if started.kind == RequestKind::Message { psn } else { started.part_end(psn) };
        if started.kind != RequestKind::Message {
            self.may_request(window, &started, psn, last)?;
        }
        self.arm(window.now);
        let wqe = SendWqe::of(slot);
        let operation = Operation::of(wqe).expect("a request that has started becomes packets");
        let (seq, since_ack_req) = (self.log.current(), self.since_ack_req);
        let segment = if started.kind == RequestKind::Message {
            // In SQD nothing follows that could request the acknowledgement of what has started.
            let draining = !gates.has(Gates::START_WQE);
            let ack_req = self.asks(operation, wqe, psn, psn == started.last, room, draining);
            self.message_segment(seq, slot, operation, &started, psn, ack_req)
        } else {
            self.request_segment(seq, slot, operation, &started, psn, last)
        };
        self.sent(window.now, &started, &segment, last);
        Ok(Segment { since_ack_req, ..segment })
    }

    /// Whether the packet of a message requests an acknowledgement; counts those that do not.
    #[inline(always)]
    fn asks(
        &mut self,
        operation: &Operation,
        wqe: &SendWqe,
        psn: Psn,
        is_last: bool,
        room: u32,
        draining: bool,
    ) -> bool {
        // The first packet of a retry requests at once.
        let restarted = psn == self.in_flight.una() && self.in_flight.went_out(psn);
        let wanted = restarted || self.repair.probing || (is_last && (draining || wqe.signaled()));
        // The message itself has started, so it counts.
        let unasked =
            if is_last && !wanted { (self.unasked_messages(operation) + 1).max(0) as u32 } else { u32::MAX };
        let asks = wanted || self.since_ack_req.requests(room, unasked).are_due(0);
        self.since_ack_req.count(asks);
        asks
    }

    /// Whether a request for the responses from `psn` to `last` may go out now.
    #[inline(always)]
    fn may_request(&self, window: &SendWindow, started: &Started, psn: Psn, last: Psn) -> Result<(), Idle> {
        if distance(psn, last) >= self.share_left(window) {
            self.share_used()?;
        }
        // The first part of a READ counts since the READ started.
        if psn != started.first && !self.in_flight.went_out(psn) && self.rd_atomic.is_full() {
            hit(Mark::ReadLimit);
            return Err(Idle::Waiting);
        }
        Ok(())
    }

    /// Moves on behind a packet, which covers the numbers of its request up to `last`.
    #[inline(always)]
    fn sent(&mut self, now: Instant, started: &Started, segment: &Segment<'_>, last: Psn) {
        if started.kind != RequestKind::Message {
            self.since_ack_req = SinceAckReq::NONE;
            if !segment.again {
                self.in_flight.expect_responses(distance(segment.psn, last));
                if segment.psn != started.first {
                    self.another_part();
                }
            }
        }
        self.repair.probing = false;
        if last == started.last {
            self.log.leave_current();
        }
        let behind = last.add(1);
        self.in_flight.advance(behind);
        let next = self.recovery.next(&self.in_flight, behind);
        if next != behind {
            self.rewind(next);
        }
        let (first, bytes) = (segment.psn, segment.len.into());
        self.congestion.handle(now, Event::Sent { first, behind, bytes, again: segment.again });
    }

    /// Another part of a READ is requested: to the peer this is another request.
    #[cold]
    fn another_part(&mut self) {
        self.rd_atomic.start(1);
        self.credits.start(1, false);
    }

    /// Why no packet goes out, if that is an RNR wait, the state, or a local failure of the next request or an earlier one.
    #[cold]
    fn held_up(&mut self, gates: Gates) -> Result<(), Idle> {
        if self.timer.is_rnr() {
            return Err(Idle::Waiting);
        }
        self.failure.forget_before(self.log.head());
        if self.has_failed() && !self.repair.probing {
            if gates.has(Gates::TX_RETRY) && self.local_failure().is_none() {
                self.probe(); // no later packet will request the acknowledgement of those before it
            }
            if !self.repair.probing {
                return Err(self.failed_idle());
            }
        }
        if !gates.has(Gates::TX_RETRY) {
            if self.drained() {
                self.timer.stop();
            }
            return Err(Idle::NothingToDo);
        }
        Ok(())
    }

    /// A request on this side failed, and nothing from it on is sent.
    #[cold]
    fn failed_idle(&self) -> Idle {
        if self.local_failure().is_some() { Idle::Failed } else { Idle::Waiting }
    }

    /// Gives the next posted work request its sequence numbers, if everything allows it to start. `None`: something
    /// else comes first: look again.
    #[inline(always)]
    fn start_next<'a>(
        &mut self,
        window: &SendWindow,
        gates: Gates,
        epoch: u32,
        sq: &'a impl SendRing,
    ) -> Result<Option<(Started, &'a [Granule])>, Idle> {
        let seq = self.log.started();
        if seq == sq.published() || !gates.has(Gates::START_WQE) {
            if self.drained() {
                self.timer.stop(); // whatever was due when the timer started is gone
            }
            return Err(Idle::NothingToDo);
        }
        let slot = sq.slot(seq);
        let wqe = SendWqe::of(slot);
        if wqe.epoch != epoch {
            self.log.start_without_psn(RequestKind::Stale);
            return Ok(None);
        }
        let Some(operation) = Operation::of(wqe) else {
            return self.start_local(wqe).map(|()| None);
        };
        let fenced = wqe.flags().contains(SendFlags::FENCE);
        if self.may_start(operation, fenced) == 0 {
            return self.held_back(operation, fenced).map(|()| None);
        }
        let packets = operation.packets(self.mtu, wqe.length);
        if packets > self.in_flight.numbers_left(self.log.assigned()) {
            return Err(Idle::Waiting);
        }
        let remembered = match operation.kind {
            RequestKind::Read => self.read(packets, window.share),
            kind => Remembered::new(self.log.assigned(), kind),
        };
        let started = self.log.start(remembered, packets);
        self.credits.start(1, operation.takes_recv);
        if operation.kind != RequestKind::Message {
            self.rd_atomic.start(1);
        }
        Ok(Some((started, slot)))
    }

    /// The next request sends nothing. Whether a local operation may be carried out now: a bind or registration when all
    /// earlier requests have started, an invalidation when they have completed, so that none still uses the key.
    #[cold]
    fn start_local(&mut self, wqe: &SendWqe) -> Result<(), Idle> {
        match wqe.opcode() {
            WrOpcode::LocalInv if !self.drained() => {
                if self.lacks_ack_request() {
                    self.probe(); // nothing behind it would ask for the acknowledgement
                    return Ok(());
                }
                Err(Idle::Waiting)
            }
            WrOpcode::LocalInv | WrOpcode::BindMw | WrOpcode::RegMr => {
                let fenced = wqe.flags().contains(SendFlags::FENCE);
                Err(if fenced && self.rd_atomic.any() {
                    Idle::Waiting
                } else {
                    Idle::Local(self.log.started())
                })
            }
            _ => {
                self.fail_local(self.log.started(), WcStatus::LocQpOpErr);
                Ok(())
            }
        }
    }

    /// The local operation of [`Idle::Local`] is carried out.
    #[cold]
    pub fn local_done(&mut self, seq: u32) {
        debug_assert_eq!(seq, self.log.started(), "a local operation is carried out when it starts");
        self.log.start_without_psn(RequestKind::Local);
    }

    /// Whether a retry is left.
    pub fn may_retry(&self) -> bool {
        self.retries.any_left()
    }

    /// Sends everything again that is not answered, which is no retry.
    pub fn repeat(&mut self) {
        if !self.in_flight.is_empty() && !self.timer.is_rnr() {
            self.rewind(self.in_flight.una());
            self.timer.stop(); // until the first of them leaves again
        }
    }

    /// Whether packets went out since the last that requested an acknowledgement, and nothing is left to send.
    pub(super) fn lacks_ack_request(&self) -> bool {
        let all_sent = self.in_flight.is_at_end() && !self.in_flight.is_empty();
        self.since_ack_req.any() && all_sent && !self.timer.is_rnr()
    }

    /// SQD was entered: requests the acknowledgement of what went out, unless packets are left that will request it.
    pub fn drain(&mut self) {
        if self.log.all_sent() {
            self.probe();
        }
    }

    /// Sends the last packet again, requesting an acknowledgement this time.
    pub fn probe(&mut self) {
        if self.lacks_ack_request() {
            hit(Mark::Probe);
            self.rewind(self.in_flight.next().sub(1));
            self.repair.probing = true;
        }
    }

    /// Makes `psn`, at or behind the oldest that is not acknowledged, the next packet.
    pub(super) fn rewind(&mut self, psn: Psn) {
        self.log.seek(psn);
        self.in_flight.resend_from(psn);
    }

    /// Starts the ACK timer anew, if something is in flight.
    #[inline]
    pub(super) fn rearm(&mut self, now: Instant) {
        if self.in_flight.is_empty() {
            self.timer.stop();
        } else {
            self.timer.rearm(now);
        }
    }
}
