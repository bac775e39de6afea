//! A table by the numbers of queue pairs.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// Connections by the numbers of their queue pairs.
pub type ByQpn = HashMap<u32, u32, BuildHasherDefault<QpnHasher>>;

/// Spreads queue pair numbers, which this side has drawn itself.
#[derive(Default)]
pub struct QpnHasher(u64);

impl Hasher for QpnHasher {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        for &b in bytes {
            self.write_u32(b as u32);
        }
    }
    #[inline]
    fn write_u32(&mut self, n: u32) {
        self.0 = (self.0 ^ n as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    }
}
