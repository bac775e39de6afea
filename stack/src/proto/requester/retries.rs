//! How often something may be tried again.

/// A retry count, `0..=7`, what is left of it, and whether a peer that was silent gets more time: in one byte, since every progress
/// restores it.
#[derive(Clone, Copy, Default, Debug)]
pub(in crate::proto) struct Retries(u8);

impl Retries {
    const BITS: u32 = 4;
    /// The bit above what is left: a silent peer gets more time.
    const PATIENT: u8 = 1 << (Self::BITS - 1);

    /// Another count, all of it left. What is left of an unchanged count stays: entering SQD gives a peer that is gone no
    /// new retries.
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
    /// Whether none was used since the last progress.
    pub const fn is_untouched(self) -> bool {
        self.left() == self.count()
    }
    /// Whether one is left.
    pub const fn any_left(self) -> bool {
        self.left() > 0
    }
    /// There was progress: all are left again.
    #[inline(always)]
    pub fn restore(&mut self) {
        self.0 = self.count() << Self::BITS | self.count();
    }
    /// Uses one; `false` where none is left.
    pub fn take(&mut self) -> bool {
        let any = self.left() > 0;
        self.0 = (self.0 & !Self::PATIENT) - u8::from(any);
        any
    }
    /// The peer said nothing: the answer to this retry may take longer.
    pub fn be_patient(&mut self) {
        self.0 |= Self::PATIENT;
    }
    /// Whether to wait longer for the answer: yes once after [`be_patient`](Self::be_patient).
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
