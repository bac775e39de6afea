//! The share of a turn in which one queue pair may build frames before the next one is served.

use crate::config::{QP_TX_BUDGET, TX_BURST};
use crate::shard::tx::writer::Built;

/// The budget that is left.
#[derive(Clone, Copy, Debug)]
pub(in crate::shard) struct Budget {
    frames: usize,
    bytes: u64,
    /// The port sends messages of several frames: frames wait until the message is full.
    gathers: bool,
}

impl Default for Budget {
    /// For a port that sends each frame by itself.
    fn default() -> Self {
        Self { frames: QP_TX_BUDGET, bytes: u64::MAX, gathers: false }
    }
}

impl Budget {
    /// For a port that sends consecutive frames of one queue pair in messages of `bytes` bytes: enough for one message.
    pub fn of_message(bytes: usize) -> Self {
        Self { frames: TX_BURST, bytes: bytes as u64, gathers: true }
    }

    /// The budget, limited to the frames that there is room for.
    #[inline(always)]
    pub fn in_room(self, frames: usize) -> Self {
        Self { frames: self.frames.min(frames), ..self }
    }

    #[inline(always)]
    pub fn is_spent(&self) -> bool {
        self.frames == 0 || self.bytes == 0
    }

    /// Number of frames to build before the budget is checked again.
    #[inline(always)]
    pub fn next(&self) -> usize {
        self.frames.min(QP_TX_BUDGET)
    }

    /// As [`next`](Self::next), for frames in the port's own memory. `None` if the port gathers: such a port lends no memory.
    #[inline(always)]
    pub fn next_in_place(&self) -> Option<usize> {
        (!self.gathers).then_some(self.next())
    }

    /// Deducts what was built.
    #[inline(always)]
    pub fn spend(&mut self, built: &Built) {
        self.frames -= built.frames;
        self.bytes = self.bytes.saturating_sub(built.bytes);
    }

    /// Deducts one frame, for work that took as long as a frame.
    #[inline(always)]
    pub fn spend_one(&mut self) {
        self.frames = self.frames.saturating_sub(1);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// Number of frames of this length that fit into the budget.
    fn frames(mut budget: Budget, len: u64) -> usize {
        let mut n = 0;
        while !budget.is_spent() {
            let frames = budget.next();
            budget.spend(&Built { frames, bytes: frames as u64 * len, ..Built::default() });
            n += frames;
        }
        n
    }

    // Goal: a queue pair fills one message of the port, and no more of the caches than that.
    #[test]
    fn a_queue_pair_fills_a_message() {
        let message = Budget::of_message(65_000);
        assert_eq!([64, 1082, 4154].map(|len| frames(message, len)), [TX_BURST, TX_BURST, QP_TX_BUDGET]);
        assert_eq!([64, 4154].map(|len| frames(Budget::default(), len)), [QP_TX_BUDGET; 2]);
        assert_eq!([0, 5].map(|room| frames(message.in_room(room), 1082)), [0, 5]);
    }
}
