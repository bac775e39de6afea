//! One pass over bytes, by [`Line`]s, for each width that a processor multiplies.

use core::arch::x86_64::{
    __m128i, _MM_HINT_T1, _mm_clmulepi64_si128, _mm_extract_epi32, _mm_loadu_si128, _mm_prefetch,
    _mm_set_epi64x, _mm_xor_si128,
};
use core::ptr;
use core::sync::atomic::{AtomicU8, Ordering};
use std::arch::is_x86_feature_detected as has;

use crate::racy;

use super::line::{Line, WORDS, Xmm, Ymm, Zmm, for_each_line, product};
use super::{BARRETT, CopyFn, LEN_MIN, Sum, factor, times_power};

/// Bytes of a line.
pub(crate) const LINE: usize = 64;
const _: () = assert!(LEN_MIN >= LINE);
/// Lines of a head, for [`copy_behind`].
pub(crate) const HEAD: usize = 2;

/// Factors that move each of a line's blocks up by so many bytes.
const fn moving(bytes: usize) -> [u64; WORDS] {
    let (high, low) = (factor(8 * bytes + 32), factor(8 * bytes - 32));
    [high, low, high, low, high, low, high, low]
}

/// Moves by one line.
pub(super) static BY_LINE: [u64; WORDS] = moving(LINE);
/// Moves a block by one block.
pub(super) static BY_BLOCK: [u64; 2] = {
    let [high, low, ..] = moving(16);
    [high, low]
};

/// Factors that move all blocks of a line to the place of its last one, and `bytes` further; zero for a block that stays.
const fn gathering(bytes: usize) -> [u64; WORDS] {
    let mut all = [0; WORDS];
    let mut i = 0;
    while i < WORDS / 2 {
        let bits = 128 * (WORDS / 2 - 1 - i) + 8 * bytes;
        if bits > 0 {
            all[2 * i] = factor(bits + 32);
            all[2 * i + 1] = factor(bits - 32);
        }
        i += 1;
    }
    all
}

/// Gathers for [`reduce`], eight bytes further: four that the reduction takes off, and four for the `x^32` of a CRC.
pub(super) static TO_END: [u64; WORDS] = gathering(8);
/// Gathers into the last block, which is added as it is.
pub(super) static TO_LAST: [u64; WORDS] = gathering(0);
/// Gathers into the block behind the line.
static TO_NEXT: [u64; WORDS] = gathering(16);

/// [`behind`] has `POWERS` powers: of `POWER_MIN` bytes, and on in steps of four.
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

/// The widest carry-less multiplication of a processor.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[repr(u8)]
pub(crate) enum Width {
    /// Nothing.
    None = 1,
    /// 128 bits: [`Xmm`].
    Xmm = 2,
    /// 256 bits: [`Ymm`].
    Ymm = 3,
    /// 512 bits: [`Zmm`].
    Zmm = 4,
}

/// The width of this processor: 0 for not detected yet, else a [`Width`].
static WIDTH: AtomicU8 = AtomicU8::new(0);

/// The widest carry-less multiplication of this processor.
#[inline(always)]
pub(crate) fn width() -> Width {
    match WIDTH.load(Ordering::Relaxed) {
        4 => Width::Zmm,
        3 => Width::Ymm,
        2 => Width::Xmm,
        1 => Width::None,
        _ => ask(),
    }
}

#[cold]
fn ask() -> Width {
    let xmm = has!("pclmulqdq") && has!("avx2");
    let ymm = xmm && has!("vpclmulqdq");
    let zmm = ymm && has!("avx512f") && has!("avx512bw") && has!("avx512vbmi");
    let width = match (zmm, ymm, xmm) {
        (true, ..) => Width::Zmm,
        (_, true, _) => Width::Ymm,
        (.., true) => Width::Xmm,
        _ => Width::None,
    };
    WIDTH.store(width as u8, Ordering::Relaxed);
    width
}

