//! CRC-32 (ISO-HDLC) by carry-less multiplication: its arithmetic, and the register over bytes while they are copied.
//!
//! A packet's payload is read once to be copied and once for its CRC. Where the processor multiplies 512 bits at a time, both
//! are one pass here: what is multiplied is what was stored, so that the CRC is that of the copy, whoever writes to the
//! source meanwhile.
//!
//! Arithmetic: polynomials over GF(2), their highest coefficient in bit 0. With `P` the generator, a block `H x^64 + L` of 16
//! bytes that is moved up by `n` bits is `H (x^(n + 64) mod P) + L (x^n mod P)`, which has a degree below 96; the remainder
//! by `P` of `x^32` times the sum of all blocks is the CRC (Gopal et al., "Fast CRC Computation for Generic Polynomials Using
//! PCLMULQDQ Instruction", Intel 2009; the last step is Barrett's). A register begun at zero is linear: that over a whole is
//! that over its first part and zeros for the rest (`behind`), plus that over the rest.

#![allow(unsafe_code)]

use core::num::NonZeroU32;

/// The generator without its highest term, highest coefficient in bit 31.
pub(crate) const GENERATOR: u32 = 0x04c1_1db7;

/// The register of the CRC over some bytes, begun at zero.
///
/// An `Option` of it is a `uint32_t` for C: the register's complement, and 0 for `None`, which is where nobody computed it. A
/// register of all ones cannot be said and is `None`, too; one of zero is what all bytes that are zero have.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(transparent)]
pub struct Sum(NonZeroU32);

const _: () = assert!(size_of::<Option<Sum>>() == 4);

impl Sum {
    /// That of a register.
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
pub(crate) use x86::{HEAD, WIDE, behind, copy_behind, fold, is_wide, reduce, reduce_wide, wide};
#[cfg(target_arch = "x86_64")]
pub use x86::{copy_function, of};

#[cfg(not(target_arch = "x86_64"))]
pub use other::{OnePass, copy_function, of};

/// Copies `len` bytes and returns the sum of the copy; with `ahead` not null it also asks for as many bytes from there, which
/// may be anywhere.
///
/// # Safety
/// `from` is valid for reads of `len` bytes and `to` for writes, and they do not overlap. Others may write to `from` meanwhile:
/// the copy is then some mixture, and the sum is that of the copy.
pub type CopyFn =
    unsafe extern "C" fn(to: *mut u8, from: *const u8, len: usize, ahead: *const u8) -> Option<Sum>;

/// Copies `from` to `to` and returns the sum; `None` where the processor cannot, or there are fewer than [`LEN_MIN`] bytes.
///
/// # Panics
/// If the lengths differ.
pub fn copy(to: &mut [u8], from: &[u8]) -> Option<Sum> {
    assert_eq!(to.len(), from.len(), "a copy is as long as what it is of");
    let Some(copy) = copy_function() else {
        to.copy_from_slice(from);
        return None;
    };
    // SAFETY: both are slices of this length, and one of them is borrowed for writing: they do not overlap.
    unsafe { copy(to.as_mut_ptr(), from.as_ptr(), from.len(), core::ptr::null()) }
}

/// Bytes that are worth a sum.
pub const LEN_MIN: usize = 64;

#[cfg(target_arch = "x86_64")]
mod x86 {
    use core::arch::x86_64::{
        __m128i, __m512i, __mmask64, _MM_HINT_T1, _mm_clmulepi64_si128, _mm_extract_epi32, _mm_loadu_si128,
        _mm_prefetch, _mm_set_epi64x, _mm_xor_si128, _mm256_castsi256_si128, _mm256_extracti128_si256,
        _mm256_xor_si256, _mm512_add_epi8, _mm512_castsi512_si256, _mm512_clmulepi64_epi128,
        _mm512_extracti64x4_epi64, _mm512_loadu_si512, _mm512_mask_blend_epi8, _mm512_mask_storeu_epi8,
        _mm512_maskz_loadu_epi8, _mm512_maskz_mov_epi8, _mm512_permutexvar_epi8, _mm512_set1_epi8,
        _mm512_setzero_si512, _mm512_storeu_si512, _mm512_ternarylogic_epi64,
    };
    use core::ptr;
    use core::sync::atomic::{AtomicU8, Ordering};

