//! Which packets request an acknowledgement though nobody waits for it: one of every few, and those that leave the window, the slots
//! or the credits short.

use crate::config::ACK_REQ_STRIDE;

/// Packets since the last that requested an acknowledgement.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) struct SinceAckReq(u8);

impl SinceAckReq {
    /// The last packet requested one.
    pub const NONE: Self = Self(0);

    /// Whether there are any: nobody has been asked to acknowledge them.
    #[inline(always)]
    pub const fn any(self) -> bool {
        self.0 > 0
    }

    /// Counts a packet.
    #[inline(always)]
    pub fn count(&mut self, requests: bool) {
        self.0 = if requests { 0 } else { self.0 + 1 };
    }

    /// Which of the next packets request an acknowledgement: those that leave the `window` full, one of every few, and those
    /// from `unasked` on.
    #[inline(always)]
    pub fn requests(self, window: u32, unasked: u32) -> AckRequests {
        let asked = 0u32.wrapping_sub(self.0.into());
        let always = unasked.min(window - 1);
        AckRequests { always, due: always.min(asked.wrapping_add(ACK_REQ_STRIDE - 1)), asked }
    }
}

/// Which of the next packets request an acknowledgement. Packets are numbered from 0 on.
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

    /// Packet `index` requests an acknowledgement. Few do, and the loop over a series needs the registers for the others.
    #[cold]
    #[inline(never)]
    fn asked_by(&mut self, index: u32) {
        self.asked = index + 1;
        self.due = self.always.min(index + ACK_REQ_STRIDE);
    }

    /// Packets before `index` since the last one that did.
    #[inline(always)]
    pub fn since(&self, index: u32) -> SinceAckReq {
        SinceAckReq(index.wrapping_sub(self.asked) as u8)
    }
}
