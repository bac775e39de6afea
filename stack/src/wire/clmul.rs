//! The invariant CRC by carry-less multiplication, with the mask in registers: of short packets, and of the heads of long ones.
//!
//! A packet of a few hundred bytes is over before a folding loop has filled its pipeline. Here each block of 16 bytes is
//! multiplied by a constant of its own, which moves it to its place before the end and takes the remainder of that move in
//! one step; the products do not wait for each other, and their sum is reduced once. The fields that are masked are
//! masked in the registers that a block is loaded to: the frame is only read. Where the processor has registers of four blocks,
//! four are multiplied at once.
//!
//! Of a long packet that was summed as it is, this says what masking its headers changes ([`register_with`]); one that is sent goes
//! through [`OnePass`]. The arithmetic is that of [`crate::crc`]: a block `H x^64 + L` that `n` blocks follow contributes
//! `H (x^(128 n + 96) mod P) + L (x^(128 n + 32) mod P)`.

#![allow(unsafe_code)]

use core::arch::x86_64::{
    __m128i, __m512i, __mmask16, _mm_and_si128, _mm_clmulepi64_si128, _mm_loadu_si128, _mm_setzero_si128,
    _mm_xor_si128, _mm512_loadu_si512, _mm512_maskz_loadu_epi32, _mm512_setzero_si512, _mm512_storeu_si512,
    _mm512_ternarylogic_epi64,
};
use core::sync::atomic::{AtomicU8, Ordering};

use super::icrc::{MASK_LEN, MASK_V4, MASK_V6};
use super::{ETH_LEN, IPV4_LEN, IPV6_LEN, UDP_LEN, VLAN_LEN};
use crate::crc::{self, WIDE, factor, fold, reduce, reduce_wide, wide};

/// Blocks that the longest packet has.
const BLOCKS_MAX: usize = 16;
/// Bytes before the IP header that are looked at, to begin with a whole block. An Ethernet header has more.
pub(super) const BEFORE: usize = 12;
const BLOCK: usize = 16;

/// The register after eight bytes of ones.
const START: u32 = 0xdebb_20e3;

/// Factors of the two halves of a block, by the blocks from it to the end, the last one first in order.
static KEYS: [[u64; 2]; BLOCKS_MAX] = {
    let mut keys = [[0; 2]; BLOCKS_MAX];
    let mut i = 0;
    while i < BLOCKS_MAX {
        let bits = 128 * (BLOCKS_MAX - 1 - i);
        keys[i] = [factor(bits + 96), factor(bits + 32)];
        i += 1;
    }
    keys
};

/// What is done to `WORDS` words: bits that stay, and bits that are turned over then.
#[derive(Clone, Copy)]
struct Mask<const WORDS: usize> {
    keep: [u64; WORDS],
    flip: [u64; WORDS],
}

/// That of a block, and that of a register of four.
type Block = Mask<{ BLOCK / 8 }>;
type Wide = Mask<{ WIDE / 8 }>;

/// Blocks of a packet that have something to mask.
const MASKED_V4: usize = 3;
const MASKED_V6: usize = 5;
const _: () = assert!(MASK_LEN >= MASKED_V6 * BLOCK - BEFORE - BLOCK / 4);
/// The same of wide registers, of a packet as of a frame.
const MASKED_WIDE: usize = 2;
const _: () = assert!(WIDE - 4 + IPV6_LEN + UDP_LEN + 5 <= MASKED_WIDE * WIDE, "to BTH byte 4");