    use super::{BARRETT, CopyFn, LEN_MIN, Sum, factor, times_power};

    /// Bytes of a register.
    pub(crate) const WIDE: usize = 64;
    const _: () = assert!(LEN_MIN >= WIDE);
    /// Blocks that are on their way at the same time: a multiplication takes some cycles.
    const LANES: usize = 4;
    /// Registers of a head, for [`copy_behind`].
    pub(crate) const HEAD: usize = 2;

    /// Factors that move each of a register's blocks up by so many bytes.
    const fn moving(bytes: usize) -> [u64; WIDE / 8] {
        let (high, low) = (factor(8 * bytes + 32), factor(8 * bytes - 32));
        [high, low, high, low, high, low, high, low]
    }

    static BY_LANES: [u64; WIDE / 8] = moving(LANES * WIDE);
    static BY_ONE: [u64; WIDE / 8] = moving(WIDE);
    /// Factors that move all blocks of a register to where its last one is, and so many bytes on.
    const fn gathering(bytes: usize) -> [u64; WIDE / 8] {
        let mut all = [0; WIDE / 8];
        let mut i = 0;
        while i < WIDE / 16 {
            let bits = 128 * (WIDE / 16 - 1 - i) + 8 * bytes;
            all[2 * i] = factor(bits + 32);
            all[2 * i + 1] = factor(bits - 32);
            i += 1;
        }
        all
    }

    /// For the remainder: eight bytes on, four of which it takes off, and by the `x^32` of a CRC.
    static TO_END: [u64; WIDE / 8] = gathering(8);
    /// For one block, the one behind the register.
    static TO_ONE: [u64; WIDE / 8] = gathering(16);
    /// The bytes of a register, counted.
    static COUNTED: [u64; WIDE / 8] = {
        let mut all = [0; WIDE / 8];
        let mut i = 0;
        while i < WIDE {
            all[i / 8] |= (i as u64) << (i % 8 * 8);
            i += 1;
        }
        all
    };

    /// [`behind`] knows the powers of `POWER_MIN` bytes, and of so many more in steps of four.
    const POWER_MIN: usize = 2;
    const POWERS: usize = 1056;
    /// `x^(8 n) mod P` for these numbers of bytes, as [`factor`] has it, without the last bit, which is zero.
    static POWER: [u32; POWERS] = {
        let mut all = [0; POWERS];
        let mut r = times_power(1, 8 * POWER_MIN);
        let mut i = 0;
        while i < POWERS {
            all[i] = r.reverse_bits();
            r = times_power(r, 32);
            i += 1;
        }
        all
    };

    /// Whether the processor multiplies so: 0 for not asked yet, else [`NO`] or [`YES`].
    static AVAILABLE: AtomicU8 = AtomicU8::new(0);
    const NO: u8 = 1;
    const YES: u8 = 2;

    /// Whether the processor multiplies 512 bits at a time.
    #[inline(always)]
    pub(crate) fn is_wide() -> bool {
        match AVAILABLE.load(Ordering::Relaxed) {
            0 => ask(),
            known => known == YES,
        }
    }

    #[cold]
    fn ask() -> bool {
        let yes = std::arch::is_x86_feature_detected!("avx512f")
            && std::arch::is_x86_feature_detected!("avx512bw")
            && std::arch::is_x86_feature_detected!("avx512vbmi")
            && std::arch::is_x86_feature_detected!("vpclmulqdq")
            && std::arch::is_x86_feature_detected!("pclmulqdq");
        AVAILABLE.store(if yes { YES } else { NO }, Ordering::Relaxed);
        yes
    }

    /// The function that copies and sums, if the processor has what it takes.
    #[inline(always)]
    pub fn copy_function() -> Option<CopyFn> {
        is_wide().then_some(copy)
    }

    /// The sum of some bytes, [`LEN_MIN`] at least; `None` also where the processor cannot.
    #[inline]
    pub fn of(bytes: &[u8]) -> Option<Sum> {
        if bytes.len() < LEN_MIN || !is_wide() {
            return None;
        }
        // SAFETY: the processor has what the function is compiled for; the slice is valid for reads of its length, and
        // nothing is stored without `COPY`.
        Sum::new(unsafe { alone::<false>(ptr::null_mut(), bytes.as_ptr(), bytes.len(), ptr::null()) })
    }

