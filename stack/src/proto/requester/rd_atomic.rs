//! READs and atomics that are outstanding, and how many may be: as many as the peer keeps, to answer them again.

/// Requests that are answered by responses and have not been, and how many there may be. Of a READ that is requested in parts each
/// part counts.
#[derive(Clone, Copy, Default, Debug)]
pub(in crate::proto) struct RdAtomic {
    outstanding: u8,
    /// The attribute `max_rd_atomic`.
    max: u8,
}

impl RdAtomic {
    /// Another limit.
    pub fn configure(&mut self, max: u8) {
        self.max = max;
    }

    /// Whether there may be any.
    pub const fn is_enabled(self) -> bool {
        self.max > 0
    }

    /// Whether one is outstanding: what a fence waits for.
    #[inline(always)]
    pub const fn any(self) -> bool {
        self.outstanding > 0
    }

    /// Whether no more may start.
    #[inline(always)]
    pub const fn is_full(self) -> bool {
        self.outstanding >= self.max
    }

    /// How many more may start, one after the other; those with a fence each wait for the one before.
    #[inline(always)]
    pub fn left(self, fenced: bool) -> u32 {
        let max = if fenced { self.max.min(1) } else { self.max };
        max.saturating_sub(self.outstanding).into()
    }

    /// Requests start.
    #[inline(always)]
    pub fn start(&mut self, requests: u8) {
        self.outstanding += requests;
    }

    /// One has all of its responses.
    #[inline(always)]
    pub fn finish(&mut self) {
        self.outstanding -= 1;
    }
}
