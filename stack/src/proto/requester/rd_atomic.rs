//! How many READs and atomics are outstanding, and how many may be: as many as the peer keeps to answer them again.

/// How many requests that are answered by responses are outstanding, and how many may be. If a READ is requested in parts, each part
/// counts.
#[derive(Clone, Copy, Default, Debug)]
pub(in crate::proto) struct RdAtomic {
    outstanding: u8,
    /// The attribute `max_rd_atomic`.
    max: u8,
}

impl RdAtomic {
    /// Changes the limit.
    pub fn configure(&mut self, max: u8) {
        self.max = max;
    }

    /// Whether any may start at all.
    pub const fn is_enabled(self) -> bool {
        self.max > 0
    }

    /// Whether one is outstanding. A fence waits until none is.
    #[inline(always)]
    pub const fn any(self) -> bool {
        self.outstanding > 0
    }

    /// Whether no more may start.
    #[inline(always)]
    pub const fn is_full(self) -> bool {
        self.outstanding >= self.max
    }

    /// How many more may start. Of those with a fence only one: the next has to wait for it.
    #[inline(always)]
    pub fn left(self, fenced: bool) -> u32 {
        let max = if fenced { self.max.min(1) } else { self.max };
        max.saturating_sub(self.outstanding).into()
    }

    /// Counts requests that start.
    #[inline(always)]
    pub fn start(&mut self, requests: u8) {
        self.outstanding += requests;
    }

    /// Counts a request that got all of its responses.
    #[inline(always)]
    pub fn finish(&mut self) {
        self.outstanding -= 1;
    }
}
