//! A published word for each queue pair: its epoch, its state and its gates.
//!
//! The shard that owns the queue pair writes it. Threads that post read it (may I post?), and so do threads that poll a completion queue
//! (is this completion of an earlier epoch?). A word is `epoch << 32 | state << 16 | flags << 8 | gates`.

use core::sync::atomic::{AtomicU64, Ordering};

/// The words of a device, by index of the queue pair.
#[derive(Debug)]
pub struct Words(Box<[AtomicU64]>);

const WATCHED: u64 = 1 << 8;
const DEAD: u64 = 1 << 9;

/// The value of a word at one moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Word(u64);

impl Word {
    /// Packs epoch, state and gates; no flags.
    pub const fn new(epoch: u32, state: u8, gates: u8) -> Self {
        Self((epoch as u64) << 32 | (state as u64) << 16 | gates as u64)
    }
    /// The epoch: it grows by one at every RESET and when the queue pair is destroyed.
    pub const fn epoch(self) -> u32 {
        (self.0 >> 32) as u32
    }
    /// The same word with the flag `watched`: the shard's promise to look at the send queue each turn, which suppresses the doorbell.
    #[must_use]
    pub const fn watched(self, watched: bool) -> Self {
        Self(if watched { self.0 | WATCHED } else { self.0 & !WATCHED })
    }
    /// Whether the doorbell of the send queue is suppressed: the shard looks at the queue each turn.
    pub const fn is_watched(self) -> bool {
        self.0 & WATCHED != 0
    }
    /// Whether the shard died: posted requests are not executed.
    pub const fn is_dead(self) -> bool {
        self.0 & DEAD != 0
    }
    /// The same word once the shard has died: every gate is closed, and completions of this epoch can still be polled.
    #[must_use]
    pub const fn dead(self) -> Self {
        Self(self.0 & !(WATCHED | 0xff) | DEAD)
    }
    /// The verbs state as a number.
    pub const fn state(self) -> u8 {
        (self.0 >> 16) as u8
    }
    /// The gates, as bits.
    pub const fn gates(self) -> u8 {
        self.0 as u8
    }
}

impl Words {
    /// Words for `n` queue pairs, all zero.
    pub fn new(n: usize) -> Self {
        Self((0..n).map(|_| AtomicU64::new(0)).collect())
    }
    /// The word of queue pair `index`.
    #[inline]
    pub fn load(&self, index: u32) -> Word {
        Word(self.0[index as usize].load(Ordering::Acquire))
    }
    /// Prefetches the word of queue pair `index`.
    #[inline]
    pub fn prefetch(&self, index: u32) {
        super::prefetch::line(&raw const self.0[index as usize]);
    }
    /// Publishes a word. Only the owner of the queue pair's shard may call it.
    #[inline]
    pub fn store(&self, index: u32, word: Word) {
        self.0[index as usize].store(word.0, Ordering::Release);
    }
    /// Number of words.
    pub fn len(&self) -> usize {
        self.0.len()
    }
    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}
