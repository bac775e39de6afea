//! CRC-32 (ISO-HDLC) by carry-less multiplication: its arithmetic, and the register over bytes while they are copied.
//!
//! A packet's payload is copied and summed in one pass. The CRC is computed from the bytes that are stored, so it is that of the
//! copy, even if another thread writes to the source meanwhile. Each step takes 64 bytes, in as many registers as the processor
//! needs for them: one of 512 bits, two of 256 or four of 128.
//!
//! Arithmetic: polynomials over GF(2), their highest coefficient in bit 0. With `P` the generator, a block `H x^64 + L` of 16
//! bytes that is moved up by `n` bits is `H (x^(n + 64) mod P) + L (x^n mod P)`, which has a degree below 96; the remainder
//! by `P` of `x^32` times the sum of all blocks is the CRC (Gopal et al., "Fast CRC Computation for Generic Polynomials Using
//! PCLMULQDQ Instruction", Intel 2009; the last step is Barrett's). A register begun at zero is linear: over a message it is the
//! register over the first part followed by zeros for the rest (`behind`), plus the register over the rest.

#![allow(unsafe_code)]

use core::num::NonZeroU32;

/// The generator without its highest term, highest coefficient in bit 31.
pub(crate) const GENERATOR: u32 = 0x04c1_1db7;

/// The register of the CRC over some bytes, begun at zero.
///
/// An `Option` of it is a `uint32_t` for C: the register's complement, and 0 for `None`, a sum that was not computed. A register
/// of all ones has no representation and is `None`, too; zero, the register over bytes that are all zero, has one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(transparent)]
pub struct Sum(NonZeroU32);

const _: () = assert!(size_of::<Option<Sum>>() == 4);

impl Sum {
    /// The sum with this register.
    #[inline(always)]
    pub const fn new(register: u32) -> Option<Self> {
        match NonZeroU32::new(!register) {
            Some(complement) => Some(Self(complement)),
            None => None,
        }
    }

    /// The register.
    #[inline(always)]
    pub const fn register(self) -> u32 {
        !self.0.get()
    }
}

/// `r x^n mod P`, highest coefficient in bit 31.
const fn times_power(mut r: u32, n: usize) -> u32 {
    let mut i = 0;
    while i < n {
        r = (r << 1) ^ (if r >> 31 != 0 { GENERATOR } else { 0 });
        i += 1;
    }
    r
}

/// `x^n mod P` as a factor: highest coefficient first, and in a place that leaves the product of 96 bits at the bottom.
pub(crate) const fn factor(n: usize) -> u64 {
    (times_power(1, n).reverse_bits() as u64) << 1
}

/// The quotient `x^96 / P` without its last term, and `P`, both highest coefficient first.
#[cfg(target_arch = "x86_64")]
const BARRETT: [u64; 2] = {
    let (mut quotient, mut rest, mut i) = (0u64, 0u32, 0);
    // Long division of x^96: its 97 coefficients come down one by one; the quotient's first is that of x^64.
    while i <= 96 {
        let out = rest >> 31;
        rest = (rest << 1 | (i == 0) as u32) ^ (if out != 0 { GENERATOR } else { 0 });
        if i >= 32 && i < 96 {
            quotient |= (out as u64) << (i - 32);
        }
        i += 1;
    }
    [quotient, (GENERATOR.reverse_bits() as u64) << 1 | 1]
};

#[cfg(target_arch = "x86_64")]
mod line;
mod power;
#[cfg(target_arch = "x86_64")]
mod x86;

pub(crate) use power::{behind_word, word_before};

#[cfg(target_arch = "x86_64")]
pub(crate) use line::{Line, Xmm, Ymm, Zmm, for_each_line};
#[cfg(target_arch = "x86_64")]
pub(crate) use x86::{HEAD, LINE, Width, behind, copy_behind, reduce, width};
#[cfg(target_arch = "x86_64")]
pub use x86::{copy_function, of};

#[cfg(not(target_arch = "x86_64"))]
pub use other::{OnePass, copy_function, of};

/// Copies `len` bytes and returns the sum of the copy; with `ahead` not null it also prefetches as many bytes from there, which
/// may be any address.
///
/// # Safety
/// `from` is valid for reads of `len` bytes and `to` for writes, and they do not overlap. Other threads may write to `from`
/// meanwhile: the copy is then some mixture, and the sum is that of the copy.
pub type CopyFn =
    unsafe extern "C" fn(to: *mut u8, from: *const u8, len: usize, ahead: *const u8) -> Option<Sum>;

/// Copies `from` to `to` and returns the sum; `None` where the processor cannot, or there are fewer than [`LEN_MIN`] bytes.
///
/// # Panics
/// If the lengths differ.
pub fn copy(to: &mut [u8], from: &[u8]) -> Option<Sum> {
    copy_by(copy_function(), to, from)
}

fn copy_by(copy: Option<CopyFn>, to: &mut [u8], from: &[u8]) -> Option<Sum> {
    assert_eq!(to.len(), from.len(), "a copy is as long as what it is of");
    let Some(copy) = copy else {
        to.copy_from_slice(from);
        return None;
    };
    // SAFETY: both are slices of this length, and one of them is borrowed for writing: they do not overlap.
    unsafe { copy(to.as_mut_ptr(), from.as_ptr(), from.len(), core::ptr::null()) }
}