/// For packets whose IP header begins after so many bytes of the first of them: what is before the packet goes, masked bits
/// become ones, and the register at the start is added.
const fn masks<const WORDS: usize, const N: usize>(mask: &[u8; MASK_LEN], before: usize) -> [Mask<WORDS>; N] {
    let mut all = [Mask { keep: [0; WORDS], flip: [0; WORDS] }; N];
    let mut at = 0;
    while at < N * WORDS * 8 {
        let (mut keep, mut flip) = (0xff, 0);
        if at < before {
            keep = 0;
        } else if at - before < MASK_LEN {
            keep = !mask[at - before];
            flip = mask[at - before];
        }
        if at >= before && at < before + 4 {
            flip ^= START.to_le_bytes()[at - before];
        }
        let (of, word, shift) = (at / 8 / WORDS, at / 8 % WORDS, at % 8 * 8);
        all[of].keep[word] |= (keep as u64) << shift;
        all[of].flip[word] |= (flip as u64) << shift;
        at += 1;
    }
    all
}

/// For packets that have `4 * i` bytes of the first (none: all of it).
const fn rows<const WORDS: usize, const N: usize, const ROWS: usize>(
    mask: &[u8; MASK_LEN],
) -> [[Mask<WORDS>; N]; ROWS] {
    assert!(ROWS == 2 * WORDS);
    let mut rows = [masks(mask, 0); ROWS];
    let mut i = 1;
    while i < ROWS {
        rows[i] = masks(mask, 4 * (ROWS - i));
        i += 1;
    }
    rows
}

static MASKS_V4: [[Block; MASKED_V4]; BLOCK / 4] = rows(&MASK_V4);
static MASKS_V6: [[Block; MASKED_V6]; BLOCK / 4] = rows(&MASK_V6);
static WIDE_V4: [[Wide; MASKED_WIDE]; WIDE / 4] = rows(&MASK_V4);
static WIDE_V6: [[Wide; MASKED_WIDE]; WIDE / 4] = rows(&MASK_V6);

/// For whole frames, from their Ethernet headers on, without a VLAN tag and with one.
const fn frames(mask: &[u8; MASK_LEN]) -> [[Wide; MASKED_WIDE]; 2] {
    [masks(mask, ETH_LEN), masks(mask, ETH_LEN + VLAN_LEN)]
}

static FRAMES_V4: [[Wide; MASKED_WIDE]; 2] = frames(&MASK_V4);
static FRAMES_V6: [[Wide; MASKED_WIDE]; 2] = frames(&MASK_V6);

/// What these masks change: added to the bytes themselves it makes those that are masked.
const fn changes(masks: [[Wide; MASKED_WIDE]; 2]) -> [[Wide; MASKED_WIDE]; 2] {
    let mut changes = masks;
    let mut i = 0;
    while i < 2 * MASKED_WIDE * (WIDE / 8) {
        let of = &mut changes[i / (WIDE / 8) / MASKED_WIDE][i / (WIDE / 8) % MASKED_WIDE];
        of.keep[i % (WIDE / 8)] = !of.keep[i % (WIDE / 8)];
        i += 1;
    }
    changes
}

static CHANGES_V4: [[Wide; MASKED_WIDE]; 2] = changes(FRAMES_V4);
static CHANGES_V6: [[Wide; MASKED_WIDE]; 2] = changes(FRAMES_V6);
const _: () = assert!(ETH_LEN + VLAN_LEN + IPV4_LEN + UDP_LEN + 5 <= WIDE, "one register changes over IPv4");
const _: () = assert!(ETH_LEN + VLAN_LEN + IPV6_LEN + UDP_LEN + 5 <= MASKED_WIDE * WIDE, "to BTH byte 4");

/// What the processor multiplies at once: 0 for not asked yet.
static AT_ONCE: AtomicU8 = AtomicU8::new(0);
const NOTHING: u8 = 1;
const A_BLOCK: u8 = 2;
const FOUR_BLOCKS: u8 = 3;

#[inline(always)]
fn at_once() -> u8 {
    match AT_ONCE.load(Ordering::Relaxed) {
        0 => ask(),
        known => known,
    }
}

#[cold]
fn ask() -> u8 {
    let a_block =
        std::arch::is_x86_feature_detected!("pclmulqdq") && std::arch::is_x86_feature_detected!("avx");
    let known = match (crc::is_wide(), a_block) {
        (true, _) => FOUR_BLOCKS,
        (false, true) => A_BLOCK,
        (false, false) => NOTHING,
    };
    AT_ONCE.store(known, Ordering::Relaxed);
    known
}

