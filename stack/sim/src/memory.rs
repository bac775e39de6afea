//! Memory of a simulated program: real memory, owned by its node, and accessed through atomics, because shards write it by address.

use core::sync::atomic::{AtomicU64, Ordering};

use stack::mem::{Access, Sge, UserMemory};

/// Guard words before and after a region, which must not be written.
const GUARD: usize = 8;
const GUARD_WORD: u64 = 0xc5c5_c5c5_c5c5_c5c5;

/// A range of memory between two guards, which may be registered.
#[derive(Debug)]
pub struct Region {
    words: Box<[AtomicU64]>,
    len: usize,
    /// The key, once registered: both lkey and rkey.
    pub key: u32,
    /// The access rights with which it was registered.
    pub access: Access,
}

impl Region {
    /// Allocates `len` zero bytes.
    pub fn new(len: usize) -> Self {
        let words = 2 * GUARD + len.div_ceil(8);
        let region = Self {
            words: (0..words).map(|_| AtomicU64::new(GUARD_WORD)).collect(),
            len,
            key: 0,
            access: Access::empty(),
        };
        region.fill(0, len, 0);
        region
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Its memory, to register.
    pub fn memory(&self) -> UserMemory {
        // SAFETY: the bytes belong to the region, which its node keeps as long as it has shards, registered or not; they are accessed
        // through atomics, by the only thread of a simulation.
        #[allow(unsafe_code)]
        unsafe {
            UserMemory::new(self.addr(), self.len as u64)
        }
    }

    /// Host address of the first byte.
    pub fn addr(&self) -> u64 {
        self.words[GUARD..].as_ptr() as u64
    }

    /// The address of byte `offset` in a work request: its host address, or its offset in a zero-based region.
    pub fn va(&self, offset: usize) -> u64 {
        let base = if self.access.contains(Access::ZERO_BASED) { 0 } else { self.addr() };
        base + offset as u64
    }

    /// A scatter/gather element.
    pub fn sge(&self, offset: usize, len: usize) -> Sge {
        Sge { addr: self.va(offset), length: len as u32, lkey: self.key }
    }

    /// Reads bytes.
    ///
    /// # Panics
    /// If the range exceeds the region.
    pub fn read(&self, offset: usize, len: usize) -> Vec<u8> {
        assert!(offset + len <= self.len, "{offset} + {len} of a region of {}", self.len);
        let mut out = Vec::with_capacity(len + 16);
        let first = offset / 8;
        for word in &self.words[GUARD + first..GUARD + (offset + len).div_ceil(8)] {
            out.extend_from_slice(&word.load(Ordering::Relaxed).to_ne_bytes());
        }
        out.drain(..offset - first * 8);
        out.truncate(len);
        out
    }

    /// Writes bytes.
    ///
    /// # Panics
    /// If the range exceeds the region.
    pub fn write(&self, offset: usize, bytes: &[u8]) {
        assert!(offset + bytes.len() <= self.len, "{offset} + {} of a region of {}", bytes.len(), self.len);
        let mut at = offset;
        let mut rest = bytes;
        while !rest.is_empty() {
            if at.is_multiple_of(8) && rest.len() >= 8 {
                // The common case: whole words.
                let (whole, tail) = rest.as_chunks::<8>();
                for (cell, word) in self.words[GUARD + at / 8..].iter().zip(whole) {
                    cell.store(u64::from_ne_bytes(*word), Ordering::Relaxed);
                }
                at += 8 * whole.len();
                rest = tail;
                continue;
            }
            let skip = at % 8;
            let n = rest.len().min(8 - skip);
            let cell = &self.words[GUARD + at / 8];
            let mut word = cell.load(Ordering::Relaxed).to_ne_bytes();
            word[skip..skip + n].copy_from_slice(&rest[..n]);
            cell.store(u64::from_ne_bytes(word), Ordering::Relaxed);
            rest = &rest[n..];
            at += n;
        }
    }

    /// Sets `len` bytes to `byte`.
    pub fn fill(&self, offset: usize, len: usize, byte: u8) {
        assert!(offset + len <= self.len, "{offset} + {len} of a region of {}", self.len);
        let (first, end) = (offset.next_multiple_of(8), (offset + len) & !7);
        if first >= end {
            return self.write(offset, &vec![byte; len]);
        }
        self.write(offset, &[byte; 8][..first - offset]);
        for cell in &self.words[GUARD + first / 8..GUARD + end / 8] {
            cell.store(u64::from_ne_bytes([byte; 8]), Ordering::Relaxed);
        }
        self.write(end, &[byte; 8][..offset + len - end]);
    }

    /// The 64-bit word, in host order, at an offset that is a multiple of 8.
    pub fn word(&self, offset: usize) -> u64 {
        self.words[GUARD + offset / 8].load(Ordering::Acquire)
    }

    /// Sets a word.
    pub fn set_word(&self, offset: usize, value: u64) {
        self.words[GUARD + offset / 8].store(value, Ordering::Release);
    }

    /// Whether the guards were not written.
    pub fn guards_intact(&self) -> bool {
        let n = self.words.len();
        let good = |w: &AtomicU64| w.load(Ordering::Relaxed) == GUARD_WORD;
        let tail = match self.len % 8 {
            0 => true,
            used => {
                let last = self.words[n - GUARD - 1].load(Ordering::Relaxed).to_ne_bytes();
                last[used..].iter().all(|b| *b == GUARD_WORD as u8)
            }
        };
        self.words[..GUARD].iter().all(good) && self.words[n - GUARD..].iter().all(good) && tail
    }

    /// Changes a guard, to test the checker.
    pub fn spoil_guard(&self) {
        self.words[GUARD - 1].store(0, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_where_they_were_put() {
        let region = Region::new(21);
        let bytes: Vec<u8> = (1..=17).collect();
        region.write(3, &bytes);
        assert_eq!(region.read(3, 17), bytes);
        assert_eq!(region.read(0, 21), [&[0; 3][..], &bytes, &[0]].concat());
        assert!(region.read(8, 0).is_empty());
        assert!(region.guards_intact());
    }

    // Goal: the checker detects a write on either side, also inside the last word.
    #[test]
    fn a_spoilt_guard_is_seen() {
        let region = Region::new(21);
        region.spoil_guard();
        assert!(!region.guards_intact());
        let region = Region::new(21);
        let cell = &region.words[GUARD + 2];
        cell.store(
            cell.load(Ordering::Relaxed) ^ u64::from_ne_bytes([0, 0, 0, 0, 0, 1, 0, 0]),
            Ordering::Relaxed,
        );
        assert!(!region.guards_intact());
    }
}
