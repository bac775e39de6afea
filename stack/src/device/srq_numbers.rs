//! Gives out numbers of shared receive queues.

use std::collections::HashSet;

use super::error::DeviceError;
use crate::config::SRQ_MAX;

/// Which numbers of shared receive queues are in use.
#[derive(Debug, Default)]
pub(super) struct SrqNumbers {
    live: HashSet<u32>,
    last: u32,
}

impl SrqNumbers {
    /// The next number, 24 bits and not 0: a number comes back only after all others did.
    pub(super) fn take(&mut self) -> Result<u32, DeviceError> {
        if self.live.len() >= SRQ_MAX {
            return Err(DeviceError::Exhausted { what: "shared receive queue", limit: SRQ_MAX });
        }
        // At most as many steps as numbers are in use.
        loop {
            self.last = if self.last >= 0xff_ffff { 1 } else { self.last + 1 };
            if self.live.insert(self.last) {
                return Ok(self.last);
            }
        }
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
        assert_eq!((numbers.take(), numbers.take()), (Ok(1), Ok(3)));
    }
}
