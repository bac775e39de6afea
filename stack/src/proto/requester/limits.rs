//! What may be sent now, by window, credits, READ limit and fence. Used for single packets and for a [`Series`](super::Series) of them.

use super::operation::Operation;
use super::send_log::Remembered;
use super::{Idle, RequestKind, Requester, SendWindow};
use crate::config::CREDITS_LOW;
use crate::mark::{Mark, hit};
use crate::proto::status::WcStatus;

impl Requester {
    /// Whether a packet may be sent although the share has no room for it: nothing in flight would bring an answer that makes room.
    pub(super) fn may_pass_share(&self) -> bool {
        self.in_flight.packets() == 0 || self.since_ack_req.any()
    }

    /// Decides whether a packet is sent although the window has no room for it. Returns how many.
    #[cold]
    pub(super) fn window_full(&self, window: &SendWindow) -> Result<u32, Idle> {
        if self.requests_left(window) == 0 {
            hit(Mark::WindowFull);
            return Err(Idle::Waiting);
        }
        self.share_used().map(|()| 1)
    }

    /// Decides whether the next packet is sent although the share has no room for it.
    #[cold]
    pub(super) fn share_used(&self) -> Result<(), Idle> {
        if self.may_pass_share() {
            return Ok(());
        }
        hit(Mark::ShareUsed);
        Err(Idle::Waiting)
    }

    /// How a READ with this many responses is requested. If they are more than a quarter of the share, it is requested in parts: then
    /// several parts are in flight together, and a part stays small even if the share shrinks before it is sent.
    #[inline(always)]
    pub(super) fn read(&self, packets: u32, share: u32) -> Remembered {
        if packets <= share / 4 {
            return Remembered::new(self.log.assigned(), RequestKind::Read);
        }
        hit(Mark::ReadInParts);
        Remembered::in_parts(self.log.assigned(), (share / 4).max(1).ilog2())
    }

    /// How many requests of this operation may start now. One more than there are credits may start: its answer tells when there are more
    /// (IBA 9.7.7.2).
    #[inline(always)]
    pub(super) fn may_start(&self, operation: &Operation, fenced: bool) -> u32 {
        if fenced && self.rd_atomic.any() {
            return 0;
        }
        if operation.kind != RequestKind::Message {
            return self.rd_atomic.left(fenced);
        }
        match self.credits.left() {
            Some(left) if operation.takes_recv => (left + 2).max(0) as u32,
            _ => u32::MAX,
        }
    }

    /// Why no request of this operation may start. `Ok`: the request failed, so try again.
    #[cold]
    pub(super) fn held_back(&mut self, operation: &Operation, fenced: bool) -> Result<(), Idle> {
        if fenced && self.rd_atomic.any() {
            hit(Mark::FenceWaits);
        } else if operation.kind == RequestKind::Message {
            hit(Mark::NoCredits);
        } else if !self.rd_atomic.is_enabled() {
            self.fail_local(self.log.started(), WcStatus::LocQpOpErr);
            return Ok(());
        } else {
            hit(Mark::ReadLimit);
        }
        Err(Idle::Waiting)
    }

    /// How many more messages of this operation may start and end without requesting an acknowledgement; negative if the last started one
    /// must request one, too. An unsignalled message may be acknowledged along with a later one, as long as neither slots nor credits run
    /// short. If no later one follows, the ACK timer leads to a request ([`Requester::probe`]); without an ACK timeout every message
    /// requests one.
    #[inline(always)]
    pub(super) fn unasked_messages(&self, operation: &Operation) -> i32 {
        if !self.timer.has_timeout() {
            return -1;
        }
        let slots = (self.log.depth() / 2) as i32 - self.log.outstanding() as i32;
        match self.credits.left() {
            Some(left) if operation.takes_recv => slots.min(left - CREDITS_LOW),
            _ => slots,
        }
    }
}