/// The widths that this processor can multiply, narrow to wide; prints so if these are not all.
#[cfg(all(test, target_arch = "x86_64"))]
pub(crate) fn widths() -> Vec<Width> {
    if width() < Width::Zmm {
        use std::io::Write;
        let narrow = width();
        let _ =
            writeln!(std::io::stderr(), "SKIPPED registers wider than {narrow:?}: this processor has none");
    }
    [Width::Xmm, Width::Ymm, Width::Zmm].into_iter().filter(|w| *w <= width()).collect()
}

/// Least bytes that are worth a sum.
pub const LEN_MIN: usize = 64;

#[cfg(not(target_arch = "x86_64"))]
mod other {
    use super::{CopyFn, Sum};

    /// Has no value: without carry-less multiplication a packet is copied, then summed by `crc32fast` (`wire::icrc`).
    #[derive(Clone, Copy, Debug)]
    pub enum OnePass {}

    impl OnePass {
        /// As on x86-64, in `wire::clmul`.
        pub const HEAD: usize = 128;
        /// As on x86-64.
        pub const REST_MIN: usize = 128;

        pub(crate) fn new(_: bool, _: bool) -> Option<Self> {
            None
        }

        /// Never called.
        ///
        /// # Safety
        /// No value exists to call it with.
        pub unsafe fn write(
            &self,
            _: *mut u8,
            _: &[u8; Self::HEAD],
            _: *const u8,
            _: usize,
            _: *const u8,
        ) -> u32 {
            match *self {}
        }
    }

    /// `None`: a port copies by `memcpy`, and a packet is summed when it is checked.
    pub fn copy_function() -> Option<CopyFn> {
        None
    }

    /// `None`: the sum is taken by `crc32fast` over the masked packet (`wire::icrc`).
    pub fn of(_: &[u8]) -> Option<Sum> {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The slow way: bit by bit.
    fn slow(mut register: u32, bytes: &[u8]) -> u32 {
        for byte in bytes {
            register ^= u32::from(*byte);
            for _ in 0..8 {
                register = register >> 1 ^ (if register & 1 != 0 { GENERATOR.reverse_bits() } else { 0 });
            }
        }
        register
    }

    fn noise(len: usize) -> Vec<u8> {
        let mut x = 1u32;
        let next = || {
            x = x.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (x >> 24) as u8
        };
        core::iter::repeat_with(next).take(len).collect()
    }

    #[cfg(target_arch = "x86_64")]
    #[test]
    fn a_copy_is_whole_and_its_sum_agrees_with_the_bits_for_every_length() {
        let from = noise(1500);
        for width in widths() {
            for (skip_from, skip_to) in [(0, 0), (3, 0), (0, 7), (10, 54)] {
                for len in (0..700).chain([1023, 1024, 1025, 1400]) {
                    let mut to = vec![0xaa; 1600];
                    let source = &from[skip_from..skip_from + len];
                    let target = &mut to[skip_to..skip_to + len];
                    let sum = copy_by(x86::copy_by(width), target, source);
                    assert_eq!(target, source, "{width:?} {len}");
                    let strange = to[..skip_to].iter().chain(&to[skip_to + len..]).filter(|b| **b != 0xaa);
                    assert_eq!(strange.count(), 0, "{width:?} {len}: nothing else was written");
                    let expected = Sum::new(slow(0, source)).filter(|_| len >= LEN_MIN);
                    assert_eq!(expected.map(Sum::register), (len >= LEN_MIN).then(|| slow(0, source)));
                    assert_eq!((sum, x86::of_by(width, source)), (expected, expected), "{width:?} {len}");
                }
            }
        }
    }

    #[test]
    fn without_such_multiplications_a_copy_is_just_one() {
        let (from, mut to) = (noise(300), [0; 300]);
        assert_eq!(copy_by(None, &mut to, &from), None);
        assert_eq!(to[..], from);
    }

    #[test]
    fn bytes_that_are_zero_have_a_sum_and_ones_mean_that_it_is_not_known() {
        // Goal: many messages consist of pages that were never written.
        if copy_function().is_some() {
            assert_eq!(of(&[0; 300]).map(Sum::register), Some(0));
        }
        assert_eq!(Sum::new(0).map(Sum::register), Some(0));
        assert_eq!(Sum::new(u32::MAX), None);
    }

    #[cfg(target_arch = "x86_64")]
    #[test]
    fn a_head_moves_up_as_by_zeros() {
        let head = noise(2 * LINE);
        fn behind<L: Line>(head: &[u8], lines: usize, zeros: usize) -> Option<u32> {
            // SAFETY: `widths` says that the processor has the features; the lines are there.
            unsafe {
                match lines {
                    1 => x86::behind([L::load(head.as_ptr())], zeros),
                    _ => x86::behind([L::load(head.as_ptr()), L::load(head[LINE..].as_ptr())], zeros),
                }
            }
        }
        for (width, lines) in widths().into_iter().flat_map(|width| [(width, 1), (width, 2)]) {
            let behind = |zeros| match width {
                Width::Zmm => behind::<Zmm>(&head, lines, zeros),
                Width::Ymm => behind::<Ymm>(&head, lines, zeros),
                _ => behind::<Xmm>(&head, lines, zeros),
            };
            let mut moved = slow(slow(0, &head[..lines * LINE]), &[0; 14]);
            for zeros in (14..4228).step_by(4) {
                assert_eq!(behind(zeros), Some(moved), "{width:?} {lines} {zeros}");
                moved = slow(moved, &[0; 4]);
            }
            for zeros in [0, 2, 10, 12, 13, 15, 16, 17, 4230, usize::MAX] {
                assert_eq!(behind(zeros), None, "{width:?} {lines} {zeros}");
            }
        }
    }
}
