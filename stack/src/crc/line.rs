//! 64 bytes in registers of any width that the processor multiplies: a [`Line`].
//!
//! Code over lines is written once, generic, and compiled for each kind by [`for_each_line`]. So everything here is inlined into
//! functions that are compiled for the features of the kind's intrinsics.

use core::arch::asm;
use core::arch::x86_64::{
    __m128i, __m256i, __m512i, __mmask16, __mmask64, _mm_and_si128, _mm_clmulepi64_si128, _mm_cmpgt_epi32,
    _mm_cvtsi128_si32, _mm_cvtsi128_si64, _mm_loadu_si128, _mm_maskload_epi32, _mm_set1_epi32,
    _mm_setzero_si128, _mm_shuffle_epi8, _mm_srli_si128, _mm_storeu_si128, _mm_xor_si128, _mm256_and_si256,
    _mm256_castsi256_si128, _mm256_clmulepi64_epi128, _mm256_cmpgt_epi32, _mm256_extracti128_si256,
    _mm256_loadu_si256, _mm256_maskload_epi32, _mm256_set1_epi32, _mm256_setzero_si256, _mm256_storeu_si256,
    _mm256_xor_si256, _mm512_add_epi8, _mm512_castsi512_si256, _mm512_clmulepi64_epi128,
    _mm512_extracti64x4_epi64, _mm512_loadu_si512, _mm512_mask_blend_epi8, _mm512_mask_storeu_epi8,
    _mm512_maskz_loadu_epi8, _mm512_maskz_loadu_epi32, _mm512_maskz_mov_epi8, _mm512_permutexvar_epi8,
    _mm512_set1_epi8, _mm512_setzero_si512, _mm512_storeu_si512, _mm512_ternarylogic_epi64,
};

use super::x86::{BY_BLOCK, BY_LINE, LINE, TO_END, TO_LAST, reduce};

const BLOCK: usize = 16;
/// Words of eight bytes that a line has.
pub(crate) const WORDS: usize = LINE / 8;

/// Compiles functions for each kind of line: calls `$entries!(module, type, lanes, features)` for the widest first. `lanes` are
/// the lines in flight at the same time: a multiplication takes some cycles, and there are registers for this many.
macro_rules! for_each_line {
    ($entries:ident) => {
        $entries!(zmm, Zmm, 4, "avx512f,avx512bw,avx512vbmi,vpclmulqdq,pclmulqdq,avx,avx2");
        $entries!(ymm, Ymm, 4, "vpclmulqdq,pclmulqdq,avx,avx2");
        $entries!(xmm, Xmm, 2, "pclmulqdq,avx,avx2");
    };
}
pub(crate) use for_each_line;

/// 64 bytes in registers: four blocks.
///
/// # Safety
/// Of all its functions: the processor has the features that `for_each_line` lists for the kind, and the caller is compiled for
/// them.
pub(crate) trait Line: Copy {
    /// All bits zero.
    unsafe fn zero() -> Self;
    /// The line at `from`, which is valid for reads.
    unsafe fn load(from: *const u8) -> Self;
    /// As [`load`](Line::load), from memory that other threads may write meanwhile: by instructions that the compiler does not
    /// see into ([`racy`](crate::racy)), each byte once.
    unsafe fn take(from: *const u8) -> Self;
    /// As [`load`](Line::load), but zeros for the first `missing` words of four bytes, 15 at most, which are not read.
    unsafe fn load_end(from: *const u8, missing: usize) -> Self;
    /// Writes it to `to`, which is valid for writes.
    unsafe fn store(self, to: *mut u8);
    /// `self & keep ^ flip`
    unsafe fn masked(self, keep: Self, flip: Self) -> Self;
    /// Each block moved up by what the factors say, and `next` behind it.
    unsafe fn fold(self, factors: Self, next: Self) -> Self;
    /// The sum of its blocks.
    unsafe fn joined(self) -> __m128i;
    /// Its last block.
    unsafe fn last(self) -> __m128i;

