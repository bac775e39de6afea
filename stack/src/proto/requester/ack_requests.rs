//! Which packets request an acknowledgement although no completion waits for it: one in every [`ACK_REQ_STRIDE`], and every one while
//! window, slots or credits run short.

use crate::config::ACK_REQ_STRIDE;

/// How many packets were sent since the last one that requested an acknowledgement.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) struct SinceAckReq(u8);

impl SinceAckReq {
    /// The last packet requested one.
    pub const NONE: Self = Self(0);

    /// Whether there are any. No acknowledgement was requested for them.
    #[inline(always)]
    pub const fn any(self) -> bool {
        self.0 > 0
    }

    /// Counts a packet that requests an acknowledgement or does not.
    #[inline(always)]
    pub fn count(&mut self, requests: bool) {
        self.0 = if requests { 0 } else { self.0 + 1 };
    }

    /// Which of the next packets request an acknowledgement: the one that fills the `window`, one in every stride, and those from index
    /// `unasked` on. `window` is at least 1.
    #[inline(always)]
    pub fn requests(self, window: u32, unasked: u32) -> AckRequests {
        let asked = 0u32.wrapping_sub(self.0.into());
        let always = unasked.min(window - 1);
        AckRequests { always, due: always.min(asked.wrapping_add(ACK_REQ_STRIDE - 1)), asked }
    }
}

/// Which of the next packets request an acknowledgement. Indices of packets begin at 0.
#[derive(Clone, Copy, Debug)]
pub(super) struct AckRequests {
    /// From this packet on every packet requests one, because window, slots or credits run short.
    always: u32,
    /// The next packet that requests one.
    due: u32,
    /// The packet after the last one that requested one; wrapped below 0 if that one was sent before index 0.
    asked: u32,
}

impl AckRequests {
    /// Whether packet `index` requests an acknowledgement.
    #[inline(always)]
    pub fn are_due(&self, index: u32) -> bool {
        index >= self.due
    }

    /// Whether packet `index` requests an acknowledgement, because it is due or because a completion waits for it (`wanted`). If so, the
    /// next one is due a stride later.
    #[inline(always)]
    pub fn ask(&mut self, index: u32, wanted: bool) -> bool {
        let asks = self.are_due(index) || wanted;
        if asks {
            self.asked_by(index);
        }
        asks
    }

    /// Records that packet `index` requests an acknowledgement. Not inlined, because few packets do, and the loop over a series needs the
    /// registers for the others.
    #[cold]
    #[inline(never)]
    fn asked_by(&mut self, index: u32) {
        self.asked = index + 1;
        self.due = self.always.min(index + ACK_REQ_STRIDE);
    }

    /// How many packets before `index` were sent since the last one that requested an acknowledgement.
    #[inline(always)]
    pub fn since(&self, index: u32) -> SinceAckReq {
        SinceAckReq(index.wrapping_sub(self.asked) as u8)
    }
}
