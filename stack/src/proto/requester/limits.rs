//! What may be sent now, and what requests an acknowledgement: window, sequence numbers, credits, READ limit and fence.
//! Decided here, for a single packet and for a [`Run`](super::Run) of them.

use super::log::Remembered;
use super::operation::Operation;
use super::{Idle, RequestKind, Requester};
use crate::config::{ACK_REQ_STRIDE, CREDITS_LOW};
use crate::mark::{Mark, hit};
use crate::proto::in_flight::{NUMBERS_MAX, distance};
use crate::proto::status::WcStatus;
use crate::time::Instant;

/// Which of the next packets request an acknowledgement though nobody waits for it. Packets are numbered from 0 on.
#[derive(Clone, Copy, Debug)]
pub(super) struct AckRequests {
    /// From this packet on each one does: window, slots or credits run short.
    always: u32,
    /// The next packet that does.
    due: u32,
    /// The packet after the last one that did; wrapped below 0 if that one was sent before these.
    asked: u32,
}

impl AckRequests {
    /// Whether packet `index` requests an acknowledgement.
    #[inline(always)]
    pub fn are_due(&self, index: u32) -> bool {
        index >= self.due
    }

    /// Whether packet `index` requests one because it is due or because somebody waits for it (`wanted`). If so, the next is due a
    /// stride later.
    #[inline(always)]
    pub fn ask(&mut self, index: u32, wanted: bool) -> bool {
        let asks = self.are_due(index) || wanted;
        if asks {
            self.asked_by(index);
        }
        asks
    }

    /// Packet `index` requests an acknowledgement. Few do, and the loop over a run needs the registers for the others.
    #[cold]
    #[inline(never)]
    fn asked_by(&mut self, index: u32) {
        self.asked = index + 1;
        self.due = self.always.min(index + ACK_REQ_STRIDE);
    }

    /// Packets before `index` since the last one that did.
    #[inline(always)]
    pub fn since(&self, index: u32) -> u8 {
        index.wrapping_sub(self.asked) as u8
    }
}

impl Requester {
    /// Request packets that may go out now; `share` as in [`Requester::poll_transmit`].
    #[inline(always)]
    pub(super) fn window(&self, now: Instant, share: u32) -> u32 {
        self.congestion.allowance(now, self.in_flight.packets()).min(self.share_left(share))
    }

    /// What is left of a share.
    #[inline(always)]
    pub(super) fn share_left(&self, share: u32) -> u32 {
        share.saturating_sub(self.packets_in_flight())
    }

    /// Whether a packet goes out though the share has no room for it: nothing else would bring an answer, which makes room.
    pub(super) fn may_pass_share(&self) -> bool {
        self.packets_in_flight() == 0 || self.since_ack_req > 0
    }

    /// The window has no room for a packet. Whether one goes out all the same.
    #[cold]
    pub(super) fn window_full(&self, now: Instant) -> Result<u32, Idle> {
        if self.congestion.allowance(now, self.in_flight.packets()) == 0 {
            hit(Mark::WindowFull);
            return Err(Idle::Waiting);
        }
        self.share_used().map(|()| 1)
    }

    /// The share has no room for the next packet. Whether it goes out all the same.
    #[cold]
    pub(super) fn share_used(&self) -> Result<(), Idle> {
        if self.may_pass_share() {
            return Ok(());
        }
        hit(Mark::ShareUsed);
        Err(Idle::Waiting)
    }

    /// How a READ of so many responses begins. One of more than a quarter of the share is requested in parts: so several are in
    /// flight together, and no single part is large should the share shrink before it is sent.
    #[inline(always)]
    pub(super) fn read(&self, packets: u32, share: u32) -> Remembered {
        if packets <= share / 4 {
            return Remembered::new(self.assigned, RequestKind::Read);
        }
        hit(Mark::ReadInParts);
        Remembered::in_parts(self.assigned, (share / 4).max(1).ilog2())
    }

    /// Sequence numbers that may be assigned now.
    #[inline(always)]
    pub(super) fn numbers_left(&self) -> u32 {
        NUMBERS_MAX.saturating_sub(distance(self.in_flight.una, self.assigned))
    }

    /// How many requests of this operation may start now, one after the other. One request beyond the credits may go: its
    /// answer tells when there are more (IBA 9.7.7.2).
    #[inline(always)]
    pub(super) fn may_start(&self, operation: &Operation, fenced: bool) -> u32 {
        if fenced && self.rd_outstanding > 0 {
            return 0;
        }
        if operation.kind != RequestKind::Message {
            let limit = if fenced { self.max_rd_atomic.min(1) } else { self.max_rd_atomic };
            return limit.saturating_sub(self.rd_outstanding).into();
        }
        if operation.takes_recv && !self.unlimited {
            return (self.lsn.diff(self.ssn) + 2).max(0) as u32;
        }
        u32::MAX
    }

    /// Why no request of this operation may start. `Ok`: it failed, look again.
    #[cold]
    pub(super) fn held_back(&mut self, operation: &Operation, fenced: bool) -> Result<(), Idle> {
        if fenced && self.rd_outstanding > 0 {
            hit(Mark::FenceWaits);
        } else if operation.kind == RequestKind::Message {
            hit(Mark::NoCredits);
        } else if self.max_rd_atomic == 0 {
            self.fail_local(self.started, WcStatus::LocQpOpErr);
            return Ok(());
        } else {
            hit(Mark::ReadLimit);
        }
        Err(Idle::Waiting)
    }

    /// How many more messages of this operation may start and end without requesting an acknowledgement; below 0 the last one
    /// that started requests one, too. An unsignalled message may be acknowledged along with a later one, as long as neither
    /// slots nor credits run short. If none follows, the timer requests it ([`Requester::probe`]); without a timer each does.
    #[inline(always)]
    pub(super) fn unasked_messages(&self, operation: &Operation) -> i32 {
        if self.timeout == 0 {
            return -1;
        }
        let slots = (self.log.depth() / 2) as i32 - self.started.wrapping_sub(self.head) as i32;
        if operation.takes_recv && !self.unlimited {
            return slots.min(self.lsn.diff(self.ssn) - CREDITS_LOW);
        }
        slots
    }

    /// Which of the next packets request an acknowledgement: those that leave the `window` full, one of every few, and those
    /// from `unasked` on.
    #[inline(always)]
    pub(super) fn ack_requests(&self, window: u32, unasked: u32) -> AckRequests {
        let asked = 0u32.wrapping_sub(self.since_ack_req.into());
        let always = unasked.min(window - 1);
        AckRequests { always, due: always.min(asked.wrapping_add(ACK_REQ_STRIDE - 1)), asked }
    }
}
