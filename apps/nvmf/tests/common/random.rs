//! Numbers that a seed or an input decides.

/// SplitMix64, or the bytes of an input; after their end there are zeros.
pub struct Random<'a> {
    seed: u64,
    bytes: Option<&'a [u8]>,
}

impl<'a> Random<'a> {
    pub fn of_seed(seed: u64) -> Self {
        Self { seed, bytes: None }
    }
    pub fn of_bytes(bytes: &'a [u8]) -> Self {
        Self { seed: 0, bytes: Some(bytes) }
    }
    /// Whether the input has ended.
    pub fn is_over(&self) -> bool {
        self.bytes.is_some_and(<[u8]>::is_empty)
    }
    pub fn next(&mut self) -> u64 {
        if self.bytes.is_some() {
            return self.take(8);
        }
        self.seed = self.seed.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let z = (self.seed ^ self.seed >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ z >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ z >> 31
    }
    /// A number of so many bytes of the input.
    fn take(&mut self, len: usize) -> u64 {
        let bytes = self.bytes.unwrap_or_default();
        let (head, rest) = bytes.split_at(len.min(bytes.len()));
        self.bytes = Some(rest);
        head.iter().rev().fold(0, |number, &byte| number << 8 | byte as u64)
    }
    /// Less than `n`.
    pub fn below(&mut self, n: u64) -> u64 {
        match self.bytes {
            // A byte a choice, as far as it goes: a fuzzer changes one without the others.
            Some(_) if n <= 1 << 8 => self.take(1) % n,
            Some(_) if n <= 1 << 16 => self.take(2) % n,
            _ => ((self.next() as u128 * n as u128) >> 64) as u64,
        }
    }
    /// Once in `n`.
    pub fn once_in(&mut self, n: u64) -> bool {
        // Not zero, which is what follows the end of an input.
        self.below(n) == n - 1
    }
    pub fn pick<'o, T>(&mut self, of: &'o [T]) -> &'o T {
        &of[self.below(of.len() as u64) as usize]
    }
}
