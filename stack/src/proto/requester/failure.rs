//! A work request that failed on this side.

use crate::proto::status::WcStatus;

/// The oldest work request that failed on this side (a bad local key, a malformed request). It completes with its status once all earlier
/// ones are complete. Neither it nor a later one is sent. Packed, to take five bytes in a queue pair instead of eight.
#[derive(Clone, Copy, Debug)]
#[repr(Rust, packed)]
pub(super) struct LocalFailure {
    status: Option<WcStatus>,
    seq: u32,
}

impl LocalFailure {
    pub const NONE: Self = Self { status: None, seq: 0 };

    #[inline(always)]
    pub const fn is_some(&self) -> bool {
        self.status.is_some()
    }

    /// Records that the request with this sequence number failed. Only the oldest one is kept.
    pub fn add(&mut self, seq: u32, status: WcStatus) {
        if !self.is_some() || (self.seq.wrapping_sub(seq) as i32) > 0 {
            *self = Self { status: Some(status), seq };
        }
    }

    /// Sequence number of the request that failed, if it is this one or an earlier one.
    #[inline]
    pub const fn before_or_at(&self, seq: u32) -> Option<u32> {
        if self.is_some() && (seq.wrapping_sub(self.seq) as i32) >= 0 { Some(self.seq) } else { None }
    }

    /// The status of this request, if it is the one that is recorded.
    #[inline]
    pub fn of(&self, seq: u32) -> Option<WcStatus> {
        let status = self.status;
        status.filter(|_| self.seq == seq)
    }

    /// Forgets a failure of a request before `head`: all of these are complete, so it was sent before it failed.
    pub fn forget_before(&mut self, head: u32) {
        if (self.seq.wrapping_sub(head) as i32) < 0 {
            *self = Self::NONE;
        }
    }
}