macro_rules! entries {
    ($of:ident, $line:ty, $lanes:literal, $features:literal) => {
        mod $of {
            use super::*;

            /// [`pass`] over bytes without any before them.
            ///
            /// # Safety
            /// As for that; the processor has the features that this is compiled for.
            #[target_feature(enable = $features)]
            pub unsafe fn alone<const COPY: bool>(
                to: *mut u8,
                from: *const u8,
                len: usize,
                ahead: *const u8,
            ) -> u32 {
                // SAFETY: as the caller guarantees.
                unsafe {
                    let head = [<$line>::zero(); HEAD];
                    if ahead.is_null() {
                        pass::<$line, $lanes, COPY, false, false>(head, to, from, len, ahead)
                    } else {
                        pass::<$line, $lanes, COPY, false, true>(head, to, from, len, ahead)
                    }
                }
            }

            pub unsafe extern "C" fn copy(
                to: *mut u8,
                from: *const u8,
                len: usize,
                ahead: *const u8,
            ) -> Option<Sum> {
                if len < LEN_MIN {
                    // SAFETY: as the caller guarantees.
                    unsafe { racy::read(from, to, len) };
                    return None;
                }
                // SAFETY: only `copy_by` returns this function, where the processor has the features that `alone` is compiled
                // for; the rest as the caller guarantees.
                Sum::new(unsafe { alone::<true>(to, from, len, ahead) })
            }
        }
    };
}
for_each_line!(entries);

/// The function that copies and sums, if the processor has the features for it.
#[inline]
pub fn copy_function() -> Option<CopyFn> {
    copy_by(width())
}

/// [`copy_function`] for a processor of this width.
#[inline]
pub(super) fn copy_by(width: Width) -> Option<CopyFn> {
    match width {
        Width::Zmm => Some(zmm::copy),
        Width::Ymm => Some(ymm::copy),
        Width::Xmm => Some(xmm::copy),
        Width::None => None,
    }
}

/// The sum of some bytes, [`LEN_MIN`] at least; `None` also where the processor cannot.
#[inline]
pub fn of(bytes: &[u8]) -> Option<Sum> {
    of_by(width(), bytes)
}

/// [`of`] for a processor of this width.
#[inline]
pub(super) fn of_by(width: Width, bytes: &[u8]) -> Option<Sum> {
    if bytes.len() < LEN_MIN {
        return None;
    }
    let (to, from, len, ahead) = (ptr::null_mut(), bytes.as_ptr(), bytes.len(), ptr::null());
    // SAFETY: the processor has the features that the functions are compiled for; the slice is valid for reads of its length, and
    // nothing is stored without `COPY`.
    Sum::new(unsafe {
        match width {
            Width::Zmm => zmm::alone::<false>(to, from, len, ahead),
            Width::Ymm => ymm::alone::<false>(to, from, len, ahead),
            Width::Xmm => xmm::alone::<false>(to, from, len, ahead),
            Width::None => return None,
        }
    })
}

/// The register over `head` and so many zeros behind it: `None` if these are not 2 more than a multiple of 4, fewer than 14, or
/// too many.
///
/// # Safety
/// As for [`Line`].
#[inline(always)]
pub(crate) unsafe fn behind<L: Line, const N: usize>(head: [L; N], zeros: usize) -> Option<u32> {
    let power = |bytes: usize| {
        let at = bytes.wrapping_sub(POWER_MIN);
        (at.is_multiple_of(4)).then(|| POWER.get(at / 4)).flatten().map(|power| u64::from(*power) << 1)
    };
    // Gathered in one block, with 16 zeros fewer behind it; a product takes off four bytes, a block's first half has eight more.
    let (high, low) = (power(zeros.wrapping_sub(4))?, power(zeros.wrapping_sub(12))?);
    // SAFETY: as the caller guarantees; the factors are those of a line.
    unsafe {
        let (by_line, to_next) = (L::load(BY_LINE.as_ptr().cast()), L::load(TO_NEXT.as_ptr().cast()));
        let mut sum = head[0];
        for next in &head[1..] {
            sum = sum.fold(by_line, *next);
        }
        let block = sum.fold(to_next, L::zero()).joined();
        Some(reduce(product(block, _mm_set_epi64x(low as i64, high as i64))))
    }
}