    /// The register over the bytes summed in `self` and the last `rest` of the `len` bytes at `from`, fewer than a line. With
    /// `COPY` it writes these to the same place behind `to`, as they were when they were summed. `len` is a line at least.
    #[inline(always)]
    unsafe fn finish<const COPY: bool>(self, to: *mut u8, from: *const u8, len: usize, rest: usize) -> u32 {
        // SAFETY: as for the trait; the blocks that are read and written are among the last `rest` bytes, and the whole block
        // that ends with the last byte is among `len`.
        unsafe {
            let to_last = Self::load(TO_LAST.as_ptr().cast());
            let by_block = _mm_loadu_si128(BY_BLOCK.as_ptr().cast());
            let mut sum = _mm_xor_si128(self.fold(to_last, Self::zero()).joined(), self.last());
            let mut at = len - rest;
            while len - at >= BLOCK {
                let next = from.wrapping_add(at);
                let next = if COPY { racy_block(next) } else { _mm_loadu_si128(next.cast()) };
                if COPY {
                    _mm_storeu_si128(to.wrapping_add(at).cast(), next);
                }
                sum = _mm_xor_si128(product(sum, by_block), next);
                at += BLOCK;
            }
            let rest = len - at;
            if rest > 0 {
                // The block that ends with the last byte. The sum so far moves up by the bytes that are left; the bytes that move
                // out of it are a block of their own.
                let end = from.wrapping_add(len - BLOCK);
                let end = if COPY { racy_block(end) } else { _mm_loadu_si128(end.cast()) };
                if COPY {
                    store_first(shifted(end, BLOCK - rest), to.wrapping_add(at), rest);
                }
                let kept = _mm_loadu_si128(KEPT.as_ptr().add(rest).cast());
                let last = _mm_xor_si128(shifted(sum, rest), _mm_and_si128(end, kept));
                let before = _mm_shuffle_epi8(sum, _mm_loadu_si128(PLACES.as_ptr().add(rest).cast()));
                sum = _mm_xor_si128(product(before, by_block), last);
            }
            reduce(product(sum, _mm_loadu_si128(TO_END.as_ptr().add(WORDS - 2).cast())))
        }
    }
}

// The loads of `Line::take`. The compiler does not see into them; they are inlined with the rest, into functions that are
// compiled for the same features. SAFETY of them: the memory at `from` is mapped for reading, any other thread may write it, and
// the rest as for `Line`; the instructions need no alignment, and change nothing but their registers.

/// The block at `from`.
#[inline]
#[target_feature(enable = "avx")]
unsafe fn racy_block(from: *const u8) -> __m128i {
    let block;
    // SAFETY: see above.
    unsafe {
        asm!("vmovdqu {}, [{}]", out(xmm_reg) block, in(reg) from, options(nostack, preserves_flags, readonly));
    }
    block
}

/// The line at `from`, in blocks.
#[inline]
#[target_feature(enable = "avx")]
unsafe fn racy_xmm(from: *const u8) -> [__m128i; 4] {
    let (a, b, c, d);
    // SAFETY: see above.
    unsafe {
        asm!(
            "vmovdqu {}, [{from}]",
            "vmovdqu {}, [{from} + 16]",
            "vmovdqu {}, [{from} + 32]",
            "vmovdqu {}, [{from} + 48]",
            out(xmm_reg) a, out(xmm_reg) b, out(xmm_reg) c, out(xmm_reg) d, from = in(reg) from,
            options(nostack, preserves_flags, readonly),
        );
    }
    [a, b, c, d]
}

/// The line at `from`, in halves.
#[inline]
#[target_feature(enable = "avx")]
unsafe fn racy_ymm(from: *const u8) -> [__m256i; 2] {
    let (a, b);
    // SAFETY: see above.
    unsafe {
        asm!(
            "vmovdqu {}, [{from}]",
            "vmovdqu {}, [{from} + 32]",
            out(ymm_reg) a, out(ymm_reg) b, from = in(reg) from,
            options(nostack, preserves_flags, readonly),
        );
    }
    [a, b]
}

/// The line at `from`.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn racy_zmm(from: *const u8) -> __m512i {
    let line;
    // SAFETY: see above.
    unsafe {
        asm!("vmovdqu64 {}, [{}]", out(zmm_reg) line, in(reg) from, options(nostack, preserves_flags, readonly));
    }
    line
}

/// The line at `from`, but zeros for bytes that the mask leaves out, which are not read.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
unsafe fn racy_zmm_of(from: *const u8, mask: __mmask64) -> __m512i {
    let line;
    // SAFETY: see above.
    unsafe {
        asm!(
            "vmovdqu8 {}{{{}}}{{z}}, [{}]",
            out(zmm_reg) line, in(kreg) mask, in(reg) from,
            options(nostack, preserves_flags, readonly),
        );
    }
    line
}

