//! How often something may be tried again.

/// A retry count, `0..=7`, and what is left of it: in one byte, since every progress restores it.
#[derive(Clone, Copy, Default, Debug)]
pub(in crate::proto) struct Retries(u8);

impl Retries {
    const BITS: u32 = 4;

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
        self.0 & ((1 << Self::BITS) - 1)
    }
    /// Whether none was used since the last progress.
    pub const fn is_untouched(self) -> bool {
        self.left() == self.count()
    }
    /// There was progress: all are left again.
    #[inline(always)]
    pub fn restore(&mut self) {
        self.0 = self.count() << Self::BITS | self.count();
    }
    /// Uses one; `false` where none is left.
    pub fn take(&mut self) -> bool {
        let any = self.left() > 0;
        self.0 -= u8::from(any);
        any
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
            assert_eq!((0..9).filter(|_| retries.take()).count(), usize::from(count));
            retries.configure(count);
            assert_eq!((retries.take(), retries.is_untouched()), (false, count == 0), "it stays used up");
            retries.restore();
            assert_eq!((retries.count(), retries.is_untouched(), retries.take()), (count, true, count > 0));
        }
    }
}