/// The remainder of a sum of products.
///
/// # Safety
/// As for [`Line`].
#[inline(always)]
pub(crate) unsafe fn reduce(sum: __m128i) -> u32 {
    // SAFETY: as the caller guarantees; the sixteen bytes are there, and the load needs no alignment.
    unsafe {
        let barrett = _mm_loadu_si128(BARRETT.as_ptr().cast());
        let quotient = _mm_clmulepi64_si128::<0x00>(sum, barrett);
        let multiple = _mm_clmulepi64_si128::<0x10>(quotient, barrett);
        _mm_extract_epi32::<2>(_mm_xor_si128(sum, multiple)) as u32
    }
}

/// Copies `len` bytes, two lines at least, and prefetches as many from `ahead`, as [`CopyFn`] does. Returns the register over
/// `head`, the bytes before them, and the copy.
///
/// # Safety
/// `from` is valid for reads of `len` bytes and `to` for writes, and they do not overlap; as for [`Line`].
#[inline(always)]
pub(crate) unsafe fn copy_behind<L: Line, const LANES: usize>(
    head: [L; HEAD],
    to: *mut u8,
    from: *const u8,
    len: usize,
    ahead: *const u8,
) -> u32 {
    debug_assert!(len >= (LANES - HEAD) * LINE, "as the caller says");
    // SAFETY: as the caller guarantees.
    unsafe {
        if ahead.is_null() {
            pass::<L, LANES, true, true, false>(head, to, from, len, ahead)
        } else {
            pass::<L, LANES, true, true, true>(head, to, from, len, ahead)
        }
    }
}

/// One pass over `len` bytes: returns the register over them, with `BEHIND` over `head` and them. With `COPY` it copies them,
/// with `AHEAD` it prefetches as many bytes from `ahead`.
///
/// # Safety
/// `from` is valid for reads of `len` bytes. With `COPY` other threads may write these meanwhile, `to` is valid for as many
/// writes, and they do not overlap. `len` is [`LEN_MIN`] at least, and with `BEHIND` two lines. As for [`Line`].
#[inline(always)]
unsafe fn pass<L: Line, const LANES: usize, const COPY: bool, const BEHIND: bool, const AHEAD: bool>(
    head: [L; HEAD],
    to: *mut u8,
    from: *const u8,
    len: usize,
    ahead: *const u8,
) -> u32 {
    // SAFETY: as the caller guarantees; the factors are those of a line.
    let (by_lanes, by_line) = unsafe {
        (L::load((const { &moving(LANES * LINE) }).as_ptr().cast()), L::load(BY_LINE.as_ptr().cast()))
    };
    // Takes the line at an offset. The calls below go through all lines in order.
    let take = |from_at: usize| {
        // SAFETY: the callers below make sure that `from_at + LINE <= len`.
        unsafe {
            let from = from.wrapping_add(from_at);
            let data = if COPY { L::take(from) } else { L::load(from) };
            if COPY {
                data.store(to.wrapping_add(from_at));
            }
            if AHEAD {
                _mm_prefetch::<_MM_HINT_T1>(ahead.wrapping_add(from_at).cast());
            }
            data
        }
    };
    let (mut sum, mut at);
    if BEHIND || len >= LANES * LINE {
        let mut lanes = [head[0]; LANES];
        at = 0;
        for (i, lane) in lanes.iter_mut().enumerate() {
            if BEHIND && i < HEAD {
                *lane = head[i];
            } else {
                *lane = take(at);
                at += LINE;
            }
        }
        while len - at >= LANES * LINE {
            for (i, lane) in lanes.iter_mut().enumerate() {
                // SAFETY: as for `Line`.
                *lane = unsafe { lane.fold(by_lanes, take(at + i * LINE)) };
            }
            at += LANES * LINE;
        }
        sum = lanes[0];
        for lane in &lanes[1..] {
            // SAFETY: as for `Line`.
            sum = unsafe { sum.fold(by_line, *lane) };
        }
    } else {
        (sum, at) = (take(0), LINE);
    }
    while len - at >= LINE {
        // SAFETY: as for `Line`.
        sum = unsafe { sum.fold(by_line, take(at)) };
        at += LINE;
    }
    // SAFETY: as the caller guarantees; fewer bytes than a line are left.
    unsafe { sum.finish::<COPY>(to, from, len, len - at) }
}
