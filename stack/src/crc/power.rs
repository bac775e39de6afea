//! How a change of one word inside a message changes the register at its end, and the inverse.
//!
//! A register is linear: that over a word and zeros behind it is the word times a power of `x`, and `x` has an inverse modulo `P`.
//! So a message can be changed in four bytes and its CRC corrected without another pass over it; and four unknown bytes follow
//! from the rest of the message and its CRC.

use super::GENERATOR;

/// The generator, highest coefficient in bit 0, as registers are here.
const REFLECTED: u32 = GENERATOR.reverse_bits();
/// Words of four bytes behind the one that changes, at most: those of the longest packet of a port.
const WORDS: usize = 2432;

/// `x^(32 n)` for a word that `n - 1` others follow, and `x^(-32 n)`.
static POWERS: [[u32; 2]; WORDS] = {
    let mut all = [[0; 2]; WORDS];
    let (mut up, mut down, mut i) = (1 << 31, 1 << 31, 0);
    while i < WORDS {
        let mut bit = 0;
        while bit < 32 {
            up = up >> 1 ^ (if up & 1 != 0 { REFLECTED } else { 0 });
            down = if down >> 31 != 0 { (down ^ REFLECTED) << 1 | 1 } else { down << 1 };
            bit += 1;
        }
        all[i] = [up, down];
        i += 1;
    }
    all
};

/// The product modulo `P`.
#[inline]
fn times(a: u32, mut b: u32) -> u32 {
    let mut product = 0;
    for bit in (0..32).rev() {
        product ^= b & 0u32.wrapping_sub(a >> bit & 1);
        b = b >> 1 ^ (REFLECTED & 0u32.wrapping_sub(b & 1));
    }
    product
}

/// The register, begun at zero, over a word and so many words of zeros behind it. `None`: there are too many.
#[inline]
pub(crate) fn behind_word(word: [u8; 4], zeros: usize) -> Option<u32> {
    let [up, _] = POWERS.get(zeros)?;
    Some(times(u32::from_le_bytes(word), *up))
}

/// The word that has this register with so many words of zeros behind it: the inverse of [`behind_word`].
#[inline]
pub(crate) fn word_before(register: u32, zeros: usize) -> Option<[u8; 4]> {
    let [_, down] = POWERS.get(zeros)?;
    Some(times(register, *down).to_le_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bit by bit.
    fn slow(bytes: &[u8]) -> u32 {
        bytes.iter().fold(0, |register, byte| {
            (0..8).fold(register ^ u32::from(*byte), |r, _| r >> 1 ^ (REFLECTED & 0u32.wrapping_sub(r & 1)))
        })
    }

    #[test]
    fn a_word_is_moved_behind_zeros_and_found_again() {
        let mut word = [0x12, 0x34, 0x56, 0x78];
        for zeros in (0..50).chain([1023, WORDS - 1]) {
            let mut message = word.to_vec();
            message.resize(4 + 4 * zeros, 0);
            let register = behind_word(word, zeros).unwrap();
            assert_eq!(register, slow(&message), "{zeros}");
            assert_eq!(word_before(register, zeros), Some(word), "{zeros}");
            word = u32::from_le_bytes(word).wrapping_mul(0x9e37_79b9).to_le_bytes();
        }
        assert_eq!((behind_word(word, WORDS), word_before(1, WORDS)), (None, None));
    }
}
