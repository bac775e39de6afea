//! What one queue pair may build in a turn before the next one gets its chance.

use crate::config::{QP_TX_BUDGET, TX_BURST};
use crate::shard::tx::writer::Built;

/// What is left of it.
#[derive(Clone, Copy, Debug)]
pub(in crate::shard) struct Budget {
    frames: usize,
    bytes: u64,
    /// The port sends messages of several frames: they wait until the message is full.
    gathers: bool,
}

impl Default for Budget {
    /// For a port that sends each frame by itself.
    fn default() -> Self {
        Self { frames: QP_TX_BUDGET, bytes: u64::MAX, gathers: false }
    }
}

impl Budget {
    /// For a port that sends consecutive frames of one queue pair in messages of so many bytes: enough for one.
    pub fn of_message(bytes: usize) -> Self {
        Self { frames: TX_BURST, bytes: bytes as u64, gathers: true }
    }

    /// As much of it as there is room for so many frames.
    #[inline(always)]
    pub fn in_room(self, frames: usize) -> Self {
        Self { frames: self.frames.min(frames), ..self }
    }

    #[inline(always)]
    pub fn is_spent(&self) -> bool {
        self.frames == 0 || self.bytes == 0
    }

    /// How many frames may be built now, before it is asked again.
    #[inline(always)]
    pub fn next(&self) -> usize {
        self.frames.min(QP_TX_BUDGET)
    }

    /// As [`next`](Self::next), in the port's own memory: there is none where it gathers.
    #[inline(always)]
    pub fn next_in_place(&self) -> Option<usize> {
        (!self.gathers).then_some(self.next())
    }

    /// These were built.
    #[inline(always)]
    pub fn spend(&mut self, built: &Built) {
        self.frames -= built.frames;
        self.bytes = self.bytes.saturating_sub(built.bytes);
    }

    /// Something took as long as a frame.
    #[inline(always)]
    pub fn spend_one(&mut self) {
        self.frames = self.frames.saturating_sub(1);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// Frames of this length that it is enough for.
    fn frames(mut budget: Budget, len: u64) -> usize {
        let mut n = 0;
        while !budget.is_spent() {
            let frames = budget.next();
            budget.spend(&Built { frames, bytes: frames as u64 * len, ..Built::default() });
            n += frames;
        }
        n
    }

    // Goal: a queue pair fills a message of the port, and no more of the caches than that.
    #[test]
    fn a_queue_pair_fills_a_message() {
        let message = Budget::of_message(65_000);
        assert_eq!([64, 1082, 4154].map(|len| frames(message, len)), [TX_BURST, TX_BURST, QP_TX_BUDGET]);
        assert_eq!([64, 4154].map(|len| frames(Budget::default(), len)), [QP_TX_BUDGET; 2]);
        assert_eq!([0, 5].map(|room| frames(message.in_room(room), 1082)), [0, 5]);
    }
}