    unsafe extern "C" fn copy(to: *mut u8, from: *const u8, len: usize, ahead: *const u8) -> Option<Sum> {
        if len < LEN_MIN {
            // SAFETY: as the caller says.
            unsafe { ptr::copy_nonoverlapping(from, to, len) };
            return None;
        }
        // SAFETY: only `copy_function` gives this function out, where the processor has what `alone` is compiled for; the
        // rest as the caller says.
        Sum::new(unsafe { alone::<true>(to, from, len, ahead) })
    }

    /// The register over `head` and so many zeros behind it: `None` if these are not 2 more than a multiple of 4, fewer than 14, or
    /// too many.
    #[inline]
    #[target_feature(enable = "avx512f,vpclmulqdq,pclmulqdq,avx,avx2")]
    pub(crate) fn behind<const N: usize>(head: [__m512i; N], zeros: usize) -> Option<u32> {
        let power = |bytes: usize| {
            let at = bytes.wrapping_sub(POWER_MIN);
            (at.is_multiple_of(4)).then(|| POWER.get(at / 4)).flatten().map(|power| u64::from(*power) << 1)
        };
        // In one block, and 16 zeros less are left; a product takes off four bytes, a block's first half has eight more.
        let (high, low) = (power(zeros.wrapping_sub(4))?, power(zeros.wrapping_sub(12))?);
        let (zero, by_one) = (_mm512_setzero_si512(), wide(&BY_ONE));
        let sum = head.into_iter().reduce(|before, next| fold(before, by_one, next)).unwrap_or(zero);
        let block = joined(fold(sum, wide(&TO_ONE), zero));
        let factors = _mm_set_epi64x(low as i64, high as i64);
        Some(reduce(_mm_xor_si128(
            _mm_clmulepi64_si128::<0x00>(block, factors),
            _mm_clmulepi64_si128::<0x11>(block, factors),
        )))
    }

    /// The remainder of a sum of products.
    #[inline]
    #[target_feature(enable = "pclmulqdq,avx")]
    pub(crate) fn reduce(sum: __m128i) -> u32 {
        // SAFETY: the sixteen bytes are there, and the load asks for no alignment.
        let barrett = unsafe { _mm_loadu_si128(BARRETT.as_ptr().cast()) };
        let quotient = _mm_clmulepi64_si128::<0x00>(sum, barrett);
        let multiple = _mm_clmulepi64_si128::<0x10>(quotient, barrett);
        _mm_extract_epi32::<2>(_mm_xor_si128(sum, multiple)) as u32
    }

    #[inline]
    #[target_feature(enable = "avx512f")]
    pub(crate) fn wide(words: &[u64; WIDE / 8]) -> __m512i {
        // SAFETY: the bytes of a register are there, and the load asks for no alignment.
        unsafe { _mm512_loadu_si512(words.as_ptr().cast()) }
    }

    /// `a` moved up by what the factors say, and `b` behind it.
    #[inline]
    #[target_feature(enable = "avx512f,vpclmulqdq")]
    pub(crate) fn fold(a: __m512i, factors: __m512i, b: __m512i) -> __m512i {
        const XOR: i32 = 0x96;
        let high = _mm512_clmulepi64_epi128::<0x00>(a, factors);
        let low = _mm512_clmulepi64_epi128::<0x11>(a, factors);
        _mm512_ternarylogic_epi64::<XOR>(high, low, b)
    }

    /// [`pass`] over bytes that nothing is before.
    ///
    /// # Safety
    /// As that says.
    #[target_feature(enable = "avx512f,avx512bw,avx512vbmi,vpclmulqdq,pclmulqdq,avx")]
    unsafe fn alone<const COPY: bool>(to: *mut u8, from: *const u8, len: usize, ahead: *const u8) -> u32 {
        // SAFETY: as the caller says.
        unsafe { pass::<COPY, false>([_mm512_setzero_si512(); HEAD], to, from, len, ahead) }
    }