/// The register of the CRC over the bytes of `frame` from `l3`, where its IP header begins, to `end`. `None` where another
/// function has to do it: the packet is too long, too short or no multiple of four bytes, there are fewer than [`BEFORE`]
/// bytes before it, or the processor cannot multiply so.
#[inline(always)]
pub(super) fn register(frame: &[u8], l3: usize, end: usize, ipv6: bool) -> Option<u32> {
    register_by(at_once(), frame, l3, end, ipv6)
}

/// As the processor multiplies `at_once`, which it does.
#[inline(always)]
fn register_by(at_once: u8, frame: &[u8], l3: usize, end: usize, ipv6: bool) -> Option<u32> {
    let len = end.wrapping_sub(l3);
    if l3 < BEFORE || !len.is_multiple_of(4) || len > BLOCKS_MAX * BLOCK {
        return None;
    }
    match at_once {
        FOUR_BLOCKS => {
            let least = if ipv6 { MASKED_V6 } else { MASKED_V4 };
            let packet = frame.get(l3..end).filter(|packet| packet.len() > (least - 1) * BLOCK)?;
            let row = len / 4 % (WIDE / 4);
            let masks = if ipv6 { &WIDE_V6[row] } else { &WIDE_V4[row] };
            // SAFETY: the processor has what the function is compiled for: see `ask`. The first register begins so many bytes
            // before the packet that the last one ends with it, and of these bytes none is read.
            Some(unsafe { sum_wide(packet.as_ptr_range().end, len.div_ceil(WIDE), len / 4, masks) })
        }
        A_BLOCK => {
            let first = l3 - len.wrapping_neg() % BLOCK;
            let (blocks, _) = frame.get(first..end)?.as_chunks();
            let row = len / 4 % (BLOCK / 4);
            // SAFETY: the processor has what the functions are compiled for: see `ask`.
            unsafe {
                match ipv6 {
                    false => sum(blocks, &MASKS_V4[row]),
                    true => sum(blocks, &MASKS_V6[row]),
                }
            }
        }
        _ => None,
    }
}

/// The register of the CRC over the bytes of `frame` from `l3`, where its IP header begins, to `end`; `sum` is that over all of
/// them before `end` as they are, begun at zero. `None` where another function has to do it: the frame has no such layout, or
/// the processor cannot multiply so.
#[inline(always)]
pub(super) fn register_with(frame: &[u8], l3: usize, end: usize, ipv6: bool, sum: u32) -> Option<u32> {
    let tagged = match l3 {
        ETH_LEN => 0,
        _ if l3 == ETH_LEN + VLAN_LEN => 1,
        _ => return None,
    };
    if at_once() != FOUR_BLOCKS {
        return None;
    }
    let (lines, _) = frame.get(..end)?.as_chunks();
    // SAFETY: the processor has what the functions are compiled for: see `ask`.
    let changed = unsafe {
        match ipv6 {
            false => change::<1>(lines.first_chunk()?, &CHANGES_V4[tagged], end),
            true => change::<MASKED_WIDE>(lines.first_chunk()?, &CHANGES_V6[tagged], end),
        }
    };
    Some(sum ^ changed?)
}

/// What masking its head changes of the register over `len` bytes.
#[target_feature(enable = "avx512f,vpclmulqdq,pclmulqdq,avx,avx2")]
fn change<const N: usize>(head: &[[u8; WIDE]; N], changes: &[Wide; MASKED_WIDE], len: usize) -> Option<u32> {
    let mut changed = [_mm512_setzero_si512(); N];
    for i in 0..N {
        changed[i] = masked(load_wide(&head[i]), &changes[i]);
    }
    crc::behind(changed, len - N * WIDE)
}