/// A load at offset `n` is a mask that keeps the last `n` bytes of a block.
static KEPT: [u8; 2 * BLOCK] = {
    let mut all = [0; 2 * BLOCK];
    let mut i = BLOCK;
    while i < 2 * BLOCK {
        all[i] = 0xff;
        i += 1;
    }
    all
};

/// Shuffle indices: a block of zeros, a block in its order, a block of zeros.
static PLACES: [u8; 3 * BLOCK] = {
    let mut all = [0x80; 3 * BLOCK];
    let mut i = 0;
    while i < BLOCK {
        all[BLOCK + i] = i as u8;
        i += 1;
    }
    all
};

/// `block` without its first `by` bytes, and zeros behind it.
#[inline(always)]
unsafe fn shifted(block: __m128i, by: usize) -> __m128i {
    debug_assert!(by <= BLOCK);
    // SAFETY: the indices are there for up to a block's bytes; the rest as for `Line`.
    unsafe { _mm_shuffle_epi8(block, _mm_loadu_si128(PLACES.as_ptr().add(BLOCK + by).cast())) }
}

/// Writes the first `n` bytes of a block, fewer than all, each once.
#[inline(always)]
unsafe fn store_first(mut block: __m128i, mut to: *mut u8, n: usize) {
    // SAFETY: `to` is valid for writes of `n` bytes; these are pieces of them, one behind the other.
    unsafe {
        if n & 8 != 0 {
            to.cast::<i64>().write_unaligned(_mm_cvtsi128_si64(block));
            (block, to) = (_mm_srli_si128::<8>(block), to.add(8));
        }
        if n & 4 != 0 {
            to.cast::<i32>().write_unaligned(_mm_cvtsi128_si32(block));
            (block, to) = (_mm_srli_si128::<4>(block), to.add(4));
        }
        if n & 2 != 0 {
            to.cast::<i16>().write_unaligned(_mm_cvtsi128_si32(block) as i16);
            (block, to) = (_mm_srli_si128::<2>(block), to.add(2));
        }
        if n & 1 != 0 {
            to.write(_mm_cvtsi128_si32(block) as u8);
        }
    }
}

/// A block moved up by what the factors of its halves say.
#[inline(always)]
pub(crate) unsafe fn product(block: __m128i, factors: __m128i) -> __m128i {
    // SAFETY: as for `Line`.
    unsafe {
        let high = _mm_clmulepi64_si128::<0x00>(block, factors);
        _mm_xor_si128(high, _mm_clmulepi64_si128::<0x11>(block, factors))
    }
}

/// Indices of the words of a line: a comparison with them yields which are missing.
static COUNTED_WORDS: [i32; LINE / 4] = {
    let mut all = [0; LINE / 4];
    let mut i = 0;
    while i < LINE / 4 {
        all[i] = i as i32;
        i += 1;
    }
    all
};

/// A line in one register of 512 bits (AVX-512).
#[derive(Clone, Copy)]
pub(crate) struct Zmm(__m512i);

/// The byte indices of a line, 0 to 63.
static COUNTED: [u64; WORDS] = {
    let mut all = [0; WORDS];
    let mut i = 0;
    while i < LINE {
        all[i / 8] |= (i as u64) << (i % 8 * 8);
        i += 1;
    }
    all
};