    /// Copies `len` bytes, two registers at least, as [`CopyFn`] does, and returns the register over `head`, which is of what is
    /// before them, and the copy.
    ///
    /// # Safety
    /// `from` is valid for reads of `len` bytes and `to` for writes, and they do not overlap. The processor is
    /// [wide](is_wide).
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vbmi,vpclmulqdq,pclmulqdq,avx")]
    pub(crate) unsafe fn copy_behind(head: [__m512i; HEAD], to: *mut u8, from: *const u8, len: usize) -> u32 {
        debug_assert!(len >= (LANES - HEAD) * WIDE, "as the caller says");
        // SAFETY: as the caller says.
        unsafe { pass::<true, true>(head, to, from, len, ptr::null()) }
    }

    /// One pass over `len` bytes: the register, and with `COPY` the copy. With `BEHIND` it is that over `head` and them.
    ///
    /// # Safety
    /// `from` is valid for reads of `len` bytes, with `COPY` also `to` for writes, and they do not overlap; `len` is
    /// [`LEN_MIN`] at least, and with `BEHIND` two registers.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vbmi,vpclmulqdq,pclmulqdq,avx")]
    unsafe fn pass<const COPY: bool, const BEHIND: bool>(
        head: [__m512i; HEAD],
        to: *mut u8,
        from: *const u8,
        len: usize,
        mut ahead: *const u8,
    ) -> u32 {
        let (by_lanes, by_one) = (wide(&BY_LANES), wide(&BY_ONE));
        // Takes a register; in their order.
        let mut take = |from_at: usize| {
            // SAFETY: the callers below see to it that `from_at + WIDE <= len`.
            unsafe {
                let data = _mm512_loadu_si512(from.wrapping_add(from_at).cast());
                if COPY {
                    _mm512_storeu_si512(to.wrapping_add(from_at).cast(), data);
                }
                if COPY && !ahead.is_null() {
                    _mm_prefetch::<_MM_HINT_T1>(ahead.cast());
                    ahead = ahead.wrapping_add(WIDE);
                }
                data
            }
        };
        let (mut sum, mut at);
        if BEHIND || len >= LANES * WIDE {
            let mut lanes;
            (lanes, at) = if BEHIND {
                ([head[0], head[1], take(0), take(WIDE)], (LANES - HEAD) * WIDE)
            } else {
                ([take(0), take(WIDE), take(2 * WIDE), take(3 * WIDE)], LANES * WIDE)
            };
            while len - at >= LANES * WIDE {
                for (i, lane) in lanes.iter_mut().enumerate() {
                    *lane = fold(*lane, by_lanes, take(at + i * WIDE));
                }
                at += LANES * WIDE;
            }
            sum = lanes[0];
            for lane in &lanes[1..] {
                sum = fold(sum, by_one, *lane);
            }
        } else {
            (sum, at) = (take(0), WIDE);
        }
        while len - at >= WIDE {
            sum = fold(sum, by_one, take(at));
            at += WIDE;
        }
        let rest = len - at;
        if rest > 0 {
            // The last register's end; zeros before it. What was taken goes up by as much: its first bytes are a register
            // of their own then, its others stand where the zeros are. All of it in registers: through memory it would wait
            // for every store before it.
            let end: __mmask64 = u64::MAX << (WIDE - rest);
            // SAFETY: only the last `rest` bytes are read, and with `COPY` written.
            let last = unsafe {
                let last = _mm512_maskz_loadu_epi8(end, from.wrapping_add(len).wrapping_sub(WIDE).cast());
                if COPY {
                    _mm512_mask_storeu_epi8(to.wrapping_add(len).wrapping_sub(WIDE).cast(), end, last);
                }
                last
            };
            let places = _mm512_add_epi8(wide(&COUNTED), _mm512_set1_epi8(rest as i8));
            let turned = _mm512_permutexvar_epi8(places, sum);
            let first = _mm512_maskz_mov_epi8(end, turned);
            sum = fold(first, by_one, _mm512_mask_blend_epi8(end, turned, last));
        }
        reduce_wide(fold(sum, wide(&TO_END), _mm512_setzero_si512()))
    }

    /// The remainder of four sums of products.
    #[inline]
    #[target_feature(enable = "avx512f,pclmulqdq,avx2")]
    pub(crate) fn reduce_wide(sums: __m512i) -> u32 {
        reduce(joined(sums))
    }

