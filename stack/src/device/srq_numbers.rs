//! Allocates numbers of shared receive queues.

use std::collections::HashSet;

use super::error::DeviceError;
use crate::config::SRQ_MAX;

/// The numbers of shared receive queues in use.
#[derive(Debug, Default)]
pub(super) struct SrqNumbers {
    live: HashSet<u32>,
    last: u32,
}

impl SrqNumbers {
    /// Allocates the next number, 24 bits and not 0: a number is reused only after all others.
    pub(super) fn take(&mut self) -> Result<u32, DeviceError> {
        if self.live.len() >= SRQ_MAX {
            return Err(DeviceError::Exhausted { what: "shared receive queue", limit: SRQ_MAX });
        }
        // At most as many iterations as numbers in use.
        loop {
            self.last = if self.last >= 0xff_ffff { 1 } else { self.last + 1 };
            if self.live.insert(self.last) {
                return Ok(self.last);
            }
        }
    }

    /// Allocates this number, if no shared receive queue has it: processes that share an XRC domain agree on the numbers in it.
    ///
    /// # Errors
    /// [`DeviceError::Range`], [`DeviceError::Busy`].
    pub(super) fn take_this(&mut self, number: u32) -> Result<u32, DeviceError> {
        if number == 0 || number > 0xff_ffff {
            let (what, given) = ("number of a shared receive queue", number.into());
            return Err(DeviceError::Range { what, given, min: 1, max: 0xff_ffff });
        }
        if !self.live.insert(number) {
            return Err(DeviceError::Busy { object: "number of a shared receive queue", users: 1 });
        }
        Ok(number)
    }

    pub(super) fn put_back(&mut self, number: u32) {
        self.live.remove(&number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_come_back_last_and_are_never_zero() {
        let mut numbers = SrqNumbers { last: 0xff_fffe, ..SrqNumbers::default() };
        assert_eq!(numbers.take(), Ok(0xff_ffff));
        assert_eq!(numbers.take(), Ok(1));
        numbers.put_back(1);
        assert_eq!(numbers.take(), Ok(2));
        numbers.last = 0;
        assert!(numbers.take_this(2).is_err() && numbers.take_this(0).is_err());
        assert!(numbers.take_this(0x100_0000).is_err());
        assert_eq!((numbers.take_this(0xff_fff0), numbers.live.len()), (Ok(0xff_fff0), 3));
        assert_eq!((numbers.take(), numbers.take()), (Ok(1), Ok(3)));
    }
}
