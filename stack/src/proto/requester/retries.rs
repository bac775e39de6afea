//! Retry counts.

/// A retry count, `0..=7`, how many retries are left, and whether a peer that did not answer gets more time. It is a single byte, because
/// it is restored at every progress.
#[derive(Clone, Copy, Default, Debug)]
pub(in crate::proto) struct Retries(u8);

impl Retries {
    const BITS: u32 = 4;
    /// The bit above the retries left: a peer that does not answer gets more time.
    const PATIENT: u8 = 1 << (Self::BITS - 1);

    /// Sets the count, with all retries left. If the count does not change, neither do the retries left: changing attributes in SQD gives a
    /// dead peer no new retries.
    pub fn configure(&mut self, count: u8) {
        if self.count() != count {
            self.0 = count << Self::BITS | count;
        }
    }
    /// The whole count.
    #[inline(always)]
    pub const fn count(self) -> u8 {
        self.0 >> Self::BITS
    }
    const fn left(self) -> u8 {
        self.0 & (Self::PATIENT - 1)
    }
    /// Whether no retry was used since the last progress.
    pub const fn is_untouched(self) -> bool {
        self.left() == self.count()
    }
    /// Whether a retry is left.
    pub const fn any_left(self) -> bool {
        self.left() > 0
    }
    /// Makes all retries available again, after progress.
    #[inline(always)]
    pub fn restore(&mut self) {
        self.0 = self.count() << Self::BITS | self.count();
    }
    /// Uses a retry. Returns `false` if none is left.
    pub fn take(&mut self) -> bool {
        let any = self.left() > 0;
        self.0 = (self.0 & !Self::PATIENT) - u8::from(any);
        any
    }
    /// Lets the answer to this retry take longer, because the peer did not answer.
    pub fn be_patient(&mut self) {
        self.0 |= Self::PATIENT;
    }
    /// Whether to wait longer for the answer: once after [`be_patient`](Self::be_patient).
    pub fn prolong(&mut self) -> bool {
        let may = self.0 & Self::PATIENT != 0;
        self.0 &= !Self::PATIENT;
        may
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_count_is_used_up_and_restored() {
        for count in 0..=7 {
            let mut retries = Retries::default();
            retries.configure(count);
            assert!(retries.is_untouched());
            let mut tries = (0..9).take_while(|_| {
                let any = retries.take();
                retries.be_patient();
                any
            });
            assert_eq!(tries.by_ref().count(), usize::from(count));
            assert_eq!([retries.prolong(), retries.prolong()], [true, false], "once");
            retries.configure(count);
            assert_eq!((retries.take(), retries.is_untouched()), (false, count == 0), "it stays used up");
            retries.restore();
            assert_eq!((retries.count(), retries.is_untouched(), retries.take()), (count, true, count > 0));
        }
    }
}