    /// The sum of a register's blocks.
    #[inline]
    #[target_feature(enable = "avx512f,avx2")]
    fn joined(blocks: __m512i) -> __m128i {
        let half = _mm256_xor_si256(_mm512_castsi512_si256(blocks), _mm512_extracti64x4_epi64::<1>(blocks));
        _mm_xor_si128(_mm256_castsi256_si128(half), _mm256_extracti128_si256::<1>(half))
    }
}

#[cfg(not(target_arch = "x86_64"))]
mod other {
    use super::{CopyFn, Sum};

    /// None: this processor is not known here. The other one is in `wire`.
    #[derive(Clone, Copy, Debug)]
    pub enum OnePass {}

    impl OnePass {
        /// As many as the other one's.
        pub const HEAD: usize = 128;
        /// As many as the other one's.
        pub const REST_MIN: usize = 128;

        pub(crate) fn new(_: bool, _: bool) -> Option<Self> {
            None
        }

        /// Never called.
        ///
        /// # Safety
        /// There is none to call it with.
        pub unsafe fn write(&self, _: *mut u8, _: &[u8; Self::HEAD], _: *const u8, _: usize) -> u32 {
            match *self {}
        }
    }

    /// None: this processor is not known here.
    pub fn copy_function() -> Option<CopyFn> {
        None
    }

    /// None: this processor is not known here.
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

    /// Whether this processor has what it takes; says so if not.
    fn available() -> bool {
        let yes = copy_function().is_some();
        if !yes {
            eprintln!("SKIPPED: this processor does not multiply 512 bits at a time");
        }
        yes
    }

    #[test]
    fn a_copy_is_whole_and_its_sum_agrees_with_the_bits_for_every_length() {
        if !available() {
            return;
        }
        let from = noise(1500);
        for (skip_from, skip_to) in [(0, 0), (3, 0), (0, 7), (10, 54)] {
            for len in (0..700).chain([1023, 1024, 1025, 1400]) {
                let mut to = vec![0xaa; 1600];
                let source = &from[skip_from..skip_from + len];
                let target = &mut to[skip_to..skip_to + len];
                let sum = copy(target, source);
                assert_eq!(target, source, "{len}");
                let strange = to[..skip_to].iter().chain(&to[skip_to + len..]).filter(|b| **b != 0xaa);
                assert_eq!(strange.count(), 0, "{len}: nothing else was written");
                let expected = Sum::new(slow(0, source)).filter(|_| len >= LEN_MIN);
                assert_eq!(expected.map(Sum::register), (len >= LEN_MIN).then(|| slow(0, source)));
                assert_eq!((sum, of(source)), (expected, expected), "{len}");
            }
        }
    }

    #[test]
    fn bytes_that_are_zero_have_a_sum_and_ones_mean_that_it_is_not_known() {
        // Goal: pages that nobody wrote to are what many messages are of.
        if available() {
            assert_eq!(of(&[0; 300]).map(Sum::register), Some(0));
        }
        assert_eq!(Sum::new(0).map(Sum::register), Some(0));
        assert_eq!(Sum::new(u32::MAX), None);
    }

    #[cfg(target_arch = "x86_64")]
    #[test]
    fn a_head_moves_up_as_by_zeros() {
        if !available() {
            return;
        }
        let head = noise(2 * WIDE);
        // SAFETY: the processor has what the functions are compiled for.
        let behind = |registers: usize, zeros: usize| unsafe {
            let word = |at: usize| u64::from_le_bytes(*head[at..].first_chunk().unwrap());
            let load = |at: usize| wide(&core::array::from_fn(|i| word(at + 8 * i)));
            match registers {
                1 => x86::behind([load(0)], zeros),
                _ => x86::behind([load(0), load(WIDE)], zeros),
            }
        };
        for registers in [1, 2] {
            let mut moved = slow(slow(0, &head[..registers * WIDE]), &[0; 14]);
            for zeros in (14..4228).step_by(4) {
                assert_eq!(behind(registers, zeros), Some(moved), "{registers}, {zeros}");
                moved = slow(moved, &[0; 4]);
            }
            for zeros in [0, 2, 10, 12, 13, 15, 16, 17, 4230, usize::MAX] {
                assert_eq!(behind(registers, zeros), None, "{registers}, {zeros}");
            }
        }
    }
}
