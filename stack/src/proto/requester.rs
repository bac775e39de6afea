//! The requester: turns work requests into request packets (IBA 9.7.2 to 9.7.4).
//!
//! It assigns the PSNs of the send side. [`Requester::poll_transmit`] returns the next packet; the [completer](super::completer) handles
//! responses, on the same state. It never touches payload: a [`Segment`] says which part of a work request a packet carries.
//!
//! Its parts are in separate files: which requests have started and are complete (`send_log`), which packets are in flight (`in_flight`),
//! what the peer allows to start (`credits`, `rd_atomic`), which packets request an acknowledgement (`ack_requests`), the timer (`timer`),
//! retries (`retries`) and failures on this side (`failure`). Decisions that depend on several of them are in `limits` and here.

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

/// The send queue as the requester sees it: slots by the sequence numbers of work requests.
pub trait SendRing {
    /// Sequence number after that of the last posted request.
    fn published(&self) -> u32;
    /// The slot of a posted request, which must not be released yet.
    fn slot(&self, seq: u32) -> &[Granule];
    /// Returns slots that are contiguous in memory, beginning with that of `seq`, and how many granules each slot has. Returns at least one
    /// slot and at most `max`. `seq + max` is at most the last value of [`published`](Self::published).
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
    /// Nothing is posted, or the state of the queue pair permits nothing.
    NothingToDo,
    /// It waits for the peer: window, credits, fence, READ limit or RNR delay.
    Waiting,
    /// The oldest work request failed on this side: see [`Requester::local_failure`].
    Failed,
    /// The next work request, with this sequence number, is a local operation: carry it out, call [`Requester::local_done`] or
    /// [`Requester::fail_local`], and poll again.
    Local(u32),
}

/// The share of a queue pair that does not share a window with others: unlimited.
pub const UNSHARED: u32 = u32::MAX;

/// How a queue pair handles losses and congestion. Chosen when it is created.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Policies {
    /// Which packets are sent again after a loss.
    pub recovery: Scheme,
    /// How many packets may be sent, and when.
    pub congestion: Controller,
}

/// Settings of the requester, from the queue pair's attributes.
#[derive(Clone, Copy, Debug)]
pub struct RequesterConfig {
    /// Path MTU.
    pub mtu: Mtu,
    /// First PSN.
    pub sq_psn: Psn,
    /// Exponent of the local ACK timeout, 0 = no timeout.
    pub timeout: u8,
    /// Retries after a timeout or sequence error, `0..=7`.
    pub retry_cnt: u8,
    /// Retries after an RNR NAK, 7 = unlimited.
    pub rnr_retry: u8,
    /// READ and ATOMIC requests that may be outstanding.
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

// Each policy may keep its state in a box. With two boxes, requester and send ring still fit into two cache lines of a queue pair.
const _: () = {
    const POINTER: usize = size_of::<Box<u8>>();
    assert!(size_of::<Recovery>() <= POINTER && size_of::<Congestion>() <= POINTER);
    assert!(size_of::<Requester>() + 2 * POINTER - size_of::<Recovery>() - size_of::<Congestion>() <= 96);
};

impl Requester {
    /// Bytes outside of the requester for each slot of the send queue.
    pub(crate) const REMEMBERED: usize = size_of::<Remembered>();

    /// A requester in its initial state, for a send queue of `depth` slots (a power of two).
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

    /// Returns to the initial state, except for the policies. The next work request has sequence number `seq`.
    pub fn reset(&mut self, seq: u32) {
        let mut log = core::mem::take(&mut self.log);
        log.reset(seq);
        let policies =
            Policies { recovery: self.recovery.scheme(), congestion: self.congestion.controller() };
        *self = Self::at_rest(log, policies);
    }

    /// RTR → RTS: sends begin with the PSN `sq_psn`.
    pub fn start(&mut self, c: &RequesterConfig) {
        self.in_flight = InFlight::at(c.sq_psn);
        self.log.assign_from(c.sq_psn);
        self.configure(c);
    }

    /// Applies changed attributes (also in SQD). PSNs stay.
    pub fn configure(&mut self, c: &RequesterConfig) {
        self.mtu = c.mtu;
        self.timer.configure(c.timeout);
        self.retries.configure(c.retry_cnt);
        self.rnr_retries.configure(c.rnr_retry);
        self.rd_atomic.configure(c.max_rd_atomic);
    }

    /// Sequence number of the oldest work request that is not complete. All before it succeeded.
    #[inline]
    pub fn head(&self) -> u32 {
        self.log.head()
    }