/// Writes long frames of one layout whole: headers, payload and ICRC in one pass over their bytes. There is one where the
/// processor multiplies 512 bits at a time.
#[derive(Clone, Copy)]
pub struct OnePass {
    masks: &'static [Wide; MASKED_WIDE],
}

impl core::fmt::Debug for OnePass {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("OnePass")
    }
}

impl OnePass {
    /// Bytes at the start of a frame that stand apart before it is written: all headers, and payload behind them.
    pub const HEAD: usize = crc::HEAD * WIDE;
    /// Least bytes of a frame behind its head, ICRC aside.
    pub const REST_MIN: usize = 2 * WIDE;

    /// For frames with such a layout.
    #[inline(always)]
    pub(super) fn new(tagged: bool, ipv6: bool) -> Option<Self> {
        let of = if ipv6 { &FRAMES_V6 } else { &FRAMES_V4 };
        (at_once() == FOUR_BLOCKS).then(|| Self { masks: &of[usize::from(tagged)] })
    }

    /// Writes `head` and behind it `len` bytes from `from` to `to`, and returns the ICRC over them: that of a frame in masked
    /// form, which is what is written.
    ///
    /// # Safety
    /// `from` is valid for reads of `len` bytes, `to` for writes of `HEAD + len`, and they do not overlap; `len` is
    /// [`OnePass::REST_MIN`] at least. Others may write to `from` meanwhile: then something of both is sent, with the ICRC of
    /// that.
    #[inline(always)]
    pub unsafe fn write(&self, to: *mut u8, head: &[u8; Self::HEAD], from: *const u8, len: usize) -> u32 {
        // SAFETY: `new` looked whether the processor has what the function is compiled for; the rest as the caller says.
        !unsafe { write_whole(self.masks, to, head, from, len) }
    }
}

/// [`OnePass::write`], but for the last step.
///
/// # Safety
/// As that says.
#[target_feature(enable = "avx512f,avx512bw,avx512vbmi,vpclmulqdq,pclmulqdq,avx")]
unsafe fn write_whole(
    masks: &[Wide; MASKED_WIDE],
    to: *mut u8,
    head: &[u8; OnePass::HEAD],
    from: *const u8,
    len: usize,
) -> u32 {
    let ([first, second], _) = head.as_chunks() else { unreachable!("a head has two registers") };
    let (first, second) = (load_wide(first), load_wide(second));
    // SAFETY: there is room for both at `to`, as the caller says.
    unsafe {
        _mm512_storeu_si512(to.cast(), first);
        _mm512_storeu_si512(to.add(WIDE).cast(), second);
    }
    let head = [masked(first, &masks[0]), masked(second, &masks[1])];
    // SAFETY: as the caller says.
    unsafe { crc::copy_behind(head, to.wrapping_add(OnePass::HEAD), from, len) }
}

#[inline]
#[target_feature(enable = "pclmulqdq,avx")]
fn load(block: &[u8; BLOCK]) -> __m128i {
    // SAFETY: the sixteen bytes are there, and the load asks for no alignment.
    unsafe { _mm_loadu_si128(block.as_ptr().cast()) }
}

#[inline]
#[target_feature(enable = "avx512f")]
fn load_wide(bytes: &[u8; WIDE]) -> __m512i {
    // SAFETY: as above.
    unsafe { _mm512_loadu_si512(bytes.as_ptr().cast()) }
}

#[inline]
#[target_feature(enable = "pclmulqdq,avx")]
fn pair(words: &[u64; 2]) -> __m128i {
    // SAFETY: as above.
    unsafe { _mm_loadu_si128(words.as_ptr().cast()) }
}

#[inline]
#[target_feature(enable = "pclmulqdq,avx")]
fn product(block: __m128i, key: &[u64; 2]) -> __m128i {
    let key = pair(key);
    _mm_xor_si128(_mm_clmulepi64_si128::<0x00>(block, key), _mm_clmulepi64_si128::<0x11>(block, key))
}

