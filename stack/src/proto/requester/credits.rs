//! End-to-end credits: for how many requests the peer has receive requests (IBA 9.7.7.2).

use crate::id::Psn;

/// The credits that the peer granted. Packed, to take nine bytes in a queue pair instead of twelve.
#[derive(Clone, Copy, Debug)]
#[repr(Rust, packed)]
pub(in crate::proto) struct Credits {
    /// Send sequence number (SSN) of the next request to start. The MSN of the peer counts the same requests.
    ssn: Psn,
    /// Limit sequence number (LSN): up to which SSN the peer granted credits.
    lsn: Psn,
    /// Whether credits are not limited: the peer said so, or uses a shared receive queue.
    unlimited: bool,
}

impl Credits {
    /// The state at the start of a connection: no credit was granted.
    pub const NONE: Self = Self { ssn: Psn::new(1), lsn: Psn::new(0), unlimited: false };

    /// Counts requests that start. Those that take no receive request of the peer use no credit.
    #[inline(always)]
    pub fn start(&mut self, requests: u32, takes_recv: bool) {
        self.ssn = self.ssn.add(requests);
        if !takes_recv {
            self.lsn = self.lsn.add(requests);
        }
    }

    /// Credits left after the next request that uses one; negative if there is none for it. `None`: not limited.
    #[inline(always)]
    pub const fn left(&self) -> Option<i32> {
        if self.unlimited { None } else { Some(self.lsn.diff(self.ssn)) }
    }

    /// Takes the credits of an acknowledgement. Once unlimited, they stay unlimited.
    #[inline(always)]
    pub fn grant(&mut self, msn: Psn, credits: Option<u32>) {
        match credits {
            None => self.unlimited = true,
            Some(n) => {
                let lsn = msn.add(n);
                if lsn.diff(self.lsn) > 0 {
                    self.lsn = lsn;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_takes_a_receive_uses_a_credit() {
        let mut credits = Credits::NONE;
        assert_eq!(credits.left(), Some(-1));
        credits.grant(Psn::new(0), Some(4));
        assert_eq!(credits.left(), Some(3));
        credits.start(2, true);
        credits.start(5, false);
        assert_eq!(credits.left(), Some(1));
        credits.grant(Psn::new(0), Some(2));
        assert_eq!(credits.left(), Some(1), "an older acknowledgement takes nothing away");
        credits.grant(Psn::new(7), None);
        credits.grant(Psn::new(7), Some(1));
        assert_eq!(credits.left(), None, "once unlimited, always unlimited");
    }
}