// SAFETY of what follows: as for the trait. Loads and stores need no alignment.
impl Line for Zmm {
    #[inline(always)]
    unsafe fn zero() -> Self {
        // SAFETY: see above.
        Self(unsafe { _mm512_setzero_si512() })
    }
    #[inline(always)]
    unsafe fn load(from: *const u8) -> Self {
        // SAFETY: see above.
        Self(unsafe { _mm512_loadu_si512(from.cast()) })
    }
    #[inline(always)]
    unsafe fn take(from: *const u8) -> Self {
        // SAFETY: see above.
        Self(unsafe { racy_zmm(from) })
    }
    #[inline(always)]
    unsafe fn load_end(from: *const u8, missing: usize) -> Self {
        let there: __mmask16 = u16::MAX << missing;
        // SAFETY: see above.
        Self(unsafe { _mm512_maskz_loadu_epi32(there, from.cast()) })
    }
    #[inline(always)]
    unsafe fn store(self, to: *mut u8) {
        // SAFETY: see above.
        unsafe { _mm512_storeu_si512(to.cast(), self.0) }
    }
    #[inline(always)]
    unsafe fn masked(self, keep: Self, flip: Self) -> Self {
        /// `a & b ^ c`
        const AND_XOR: i32 = 0x6a;
        // SAFETY: see above.
        Self(unsafe { _mm512_ternarylogic_epi64::<AND_XOR>(self.0, keep.0, flip.0) })
    }
    #[inline(always)]
    unsafe fn fold(self, factors: Self, next: Self) -> Self {
        const XOR: i32 = 0x96;
        // SAFETY: see above.
        unsafe {
            let high = _mm512_clmulepi64_epi128::<0x00>(self.0, factors.0);
            let low = _mm512_clmulepi64_epi128::<0x11>(self.0, factors.0);
            Self(_mm512_ternarylogic_epi64::<XOR>(high, low, next.0))
        }
    }
    #[inline(always)]
    unsafe fn joined(self) -> __m128i {
        // SAFETY: see above.
        unsafe {
            let half = _mm512_castsi512_si256(self.0);
            let half = _mm256_xor_si256(half, _mm512_extracti64x4_epi64::<1>(self.0));
            _mm_xor_si128(_mm256_castsi256_si128(half), _mm256_extracti128_si256::<1>(half))
        }
    }
    #[inline(always)]
    unsafe fn last(self) -> __m128i {
        // SAFETY: see above.
        unsafe { _mm256_extracti128_si256::<1>(_mm512_extracti64x4_epi64::<1>(self.0)) }
    }

    /// In wide steps. The sum so far moves up by the bytes that are left: the bytes that move out are a line of their own, the
    /// others are added to the last line, which has zeros there. All of it in registers: a load from memory would wait for every
    /// store before it.
    #[inline(always)]
    unsafe fn finish<const COPY: bool>(self, to: *mut u8, from: *const u8, len: usize, rest: usize) -> u32 {
        let mut sum = self;
        // SAFETY: see above; only the last `rest` bytes are read, and with `COPY` written.
        unsafe {
            if rest > 0 {
                let end: __mmask64 = u64::MAX << (LINE - rest);
                let last_line = from.wrapping_add(len).wrapping_sub(LINE);
                let last = match COPY {
                    true => racy_zmm_of(last_line, end),
                    false => _mm512_maskz_loadu_epi8(end, last_line.cast()),
                };
                if COPY {
                    _mm512_mask_storeu_epi8(to.wrapping_add(len).wrapping_sub(LINE).cast(), end, last);
                }
                let counted = _mm512_loadu_si512(COUNTED.as_ptr().cast());
                let places = _mm512_add_epi8(counted, _mm512_set1_epi8(rest as i8));
                let turned = _mm512_permutexvar_epi8(places, sum.0);
                let first = Self(_mm512_maskz_mov_epi8(end, turned));
                let by_line = Self::load(BY_LINE.as_ptr().cast());
                sum = first.fold(by_line, Self(_mm512_mask_blend_epi8(end, turned, last)));
            }
            reduce(sum.fold(Self::load(TO_END.as_ptr().cast()), Self::zero()).joined())
        }
    }
}

/// A line in two registers of 256 bits (AVX2).
#[derive(Clone, Copy)]
pub(crate) struct Ymm([__m256i; 2]);