/// The register after `blocks`, of which the first `N` are masked; `None` for fewer, or more than [`BLOCKS_MAX`].
#[target_feature(enable = "pclmulqdq,avx")]
fn sum<const N: usize>(blocks: &[[u8; BLOCK]], masks: &[Block; N]) -> Option<u32> {
    let keys = KEYS.get(BLOCKS_MAX.wrapping_sub(blocks.len())..)?;
    let ((head, tail), (head_keys, tail_keys)) =
        (blocks.split_first_chunk::<N>()?, keys.split_first_chunk()?);
    let mut sum = _mm_setzero_si128();
    for i in 0..N {
        let mask: &Block = &masks[i];
        let block = _mm_xor_si128(_mm_and_si128(load(&head[i]), pair(&mask.keep)), pair(&mask.flip));
        let key: &[[u64; 2]; N] = head_keys;
        sum = _mm_xor_si128(sum, product(block, &key[i]));
    }
    for (block, key) in tail.iter().zip(tail_keys) {
        sum = _mm_xor_si128(sum, product(load(block), key));
    }
    Some(reduce(sum))
}

#[inline]
#[target_feature(enable = "avx512f")]
fn masked(bytes: __m512i, mask: &Wide) -> __m512i {
    /// `a & b ^ c`
    const AND_XOR: i32 = 0x6a;
    _mm512_ternarylogic_epi64::<AND_XOR>(bytes, wide(&mask.keep), wide(&mask.flip))
}

