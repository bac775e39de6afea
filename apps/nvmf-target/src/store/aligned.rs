//! Page-aligned memory for direct I/O.

use std::ops::{Deref, DerefMut};

/// The alignment in bytes: a page. No device needs more.
pub const ALIGN: usize = 4096;

/// A buffer that begins at a page boundary.
#[derive(Debug)]
pub struct Aligned {
    /// Longer than `len`, so that there is a page boundary with `len` bytes after it. It never grows, so its address does not change.
    bytes: Vec<u8>,
    /// Offset of the page boundary in `bytes`.
    from: usize,
    len: usize,
}

impl Aligned {
    /// Makes a buffer of `len` zeros.
    pub fn new(len: usize) -> Self {
        let bytes = vec![0; len + ALIGN];
        let from = bytes.as_ptr().align_offset(ALIGN);
        Self { bytes, from, len }
    }
}

impl Deref for Aligned {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes[self.from..self.from + self.len]
    }
}

impl DerefMut for Aligned {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[self.from..self.from + self.len]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_begin_at_a_boundary() {
        for len in [1, 512, ALIGN, 3 * ALIGN + 1] {
            let moved = Box::new(Aligned::new(len));
            assert_eq!((moved.len(), moved.as_ptr().addr() % ALIGN), (len, 0));
        }
    }
}