// SAFETY of what follows: as for the trait. Loads and stores need no alignment.
impl Line for Ymm {
    #[inline(always)]
    unsafe fn zero() -> Self {
        // SAFETY: see above.
        Self([unsafe { _mm256_setzero_si256() }; 2])
    }
    #[inline(always)]
    unsafe fn load(from: *const u8) -> Self {
        let from = from.cast::<__m256i>();
        // SAFETY: see above.
        unsafe { Self([_mm256_loadu_si256(from), _mm256_loadu_si256(from.add(1))]) }
    }
    #[inline(always)]
    unsafe fn take(from: *const u8) -> Self {
        // SAFETY: see above.
        Self(unsafe { racy_ymm(from) })
    }
    #[inline(always)]
    unsafe fn load_end(from: *const u8, missing: usize) -> Self {
        let (from, counted) = (from.cast::<i32>(), COUNTED_WORDS.as_ptr());
        // SAFETY: see above.
        unsafe {
            let before = _mm256_set1_epi32(missing as i32 - 1);
            let there = |at: usize| _mm256_cmpgt_epi32(_mm256_loadu_si256(counted.add(at).cast()), before);
            let half = |at: usize| _mm256_maskload_epi32(from.wrapping_add(at), there(at));
            Self([half(0), half(8)])
        }
    }
    #[inline(always)]
    unsafe fn store(self, to: *mut u8) {
        let to = to.cast::<__m256i>();
        // SAFETY: see above.
        unsafe {
            _mm256_storeu_si256(to, self.0[0]);
            _mm256_storeu_si256(to.add(1), self.0[1]);
        }
    }
    #[inline(always)]
    unsafe fn masked(self, keep: Self, flip: Self) -> Self {
        let half = |i: usize| {
            // SAFETY: see above.
            unsafe { _mm256_xor_si256(_mm256_and_si256(self.0[i], keep.0[i]), flip.0[i]) }
        };
        Self([half(0), half(1)])
    }
    #[inline(always)]
    unsafe fn fold(self, factors: Self, next: Self) -> Self {
        let half = |i: usize| {
            // SAFETY: see above.
            unsafe {
                let high = _mm256_clmulepi64_epi128::<0x00>(self.0[i], factors.0[i]);
                let low = _mm256_clmulepi64_epi128::<0x11>(self.0[i], factors.0[i]);
                _mm256_xor_si256(_mm256_xor_si256(high, low), next.0[i])
            }
        };
        Self([half(0), half(1)])
    }
    #[inline(always)]
    unsafe fn joined(self) -> __m128i {
        // SAFETY: see above.
        unsafe {
            let half = _mm256_xor_si256(self.0[0], self.0[1]);
            _mm_xor_si128(_mm256_castsi256_si128(half), _mm256_extracti128_si256::<1>(half))
        }
    }
    #[inline(always)]
    unsafe fn last(self) -> __m128i {
        // SAFETY: see above.
        unsafe { _mm256_extracti128_si256::<1>(self.0[1]) }
    }
}

/// A line in four registers of 128 bits, where no wider ones multiply.
#[derive(Clone, Copy)]
pub(crate) struct Xmm([__m128i; 4]);

// SAFETY of what follows: as for the trait. Loads and stores need no alignment.
impl Line for Xmm {
    #[inline(always)]
    unsafe fn zero() -> Self {
        // SAFETY: see above.
        Self([unsafe { _mm_setzero_si128() }; 4])
    }
    #[inline(always)]
    unsafe fn load(from: *const u8) -> Self {
        let block = |i: usize| {
            // SAFETY: see above.
            unsafe { _mm_loadu_si128(from.cast::<__m128i>().add(i)) }
        };
        Self([block(0), block(1), block(2), block(3)])
    }
    #[inline(always)]
    unsafe fn take(from: *const u8) -> Self {
        // SAFETY: see above.
        Self(unsafe { racy_xmm(from) })
    }
    #[inline(always)]
    unsafe fn load_end(from: *const u8, missing: usize) -> Self {
        let (from, counted) = (from.cast::<i32>(), COUNTED_WORDS.as_ptr());
        let block = |at: usize| {
            // SAFETY: see above.
            unsafe {
                let before = _mm_set1_epi32(missing as i32 - 1);
                let there = _mm_cmpgt_epi32(_mm_loadu_si128(counted.add(at).cast()), before);
                _mm_maskload_epi32(from.wrapping_add(at), there)
            }
        };
        Self([block(0), block(4), block(8), block(12)])
    }
    #[inline(always)]
    unsafe fn store(self, to: *mut u8) {
        for (i, block) in self.0.into_iter().enumerate() {
            // SAFETY: see above.
            unsafe { _mm_storeu_si128(to.cast::<__m128i>().add(i), block) }
        }
    }
    #[inline(always)]
    unsafe fn masked(self, keep: Self, flip: Self) -> Self {
        let block = |i: usize| {
            // SAFETY: see above.
            unsafe { _mm_xor_si128(_mm_and_si128(self.0[i], keep.0[i]), flip.0[i]) }
        };
        Self([block(0), block(1), block(2), block(3)])
    }
    #[inline(always)]
    unsafe fn fold(self, factors: Self, next: Self) -> Self {
        let block = |i: usize| {
            // SAFETY: see above.
            unsafe { _mm_xor_si128(product(self.0[i], factors.0[i]), next.0[i]) }
        };
        Self([block(0), block(1), block(2), block(3)])
    }
    #[inline(always)]
    unsafe fn joined(self) -> __m128i {
        let [a, b, c, d] = self.0;
        // SAFETY: see above.
        unsafe { _mm_xor_si128(_mm_xor_si128(a, b), _mm_xor_si128(c, d)) }
    }
    #[inline(always)]
    unsafe fn last(self) -> __m128i {
        self.0[3]
    }
}