/// The register over the `words` words of four bytes that end at `end`, by so many wide registers, 1 to 4, of which the first is
/// not full where these are not a multiple of its words.
///
/// # Safety
/// The words are valid for reads. There are at most `registers * 16` of them, and more than `registers * 16 - 16`.
#[inline]
#[target_feature(enable = "avx512f,vpclmulqdq,pclmulqdq,avx,avx2")]
unsafe fn sum_wide(end: *const u8, registers: usize, words: usize, masks: &[Wide; MASKED_WIDE]) -> u32 {
    let keys = KEYS.as_flattened();
    let missing = registers * (WIDE / 4) - words;
    let there: __mmask16 = u16::MAX << missing;
    let from = |i: usize| end.wrapping_sub((registers - i) * WIDE);
    let key = |i: usize| -> __m512i {
        let at = keys.len() - (registers - i) * (WIDE / 8);
        wide(keys[at..].first_chunk().expect("there are as many as the longest packet takes"))
    };
    // SAFETY: of the first register only what is there is read; the others are there.
    let first = unsafe { _mm512_maskz_loadu_epi32(there, from(0).cast()) };
    let mut sum = fold(masked(first, &masks[0]), key(0), _mm512_setzero_si512());
    for i in 1..registers {
        // SAFETY: as above.
        let next = unsafe { _mm512_loadu_si512(from(i).cast()) };
        let next = if let Some(mask) = masks.get(i) { masked(next, mask) } else { next };
        sum = fold(next, key(i), sum);
    }
    reduce_wide(sum)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::crc::GENERATOR;

    /// Bytes of the longest packet.
    const LEN_MAX: usize = BLOCKS_MAX * BLOCK;

    /// The slow way: bit by bit, over a copy with ones in it.
    fn slow(frame: &[u8], l3: usize, end: usize, ipv6: bool) -> u32 {
        let mask = if ipv6 { &MASK_V6 } else { &MASK_V4 };
        let mut crc = START;
        for (i, byte) in frame[l3..end].iter().enumerate() {
            crc ^= u32::from(byte | mask.get(i).unwrap_or(&0));
            for _ in 0..8 {
                crc = crc >> 1 ^ (if crc & 1 != 0 { GENERATOR.reverse_bits() } else { 0 });
            }
        }
        crc
    }

    /// The ways that this processor has; says so if it has not all.
    fn ways() -> Vec<u8> {
        let has = at_once();
        if has < FOUR_BLOCKS {
            eprintln!("SKIPPED: this processor does not multiply 512 bits at a time");
        }
        if has < A_BLOCK {
            eprintln!("SKIPPED: this processor has no carry-less multiplication");
        }
        (A_BLOCK..=has).collect()
    }

    fn noise() -> Vec<u8> {
        let mut x = 1u32;
        let next = || {
            x = x.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (x >> 24) as u8
        };
        core::iter::repeat_with(next).take(400).collect()
    }

    #[test]
    fn agrees_with_the_bits_for_every_length() {
        let frame = noise();
        for way in ways() {
            let register = |l3, end, ipv6| register_by(way, &frame, l3, end, ipv6);
            let mut compared = 0;
            for (l3, ipv6) in [(14, false), (14, true), (18, false), (18, true), (BEFORE, false)] {
                for len in 0..300 {
                    let min = if ipv6 { 68 } else { 36 };
                    match register(l3, l3 + len, ipv6) {
                        Some(crc) => {
                            assert_eq!(crc, slow(&frame, l3, l3 + len, ipv6), "{way} {l3} {len} {ipv6}")
                        }
                        None => assert!(len % 4 != 0 || !(min..=LEN_MAX).contains(&len), "{l3} {len} {ipv6}"),
                    }
                    compared += u32::from(len % 4 == 0 && (min..=LEN_MAX).contains(&len));
                }
            }
            assert_eq!(compared, 3 * 56 + 2 * 48);
            assert_eq!(register(2, 2 + 60, false), None, "there are not so many bytes before it");
            assert_eq!(register(300, 300 + 108, false), None, "the frame ends before");
            assert_eq!(register(108, 14, false), None, "it ends before it begins");
        }
    }

    #[test]
    fn a_sum_and_the_head_of_a_frame_agree_with_the_bits() {
        if at_once() < FOUR_BLOCKS {
            return eprintln!("SKIPPED: this processor does not multiply 512 bits at a time");
        }
        let frame = noise();
        for (l3, ipv6) in [(14, false), (14, true), (18, false), (18, true)] {
            for end in (l3 + 300..frame.len()).step_by(4) {
                let sum = crc::of(&frame[..end]).unwrap().register();
                let register = register_with(&frame, l3, end, ipv6, sum);
                assert_eq!(register, Some(slow(&frame, l3, end, ipv6)), "{l3} {end} {ipv6}");
            }
            assert_eq!(register_with(&frame, l3, l3 + 301, ipv6, 0), None, "no packet has that length");
            assert_eq!(register_with(&frame, l3, frame.len() + 4, ipv6, 0), None, "the frame ends before");
            assert_eq!(register_with(&frame, l3, 40, ipv6, 0), None, "it is shorter than its headers");
        }
        assert_eq!(register_with(&frame, 16, 316, false, 0), None, "no frame begins so");
    }

    #[test]
    fn a_frame_in_one_pass_is_the_same_frame() {
        if at_once() < FOUR_BLOCKS {
            return eprintln!("SKIPPED: this processor does not multiply 512 bits at a time");
        }
        let noise = noise();
        let (head, payload) = noise.split_first_chunk().unwrap();
        for (tagged, l3) in [(false, 14), (true, 18)] {
            for ipv6 in [false, true] {
                let pass = OnePass::new(tagged, ipv6).unwrap();
                for len in OnePass::REST_MIN..=payload.len() {
                    let mut to = vec![0xaa; OnePass::HEAD + len + 1];
                    // SAFETY: both are as long as that, and another allocation.
                    let icrc = unsafe { pass.write(to.as_mut_ptr(), head, payload.as_ptr(), len) };
                    assert_eq!(to.pop(), Some(0xaa), "nothing is written behind it");
                    assert_eq!(to, noise[..OnePass::HEAD + len], "{l3} {ipv6} {len}");
                    assert_eq!(!icrc, slow(&to, l3, to.len(), ipv6), "{l3} {ipv6} {len}");
                }
            }
        }
    }
}
