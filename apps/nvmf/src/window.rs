//! Writes the part of a structure that a host asked for, without building the whole structure.

/// The bytes of a structure from byte `start` on, as many as fit in `buf`. Bytes that are not put are zero.
pub(crate) struct Window<'a> {
    start: u64,
    buf: &'a mut [u8],
}

impl<'a> Window<'a> {
    /// Makes a window at byte `start` of the structure, and clears `buf`.
    pub fn new(start: u64, buf: &'a mut [u8]) -> Self {
        buf.fill(0);
        Self { start, buf }
    }
    /// Copies those of `bytes` that are in the window; `bytes` start at byte `at` of the structure.
    pub fn put(&mut self, at: u64, bytes: &[u8]) {
        let (start, end) = (self.start, self.start.saturating_add(self.buf.len() as u64));
        let from = at.max(start);
        let to = at.saturating_add(bytes.len() as u64).min(end);
        if from < to {
            self.buf[(from - start) as usize..(to - start) as usize]
                .copy_from_slice(&bytes[(from - at) as usize..(to - at) as usize]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Window;

    // Goal: every window shows the right part of the structure.
    #[test]
    fn a_window_shows_the_part_of_the_whole() {
        let whole = [0, 0, 0, 1, 2, 3, 4, 0, 0];
        for start in 0..12 {
            for len in 0..12 {
                let mut buf = vec![0xa5; len];
                Window::new(start as u64, &mut buf).put(3, &[1, 2, 3, 4]);
                let should: Vec<u8> =
                    (start..start + len).map(|i| whole.get(i).copied().unwrap_or(0)).collect();
                assert_eq!(buf, should, "{start} + {len}");
            }
        }
    }

    #[test]
    fn windows_at_the_end_of_numbers_are_empty() {
        let mut buf = [0xa5; 4];
        Window::new(u64::MAX - 1, &mut buf).put(u64::MAX - 3, &[1, 2, 3, 4]);
        assert_eq!(buf[2..], [0, 0]);
    }
}