    /// Sequence number of the next work request to start.
    #[inline]
    pub fn started(&self) -> u32 {
        self.log.started()
    }

    /// Packets, READ responses included, that were sent or requested, are not answered and are not about to be sent again.
    #[inline(always)]
    pub fn packets_in_flight(&self) -> u32 {
        self.in_flight.packets()
    }

    /// The oldest PSN that is not acknowledged.
    pub fn oldest(&self) -> Psn {
        self.in_flight.una()
    }

    /// PSN of the last packet sent, if it ends a SEND or WRITE, requests an acknowledgement, and no packet is being sent again. (For a
    /// READ, the time to the answer depends more on its length than on the path.)
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

    /// When to call [`Requester::handle_timeout`].
    #[inline]
    pub fn deadline(&self) -> Instant {
        self.timer.deadline().min(self.congestion.resumes_at())
    }

    /// Whether every started work request is complete, as SQD requires.
    #[inline]
    pub fn drained(&self) -> bool {
        self.log.is_drained()
    }

    /// The attribute `sq_psn`: first PSN of the next work request.
    pub fn sq_psn(&self) -> Psn {
        self.log.assigned()
    }

    /// Starts the ACK timer for a packet that is ready to be sent, unless a timer runs. It starts even if the port accepts no frame: a link
    /// that is down counts like a peer that is dead.
    #[inline]
    pub fn arm(&mut self, now: Instant) {
        self.timer.arm(now);
    }

    /// Stops the ACK timer because no packet can be sent: it starts with the next one that is.
    #[cold]
    pub fn rest(&mut self) {
        if !self.timer.is_rnr() {
            self.timer.stop();
        }
    }

    /// Whether the delay of an RNR NAK runs.
    pub(crate) fn waits_for_receive(&self) -> bool {
        self.timer.is_rnr()
    }

    /// Marks a work request as failed on this side (a bad local key, a malformed request). It completes with `status` once all earlier ones
    /// are complete. Neither it nor a later one is sent.
    pub fn fail_local(&mut self, seq: u32, status: WcStatus) {
        self.failure.add(seq, status);
    }

    /// Takes back the packet that was handed out last, because it could not be built and was not sent. Its work request
    /// [fails](Self::fail_local) with `status`.
    #[cold]
    pub fn take_back(&mut self, unsent: Unsent, status: WcStatus) {
        self.log.go_back_to(unsent.seq);
        self.in_flight.take_back(unsent.psn, unsent.again);
        self.since_ack_req = unsent.since_ack_req;
        self.fail_local(unsent.seq, status);
    }

    /// The status of the oldest incomplete work request, if it failed on this side.
    #[inline]
    pub fn local_failure(&self) -> Option<WcStatus> {
        self.failure.of(self.log.head())
    }

    /// Whether the work request whose packet is next, or an earlier one, failed on this side.
    #[inline]
    fn has_failed(&self) -> bool {
        self.failure.before_or_at(self.log.current()).is_some()
    }

    /// Sequence number of the work request whose packet is sent next.
    #[inline]
    pub fn next_to_send(&self) -> u32 {
        self.log.current()
    }

    /// Address of what is remembered of a work request, for a prefetch.
    #[inline]
    pub(crate) fn remembers(&self, seq: u32) -> *const () {
        self.log.address(seq)
    }

    /// Estimates how many packets may be sent now, from the next request alone. For a caller that allocates buffers for a burst.
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

    /// Whether there is nothing to send and no failure to report, so that [`Requester::poll_transmit`] need not be called.
    #[inline]
    pub(crate) fn sent_all(&self, sq: &impl SendRing) -> bool {
        self.log.all_sent() && !self.failure.is_some() && self.log.started() == sq.published()
    }

    /// How many packets `posted` requests that have not started would make now, if all were like the first of them, `next`.
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

    /// Returns the next packet to build, or why there is none.
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
            // In SQD no later request starts that could request the acknowledgement for this one.
            let draining = !gates.has(Gates::START_WQE);
            let ack_req = self.asks(operation, wqe, psn, psn == started.last, room, draining);
            self.message_segment(seq, slot, operation, &started, psn, ack_req)
        } else {
            self.request_segment(seq, slot, operation, &started, psn, last)
        };
        self.sent(window.now, &started, &segment, last);
        Ok(Segment { since_ack_req, ..segment })
    }

    /// Whether a packet of a SEND or WRITE requests an acknowledgement. Counts the packets that do not.
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
        // The first packet of a retry always requests one.
        let restarted = psn == self.in_flight.una() && self.in_flight.went_out(psn);
        let wanted = restarted || self.repair.probing || (is_last && (draining || wqe.signaled()));
        // The message itself has started already and is counted as outstanding.
        let unasked =
            if is_last && !wanted { (self.unasked_messages(operation) + 1).max(0) as u32 } else { u32::MAX };
        let asks = wanted || self.since_ack_req.requests(room, unasked).are_due(0);
        self.since_ack_req.count(asks);
        asks
    }

    /// Whether the request packet for the responses from `psn` to `last` may be sent now.
    #[inline(always)]
    fn may_request(&self, window: &SendWindow, started: &Started, psn: Psn, last: Psn) -> Result<(), Idle> {
        if distance(psn, last) >= self.share_left(window) {
            self.share_used()?;
        }
        // The first part of a READ was counted when the READ started.
        if psn != started.first && !self.in_flight.went_out(psn) && self.rd_atomic.is_full() {
            hit(Mark::ReadLimit);
            return Err(Idle::Waiting);
        }
        Ok(())
    }

    /// Updates the state after a packet was handed out, which uses the PSNs of its request up to `last`.
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

    /// Counts another part of a READ that is requested in parts. To the peer it is another request.
    #[cold]
    fn another_part(&mut self) {
        self.rd_atomic.start(1);
        self.credits.start(1, false);
    }

    /// Why no packet may be sent, if the reason is an RNR delay, the state, or a failure on this side.
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

    /// The reason to return when a request failed on this side and neither it nor a later one is sent.
    #[cold]
    fn failed_idle(&self) -> Idle {
        if self.local_failure().is_some() { Idle::Failed } else { Idle::Waiting }
    }

    /// Starts the next posted work request, if it may start, and assigns its PSNs. `None`: something else comes first, so try again.
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
                self.timer.stop(); // whatever the timer was started for is gone
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

    /// Handles a request that sends no packet. A local operation may be carried out at once if it is a bind or a registration, since all
    /// earlier requests have started; an invalidation waits until they are complete, so that none still uses the key.
    #[cold]
    fn start_local(&mut self, wqe: &SendWqe) -> Result<(), Idle> {
        match wqe.opcode() {
            WrOpcode::LocalInv if !self.drained() => {
                if self.lacks_ack_request() {
                    self.probe(); // no later packet will request the acknowledgement
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

    /// Counts the local operation of [`Idle::Local`] as carried out.
    #[cold]
    pub fn local_done(&mut self, seq: u32) {
        debug_assert_eq!(seq, self.log.started(), "a local operation is carried out when it starts");
        self.log.start_without_psn(RequestKind::Local);
    }

    /// Whether a retry is left.
    pub fn may_retry(&self) -> bool {
        self.retries.any_left()
    }

    /// Sends again everything that is not answered, without using a retry.
    pub fn repeat(&mut self) {
        if !self.in_flight.is_empty() && !self.timer.is_rnr() {
            self.rewind(self.in_flight.una());
            self.timer.stop(); // starts again when the first of them is sent
        }
    }

    /// Whether packets were sent after the last one that requested an acknowledgement, and no packet is left to send.
    pub(super) fn lacks_ack_request(&self) -> bool {
        let all_sent = self.in_flight.is_at_end() && !self.in_flight.is_empty();
        self.since_ack_req.any() && all_sent && !self.timer.is_rnr()
    }

    /// SQD was entered: requests an acknowledgement of what was sent, unless packets are left that will request it.
    pub fn drain(&mut self) {
        if self.log.all_sent() {
            self.probe();
        }
    }

    /// Sends the last packet again, with a request for an acknowledgement, if no sent packet requested one for it.
    pub fn probe(&mut self) {
        if self.lacks_ack_request() {
            hit(Mark::Probe);
            self.rewind(self.in_flight.next().sub(1));
            self.repair.probing = true;
        }
    }

    /// Makes the packet with this PSN the next to send. It must not be before the oldest PSN that is not acknowledged.
    pub(super) fn rewind(&mut self, psn: Psn) {
        self.log.seek(psn);
        self.in_flight.resend_from(psn);
    }

    /// Restarts the ACK timer if something is in flight, and otherwise stops it.
    #[inline]
    pub(super) fn rearm(&mut self, now: Instant) {
        if self.in_flight.is_empty() {
            self.timer.stop();
        } else {
            self.timer.rearm(now);
        }
    }
}
